"""Choice of the compacted log to clean next, of its range, and of the segments that become one. Pure; Kafka's rules.

::

    log start      first dirty            first uncleanable           end
        | clean part   | dirty, may be cleaned    | active segment, open transactions, too young |

The same plan serves both tiers: a purely local log commits by renames, a tiered one by ``replace`` in the catalog.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiered.config import MAX_LONG, TopicConfig
from tiered.model import TopicPartition
from tiered.plan.retention import age_from_ms
from tiered.plan.roll import MAX_RELATIVE_OFFSET


@dataclass(frozen=True, slots=True)
class SegmentState:
    """Sealed segment, as the cleaner sees it. Index sizes are the bytes of their entries, or upper bounds.

    Times are in ms, -1 if unknown. ``size_bytes``: size of the ``.log``. ``max_timestamp``: largest of its records.
    ``first_batch_timestamp``: largest in its first batch. ``modified_ms``: time of its last append, which cleaning does
    not change. ``records``: their number, 0 if not needed.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int = -1
    first_batch_timestamp: int = -1
    offset_index_bytes: int = 0
    time_index_bytes: int = 0
    modified_ms: int = -1
    records: int = 0

    def age_from_ms(self, config: TopicConfig) -> int:
        """Return the time in ms from which the segment's age counts, -1 if unknown.

        It is the largest record timestamp, or the time of the last append if that timestamp cannot be right.
        """
        return age_from_ms(self.max_timestamp, self.modified_ms, config)


@dataclass(frozen=True, slots=True)
class LogState:
    """State of one partition, from which a cleaning is planned. ``segments``: the sealed segments, ascending.

    ``checkpoint``: the first dirty offset after the last cleaning, None: never cleaned.
    """

    tp: TopicPartition
    config: TopicConfig
    segments: tuple[SegmentState, ...]
    log_start_offset: int
    end_offset: int
    last_stable_offset: int
    active_base_offset: int
    checkpoint: int | None = None

    def from_offset(self, offset: int) -> tuple[SegmentState, ...]:
        """Return the sealed segments from the one that contains ``offset`` to the last."""
        if offset >= self.active_base_offset:
            return ()
        return self.segments[max(bisect_right(self.segments, offset, key=_base) - 1, 0) :]


@dataclass(frozen=True, slots=True)
class CleaningCandidate:
    """Scope of a cleaning of one log: ``first_dirty`` to ``first_uncleanable`` (exclusive, a segment's base).

    ``delay_ms``: how long the oldest dirty record has been overdue by ``max.compaction.lag.ms``; above 0 the cleaning
    is forced. ``checkpoint_reset``: the stored checkpoint was outside the log, and ``first_dirty`` must replace it even
    without a cleaning. ``clean_bytes``: size of the segments that begin below ``first_dirty``. ``cleanable_bytes``:
    size of the segments in the scope. ``min_ratio``: the topic's ``min.cleanable.dirty.ratio``.
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
        """Cleanable bytes divided by the sum of clean and cleanable bytes; 0 if the sum is 0."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def forced(self) -> bool:
        """True if ``max.compaction.lag.ms`` makes the cleaning due, at any dirty ratio."""
        return self.delay_ms > 0 and self.cleanable_bytes > 0

    @property
    def eligible(self) -> bool:
        """True if the dirty ratio is strictly above ``min_ratio``, or the cleaning is forced."""
        return self.ratio > self.min_ratio or self.forced


def choose_filthiest(candidates: Iterable[CleaningCandidate]) -> CleaningCandidate | None:
    """Return the log to clean by Kafka's rule: the highest dirty ratio among the eligible, the first of equals.

    None if no candidate is eligible.

    Kafka's rule: docs/kafka-semantics.md#choice-of-log.
    """
    return max((c for c in candidates if c.eligible), key=lambda c: c.ratio, default=None)


def cleaning_candidate(state: LogState, now_ms: int) -> CleaningCandidate | None:
    """Return the scope of a cleaning at ``now_ms`` (wall clock). None: the topic is not compacted."""
    if not state.config.compacted:
        return None
    scan = CandidateScan(state, now_ms)
    for segment in state.segments:
        scan.add(segment)
    scan.end()
    return scan.candidate


class CandidateScan:
    """Search for the :func:`cleaning_candidate` of a log whose sealed segments are added one by one.

    Only one segment is in memory at a time.

    ``state``: the partition; its ``segments`` are ignored.
    """

    def __init__(self, state: LogState, now_ms: int) -> None:
        self._state = state
        self._now_ms = now_ms
        self._first_dirty, self._reset = _first_dirty(state)
        self._bound = min(state.last_stable_offset, state.active_base_offset)
        """Offset above which nothing is cleaned: unstable, active, or younger than ``min.compaction.lag.ms``."""
        self._first_uncleanable = state.active_base_offset
        self._held: SegmentState | None = None
        self._clean_bytes = self._cleanable_bytes = 0
        self._oldest = MAX_LONG

    def add(self, segment: SegmentState) -> SegmentState | None:
        """Add the next segment. Return the previous segment if a cleaning would read it, otherwise None."""
        before, self._held = self._held, segment
        if before is None:
            self._first_uncleanable = segment.base_offset
            return None
        return self._judged(before, segment.base_offset)

    def end(self) -> SegmentState | None:
        """End the scan. Return the last segment if a cleaning would read it, otherwise None."""
        last, self._held = self._held, None
        return None if last is None else self._judged(last, self._state.active_base_offset)

    @property
    def candidate(self) -> CleaningCandidate:
        """Cleaning candidate for the added segments. Read it after :meth:`end`: before, the last segment is missing."""
        config, overdue_ms = self._state.config, self._now_ms - self._oldest
        return CleaningCandidate(
            tp=self._state.tp,
            first_dirty=self._first_dirty,
            first_uncleanable=self._first_uncleanable,
            clean_bytes=self._clean_bytes,
            cleanable_bytes=self._cleanable_bytes,
            min_ratio=config.min_cleanable_dirty_ratio,
            delay_ms=max(overdue_ms - config.max_compaction_lag_ms, 0) if self._oldest < MAX_LONG else 0,
            checkpoint_reset=self._reset,
        )

    def _judged(self, segment: SegmentState, end: int) -> SegmentState | None:
        """Count one segment, which ends at ``end``. Return it if a cleaning would read it, otherwise None."""
        dirty, lag_ms = self._first_dirty < end, self._state.config.min_compaction_lag_ms
        if segment.base_offset < self._first_dirty:
            self._clean_bytes += segment.size_bytes
        if dirty and segment.first_batch_timestamp > 0:
            self._oldest = min(self._oldest, segment.first_batch_timestamp)
        if dirty and lag_ms > 0 and segment.age_from_ms(self._state.config) > self._now_ms - lag_ms:
            self._bound = min(self._bound, segment.base_offset)
        if end > self._bound:
            return None
        self._first_uncleanable = end
        if dirty:
            self._cleanable_bytes += segment.size_bytes
        return segment


def group_segments(
    segments: Sequence[SegmentState], *, map_end: int, first_uncleanable: int, config: TopicConfig
) -> tuple[tuple[SegmentState, ...], ...]:
    """Group the segments that this round rewrites: those from the log start to the one that contains ``map_end`` - 1.

    Each group becomes one segment with the base offset of its first member. ``map_end``: the offset map's latest offset
    + 1. ``first_uncleanable``: exclusive end of the offsets that may be cleaned. A group stays within
    ``segment.bytes``, ``segment.index.bytes`` (each index), and the offsets that its index can hold. A segment without
    bytes needs no room in the index.
    """
    scan = GroupScan(first_uncleanable=first_uncleanable, config=config)
    found = [scan.add(segment) for segment in segments if segment.base_offset < map_end]
    return (*(group for group in found if group is not None), *scan.end())


class GroupScan:
    """Builder of groups of adjacent segments, each of which a cleaning rewrites as one segment.

    Segments are added one by one, in order. A group stays within ``segment.bytes``, ``segment.index.bytes`` (each
    index), and the offsets that its index can hold. ``first_uncleanable``: exclusive end of the offsets that may be
    cleaned. ``most_segments``: limit of segments in a group, None for none.
    """

    def __init__(self, *, first_uncleanable: int, config: TopicConfig, most_segments: int | None = None) -> None:
        self._first_uncleanable = first_uncleanable
        self._config = config
        self._most = most_segments
        self._held: SegmentState | None = None
        self._group: list[SegmentState] = []
        self._log_bytes = self._offset_bytes = self._time_bytes = 0

    def add(self, segment: SegmentState) -> tuple[SegmentState, ...] | None:
        """Add the next segment. Return a group that is complete now, or None."""
        before, self._held = self._held, segment
        return None if before is None else self._placed(before, segment.base_offset - 1)

    def end(self) -> tuple[tuple[SegmentState, ...], ...]:
        """End the scan. Return the remaining groups."""
        before, self._held = self._held, None
        whole = None if before is None else self._placed(before, self._first_uncleanable - 1)
        return tuple([group for group in (whole, tuple(self._group)) if group])

    def _placed(self, segment: SegmentState, last: int) -> tuple[SegmentState, ...] | None:
        """Place a segment whose last possible offset is ``last``. Return the group that ends before it, or None."""
        config, group, whole = self._config, self._group, None
        self._log_bytes += segment.size_bytes
        self._offset_bytes += segment.offset_index_bytes
        self._time_bytes += segment.time_index_bytes
        if group and (
            self._log_bytes > config.segment_bytes
            or self._offset_bytes > config.segment_index_bytes
            or self._time_bytes > config.segment_index_bytes
            or (segment.size_bytes > 0 and last - group[0].base_offset > MAX_RELATIVE_OFFSET)
            or len(group) == self._most
        ):
            whole, self._group = tuple(group), []
            self._log_bytes = segment.size_bytes
            self._offset_bytes, self._time_bytes = segment.offset_index_bytes, segment.time_index_bytes
        self._group.append(segment)
        return whole


def legacy_delete_horizon(segments: Sequence[SegmentState], first_dirty: int, delete_retention_ms: int) -> int:
    """Return a time limit in ms: segments last written at or before it lose their v0 and v1 tombstones.

    It is the last write of the last segment that begins below ``first_dirty``, less ``delete_retention_ms``. Without
    such a segment it is 0. ``segments``: ascending.

    Kafka's rule: docs/kafka-semantics.md#compacted-records.
    """
    clean = [s for s in segments if s.base_offset < first_dirty]
    return clean[-1].modified_ms - delete_retention_ms if clean else 0


def _base(segment: SegmentState) -> int:
    return segment.base_offset


def _first_dirty(state: LogState) -> tuple[int, bool]:
    """Return the start of the dirty part, and True if the checkpoint was outside the log."""
    checkpoint = state.checkpoint
    if checkpoint is None:
        return state.log_start_offset, False
    if not state.log_start_offset <= checkpoint <= state.end_offset:
        return state.log_start_offset, True
    return checkpoint, False
