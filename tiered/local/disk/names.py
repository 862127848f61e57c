"""Segments and producer snapshots in a partition's directory, derived from the file names.

A file ``{offset}.snapshot`` holds the state of the producers below that offset; ``format.producer_snapshot`` decodes
it.

Kafka's rule: docs/kafka-semantics.md#producer-snapshots.
"""

from __future__ import annotations

from pathlib import Path

from tiered.format.local_names import LOG_SUFFIX, SNAPSHOT_SUFFIX, LocalFile, parse_local_name, snapshot_name
from tiered.format.producer_snapshot import SNAPSHOT_HEADER_BYTES
from tiered.local.disk.files import Files

PLAIN_NAME = "tiered-plain"
"""Empty file in a partition whose snapshots are all empty: no producer ever wrote."""
SPARSE_NAME = "tiered-sparse"
"""Empty file in a partition that legitimately has offsets without records: a missing record is then no damage."""


def local_files(files: Files, directory: Path) -> list[LocalFile]:
    """Return the files of segments and snapshots in a partition's directory, by name. Ignore others, as Kafka does."""
    return [parsed for name in files.names(directory) if (parsed := parse_local_name(name)) is not None]


def bases_of(found: list[LocalFile], suffix: str = LOG_SUFFIX) -> list[int]:
    """Return base offsets of the files with this suffix, ascending. Skip ``.cleaned``, ``.swap`` and ``.deleted``."""
    return sorted(file.base for file in found if file.suffix == suffix and not file.work)


def log_bases(files: Files, directory: Path) -> list[int]:
    """Return the bases of the segments of a partition, ascending."""
    return bases_of(local_files(files, directory))


def snapshot_offsets(files: Files, directory: Path) -> list[int]:
    """Return the offsets of the snapshots of a partition, ascending."""
    return bases_of(local_files(files, directory), SNAPSHOT_SUFFIX)


def tells_of_producers(files: Files, directory: Path) -> bool:
    """Return True if a snapshot may hold producers. Beside ``tiered-plain`` a broker's may, if it has entries."""
    offsets = snapshot_offsets(files, directory)
    if files.state(directory / PLAIN_NAME) is None:
        return bool(offsets)
    states = [files.state(directory / snapshot_name(offset)) for offset in offsets]
    return any(state is not None and state.size > SNAPSHOT_HEADER_BYTES for state in states)


def tells_nothing(files: Files, directory: Path) -> bool:
    """Return True if snapshots and ``tiered-plain`` are missing, so that the log must be read for producers."""
    return files.state(directory / PLAIN_NAME) is None and not snapshot_offsets(files, directory)


def remove_snapshots_above(files: Files, directory: Path, end_offset: int) -> list[int]:
    """Remove snapshots above ``end_offset``, where the log was cut. Return their offsets."""
    gone = [offset for offset in snapshot_offsets(files, directory) if offset > end_offset]
    for offset in gone:
        files.unlink(directory / snapshot_name(offset))
    return gone
