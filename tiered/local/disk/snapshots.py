"""Files ``{offset}.snapshot``: the producers' state below an offset. Which of them outlive a cut.

What is inside is ``format.producer_snapshot``'s and the producer state's affair; here they are names.

Kafka's rule: docs/kafka-semantics.md#producer-snapshots.
"""

from __future__ import annotations

from pathlib import Path

from tiered.format.keys import SNAPSHOT_SUFFIX, snapshot_name
from tiered.format.producer_snapshot import SNAPSHOT_HEADER_BYTES
from tiered.local.disk.files import Files
from tiered.local.disk.names import bases_of, local_files

PLAIN_NAME = "tiered-plain"
"""Empty file in a partition whose snapshots are all empty: no producer ever wrote."""


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
