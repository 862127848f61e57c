"""Totals of a segment (``SegmentStats``), and a builder of segments in memory from batches, without disk and store.

The offsets of a built segment begin at 0: it is *staged*, and a later commit assigns its first offset. Index entries
follow the same pace as on a disk (``segment_indexes.IndexPace``).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from uuid import UUID

from tiered.errors import CorruptionError
from tiered.format.batch import assign_offsets
from tiered.format.kernels import crc32c
from tiered.format.segment_indexes import IndexPace, OffsetIndex, TimeIndex
from tiered.model import NO_TIMESTAMP, EpochEntry, SealedIndexes, SegmentDescriptor

_STAMP = struct.Struct(">q4xi")
"""Base offset and leader epoch of a batch."""

LEADER_EPOCH = 0
"""Leader epoch of all batches of a built segment. Its row in the catalog has the epoch of the later commit."""


@dataclass(slots=True)
class SegmentStats:
    """Running totals of one ``.log``: whole-file CRC32C, size, records, timestamps (-1 where there are none).

    ``first_append_ms``: wall clock of the first append, from which ``seal.ms`` counts, also after a reopen.
    ``appended_ms``: wall clock of the last append. The age of a segment with wrong timestamps counts from it.
    ``leader_epoch``: that of the last batch.

    ``aborted``: number of entries in the transaction index, ``txn_crc`` their CRC32C. ``producers``: number of
    producers in the snapshot at the end of the segment, ``snapshot_crc`` its CRC32C. -1: unknown until the log is read.
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
        """Add one batch at the end of the file. ``data``: its bytes. ``records``: its number of records.

        ``least``, ``greatest``: the range of its timestamps; -1: no record has a timestamp.
        """
        self.size_bytes += len(data)
        self.crc32c = crc32c(data, self.crc32c)
        self.leader_epoch = leader_epoch
        self.count(records, least, greatest)

    def count(self, records: int, least: int, greatest: int) -> None:
        """Add to the number of records and to the range of timestamps. ``least``, ``greatest`` -1: no record has a
        timestamp.
        """
        self.records += records
        if least >= 0 and (least < self.min_timestamp or self.min_timestamp < 0):
            self.min_timestamp = least
        self.max_timestamp = max(self.max_timestamp, greatest)

    def descriptor(self, topic_id: UUID, partition: int, base_offset: int, end_offset: int) -> SegmentDescriptor:
        """Return the totals as an immutable descriptor, for the uploader."""
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


@dataclass(frozen=True, slots=True)
class BuiltSegment:
    """Segment in memory, a :class:`~tiered.model.SealedSegment`."""

    descriptor: SegmentDescriptor
    batches: tuple[bytes | memoryview, ...] = field(repr=False)
    sealed_indexes: SealedIndexes = field(repr=False)

    def open_log(self) -> BatchesSource:
        """Return a source of the ``.log`` bytes."""
        return BatchesSource(self.batches)

    def indexes(self) -> SealedIndexes:
        """Return the content of the index files."""
        return self.sealed_indexes


class BatchesSource:
    """Byte source over consecutive batches, a :class:`~tiered.model.LendingSource`. The batches are never joined.

    A second copy of a segment would cost as much as encoding it.
    """

    def __init__(self, batches: Sequence[bytes | memoryview]) -> None:
        self._batches = batches
        self._ends = [*accumulate(map(len, batches))]

    @property
    def size(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read_at(self, position: int, length: int) -> bytes:
        """Return exactly ``length`` bytes from ``position``. Raises CorruptionError if there are fewer."""
        return b"".join(self.views(position, length))

    def views(self, position: int, length: int) -> list[memoryview]:
        """Return ``length`` bytes from ``position``, one view per batch. Raises CorruptionError if there are fewer."""
        if position < 0 or position + length > self.size:
            raise CorruptionError(
                f"a read of {length} bytes at {position} exceeds the segment in memory, which has {self.size}",
                position=position,
                hint="report this as a bug",
            )
        found, at = [], bisect_right(self._ends, position)
        while length:
            batch = self._batches[at]
            start = position - (self._ends[at] - len(batch))
            found.append(memoryview(batch)[start : start + length])
            position, length, at = position + len(found[-1]), length - len(found[-1]), at + 1
        return found

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class SegmentBuilder:
    """Builder of one segment of one partition, batch by batch. Not thread-safe.

    ``index_interval_bytes``: number of bytes since the last index entry above which a batch gets one.
    """

    def __init__(self, topic_id: UUID, partition: int, *, index_interval_bytes: int) -> None:
        self._topic_id = topic_id
        self._partition = partition
        self._batches: list[bytes | memoryview] = []
        self._stats = SegmentStats()
        self._offsets = OffsetIndex(0)
        self._times = TimeIndex(0)
        self._pace = IndexPace(index_interval_bytes, self._times.last_entry)
        self._next = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the ``.log`` so far."""
        return self._stats.size_bytes

    @property
    def next_offset(self) -> int:
        """Offset of the next batch, which is the number of offsets so far."""
        return self._next

    def append(self, batch: bytes | memoryview, records: int, least: int, greatest: int) -> None:
        """Append one encoded batch of ``records`` records. ``least``, ``greatest``: range of its timestamps, -1: none.

        The batch gets the next offset and ``LEADER_EPOCH``. A batch with another offset or epoch is copied.
        """
        if _STAMP.unpack_from(batch) != (self._next, LEADER_EPOCH):
            stamped = bytearray(batch)
            assign_offsets(stamped, self._next, LEADER_EPOCH)
            batch = bytes(stamped)
        position, end = self._stats.size_bytes, self._next + records
        if self._pace.count(len(batch), end - 1, greatest):
            self._offsets.append(end - 1, position)
            self._add_time()
        self._stats.add(batch, records, least, greatest, LEADER_EPOCH)
        self._batches.append(batch)
        self._next = end

    def build(self) -> BuiltSegment:
        """Return the segment, which must have a batch. Call this once, after the last :meth:`append`."""
        self._add_time()
        descriptor = self._stats.descriptor(self._topic_id, self._partition, 0, self._next)
        epochs = (EpochEntry(LEADER_EPOCH, 0),)
        indexes = SealedIndexes(self._offsets.to_bytes(), self._times.to_bytes(), leader_epochs=epochs)
        batches, self._batches = tuple(self._batches), []
        return BuiltSegment(descriptor, batches, indexes)

    def _add_time(self) -> None:
        if self._pace.largest[0] > NO_TIMESTAMP:
            self._times.maybe_append(*self._pace.largest)
