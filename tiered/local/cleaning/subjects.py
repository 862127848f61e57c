"""A partition as the choice of the cleaner sees it, and why it is not cleaned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from tiered.format.offset_index import OFFSET_ENTRY_BYTES
from tiered.format.producer_snapshot import ProducerEntry
from tiered.format.time_index import TIME_ENTRY_BYTES
from tiered.local.cleaning.checkpoint import CleanerCheckpoint
from tiered.local.disk.files import Files
from tiered.local.partition.writer import PartitionWriter
from tiered.local.segment.scan import LogFile
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.plan.cleaning import LogState, SegmentState

TIERED = "tiered: its old segments are the bucket's, they are compacted there"
NOT_COMPACTED = "cleanup.policy does not say compact"
FENCED = "fenced: another volume owns it"
PAUSED = "paused: it moves to another directory, or is deleted"
AT_WORK = "a round is at work on it"
OFFLINE = "closed or offline"


@dataclass(frozen=True, slots=True)
class Subject:
    """A partition as the choice sees it, and what it was seen by."""

    writer: PartitionWriter
    state: LogState
    segments: dict[int, SealedLocalSegment]
    producers: tuple[ProducerEntry, ...] = ()


class Subjects:
    """What was read of a segment is kept as long as it is a part of its log. One thread at a time."""

    def __init__(self, files: Files, checkpoint: CleanerCheckpoint) -> None:
        self._files = files
        self._checkpoint = checkpoint
        self._seen: WeakKeyDictionary[SealedLocalSegment, SegmentState] = WeakKeyDictionary()

    def look(self, writer: PartitionWriter) -> Subject:
        """The partition without its producers: as if no transaction were open."""
        sealed = writer.exchange.settled  # before the end: so the end is never below them
        end = writer.end_offset
        state = LogState(
            tp=writer.tp,
            config=writer.config,
            segments=tuple(self._segment(segment) for segment in sealed),
            log_start_offset=writer.log_start,
            end_offset=end,
            last_stable_offset=min(end, writer.watermark.offset),
            active_base_offset=sealed[-1].end_offset if sealed else writer.segments.first_base,
            checkpoint=self._checkpoint.offset(writer.tp),
        )
        return Subject(writer, state, {segment.base_offset: segment for segment in sealed})

    def settle(self, subject: Subject) -> Subject:
        """The same with its producers, and with the stable offset that they tell.

        Those in memory: files know nothing of one whose newest snapshot lies below a log start that moved since.
        """
        writer, state = subject.writer, subject.state
        stable = writer.stable_offset()
        if stable is not None:
            state = replace(state, last_stable_offset=min(stable, state.last_stable_offset))
        return Subject(writer, state, subject.segments, writer.live_producers())

    def dirty_bytes(self, writer: PartitionWriter) -> int:
        """Sealed bytes that no cleaning has looked at, without a look into the files: of one that is damaged, too."""
        done = self._checkpoint.offset(writer.tp) or 0
        return sum(segment.size_bytes for segment in writer.sealed if segment.end_offset > done)

    def _segment(self, segment: SealedLocalSegment) -> SegmentState:
        known = self._seen.get(segment)
        if known is None or known.end_offset != segment.end_offset:  # a gap was left behind it since
            lookup = segment.lookup
            first = -1
            if segment.size_bytes:
                with LogFile(self._files, segment.path) as log:
                    first = log.header_at(0, segment.size_bytes).max_timestamp
            known = SegmentState(
                base_offset=segment.base_offset,
                end_offset=segment.end_offset,
                size_bytes=segment.size_bytes,
                max_timestamp=lookup.last_time[0],
                first_batch_timestamp=first,
                offset_index_bytes=lookup.offset_count * OFFSET_ENTRY_BYTES,
                time_index_bytes=lookup.time_count * TIME_ENTRY_BYTES,
                modified_ms=segment.appended_ms,
            )
            self._seen[segment] = known
        return known


def refusal(writer: PartitionWriter) -> str:
    """Why a partition is not cleaned, empty if it may be."""
    if not writer.config.compacted:
        return NOT_COMPACTED
    if writer.condition.fenced:
        return FENCED
    if writer.upload is not None:
        return TIERED
    return "" if writer.condition.at_work else OFFLINE
