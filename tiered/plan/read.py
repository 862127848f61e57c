"""Planner of reads: which tier serves which offsets of a range, and which bytes of an object.

::

    offset   remote.start      local.start     uploaded      committed     local.end
                  |                 |              |             |             |
    volume's own  |---- remote -----|---- local ---|-- remote ---|--- local ---|

Below the committed end the catalog is the log. This volume may serve those offsets from its own disk only below
its own ``uploaded`` offset, which it wrote after it read the root back. From there to the committed end another volume
may have committed other records under the same offsets, so the remote tier wins. Above the committed end only the
disk exists. Offsets in neither tier are an error, never a jump.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiered.errors import OffsetGapError, OffsetOutOfRangeError
from tiered.model import Positions, Row, TopicPartition


class Tier(enum.StrEnum):
    """Tiers from which an offset can be read."""

    LOCAL = "local"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class LocalSpan:
    """Offsets of one partition on this disk. Those below ``uploaded_offset`` are known to be in the bucket, too."""

    start_offset: int
    end_offset: int
    uploaded_offset: int

    @classmethod
    def from_positions(cls, positions: Positions) -> LocalSpan:
        """Return the span for the positions of a partition on this disk."""
        return cls(positions.local_start_offset, positions.end_offset, positions.uploaded_offset)


@dataclass(frozen=True, slots=True)
class RemoteSpan:
    """Offsets of one partition in the bucket: the root's ``start_offset`` to ``next_offset`` (exclusive)."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class TierRange:
    """Offsets ``start`` to ``end`` (exclusive), all from one tier."""

    tier: Tier
    start: int
    end: int


def earliest_offset(local: LocalSpan | None, remote: RemoteSpan | None) -> int:
    """Return the smallest offset of the non-empty tiers. If both are empty, the larger start; without a tier, 0."""
    if local is None or remote is None:
        only = local or remote
        return 0 if only is None else only.start_offset
    if remote.start_offset >= remote.end_offset:
        both_empty = local.start_offset >= local.end_offset
        return max(local.start_offset, remote.start_offset) if both_empty else local.start_offset
    return (
        remote.start_offset if local.start_offset >= local.end_offset else min(local.start_offset, remote.start_offset)
    )


def latest_offset(local: LocalSpan | None, remote: RemoteSpan | None) -> int:
    """Return the larger end of both tiers, which is the offset of the next record; without a tier, 0."""
    return max(0 if local is None else local.end_offset, 0 if remote is None else remote.end_offset)


def plan_tiers(
    tp: TopicPartition,
    start: int,
    end: int | None = None,
    *,
    local: LocalSpan | None,
    remote: RemoteSpan | None,
) -> tuple[TierRange, ...]:
    """Return ranges, each of one tier, that cover ``start`` to ``end`` in order, without a gap.

    ``end``: exclusive; None or an offset above the end of the log stands for that end. Raises OffsetOutOfRangeError if
    ``start`` is below the earliest or above the latest offset. At the latest the plan is empty, as in Kafka. Raises
    OffsetGapError if offsets in between are in neither tier.
    """
    earliest, latest = earliest_offset(local, remote), latest_offset(local, remote)
    if not earliest <= start <= latest:
        raise OffsetOutOfRangeError(
            f"{tp}: offset {start} is outside {earliest} to {latest}",
            requested=start,
            earliest=earliest,
            latest=latest,
            hint=f"start at {earliest} (earliest) or {latest} (latest)",
        )
    stop = latest if end is None else min(end, latest)
    ranges: list[TierRange] = []
    at = start
    while at < stop:
        tier, until = _serve(at, local, remote)
        if tier is None:
            until = _next_served(at, local, remote)
            raise OffsetGapError(
                f"{tp}: offsets {at} to {until} are neither on this disk nor in the catalog",
                start=at,
                end=until,
                hint=f"run `tiered check {tp.topic}`; to continue without these records, start at {until}",
            )
        until = min(until, stop)
        if ranges and ranges[-1].tier is tier:
            ranges[-1] = TierRange(tier, ranges[-1].start, until)
        else:
            ranges.append(TierRange(tier, at, until))
        at = until
    return tuple(ranges)


def _serve(at: int, local: LocalSpan | None, remote: RemoteSpan | None) -> tuple[Tier | None, int]:
    """Return (tier that serves ``at``, end of its range). The tier is None if neither tier has the offset."""
    committed = remote.end_offset if remote is not None else 0
    if local is not None and local.start_offset <= at < local.end_offset:
        if at >= committed:
            return Tier.LOCAL, local.end_offset
        if at < local.uploaded_offset:
            return Tier.LOCAL, min(local.end_offset, local.uploaded_offset)
    if remote is not None and remote.start_offset <= at < committed:
        if local is not None and at < local.start_offset < min(local.uploaded_offset, local.end_offset, committed):
            return Tier.REMOTE, local.start_offset
        return Tier.REMOTE, committed
    return None, at


def _next_served(at: int, local: LocalSpan | None, remote: RemoteSpan | None) -> int:
    """Return the smallest offset above ``at`` that a tier serves; the latest if none does."""
    edges = {latest_offset(local, remote)}
    for span in (local, remote):
        if span is not None:
            edges |= {span.start_offset, span.end_offset}
    return min(edge for edge in edges if edge > at and (_serve(edge, local, remote)[0] or edge == max(edges)))


class CatalogRows(Protocol):
    """Sequence of catalog rows, sorted by base, without gaps between them."""

    def __len__(self) -> int:
        """Return the number of segments."""

    def row(self, index: int) -> Row:
        """Return the segment at ``index``."""

    def find_offset(self, offset: int) -> int | None:
        """Return the index of the segment whose range contains ``offset``, None outside all of them."""


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Part of a remote segment to read: offsets ``start`` to ``end`` (exclusive) of the segment ``row``."""

    row: Row
    start: int
    end: int


def segment_ranges(rows: CatalogRows, start: int, end: int) -> Iterator[SegmentRange]:
    """Yield the parts of remote segments that cover ``start`` to ``end`` (exclusive), in order.

    Yields nothing if no segment contains ``start``.
    """
    first = rows.find_offset(start) if start < end else None
    if first is None:
        return
    for index in range(first, len(rows)):
        row = rows.row(index)
        if row.base >= end:
            return
        yield SegmentRange(row, max(start, row.base), min(end, row.next))


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``start`` to ``end`` (exclusive) of an object."""

    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Number of bytes in the range."""
        return self.end - self.start


def byte_range(entries: Sequence[tuple[int, int]], size_bytes: int, start: int, end: int) -> ByteRange:
    """Return the bytes of a ``.log`` of ``size_bytes`` that contain offsets ``start`` to ``end`` (exclusive).

    ``entries``: offset index of the ``.log``, as (last offset of an append, position where that append begins). The
    range may contain up to one index interval more at each side.
    """
    below = bisect.bisect_right(entries, start, key=lambda entry: entry[0])
    first = entries[below - 1][1] if below else 0
    behind = bisect.bisect_left(entries, end - 1, key=lambda entry: entry[0]) + 1
    last = entries[behind][1] if behind < len(entries) else size_bytes
    return ByteRange(min(first, size_bytes), min(max(last, first), size_bytes))


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Trade-off between requests to the bucket and the bytes that they fetch.

    ``chunk_bytes``: unit of cache, accounting and alignment of reads from an object. ``request_bytes``: largest single
    read. ``unindexed_bytes``: segments up to this size are read from their start, because an index would cost one more
    request. ``bundle_bytes``: index bundles
    up to this size are fetched in one request.
    """

    chunk_bytes: int = 4 * 1024 * 1024
    request_bytes: int = 16 * 1024 * 1024
    unindexed_bytes: int = 1024 * 1024
    bundle_bytes: int = 1024 * 1024


READ_LIMITS = ReadLimits()


class RequestSizes:
    """Planner of successive reads of one object: first one chunk, then twice as much each time, up to a limit.

    Requests end at multiples of ``chunk_bytes``, so that a chunk that was read once is found again in the cache. Use a
    new planner after a seek.
    """

    def __init__(self, limits: ReadLimits) -> None:
        self.chunk_bytes = limits.chunk_bytes
        self._max_bytes = max(limits.chunk_bytes, limits.request_bytes)
        self._next_bytes = limits.chunk_bytes

    def next_request(self, position: int, end: int) -> ByteRange:
        """Return the next range to request, from ``position`` to at most ``end`` (exclusive)."""
        aligned = position - position % self.chunk_bytes
        until = min(aligned + self._next_bytes, end)
        self._next_bytes = min(self._next_bytes * 2, self._max_bytes)
        return ByteRange(position, until)
