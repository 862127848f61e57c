"""What the names in a partition's directory say, whoever writes it: its segments, its producer snapshots.

A file ``{offset}.snapshot`` holds the state of the producers below that offset; ``format.producer_snapshot``
decodes it.

Kafka's rule: docs/kafka-semantics.md#producer-snapshots.
"""

from __future__ import annotations

from pathlib import Path

from tiered.format.keys import LOG_SUFFIX, SNAPSHOT_SUFFIX, LocalFile, parse_local_name, snapshot_name
from tiered.format.producer_snapshot import SNAPSHOT_HEADER_BYTES
from tiered.local.disk.files import Files

PLAIN_NAME = "tiered-plain"
"""Empty file in a partition whose snapshots are all empty: no producer ever wrote."""
SPARSE_NAME = "tiered-sparse"
"""Empty file in a partition that legitimately has offsets without records: a missing record is then no damage."""


def local_files(files: Files, directory: Path) -> list[LocalFile]:
    """The files of its segments, by name; all others are ignored, as Kafka ignores them."""
    return [parsed for name in files.names(directory) if (parsed := parse_local_name(name)) is not None]


def bases_of(found: list[LocalFile], suffix: str = LOG_SUFFIX) -> list[int]:
    """Base offsets of the files with this suffix, ascending; those that are on their way in or out are left out."""
    return sorted(file.base for file in found if file.suffix == suffix and not file.work)


def log_bases(files: Files, directory: Path) -> list[int]:
    """Bases of the segments of a partition, ascending."""
    return bases_of(local_files(files, directory))


def snapshot_offsets(files: Files, directory: Path) -> list[int]:
    """Offsets of the snapshots of a partition, ascending."""
    return bases_of(local_files(files, directory), SNAPSHOT_SUFFIX)


def tells_of_producers(files: Files, directory: Path) -> bool:
    """Whether a snapshot says that there were producers; that of a broker may, whatever ``tiered-plain`` says."""
    offsets = snapshot_offsets(files, directory)
    if files.state(directory / PLAIN_NAME) is None:
        return bool(offsets)
    states = [files.state(directory / snapshot_name(offset)) for offset in offsets]
    return any(state is not None and state.size > SNAPSHOT_HEADER_BYTES for state in states)


def tells_nothing(files: Files, directory: Path) -> bool:
    """Neither snapshots nor ``tiered-plain``: of a log that was rolled both are lost, and the log has to be asked."""
    return files.state(directory / PLAIN_NAME) is None and not snapshot_offsets(files, directory)


def remove_snapshots_above(files: Files, directory: Path, end_offset: int) -> list[int]:
    """A log that was cut at ``end_offset``: states above it are of records that are gone. Returns their offsets."""
    gone = [offset for offset in snapshot_offsets(files, directory) if offset > end_offset]
    for offset in gone:
        files.unlink(directory / snapshot_name(offset))
    return gone
