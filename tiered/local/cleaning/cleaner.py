"""Keyed compaction of a purely local log: which partition is cleaned now, what holds the others back.

A partition that holds damage is left alone until the directory is opened again. A tiered one is never cleaned here: its
old segments are the bucket's, and what the disk lacks the catalog would not know.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import WeakKeyDictionary

from tiered.clock import Clock
from tiered.config import LogConfig
from tiered.errors import ConfigError, CorruptionError, NotFoundError, TieredError, UnknownTopicError
from tiered.format.offset_index import OFFSET_ENTRY_BYTES
from tiered.format.producer_snapshot import ProducerEntry
from tiered.format.time_index import TIME_ENTRY_BYTES
from tiered.local.cleaning.checkpoint import CleanerCheckpoint
from tiered.local.cleaning.producer_view import live_producers, stable_offset
from tiered.local.cleaning.rounds import CleaningReport, CleaningRound, CleaningStoppedError
from tiered.local.cleaning.throttle import Throttle
from tiered.local.disk.files import Files
from tiered.local.disk.space import DiskReserve
from tiered.local.partition.roster import Roster
from tiered.local.partition.writer import PartitionWriter
from tiered.local.segment.scan import LogFile
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.model import TopicPartition
from tiered.plan.cleaning import (
    CleaningCandidate,
    LogState,
    SegmentState,
    choose_filthiest,
    cleaning_candidate,
    group_segments,
)

LOGGER = logging.getLogger("tiered.local")

ROUNDS_AT_ONCE = 64
"""How many rounds one call of the background task makes before it lets other tasks have their turn."""

TIERED = "tiered: its old segments are the bucket's, they are compacted there"
NOT_COMPACTED = "cleanup.policy does not say compact"
FENCED = "fenced: another volume owns it"
PAUSED = "paused: it moves to another directory"
OFFLINE = "closed or offline"


@dataclass(frozen=True, slots=True)
class CleaningStatus:
    """What a round over one partition would do. ``refused``: why there is none; ``groups`` bases that may become one.

    The groups are those of a map with room for every key.
    """

    tp: TopicPartition
    refused: str = ""
    candidate: CleaningCandidate | None = None
    groups: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class _Subject:
    """A partition as the choice sees it, and what it was seen by."""

    writer: PartitionWriter
    state: LogState
    segments: dict[int, SealedLocalSegment]
    producers: tuple[ProducerEntry, ...] = ()


class LogCleaner:
    """One per directory that is open for writing; one round at a time. Thread-safe."""

    def __init__(
        self, directory: Path, files: Files, clock: Clock, config: LogConfig, *, roster: Roster, reserve: DiskReserve
    ) -> None:
        self.checkpoint = CleanerCheckpoint(directory, files)
        self._files = files
        self._clock = clock
        self._config = config
        self._roster = roster
        self._reserve = reserve
        self._lock = threading.RLock()
        self._uncleanable: dict[TopicPartition, str] = {}
        self._paused: set[TopicPartition] = set()
        self._at_work: TopicPartition | None = None
        self._held_back: dict[TopicPartition, tuple[int, int | None]] = {}
        self._seen: WeakKeyDictionary[SealedLocalSegment, SegmentState] = WeakKeyDictionary()

    @property
    def uncleanable(self) -> dict[TopicPartition, str]:
        """Partitions in which an earlier round met damage, and which."""
        return dict(self._uncleanable)

    def run(self, now_ms: int) -> None:
        """The background task: rounds over the filthiest partition until none is filthy enough.

        A partition that fails keeps no other from its turn; the first error is raised at the end.
        """
        if not self._config.cleaner_enabled:
            return
        with self._lock:
            self._rounds(now_ms)

    def clean(self, tp: TopicPartition) -> CleaningReport | None:
        """One round over ``tp`` now, whatever its ratio; None: nothing of it is dirty.

        Raises ConfigError with the reason if it must not be cleaned, CorruptionError where it is damaged.
        """
        with self._lock:
            writer = self._find(tp)
            refused = self._refused(writer)
            if refused:
                raise ConfigError(f"{tp} cannot be cleaned: {refused}")
            now_ms = self._clock.now_ms()
            subject = self._settled(self._subject(writer), now_ms)
            candidate = cleaning_candidate(subject.state, now_ms)
            if candidate is None or not candidate.cleanable_bytes:
                return None
            return self._round(subject, candidate, now_ms)

    def status(self, tp: TopicPartition) -> CleaningStatus:
        """What a round over ``tp`` would do now; nothing is changed. Raises UnknownTopicError."""
        with self._lock:
            writer = self._find(tp)
            refused = self._refused(writer)
            if refused:
                return CleaningStatus(tp, refused)
            now_ms = self._clock.now_ms()
            try:
                state = self._settled(self._subject(writer), now_ms).state
            except CorruptionError as error:
                return CleaningStatus(tp, error.message)
        candidate = cleaning_candidate(state, now_ms)
        if candidate is None:
            return CleaningStatus(tp, NOT_COMPACTED)
        end = candidate.first_uncleanable
        groups: tuple[tuple[SegmentState, ...], ...] = ()
        if candidate.cleanable_bytes:
            groups = group_segments(state.segments, map_end=end, first_uncleanable=end, config=state.config)
        bases = tuple(tuple(segment.base_offset for segment in group) for group in groups)
        return CleaningStatus(tp, candidate=candidate, groups=bases)

    @contextmanager
    def paused(self, tp: TopicPartition) -> Iterator[None]:
        """No file of ``tp`` gets another name in here; a round that is at work on it ends first."""
        self._paused.add(tp)
        try:
            if self._at_work == tp:  # it looks at _paused after it said so: one of both sees the other
                with self._lock:
                    pass
            yield
        finally:
            self._paused.discard(tp)

    def forget_gone(self) -> None:
        """Nothing that was noted of partitions that are gone is believed of others that may get their names."""
        held = set(self._roster.names())
        self.checkpoint.keep(held)
        for tp in {*self._uncleanable, *self._held_back} - held:
            self._uncleanable.pop(tp, None)
            self._held_back.pop(tp, None)

    def _rounds(self, now_ms: int) -> None:
        failed: dict[TopicPartition, TieredError] = {}
        for _ in range(ROUNDS_AT_ONCE):
            subjects = {s.state.tp: s for s in self._subjects(now_ms, failed)}
            choice = choose_filthiest((s.state for s in subjects.values()), now_ms)
            self._store_resets(choice.candidates)
            chosen = choice.filthiest
            if chosen is None:
                break
            subject = subjects[chosen.tp]
            try:
                self._round(subject, chosen, now_ms)
            except TieredError as error:
                LOGGER.warning("cleaning_failed partition=%s error=%s", chosen.tp, error)
                failed[chosen.tp] = error
            if subject.state.config.deletes:
                subject.writer.retain(now_ms)
        errors = [error for error in failed.values() if not isinstance(error, CleaningStoppedError | NotFoundError)]
        if errors:
            raise errors[0]

    def _subjects(self, now_ms: int, failed: dict[TopicPartition, TieredError]) -> Iterable[_Subject]:
        """What is to be chosen from. The stable offset costs reading: it is asked for only where a round is due."""
        for writer in self._roster.awake():
            tp = writer.tp
            if tp in failed or self._refused(writer):
                continue
            try:
                subject = self._subject(writer)
                candidate = cleaning_candidate(subject.state, now_ms)
                if candidate is not None and candidate.eligible:
                    mark = (subject.state.end_offset, subject.state.checkpoint)
                    if self._held_back.get(tp) == mark:
                        continue  # open transactions held it back, and nothing was appended since
                    subject = self._settled(subject, now_ms)
                    settled = cleaning_candidate(subject.state, now_ms)
                    if settled is None or not settled.eligible:
                        self._held_back[tp] = mark
                yield subject
            except NotFoundError:
                continue  # a file left while it was looked at
            except TieredError as error:
                self._note_damage(tp, error)
                failed[tp] = error

    def _round(self, subject: _Subject, candidate: CleaningCandidate, now_ms: int) -> CleaningReport:
        tp = candidate.tp
        throttle = Throttle(self._clock, self._config.cleaner_max_bytes_per_second)

        def spend(read: int, written: int) -> None:
            if tp in self._paused:
                raise CleaningStoppedError(f"{tp} is not cleaned any further: {PAUSED}")
            if written:
                self._reserve.take(written)
            throttle.spend(read + written)

        work = CleaningRound(
            self._files,
            subject.writer,
            subject.state,
            candidate,
            segments=subject.segments,
            producers=subject.producers,
            now_ms=now_ms,
            memory_bytes=self._config.cleaner_dedupe_buffer_bytes,
            spend=spend,
        )
        self._at_work = tp
        try:
            spend(0, 0)
            report = work.run()
        except TieredError as error:
            self._note_damage(tp, error)
            raise
        finally:
            self._at_work = None
        done = min(report.end_offset, subject.writer.end_offset)  # it may have been cut since the swap
        self.checkpoint.store(tp, done, self._roster.names())
        LOGGER.info(
            "log_cleaned partition=%s start=%d end=%d records=%d kept=%d bytes=%d left=%d",
            tp,
            report.first_dirty,
            report.end_offset,
            report.records_read,
            report.records_written,
            report.bytes_read,
            report.bytes_written,
        )
        return report

    def _store_resets(self, candidates: Iterable[CleaningCandidate]) -> None:
        for candidate in candidates:
            if candidate.checkpoint_reset:
                LOGGER.warning("cleaner_checkpoint_reset partition=%s offset=%d", candidate.tp, candidate.first_dirty)
                self.checkpoint.store(candidate.tp, candidate.first_dirty, self._roster.names())

    def _note_damage(self, tp: TopicPartition, error: TieredError) -> None:
        if isinstance(error, CorruptionError):
            self._uncleanable[tp] = error.message
            LOGGER.error("partition_uncleanable partition=%s error=%s", tp, error)

    def _find(self, tp: TopicPartition) -> PartitionWriter:
        try:
            return self._roster.writers[tp]
        except KeyError:
            raise UnknownTopicError(f"the directory holds no partition {tp}") from None

    def _refused(self, writer: PartitionWriter) -> str:
        """Why a partition is not cleaned, empty if it may be."""
        if not writer.config.compacted:
            return NOT_COMPACTED
        if writer.fenced:
            return FENCED
        if writer.upload is not None:
            return TIERED
        if not writer.at_work:
            return OFFLINE
        if writer.tp in self._paused:
            return PAUSED
        damage = self._uncleanable.get(writer.tp)
        return f"damaged, until the directory is opened again: {damage}" if damage else ""

    def _subject(self, writer: PartitionWriter) -> _Subject:
        """The partition without its producers: as if no transaction were open."""
        sealed = writer.settled  # before the end: so the end is never below them
        end = writer.end_offset
        state = LogState(
            tp=writer.tp,
            config=writer.config,
            segments=tuple(self._segment(segment) for segment in sealed),
            log_start_offset=writer.log_start,
            end_offset=end,
            last_stable_offset=min(end, writer.high_watermark),
            active_base_offset=sealed[-1].end_offset if sealed else writer.first_base,
            checkpoint=self.checkpoint.offset(writer.tp),
        )
        return _Subject(writer, state, {segment.base_offset: segment for segment in sealed})

    def _settled(self, subject: _Subject, now_ms: int) -> _Subject:
        """The same with its producers, and with the stable offset that they tell."""
        writer, state = subject.writer, subject.state
        view = writer.view()
        producers = live_producers(self._files, writer.directory, view, now_ms)
        stable = stable_offset(producers, view.end_offset)
        settled = replace(state, last_stable_offset=min(stable, state.last_stable_offset))
        return _Subject(writer, settled, subject.segments, producers)

    def _segment(self, segment: SealedLocalSegment) -> SegmentState:
        known = self._seen.get(segment)
        if known is None:
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
