"""A read-only look at a log directory: ours, one that another process writes, a Kafka broker's.

The only place that tells what lies in a log directory from the names in it. Nothing is locked, opened or changed, so
that what was seen may be gone when it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tiered.errors import ConfigError
from tiered.format.keys import parse_partition_dir
from tiered.local.disk.files import Files
from tiered.local.disk.volume import BROKER_OWN_DIRS
from tiered.model import TopicPartition


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
        return cls(path, tuple(_folder(name) for name in names if files.is_directory(path / name)))

    @property
    def partitions(self) -> dict[TopicPartition, Path]:
        """Those that are in use, by name."""
        return {folder.tp: self.path / folder.name for folder in self.renamed("")}

    def renamed(self, kind: str) -> list[PartitionFolder]:
        """Those of one kind, by name."""
        return [folder for folder in self.folders if isinstance(folder, PartitionFolder) and folder.kind == kind]

    @property
    def strange(self) -> list[StrangeFolder]:
        """Those that are no partition's, by name."""
        return [folder for folder in self.folders if isinstance(folder, StrangeFolder)]


def _folder(name: str) -> PartitionFolder | StrangeFolder:
    try:
        parsed = parse_partition_dir(name)
    except ConfigError as refusal:
        return StrangeFolder(name, refusal)
    return PartitionFolder(name, parsed.tp, parsed.kind)
