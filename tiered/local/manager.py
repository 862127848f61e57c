"""A log directory: its lock, its id, its topics and partitions, its checkpoints, its end."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.config import LogConfig, TopicConfig
from tiered.errors import (
    ClosedError,
    ConfigError,
    ForkedLogError,
    LocalIOError,
    NotFoundError,
    TieredError,
    UnknownTopicError,
)
from tiered.format.keys import check_topic_name, parse_partition_dir, partition_dir
from tiered.local.checkpoints import (
    LOG_START_NAME,
    RECOVERY_POINT_NAME,
    REPLICATION_NAME,
    OffsetsFile,
    mark_clean,
    take_clean_mark,
    usable_id,
)
from tiered.local.files import Files, PosixFiles
from tiered.local.lock import DirectoryLock
from tiered.local.opening import foreign_log, open_writer, writable_log
from tiered.local.partition import PartitionLog
from tiered.local.space import DiskReserve
from tiered.local.state import Surroundings
from tiered.local.topics import TopicInfo, read_topics, write_topics
from tiered.local.upkeep import Upkeep
from tiered.local.uploads import SAME, ClaimProof, Claims, PartitionUpload, SealRequest, UploadCheckpoint, _Same
from tiered.local.volume import NO_ID, discovered, ensure_volume, partition_names, read_topic_id, read_volume
from tiered.local.writer import PartitionWriter
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")


class LocalLog:
    """One log directory. Open it with :meth:`open`; a context manager closes it. Thread-safe.

    For writing it holds ``.lock``; read-only it holds nothing and sees what others write. It starts no thread:
    whoever owns it calls :meth:`tick` about once a second.
    """

    def __init__(
        self,
        directory: Path,
        *,
        files: Files,
        clock: Clock,
        ids: IdSource,
        config: LogConfig,
        lock: DirectoryLock | None,
    ) -> None:
        self.directory = directory
        self.config = config
        self.files = files
        self._clock = clock
        self._ids = ids
        self._directory_lock = lock
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._checkpoint_lock = threading.Lock()
        self._closed = False
        self._clean = True
        self._partitions: dict[TopicPartition, PartitionLog] = {}
        self._writers: dict[TopicPartition, PartitionWriter] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._recovery_points = OffsetsFile(directory, RECOVERY_POINT_NAME, files)
        self._log_starts = OffsetsFile(directory, LOG_START_NAME, files)
        self._uploads = UploadCheckpoint(directory, files)
        self._seal_requests = SealRequest(directory, files)
        self._claims = Claims(directory, files)
        self._reserve = DiskReserve(files, directory, config)
        self._around = Surroundings(files, clock, ids, config, self._reserve, self._checkpoint_sealed)
        self._upkeep = Upkeep(
            clock,
            config,
            self._writers,
            reserve=self._reserve,
            uploads=self._uploads,
            seal_requests=self._seal_requests,
            checkpoint=self.checkpoint,
        )
        self.volume_id = NO_ID

    @classmethod
    def open(
        cls,
        directory: Path | str,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        files: Files | None = None,
        config: LogConfig | None = None,
        read_only: bool = False,
    ) -> LocalLog:
        """The log in ``directory``, created if missing unless ``read_only``; recovered after an unclean stop.

        Raises LockedError (another process has it), NotFoundError (read-only and absent), ConfigError (a directory in
        it is no partition), CorruptionError (its own small files cannot be read). Damaged records never keep a log
        from opening.
        """
        directory, files = Path(directory), files or PosixFiles()
        clock, ids, config = clock or SystemClock(), ids or SystemIds(), config or LogConfig()
        if read_only:
            if not files.is_directory(directory):
                raise NotFoundError(f"there is no log directory {directory}")
            log = cls(directory, files=files, clock=clock, ids=ids, config=config, lock=None)
            log._load_foreign()
            return log
        files.make_directory(directory)
        lock = DirectoryLock(directory, files)
        lock.acquire(clock)
        try:
            log = cls(directory, files=files, clock=clock, ids=ids, config=config, lock=lock)
            log._load()
        except BaseException:
            lock.release()
            raise
        return log

    @property
    def read_only(self) -> bool:
        """Whether this object only reads."""
        return self._directory_lock is None

    @property
    def claims(self) -> Claims:
        """The proofs of being the same volume."""
        return self._claims

    @property
    def uploads(self) -> UploadCheckpoint:
        """``tiered-offset-checkpoint``."""
        return self._uploads

    @property
    def seal_requests(self) -> SealRequest:
        """``tiered-seal-request``."""
        return self._seal_requests

    def topics(self) -> dict[str, TopicInfo]:
        """Topics by name. A read-only log looks at the directory again."""
        self._check_open()
        if self.read_only:
            self._load_foreign()
        return dict(self._topics)

    def partitions(self) -> list[TopicPartition]:
        """All partitions that this directory holds, sorted."""
        self._check_open()
        if self.read_only:
            self._load_foreign()
        return sorted(self._partitions)

    def partition(self, tp: TopicPartition) -> PartitionLog:
        """Raises UnknownTopicError."""
        self._check_open()
        found = self._partitions.get(tp)
        if found is None and self.read_only:
            self._load_foreign()
            found = self._partitions.get(tp)
        if found is None:
            raise UnknownTopicError(f"{self.directory} holds no partition {tp}", hint="`tiered topics list` names them")
        return found

    def create_topic(
        self, name: str, partitions: int = 1, config: TopicConfig | None = None, topic_id: UUID | None = None
    ) -> TopicInfo:
        """A new topic; ``topic_id`` as the catalog knows it, else a random one. ConfigError if the topic exists."""
        self._check_writable()
        check_topic_name(name)
        if partitions < 1:
            raise ConfigError(f"topic {name} needs at least one partition, not {partitions}")
        with self._lock:
            if name in self._topics:
                raise ConfigError(f"topic {name} exists already in {self.directory}")
            while topic_id is None or not usable_id(topic_id):
                topic_id = self._ids.uuid()
            return self._store_topic(TopicInfo(name, topic_id, partitions, config or TopicConfig()))

    def alter_topic(
        self, name: str, properties: Mapping[str, Any] | None = None, *, partitions: int | None = None
    ) -> TopicInfo:
        """Changes settings (Kafka's names) or adds partitions; they are never taken away."""
        self._check_writable()
        with self._lock:
            topic = self._topics.get(name)
            if topic is None:
                raise UnknownTopicError(f"{self.directory} holds no topic {name}")
            count = topic.partitions if partitions is None else partitions
            if count < topic.partitions:
                raise ConfigError(f"topic {name} has {topic.partitions} partitions: they cannot become {count}")
            changed = topic._replace(config=topic.config.replace(properties or {}), partitions=count)
            self._store_topic(changed)
            for tp, writer in self._writers.items():
                if tp.topic == name:
                    writer.configure(changed.config)
            return changed

    def _store_topic(self, topic: TopicInfo) -> TopicInfo:
        """The file first: a crash before the directories exist is finished by the next open."""
        topics = {**self._topics, topic.name: topic}
        write_topics(self.directory, self.files, topics)
        self._topics = topics
        for partition in range(topic.partitions):
            tp = TopicPartition(topic.name, partition)
            if tp not in self._partitions:
                self._adopt(tp, topic, clean=True, recovery_point=0, start=None)
        return topic

    def read_claims(self) -> dict[TopicPartition, ClaimProof]:
        """What this volume can prove (``tiered-claims.json``)."""
        return self._claims.read()

    def write_claim(
        self,
        tp: TopicPartition,
        *,
        token: str | _Same | None = SAME,
        last_append: str | _Same | None = SAME,
        restored_from: tuple[int, int] | _Same | None = SAME,
    ) -> None:
        """Changes parts of one proof, durably; before the root PUT that carries them."""
        self._claims.write(tp, token=token, last_append=last_append, restored_from=restored_from)

    def refresh_uploads(self) -> None:
        """Reads ``tiered-offset-checkpoint`` and hands each partition its part; one ``stat`` while nothing changed."""
        self._check_writable()
        self._upkeep.refresh_uploads()

    def flush(self) -> None:
        """Flushes every partition."""
        self._check_writable()
        for writer in list(self._writers.values()):
            if writer.flushed_offset < writer.end_offset:
                writer.flush()

    def tick(self) -> None:
        """All timers (``local.upkeep``). Call it about once a second; raises the first error, after every step."""
        self._check_writable()
        self._upkeep.tick()

    def checkpoint(self) -> None:
        """Writes recovery points and log starts: what the next open after a crash need not read again."""
        with self._checkpoint_lock:
            writers = list(self._writers.items())
            self._recovery_points.write({tp: writer.flushed_offset for tp, writer in writers})
            starts = {tp: w.log_start for tp, w in writers if w.log_start != w.first_base or w.upload is not None}
            if starts or self.files.state(self._log_starts.path) is not None:
                self._log_starts.write(starts)

    def _checkpoint_sealed(self) -> None:
        """After a seal. An append that succeeded does not fail because of it: an old checkpoint costs a longer scan."""
        try:
            self.checkpoint()
        except TieredError as error:
            LOGGER.warning("checkpoint_failed path=%s error=%s", self.directory, error)

    def close(self) -> None:
        """Flushes, trims and releases everything; a clean close spares the next open its recovery. Idempotent.

        Raises LocalIOError if something could not be made durable, or if a thread hangs in the disk: then the lock is
        kept until the process ends, so that nobody else writes beside it.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._directory_lock is None or os.getpid() != self._pid:
            return
        deadline = self._clock.monotonic() + self.config.close_timeout_ms / 1000
        clean = self._clean
        for writer in self._writers.values():
            clean = writer.close(max(deadline - self._clock.monotonic(), 0.01)) and clean
        try:
            if clean:
                self.checkpoint()
                OffsetsFile(self.directory, REPLICATION_NAME, self.files).write(
                    {tp: writer.end_offset for tp, writer in self._writers.items()}
                )
                mark_clean(self.directory, self.files)
        finally:
            self._directory_lock.release()
        if not clean:
            raise LocalIOError(
                f"{self.directory} was closed, but not everything is durable", hint="the next open recovers it"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _load(self) -> None:
        names = partition_names(self.directory, self.files)
        self.volume_id = ensure_volume(self.directory, self.files, self._ids, self.config)
        clean = take_clean_mark(self.directory, self.files)
        self._topics = read_topics(self.directory, self.files)
        points, starts = self._recovery_points.read(), self._log_starts.read()
        found = {}
        for name in names:
            parsed = parse_partition_dir(name)
            if not parsed.kind:
                found[parsed.tp] = self.directory / name
        for tp, path in found.items():
            topic_id = read_topic_id(path, self.files)
            self._topics[tp.topic] = discovered(self._topics.get(tp.topic), tp, topic_id)
        for topic in self._topics.values():
            for partition in range(topic.partitions):
                tp = TopicPartition(topic.name, partition)
                point = points.get(tp, -1)
                self._adopt(tp, topic, clean=clean, recovery_point=point, start=starts.get(tp))
        for tp in self._claims.read():
            if tp in self._writers and self._writers[tp].upload is None:
                self._writers[tp].upload = PartitionUpload(0)
        self.refresh_uploads()
        self.checkpoint()

    def _adopt(
        self, tp: TopicPartition, topic: TopicInfo, *, clean: bool, recovery_point: int, start: int | None
    ) -> None:
        path = self.directory / partition_dir(tp)
        writer = open_writer(self._around, path, tp, topic, clean=clean, recovery_point=recovery_point, start=start)
        self._writers[tp] = writer
        self._partitions[tp] = writable_log(self._around, writer)

    def _load_foreign(self) -> None:
        """Finds partitions of a directory that somebody else writes; those known already are kept."""
        with self._lock:
            meta = read_volume(self.directory, self.files)
            self.volume_id = (meta.directory_id if meta else None) or NO_ID
            self._topics = read_topics(self.directory, self.files)
            ours = set(self._topics)
            starts = self._log_starts.read()
            present = set()
            for name in partition_names(self.directory, self.files):
                try:
                    parsed = parse_partition_dir(name)
                except ConfigError as error:
                    LOGGER.warning("directory_skipped path=%s error=%s", self.directory / name, error)
                    continue
                if parsed.kind:
                    continue
                tp, path = parsed.tp, self.directory / name
                topic = discovered(self._topics.get(tp.topic), tp, read_topic_id(path, self.files))
                self._topics[tp.topic] = topic
                present.add(tp)
                if tp not in self._partitions:
                    self._partitions[tp] = foreign_log(
                        self._around,
                        path,
                        tp,
                        topic,
                        ours=tp.topic in ours,
                        start=starts.get(tp, 0),
                        upload=partial(self._upload_of, tp),
                        recovery_point=partial(self._recovery_point_of, tp),
                    )
            for tp in set(self._partitions) - present:
                del self._partitions[tp]

    def _upload_of(self, tp: TopicPartition) -> PartitionUpload | None:
        return self._uploads.read().get(tp)

    def _recovery_point_of(self, tp: TopicPartition) -> int:
        return self._recovery_points.read().get(tp, 0)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.directory} was closed before")
        if os.getpid() != self._pid:
            raise ForkedLogError(
                f"{self.directory} was opened by process {self._pid}, this is its fork {os.getpid()}",
                hint="open the log in the child, after the fork",
            )

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise ConfigError(f"{self.directory} was opened read-only", hint="open it for writing")
