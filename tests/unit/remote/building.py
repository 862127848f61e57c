"""A remote tier in a store, made of batches, as an uploader leaves it. Also used by the Spark tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from tiered.format.batch import decode_records, encode_batch, read_header
from tiered.format.codecs import Codec
from tiered.format.kernels import crc32c
from tiered.format.keys import Role, index_key, root_key, segment_key
from tiered.format.root import CompactedRange, Root, decode_root, encode_root
from tiered.format.rows import NO_ROWS, SUM_MODULUS, Rows, Tally
from tiered.format.segment_indexes import OffsetIndex, TimeIndex, encode_txns
from tiered.model import AbortedTxn, BytesSource, EpochEntry, NewRecord, Row, SealedIndexes, SegmentDescriptor
from tiered.plan.commit import Stamp, create_root, succeed
from tiered.remote.upload import upload_segment
from tiered.store.base import ABSENT, Capabilities, Delete, Get, Match, Object, Put, PutResult, PutStatus, Store
from tiered.store.driver import drive
from tiered.testing.clock import FakeClock, SeededIds

TOPIC_ID = UUID("0d9f8c7e-6b5a-4c3d-8e1f-2a3b4c5d6e7f")
FIRST_MS = 1_700_000_000_000
TRUSTED = Capabilities(conditional_writes=True, ranges=True, returns_crc32c=True, verifies_crc32c=True)


@dataclass
class MemorySegment:
    """A sealed segment in memory; implements ``model.SealedSegment``."""

    descriptor: SegmentDescriptor
    data: bytes
    sealed_indexes: SealedIndexes
    lacks_producers: bool = False

    def open_log(self) -> BytesSource:
        return BytesSource(self.data)

    def indexes(self, _before: object = None) -> SealedIndexes:
        return self.sealed_indexes


def records(offset: int, count: int, *, size: int = 24, step_ms: int = 10) -> list[NewRecord]:
    """``count`` records whose key, value and timestamp follow from their offset."""
    return [
        NewRecord(
            value=f"value-{at}".encode().ljust(size, b"."),
            key=f"key-{at % 7}".encode(),
            timestamp=FIRST_MS + at * step_ms,
        )
        for at in range(offset, offset + count)
    ]


def batches(start: int, end: int, *, each: int = 10, size: int = 24, codec: Codec = Codec.NONE) -> list[bytes]:
    """Batches of ``each`` records that cover ``start`` to ``end`` (exclusive)."""
    return [
        encode_batch(records(at, min(each, end - at), size=size), base_offset=at, leader_epoch=0, codec=codec)
        for at in range(start, end, each)
    ]


def offsets(parts: Iterable[bytes | memoryview]) -> list[int]:
    """Of all records in these batches."""
    return [record.offset for part in parts for record in decode_records(part)]


def other_batches(start: int, end: int, *, each: int = 10) -> list[bytes]:
    """As :func:`batches` in all but the values: the same offsets, sizes and times."""
    return [
        encode_batch(
            [
                record._replace(value=record.value.upper() if record.value else None)
                for record in records(at, min(each, end - at))
            ],
            base_offset=at,
            leader_epoch=0,
        )
        for at in range(start, end, each)
    ]


def seal(
    parts: Sequence[bytes],
    *,
    partition: int = 0,
    end: int | None = None,
    interval_bytes: int = 256,
    aborted: Sequence[AbortedTxn] = (),
    snapshot: bytes = b"",
    topic_id: UUID = TOPIC_ID,
) -> MemorySegment:
    """A sealed segment of whole batches, indexed as a live log indexes it; ``end`` beyond them leaves a gap."""
    headers = [read_header(part) for part in parts]
    base = headers[0].base_offset
    offsets, times = OffsetIndex(base), TimeIndex(base)
    position = since = 0
    largest, largest_offset = -1, base
    for header, part in zip(headers, parts, strict=True):
        if header.max_timestamp > largest:
            largest, largest_offset = header.max_timestamp, header.last_offset
        if since > interval_bytes:
            offsets.append(header.last_offset, position)
            times.maybe_append(largest, largest_offset)
            since = 0
        since += len(part)
        position += len(part)
    times.maybe_append(largest, largest_offset)
    data = b"".join(parts)
    descriptor = SegmentDescriptor(
        topic_id=topic_id,
        partition=partition,
        base_offset=base,
        end_offset=headers[-1].next_offset if end is None else end,
        min_timestamp=min(record.timestamp for part in parts for record in decode_records(part)),
        max_timestamp=largest,
        records=sum(header.records_count for header in headers),
        size_bytes=len(data),
        crc32c=crc32c(data),
        leader_epoch=headers[-1].leader_epoch,
    )
    indexes = SealedIndexes(offsets.to_bytes(), times.to_bytes(), encode_txns(aborted), snapshot)
    return MemorySegment(descriptor, data, indexes)


@dataclass
class RemoteLog:
    """One partition's remote tier, written segment by segment without the commit protocol."""

    store: Store
    topic: str = "flights"
    topic_id: UUID = TOPIC_ID
    partition: int = 0
    clock: FakeClock = field(default_factory=FakeClock)
    ids: SeededIds = field(default_factory=SeededIds)

    @property
    def root(self) -> Root | None:
        found = self.store.execute(Get(self.root_key))
        return decode_root(found.data, key=self.root_key) if isinstance(found, Object) else None

    @property
    def root_key(self) -> str:
        return root_key(self.topic_id, self.partition)

    def upload(self, segment: MemorySegment, capabilities: Capabilities = TRUSTED) -> Row:
        steps = upload_segment(segment, claim_epoch=1, capabilities=capabilities)
        return drive(self.store, steps, clock=self.clock, ids=self.ids)

    def add(self, segment: MemorySegment) -> Row:
        """Uploads ``segment`` and names it in the next root."""
        row = self.upload(segment)
        rows = [*(self.root.rows if self.root else []), row]
        self.put_root(Rows.from_rows(rows), next_offset=row.next)
        return row

    def fill(self, end: int, *, start: int = 0, per_segment: int = 100, each: int = 10, size: int = 24) -> list[Row]:
        """Segments of ``per_segment`` records up to ``end``."""
        return [
            self.add(
                seal(
                    batches(at, min(at + per_segment, end), each=each, size=size),
                    partition=self.partition,
                    topic_id=self.topic_id,
                )
            )
            for at in range(start, end, per_segment)
        ]

    def put_root(
        self,
        rows: Rows,
        *,
        start_offset: int | None = None,
        next_offset: int | None = None,
        lineage: tuple[EpochEntry, ...] = (),
        cleaned: tuple[CompactedRange, ...] | None = None,
    ) -> Root:
        """The next version of the root, with these rows."""
        before = self.root
        stamp = Stamp(self.ids.uid(), self.clock.now_ms(), Role.WRITER, 1, "test")
        first = int(rows.base[0]) if len(rows) else 0
        old = before or create_root(self.topic_id, self.partition, self.topic, stamp)
        stamp = dataclasses.replace(stamp, commit_id=self.ids.uid())
        kept = set(old.rows)
        root = succeed(
            old,
            stamp,
            "append",
            role=dataclasses.replace(old.writer, epoch=1, seq=old.writer.seq + 1),
            rows=rows,
            start_offset=start_offset
            if start_offset is not None
            else (before.start_offset if before and before.version > 1 else first),
            next_offset=old.next_offset if next_offset is None else next_offset,
            lineage=lineage or old.lineage or (EpochEntry(0, first),),
            cleaned=old.cleaned if cleaned is None else cleaned,
            added=_plus(old.added, Rows.from_rows([row for row in rows if row not in kept])),
            removed=_plus(old.removed, Rows.from_rows([row for row in kept if row not in set(rows)])),
        )
        found = self.store.execute(Get(self.root_key))
        condition = Match(found.etag) if isinstance(found, Object) else ABSENT
        result = self.store.execute(Put(self.root_key, encode_root(root), condition))
        assert isinstance(result, PutResult)
        assert result.status is PutStatus.LANDED
        return root

    def delete(self, row: Row) -> None:
        """Both objects of ``row``, as retention or compaction ends them."""
        self.store.execute(Delete((self.log_key(row), self.idx_key(row))))

    def damage(self, key: str, position: int) -> None:
        """Flips one bit of an object in place."""
        found = self.store.execute(Get(key))
        assert isinstance(found, Object)
        data = bytearray(found.data)
        data[position] ^= 0x10
        self.store.execute(Put(key, bytes(data), Match(found.etag)))

    def replace(self, key: str, data: bytes) -> None:
        """Other bytes under a key, as no program of ours puts them there."""
        found = self.store.execute(Get(key))
        assert isinstance(found, Object)
        self.store.execute(Put(key, data, Match(found.etag)))

    def log_key(self, row: Row) -> str:
        return segment_key(self.topic_id, self.partition, row)

    def idx_key(self, row: Row) -> str:
        return index_key(self.topic_id, self.partition, row)


def _plus(totals: Tally, rows: Rows) -> Tally:
    more = rows.tally
    return Tally(
        totals.segments + more.segments,
        totals.size_bytes + more.size_bytes,
        totals.records + more.records,
        (totals.sum + more.sum) % SUM_MODULUS,
    )


__all__ = ["FIRST_MS", "NO_ROWS", "TOPIC_ID", "TRUSTED", "MemorySegment", "RemoteLog", "batches", "records", "seal"]
