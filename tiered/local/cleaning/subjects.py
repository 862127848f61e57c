"""Partitions for the cleaner: their state, reasons to refuse one, the progress of each, and previews of a round."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import WeakKeyDictionary

from tiered.clock import Clock
from tiered.errors import TieredError
from tiered.format.producer_snapshot import ProducerEntry
from tiered.format.segment_indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from tiered.local.disk.directory_files import CLEANER_NAME, OffsetsFile
from tiered.local.disk.files import Files
from tiered.local.partition.read_log import ReadLog
from tiered.local.partition.write_log import WriteLog
from tiered.local.segment.scan import LogFile
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.model import TopicPartition
from tiered.plan.cleaning import CleaningCandidate, LogState, SegmentState, cleaning_candidate, group_segments

TIERED = "it is tiered, so compaction runs on the bucket's segments"
NOT_COMPACTED = "cleanup.policy does not say compact"
PAUSED = "paused while the partition moves to another directory, or is deleted"
BEING_CLEANED = "another round is cleaning it now"
OFFLINE = "closed or offline"


class CleanerCheckpoint:
    """Kafka's file ``cleaner-offset-checkpoint``: the first dirty offset of each compacted partition.

    Thread-safe. Only this process writes the file. Every change is durable on return.
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self._file = OffsetsFile(directory, CLEANER_NAME, files)
        self._lock = threading.Lock()

    def offset(self, tp: TopicPartition) -> int | None:
        """Return the first dirty offset, the end of the cleaned part; None if the partition was never cleaned."""
        return self._file.read().get(tp)

    def store(self, tp: TopicPartition, offset: int, held: Collection[TopicPartition]) -> None:
        """Set the first dirty offset of ``tp``. Remove the entries of partitions that are not in ``held``."""
        self._change(lambda known: {**{other: at for other, at in known.items() if other in held}, tp: offset})

    def adopt(self, tp: TopicPartition, offset: int | None) -> None:
        """Set the entry of a partition that was moved to this directory.

        ``offset``: its entry in the old directory. None: it had none there, and an entry here is removed.
        """
        entry = {} if offset is None else {tp: offset}
        self._change(lambda known: {other: at for other, at in known.items() if other != tp} | entry)

    def lower(self, tp: TopicPartition, offset: int) -> None:
        """Lower the entry to ``offset`` before the log is truncated there, because records appended later are dirty.

        A lower entry stays, and a partition without an entry gets none.
        """
        self._change(lambda known: known | {tp: min(known[tp], offset)} if tp in known else known)

    def retain_only(self, held: Collection[TopicPartition]) -> None:
        """Remove the entries of partitions that are not in ``held``, because new partitions may get the same names."""
        self._change(lambda known: {tp: offset for tp, offset in known.items() if tp in held})

    def _change(self, change: Callable[[dict[TopicPartition, int]], dict[TopicPartition, int]]) -> None:
        with self._lock:
            known = dict(self._file.read())
            changed = change(known)
            if changed != known:
                self._file.write(changed)


@dataclass(frozen=True, slots=True)
class Subject:
    """Partition that may be cleaned. ``state``: facts from which a round is planned.

    ``segments``: its sealed segments by base offset. ``producers``: empty until :meth:`Subjects.with_producers`.
    """

    writer: WriteLog
    state: LogState
    segments: dict[int, SealedLocalSegment]
    producers: tuple[ProducerEntry, ...] = ()


class Subjects:
    """Reader of the partitions that may be cleaned. It caches the state of each segment. Not thread-safe."""

    def __init__(self, files: Files, checkpoint: CleanerCheckpoint) -> None:
        self._files = files
        self._checkpoint = checkpoint
        self._seen: WeakKeyDictionary[SealedLocalSegment, SegmentState] = WeakKeyDictionary()

    def read(self, writer: WriteLog) -> Subject:
        """Return the subject for a partition, without its producers, as if no transaction were open."""
        sealed = writer.maintenance.settled  # before the end: so the end is never below them
        end = writer.end_offset
        state = LogState(
            tp=writer.tp,
            config=writer.config,
            segments=tuple(self._segment(segment) for segment in sealed),
            log_start_offset=writer.log_start,
            end_offset=end,
            last_stable_offset=end,
            active_base_offset=sealed[-1].end_offset if sealed else writer.segments.first_base,
            checkpoint=self._checkpoint.offset(writer.tp),
        )
        return Subject(writer, state, {segment.base_offset: segment for segment in sealed})

    def with_producers(self, subject: Subject) -> Subject:
        """Return ``subject`` with its producers, and with the last stable offset that their open transactions allow.

        The producers come from memory: the snapshot files may lack one, after the log start has moved.
        """
        writer, state = subject.writer, subject.state
        stable = writer.stable_offset()
        if stable is not None:
            state = replace(state, last_stable_offset=min(stable, state.last_stable_offset))
        return Subject(writer, state, subject.segments, writer.live_producers())

    def dirty_bytes(self, writer: WriteLog) -> int:
        """Return the bytes of the sealed segments that end above the first dirty offset. No segment is read."""
        done = self._checkpoint.offset(writer.tp) or 0
        return sum(segment.size_bytes for segment in writer.sealed if segment.end_offset > done)

    def _segment(self, segment: SealedLocalSegment) -> SegmentState:
        known = self._seen.get(segment)
        if known is None:
            known = self._seen[segment] = segment_state(self._files, segment)
        return known


def segment_state(files: Files, segment: SealedLocalSegment) -> SegmentState:
    """Return size, offsets and timestamps of a segment, from which a round is planned."""
    lookup = segment.lookup
    first = -1
    if segment.size_bytes:
        with LogFile(files, segment.path) as log:
            first = log.header_at(0, segment.size_bytes).max_timestamp
    return SegmentState(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        max_timestamp=lookup.last_time[0],
        first_batch_timestamp=first,
        offset_index_bytes=lookup.offset_count * OFFSET_ENTRY_BYTES,
        time_index_bytes=lookup.time_count * TIME_ENTRY_BYTES,
        modified_ms=segment.appended_ms,
    )


def refusal(writer: WriteLog) -> str:
    """Return why a partition must not be cleaned, ``""`` if it may be."""
    if not writer.config.compacted:
        return NOT_COMPACTED
    if writer.upload is not None:
        return TIERED
    return "" if writer.context.at_work else OFFLINE


@dataclass(frozen=True, slots=True)
class CleaningStatus:
    """Preview of a round over one partition. ``refused``: why no round may run, ``""`` if one may.

    ``candidate``: offsets and bytes that a round would clean, None if refused. ``groups``: each tuple has the base
    offsets of segments that one new segment would replace. If the offset map has no room for every key, a round does
    less.
    """

    tp: TopicPartition
    refused: str = ""
    candidate: CleaningCandidate | None = None
    groups: tuple[tuple[int, ...], ...] = ()


def preview(log: ReadLog, checkpoint: CleanerCheckpoint, files: Files, clock: Clock) -> CleaningStatus:
    """Return the preview of a round over a partition, which another process may write. Nothing is locked or written.

    If its files cannot be read, ``refused`` is the text of the error.
    """
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
    candidate = cleaning_candidate(state, clock.now_ms())
    groups: tuple[tuple[SegmentState, ...], ...] = ()
    if candidate is not None and candidate.cleanable_bytes:
        end = candidate.first_uncleanable
        groups = group_segments(state.segments, map_end=end, first_uncleanable=end, config=state.config)
    bases = tuple(tuple(segment.base_offset for segment in group) for group in groups)
    return CleaningStatus(log.tp, candidate=candidate, groups=bases)
