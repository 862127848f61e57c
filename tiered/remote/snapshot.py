"""A catalog pinned at one version. Whoever wants its rows asks it, by offset, by time or a piece at a time.

::

    root ── inner pointers ── leaf pointers ── rows         what lies in a page is read when it is asked for
      ├──── leaf pointers ── rows
      └──── rows                                            of the newest segments, or all of them

All questions are steps: at most an inner page and a leaf have to be read for an answer by offset, none once they are in
the cache; by time a leaf more for each one that has the time and only rows below the start. Leaves that cannot hold
what is wanted are not read. No answer holds more than ``PIECE_ROWS`` rows, so that a caller needs memory for a piece,
not for a partition::

    at = 0
    while len(rows := (yield from snapshot.piece(at))):
        at = rows.end_offset
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from tiered.format.page import NO_POINTERS, PageKind, Pointer, Pointers
from tiered.format.root import Root
from tiered.format.rows import NO_ROWS, Column, Rows
from tiered.model import Row
from tiered.remote.pages import PageCache, read_pages
from tiered.store.base import Steps

PIECE_ROWS = 1024
"""Rows of one answer at most."""

Accept = Callable[[dict[str, Column]], npt.NDArray[np.bool_]]
"""Which of some pointers may hold what is wanted."""


class Snapshot:
    """One version of a partition's catalog. Immutable: what it answers never changes.

    ``root`` is its header. The rows of that root are this class's own business. ``cache`` may be shared by the
    snapshots of one partition: newer ones find the pages that they have in common.
    """

    def __init__(self, root: Root, cache: PageCache | None = None) -> None:
        self.root = root
        self._cache = cache if cache is not None else PageCache()
        self.version = root.version
        self.start_offset = root.start_offset
        self.next_offset = root.next_offset

    @classmethod
    def of(cls, root: Root, cache: PageCache | None = None) -> Snapshot:
        """The catalog that ``root`` describes."""
        return cls(root, cache)

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
        rows = yield from self._leaf(offset)
        return rows.slice(0, PIECE_ROWS)

    def flagged(self, flags: int, offset: int) -> Steps[Rows]:
        """As :meth:`piece`, of the rows that have one of ``flags``."""
        at = offset
        while len(rows := (yield from self._leaf(at, lambda columns: (columns["row_flags"] & flags) != 0))):
            found = rows.where((rows.columns["flags"] & flags) != 0)
            if len(found):
                return found.slice(0, PIECE_ROWS)
            at = rows.end_offset
        return NO_ROWS

    def at(self, offset: int) -> Steps[Row | None]:
        """The row whose range holds ``offset``, None outside all of them."""
        start = max(offset, self.start_offset)
        rows = yield from self._held(start)
        index = rows.first_above(start)
        return rows.row(index) if index < len(rows) and rows.base[index] <= offset else None

    def first(self) -> Steps[Row | None]:
        """The row with the smallest offsets."""
        rows = yield from self._leaf(0)
        return rows.row(0) if len(rows) else None

    def last(self) -> Steps[Row | None]:
        """The row with the largest offsets."""
        rows = yield from self._leaf(self.next_offset - 1)
        return rows.row(-1) if len(rows) else None

    def reaching(self, timestamp: int, offset: int = 0) -> Steps[Row | None]:
        """The first row that ends above ``offset`` and has a timestamp at or after ``timestamp``.

        Timestamps need not be in order.
        """
        at = offset
        while len(rows := (yield from self._leaf(at, lambda columns: columns["max_ts"] >= timestamp))):
            found = rows.find_timestamp(timestamp)
            if found is not None:
                return rows.row(found)
            at = rows.end_offset
        return None

    def times(self) -> Steps[tuple[int, int] | None]:
        """The smallest and the largest timestamp of all segments, None without one. Reads the first page at most."""
        found: list[tuple[int, int]] = []
        at = self.start_offset
        for level, kind in ((self.root.inner, PageKind.INNER), (self.root.leaves, PageKind.LEAF)):
            for pointer in level:
                if pointer.base >= at:
                    found.append((pointer.min_ts, pointer.max_ts))
                else:
                    found += yield from self._times_from(pointer, kind)
        if len(self.root.rows):
            found.append(_times_of(self.root.rows))
        return (min(low for low, _ in found), max(high for _, high in found)) if found else None

    # -- down to the rows -----------------------------------------------------------------------------------------

    def _leaf(self, offset: int, accept: Accept | None = None) -> Steps[Rows]:
        """Rows that lie together and end above ``offset``: of the first page that may hold what is wanted, or of the
        root; none below the start of the log. Empty behind the last."""
        at = max(offset, self.start_offset)
        rows = yield from self._held(at, accept)
        return rows.slice(rows.first_above(at))

    def _held(self, at: int, accept: Accept | None = None) -> Steps[Rows]:
        """All rows of the first page that ends above ``at`` and may hold what is wanted, or of the root."""
        root = self.root
        if root.inner is not NO_POINTERS or root.leaves is not NO_POINTERS:
            for pointer in _candidates(root.inner, at, accept):
                children = yield from self._children(pointer)
                for child in _candidates(children, at, accept):
                    return (yield from self._rows(child))
            for pointer in _candidates(root.leaves, at, accept):
                return (yield from self._rows(pointer))
        return root.rows

    def _children(self, pointer: Pointer) -> Steps[Pointers]:
        held = self._cache.get(pointer)
        if held is None:
            (held,) = yield from read_pages(self.root, PageKind.INNER, (pointer,), self._cache)
        return held if isinstance(held, Pointers) else NO_POINTERS

    def _rows(self, pointer: Pointer) -> Steps[Rows]:
        held = self._cache.get(pointer)
        if held is None:
            (held,) = yield from read_pages(self.root, PageKind.LEAF, (pointer,), self._cache)
        return held if isinstance(held, Rows) else NO_ROWS

    def _times_from(self, pointer: Pointer, kind: PageKind) -> Steps[list[tuple[int, int]]]:
        """Times in the page in which the log starts, of what lives of it."""
        if kind is PageKind.LEAF:
            rows = yield from self._rows(pointer)
            return [_times_of(rows.slice(rows.first_above(self.start_offset)))]
        children = yield from self._children(pointer)
        alive = list(children.slice(children.first_above(self.start_offset)))
        found = [(child.min_ts, child.max_ts) for child in alive if child.base >= self.start_offset]
        for child in alive[:1]:
            if child.base < self.start_offset:
                found += yield from self._times_from(child, PageKind.LEAF)
        return found


def _candidates(pointers: Pointers, offset: int, accept: Accept | None) -> Iterator[Pointer]:
    """Pointers, in order, that end above ``offset`` and are accepted."""
    if pointers is NO_POINTERS:
        return
    at = pointers.first_above(offset)
    if accept is None:
        yield from (pointers.pointer(index) for index in range(at, len(pointers)))
    else:
        wanted = accept({name: column[at:] for name, column in pointers.columns.items()})
        yield from (pointers.pointer(at + int(index)) for index in np.flatnonzero(wanted))


def _times_of(rows: Rows) -> tuple[int, int]:
    return int(np.min(rows.columns["min_ts"])), int(np.max(rows.columns["max_ts"]))


def rows_inside(root: Root) -> Rows:
    """The rows that stand in the object ``root`` itself: for who shows one object, not a partition."""
    return root.rows
