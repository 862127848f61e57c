"""A catalog pinned at one version. Whoever wants its rows asks it, by offset, by time or a piece at a time.

::

    root ── leaves, in offset order: what is known of their rows, and steps that read them ── rows

All questions are steps, since the rows of a leaf may have to be read. In a root of today all rows are inline: one leaf
that costs no request. No answer holds more than ``PIECE_ROWS`` rows, so that a caller needs memory for a piece, not for
a partition::

    at = 0
    while len(rows := (yield from snapshot.piece(at))):
        at = rows.end_offset
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tiered.errors import ConfigError
from tiered.format.root import Root
from tiered.format.rows import NO_ROWS, Rows
from tiered.model import Row
from tiered.store.base import Steps

PIECE_ROWS = 1024
"""Rows of one answer at most."""

_LATEST_MS = 2**63 - 1
_ANY_FLAGS = -1


@dataclass(frozen=True, slots=True)
class Leaf:
    """Rows that lie together: offsets ``start`` to ``end`` (exclusive).

    No row has a timestamp above ``max_ts``, and none a flag that is not in ``flags``: a leaf that cannot hold what is
    wanted is not read.
    """

    start: int
    end: int
    rows: Callable[[], Steps[Rows]]
    max_ts: int = _LATEST_MS
    flags: int = _ANY_FLAGS


class Snapshot:
    """One version of a partition's catalog. Immutable: what it answers never changes.

    ``root`` is its header. The rows of that root are this class's own business.
    """

    def __init__(self, root: Root, leaves: Sequence[Leaf]) -> None:
        self.root = root
        self._leaves = leaves
        self.version = root.version
        self.start_offset = root.start_offset
        self.next_offset = root.next_offset

    @classmethod
    def of(cls, root: Root) -> Snapshot:
        """The catalog that ``root`` describes."""
        rows = root.rows
        if len(root.inner) or len(root.leaves):
            raise ConfigError(
                f"{root.where} has pages, which this release cannot read", hint="upgrade tieredlog; nothing was changed"
            )
        if not len(rows):
            return cls(root, ())
        return cls(root, (Leaf(int(rows.base[0]), rows.end_offset, partial(_inline, rows)),))

    # -- totals: no row is read -----------------------------------------------------------------------------------

    @property
    def segments(self) -> int:
        """Number of live segments."""
        return self.root.added.segments - self.root.removed.segments

    @property
    def size_bytes(self) -> int:
        """Bytes of their ``.log`` objects."""
        return self.root.added.size_bytes - self.root.removed.size_bytes

    @property
    def records(self) -> int:
        """Records in all of them."""
        return self.root.added.records - self.root.removed.records

    # -- rows ----------------------------------------------------------------------------------------------------

    def piece(self, offset: int) -> Steps[Rows]:
        """Rows in order from the one that holds ``offset``, or the first above it, on; empty behind the last."""
        for leaf in self._leaves:
            if leaf.end > offset:
                rows = yield from leaf.rows()
                first = rows.first_above(offset)
                return rows.slice(first, first + PIECE_ROWS)
        return NO_ROWS

    def flagged(self, flags: int, offset: int) -> Steps[Rows]:
        """As :meth:`piece`, of the rows that have one of ``flags``."""
        for leaf in self._leaves:
            if leaf.end > offset and leaf.flags & flags:
                rows = yield from leaf.rows()
                rows = rows.slice(rows.first_above(offset))
                found = rows.where((rows.columns["flags"] & flags) != 0)
                if len(found):
                    return found.slice(0, PIECE_ROWS)
        return NO_ROWS

    def at(self, offset: int) -> Steps[Row | None]:
        """The row whose range holds ``offset``, None outside all of them."""
        rows = yield from self.piece(offset)
        return rows.row(0) if len(rows) and rows.base[0] <= offset else None

    def first(self) -> Steps[Row | None]:
        """The row with the smallest offsets."""
        rows = yield from self.piece(0)
        return rows.row(0) if len(rows) else None

    def last(self) -> Steps[Row | None]:
        """The row with the largest offsets."""
        if not self._leaves:
            return None
        rows = yield from self._leaves[-1].rows()
        return rows.row(-1)

    def reaching(self, timestamp: int, offset: int = 0) -> Steps[Row | None]:
        """The first row that ends above ``offset`` and has a timestamp at or after ``timestamp``.

        Timestamps need not be in order.
        """
        for leaf in self._leaves:
            if leaf.end > offset and leaf.max_ts >= timestamp:
                rows = yield from leaf.rows()
                found = rows.first_reaching(timestamp, rows.first_above(offset))
                if found is not None:
                    return rows.row(found)
        return None

    def times(self) -> Steps[tuple[int, int] | None]:
        """The smallest and the largest timestamp of all segments, None without one."""
        found: tuple[int, int] | None = None
        for leaf in self._leaves:
            rows = yield from leaf.rows()
            low, high = int(np.min(rows.columns["min_ts"])), int(np.max(rows.columns["max_ts"]))
            found = (low, high) if found is None else (min(found[0], low), max(found[1], high))
        return found


def _inline(rows: Rows) -> Steps[Rows]:
    yield from ()  # no request
    return rows


def rows_inside(root: Root) -> Rows:
    """The rows that stand in the object ``root`` itself: for who shows one object, not a partition."""
    return root.rows
