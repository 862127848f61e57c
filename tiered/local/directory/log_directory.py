"""Log directory that this process writes: lock, id, topics, partitions, checkpoints, background tasks, closing."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.config import LogConfig, TopicConfig
from tiered.errors import (
    CorruptionError,
    DiskFullError,
    LocalIOError,
    ReentrantCallError,
    TieredError,
)
from tiered.format.kernels import PlainLock
from tiered.format.local_names import partition_dir
from tiered.local.cleaning.cleaner import LogCleaner
from tiered.local.directory.checkpoints import DirectoryCheckpoints, PositionsWriter
from tiered.local.directory.figures import (
    UpkeepReport,
    directory_metrics,
    report_metrics,
    store_report,
    written_metrics,
)
from tiered.local.directory.read_only_log import check_usable
from tiered.local.directory.registry import (
    LeavingDirectories,
    TopicRegistry,
    finish_deletions,
    open_partitions,
    read_inventory,
)
from tiered.local.directory.tasks import EVERY_TICK, BackgroundTasks, InlineWorkers, Task, Tasks, Workers, run_all
from tiered.local.disk.claims import Claims
from tiered.local.disk.directory_files import (
    META_PROPERTIES_NAME,
    NO_BROKER_EPOCH,
    NO_ID,
    consume_clean_mark,
    ensure_volume,
    mark_clean,
    read_broker_epoch,
    refuse_standby,
)
from tiered.local.disk.fd_pool import PooledFiles, default_open_files
from tiered.local.disk.files import Files, PosixFiles, disk_failed, no_directory, sweep_temporaries
from tiered.local.disk.lock import DirectoryLock, LockTerms
from tiered.local.disk.partition_files import no_partition
from tiered.local.disk.topics import TopicInfo, refuse_partition
from tiered.local.disk.uploader_files import (
    UPLOADER_FILES,
    PartitionUpload,
    UploadCheckpoint,
)
from tiered.local.partition.context import DirectoryContext, DiskReserve
from tiered.local.partition.open_partitions import Roster
from tiered.local.partition.write_log import WriteLog
from tiered.local.transactions.coordinator import Transactions
from tiered.local.transactions.state_log import ProducerIds
from tiered.metrics import Metric
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")

LEAST_WAIT_SECONDS = 0.01
"""Minimal wait at a close for a partition's locks, when those before it took all the time."""


class LocalLog:
    """One log directory that this process writes. :meth:`open` opens it, a context manager closes it. Thread-safe.

    It has the lock ``.lock``; :class:`LogView` reads a directory without the lock. The owner calls :meth:`tick` about
    once a second. Only ``workers`` start threads, for compaction. A failed disk takes the whole directory offline.
    ``roster``: the partitions. ``registry``: the topics and their changes. ``uploads``: the uploader's checkpoint.
    ``claims``: the claim proofs. ``cleaner``: compaction.
    """

    def __init__(
        self,
        directory: Path,
        *,
        files: Files,
        clock: Clock,
        ids: IdSource,
        config: LogConfig,
        lock: DirectoryLock,
        workers: Workers | None = None,
    ) -> None:
        self.directory, self.config, self.files = directory, config, files
        self._clock, self._ids = clock, ids
        self._directory_lock = lock
        self._pid = os.getpid()
        self._closed = self._ended = self._lets_go = False
        self._closing = PlainLock()
        self._proven: frozenset[TopicPartition] = frozenset()
        self.claims, self.uploads = Claims(directory, files), UploadCheckpoint(directory, files)
        around = DirectoryContext(
            files=files,
            clock=clock,
            ids=ids,
            config=config,
            reserve=DiskReserve(files, directory, config),
            sealed=lambda: self.notes.write_points_after_seal(),  # noqa: PLW0108 - they are made below
            cut=self._before_cut,
            failed=self._failed,
            claims=self.claims,
            uploads=self.uploads,
        )
        self.roster = Roster(directory, around, topic_of=self._topic, upload_of=self._upload_of)
        self.notes = DirectoryCheckpoints(directory, files, self.roster)
        self._leaving = LeavingDirectories(directory, files, ids)
        self.registry = TopicRegistry(
            around, self.roster, leaving=self._leaving, checkpoint=self._checkpoint_without_gone
        )
        self.cleaner = LogCleaner(around, self.roster)
        self._workers = workers or InlineWorkers()
        self._upkeep = BackgroundTasks(
            around,
            self.roster,
            leaving=self._leaving,
            notes=self.notes,
            cleaner=self.cleaner,
            workers=self._workers,
            note_status=self.note_status,
        )
        self.transactions = Transactions(self, ProducerIds((directory,), files, ids), clock)
        # Asked for late: several directories share one coordinator.
        self.tasks.add(Task("transactions", EVERY_TICK, lambda ms: self.transactions.tick(ms)))  # noqa: PLW0108
        self.tasks.add(Task("positions", EVERY_TICK, lambda _: self.note_positions()))
        self._position_notes = PositionsWriter(directory, files, self.uploads)
        self.volume_id = NO_ID
        self.was_clean = False
        self._broker_epoch = NO_BROKER_EPOCH

    @classmethod
    def open(
        cls,
        directory: Path | str,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        files: Files | None = None,
        config: LogConfig | None = None,
        alone: bool = True,
        workers: Workers | None = None,
        terms: LockTerms = LockTerms(),  # noqa: B008 - it never changes
    ) -> LocalLog:
        """Open the log in ``directory`` for writing. Create it if it is missing. Recover it after an unclean stop.

        ``alone`` False: the log has several directories, and the caller ends unfinished transactions after it opened
        all of them. ``workers``: threads for compaction; None runs it in the thread that calls :meth:`tick`.
        ``terms``: options of the lock. With ``terms.passing``, raise NotFoundError instead of creating a directory.

        Raises LockedError, and LocalIOError if the disk fails. Raises ConfigError if ``directory`` is a standby and
        ``terms.standby`` is False, if it is that of a partition, or if segments are in a directory that is not named
        after a partition. Raises CorruptionError if a small file in ``directory`` is unreadable. Damaged records never
        stop an open. A ``partition.metadata`` that is unreadable or names another topic, or the missing directory of a
        partition that had records, takes only that partition out of service.
        """
        directory, files = Path(directory), files or PosixFiles()
        if not terms.standby:
            refuse_standby(directory, files)  # also before the lock: the process that follows has it
        refuse_partition(directory, files)
        clock, ids, config = clock or SystemClock(), ids or SystemIds(), config or LogConfig()
        if not terms.passing:
            files.make_directory(directory)
        elif files.state(directory / META_PROPERTIES_NAME) is None:  # this was a log when the caller looked
            raise no_directory(files, directory, hint="put it back, or restore it with `tiered restore`")
        if not isinstance(files, PooledFiles):
            files = PooledFiles(files, config.max_open_files or default_open_files())
        lock = DirectoryLock(directory, files)
        lock.acquire(clock, terms)
        try:
            if not terms.standby:
                refuse_standby(directory, files)
            log = cls(directory, files=files, clock=clock, ids=ids, config=config, lock=lock, workers=workers)
            log._load()
            if alone and not log.was_clean:
                log.transactions.recover()
        except BaseException:
            lock.release()
            raise
        return log

    @property
    def tasks(self) -> Tasks:
        """Return the background tasks, to read their status, to run one at once, or to add one."""
        return self._upkeep.tasks

    @property
    def offline(self) -> TieredError | None:
        """Return the error that took the directory offline, None while it is in service."""
        return self.roster.offline

    def report(self) -> UpkeepReport:
        """Return the current report on the background tasks. The file ``tiered-tasks.json`` has an older one."""
        offline = self.roster.offline
        return UpkeepReport(
            self._clock.now_ms(),
            self.tasks.status(),
            self.cleaner.figures(),
            {str(tp): why for tp, why in sorted(self.cleaner.uncleanable.items())},
            "" if offline is None else offline.message,
        )

    def metrics(self) -> list[Metric]:
        """Return the current metrics of the directory: disk space, partitions, tasks and cleaner."""
        broken = len(self.roster.broken)
        return [
            *directory_metrics(self.directory, self.files, held=len(self.partitions()), broken=broken),
            *written_metrics(self.roster),
            *report_metrics(self.report(), self.directory, self._clock.now_ms()),
        ]

    def topics(self) -> dict[str, TopicInfo]:
        """Return the topics of this directory, by name."""
        self._check_open()
        return dict(self.registry.topics)

    @property
    def out_of_service(self) -> dict[TopicPartition, TieredError]:
        """Return the error of each partition that the open took out of service, which :meth:`partition` raises."""
        return dict(self.roster.broken)

    def partitions(self) -> list[TopicPartition]:
        """Return all partitions of this directory, sorted, also those out of service."""
        self._check_open()
        return self.roster.names()

    def partition(self, tp: TopicPartition) -> WriteLog:
        """Return a partition; its first use opens it. Raises UnknownTopicError, or the error of one out of service."""
        if self._closed or os.getpid() != self._pid:
            self._check_open()  # which says what is wrong
        found = self.roster.logs.get(tp)
        if found is None:
            self._check_place()  # a woken partition is read from the current files
            found = self.roster.find(tp)
        if found is None:
            raise no_partition(self.directory, tp)
        return found

    def awake(self) -> list[WriteLog]:
        """Return the partitions that are open for writing now."""
        return self.roster.awake()

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: TopicConfig | None = None,
        topic_id: UUID | None = None,
        *,
        held: Collection[int] | None = None,
    ) -> TopicInfo:
        """Create a topic. ``topic_id``: its id in the catalog; None makes a random one.

        ``held``: numbers of the partitions that this directory gets, None for all. Raises ConfigError if the topic
        exists or its deletion is not finished, or for an invalid name or number of partitions.
        """
        with self._changing():
            return self.registry.create(name, partitions, config or TopicConfig(), topic_id, held)

    def alter_topic(
        self, name: str, properties: Mapping[str, Any] | None = None, *, partitions: int | None = None
    ) -> TopicInfo:
        """Change settings (Kafka's names), or raise the number of partitions to ``partitions``. Return the new topic.

        Raises UnknownTopicError, or ConfigError for an invalid setting or a lower number of partitions.
        """
        with self._changing():
            return self.registry.alter(name, properties or {}, partitions)

    def delete_topic(self, name: str) -> list[Path]:
        """Delete the topic: rename its directories ``-delete`` now, remove them after ``file.delete.delay.ms``.

        Return the renamed directories. Its entries in the claims and in the uploader's checkpoint are removed. The
        bucket is not changed. Raises UnknownTopicError, and LockedError while an uploader runs and the topic is tiered.
        """
        with self._changing(), self.cleaner.paused(*(tp for tp in self.roster.names() if tp.topic == name)):
            return self.registry.delete(name)

    def refresh_uploads(self) -> None:
        """Read ``tiered-offset-checkpoint`` and pass each open partition its entry."""
        self._check_open()
        self._upkeep.refresh_uploads()

    def flush(self) -> None:
        """Flush every open partition, then raise the first error. Partitions that are not open are durable already."""
        self._check_open()
        self._check_place()
        done = run_all(
            each.durability.flush for each in self.roster.awake() if each.durability.flushed < each.end_offset
        )
        if done.error is not None:
            raise done.error

    def tick(self) -> None:
        """Run all tasks that are due, then raise the first error. Call it about once a second."""
        self._check_open()
        self._check_place()
        self._upkeep.tasks.tick()

    def checkpoint(self) -> None:
        """Write log starts and recovery points. After a crash the next open reads only records above the points."""
        self.notes.write_points()
        self.notes.write_starts()

    def note_positions(self) -> None:
        """Write the positions of groups to the file that the uploader reads, if they have changed."""
        self._position_notes.write(self.transactions.positions)

    def note_status(self) -> None:
        """Write the report on background tasks to ``tiered-tasks.json`` for other processes."""
        store_report(self.directory, self.files, self.report())

    def _failed(self, error: TieredError) -> None:
        """Take the directory offline after an error of its disk (EIO, read-only, gone), as Kafka does.

        No partition then acknowledges anything until the next open. Reads continue if the disk allows them. Errors of a
        single file (its owner, its contents) and a full disk do not count. Callers may hold a partition's lock.
        """
        if disk_failed(error) and self.roster.offline is None:
            LOGGER.error("directory_offline path=%s error=%s", self.directory, error)
            self.roster.go_offline(error)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Guard an operation on the directory. Raise LocalIOError if it is offline.

        Go offline after a disk error in the block.
        """
        self._check_open()
        if self.roster.offline is not None:
            raise offline_error(self.directory, self.roster.offline)
        try:
            self._check_place()
            yield
        except TieredError as error:
            self._failed(error)
            raise

    def _checkpoint_without_gone(self) -> None:
        self.cleaner.forget_gone()
        self.checkpoint()

    def _before_cut(self, tp: TopicPartition, offset: int, recovery_point: int) -> None:
        self.notes.lower(tp, recovery_point, offset)
        self.cleaner.checkpoint.lower(tp, offset)

    def deferring_checkpoints(self) -> AbstractContextManager[None]:
        """Return a context manager that writes the recovery points once, at its end, instead of after each seal."""
        self._lost()  # then the directory is offline, and every seal raises
        return self.notes.deferring_points()

    def close(self) -> None:
        """Abort open transactions, flush and close all partitions, and release the lock. Idempotent.

        After a clean close the next open needs no recovery. Waits up to ``close_timeout_ms`` for transactions, then as
        long again for partitions. Raises LocalIOError if some records are not durable, if the directory was removed, or
        if a thread does not return from the disk. Only in the last case the process keeps the lock, so that no other
        process writes. Raises CorruptionError if the directory of a partition was removed.
        """
        if os.getpid() != self._pid:
            self._closed = True
            return
        self.check_caller()
        with self._closing:
            if self._ended:
                if self._lets_go:
                    self._directory_lock.release()  # again, where an interrupt ended the first release
                return
            try:
                self._end()
            except TieredError as error:
                self._ended = not isinstance(error, ReentrantCallError)  # a handler's, which interrupted this
                raise
            self._ended = True  # an interrupted close is ended by the next call

    def check_caller(self) -> None:
        """Raise ReentrantCallError if this thread is inside another call for which :meth:`close` would have to wait."""
        if os.getpid() != self._pid:
            return
        self._closing.check_caller()
        self.transactions.check_caller()
        for writer in self.roster.awake():
            writer.check_caller()

    def _end(self) -> None:
        settled = self.transactions.close(self.config.close_timeout_ms / 1000)
        if self.offline is None and self._lost() is None:
            with contextlib.suppress(TieredError):  # the next commit writes them
                self.note_positions()
        self._closed = True
        lost = self._lost() or self._emptied()  # nothing is written into a directory that took the place of this one
        clean = self._end_partitions()
        try:
            if clean and lost is None:
                self.checkpoint()
                self.notes.write_watermarks()
                self.note_status()
                # A partition out of service was not recovered from a crash.
                if settled and not self.roster.broken:
                    mark_clean(self.directory, self.files, self._broker_epoch)
        finally:
            # Before the lock: a second close must not write what another process has by then.
            self._ended = self._lets_go = True
            self._directory_lock.release()
        if lost is not None:
            raise lost
        if not clean:
            raise LocalIOError(
                f"log directory {self.directory} was closed, but not everything is durable: records may be lost",
                hint="repair the disk if it failed, then open the log again: the open recovers what is on the disk",
            )

    def _end_partitions(self) -> bool:
        """Close every partition within ``close_timeout_ms``, compaction first. Return True if all is durable.

        Raises LocalIOError if a thread does not return from the disk, after it has closed the other partitions.
        """
        limit_ms = self.config.close_timeout_ms
        deadline = self._clock.monotonic() + limit_ms / 1000

        def left_seconds() -> float:
            return max(deadline - self._clock.monotonic(), LEAST_WAIT_SECONDS)

        self.cleaner.stop()
        hung = None
        if not self._workers.join(left_seconds()):
            hung = LocalIOError(
                f"{self.directory} is not closed: a background task has not ended for {limit_ms} ms",
                hint="the disk hangs: read the kernel log (`dmesg`), then end this process, which keeps the log's lock",
            )
        clean = self.offline is None
        for writer in self.roster.awake():
            try:
                clean = writer.close(left_seconds()) and clean
            except LocalIOError as error:
                hung = hung or error
        if hung is not None:
            raise hung
        return clean

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self) -> None:
        # An uploader of another process may be writing its own: it sweeps them itself.
        sweep_temporaries(self.files, self.directory, but=UPLOADER_FILES)
        tiered = {*self.claims.read(), *self.uploads.read()}
        found = read_inventory(self.directory, self.files, tiered)
        self.volume_id = ensure_volume(self.directory, self.files, self._ids, self.config)
        self._broker_epoch = read_broker_epoch(self.directory, self.files)
        clean = self.was_clean = consume_clean_mark(self.directory, self.files)
        finish_deletions(self.directory, self.files, self._leaving, found.deleted)
        self.registry.topics = found.topics
        self._leaving.found(found.leaving)
        self._proven = frozenset(self.claims.read())
        open_partitions(self.roster, found, self.notes.read(), clean=clean, tiered=tiered)
        self.notes.drop_watermarks()
        try:
            self.registry.forget(found.deleted)
        except DiskFullError as error:
            if found.deleted:
                raise
            # Older checkpoints only lengthen the next recovery. `tiered disk drop` must open a full disk.
            LOGGER.warning("checkpoint_failed path=%s error=%s", self.directory, error)
        try:
            self._leaving.remove_due(0)
        except TieredError as error:
            LOGGER.warning("deletion_failed path=%s error=%s", self.directory, error)

    def _lost(self) -> TieredError | None:
        """Take the directory offline if it was removed or replaced since the open. Return the reason, or None."""
        try:
            self._directory_lock.check()
        except TieredError as error:
            self._failed(error)
            return error
        return None

    def _emptied(self) -> TieredError | None:
        """Return the error of the first open partition whose directory was removed; None if all exist."""
        for writer in self.roster.awake():
            path = self.directory / partition_dir(writer.tp)
            if not self.files.is_directory(path):
                return CorruptionError(
                    f"the directory {path} was removed while the log was open",
                    path_or_key=str(path),
                    hint="put the directory back before the next open: without it the partition is out of service",
                )
        return None

    def _check_place(self) -> None:
        if (lost := self._lost()) is not None:
            raise lost

    def _topic(self, name: str) -> TopicInfo:
        return self.registry.topics[name]

    def _upload_of(self, tp: TopicPartition) -> PartitionUpload | None:
        """Return the checkpoint entry of a partition; an empty one if it has only a claim proof, None without both."""
        return self.uploads.read().get(tp) or (PartitionUpload(0) if tp in self._proven else None)

    def _check_open(self) -> None:
        if self._closed or os.getpid() != self._pid:
            check_usable(self.directory, self._pid, closed=self._closed)  # which says what is wrong


def offline_error(directory: Path, error: TieredError) -> LocalIOError:
    """Return the error of calls on a log directory that ``error`` took offline."""
    return LocalIOError(
        f"log directory {directory} is offline: {error.message}", hint="repair the disk, then open the log again"
    )
