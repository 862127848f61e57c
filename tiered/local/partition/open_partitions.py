"""Partitions of a directory that this process writes: open ones, and sleeping ones, which were not used yet.

After a clean shutdown the checkpoints describe a partition completely. A sleeping partition is two numbers in memory.
Its first use opens it: a request, or background work that its settings need. So a directory with ten thousand
partitions opens at once, and only the partitions in use cost memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tiered.config import UNLIMITED
from tiered.errors import CorruptionError, TieredError
from tiered.format.local_names import partition_dir
from tiered.local.disk.files import make_inside
from tiered.local.disk.partition_files import SPARSE_NAME, LeaderEpochs, gone_error, has_lost_logs
from tiered.local.disk.topics import TopicInfo, ensure_topic_id
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.local.partition.context import DirectoryContext
from tiered.local.partition.log_segments import LoadedLog
from tiered.local.partition.write_log import WriteLog
from tiered.local.recovery.recovery import Recovery
from tiered.model import TopicPartition

WAKE_AT_ONCE = 64
"""How many sleeping partitions with timers are woken by one round of the background work."""


@dataclass(slots=True)
class PassResult:
    """Result of one background task over partitions. ``partitions``: number of changed partitions.

    ``bytes``: total size of the sealed, flushed, deleted or compacted segments. ``error``: the first error, None
    without one.
    """

    partitions: int = 0
    bytes: int = 0
    error: TieredError | None = None

    def add(self, other: PassResult) -> None:
        """Add the result of the same task over other partitions. The first error stays."""
        self.partitions += other.partitions
        self.bytes += other.bytes
        self.error = self.error or other.error


class Sleeper(NamedTuple):
    """Checkpoint values of a partition that is not open.

    ``end_offset``: the recovery point, which is the end of the log after a clean shutdown; negative if unknown.
    ``log_start`` None: no checkpoint has it.
    """

    end_offset: int
    log_start: int | None


class Roster:
    """Partitions of one directory: open, sleeping (not opened yet), or out of service. Thread-safe.

    ``topic_of`` returns a topic with its present settings, ``upload_of`` the uploader's last report on a partition.
    ``logs``: the open ones. ``broken``: errors of those out of service.
    ``offline``: the disk error that took the directory offline, None without one.
    """

    def __init__(
        self,
        directory: Path,
        around: DirectoryContext,
        *,
        topic_of: Callable[[str], TopicInfo],
        upload_of: Callable[[TopicPartition], PartitionUpload | None],
    ) -> None:
        self.directory = directory
        self.logs: dict[TopicPartition, WriteLog] = {}
        self.offline: TieredError | None = None
        self._around = around
        self._topic_of = topic_of
        self._upload_of = upload_of
        self._lock = threading.RLock()
        self._sleeping: dict[TopicPartition, Sleeper] = {}
        self.broken: dict[TopicPartition, TieredError] = {}
        self._aside: dict[TopicPartition, Sleeper] = {}

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self.logs or tp in self._sleeping or tp in self.broken

    def add_out_of_service(self, tp: TopicPartition, why: TieredError, noted: Sleeper) -> None:
        """Add a partition that is out of service for the reason ``why``. Checkpoints keep the values in ``noted``."""
        with self._lock:
            self.broken[tp], self._aside[tp] = why, noted

    def names(self) -> list[TopicPartition]:
        """Return all partitions, sorted, without opening any."""
        with self._lock:
            return sorted((*self.logs, *self._sleeping, *self.broken))

    def awake(self) -> list[WriteLog]:
        """Return the open partitions. Sleeping ones are left out."""
        with self._lock:
            return list(self.logs.values())

    def find(self, tp: TopicPartition) -> WriteLog | None:
        """Return the partition, opened if it sleeps; None if the directory has no such partition.

        Raises the partition's own error if it is out of service.
        """
        found = self.logs.get(tp)
        if found is None and (tp in self._sleeping or tp in self.broken):
            try:
                return self.wake(tp)
            except KeyError:  # its topic is being deleted
                return None
        return found

    def add_sleeping(self, tp: TopicPartition, sleeper: Sleeper) -> None:
        """Add a partition that needs no recovery after a clean shutdown. Its first use opens it."""
        with self._lock:
            self._sleeping[tp] = sleeper

    def emptied(self, tp: TopicPartition, noted: Sleeper) -> CorruptionError | None:
        """Return the error of a partition whose directory has lost all ``.log`` files, None if it has not.

        ``noted``: its checkpoint values. They must show that it had records: an empty log would assign their offsets
        again. For a topic of a Kafka broker return None, since a truncation there may leave no file.
        """
        path = self.directory / partition_dir(tp)
        if self._topic_of(tp.topic).adopted:
            return None
        if not has_lost_logs(self._around.files, path, noted.log_start or 0, noted.end_offset):
            return None
        return gone_error(self.directory, tp, noted.end_offset, tiered=self._upload_of(tp) is not None)

    def adopt(
        self,
        tp: TopicPartition,
        *,
        clean: bool,
        recovery_point: int,
        start: int | None,
    ) -> WriteLog:
        """Open a partition, create its directory if it is missing, and add it. ``clean`` False: recover it first.

        ``recovery_point``: records below it are durable. ``start``: the log start in a checkpoint, None without one.
        """
        with self._lock:
            files, topic, path = self._around.files, self._topic_of(tp.topic), self.directory / partition_dir(tp)
            if not files.is_directory(path):
                make_inside(files, path)
                clean = True
            ensure_topic_id(path, files, topic.topic_id)
            sparse = files.state(path / SPARSE_NAME) is not None
            if topic.adopted and not sparse:  # it may have been compacted, whatever it is now
                files.replace(path / SPARSE_NAME, b"")
                sparse = True
            epochs = LeaderEpochs(path, files)
            recovery = Recovery(
                files,
                path,
                tp,
                epochs=epochs,
                interval_bytes=topic.config.index_interval_bytes,
                now_ms=self._around.clock.now_ms(),
                keeps_point=not topic.adopted,
                dense=not topic.config.compacted and not sparse,
            )
            segments = recovery.load(clean=clean, recovery_point=recovery_point, start_offset=start or 0)
            point = segments[-1].end_offset if clean else max(recovery_point, 0)
            loaded = LoadedLog(segments, epochs, start, point, self._upload_of(tp))
            log = WriteLog(self._around, path, tp, topic, loaded)
            with log.context.lock:
                log.producers.load(met=recovery.met_producers)
            if clean:
                log.segments.note_opened()
            else:
                log.durability.flush_recovered()
            log.maintenance.adjust_start()
            self.logs[tp] = log
            self._sleeping.pop(tp, None)
            return log

    def next_to_wake(self) -> list[TopicPartition]:
        """Return the next sleeping partitions, at most 64, whose settings need background work.

        These settings are retention limits, compaction and ``seal.ms``. The returned partitions move to the end of the
        queue, so that later calls return the others.
        """
        if not self._sleeping:
            return []
        with self._lock:
            timed = (tp for tp in self._sleeping if self._is_timed(tp))
            due = list(islice(timed, WAKE_AT_ONCE))
            for tp in due:
                self._sleeping[tp] = self._sleeping.pop(tp)
            return due

    def _is_timed(self, tp: TopicPartition) -> bool:
        """Return True if the settings of a partition need background work other than flushes."""
        try:
            config = self._topic_of(tp.topic).config
        except KeyError:  # its topic is being deleted
            return False
        limits = (config.retention_ms, config.retention_bytes, config.local_retention_ms, config.local_retention_bytes)
        return config.seal_ms > UNLIMITED or max(limits) > UNLIMITED or config.compacted

    def forget(self, tp: TopicPartition, timeout_seconds: float) -> None:
        """Close a partition and remove it from this list. No file is changed beyond the close.

        Raises LocalIOError if the close exceeds the timeout.
        """
        log = self.logs.get(tp)
        if log is not None:
            log.close(timeout_seconds)  # not under the lock: a seal in there writes a checkpoint
        with self._lock:
            self.logs.pop(tp, None)
            self._sleeping.pop(tp, None)
            self.broken.pop(tp, None)
            self._aside.pop(tp, None)

    def recovery_points(self) -> dict[TopicPartition, int]:
        """Return the recovery point of each partition: every record below it is durable.

        A partition that is out of service and has no known recovery point is left out.
        """
        with self._lock:
            points = {tp: log.durability.recovery_point for tp, log in self.logs.items()}
            if self._aside:
                points |= {tp: noted.end_offset for tp, noted in self._aside.items() if noted.end_offset >= 0}
            if self._sleeping:
                points |= {tp: sleeper.end_offset for tp, sleeper in self._sleeping.items()}
            return points

    def log_starts(self) -> dict[TopicPartition, int]:
        """Return the log starts that the checkpoint needs.

        An open partition is left out if it is not tiered and starts at the base of its first segment. A partition that
        is not open keeps its value, if it has one.
        """
        with self._lock:
            starts = {
                tp: log.log_start
                for tp, log in self.logs.items()
                if log.log_start != log.segments.first_base or log.upload is not None
            }
            others = (*self._sleeping.items(), *self._aside.items())
            slept = {tp: s.log_start for tp, s in others if s.log_start is not None}
            return starts | slept

    def sleeping_count(self) -> int:
        """Return the number of partitions that are not opened yet."""
        return len(self._sleeping)

    def go_offline(self, error: TieredError) -> None:
        """Take all partitions offline after a disk error of the directory."""
        with self._lock:
            self.offline = self.offline or error
            for log in self.logs.values():
                log.context.offline = log.context.offline or error

    def wake(self, tp: TopicPartition) -> WriteLog:
        """Return the partition, opened if it sleeps.

        Raises KeyError if the directory has no such partition, and the partition's error if it is out of service.
        """
        with self._lock:
            known = self.logs.get(tp)
            if known is not None:
                return known
            why = self.broken.get(tp)
            if why is not None:
                raise why.with_traceback(None)
            end, start = self._sleeping[tp]  # KeyError: its topic is being deleted, or there is none
            path = self.directory / partition_dir(tp)
            if not self._around.files.is_directory(path):  # it was there at the open; an empty one would lose records
                raise CorruptionError(
                    f"{tp} is out of service: its directory {path} was removed while the log was open",
                    path_or_key=str(path),
                    hint="put the directory back, then open the log again",
                )
            if (emptied := self.emptied(tp, Sleeper(end, start))) is not None:
                self.add_out_of_service(tp, emptied, self._sleeping.pop(tp))
                raise emptied
            log = self.adopt(tp, clean=True, recovery_point=end, start=start)
            if self.offline is not None:
                log.context.offline = log.context.offline or self.offline
            return log
