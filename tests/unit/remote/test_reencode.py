"""Segments of the bucket in another codec: what stays of every record and transaction, and what stops it half-way."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.golden.foreign import message, wrapper
from tests.unit.remote.building import FIRST_MS, MemorySegment, RemoteLog, batches, seal
from tests.unit.remote.maintaining import Bucket, offsets
from tests.unit.remote.rewriting import Rewriter
from tiered.config import TopicConfig
from tiered.errors import CorruptionError
from tiered.format.batch import (
    BatchHeader,
    BatchProducer,
    decode_records,
    encode_batch,
    least_timestamp,
    read_header,
    rebuild_batch,
)
from tiered.format.batch import verify_batch as verified
from tiered.format.codecs import Codec
from tiered.format.control import ControlType, marker
from tiered.format.kernels import Record, crc32c
from tiered.format.keys import FLAG_MAINTAINER
from tiered.format.producer_snapshot import ProducerEntry, encode_snapshot
from tiered.format.rows import Rows
from tiered.format.segment_builder import SegmentStats
from tiered.format.segment_indexes import decode_txns
from tiered.model import AbortedTxn, NewRecord, Row, TimestampType
from tiered.plan.maintenance import ROUTINE, MaintenanceAction, MaintenanceKind
from tiered.remote import maintain, segment_rewriter
from tiered.remote.maintain import ActionResult
from tiered.remote.segment_rewriter import Encoding, RewriteContext, hole
from tiered.store.base import Delete, Get, Object, Put, Steps

pytestmark = pytest.mark.usefixtures("both_catalogs")
ZSTD = TopicConfig(compression_type="zstd")
CODECS = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


@dataclass
class RandomLog:
    """Batches of every kind that a log can hold, one behind the other, with gaps; what a reader sees of them."""

    dice: random.Random
    parts: list[bytes] = field(default_factory=list)
    at: int = 0

    def records(self, count: int) -> list[NewRecord]:
        dice = self.dice
        return [
            NewRecord(
                dice.choice([None, b"", b"v" * dice.randint(1, 300)]),
                dice.choice([None, b"", b"k-%d" % dice.randint(0, 9)]),
                FIRST_MS + dice.randint(0, 10_000),
                tuple((f"h-{n}", dice.choice([None, b"", b"x" * n])) for n in range(dice.randint(0, 3))),
            )
            for _ in range(count)
        ]

    def add(self) -> None:
        """One batch more, or one message of an old format."""
        dice = self.dice
        self.at += dice.choice([0, 0, 3]) if self.parts else 0
        kinds = ["plain", "plain", "producer", "txn", "marker", "empty", "horizon", "old", "wrapped"]
        kind = dice.choice(kinds) if self.parts else "plain"
        if kind in ("old", "wrapped"):
            self.parts.append(self.old(wrapped=kind == "wrapped"))
        else:
            self.parts.append(self.new(kind))
        self.at = verified(self.parts[-1]).next_offset

    def new(self, kind: str) -> bytes:
        dice = self.dice
        who = -1 if kind == "plain" else dice.randint(1, 9)
        is_marker = kind == "marker"
        end = [marker(dice.choice([ControlType.ABORT, ControlType.COMMIT]), 3, FIRST_MS)]
        whole = encode_batch(
            end if is_marker else self.records(dice.randint(1, 6)),
            base_offset=self.at,
            leader_epoch=0,
            codec=Codec.NONE if is_marker else dice.choice(list(Codec)),
            timestamp_type=dice.choice(list(TimestampType)),
            append_time_ms=FIRST_MS + 5,
            producer=BatchProducer(
                who,
                -1 if who < 0 else 2,
                -1 if who < 0 or is_marker else dice.randint(0, 1000),
                transactional=kind in ("txn", "marker"),
                control=is_marker,
            ),
        )
        header = read_header(whole)
        if kind == "empty":
            return rebuild_batch(header, [])
        if kind == "horizon":
            return rebuild_batch(header, list(decode_records(whole))[:2], delete_horizon_ms=FIRST_MS + 77)
        return whole

    def old(self, *, wrapped: bool) -> bytes:
        dice = self.dice
        magic, attributes = dice.choice([0, 1]), dice.choice([0, 8])
        fields = {"magic": magic, "time": FIRST_MS + dice.randint(0, 9999)}
        key, value = dice.choice([None, b"k"]), dice.choice([None, b"", b"old" * 30])
        if not wrapped:
            return message(value, key=key, offset=self.at, attributes=attributes * magic, **fields)
        count = dice.randint(1, 4)
        inner = b"".join(
            message(value, key=b"%d" % n, offset=n if magic else self.at + n, **fields) for n in range(count)
        )
        return wrapper(
            inner, dice.choice([1, 2, 3]), offset=self.at + count - 1, attributes=attributes * magic, **fields
        )


@dataclass
class Sight:
    """What is to stay: everything that a reader, a transaction or a retry of a producer can ask."""

    records: list[Record]
    headers: list[tuple[object, ...]]
    segments: list[tuple[object, ...]]

    @classmethod
    def of(cls, log: RemoteLog) -> Sight:
        world = Rewriter(log)
        found = cls([], [], [])
        for row in world.rows:
            for header, batch in walk(world.data(row)):
                found.records += decode_records(batch)
                has_codec = header.records_count and not header.is_control
                found.headers.append((*kept_of(header), None if has_codec else bytes(batch)))
            there = world.bundle(row)
            found.segments.append(
                (
                    *(row.base, row.next, row.records, row.min_ts, row.max_ts, row.leader_epoch, row.flags & 4),
                    decode_txns(there.indexes.txn_index, row.base),
                    *(there.indexes.producer_snapshot, there.indexes.leader_epochs),
                )
            )
        return found


def walk(data: bytes) -> list[tuple[BatchHeader, bytes]]:
    found, at = [], 0
    while at < len(data):
        size = read_header(data[at:]).size_bytes
        found.append((verified(data[at : at + size]), data[at : at + size]))
        at += size
    return found


def kept_of(header: BatchHeader) -> tuple[object, ...]:
    """All of a header but what says in how many bytes its records lie, and how."""
    if header.magic < 2:  # what Kafka's converters make of it
        return (header.base_offset, header.last_offset, -1, -1, -1, header.timestamp_type, False, False, None)
    return (
        *(header.base_offset, header.last_offset, header.producer_id, header.producer_epoch, header.base_sequence),
        *(header.timestamp_type, header.is_control, header.is_transactional, header.delete_horizon_ms),
    )


def bucket_of(seed: int) -> Bucket:
    """A random log in segments."""
    dice, bucket = random.Random(seed), Bucket(0)
    log = RandomLog(dice)
    for _ in range(dice.randint(2, 5)):
        log.parts = []
        for _ in range(dice.randint(1, 12)):
            log.add()
        snapshot = encode_snapshot([ProducerEntry(4, 2, dice.randint(0, 99), log.at - 1, 3, FIRST_MS)])
        first = verified(log.parts[0]).base_offset
        aborted = [AbortedTxn(4, first, log.at - 1, first)] if dice.random() < 0.5 else []
        bucket.log.add(segment_of(log.parts, end=log.at, aborted=aborted, snapshot=snapshot))
    return bucket


def segment_of(parts: Sequence[bytes], **what: Any) -> MemorySegment:
    """As a log seals it, which looks into messages of old formats."""
    made, stats = seal(parts, **what), SegmentStats()
    for part in parts:
        header = verified(part)
        stats.add(part, header.records_count, least_timestamp(header, part), header.max_timestamp, header.leader_epoch)
    whole = made.descriptor
    counted = stats.descriptor(whole.topic_id, whole.partition, whole.base_offset, whole.end_offset)
    return dataclasses.replace(made, descriptor=counted)


def reencoded(bucket: Bucket, config: TopicConfig, owner: str = "m:1") -> ActionResult:
    maintainer = bucket.maintainer(config, owner)
    (action,) = bucket.plan(maintainer, MaintenanceKind.REENCODE).actions
    return bucket.run(maintainer, action)


def codecs(bucket: Bucket) -> set[tuple[int, Codec]]:
    """Of all batches that may have one."""
    world = Rewriter(bucket.log)
    headers = [header for row in world.rows for header, _ in walk(world.data(row))]
    return {(each.magic, each.codec) for each in headers if each.records_count and not each.is_control}


@pytest.mark.parametrize("seed", range(30))
def test_every_record_and_every_transaction_stays(seed: int) -> None:
    bucket = bucket_of(seed)
    before, dice = Sight.of(bucket.log), random.Random(seed)
    for word in dice.sample([*CODECS, "producer"], 3):
        was = codecs(bucket)
        done = reencoded(bucket, TopicConfig(compression_type=word))
        assert done.note == ""
        assert Sight.of(bucket.log) == before, (seed, word)
        wanted = {(2, CODECS[word])} if word in CODECS else {(2, codec) for _, codec in was}
        assert codecs(bucket) <= wanted, (seed, word)
        assert bucket.root.start_offset == before.segments[0][0]
        again = reencoded(bucket, TopicConfig(compression_type=word))
        assert (again.bytes_written, again.bytes_read) == (0, sum(row.size for row in bucket.root.rows))


def test_holes_and_what_others_append_or_trim_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket()
    maintainer = bucket.maintainer(ZSTD)
    first = bucket.root.rows.row(1)
    trim = MaintenanceAction(MaintenanceKind.RETENTION, 0, first.next, "test")
    steps, done = segment_rewriter.reencode_row, list[int]()

    def raced(context: RewriteContext, row: Row, encoding: Encoding) -> Steps[Row | None]:
        made = yield from steps(context, row, encoding)
        if not done:
            bucket.log.fill(600, start=500)
            yield from maintainer._catalog.trim(trim.end, reason="test")
        done.append(row.base)
        return made

    monkeypatch.setattr(maintain, "reencode_row", raced)
    (action,) = bucket.plan(maintainer, MaintenanceKind.REENCODE).actions
    assert (action.start, action.end, action.rows_in) == (0, 500, 5)
    assert bucket.run(maintainer, action).note == ""
    assert done == [0, 200, 300, 400]  # the first was trimmed before its commit, the second before its turn
    assert offsets(bucket.face(), 200) == list(range(200, 600))
    assert codecs(bucket) == {(2, Codec.ZSTD), (2, Codec.NONE)}  # what came behind it is left to the next one
    world = Rewriter(bucket.log)
    hole_row = hole(600, 700, bucket.log.ids.uid(), 1, 0)
    bucket.log.put_root(Rows.from_rows([*world.rows, hole_row]), next_offset=700)
    monkeypatch.undo()
    assert reencoded(bucket, ZSTD, "m:2").note == ""
    assert codecs(bucket) == {(2, Codec.ZSTD)}
    assert (bucket.root.rows.row(-1), bucket.ranges[-1]) == (hole_row, (600, 700))


def test_a_damaged_segment_is_named_and_nothing_of_it_is_replaced() -> None:
    bucket = Bucket()
    row = bucket.root.rows.row(2)
    key = bucket.log.log_key(row)
    found = bucket.store.execute(Get(key))
    assert isinstance(found, Object)
    bucket.store.execute(Delete((key,)))
    bucket.store.execute(Put(key, found.data[:-1] + b"!", crc32c(found.data[:-1] + b"!")))
    with pytest.raises(CorruptionError) as raised:
        reencoded(bucket, ZSTD)
    assert raised.value.path_or_key == key
    rows = [row for row in bucket.root.rows if row.flags & FLAG_MAINTAINER]
    assert [row.base for row in rows] == [0, 100]
    bucket.log.delete(row)
    with pytest.raises(CorruptionError, match="is gone"):
        reencoded(bucket, ZSTD, "m:2")


def test_what_would_be_too_large_stays_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MAX_BATCH_BYTES", "MAX_INT"):
        bucket = Bucket(0)
        bucket.log.add(seal(batches(0, 100, each=50, size=1000, codec=Codec.ZSTD)))
        bucket.log.fill(200, start=100)
        bucket.log.add(seal(batches(200, 300, codec=Codec.GZIP)))
        plain = TopicConfig(compression_type="uncompressed")
        monkeypatch.setattr(segment_rewriter, limit, 20_000)
        done = reencoded(bucket, plain)
        monkeypatch.undo()
        assert done.note.endswith("would exceed the size limit: 1")
        assert codecs(bucket) == {(2, Codec.ZSTD), (2, Codec.NONE)}


def test_only_who_asks_for_it_by_name_gets_it() -> None:
    bucket = Bucket()
    assert {action.kind for action in bucket.plan(bucket.maintainer(ZSTD)).actions} == {MaintenanceKind.MERGE}
    assert set(ROUTINE) == set(MaintenanceKind) - {MaintenanceKind.REENCODE}
    actions = bucket.plan(bucket.maintainer(ZSTD), *MaintenanceKind).actions
    assert [action.kind for action in actions] == [MaintenanceKind.MERGE, MaintenanceKind.REENCODE]
    for action in actions:
        bucket.run(bucket.maintainer(ZSTD, str(action.kind)), action)
    assert (bucket.ranges, codecs(bucket)) == ([(0, 500)], {(2, Codec.ZSTD)})


def test_the_price_is_what_the_plan_says() -> None:
    bucket = Bucket()
    maintainer = bucket.maintainer(ZSTD)
    bucket.run(maintainer, MaintenanceAction(MaintenanceKind.RETENTION, 0, 10, "the claim, and history that is pruned"))
    (action,) = bucket.plan(maintainer, MaintenanceKind.REENCODE).actions
    bucket.store.forget()
    bucket.run(maintainer, action)
    asked = [
        each
        for each in bucket.store.requests
        if "/p/" not in str(getattr(each, "key", ""))
        and not (isinstance(each, Get) and each.key == bucket.log.root_key)
    ]
    assert len(asked) == action.requests  # and the root and its pages, a piece at a time
