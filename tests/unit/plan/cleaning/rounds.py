"""A log in memory, and whole rounds of cleaning over it: what a cleaner does with files, without the files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.golden.fixtures import base_offset, log_bases, partition_dir
from tiered.config import TopicConfig
from tiered.format.batch import BatchHeader, decode_records, read_header
from tiered.format.batch_scanner import walk_headers
from tiered.format.kernels import Record
from tiered.format.local_names import index_name, log_name, time_index_name
from tiered.format.producer_snapshot import ProducerEntry
from tiered.format.segment_indexes import decode_txns
from tiered.model import AbortedTxn, TopicPartition
from tiered.plan.batch_filter import BatchFilter, CleaningStats
from tiered.plan.cleaning import CleaningCandidate, LogState, SegmentState, cleaning_candidate, group_segments
from tiered.plan.offset_map import DEDUPE_BUFFER_BYTES, OffsetMap, OffsetMapBuilder

TP = TopicPartition("t", 0)


@dataclass(frozen=True)
class MemorySegment:
    """One segment: batches one after the other, aborted transactions whose marker lies in it, sizes of its indexes."""

    base_offset: int
    data: bytes
    aborted: tuple[AbortedTxn, ...] = ()
    offset_index_bytes: int = 0
    time_index_bytes: int = 0

    @property
    def batches(self) -> list[bytes]:
        return [self.data[at : at + header.size_bytes] for at, header in walk_headers(self.data)]

    @property
    def headers(self) -> list[BatchHeader]:
        return [header for _, header in walk_headers(self.data)]


@dataclass(frozen=True)
class MemoryLog:
    """Segments, the last one active."""

    segments: tuple[MemorySegment, ...]
    config: TopicConfig
    checkpoint: int | None = None
    log_start_offset: int = 0
    producers: tuple[ProducerEntry, ...] = ()

    @property
    def end_offset(self) -> int:
        active = self.segments[-1]
        return active.headers[-1].next_offset if active.data else active.base_offset

    @property
    def aborted(self) -> list[AbortedTxn]:
        return [txn for segment in self.segments for txn in segment.aborted]

    @property
    def batches(self) -> list[bytes]:
        return [batch for segment in self.segments for batch in segment.batches]

    def state(self) -> LogState:
        ends = [segment.base_offset for segment in self.segments[1:]]
        sealed = [
            SegmentState(
                base_offset=segment.base_offset,
                end_offset=end,
                size_bytes=len(segment.data),
                offset_index_bytes=segment.offset_index_bytes,
                time_index_bytes=segment.time_index_bytes,
            )
            for segment, end in zip(self.segments, ends, strict=False)
        ]
        return LogState(
            tp=TP,
            config=self.config,
            segments=tuple(sealed),
            log_start_offset=self.log_start_offset,
            end_offset=self.end_offset,
            last_stable_offset=self.last_stable_offset(),
            active_base_offset=self.segments[-1].base_offset,
            checkpoint=self.checkpoint,
        )

    def last_stable_offset(self) -> int:
        opened: dict[int, int] = {}
        for batch in self.batches:
            header = read_header(batch)
            if header.is_control:
                opened.pop(header.producer_id, None)
            elif header.is_transactional:
                opened.setdefault(header.producer_id, header.base_offset)
        return min(opened.values(), default=self.end_offset)


@dataclass
class Round:
    """What one round did."""

    log: MemoryLog
    candidate: CleaningCandidate
    groups: list[tuple[int, ...]] = field(default_factory=list)
    stats: CleaningStats = field(default_factory=CleaningStats)


def clean(log: MemoryLog, now_ms: int, *, memory_bytes: int = DEDUPE_BUFFER_BYTES) -> Round:
    """One round, whatever the dirty ratio."""
    candidate = cleaning_candidate(log.state(), now_ms)
    assert candidate is not None
    if not candidate.cleanable_bytes:
        return Round(log, candidate)
    offset_map = build_map(log, candidate, memory_bytes)
    kept = BatchFilter(
        offset_map,
        first_uncleanable=candidate.first_uncleanable,
        now_ms=now_ms,
        delete_retention_ms=log.config.delete_retention_ms,
        producers=log.producers,
        aborted=log.aborted,
    )
    groups = group_segments(
        log.state().segments,
        map_end=offset_map.end_offset,
        first_uncleanable=candidate.first_uncleanable,
        config=log.config,
    )
    by_base = {segment.base_offset: segment for segment in log.segments}
    done = Round(log, candidate, [tuple(s.base_offset for s in group) for group in groups], kept.stats)
    segments: list[MemorySegment] = []
    for bases in done.groups:
        batches = [batch for base in bases for batch in by_base.pop(base).batches]
        cleaned = [c for c in map(kept.clean, batches) if c is not None]
        segments.append(MemorySegment(bases[0], b"".join(cleaned), kept.drain_aborted()))
    segments += sorted(by_base.values(), key=lambda segment: segment.base_offset)
    done.log = MemoryLog(
        tuple(segments), log.config, offset_map.end_offset, log.log_start_offset, producers=log.producers
    )
    return done


def build_map(log: MemoryLog, candidate: CleaningCandidate, memory_bytes: int = DEDUPE_BUFFER_BYTES) -> OffsetMap:
    """The map of the candidate's dirty part."""
    offset_map = OffsetMap(memory_bytes)
    builder = OffsetMapBuilder(offset_map, start_offset=candidate.first_dirty, aborted=log.aborted)
    for segment in log.state().from_offset(candidate.first_dirty):
        if segment.base_offset >= candidate.first_uncleanable:
            break
        memory = next(s for s in log.segments if s.base_offset == segment.base_offset)
        batches = [b for b in memory.batches if read_header(b).next_offset > candidate.first_dirty]
        if any(builder.add(batch) for batch in batches):
            break
        builder.end_segment(segment.end_offset)
    return offset_map


def load(fixtures: Path, partition: str, root: str, config: TopicConfig) -> MemoryLog:
    """A partition of a golden log directory."""
    directory = partition_dir(fixtures, partition, root)
    segments = []
    for base in log_bases(fixtures, partition, root):
        txns = directory / f"{base:020d}.txnindex"
        segments.append(
            MemorySegment(
                base,
                (directory / log_name(base)).read_bytes(),
                tuple(decode_txns(txns.read_bytes(), base)) if txns.exists() else (),
                (directory / index_name(base)).stat().st_size,
                (directory / time_index_name(base)).stat().st_size,
            )
        )
    return MemoryLog(tuple(segments), config)


def newest_snapshot(fixtures: Path, partition: str, root: str) -> Path:
    """The producer snapshot that the clean shutdown left."""
    return max(partition_dir(fixtures, partition, root).glob("*.snapshot"), key=base_offset)


def visible(batches: Iterable[bytes], aborted: Sequence[AbortedTxn] = (), *, committed: bool = False) -> list[Record]:
    """What a reader sees: no control records, and with ``committed`` nothing of an aborted transaction."""
    seen: list[Record] = []
    for batch in batches:
        header = read_header(batch)
        hidden = header.is_control or (
            committed
            and header.is_transactional
            and any(
                t.producer_id == header.producer_id and t.first_offset <= header.base_offset <= t.last_offset
                for t in aborted
            )
        )
        seen += [] if hidden else decode_records(batch)
    return seen


def markers(batches: Iterable[bytes]) -> list[int]:
    """Offsets of the control records that are left."""
    return [r.offset for b in batches if read_header(b).is_control for r in decode_records(b)]
