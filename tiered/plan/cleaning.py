"""Which compacted log is cleaned next, up to where, and which segments become one? Pure; Kafka's comparisons.

::

    log start      first dirty            first uncleanable           end
        | clean part   | dirty, may be cleaned    | active segment, open transactions, too young |

The same plan serves both tiers: a purely local log commits by renames, a tiered one by ``replace`` in the catalog.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiered.config import TopicConfig
from tiered.model import TopicPartition
from tiered.plan.roll import MAX_RELATIVE_OFFSET


@dataclass(frozen=True, slots=True)
class SegmentState:
    """One sealed segment. Index sizes are those of the trimmed files; times -1 where they are not known.

    ``max_timestamp`` of its records, ``first_batch_timestamp`` the largest in its first batch, ``modified_ms`` the
    time of its last append (cleaning keeps it).
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int = -1
    first_batch_timestamp: int = -1
    offset_index_bytes: int = 0
    time_index_bytes: int = 0
    modified_ms: int = -1

    @property
    def young_until_ms(self) -> int:
        """What its age counts from: a timestamp later than the append counts as it (a wrong clock pins nothing)."""
        if self.max_timestamp < 0 or 0 <= self.modified_ms < self.max_timestamp:
            return self.modified_ms
        return self.max_timestamp


@dataclass(frozen=True, slots=True)
class LogState:
    """One partition, as the choice sees it. ``segments`` are the sealed ones, ascending.

    ``checkpoint`` is the first dirty offset that the last cleaning left (None: never cleaned). ``in_progress``:
    somebody works on it, or it is paused. ``uncleanable``: an earlier cleaning met damage.
    """

    tp: TopicPartition
    config: TopicConfig
    segments: tuple[SegmentState, ...]
    log_start_offset: int
    end_offset: int
    last_stable_offset: int
    active_base_offset: int
    checkpoint: int | None = None
    in_progress: bool = False
    uncleanable: bool = False

    def from_offset(self, offset: int) -> tuple[SegmentState, ...]:
        """The sealed segments from the one that holds ``offset`` on."""
        if offset >= self.active_base_offset:
            return ()
        return self.segments[max(bisect_right(self.segments, offset, key=_base) - 1, 0) :]

    def below(self, offset: int) -> tuple[SegmentState, ...]:
        """The sealed segments that begin below ``offset``."""
        return self.segments[: bisect_left(self.segments, offset, key=_base)]


@dataclass(frozen=True, slots=True)
class CleaningCandidate:
    """What a cleaning of one log would do. ``first_dirty`` to ``first_uncleanable`` (exclusive, a segment's base).

    ``delay_ms`` is how long the oldest dirty record has been overdue by ``max.compaction.lag.ms``; above 0 the
    cleaning is forced. ``checkpoint_reset``: the stored checkpoint lay outside the log, ``first_dirty`` is to be
    written in its place, cleaned or not.
    """

    tp: TopicPartition
    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    min_ratio: float
    delay_ms: int = 0
    checkpoint_reset: bool = False

    @property
    def ratio(self) -> float:
        """The share of the log that is dirty; 0 for one without bytes to look at."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def forced(self) -> bool:
        """Due by ``max.compaction.lag.ms``, whatever the ratio."""
        return self.delay_ms > 0 and self.cleanable_bytes > 0

    @property
    def eligible(self) -> bool:
        """Strictly above ``min.cleanable.dirty.ratio``, or forced."""
        return self.ratio > self.min_ratio or self.forced


@dataclass(frozen=True, slots=True)
class CleaningChoice:
    """The filthiest eligible log, if there is one, and what every candidate was worth.

    ``candidates`` holds all that were looked at: for metrics, and for the checkpoints to be written back (those with
    ``checkpoint_reset``).
    """

    filthiest: CleaningCandidate | None
    candidates: tuple[CleaningCandidate, ...]


def choose_filthiest(states: Iterable[LogState], now_ms: int) -> CleaningChoice:
    """Kafka's pick: among the eligible the highest ratio; the first of equals.

    Kafka's rule: docs/kafka-semantics.md#choice-of-log.
    """
    looked_at = [cleaning_candidate(state, now_ms) for state in states]
    candidates = tuple(c for c in looked_at if c is not None)
    filthiest = max((c for c in candidates if c.eligible), key=lambda c: c.ratio, default=None)
    return CleaningChoice(filthiest, candidates)


def cleaning_candidate(state: LogState, now_ms: int) -> CleaningCandidate | None:
    """What a cleaning at ``now_ms`` would cover; None: not compacted, in progress, or marked uncleanable."""
    if not state.config.compacted or state.in_progress or state.uncleanable:
        return None
    first_dirty, reset = _first_dirty(state)
    first_uncleanable = _segment_start(state, _first_uncleanable(state, first_dirty, now_ms))
    cleanable = sum(s.size_bytes for s in state.from_offset(first_dirty) if s.base_offset < first_uncleanable)
    return CleaningCandidate(
        tp=state.tp,
        first_dirty=first_dirty,
        first_uncleanable=first_uncleanable,
        clean_bytes=sum(s.size_bytes for s in state.below(first_dirty)),
        cleanable_bytes=cleanable,
        min_ratio=state.config.min_cleanable_dirty_ratio,
        delay_ms=_delay_ms(state, first_dirty, now_ms),
        checkpoint_reset=reset,
    )


def group_segments(
    segments: Sequence[SegmentState],
    *,
    map_end: int,
    first_uncleanable: int,
    config: TopicConfig,
    most_segments: int | None = None,
) -> tuple[tuple[SegmentState, ...], ...]:
    """The segments that this round rewrites, from the log start to the one with ``map_end`` - 1, in groups.

    Each group becomes one segment under the base of its first member. ``map_end`` is the offset map's latest offset
    + 1. A group stays within ``segment.bytes``, ``segment.index.bytes`` (each index), and offsets that its index
    can hold; a segment without bytes needs no room in the index. ``most_segments`` of one group, where one commit may
    not replace any number.
    """
    groups: list[tuple[SegmentState, ...]] = []
    group: list[SegmentState] = []
    log_bytes = offset_bytes = time_bytes = 0
    below = [s for s in segments if s.base_offset < map_end]
    for i, segment in enumerate(below):
        log_bytes += segment.size_bytes
        offset_bytes += segment.offset_index_bytes
        time_bytes += segment.time_index_bytes
        last = (below[i + 1].base_offset if i + 1 < len(below) else first_uncleanable) - 1
        if group and (
            log_bytes > config.segment_bytes
            or offset_bytes > config.segment_index_bytes
            or time_bytes > config.segment_index_bytes
            or (segment.size_bytes > 0 and last - group[0].base_offset > MAX_RELATIVE_OFFSET)
            or len(group) == most_segments
        ):
            groups.append(tuple(group))
            group = []
            log_bytes, offset_bytes, time_bytes = (
                segment.size_bytes,
                segment.offset_index_bytes,
                segment.time_index_bytes,
            )
        group.append(segment)
    if group:
        groups.append(tuple(group))
    return tuple(groups)


def legacy_delete_horizon(segments: Sequence[SegmentState], first_dirty: int, delete_retention_ms: int) -> int:
    """Tombstones of v0 and v1 messages go from segments last written to at or before this time.

    Kafka's rule: docs/kafka-semantics.md#compacted-records.
    """
    clean = [s for s in segments if s.base_offset < first_dirty]
    return clean[-1].modified_ms - delete_retention_ms if clean else 0


def _base(segment: SegmentState) -> int:
    return segment.base_offset


def _first_dirty(state: LogState) -> tuple[int, bool]:
    """Where the dirty part begins, and whether the checkpoint was of no use."""
    checkpoint = state.checkpoint
    if checkpoint is None:
        return state.log_start_offset, False
    if not state.log_start_offset <= checkpoint <= state.end_offset:
        return state.log_start_offset, True
    return checkpoint, False


def _first_uncleanable(state: LogState, first_dirty: int, now_ms: int) -> int:
    """Nothing from here on: unstable, active, or younger than ``min.compaction.lag.ms``."""
    bound = min(state.last_stable_offset, state.active_base_offset)
    lag_ms = state.config.min_compaction_lag_ms
    if lag_ms > 0:
        for segment in state.from_offset(first_dirty):
            if segment.young_until_ms > now_ms - lag_ms:
                return min(bound, segment.base_offset)
    return bound


def _segment_start(state: LogState, offset: int) -> int:
    """Only whole segments are cleaned: the base of the one that holds ``offset``."""
    held = state.from_offset(offset)
    return held[0].base_offset if held else state.active_base_offset


def _delay_ms(state: LogState, first_dirty: int, now_ms: int) -> int:
    stamps = [s.first_batch_timestamp for s in state.from_offset(first_dirty) if s.first_batch_timestamp > 0]
    return max(now_ms - state.config.max_compaction_lag_ms - min(stamps), 0) if stamps else 0
