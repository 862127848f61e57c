"""Files ``{offset}.snapshot``: the producers' state below an offset. Which of them outlive a cut (reference 6.6).

What is inside is ``format.producer_snapshot``'s and the producer state's affair; here they are names.
"""

from __future__ import annotations

from pathlib import Path

from tiered.format.keys import SNAPSHOT_SUFFIX, parse_local_name, snapshot_name
from tiered.local.disk.files import Files


def snapshot_offsets(files: Files, directory: Path) -> list[int]:
    """Offsets of the snapshots of a partition, ascending."""
    parsed = (parse_local_name(name) for name in files.names(directory))
    return sorted(file.base for file in parsed if file and file.suffix == SNAPSHOT_SUFFIX and not file.work)


def remove_snapshots_above(files: Files, directory: Path, end_offset: int) -> list[int]:
    """A log that was cut at ``end_offset``: states above it are of records that are gone. Returns their offsets."""
    gone = [offset for offset in snapshot_offsets(files, directory) if offset > end_offset]
    for offset in gone:
        files.unlink(directory / snapshot_name(offset))
    return gone
