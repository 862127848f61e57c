"""How much of a segment a recovery need not read: what lies below the recovery point was fsynced, then and there.

The index files of a segment that was being written are only as good as the last moment before the crash: they may
lag, end in zeros, or hold entries of records that are gone. Entries are used only up to the recovery point, only while
they ascend, and only if the batch at which the last of them points is the one that it says. The two files are not
fsynced together: offset entries behind the last time entry are not used, because the times between may be what is lost.
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.errors import CorruptionError
from tiered.format.keys import TXN_INDEX_SUFFIX
from tiered.local.disk.files import Files
from tiered.local.disk.snapshots import tells_of_producers
from tiered.local.segment.indexes import SegmentIndexes, load_growing
from tiered.local.segment.replaying import abort_markers
from tiered.local.segment.scan import LogFile


class Prefix(NamedTuple):
    """Reading goes on at ``position``, with the batch at ``base_offset``; ``indexes`` cover all up to that batch."""

    position: int
    base_offset: int
    first_timestamp: int
    indexes: SegmentIndexes


def known_prefix(files: Files, log: LogFile, base_offset: int, size_bytes: int, recovery_point: int) -> Prefix | None:
    """The last indexed batch that ends below ``recovery_point``; None: the segment is to be read from its start."""
    if recovery_point <= base_offset or size_bytes == 0:
        return None
    if files.state(log.path.with_suffix(TXN_INDEX_SUFFIX)) is not None:
        return None  # it has aborted transactions: their index is written anew from all of the segment
    producers = tells_of_producers(files, log.path.parent)
    try:
        indexes = load_growing(files, log, base_offset, size_bytes)
        indexes.truncate_to(recovery_point)
        _forget_untimed(indexes, log, size_bytes)
        position = indexes.last_position
        if position == 0:
            return None
        header = log.header_at(position, size_bytes)
        if indexes.position_of(header.last_offset) != position or header.last_offset >= recovery_point:
            return None
        if position + header.size_bytes > size_bytes:
            return None
        if producers and any(True for _ in abort_markers(log, position)):
            return None  # the index that should be there is not
        return Prefix(position, header.base_offset, log.header_at(0, size_bytes).max_timestamp, indexes)
    except CorruptionError:
        return None


def _forget_untimed(indexes: SegmentIndexes, log: LogFile, size_bytes: int) -> None:
    """Keeps the first offset entry that the last time entry was written with; CorruptionError if that is not true."""
    timestamp, at = indexes.last_time
    if timestamp < 0:
        indexes.truncate_to(at)
        return
    indexed = position = indexes.position_of(at)
    header = log.header_at(position, size_bytes)
    while header.last_offset < at:
        position += header.size_bytes
        header = log.header_at(position, size_bytes)
    if header.last_offset != at or header.max_timestamp != timestamp:
        raise log.damage(position, f"the time index says that offset {at} is of {timestamp}", header.base_offset)
    if indexed and position == indexed:
        indexes.truncate_to(at + 1)
        return
    covering = indexes.upper_bound(indexed, 1)
    if covering is not None:
        indexes.truncate_to(covering + 1)
