"""``{base}.seal``: what is known of a ``.log`` file, so that nobody has to read 64 MiB to learn it again.

Written beside the segment when it is sealed and, for the active one, at a clean close. It is believed only while
size and base agree with the file; brokers ignore it; a missing or stale note costs one scan, never data.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

from tiered.errors import NotFoundError
from tiered.format.batch import decode_records
from tiered.format.crc import crc32c
from tiered.local.disk.files import Files
from tiered.local.segment.scan import LogFile
from tiered.model import SegmentDescriptor

SEAL_SUFFIX = ".seal"
VERSION = 1


@dataclass(slots=True)
class SegmentStats:
    """Running totals of one ``.log``: whole-file CRC32C, size, records, timestamps (-1 where there are none).

    ``first_append_ms`` is the wall clock of the first append: ``seal.ms`` counts from there after a reopen, too.
    """

    size_bytes: int = 0
    crc32c: int = 0
    records: int = 0
    min_timestamp: int = -1
    max_timestamp: int = -1
    leader_epoch: int = -1
    first_append_ms: int = -1

    def add(self, data: bytes | memoryview, records: int, least: int, greatest: int, leader_epoch: int) -> None:
        """One more batch at the end of the file: its bytes, its number of records, its timestamps."""
        self.size_bytes += len(data)
        self.crc32c = crc32c(data, self.crc32c)
        self.leader_epoch = leader_epoch
        self.count(records, least, greatest)

    def count(self, records: int, least: int, greatest: int) -> None:
        """Records and timestamps of one batch (-1: it has none)."""
        self.records += records
        if least >= 0 and (least < self.min_timestamp or self.min_timestamp < 0):
            self.min_timestamp = least
        self.max_timestamp = max(self.max_timestamp, greatest)

    def descriptor(self, topic_id: UUID, partition: int, base_offset: int, end_offset: int) -> SegmentDescriptor:
        """The frozen form that is handed to the uploader."""
        return SegmentDescriptor(
            topic_id=topic_id,
            partition=partition,
            base_offset=base_offset,
            end_offset=end_offset,
            min_timestamp=self.min_timestamp,
            max_timestamp=self.max_timestamp,
            records=self.records,
            size_bytes=self.size_bytes,
            crc32c=self.crc32c,
            leader_epoch=self.leader_epoch,
        )


def measure(log: LogFile, size_bytes: int) -> SegmentStats:
    """Totals of a file by reading all of it; batch CRCs are verified. Raises CorruptionError with the place.

    Control records (transaction markers) count: they occupy offsets.
    """
    stats = SegmentStats()
    for span, view in log.batches(0, size_bytes):
        header = log.verify(span, view)
        least = header.max_timestamp
        if header.records_count > 1:
            least = min((r.timestamp for r in decode_records(view) if r.timestamp >= 0), default=-1)
        stats.add(view, header.records_count, least, header.max_timestamp, header.leader_epoch)
    if stats.size_bytes != size_bytes:
        raise log.damage(stats.size_bytes, f"the batches end here, the file has {size_bytes} bytes")
    return stats


def write_note(files: Files, path: Path, stats: SegmentStats) -> None:
    """Replaces the note of a segment."""
    files.replace(path, json.dumps({"version": VERSION, **asdict(stats)}).encode())


def read_note(files: Files, path: Path, size_bytes: int) -> SegmentStats | None:
    """The note if there is one that fits a file of ``size_bytes``; None means: measure."""
    try:
        value = json.loads(files.read(path))
        if value.pop("version") != VERSION or any(type(number) is not int for number in value.values()):
            return None
        stats = SegmentStats(**value)
    except (NotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return stats if stats.size_bytes == size_bytes else None
