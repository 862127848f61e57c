"""Immutable view of the segments of one partition, for one read. It is made in constant time.

All views share one tuple of extents for the sealed segments. It is replaced when the list of segments changes. A view
adds only the extent of the last segment, which grows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Protocol

from tiered.errors import NotFoundError, OffsetOutOfRangeError
from tiered.format.batch_scanner import NO_LIMIT, BatchPosition, BatchWalk, Offsets
from tiered.local.segment.indexes import SegmentIndexes
from tiered.local.segment.scan import BUFFER_BYTES, LogFile
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.model import AbortedTxn, TopicPartition

_BASE = attrgetter("base_offset")


class Readable(Protocol):
    """Segment that can be read: sealed, active, or written by another process."""

    @property
    def base_offset(self) -> int: ...
    @property
    def path(self) -> Path: ...
    @property
    def lookup(self) -> SegmentIndexes: ...
    def aborted_txns(self) -> list[AbortedTxn]: ...


class Extent(NamedTuple):
    """Part of one segment that a view shows: offsets below ``end_offset``, bytes below ``size_bytes``.

    ``reach``: a read raises CorruptionError if the batches end below this offset; -1: no such check. ``max_timestamp``:
    the segment's largest, None if only its index has it.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int | None  # None: ask the index
    segment: Readable
    reach: int = -1  # its batches are known to have reached this offset

    @classmethod
    def whole(cls, sealed: SealedLocalSegment) -> Extent:
        """Return the extent of a whole sealed segment."""
        return cls(sealed.base_offset, sealed.end_offset, sealed.size_bytes, None, sealed, sealed.reach)

    def walk(self, log: LogFile, position: int, *, dense: bool) -> Iterator[tuple[BatchPosition, memoryview]]:
        """Yield the batches from ``position`` on with their bytes, to the end of the extent. CRCs are not checked.

        ``position``: a batch's start. Raises CorruptionError if a batch is outside the segment's offsets or not after
        the batch before. Raises it, too, if the batches end before ``size_bytes`` or below the offset ``reach``.
        ``dense``: raise it also for a missing offset.
        """
        reach = self.end_offset if dense else self.reach
        return log.segment(position, self.size_bytes, self.offset_range, dense=dense, reach=reach)

    def pieces(
        self, log: LogFile, walk: BatchWalk, *, dense: bool, buffer_bytes: int = BUFFER_BYTES
    ) -> Iterator[memoryview]:
        """Yield the bytes from the position of ``walk`` on, in pieces. A piece is valid while it is referenced.

        The caller passes each piece to ``walk`` before the next step. The last step raises CorruptionError if the
        batches do not fill the extent. ``dense``: raise it also if they end below the extent's end offset.
        """
        reach = self.end_offset if dense else self.reach
        return log.pieces(walk, self.size_bytes, reach=reach, buffer_bytes=buffer_bytes, kept=True)

    @property
    def offset_range(self) -> Offsets:
        """Return the range of offsets that the segment's batches may have."""
        return Offsets(self.base_offset, self.end_offset)

    @property
    def largest_timestamp(self) -> int:
        """Return the largest timestamp of the segment's records, -1 if none has one.

        Raises CorruptionError if the end of the ``.log`` is lost.
        """
        return self.segment.lookup.last_time[0] if self.max_timestamp is None else self.max_timestamp

    def may_reach(self, timestamp: int) -> bool:
        """Return False if all records of the segment are older than ``timestamp``. True for a damaged segment."""
        return self.largest_timestamp >= timestamp or self.segment.lookup.damaged

    def seek(self, log: LogFile, offset: int) -> int:
        """Return the position of a batch from which a scan finds ``offset``."""
        return self.segment.lookup.seek(log, offset, self.size_bytes, self.offset_range)

    def seek_time(self, log: LogFile, timestamp: int, start_offset: int) -> int:
        """Return the position of a batch from which a scan finds the first record from ``timestamp`` on.

        Only records from ``start_offset`` on count.
        """
        lookup = self.segment.lookup
        if lookup.damaged:  # a batch that is not indexed may be the one: the scan meets it, or finds a record before
            return 0
        return lookup.seek_time(log, timestamp, start_offset, self.size_bytes, self.offset_range)


class SealedExtents:
    """Extents of all sealed segments, ascending, shared by views. Immutable and thread-safe.

    ``_peaks``: (index of a segment, list of timestamps). Entry ``i`` of the list is the largest timestamp of the
    segments from that index to ``i`` segments later. So the list ascends, and a search can bisect it.
    """

    __slots__ = ("_peaks", "all")

    def __init__(self, extents: Iterable[Extent] = ()) -> None:
        self.all = tuple(extents)
        self._peaks: tuple[int, list[int]] = (0, [])  # replaced as a whole: readers take no lock

    def with_last(self, extent: Extent) -> SealedExtents:
        """Return a copy with ``extent`` added at the end. It keeps the timestamps that were computed so far."""
        longer = SealedExtents((*self.all, extent))
        longer._peaks = self._peaks
        return longer

    def at_offset(self, offset: int) -> int:
        """Return the index of the last segment that begins at or before ``offset``; 0 if none does."""
        return max(bisect_right(self.all, offset, key=_BASE) - 1, 0)

    def at_time(self, timestamp: int, first: int) -> int:
        """Return the index of the first segment, from ``first`` on, that may have a record at or after ``timestamp``.

        If there is none, return the number of segments. Indexes of the segments up to the result are loaded unless they
        are in memory. Raises CorruptionError if that fails.
        """
        known_from, peaks = self._peaks
        if known_from != first:
            peaks = []
        if not peaks or peaks[-1] < timestamp:
            peaks = list(peaks)
            for at in range(first + len(peaks), len(self.all)):
                extent = self.all[at]
                peak = NO_LIMIT if extent.segment.lookup.damaged else extent.largest_timestamp
                peaks.append(max(peak, peaks[-1]) if peaks else peak)
                if peak >= timestamp:
                    break
            self._peaks = first, peaks
        return first + bisect_left(peaks, timestamp)


class View(NamedTuple):
    """Segments for one read: their extents, ascending, and the offsets ``start_offset`` to ``end_offset`` (exclusive).

    ``tail``: extent of the last segment, None without segments. ``dense``: every offset has a record, so that a missing
    record is damage, not compaction.
    """

    tp: TopicPartition
    start_offset: int
    end_offset: int
    sealed: SealedExtents
    tail: Extent | None
    dense: bool

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Return all extents, for a read of the whole log."""
        return self.sealed.all if self.tail is None else (*self.sealed.all, self.tail)

    def extents_from(self, offset: int) -> Iterator[Extent]:
        """Yield the extents of the segment with ``offset`` and of all later segments."""
        tail = self.tail
        if tail is None:
            return
        if offset < tail.base_offset:
            sealed = self.sealed.all
            for at in range(self.sealed.at_offset(offset), len(sealed)):
                yield sealed[at]
        yield tail

    def extents_reaching(self, timestamp: int) -> Iterator[Extent]:
        """Yield the extents that may have a record at or after ``timestamp``, above the view's start.

        Raises OffsetOutOfRangeError if a segment was deleted since the view was made.
        """
        sealed = self.sealed.all
        try:
            for at in range(self.sealed.at_time(timestamp, self.sealed.at_offset(self.start_offset)), len(sealed)):
                if self._shows(sealed[at]) and sealed[at].may_reach(timestamp):
                    yield sealed[at]
        except NotFoundError:
            raise out_of_range(self, self.start_offset) from None
        if self.tail is not None and self._shows(self.tail) and self.tail.may_reach(timestamp):
            yield self.tail

    def _shows(self, extent: Extent) -> bool:
        """Return True if an offset of the segment may be read."""
        return extent.end_offset > max(self.start_offset, extent.base_offset)


def out_of_range(view: View, offset: int) -> OffsetOutOfRangeError:
    """Return the error for a read at an offset that this disk does not have."""
    return OffsetOutOfRangeError(
        f"{view.tp}: offset {offset} is outside {view.start_offset} to {view.end_offset} on this disk",
        requested=offset,
        earliest=view.start_offset,
        latest=view.end_offset,
    )
