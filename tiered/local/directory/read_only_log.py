"""Read-only view of a log directory, which another process or a Kafka broker may be writing.

Only this module derives the contents of a log directory from the names in it. It locks and changes no file. A listed
file may therefore be gone when it is opened.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self
from uuid import UUID

from tiered.clock import Clock, SystemClock
from tiered.config import LogConfig
from tiered.errors import (
    ClosedError,
    ConfigError,
    CorruptionError,
    LocalIOError,
    LogDestroyedError,
    NewerFormatError,
    NotFoundError,
    TieredError,
)
from tiered.format.local_names import parse_local_name, parse_partition_dir, partition_dir
from tiered.local.disk.claims import Claims
from tiered.local.disk.directory_files import (
    LOG_START_NAME,
    META_PROPERTIES_NAME,
    NO_ID,
    RECOVERY_POINT_NAME,
    OffsetsFile,
    read_volume,
)
from tiered.local.disk.files import Files, PosixFiles, no_directory
from tiered.local.disk.lock import forked_error
from tiered.local.disk.partition_files import gone_error, has_lost_logs, no_partition
from tiered.local.disk.topics import (
    BROKER_OWN_DIRS,
    PARTITION_METADATA_NAME,
    TopicInfo,
    expected_topics,
    find_topics,
)
from tiered.local.disk.uploader_files import PartitionUpload, UploadCheckpoint
from tiered.local.partition.read_log import ReadLog
from tiered.local.partition.read_only_partition import ReadContext, ReadOnlyPartition, check_same_topic
from tiered.model import Positions, TopicPartition

LOGGER = logging.getLogger("tiered.local")

_WITHOUT_STARTS = (
    "put it back from a copy. Without one, move it away: logs then start at their first segment, and the deleted "
    "records in it can be read again"
)

STRANGE_HINT = "rename them to topic-partition if they belong to this log; otherwise move them out of the log directory"


class PartitionFolder(NamedTuple):
    """Directory ``name`` of the partition ``tp``.

    ``kind``: ``""`` if the partition is in use. Otherwise the suffix of its name: ``delete`` (to be removed), ``stray``
    (set aside by a broker), ``future`` (a copy that a move is making).
    """

    name: str
    tp: TopicPartition
    kind: str


class StrangeFolder(NamedTuple):
    """Directory that has segments but not the name of a partition. ``refusal``: the error about its name."""

    name: str
    refusal: ConfigError


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """Partition directories in the log directory ``path``, and directories of segments with other names.

    A broker's own directories, and directories without segments such as ``lost+found``, are left out.
    """

    path: Path
    folders: tuple[PartitionFolder | StrangeFolder, ...]

    @classmethod
    def read(cls, path: Path, files: Files) -> DirectoryView:
        """Return the view of the log directory ``path`` as it is now.

        Raises NotFoundError if it is missing, LocalIOError if it cannot be listed.
        """
        names = (name for name in files.names(path) if name not in BROKER_OWN_DIRS)
        found = ((name, folder_named(name)) for name in names)
        return cls(path, tuple(folder for name, folder in found if _is_of_a_log(files, path / name, folder)))

    @property
    def partitions(self) -> dict[TopicPartition, Path]:
        """Return the directory of each partition that is in use."""
        return {folder.tp: self.path / folder.name for folder in self.renamed("")}

    def renamed(self, kind: str) -> list[PartitionFolder]:
        """Return the partition directories of one ``kind``: ``delete``, ``stray``, ``future``, or ``""`` (in use)."""
        return [folder for folder in self.folders if isinstance(folder, PartitionFolder) and folder.kind == kind]

    @property
    def strange(self) -> list[StrangeFolder]:
        """Return the directories that have segments but not the name of a partition."""
        return [folder for folder in self.folders if isinstance(folder, StrangeFolder)]


def folder_named(name: str) -> PartitionFolder | StrangeFolder:
    """Parse the name of a directory. Return StrangeFolder if it does not name a partition. Reads no disk."""
    try:
        parsed = parse_partition_dir(name)
    except ConfigError as refusal:
        return StrangeFolder(name, refusal)
    return PartitionFolder(name, parsed.tp, parsed.kind)


def holds_partition(files: Files, path: Path) -> bool:
    """Return True if ``path`` is a directory with ``partition.metadata`` or a file of a segment.

    Raises LocalIOError if the directory cannot be listed.
    """
    if files.state(path / PARTITION_METADATA_NAME) is not None:
        return True
    try:
        return any(parse_local_name(name) is not None for name in files.names(path))
    except NotFoundError:  # a file, or it has left
        return False


def _is_of_a_log(files: Files, path: Path, folder: PartitionFolder | StrangeFolder) -> bool:
    if isinstance(folder, PartitionFolder) and folder.kind:
        return files.is_directory(path)  # a deletion has perhaps removed its files already
    try:
        return holds_partition(files, path)
    except LocalIOError:  # a partition that cannot be read is out of service; `lost+found` belongs to root
        return isinstance(folder, PartitionFolder)


class LogView:
    """Read-only view of a log directory. It takes no lock, and others may write. A context manager closes it.

    Thread-safe. :meth:`read` lists the directory again. A partition that was listed before keeps its :class:`ReadLog`
    object. ``volume_id``: the id in ``meta.properties``, zero without that file.
    """

    def __init__(self, directory: Path, files: Files, clock: Clock) -> None:
        self.directory = directory
        self.files = files
        self.claims, self.uploads = Claims(directory, files), UploadCheckpoint(directory, files)
        self.volume_id: UUID = NO_ID
        self._topics: dict[str, TopicInfo] = {}
        self._partitions: dict[TopicPartition, ReadLog] = {}
        self._broken: dict[TopicPartition, TieredError] = {}
        self._unread: set[str] = set()
        self._around = ReadContext(
            files, clock, LogConfig().read_buffer_bytes, self._upload_of, self._recovery_point_of
        )
        self._recovery_points = OffsetsFile(directory, RECOVERY_POINT_NAME, files)
        self._log_starts = OffsetsFile(directory, LOG_START_NAME, files)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False

    @classmethod
    def open(cls, directory: Path | str, *, clock: Clock | None = None, files: Files | None = None) -> Self:
        """Open the directory for reading. Raises NotFoundError if it is missing.

        Raises ConfigError if it is a file, CorruptionError if ``tiered-topics.json`` cannot be read.
        """
        directory, files = Path(directory), files or PosixFiles()
        if not files.is_directory(directory):
            raise no_directory(files, directory, hint="correct the path; tiered.open makes a new log")
        view = cls(directory, files, clock or SystemClock())
        view.read()
        return view

    @property
    def out_of_service(self) -> dict[TopicPartition, TieredError]:
        """Return the error of each partition that could not be read when the directory was last listed."""
        return dict(self._broken)

    def topics(self) -> dict[str, TopicInfo]:
        """List the directory again. Return the topics by name."""
        self._check_open()
        with self._lock:
            self._read()
            return dict(self._topics)

    def partitions(self) -> list[TopicPartition]:
        """List the directory again. Return all partitions, sorted, unreadable ones too."""
        self._check_open()
        with self._lock:
            self._read()
            return sorted({*self._partitions, *self._broken})

    def positions(self) -> tuple[dict[TopicPartition, Positions], dict[TopicPartition, TieredError]]:
        """List the directory again. Return the positions of each readable partition, and the errors of all others.

        A partition that was deleted meanwhile is in neither.
        """
        found, names = dict[TopicPartition, Positions](), self.partitions()
        unreadable = self.out_of_service
        for tp in names:
            if tp not in unreadable:
                try:
                    found[tp] = self.partition(tp).positions()
                except (CorruptionError, LocalIOError, NotFoundError) as error:
                    if not is_partition_gone(self.files, self.directory, tp, error):
                        unreadable[tp] = error
        return found, unreadable

    def partition(self, tp: TopicPartition) -> ReadLog:
        """Return a partition. If it is not known yet, list the directory again first.

        Raises UnknownTopicError, or the partition's error if it is out of service.
        """
        found = self._find(tp)
        if found is None:
            raise no_partition(self.directory, tp)
        return found

    def held(self, tp: TopicPartition) -> ReadLog | None:
        """Return a partition, None if its directory does not exist now. Raises the error of one out of service.

        If the partition is known already, no other partition is read.
        """
        self._check_open()
        return self._find(tp) if self.files.is_directory(self.directory / partition_dir(tp)) else None

    def _find(self, tp: TopicPartition) -> ReadLog | None:
        self._check_open()
        with self._lock:
            if tp not in self._partitions:
                self._read()
            found, broken = self._partitions.get(tp), self._broken.get(tp)
        if broken is not None:
            raise broken.with_traceback(None)
        return found

    def check_absent(self, tp: TopicPartition, topic_id: UUID) -> None:
        """Check why ``tp``, a partition of the topic ``topic_id``, has no directory.

        Return None if it had no records yet, or if another broker has it. Raises LogDestroyedError if this topic was
        deleted, CorruptionError if the partition had records. Raises UnknownTopicError if another directory of the log
        has it.
        """
        self._check_open()
        known = self._topics.get(tp.topic)
        if known is not None and known.adopted and known.topic_id == topic_id and self._is_there(known):
            return  # another broker may have it; listing everything for each partition would cost the square of them
        topic = self.topics().get(tp.topic)
        if topic is None:
            raise LogDestroyedError(
                f"topic {tp.topic} ({topic_id}) is not in {self.directory} any more: it was deleted",
                hint="if the topic was made again, call topic() of the reader again",
            )
        check_same_topic(tp, topic_id, topic.topic_id)
        if not topic.adopted and tp.partition not in topic.here:
            raise no_partition(self.directory, tp)
        self._check_gone(tp, topic)

    def check_gone(self, tp: TopicPartition, topic_id: UUID) -> None:
        """Raise CorruptionError if ``tp`` has no directory, but a checkpoint shows that it had records here.

        Call it for a partition whose records are read from the bucket. Another topic with this name raises nothing.
        """
        self._check_open()
        topic = expected_topics(self.directory, self.files).get(tp.topic)
        if topic is not None and topic.topic_id == topic_id:
            self._check_gone(tp, topic)

    def _is_there(self, topic: TopicInfo) -> bool:
        """Return True if one of the topic's known folders still exists."""
        folders = (partition_dir(TopicPartition(topic.name, partition)) for partition in topic.here)
        return any(self.files.is_directory(self.directory / folder) for folder in folders)

    def _check_gone(self, tp: TopicPartition, topic: TopicInfo) -> None:
        present = holds_partition(self.files, self.directory / partition_dir(tp))  # now: it may have come, or left
        if present or topic.adopted or tp.partition not in topic.here:
            return
        uploads = self.uploads.read()
        noted = checkpoint_ends(self.directory, self.files, uploads)
        end_offset = gone_partitions([topic], (), noted).get(tp)
        if end_offset is not None:
            error = gone_error(self.directory, tp, end_offset)
            if tp in uploads:
                error.hint = "put it back, or read the bucket without this directory: it has the uploaded records"
            raise error

    def read(self) -> None:
        """List the directory again: topics, partitions, log starts, and the id of the volume.

        Directories renamed ``-delete``, ``-stray`` or ``-future`` are left out.
        """
        with self._lock:
            self._read()

    def _read(self) -> None:
        files, directory = self.files, self.directory
        self.volume_id = self._read_id()
        seen = DirectoryView.read(directory, files)
        present = seen.partitions
        topics, broken = find_topics(directory, files, present)
        starts = self._read_starts(present, broken)
        for tp, path in present.items():
            known = self._partitions.get(tp)
            if known is not None and known.topic_id != topics[tp.topic].topic_id:
                del self._partitions[tp]  # its topic was deleted and made again since the last listing
            if tp not in self._partitions and tp not in broken:
                try:
                    topic, start = topics[tp.topic], starts.get(tp, 0)
                    self._partitions[tp] = ReadOnlyPartition(self._around, path, tp, topic, log_start=start)
                except LocalIOError as error:  # only this partition's: all others are read
                    broken[tp] = error
        self._broken = broken
        for tp in self._partitions.keys() - (present.keys() - broken.keys()):
            del self._partitions[tp]
        self._topics = topics

    def _read_id(self) -> UUID:
        """Return the volume's id, zero if it is missing or unreadable: only writers and uploaders need it.

        Raises NewerFormatError for a file of a newer release.
        """
        try:
            meta = read_volume(self.directory, self.files)
        except NewerFormatError:
            raise
        except (CorruptionError, LocalIOError) as error:
            self._warn_unread(META_PROPERTIES_NAME, error)
            return NO_ID
        return (meta.directory_id if meta else None) or NO_ID

    def _read_starts(
        self, present: Collection[TopicPartition], broken: dict[TopicPartition, TieredError]
    ) -> Mapping[TopicPartition, int]:
        """Return the log starts. If they are unreadable, add the error of each partition in ``present`` to ``broken``.

        A read without the log start would show deleted records.
        """
        try:
            return self._log_starts.read_or_raise(_WITHOUT_STARTS)
        except (CorruptionError, LocalIOError) as error:
            for tp in present:
                broken.setdefault(tp, error)
                self._partitions.pop(tp, None)
            return {}

    def _warn_unread(self, name: str, error: TieredError) -> None:
        """Log a warning, once for each file, about an unreadable file that reads do not need."""
        if name not in self._unread:
            self._unread.add(name)
            hint = error.hint or "it must be readable before this log can be opened for writing"
            LOGGER.warning("file_unreadable path=%s error=%s hint=%s", self.directory / name, error.message, hint)

    def _upload_of(self, tp: TopicPartition) -> PartitionUpload | None:
        return self.uploads.read().get(tp)

    def _recovery_point_of(self, tp: TopicPartition) -> int:
        try:
            return self._recovery_points.read().get(tp, 0)
        except LocalIOError as error:
            self._warn_unread(RECOVERY_POINT_NAME, error)
            return 0

    def close(self) -> None:
        """Close the view: calls for topics or partitions then raise ClosedError. Returned partitions stay readable.

        Idempotent.
        """
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        check_usable(self.directory, self._pid, closed=self._closed)


def check_usable(directory: Path, pid: int, *, closed: bool) -> None:
    """Raise ClosedError if ``closed``. Raise ForkedLogError if another process, ``pid``, opened the log."""
    if closed:
        raise ClosedError(f"{directory} was closed before")
    if os.getpid() != pid:
        raise forked_error(directory, pid)


def is_partition_gone(files: Files, directory: Path, tp: TopicPartition, error: TieredError) -> bool:
    """Return True if a read failed with ``error`` because the partition's directory was renamed or removed."""
    return isinstance(error, NotFoundError) and not files.is_directory(directory / partition_dir(tp))


def gone_partitions(
    topics: Iterable[TopicInfo], present: Collection[TopicPartition], noted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the partitions of ``topics`` that have lost their directory, each with its known end offset.

    ``present``: partitions that have a directory. ``noted``: ends from the checkpoints. A partition without a known end
    is left out, because its creation was interrupted. So are topics that a broker created.
    """
    absent = (
        tp
        for topic in topics
        if not topic.adopted
        for tp in (TopicPartition(topic.name, number) for number in topic.here)
        if tp not in present
    )
    return {tp: noted[tp] for tp in absent if noted.get(tp, 0) > 0}


def find_gone(
    directory: Path, files: Files, uploads: Mapping[TopicPartition, PartitionUpload]
) -> dict[TopicPartition, int]:
    """Return the partitions of ``directory`` that have lost their folder, or all of its ``.log`` files.

    The values are their ends in the checkpoints. ``uploads``: the uploader's checkpoint. Partitions are left out as in
    :func:`gone_partitions`.
    """
    topics, present = expected_topics(directory, files), DirectoryView.read(directory, files).partitions
    ends = checkpoint_ends(directory, files, uploads)
    starts = OffsetsFile(directory, LOG_START_NAME, files).read()
    emptied = {tp for tp, path in present.items() if has_lost_logs(files, path, starts.get(tp, 0), ends.get(tp, 0))}
    return gone_partitions(topics.values(), present.keys() - emptied, ends)


def checkpoint_ends(
    directory: Path, files: Files, uploads: Mapping[TopicPartition, PartitionUpload]
) -> dict[TopicPartition, int]:
    """Return the highest end offset that the checkpoints have for each partition. The real end may be higher.

    ``uploads``: the uploader's checkpoint. The recovery points are read from ``directory``.
    """
    ends = dict(OffsetsFile(directory, RECOVERY_POINT_NAME, files).read())
    for tp, upload in uploads.items():
        ends[tp] = max(ends.get(tp, 0), upload.end_offset)
    return ends
