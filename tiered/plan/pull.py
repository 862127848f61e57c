"""Decision of a pull: which segments of a partition's directory stay, are fetched, are replaced or are dropped.

::

    root     [0 .. 40)[40 .. 60)[60 .. 80)          merged: 0 and 20 became one; 60 is new
    disk     [0, 20)[20, 40)[40, 60)[60: empty]
    pull     0 replaces 0 and 20   40 stays   60 replaces the empty segment, and 80 becomes the empty one
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tiered.format.keys import FLAG_HOLE, FLAG_STAGED, MAX_INT64
from tiered.format.segment_builder import SegmentStats
from tiered.model import Row


class Held(NamedTuple):
    """Segment on the disk. ``stats``: totals that were stored when it was sealed, None if missing or invalid."""

    base: int
    stats: SegmentStats | None


class Exchange(NamedTuple):
    """Replacement of the segments at the bases ``old`` by the segments ``new``, atomic for readers and after a
    crash.
    """

    new: tuple[Row, ...]
    old: tuple[int, ...] = ()


class Pull(NamedTuple):
    """Changes to one partition's directory, in this order: ``exchanges``, then removal of the segments at the bases
    ``dropped``.
    """

    exchanges: tuple[Exchange, ...]
    dropped: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the ``.log`` objects to fetch."""
        return sum(row.size for exchange in self.exchanges for row in exchange.new)


def decide_pull(held: Sequence[Held], rows: Sequence[Row], end: int) -> Pull:
    """Return the changes that make a partition's directory equal to the catalog.

    ``held``: segments on the disk, ascending. ``rows``: all rows of the catalog, which ends at ``end``. A segment at
    ``end`` stays: it is the active segment.
    """
    wanted = {row.base: row for row in rows if not row.flags & FLAG_HOLE}
    following = [*(each.base for each in held[1:]), MAX_INT64]  # nothing follows the last one
    stale = {
        each.base: reach
        for each, reach in zip(held, following, strict=False)
        if not _is_same(each.stats, wanted.get(each.base)) and (each.base != end or each.base in wanted)
    }
    kept = {each.base for each in held} - stale.keys()
    exchanges: list[Exchange] = []
    for row in wanted.values():
        if row.base in kept:
            continue
        old = tuple(base for base, reach in stale.items() if base < row.next and reach > row.base)
        if exchanges and set(old) & set(exchanges[-1].old):  # an old segment reaches over both rows
            before = exchanges.pop()
            exchanges.append(Exchange((*before.new, row), tuple(sorted({*before.old, *old}))))
        else:
            exchanges.append(Exchange((row,), old))
    replaced = {base for exchange in exchanges for base in exchange.old}
    return Pull(tuple(exchanges), tuple(base for base in stale if base not in replaced))


def _is_same(stats: SegmentStats | None, row: Row | None) -> bool:
    """Return True if the local segment's totals are those of ``row``. A staged segment may differ in its checksum.

    The disk has such a segment with other batch headers.
    """
    if stats is None or row is None:
        return False
    # mutant pull-compares-checksums
    same_bytes = stats.crc32c == row.crc or bool(row.flags & FLAG_STAGED)
    noted = stats.size_bytes, stats.records, stats.min_timestamp, stats.max_timestamp, stats.appended_ms
    return same_bytes and noted == (row.size, row.records, row.min_ts, row.max_ts, row.appended_ms)
