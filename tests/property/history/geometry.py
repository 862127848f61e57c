"""Where segments matter: the log's own list of them, and what the pure rules say about it."""

from __future__ import annotations

from typing import NamedTuple

from tests.property.history.world import Subject, World
from tiered.config import SAME_AS_TOPIC, TopicConfig
from tiered.local.partition.write_log import WriteLog
from tiered.local.segment.scan import LogFile

OFFSET_ENTRY, TIME_ENTRY = 8, 12


class Segment(NamedTuple):
    """One segment, sealed and durable or not, or the active one."""

    base: int
    end: int
    size: int
    max_timestamp: int
    appended_ms: int
    sealed: bool
    durable: bool


def segments_of(writer: WriteLog) -> list[Segment]:
    """All of them, the active one last."""
    bound = writer.durability.flushed
    found = [
        Segment(s.base_offset, s.end_offset, s.size_bytes, s.max_timestamp, s.appended_ms, True, s.end_offset <= bound)
        for s in writer.segments.sealed
    ]
    active = writer.segments.active
    return [
        *found,
        Segment(
            active.base_offset,
            writer.end_offset,
            active.size_bytes,
            active.max_timestamp,
            active.appended_ms,
            False,
            False,
        ),
    ]


def bases_on_disk(world: World, writer: WriteLog) -> set[int]:
    """Where each batch begins, those below the log start included: a later cleaning sees them, too."""
    found: set[int] = set()
    for segment in (*writer.segments.sealed, writer.segments.active):
        with LogFile(world.files, segment.path) as log:
            found.update(span.base_offset for span, _ in log.batches(0, segment.size_bytes))
    return found


def written_ms(segment: Segment, config: TopicConfig) -> int:
    """Its largest timestamp; its append where that is missing, or later than a clock may be ahead."""
    ahead = config.message_timestamp_after_max_ms
    latest = segment.appended_ms + (ahead if ahead <= 366 * 86_400_000 else 3_600_000)
    return segment.max_timestamp if 0 <= segment.max_timestamp <= latest else segment.appended_ms


def expired_bases(segments: list[Segment], subject: Subject, now_ms: int) -> tuple[list[int], bool]:
    """Bases that a pass of retention takes, and whether the active segment is rolled. Kafka's order and comparisons.

    A timestamp that cannot be right counts as the append: a wrong clock pins nothing.
    """
    config, tiered = subject.config, subject.uploaded is not None
    keep_ms, keep_bytes = (config.retention_ms, config.retention_bytes) if config.deletes else (-1, -1)
    if tiered:
        local_ms, local_bytes = config.local_retention_ms, config.local_retention_bytes
        keep_ms = config.retention_ms if local_ms == SAME_AS_TOPIC else local_ms
        keep_bytes = config.retention_bytes if local_bytes == SAME_AS_TOPIC else local_bytes
    *sealed, active = segments
    over = sum(s.size for s in segments if s.durable or not s.sealed) - keep_bytes
    if max(keep_ms, keep_bytes) < 0 and subject.log_start <= segments[0].base:
        return [], False

    def old(segment: Segment) -> bool:
        return keep_ms >= 0 and now_ms - written_ms(segment, config) > keep_ms

    gone: list[int] = []
    for segment in sealed:
        below = segment.end <= subject.log_start
        big = keep_bytes >= 0 and over >= segment.size
        if not segment.durable or not (below or big or old(segment)):
            break
        if subject.uploaded is not None and segment.end > subject.uploaded:
            break
        over -= segment.size
        gone.append(segment.base)
    whole = all(s.durable for s in sealed)
    if not active.size or not whole:
        return gone, False
    if tiered:
        return gone, old(active)
    if len(gone) == len(sealed) and (old(active) or (keep_bytes >= 0 and over >= active.size)):
        return [*gone, active.base], True
    return gone, False


class RollFacts(NamedTuple):
    """The active segment before an append."""

    base: int
    size: int
    first_timestamp: int
    created_ms: int
    first_append_ms: int
    offsets: int
    times: int
    now_ms: int


def roll_facts(writer: WriteLog, now_ms: int) -> RollFacts:
    """As they are now."""
    active = writer.segments.active
    return RollFacts(
        active.base_offset,
        active.size_bytes,
        active.first_timestamp,
        active.created_ms,
        active.first_append_ms,
        active.indexes.offset_count,
        active.indexes.time_count,
        now_ms,
    )


def roll_reasons(facts: RollFacts, config: TopicConfig, incoming: int, last: int, timestamp: int) -> list[str]:
    """Why an append of ``incoming`` bytes must begin a new segment, and our ``seal.ms``.

    Kafka's rule: docs/kafka-semantics.md#roll.
    """
    limit = min(config.segment_ms, config.max_compaction_lag_ms) if config.compacted else config.segment_ms
    waited = timestamp - facts.first_timestamp if facts.first_timestamp >= 0 else facts.now_ms - facts.created_ms
    reasons = {
        "size": facts.size + incoming > config.segment_bytes,
        "time": waited > limit,
        "offset index": facts.offsets >= config.segment_index_bytes // OFFSET_ENTRY,
        "time index": facts.times >= config.segment_index_bytes // TIME_ENTRY - 1,
        "overflow": last - facts.base > 2**31 - 1,
        "seal": config.seal_ms >= 0 and facts.now_ms - facts.first_append_ms >= config.seal_ms,
    }
    return [name for name, holds in reasons.items() if holds and facts.size]
