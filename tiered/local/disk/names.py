"""What the names in a partition's directory say, whoever writes it."""

from __future__ import annotations

from pathlib import Path

from tiered.format.keys import LOG_SUFFIX, LocalFile, parse_local_name
from tiered.local.disk.files import Files


def local_files(files: Files, directory: Path) -> list[LocalFile]:
    """The files of its segments, by name; all others are ignored, as Kafka ignores them."""
    return [parsed for name in files.names(directory) if (parsed := parse_local_name(name)) is not None]


def bases_of(found: list[LocalFile], suffix: str = LOG_SUFFIX) -> list[int]:
    """Base offsets of the files with this suffix, ascending; those that are on their way in or out are left out."""
    return sorted(file.base for file in found if file.suffix == suffix and not file.work)


def log_bases(files: Files, directory: Path) -> list[int]:
    """Bases of the segments of a partition, ascending."""
    return bases_of(local_files(files, directory))
