"""Slices of resolved ranges, one Spark task each. Pure.

A slice pins what it reads: rows of one root version, so that a retried or speculative task reads the same bytes. It has
one or more pieces. Small neighbours share a task, because a task itself costs about 70 ms. A segment larger than a
slice is cut at evenly spaced offsets. Two slices then read the batch at the cut, and each keeps its own records::

    pieces ── _parts ──> parts of one segment each ── _join ──> groups ── _spread ──> groups ── _slice ──> slices

Every step walks its input once, so that planning is linear in segments, slices and aborted transactions.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from tiered.errors import ConfigError
from tiered.model import AbortedTxn, Row, TopicPartition
from tiered.plan.read import SegmentRange, Tier
from tiered.spark.options import MAX_SLICES
from tiered.store.base import Steps


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """Segments of a plan, with the methods that a reader of a catalog expects."""

    rows: tuple[Row, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, index: int) -> Row:
        return self.rows[index]

    def find_offset(self, offset: int) -> int | None:
        """Return the index of the row that contains ``offset``, None if there is none."""
        return next((at for at, row in enumerate(self.rows) if row.base <= offset < row.next), None)


@dataclass(frozen=True)
class PartitionSlice:
    """Piece of a query: offsets ``start`` to ``end`` (exclusive) of one partition, from one tier.

    ``size_bytes``: estimated size of these records. ``rows``: their remote segments (none for the local tier).
    ``aborted``: transactions that ``read_committed`` hides. ``root_version``: version of the planned root, 0 without
    one.
    """

    tp: TopicPartition
    topic_id: str
    tier: Tier
    start: int
    end: int
    size_bytes: int
    rows: tuple[Row, ...] = ()
    aborted: tuple[AbortedTxn, ...] = ()
    root_version: int = 0

    def part(
        self, start: int, end: int, size_bytes: int, *, rows: tuple[Row, ...], aborted: tuple[AbortedTxn, ...]
    ) -> PartitionSlice:
        """Return the part with these offsets. ``replace`` would be slower, and there are many parts."""
        whole = self.tp, self.topic_id, self.tier
        return PartitionSlice(*whole, start, end, size_bytes, rows, aborted, self.root_version)

    def rows_from(self, offset: int) -> Steps[PlannedRows]:
        """Return the piece's segments from the one that contains ``offset`` on, for a reader."""
        yield from ()  # no request: the rows are in the plan
        return PlannedRows(tuple(row for row in self.rows if row.next > offset))

    def segments_from(self, offset: int) -> Iterator[SegmentRange]:
        """Yield the wanted ranges of the piece's segments from ``offset`` on."""
        for row in self.rows:
            if row.next > offset and row.base < self.end:
                yield SegmentRange(row, max(offset, row.base, self.start), min(row.next, self.end))


@dataclass(frozen=True)
class Slice(InputPartition):
    """Work of one task: the pieces that it reads, in order."""

    pieces: tuple[PartitionSlice, ...]

    @property
    def size_bytes(self) -> int:
        """Return the estimated bytes of ``.log`` data."""
        return sum(piece.size_bytes for piece in self.pieces)


class _SlicePart(NamedTuple):
    """Part of a piece inside one segment (``row``; None in the local tier)."""

    piece: PartitionSlice
    start: int
    end: int
    size_bytes: int
    row: Row | None


def target_bytes(pieces: Iterable[PartitionSlice], slice_bytes: int, min_partitions: int) -> int:
    """Return the target size of a slice: ``slice_bytes``, or less if otherwise there were fewer than ``min_partitions``
    slices.
    """
    total = sum(piece.size_bytes for piece in pieces)
    return max(1, min(slice_bytes, -(-total // min_partitions)))


def cut_slices(
    pieces: Iterable[PartitionSlice],
    *,
    slice_bytes: int,
    min_partitions: int = 1,
    max_records: int | None = None,
    max_slices: int = MAX_SLICES,
) -> list[Slice]:
    """Return slices of about ``slice_bytes`` and at most ``max_records`` offsets, each wanted offset in exactly one.

    There are at least ``min_partitions`` slices, if there are as many offsets.

    Slices are in the order of the pieces, which is that of offsets. Raises ConfigError for more than ``max_slices``.
    """
    pieces = [piece for piece in pieces if piece.start < piece.end]
    target = target_bytes(pieces, slice_bytes, min_partitions)
    parts = (part for piece in pieces for part in _parts(piece, target, max_records))
    groups: list[list[_SlicePart]] = []
    for group in _join(parts, target, max_records):
        if len(groups) == max_slices:
            raise ConfigError(
                f"the options cut this query into more than {max_slices} tasks",
                hint="use a larger maxRecordsPerPartition or slice_bytes, or fewer offsets in one query",
            )
        groups.append(group)
    return _slices(_spread(groups, min_partitions))


# -- pieces -> parts -------------------------------------------------------------------------------------------------


def _share(segment: SegmentRange) -> int:
    """Return the estimated bytes of the wanted part of a segment."""
    row = segment.row
    return row.size * (segment.end - segment.start) // (row.next - row.base)


def _parts(piece: PartitionSlice, target: int, max_records: int | None) -> Iterator[_SlicePart]:
    """Yield the piece in parts of at most one segment each, with large segments cut further."""
    if piece.tier is Tier.LOCAL:
        wholes: Iterable[_SlicePart] = [_SlicePart(piece, piece.start, piece.end, piece.size_bytes, None)]
    else:
        segments = piece.segments_from(piece.start)
        wholes = (_SlicePart(piece, each.start, each.end, _share(each), each.row) for each in segments)
    for whole in wholes:
        yield from _evenly(whole, _count(whole, target, max_records))


def _count(part: _SlicePart, target: int, max_records: int | None) -> int:
    """Return the number of parts, so that each has at most about ``target`` bytes and ``max_records`` offsets."""
    by_offsets = -(-(part.end - part.start) // max_records) if max_records else 1
    return max(1, -(-part.size_bytes // target), by_offsets)


def _evenly(part: _SlicePart, count: int) -> Iterable[_SlicePart]:
    span = part.end - part.start
    count = min(count, span)
    if count <= 1:
        return (part,)
    return _cut_at(part, (part.start + span * at // count for at in range(1, count)))


def _cut_at(part: _SlicePart, cuts: Iterable[int]) -> Iterator[_SlicePart]:
    """Cut the part at those of ``cuts``, in order, that are inside."""
    span = part.end - part.start
    inside = (cut for cut in cuts if part.start < cut < part.end)
    for start, end in itertools.pairwise(itertools.chain([part.start], inside, [part.end])):
        yield part._replace(start=start, end=end, size_bytes=part.size_bytes * (end - start) // span)


# -- parts -> groups -------------------------------------------------------------------------------------------------


def _join(parts: Iterable[_SlicePart], target: int, max_records: int | None) -> Iterator[list[_SlicePart]]:
    """Yield groups of neighbouring parts, each of at most ``target`` bytes and ``max_records`` offsets (None: any).

    A larger part is a group of its own.
    """
    group: list[_SlicePart] = []
    size = offsets = 0
    for part in parts:
        span = part.end - part.start
        fits = size + part.size_bytes <= target and (max_records is None or offsets + span <= max_records)
        if group and not fits:
            yield group
            group, size, offsets = [], 0, 0
        group.append(part)
        size += part.size_bytes
        offsets += span
    if group:
        yield group


def _spread(groups: Sequence[list[_SlicePart]], wanted: int) -> Iterator[list[_SlicePart]]:
    """Cut groups, those with most offsets first, until there are ``wanted`` in all, or one per offset."""
    widths = [sum(part.end - part.start for part in group) for group in groups]
    counts = [1] * len(groups)
    widest: list[tuple[float, int]] = [(-width, at) for at, width in enumerate(widths) if width > 1]
    heapq.heapify(widest)
    for _ in range(wanted - len(groups)):
        if not widest:
            break
        at = widest[0][1]
        counts[at] += 1
        if counts[at] < widths[at]:
            heapq.heapreplace(widest, (-widths[at] / counts[at], at))
        else:
            heapq.heappop(widest)
    for group, width, count in zip(groups, widths, counts, strict=True):
        yield from [group] if count == 1 else _divide(group, width, count)


def _divide(group: Iterable[_SlicePart], width: int, count: int) -> Iterator[list[_SlicePart]]:
    """Cut a group of ``width`` offsets into ``count`` groups with as many offsets each, one more or less."""
    edges = (width * at // count for at in range(1, count))
    edge = next(edges, width)
    passed = 0
    current: list[_SlicePart] = []
    for part in group:
        rest = part
        while passed + rest.end - rest.start > edge:
            *before, rest = _cut_at(rest, [rest.start + edge - passed])
            yield [*current, *before]
            current, passed, edge = [], edge, next(edges, width)
        current.append(rest)
        passed += rest.end - rest.start
    yield current


# -- groups -> slices ------------------------------------------------------------------------------------------------


def _slices(groups: Iterable[Sequence[_SlicePart]]) -> list[Slice]:
    """Make slices of groups. Adjacent parts of one piece become one piece again."""
    sweeps: dict[int, _Sweep] = {}  # by the identity of the piece: its value is all of its rows
    slices = []
    for group in groups:
        pieces = []
        for key, run in itertools.groupby(group, key=lambda part: id(part.piece)):
            parts = list(run)
            piece, start, end = parts[0].piece, parts[0].start, parts[-1].end
            sweep = sweeps.get(key)
            if sweep is None:
                sweep = sweeps[key] = _Sweep(piece.aborted)
            size = sum(part.size_bytes for part in parts)
            aborted = sweep.within(start, end)
            pieces.append(piece.part(start, end, size, rows=_rows(parts), aborted=aborted))
        slices.append(Slice(tuple(pieces)))
    return slices


def _rows(parts: Iterable[_SlicePart]) -> tuple[Row, ...]:
    rows: list[Row] = []
    for part in parts:
        if part.row is not None and (not rows or rows[-1] is not part.row):
            rows.append(part.row)
    return tuple(rows)


class _Sweep:
    """Aborted transactions of ranges that are queried in ascending order."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._coming = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
        self._open: list[AbortedTxn] = []

    def within(self, start: int, end: int) -> tuple[AbortedTxn, ...]:
        """Return the transactions with offsets in ``start`` to ``end`` (exclusive), by first offset."""
        while self._coming and self._coming[-1].first_offset < end:
            self._open.append(self._coming.pop())
        self._open = [txn for txn in self._open if txn.last_offset >= start]
        return tuple(self._open)
