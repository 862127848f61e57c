"""The topics of a log directory that this process writes: found at an open, made, changed, deleted.

Each step is durable before the next. States after a crash, and how the next open continues::

    create   tiered-topics.json names the topic        -> missing directories are made
    delete   json: the topic is "leaving"              -> its directories are renamed, then removed
             some directories renamed, some not        -> the same

A directory that is deleted is renamed to ``{topic}-{p}.{uuid}-delete``, and removed when its delay is over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from tiered.arguments import partition_count
from tiered.clock import IdSource
from tiered.config import TopicConfig
from tiered.errors import ConfigError, TieredError, UnknownTopicError
from tiered.format.kernels import PlainLock
from tiered.format.keys import check_topic_name
from tiered.format.local_names import partition_dir, renamed_dir
from tiered.local.directory.checkpoints import StoredCheckpoints
from tiered.local.directory.read_only_log import STRANGE_HINT, DirectoryView, gone_partitions
from tiered.local.disk.directory_files import usable_id
from tiered.local.disk.files import Files, disk_failed
from tiered.local.disk.partition_files import gone_error
from tiered.local.disk.topics import (
    TopicInfo,
    find_topics,
    read_leaving,
    read_topics,
    write_topics,
)
from tiered.local.disk.uploader_files import uploader_lock
from tiered.local.partition.context import DirectoryContext
from tiered.local.partition.open_partitions import Roster, Sleeper
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")


class Inventory(NamedTuple):
    """Topics and partitions of a log directory at an open. ``present``: partitions that have a directory.

    ``topics``: by name. ``broken``: the error of each partition that is out of service. ``deleted``: partitions whose
    directories an interrupted deletion of their topic has not renamed. ``leaving``: names of the renamed ones.
    """

    topics: dict[str, TopicInfo]
    present: set[TopicPartition]
    broken: dict[TopicPartition, TieredError]
    deleted: list[TopicPartition]
    leaving: list[str]


def read_inventory(directory: Path, files: Files, tiered: Collection[TopicPartition] = ()) -> Inventory:
    """Return the topics and partitions of a log directory. ``tiered``: the partitions that a bucket knows.

    Raises ConfigError if a directory with segments is not named after a partition. Raises CorruptionError for a damaged
    ``tiered-topics.json``, LocalIOError for a failed disk.
    """
    seen = read_strictly(directory, files)
    gone = read_leaving(directory, files) - read_topics(directory, files).keys()
    deleted = [tp for tp in seen.partitions if tp.topic in gone]
    present = seen.partitions.keys() - set(deleted)
    topics, broken = find_topics(directory, files, sorted(present), tiered=tiered)
    for error in broken.values():
        if disk_failed(error):  # not an error of one partition: nothing is written there
            raise error
    return Inventory(topics, present, broken, deleted, [folder.name for folder in seen.renamed("delete")])


def read_strictly(directory: Path, files: Files) -> DirectoryView:
    """Return the partition directories in ``directory``. Raise ConfigError if segments are in any other directory.

    The error lists these directories, which Kafka refuses, too. Directories named ``-stray`` are only logged.
    """
    seen = DirectoryView.read(directory, files)
    bad = [folder.name for folder in seen.strange]
    if bad:
        raise ConfigError(
            f"{directory} has segments in directories that are not named topic-partition: "
            + ", ".join(map(repr, bad[:20])),
            hint=STRANGE_HINT,
        )
    stray = [folder.name for folder in seen.renamed("stray")]
    if stray:
        LOGGER.warning("stray_directories path=%s names=%s hint=kept, never loaded", directory, stray)
    return seen


def finish_deletions(
    directory: Path, files: Files, leaving: LeavingDirectories, deleted: Iterable[TopicPartition]
) -> None:
    """Finish interrupted deletions of topics: rename the directories of the partitions ``deleted``."""
    if read_leaving(directory, files):
        for tp in deleted:
            leaving.rename(tp, 0)
        write_topics(directory, files, read_topics(directory, files))


def open_partitions(
    roster: Roster, found: Inventory, noted: StoredCheckpoints, *, clean: bool, tiered: Collection[TopicPartition]
) -> None:
    """Add the partitions ``found`` to ``roster``, and open them. ``noted``: the checkpoints.

    After a clean shutdown, a partition with a recovery point is opened only at its first use. A partition in ``broken``
    is out of service. So is one that had records and has no directory: an empty directory would assign the offsets of
    those records again. A partition whose deletion, move or rejoin was interrupted is not mistaken for a lost one.
    ``tiered``: the partitions that a bucket knows.
    """
    for tp, end in gone_partitions(found.topics.values(), found.present, noted.points).items():
        found.broken[tp] = gone_error(roster.directory, tp, end, tiered=tp in tiered)
    for topic in found.topics.values():
        for number in topic.here:
            tp = TopicPartition(topic.name, number)
            point, start = noted.point(tp), noted.starts.get(tp)
            if not (clean or tp in found.broken) and (emptied := roster.emptied(tp, Sleeper(point, start))) is not None:
                found.broken[tp] = emptied
            if tp in found.broken:
                LOGGER.error("partition_out_of_service partition=%s error=%s", tp, found.broken[tp])
                roster.add_out_of_service(tp, found.broken[tp], Sleeper(point, start))
            elif clean and tp in found.present and point >= 0:
                roster.add_sleeping(tp, Sleeper(point, start))
            else:
                roster.adopt(tp, clean=clean, recovery_point=point, start=start)


class LeavingDirectories:
    """Renamed directories that are removed when their delay is over. Thread-safe.

    Directories that an earlier process renamed are removed without delay.
    """

    def __init__(self, directory: Path, files: Files, ids: IdSource) -> None:
        self._directory = directory
        self._files = files
        self._ids = ids
        self._lock = PlainLock()
        self._due: dict[Path, int] = {}

    def rename(self, tp: TopicPartition, due_ms: int) -> Path:
        """Rename the partition's directory, durably, and return its new path.

        :meth:`remove_due` removes it after ``due_ms`` (wall clock). The caller has closed all files in the directory.
        """
        source = self._directory / partition_dir(tp)
        target = self._directory / renamed_dir(tp, self._ids.uid(), "delete")
        self._files.rename(source, target)
        self._files.sync_directory(self._directory)
        with self._lock:
            self._due[target] = due_ms
        return target

    def found(self, names: Iterable[str]) -> None:
        """Add directories that an earlier process renamed, for removal without delay."""
        with self._lock:
            self._due.update((self._directory / name, 0) for name in names)

    def remove_due(self, now_ms: int) -> int | None:
        """Remove the directories whose delay is over. Return the bytes removed, None if no directory was due.

        ``now_ms``: wall clock. A failed removal is retried by the next call. The first error is raised after all
        removals were tried.
        """
        with self._lock:
            due = [path for path, due_ms in self._due.items() if due_ms <= now_ms]
        first: TieredError | None = None
        size = 0
        for path in due:
            try:
                size += remove_tree(self._files, path)
            except TieredError as error:
                first = first or error
                continue
            with self._lock:
                self._due.pop(path, None)
            LOGGER.info("directory_removed path=%s", path)
        if first is not None:
            raise first
        return size if due else None


def remove_tree(files: Files, path: Path) -> int:
    """Remove a partition directory and the files in it. Return the bytes removed."""
    size = 0
    for name in files.names(path):
        state = files.state(path / name)
        size += state.size if state is not None else 0
        files.unlink(path / name)
    files.remove_directory(path)
    return size


class TopicRegistry:
    """Topics of one directory: the file ``tiered-topics.json`` and the changes to it. Thread-safe.

    ``checkpoint``: called to write the offset checkpoints after partitions were added or removed.
    """

    def __init__(
        self, around: DirectoryContext, roster: Roster, *, leaving: LeavingDirectories, checkpoint: Callable[[], None]
    ) -> None:
        self.topics: dict[str, TopicInfo] = {}
        self._directory = roster.directory
        self._files = around.files
        self._clock = around.clock
        self._ids = around.ids
        self._config = around.config
        self._roster = roster
        self._leaving = leaving
        self._uploads = around.uploads
        self._claims = around.claims
        self._checkpoint = checkpoint
        self._leaves = set[str]()  # topics whose deletion has begun, and failed: the next open ends it
        self.failed_creations: dict[str, TopicInfo] = {}  # a retry must use the id of the topic
        self._lock = threading.RLock()

    def create(
        self, name: str, partitions: int, config: TopicConfig, topic_id: UUID | None, held: Collection[int] | None
    ) -> TopicInfo:
        """Create a topic and return it. ``topic_id`` None: a random id, or the id of an earlier failed creation.

        ``held``: numbers of the partitions that this directory gets, None for all.
        """
        check_topic_name(name)
        partitions = partition_count(name, partitions)
        with self._lock:
            if name in self.topics:
                raise ConfigError(f"topic {name} exists already in {self._directory}", hint="open it: log.topic(name)")
            if name in self._leaves:
                raise ConfigError(
                    f"topic {name} cannot be created: its deletion in {self._directory} is not finished",
                    hint="open the log again: the open finishes the deletion",
                )
            begun = self.failed_creations.get(name)
            topic_id = topic_id or (None if begun is None else begun.topic_id)
            while topic_id is None or not usable_id(topic_id):
                topic_id = self._ids.uuid()
            made = self.store(TopicInfo(name, topic_id, partitions, config, None if held is None else frozenset(held)))
            self.failed_creations.pop(name, None)
            return made

    def alter(self, name: str, properties: Mapping[str, Any], partitions: int | None) -> TopicInfo:
        """Change settings, and raise the number of partitions to ``partitions`` (None: no change)."""
        with self._lock:
            topic = self._known(name)
            count = topic.partitions if partitions is None else partition_count(name, partitions)
            if count < topic.partitions:
                raise ConfigError(
                    f"topic {name} has {topic.partitions} partitions: they cannot become {count}",
                    hint="partitions can only be added, as in Kafka",
                )
            changed = self.store(topic._replace(config=topic.config.replace(properties), partitions=count))
            for writer in self._roster.awake():
                if writer.tp.topic == name:
                    writer.configure(changed.config)
            return changed

    def store(self, topic: TopicInfo) -> TopicInfo:
        """Write ``topic`` to the file, then create its missing partition directories. Return ``topic``.

        After a crash, the next open creates the directories.
        """
        with self._lock:
            before, topics = self.topics, {**self.topics, topic.name: topic}
            self._write(topics)
            self.topics = topics
            here = (TopicPartition(topic.name, number) for number in topic.here)
            fresh = [tp for tp in here if tp not in self._roster]
            try:
                for tp in fresh:
                    self._roster.adopt(tp, clean=True, recovery_point=0, start=None)
            except BaseException:  # a full disk, an interrupt: a retry uses the id that is in the file
                self.topics, self.failed_creations[topic.name] = before, topic
                raise
            if fresh:  # a partition without recovery point counts as durable up to its last segment
                self._checkpoint()
            return topic

    def delete(self, name: str) -> list[Path]:
        """Remove the topic from the file, rename its directories ``-delete``, and return their new paths."""
        with self._lock:
            topic = self._known(name)
            gone = [TopicPartition(name, number) for number in topic.here]
            tiered = not {*self._uploads.read(), *self._claims.read()}.isdisjoint(gone)
            guard = uploader_lock(self._directory, self._files).held_while(self._clock) if tiered else nullcontext()
            with guard:
                rest = {other: info for other, info in self.topics.items() if other != name}
                self._leaves.add(name)
                self._write(rest)
                self.topics = rest
                due_ms = self._clock.now_ms() + topic.config.file_delete_delay_ms
                renamed = []
                for tp in gone:
                    self._roster.forget(tp, self._config.close_timeout_ms / 1000)
                    if self._files.is_directory(self._directory / partition_dir(tp)):  # the directory may be missing
                        renamed.append(self._leaving.rename(tp, due_ms))
                self.forget(gone)
                self._leaves.remove(name)
                self._write(rest)
        LOGGER.info("topic_deleted path=%s topic=%s partitions=%d", self._directory, name, len(gone))
        return renamed

    def release(self, tp: TopicPartition) -> TopicInfo:
        """Remove ``tp`` from the topic's entry, because it moved away. Return the topic with its remaining partitions.

        The caller has closed ``tp``. Its directory, if it still exists, is renamed ``-delete``. Raises
        UnknownTopicError.
        """
        with self._lock:
            topic = self._known(tp.topic)
            rest = topic._replace(held=frozenset(topic.here) - {tp.partition})
            topics = {**self.topics, rest.name: rest}
            self._write(topics)
            self.topics = topics
            there = self._files.is_directory(self._directory / partition_dir(tp))
            if there:
                self._leaving.rename(tp, self._clock.now_ms() + rest.config.file_delete_delay_ms)
            self.forget([tp])
            return rest

    def adopt(self, topic: TopicInfo, tp: TopicPartition, *, log_start: int, recovery_point: int) -> None:
        """Open ``tp``, which was moved to this directory, and store ``topic``. All its files are durable already."""
        with self._lock:
            self.topics = {**self.topics, topic.name: topic}
            self._roster.adopt(tp, clean=True, recovery_point=recovery_point, start=log_start)
            self.store(topic)
            self._checkpoint()

    def forget(self, gone: Collection[TopicPartition]) -> None:
        """Remove the entries of the partitions ``gone`` from claims and checkpoints.

        The partitions were deleted or moved away. New partitions of the same names must not get their entries.
        """
        self._uploads.forget(gone)
        self._claims.forget(gone)
        self._checkpoint()

    def _write(self, topics: Mapping[str, TopicInfo]) -> None:
        write_topics(self._directory, self._files, topics, leaving=self._leaves)

    def _known(self, name: str) -> TopicInfo:
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicError(
                f"{self._directory} holds no topic {name}", hint="`tiered topic list` lists the topics"
            )
        return topic
