"""A read-only look at a log directory: ours, one that another process writes, a Kafka broker's.

The only place that tells what lies in a log directory from the names in it. Nothing is locked, opened or changed, so
that what was seen may be gone when it is used.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tiered.errors import ConfigError, TieredError
from tiered.format.keys import parse_partition_dir
from tiered.local.directory.notes import DirectoryNotes
from tiered.local.disk.files import Files
from tiered.local.disk.topics import TopicInfo
from tiered.local.disk.uploads import PartitionUpload
from tiered.local.disk.volume import (
    BROKER_OWN_DIRS,
    NO_ID,
    discovered,
    expected_topics,
    read_topic_ids,
    read_volume,
    without_absent,
)
from tiered.local.partition.log_segments import WATERMARK_NAME
from tiered.local.partition.opening import foreign_log
from tiered.local.partition.partition import PartitionLog
from tiered.local.partition.surroundings import Surroundings
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")


class PartitionFolder(NamedTuple):
    """A partition's directory. ``kind``: empty, or as what it was renamed: ``delete``, ``stray`` or ``future``."""

    name: str
    tp: TopicPartition
    kind: str


class StrangeFolder(NamedTuple):
    """A directory that is no partition's, and why not."""

    name: str
    refusal: ConfigError


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """Subdirectories by name, but for those that other parts of a broker own."""

    path: Path
    folders: tuple[PartitionFolder | StrangeFolder, ...]

    @classmethod
    def look(cls, path: Path, files: Files) -> DirectoryView:
        """Raises NotFoundError, LocalPermissionError."""
        names = (name for name in files.names(path) if name not in BROKER_OWN_DIRS)
        return cls(path, tuple(folder_named(name) for name in names if files.is_directory(path / name)))

    @property
    def partitions(self) -> dict[TopicPartition, Path]:
        """The partitions that are in use, by name."""
        return {folder.tp: self.path / folder.name for folder in self.renamed("")}

    def renamed(self, kind: str) -> list[PartitionFolder]:
        """The renamed partitions of one kind, by name."""
        return [folder for folder in self.folders if isinstance(folder, PartitionFolder) and folder.kind == kind]

    @property
    def strange(self) -> list[StrangeFolder]:
        """The directories that are no partition's, by name."""
        return [folder for folder in self.folders if isinstance(folder, StrangeFolder)]


def folder_named(name: str) -> PartitionFolder | StrangeFolder:
    """What a directory of this name is."""
    try:
        parsed = parse_partition_dir(name)
    except ConfigError as refusal:
        return StrangeFolder(name, refusal)
    return PartitionFolder(name, parsed.tp, parsed.kind)


class Survey:
    """A directory that somebody else writes, as partitions to read. The caller holds a lock.

    All is found again at each look; partitions known already are kept from one to the next.
    """

    def __init__(self, directory: Path, around: Surroundings, *, notes: DirectoryNotes) -> None:
        self.volume_id: UUID = NO_ID
        self.topics: dict[str, TopicInfo] = {}
        self.partitions: dict[TopicPartition, PartitionLog] = {}
        self.broken: dict[TopicPartition, TieredError] = {}
        self._directory = directory
        self._around = around
        self._uploads = around.uploads
        self._recovery_points = notes.points
        self._log_starts = notes.starts
        self._watermarks = notes.watermarks

    def look(self) -> None:
        """Reads the directory. Renamed directories (``-delete``, ``-stray``, ``-future``) are no partitions."""
        files, directory = self._around.files, self._directory
        meta = read_volume(directory, files)
        self.volume_id = (meta.directory_id if meta else None) or NO_ID
        topics = expected_topics(directory, files)
        ours = {name for name, topic in topics.items() if not topic.adopted}
        starts = self._log_starts.read()
        seen = DirectoryView.look(directory, files)
        for name, refusal in seen.strange:
            LOGGER.warning("directory_skipped path=%s error=%s", directory / name, refusal)
        present = seen.partitions
        broken: dict[TopicPartition, TieredError] = {}
        for topic, here in read_topic_ids(directory, files, present, broken).items():
            topics[topic] = discovered(topics.get(topic), topic, here)
        self.broken = broken
        for tp, path in present.items():
            if tp not in self.partitions and tp not in broken:
                self.partitions[tp] = foreign_log(
                    self._around,
                    path,
                    tp,
                    topics[tp.topic],
                    ours=tp.topic in ours,
                    start=starts.get(tp, 0),
                    upload=partial(self._upload_of, tp),
                    recovery_point=partial(self._recovery_point_of, tp),
                    high_watermark=partial(self._watermark_of, tp, path),
                )
        for tp in self.partitions.keys() - (present.keys() - broken.keys()):
            del self.partitions[tp]
        self.topics = without_absent(topics)

    def _upload_of(self, tp: TopicPartition) -> PartitionUpload | None:
        return self._uploads.read().get(tp)

    def _recovery_point_of(self, tp: TopicPartition) -> int:
        return self._recovery_points.read().get(tp, 0)

    def _watermark_of(self, tp: TopicPartition, path: Path) -> int | None:
        """As its writer noted it last, if the partition follows; None: it is the end."""
        if self._around.files.state(path / WATERMARK_NAME) is None:
            return None
        return self._watermarks.read().get(tp, 0)
