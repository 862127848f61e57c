"""One log over its directories, as a broker's ``log.dirs``: each has its own lock, id and checkpoints.

With a single directory, calls and errors pass through unchanged, and a failed disk fails the log.

A new partition goes to the directory with the fewest partitions. A directory whose disk fails goes offline with its
partitions; the others stay in service. To a bucket each directory is a volume with its own claims and uploader.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from tiered.arguments import partition_count
from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.config import LogConfig, TopicConfig
from tiered.errors import ConfigError, CorruptionError, LocalIOError, NotFoundError, TieredError, UnknownTopicError
from tiered.format.checkpoint import encode_uuid
from tiered.format.keys import check_topic_name
from tiered.local.directory.log_directory import LocalLog, offline_error
from tiered.local.directory.moving import finish_moves, move
from tiered.local.directory.tasks import InlineWorkers, Workers
from tiered.local.disk.directory_files import META_PROPERTIES_NAME, read_volume, usable_id
from tiered.local.disk.fd_pool import PooledFiles, default_open_files
from tiered.local.disk.files import Files, PosixFiles
from tiered.local.disk.lock import LockTerms
from tiered.local.disk.topics import TopicInfo
from tiered.local.partition.write_log import WriteLog
from tiered.local.transactions.coordinator import Transactions
from tiered.local.transactions.state_log import ProducerIds
from tiered.metrics import Metric
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")


class LocalTier:
    """Log over one or several log directories, each of them a :class:`LocalLog`. Thread-safe.

    ``offline``: the error of each directory that failed, at the open or later. A log with a single directory leaves
    it empty: there an error at the open is raised, and :attr:`LocalLog.offline` has a later one.
    """

    def __init__(self, directories: Sequence[Path], *, clock: Clock, ids: IdSource, config: LogConfig) -> None:
        self.directories = list(directories)
        self.config = config
        self.offline: dict[Path, TieredError] = {}
        self._clock = clock
        self._ids = ids
        self._logs: dict[Path, LocalLog] = {}
        self._only: LocalLog | None = None  # the one directory, unless the log has several
        self._unseen: set[Path] = set()
        self._half_made: set[str] = set()  # topics of which a part could not be made

    @classmethod
    def open(
        cls,
        directories: Sequence[Path | str],
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        files: Files | None = None,
        config: LogConfig | None = None,
        workers: Callable[[], Workers] = InlineWorkers,
        lock_patience_seconds: float = 0.0,
    ) -> LocalTier:
        """Open all directories for writing, and create missing ones. A directory whose disk fails is offline.

        ``workers`` is called once for each directory, and makes the threads of its cleaner. ``lock_patience_seconds``:
        longest wait for a process that holds the lock only for a moment, such as an uploader that seals.

        Raises the errors of :meth:`LocalLog.open`, LocalIOError if all directories are offline. Raises ConfigError: no
        directory, the same one twice, a partition in two, a topic with two ids, two directories with one id.
        """
        paths = [Path(path) for path in directories]
        if not paths:
            raise ConfigError("no log directory was named", hint="pass the path of at least one directory")
        if len({path.resolve() for path in paths}) < len(paths):
            raise ConfigError(
                f"the same log directory is named twice: {', '.join(map(str, paths))}", hint="pass each directory once"
            )
        config = config or LogConfig()
        logs = cls(paths, clock=clock or SystemClock(), ids=ids or SystemIds(), config=config)
        if len(paths) == 1:
            only = logs._open(paths[0], files, workers(), lock_patience_seconds)
            logs._only, logs._logs, logs.transactions = only, {paths[0]: only}, only.transactions
            return logs
        pool = PooledFiles(files or PosixFiles(), config.max_open_files or default_open_files())
        try:
            _need_own_ids(paths, pool)
            for path in paths:
                try:
                    logs._logs[path] = logs._open(path, pool, workers(), lock_patience_seconds)
                except LocalIOError as error:
                    LOGGER.error("directory_offline path=%s error=%s", path, error)
                    logs.offline[path] = error
                    logs._unseen.add(path)
            if not logs._logs:
                raise next(iter(logs.offline.values()))
            logs._check_topics()
            finish_moves([*logs._logs.values()], logs.topics(), timeout_seconds=logs.config.close_timeout_ms / 1000)
            logs._share_transactions(pool)
        except BaseException:
            for log in logs._logs.values():
                log.close()
            raise
        return logs

    def _share_transactions(self, files: Files) -> None:
        """Give all directories one coordinator. If one was not closed cleanly, end the unfinished transactions now."""
        ids = ProducerIds(list(self._logs), files, self._ids)
        shared = Transactions(self, ids, self._clock, sees_all=lambda: not self._unseen)
        for log in self._logs.values():
            log.transactions = shared
        self.transactions = shared
        if not all(log.was_clean for log in self._logs.values()):
            shared.recover()

    def _open(self, path: Path, files: Files | None, workers: Workers, lock_patience_seconds: float) -> LocalLog:
        return LocalLog.open(
            path,
            clock=self._clock,
            ids=self._ids,
            files=files,
            config=self.config,
            alone=len(self.directories) == 1,
            workers=workers,
            terms=LockTerms(lock_patience_seconds),
        )

    @property
    def directory(self) -> Path:
        """Return the path of the first directory, by which messages name the log."""
        return self.directories[0]

    @property
    def volume_id(self) -> UUID:
        """Return the id of the first directory that is in service. Raises LocalIOError if all are offline."""
        return self._online()[0].volume_id

    def logs(self) -> dict[Path, LocalLog]:
        """Return the :class:`LocalLog` of each directory that was opened, even if it went offline since."""
        return dict(self._logs)

    def topics(self) -> dict[str, TopicInfo]:
        """Return the topics by name, over all directories."""
        if self._only is not None:
            return self._only.topics()
        found: dict[str, TopicInfo] = {}
        for log in self._logs.values():
            for name, info in log.topics().items():
                before = found.get(name)
                count = max(info.partitions, before.partitions if before else 0)
                found[name] = info._replace(partitions=count, held=None)
        return found

    def partitions(self) -> list[TopicPartition]:
        """Return all partitions of opened directories, sorted, also those of directories that went offline since."""
        if self._only is not None:
            return self._only.partitions()
        return sorted(tp for log in self._logs.values() for tp in log.partitions())

    def is_elsewhere(self, tp: TopicPartition) -> bool:
        """Return True if another broker must have this partition: a broker made its topic, no directory here has it.

        Return False if a directory could not be opened.
        """
        info = self.topics().get(tp.topic)
        return not self._unseen and info is not None and info.adopted and tp not in self.partitions()

    @property
    def out_of_service(self) -> dict[TopicPartition, TieredError]:
        """Return the error of each partition that the open took out of service, over all opened directories."""
        return {tp: why for log in self._logs.values() for tp, why in log.out_of_service.items()}

    def awake(self) -> list[WriteLog]:
        """Return the partitions of directories in service that are open for writing now."""
        return [writer for log in self._online() for writer in log.awake()]

    def directory_of(self, tp: TopicPartition) -> Path:
        """Return the directory of a partition. Raises UnknownTopicError if no opened directory has it."""
        for path, log in self._logs.items():
            if tp in log.roster:
                return path
        where = ", ".join(map(str, self.directories))
        lost = f"; {', '.join(map(str, sorted(self._unseen)))} could not be opened" if self._unseen else ""
        raise UnknownTopicError(f"partition {tp} is not in {where}{lost}", hint="`tiered topic list` lists the topics")

    def partition(self, tp: TopicPartition) -> WriteLog:
        """Return a partition; its first use opens it. Raises LocalIOError if its directory is offline."""
        if self._only is not None:
            return self._only.partition(tp)
        path = self.directory_of(tp)
        self._check(path)
        return self._logs[path].partition(tp)

    def create_topic(
        self, name: str, partitions: int = 1, config: TopicConfig | None = None, topic_id: UUID | None = None
    ) -> TopicInfo:
        """Create a topic. Each partition goes to the directory in service that has the fewest partitions.

        ``topic_id``: its id in the catalog; None makes a random one. Raises ConfigError if the topic exists, or if a
        directory that may contain it could not be opened. After a DiskFullError the same call completes the topic.
        """
        if self._only is not None:
            return self._only.create_topic(name, partitions, config, topic_id)
        partitions = partition_count(check_topic_name(name), partitions)
        if self._unseen:
            raise ConfigError(
                f"topic {name} is not created: it may exist in {sorted(self._unseen)[0]}, which could not be opened",
                hint="repair that disk, or open the log without that directory",
            )
        topic = self.topics().get(name)
        # After a full disk stopped the creation of a topic, a call with the same values completes it.
        same = topic is not None and topic.partitions == partitions and topic_id in (None, topic.topic_id)
        if topic is not None and not (same and name in self._half_made):
            raise ConfigError(f"topic {name} exists already in {self.directory}", hint="open it: log.topic(name)")
        begun = (log.registry.failed_creations.get(name) for log in self._logs.values())
        topic_id = topic_id or next((each.topic_id for each in begun if each is not None), None)
        while topic_id is None or not usable_id(topic_id):
            topic_id = self._ids.uuid()
        topic = topic or TopicInfo(name, topic_id, partitions, config or TopicConfig())
        self._half_made.add(name)
        self._place(topic, self._missing(topic))
        self._half_made.discard(name)
        return self.topics()[name]

    def _place(self, topic: TopicInfo, numbers: Sequence[int]) -> None:
        counts = {log.directory: len(log.partitions()) for log in self._online()}
        held: dict[Path, list[int]] = {}
        for number in numbers:
            path = self._earlier_directory(topic.name, number) or min(counts, key=lambda candidate: counts[candidate])
            counts[path] += 1
            held.setdefault(path, []).append(number)
        for path, here in held.items():
            log = self._logs[path]
            try:
                known = log.topics().get(topic.name)
                before = frozenset(known.here) if known else frozenset[int]()
                if known is None:
                    log.create_topic(topic.name, topic.partitions, topic.config, topic.topic_id, held=here)
                else:
                    log.registry.store(topic._replace(held=before | frozenset(here)))
            except LocalIOError as error:
                self._set_offline(path, error)
                self._place(topic, here)

    def _missing(self, topic: TopicInfo) -> list[int]:
        """Return the numbers of the partitions of ``topic`` that no directory has yet."""
        infos = (log.topics().get(topic.name) for log in self._logs.values())
        held = {number for info in infos if info is not None for number in info.here}
        return [number for number in range(topic.partitions) if number not in held]

    def _earlier_directory(self, name: str, number: int) -> Path | None:
        """Return the directory in which an earlier creation of partition ``number`` failed, None if there is none."""
        for log in self._online():
            topic = log.registry.failed_creations.get(name)
            if topic is not None and number in topic.here:
                return log.directory
        return None

    def alter_topic(
        self, name: str, properties: Mapping[str, Any] | None = None, *, partitions: int | None = None
    ) -> TopicInfo:
        """Change settings, or raise the number of partitions to ``partitions``. Return the changed topic.

        Raises LocalIOError while one of the topic's directories is offline. Raises ConfigError if a directory could not
        be opened and ``partitions`` is given.
        """
        if self._only is not None:
            return self._only.alter_topic(name, properties, partitions=partitions)
        topic = self.topics().get(name)
        if topic is None:
            raise UnknownTopicError(
                f"{self.directory} holds no topic {name}", hint="`tiered topic list` lists the topics"
            )
        holders = [log for log in self._logs.values() if name in log.topics()]
        for log in holders:
            self._check(log.directory)
        if partitions is not None and self._unseen:
            raise ConfigError(
                f"no partitions are added to topic {name}: {sorted(self._unseen)[0]} could not be opened and "
                "may contain some",
                hint="repair that disk, or open the log without that directory",
            )
        count = topic.partitions if partitions is None else partition_count(name, partitions)
        for log in holders:
            info = log.topics()[name]
            log.registry.store(info._replace(held=frozenset(info.here)))
            log.alter_topic(name, properties, partitions=count)
        if partitions is not None:  # also those that an attempt before could not make, as a disk was full
            self._place(self.topics()[name], self._missing(self.topics()[name]))
        return self.topics()[name]

    def delete_topic(self, name: str) -> list[Path]:
        """Delete the topic in every opened directory, as :meth:`LocalLog.delete_topic`. Return the renamed directories.

        Raises LocalIOError if one of the topic's directories went offline.
        """
        if self._only is not None:
            return self._only.delete_topic(name)
        holders = [log for log in self._logs.values() if name in log.topics()]
        if not holders:
            raise UnknownTopicError(
                f"{self.directory} holds no topic {name}", hint="`tiered topic list` lists the topics"
            )
        for log in holders:
            self._check(log.directory)
        return [path for log in holders for path in log.delete_topic(name)]

    def move(self, tp: TopicPartition, directory: Path | str) -> None:
        """Move a partition to ``directory``, another directory of this log. No other thread may use the log meanwhile.

        Raises ConfigError if the partition is there already, or tiered, because its claim is of its old directory.
        """
        source, target = self.directory_of(tp), Path(directory)
        if target not in self._logs:
            raise ConfigError(
                f"{tp} cannot move: {target} is none of this log's directories",
                hint=f"its directories are {', '.join(map(str, self._logs))}",
            )
        if source == target:
            raise ConfigError(f"{tp} is in {target} already")
        self._check(source)
        self._check(target)
        log = self._logs[source]
        if tp in log.claims.read() or tp in log.uploads.read():
            raise ConfigError(
                f"{tp} cannot move: it is tiered, and the bucket identifies its log directory",
                hint="`tiered restore` builds it in another directory from the bucket",
            )
        seconds = self.config.close_timeout_ms / 1000
        try:
            move(log, self._logs[target], tp, uid=self._ids.uid(), timeout_seconds=seconds)
        finally:
            self._check_for_failures()

    def metrics(self) -> list[Metric]:
        """Return the current metrics of all opened directories."""
        return [each for log in self._logs.values() for each in log.metrics()]

    def flush(self) -> None:
        """Flush every directory in service, then raise the first error."""
        self._each(LocalLog.flush)

    def tick(self) -> None:
        """Run all due tasks of every directory in service, then raise the first error."""
        self._each(LocalLog.tick)

    def note_positions(self) -> None:
        """Write the positions of groups for the uploaders of all directories in service."""
        self._each(LocalLog.note_positions)

    def refresh_uploads(self) -> None:
        """Read the uploader's checkpoint of every directory in service, and pass each open partition its entry."""
        self._each(LocalLog.refresh_uploads)

    def deferring_checkpoints(self) -> AbstractContextManager[object]:
        """Return a context manager that writes the recovery points of directories in service once, at its end."""
        if self._only is not None:
            return self._only.deferring_checkpoints()
        stack = contextlib.ExitStack()
        for log in self._online():
            stack.enter_context(log.deferring_checkpoints())
        return stack

    def check_caller(self) -> None:
        """Raise ReentrantCallError if this thread is inside another call for which :meth:`close` would have to wait."""
        for log in self._logs.values():
            log.check_caller()

    def close(self) -> None:
        """Abort open transactions, close all directories, then raise the first error of one that was in service."""
        if self._only is not None:
            self._only.close()
            return
        self.check_caller()
        self.transactions.close(self.config.close_timeout_ms / 1000)
        with contextlib.suppress(TieredError):  # while all are open
            self.note_positions()
        first: TieredError | None = None
        for path, log in self._logs.items():
            try:
                log.close()
            except TieredError as error:
                if path not in self.offline:
                    first = first or error
        if first is not None:
            raise first

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _online(self) -> list[LocalLog]:
        found = [log for path, log in self._logs.items() if path not in self.offline]
        if not found:
            raise LocalIOError(
                f"all log directories are offline: {', '.join(map(str, self.directories))}",
                hint="repair the disks, then open the log again",
            )
        return found

    def _check(self, path: Path) -> None:
        error = self.offline.get(path)
        if error is not None:
            raise offline_error(path, error)

    def _each(self, work: Callable[[LocalLog], None]) -> None:
        first: TieredError | None = None
        for log in self._online():
            try:
                work(log)
            except TieredError as error:
                first = first or error
        self._check_for_failures()
        if first is not None:
            raise first

    def _check_for_failures(self) -> None:
        """Take each directory offline whose disk failed in an append or on a worker.

        A log with a single directory is left as it is: that directory is offline already.
        """
        if self._only is not None:
            return
        for path, log in self._logs.items():
            if log.offline is not None and path not in self.offline:
                self._set_offline(path, log.offline)

    def _set_offline(self, path: Path, error: TieredError) -> None:
        LOGGER.error("directory_offline path=%s error=%s", path, error)
        self.offline[path] = error
        self._logs[path].roster.go_offline(error)
        with contextlib.suppress(TieredError):  # the disk may refuse this, too
            self._logs[path].note_status()

    def _check_topics(self) -> None:
        holders: dict[TopicPartition, Path] = {}
        topics: dict[str, TopicInfo] = {}
        for path, log in self._logs.items():
            for tp in log.partitions():
                other = holders.setdefault(tp, path)
                if other != path:
                    raise ConfigError(
                        f"{tp} is in two log directories: {other} and {path}",
                        hint="move the older or shorter copy out of its log directory, then open the log again",
                    )
            for name, info in log.topics().items():
                known = topics.setdefault(name, info)
                if known.topic_id != info.topic_id:
                    raise ConfigError(
                        f"topic {name} has two ids: {known.topic_id} in one log directory, {info.topic_id} in {path}",
                        hint="open the log without the directory that has the wrong topic",
                    )


def check_paths(paths: Sequence[Path], *, create: bool) -> list[Path]:
    """Return ``paths`` as a list. Raises NotFoundError if none of them has a log and ``create`` is False."""
    if not create and not any((each / META_PROPERTIES_NAME).exists() for each in paths):
        lost = next((each for each in paths if any(each.glob("*-*/*.log"))), None)
        if lost is not None:
            raise NotFoundError(
                f"{lost / META_PROPERTIES_NAME} is missing, and {lost} has partitions",
                hint="put the file back, or create=True makes it with another id; `tiered repair rejoin` then lets "
                "partitions of a bucket go on",
            )
        raise NotFoundError(
            f"there is no log in {', '.join(map(str, paths))}",
            hint="create=True makes one; restore rebuilds a lost one",
        )
    return list(paths)


def _need_own_ids(paths: Sequence[Path], files: Files) -> None:
    """Raise ConfigError if two directories have the same ``directory.id``: one is a copy. Skip unreadable ids."""
    seen: dict[UUID, Path] = {}
    for path in paths:
        try:
            meta = read_volume(path, files)
        except (CorruptionError, LocalIOError):
            continue
        if meta is None or meta.directory_id is None:
            continue
        other = seen.setdefault(meta.directory_id, path)
        if other != path:
            raise ConfigError(
                f"{other} and {path} have the same directory.id, {encode_uuid(meta.directory_id)}, in their "
                f"{META_PROPERTIES_NAME}: one is a copy of the other",
                hint=f"leave the copy out; to use it as a separate directory, move its {META_PROPERTIES_NAME} "
                "away: the next open writes another id",
            )
