"""Keyed compaction of a purely local log: choice of the partition, threads, limits and failures.

A disk error fails only that round. After any other error the partition is *uncleanable*, as with Kafka: it is skipped
until the directory is opened again. Other partitions are cleaned. A tiered partition is never cleaned here, because its
catalog would not know which records the disk dropped.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tiered.errors import (
    ClosedError,
    ConfigError,
    DiskFullError,
    FencedError,
    LocalIOError,
    LocalPermissionError,
    NotFoundError,
    TieredError,
)
from tiered.format.locks import SafeEvent
from tiered.local.cleaning.rounds import CleaningRound, CleaningStoppedError
from tiered.local.cleaning.subjects import (
    BEING_CLEANED,
    PAUSED,
    CleanerCheckpoint,
    Subject,
    Subjects,
    refusal,
)
from tiered.local.disk.partition_files import no_partition
from tiered.local.partition.context import DirectoryContext
from tiered.local.partition.open_partitions import PassResult, Roster
from tiered.local.partition.write_log import WriteLog
from tiered.model import TopicPartition
from tiered.plan.batch_filter import CleaningReport
from tiered.plan.cleaning import (
    CleaningCandidate,
    choose_filthiest,
    cleaning_candidate,
)
from tiered.plan.offset_map import ENTRY_BYTES
from tiered.plan.pacing import TokenBucket

LOGGER = logging.getLogger("tiered.local")

ROUNDS_AT_ONCE = 64
"""Limit of the rounds that one call of the background task makes on each of its workers."""

LOG_CHANGED = (CleaningStoppedError, NotFoundError, ClosedError, FencedError)
"""Errors of a log that was cut, closed, moved or deleted under a round: it is not damaged."""

DISK_IN_THE_WAY = (DiskFullError, LocalIOError, LocalPermissionError)
"""Errors of the disk that may pass. A disk that fails takes its directory offline elsewhere."""

MAX_NAP_SECONDS = 1.0
"""Longest single sleep of a throttled round, which checks for a stop between two of them."""


class LogCleaner:
    """Cleaner of one directory that is open for writing. At most one round at a time runs over a partition.

    Thread-safe.
    """

    def __init__(self, around: DirectoryContext, roster: Roster) -> None:
        self.checkpoint = CleanerCheckpoint(roster.directory, around.files)
        self._files = around.files
        self._clock = around.clock
        self._config = around.config
        self._roster = roster
        self._reserve = around.reserve
        self._failed = around.failed
        self._subjects = Subjects(around.files, self.checkpoint)
        self._counts = CleanerCounts(around.config.cleaner_threads)
        self._stopping = SafeEvent()
        self._looking = threading.RLock()  # the choice of a partition, and its input
        self._lock = threading.RLock()  # of the three below: an interrupt may leave an entered condition locked
        self._changed = threading.Condition(self._lock)
        self._at_work: dict[TopicPartition, int] = {}
        self._paused: Counter[TopicPartition] = Counter()
        self._uncleanable: dict[TopicPartition, str] = {}

    @property
    def uncleanable(self) -> dict[TopicPartition, str]:
        """Return the error text for each partition that is skipped because an earlier round over it failed.

        The next open of the directory tries these partitions again.
        """
        with self._lock:
            return dict(self._uncleanable)

    def figures(self) -> CleanerFigures:
        """Return the current gauges of compaction, and its totals since the open."""
        with self._lock:
            bad, at_work = set(self._uncleanable), len(self._at_work)
        dirty = sum(self._subjects.dirty_bytes(writer) for writer in self._roster.awake() if writer.tp in bad)
        return self._counts.figures(uncleanable_partitions=len(bad), uncleanable_bytes=dirty, at_work=at_work)

    def run(self, now_ms: int) -> PassResult:
        """Run up to ``ROUNDS_AT_ONCE`` rounds, each over the dirtiest partition, until none is dirty enough.

        Do nothing while ``cleaner_enabled`` is False. If ``cleanup.policy`` has ``delete``, too, apply retention after
        the round. The result has the first error of a partition; the others are cleaned.
        """
        done = PassResult()
        failed: set[TopicPartition] = set()
        for _ in range(ROUNDS_AT_ONCE if self._config.cleaner_enabled else 0):
            chosen = self._choose(now_ms, failed, done)
            if chosen is None:
                break
            subject, candidate = chosen
            tp = candidate.tp
            try:
                report = self._round(subject, candidate, now_ms)
                done.partitions += 1
                done.bytes += report.bytes_read + report.bytes_written
                if subject.state.config.deletes:
                    subject.writer.maintenance.retain(now_ms)
            except Exception as error:  # noqa: BLE001 - as Kafka: any error is this partition's
                failed.add(tp)
                self._fail(tp, error, done)
            finally:
                self._release(tp)
        return done

    def clean(self, tp: TopicPartition) -> CleaningReport | None:
        """Run one round over ``tp`` now, even if little of it is dirty. Return None if no dirty segment can be cleaned.

        Raises UnknownTopicError, ConfigError with the reason if the partition must not be cleaned, and the errors of
        :meth:`CleaningRound.run`.
        """
        writer = self._find(tp)
        refused = self._refused(writer) or ("" if self._reserve_partition(tp) else BEING_CLEANED)
        if refused:
            raise ConfigError(
                f"{tp} cannot be cleaned: {refused}", hint="`tiered disk compact --dry-run` lists what can be cleaned"
            )
        try:
            now_ms = self._clock.now_ms()
            with self._looking:
                subject = self._subjects.with_producers(self._subjects.read(writer))
            candidate = cleaning_candidate(subject.state, now_ms)
            if candidate is None or not candidate.cleanable_bytes:
                return None
            return self._round(subject, candidate, now_ms)
        except Exception as error:
            self._fail(tp, error, PassResult())
            raise
        finally:
            self._release(tp)

    @contextmanager
    def paused(self, *tps: TopicPartition) -> Iterator[None]:
        """Run no round over these partitions inside the block, so that no file of theirs is renamed.

        A round in progress stops between two batches. Raises LocalIOError if that takes more than ``close_timeout_ms``.
        """
        me, seconds = threading.get_ident(), self._config.close_timeout_ms / 1000
        with self._lock:
            self._paused.update(tps)
            ended = self._changed.wait_for(lambda: all(self._at_work.get(tp, me) == me for tp in tps), seconds)
        try:
            if not ended:
                raise LocalIOError(
                    f"the cleaner has not stopped its work on {', '.join(map(str, tps))} after {seconds} s",
                    hint="try again; if it happens again, check the disk: it does not answer",
                )
            yield
        finally:
            with self._lock:
                self._paused.subtract(tps)
                self._paused += Counter()  # forgets those at zero

    def stop(self) -> None:
        """Request that running rounds stop between two batches, because the log closes. No new round starts."""
        self._stopping.set()

    def forget_gone(self) -> None:
        """Remove the state of partitions that no longer exist, because a new partition may get the same name."""
        held = set(self._roster.names())
        self.checkpoint.retain_only(held)
        with self._lock:
            for tp in self._uncleanable.keys() - held:
                del self._uncleanable[tp]

    def _choose(
        self, now_ms: int, failed: set[TopicPartition], done: PassResult
    ) -> tuple[Subject, CleaningCandidate] | None:
        """Reserve the dirtiest partition for this thread and return it; None if no partition is dirty enough.

        ``failed``: partitions to leave out. One that cannot be read, or that another thread cleans, is added. ``done``
        gets the first error.
        """
        with self._looking:
            while not self._stopping.is_set():
                subjects = {s.state.tp: s for s in self._candidates(now_ms, failed, done)}
                looked_at = [cleaning_candidate(subject.state, now_ms) for subject in subjects.values()]
                candidates = tuple(candidate for candidate in looked_at if candidate is not None)
                self._counts.looked(candidates, now_ms)
                for each in candidates:
                    if each.checkpoint_reset:
                        LOGGER.warning("cleaner_checkpoint_reset partition=%s offset=%d", each.tp, each.first_dirty)
                        self.checkpoint.store(each.tp, each.first_dirty, self._roster.names())
                chosen = choose_filthiest(candidates)
                if chosen is None:
                    break
                if self._reserve_partition(chosen.tp):
                    return subjects[chosen.tp], chosen
                failed.add(chosen.tp)  # a manual round has just begun on it
        return None

    def _candidates(self, now_ms: int, failed: set[TopicPartition], done: PassResult) -> Iterable[Subject]:
        """Yield the partitions that may be cleaned now, also those that are not dirty enough.

        Open transactions are read only for a partition that is dirty enough. ``failed``, ``done``: as in
        :meth:`_choose`.
        """
        for writer in self._roster.awake():
            tp = writer.tp
            if tp in failed or tp in self._at_work or self._refused(writer):
                continue
            try:
                subject = self._subjects.read(writer)
                candidate = cleaning_candidate(subject.state, now_ms)
                if candidate is not None and candidate.eligible:
                    subject = self._subjects.with_producers(subject)
            except Exception as error:  # noqa: BLE001 - it does not stop the others
                failed.add(tp)
                self._fail(tp, error, done)
                continue
            yield subject

    def _round(self, subject: Subject, candidate: CleaningCandidate, now_ms: int) -> CleaningReport:
        """Run one round over a reserved partition, store its new first dirty offset, and return the round's counts."""
        tp, workers = candidate.tp, self._config.cleaner_threads
        limit = self._config.cleaner_max_bytes_per_second
        began = self._clock.monotonic()
        throttle = None if limit is None else TokenBucket(max(limit // workers, 1), burst=0.0, now=began)

        def spend(read: int, written: int) -> None:
            if self._stopping.is_set():
                raise CleaningStoppedError(f"the cleaning of {tp} stopped: its log is being closed")
            if tp in self._paused:
                raise CleaningStoppedError(f"the cleaning of {tp} stopped: {PAUSED}")
            if written:
                self._reserve.account(written)
            if throttle is None or not read + written:
                return
            ahead = throttle.acquire(read + written, self._clock.monotonic())
            while ahead > 0 and not self._stopping.is_set() and tp not in self._paused:
                self._clock.wait(self._stopping, min(ahead, MAX_NAP_SECONDS))
                ahead -= MAX_NAP_SECONDS

        work = CleaningRound(
            self._files,
            subject,
            candidate,
            now_ms=now_ms,
            memory_bytes=max(self._config.cleaner_dedupe_buffer_bytes // workers, ENTRY_BYTES),
            spend=spend,
        )
        spend(0, 0)
        report = work.run()
        done = min(report.end_offset, subject.writer.end_offset)  # the log may have been cut since the swap
        self.checkpoint.store(tp, done, self._roster.names())
        self._counts.cleaned(report, self._clock.monotonic() - began)
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

    def _fail(self, tp: TopicPartition, error: Exception, done: PassResult) -> None:
        """Log the ``error`` of a round, and add it to ``done`` if that has none. Skip errors of a log that changed.

        After a disk error later rounds try again. After any other error the partition is skipped until the next open.
        """
        if isinstance(error, LOG_CHANGED):
            return
        reported = error if isinstance(error, TieredError) else TieredError(f"{tp}: {type(error).__name__}: {error}")
        done.error = done.error or reported
        if isinstance(error, DISK_IN_THE_WAY):
            LOGGER.warning("cleaning_failed partition=%s error=%s", tp, error)
            self._failed(error)
            return
        LOGGER.error("partition_uncleanable partition=%s error=%s", tp, error, exc_info=reported is not error)
        with self._lock:
            self._uncleanable[tp] = reported.message

    def _find(self, tp: TopicPartition) -> WriteLog:
        try:
            return self._roster.wake(tp)
        except KeyError:
            raise no_partition(self._roster.directory, tp) from None

    def _reserve_partition(self, tp: TopicPartition) -> bool:
        """Reserve ``tp`` for this thread; False if another thread has it."""
        with self._lock:
            return self._at_work.setdefault(tp, threading.get_ident()) == threading.get_ident()

    def _release(self, tp: TopicPartition) -> None:
        with self._lock:
            self._at_work.pop(tp, None)
            self._changed.notify_all()

    def _refused(self, writer: WriteLog) -> str:
        """Return why a partition is not cleaned, empty if it may be."""
        refused = refusal(writer)
        if refused:
            return refused
        if self._paused[writer.tp]:
            return PAUSED
        damage = self._uncleanable.get(writer.tp)
        return f"it may be damaged: a round failed, and the next open tries again: {damage}" if damage else ""


@dataclass(frozen=True, slots=True)
class CleanerFigures:
    """Figures of a cleaner: Kafka's gauges of its log cleaner, and totals since the open. Ratios are from 0 to 1.

    ``max_dirty_ratio`` and ``max_compaction_delay_ms`` are maxima over the partitions at the last choice of one.
    ``last_run_ms``: time of that choice. The other maxima, and ``recopy_ratio``, cover the last rounds, one for each
    worker. ``at_work``: number of rounds that run now.

    =============================  ====================================
    ours                           Kafka's
    =============================  ====================================
    ``max_clean_seconds``          ``max-clean-time-secs``
    ``max_buffer_utilization``     ``max-buffer-utilization-percent``
    ``recopy_ratio``               ``cleaner-recopy-percent``
    ``max_compaction_delay_ms``    ``max-compaction-delay-secs``
    ``max_dirty_ratio``            ``max-dirty-percent``
    ``last_run_ms`` (-1: never)    ``time-since-last-run-ms``
    ``uncleanable_partitions``     ``uncleanable-partitions-count``
    ``uncleanable_bytes``          ``uncleanable-bytes``
    =============================  ====================================
    """

    max_clean_seconds: float = 0.0
    max_buffer_utilization: float = 0.0
    recopy_ratio: float = 0.0
    max_compaction_delay_ms: int = 0
    max_dirty_ratio: float = 0.0
    last_run_ms: int = -1
    uncleanable_partitions: int = 0
    uncleanable_bytes: int = 0
    rounds: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    at_work: int = 0


class CleanerCounts:
    """Counters from which :class:`CleanerFigures` are made. Thread-safe. ``workers``: number of last rounds to keep."""

    def __init__(self, workers: int) -> None:
        self._lock = threading.Lock()
        self._last: deque[tuple[CleaningReport, float]] = deque(maxlen=workers)
        self._rounds = self._read = self._written = 0
        self._dirty = 0.0
        self._delay_ms = 0
        self._looked_ms = -1

    def looked(self, candidates: Iterable[CleaningCandidate], now_ms: int) -> None:
        """Set the gauges of dirty ratio and compaction delay from ``candidates``, the partitions seen at ``now_ms``."""
        found = list(candidates)
        with self._lock:
            self._dirty = max((each.ratio for each in found), default=0.0)
            self._delay_ms = max((each.delay_ms for each in found), default=0)
            self._looked_ms = now_ms

    def cleaned(self, report: CleaningReport, seconds: float) -> None:
        """Count a finished round, which took ``seconds``."""
        with self._lock:
            self._last.append((report, seconds))
            self._rounds += 1
            self._read += report.bytes_read
            self._written += report.bytes_written

    def figures(self, *, uncleanable_partitions: int, uncleanable_bytes: int, at_work: int) -> CleanerFigures:
        """Return the current figures. ``at_work``: number of rounds that run now."""
        with self._lock:
            read = sum(report.bytes_read for report, _ in self._last)
            written = sum(report.bytes_written for report, _ in self._last)
            return CleanerFigures(
                max_clean_seconds=max((seconds for _, seconds in self._last), default=0.0),
                max_buffer_utilization=max((report.utilization for report, _ in self._last), default=0.0),
                recopy_ratio=written / read if read else 0.0,
                max_compaction_delay_ms=self._delay_ms,
                max_dirty_ratio=self._dirty,
                last_run_ms=self._looked_ms,
                uncleanable_partitions=uncleanable_partitions,
                uncleanable_bytes=uncleanable_bytes,
                rounds=self._rounds,
                bytes_read=self._read,
                bytes_written=self._written,
                at_work=at_work,
            )
