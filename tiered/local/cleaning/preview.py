"""Preview of a compaction round: what it would read, and which segments would become one."""

from __future__ import annotations

from dataclasses import dataclass

from tiered.clock import Clock
from tiered.errors import TieredError
from tiered.local.cleaning.subjects import NOT_COMPACTED, TIERED, CleanerCheckpoint, segment_state
from tiered.local.disk.files import Files
from tiered.local.partition.read_log import ReadLog
from tiered.model import TopicPartition
from tiered.plan.cleaning import CleaningCandidate, LogState, SegmentState, cleaning_candidate, group_segments


@dataclass(frozen=True, slots=True)
class CleaningStatus:
    """Preview of a round over one partition. ``refused``: why there is none, empty otherwise.

    ``groups``: bases of segments that may be merged, if the offset map has room for every key.
    """

    tp: TopicPartition
    refused: str = ""
    candidate: CleaningCandidate | None = None
    groups: tuple[tuple[int, ...], ...] = ()


def preview(state: LogState, now_ms: int) -> CleaningStatus:
    """Return the preview of a round over a partition in this state."""
    candidate = cleaning_candidate(state, now_ms)
    if candidate is None:
        return CleaningStatus(state.tp, NOT_COMPACTED)
    end = candidate.first_uncleanable
    groups: tuple[tuple[SegmentState, ...], ...] = ()
    if candidate.cleanable_bytes:
        groups = group_segments(state.segments, map_end=end, first_uncleanable=end, config=state.config)
    bases = tuple(tuple(segment.base_offset for segment in group) for group in groups)
    return CleaningStatus(state.tp, candidate=candidate, groups=bases)


def preview_read_only(log: ReadLog, checkpoint: CleanerCheckpoint, files: Files, clock: Clock) -> CleaningStatus:
    """Return the preview for a partition of a directory that is open for reading. Nothing is locked or written."""
    if not log.config.compacted:
        return CleaningStatus(log.tp, NOT_COMPACTED)
    if log.upload is not None:
        return CleaningStatus(log.tp, TIERED)
    try:
        sealed = log.sealed_segments()  # before the end: so the end is never below them
        positions = log.positions()
        state = LogState(
            tp=log.tp,
            config=log.config,
            segments=tuple(segment_state(files, segment) for segment in sealed),
            log_start_offset=positions.start_offset,
            end_offset=positions.end_offset,
            last_stable_offset=log.last_stable_offset(),
            active_base_offset=sealed[-1].end_offset if sealed else positions.local_start_offset,
            checkpoint=checkpoint.offset(log.tp),
        )
    except TieredError as error:
        return CleaningStatus(log.tp, error.message)
    return preview(state, clock.now_ms())
