"""Resolved ranges of partitions -> slices, one Spark task each. Pure: what is cut was looked up before.

A slice pins what it reads: rows of one root version, so that a retried or a speculative task reads the same bytes.
It holds one or more pieces: neighbours that are small share a task, because a task costs about 70 ms by itself; a
segment larger than a slice is cut behind batches that its offset index names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from tiered.model import AbortedTxn, Row, TopicPartition
from tiered.plan.read import SegmentRange, Tier

Entries = Sequence[tuple[int, int]]
"""An offset index: (last offset of a batch, byte where it begins)."""


@dataclass(frozen=True)
class Piece:
    """Offsets ``start`` to ``end`` (exclusive) of one partition, from one tier.

    ``rows`` are the remote segments that hold them (none for the local tier), ``aborted`` what ``read_committed``
    hides in them.
    """

    tp: TopicPartition
    topic_id: str
    tier: Tier
    start: int
    end: int
    size_bytes: int
    rows: tuple[Row, ...] = ()
    aborted: tuple[AbortedTxn, ...] = ()

    def segments_from(self, offset: int) -> Iterator[SegmentRange]:
        """Segments of the piece from ``offset`` on."""
        for row in self.rows:
            if row.next > offset:
                yield SegmentRange(row, max(offset, row.base, self.start), min(row.next, self.end))

    def hides(self, producer_id: int, base_offset: int) -> bool:
        """Whether a transactional batch of this producer belongs to an aborted transaction.

        A producer has one transaction at a time, so every batch between the first offset and the ABORT marker is in it.
        """
        return any(t.producer_id == producer_id and t.first_offset <= base_offset < t.last_offset for t in self.aborted)


@dataclass(frozen=True)
class Slice(InputPartition):
    """What one task reads, in order."""

    pieces: tuple[Piece, ...]

    @property
    def size_bytes(self) -> int:
        """Estimated bytes of ``.log`` data."""
        return sum(piece.size_bytes for piece in self.pieces)


def target_bytes(pieces: Iterable[Piece], slice_bytes: int, min_partitions: int) -> int:
    """The size of one slice that gives at least about ``min_partitions`` of them."""
    total = sum(piece.size_bytes for piece in pieces)
    return max(1, min(slice_bytes, -(-total // min_partitions)))


def rows_to_cut(pieces: Iterable[Piece], target: int) -> list[tuple[Piece, Row]]:
    """Segments that are larger than a slice: their offset indexes are needed to cut them."""
    return [(piece, row) for piece in pieces for row in piece.rows if row.size > target]


def cut_slices(
    pieces: Iterable[Piece],
    *,
    slice_bytes: int,
    min_partitions: int = 1,
    entries: Mapping[tuple[TopicPartition, int], Entries] | None = None,
) -> list[Slice]:
    """Slices of about ``slice_bytes``, each wanted offset in exactly one, the largest first.

    ``entries``: offset indexes of segments to be cut, by partition and base offset; one that is missing is cut at
    offsets in between, which costs its readers a batch twice.
    """
    pieces = [piece for piece in pieces if piece.start < piece.end]
    target = target_bytes(pieces, slice_bytes, min_partitions)
    small = [part for piece in pieces for part in _cut_piece(piece, target, entries or {})]
    groups = _join(small, target)
    while len(groups) < min_partitions:
        widest = max(range(len(groups)), key=lambda at: _splits(groups[at]), default=-1)
        if widest < 0 or _splits(groups[widest]) < 2:
            break
        groups[widest : widest + 1] = _halves(groups[widest])
    return sorted((Slice(tuple(group)) for group in groups), key=lambda part: -part.size_bytes)


def _join(parts: Iterable[Piece], target: int) -> list[list[Piece]]:
    """Neighbours together, as long as they stay within ``target``."""
    groups: list[list[Piece]] = []
    size = 0
    for part in parts:
        if groups and size + part.size_bytes <= target:
            _append(groups[-1], part)
            size += part.size_bytes
        else:
            groups.append([part])
            size = part.size_bytes
    return groups


def _append(group: list[Piece], part: Piece) -> None:
    last = group[-1]
    if last.tp == part.tp and last.tier is part.tier and last.end == part.start:
        rows = (*last.rows, *(row for row in part.rows if row not in last.rows))
        group[-1] = replace(last, end=part.end, rows=rows, size_bytes=last.size_bytes + part.size_bytes)
    else:
        group.append(part)


def _cut_piece(piece: Piece, target: int, entries: Mapping[tuple[TopicPartition, int], Entries]) -> list[Piece]:
    """Pieces of at most one segment each, the large ones cut further."""
    if piece.tier is Tier.LOCAL:
        return _cut_evenly(piece, -(-piece.size_bytes // target))
    parts: list[Piece] = []
    for segment in piece.segments_from(piece.start):
        row = segment.row
        share = row.size * (segment.end - segment.start) // (row.next - row.base)
        part = replace(piece, start=segment.start, end=segment.end, rows=(row,), size_bytes=share)
        index = entries.get((piece.tp, row.base))
        if share <= target:
            parts.append(part)
        elif index is None:
            parts += _cut_evenly(part, -(-share // target))
        else:
            parts += _cut_at(part, _cuts(index, target))
    return parts


def _cuts(index: Entries, target: int) -> list[int]:
    """Offsets behind indexed batches, about ``target`` bytes apart."""
    cuts: list[int] = []
    since = 0
    for offset, position in index:
        if position - since >= target:
            cuts.append(offset + 1)
            since = position
    return cuts


def _cut_evenly(piece: Piece, parts: int) -> list[Piece]:
    span = piece.end - piece.start
    count = max(1, min(parts, span))
    return _cut_at(piece, [piece.start + span * at // count for at in range(1, count)])


def _cut_at(piece: Piece, cuts: Iterable[int]) -> list[Piece]:
    edges = [piece.start, *(cut for cut in cuts if piece.start < cut < piece.end), piece.end]
    span = piece.end - piece.start
    return [
        replace(
            piece,
            start=start,
            end=end,
            rows=tuple(row for row in piece.rows if row.base < end and row.next > start),
            size_bytes=piece.size_bytes * (end - start) // span,
        )
        for start, end in itertools.pairwise(edges)
    ]


def _splits(group: Sequence[Piece]) -> int:
    """Into how many a group can be split: its offsets."""
    return sum(piece.end - piece.start for piece in group)


def _halves(group: Sequence[Piece]) -> list[list[Piece]]:
    if len(group) > 1:
        middle = len(group) // 2
        return [list(group[:middle]), list(group[middle:])]
    return [[part] for part in _cut_evenly(group[0], 2)]
