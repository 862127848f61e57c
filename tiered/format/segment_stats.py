"""Running totals of one segment, in either tier, for its note, its row and its descriptor."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tiered.format.crc import crc32c
from tiered.model import SegmentDescriptor


@dataclass(slots=True)
class SegmentStats:
    """Running totals of one ``.log``: whole-file CRC32C, size, records, timestamps (-1 where there are none).

    ``first_append_ms`` is the wall clock of the first append: ``seal.ms`` counts from it, also after a reopen.
    ``appended_ms`` is that of the last append: the age of a segment with wrong timestamps counts from it.

    Expected side files: ``aborted`` entries of the transaction index and their CRC32C; ``producers`` in the snapshot at
    the end and its CRC32C. -1 entries or producers mean unknown: only the log has the answer.
    """

    size_bytes: int = 0
    crc32c: int = 0
    records: int = 0
    min_timestamp: int = -1
    max_timestamp: int = -1
    leader_epoch: int = -1
    first_append_ms: int = -1
    aborted: int = -1
    txn_crc: int = 0
    producers: int = -1
    snapshot_crc: int = 0
    appended_ms: int = -1

    def add(self, data: bytes | memoryview, records: int, least: int, greatest: int, leader_epoch: int) -> None:
        """Add one batch at the end of the file: its bytes, its number of records, its timestamps."""
        self.size_bytes += len(data)
        self.crc32c = crc32c(data, self.crc32c)
        self.leader_epoch = leader_epoch
        self.count(records, least, greatest)

    def count(self, records: int, least: int, greatest: int) -> None:
        """Add records and timestamps of one batch, or of a segment (-1: it has none)."""
        self.records += records
        if least >= 0 and (least < self.min_timestamp or self.min_timestamp < 0):
            self.min_timestamp = least
        self.max_timestamp = max(self.max_timestamp, greatest)

    def descriptor(self, topic_id: UUID, partition: int, base_offset: int, end_offset: int) -> SegmentDescriptor:
        """Return the frozen form for the uploader."""
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
            appended_ms=self.appended_ms,
        )
