"""Every kind of partition directory that we write, each as a topic of one partition ``{kind}-0``.

A kind is a function that gets a :class:`Desk`: the partition, open for writing in a broker's directory, and short ways
to say what producers do. What was appended is noted apart from the log, so that reading is checked against it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.integration.servers.kafka import Seen
from tiered.format.batch import encode_batch
from tiered.format.codecs import Codec
from tiered.format.control import ControlType, marker
from tiered.local.directory.directories import LocalLogs
from tiered.local.partition.partition import PartitionLog
from tiered.model import NewRecord, RecordMetadata, TopicPartition
from tiered.testing.clock import FakeClock

FAR = 2**31 + 5
LAST_SEQUENCE = 2**31 - 1
SMALL = {"segment.bytes": 4_000, "index.interval.bytes": 300, "segment.index.bytes": 4096, "seal.ms": -1}
COMPACT = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "delete.retention.ms": 60_000}


class Desk:
    """One partition, and what was appended to it: ``wrote`` by offset."""

    def __init__(self, log: LocalLogs, tp: TopicPartition, clock: FakeClock) -> None:
        self.log, self.tp, self.clock = log, tp, clock
        self.dice = random.Random(str(tp))
        self.wrote: dict[int, Seen] = {}
        self.batches: list[range] = []

    @property
    def partition(self) -> PartitionLog:
        return self.log.partition(self.tp)

    @property
    def end(self) -> int:
        return self.partition.positions().end_offset

    def records(self, count: int, keys: int = 9) -> list[NewRecord]:
        """Random records of now, a little out of order: null and empty values, headers."""
        found = []
        for _ in range(count):
            self.clock.advance(0.01)
            value = self.dice.choice([b"", b"v" * self.dice.randrange(200), self.dice.randbytes(60)])
            headers: list[tuple[str, bytes | None]] = self.dice.choice([[], [("h", b"1"), ("h", None), ("ü", b"")]])
            at = self.clock.now_ms() - self.dice.randrange(500)
            found.append(NewRecord(value, b"key-%d" % self.dice.randrange(keys), at, headers))
        return found

    def note(self, records: Sequence[NewRecord], told: RecordMetadata) -> None:
        """What an append of ``records`` must have done."""
        append_time = self.partition.config.message_timestamp_type == "LogAppendTime"
        assert told.end_offset - told.offset == len(records)
        self.batches.append(range(told.offset, told.end_offset))
        for offset, record in enumerate(records, told.offset):
            at = self.clock.now_ms() if append_time else record.timestamp
            self.wrote[offset] = Seen(
                offset, at, int(append_time), record.key, record.value, list(record.headers or [])
            )

    def append(self, batches: int = 1, most: int = 8) -> None:
        """Batches of nobody."""
        for _ in range(batches):
            records = self.records(self.dice.randint(1, most))
            self.note(records, self.partition.append(records))

    def send(
        self,
        pid: int,
        sequence: int,
        count: int = 1,
        *,
        epoch: int = 0,
        txn: bool = False,
        codec: Codec = Codec.NONE,
        keys: int = 9,
    ) -> int:
        """A producer's batch; returns its next sequence."""
        records = self.records(count, keys)
        data = encode_batch(
            records, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=txn, codec=codec
        )
        self.note(records, self.partition.append_batches(data))
        return (sequence + count) % (LAST_SEQUENCE + 1)

    def end_txn(self, pid: int, *, abort: bool = False, epoch: int = 0, coordinator: int = 0) -> None:
        """The coordinator's marker."""
        record = marker(ControlType.ABORT if abort else ControlType.COMMIT, coordinator, self.clock.now_ms())
        self.partition.append_as_coordinator(
            encode_batch([record], producer_id=pid, producer_epoch=epoch, transactional=True, control=True)
        )

    def follow(self, base: int, count: int = 1, *, epoch: int = 0) -> None:
        """A batch with an offset of its own, as a leader sends it."""
        records = self.records(count)
        told = self.partition.append_as_follower(encode_batch(records, base_offset=base, leader_epoch=epoch))
        assert told is not None
        self.note(records, told)

    def clean(self) -> None:
        """Seals what there is and cleans it once."""
        self.partition.roll()
        for log in self.log.logs().values():
            if self.tp in log.partitions():
                assert log.cleaner.clean(self.tp) is not None

    def truncate(self, offset: int) -> None:
        """A batch that reaches beyond goes whole."""
        self.partition.truncate_to(offset)
        for batch in self.batches:
            if batch[-1] >= offset:
                for gone in batch:
                    self.wrote.pop(gone, None)


class Kind(NamedTuple):
    """``later``: what is done after the log was closed and opened again."""

    write: Callable[[Desk], None]
    settings: dict[str, Any] = SMALL
    later: Callable[[Desk], None] | None = None


def plain(desk: Desk) -> None:
    desk.append(60)


def nothing(desk: Desk) -> None:
    """A partition without a record."""
    assert desk.end == 0


def rolled(desk: Desk) -> None:
    """The active segment is empty."""
    desk.append(20)
    desk.partition.roll()


def far(desk: Desk) -> None:
    desk.partition.start_at(FAR, 0)
    desk.append(60)


def gaps(desk: Desk) -> None:
    """Offsets without records, up to those that do not fit one segment."""
    for base in (3, 40, 43, 9_000, FAR, FAR + 7, 2 * FAR + 1):
        desk.follow(base, 3)
    desk.append(20)


def deleted_records(desk: Desk) -> None:
    desk.append(60)
    desk.partition.delete_records(desk.end // 2)
    desk.partition.apply_retention()
    desk.append(2)


def all_deleted(desk: Desk) -> None:
    """The start is the end."""
    desk.append(30)
    desk.partition.delete_records(-1)
    desk.partition.apply_retention()


def truncated(desk: Desk) -> None:
    desk.append(60)
    desk.truncate(next(batch[-1] for batch in desk.batches if batch[0] > 100 and len(batch) > 1))
    desk.append(4)


def restarted(desk: Desk) -> None:
    desk.append(20)
    desk.partition.truncate_fully_and_start_at(700)
    desk.wrote.clear()
    desk.append(20)


def retained_by_size(desk: Desk) -> None:
    desk.append(60)
    assert len(desk.partition.apply_retention()) >= 2


def retained_by_time(desk: Desk) -> None:
    """All of it has expired: a new empty segment is left."""
    desk.append(40)
    desk.clock.advance(10)
    desk.partition.apply_retention()
    assert desk.partition.positions().start_offset == desk.end


def epochs(desk: Desk) -> None:
    desk.append(20)
    desk.partition.new_leader_epoch(1)
    desk.append(20)


def idempotent(desk: Desk) -> None:
    """Four producers in turn, one around the end of the sequences, one with a newer epoch."""
    sequences = {11: 0, 12: 0, 13: LAST_SEQUENCE - 20, 14: 0}
    for _ in range(12):
        for pid, sequence in sequences.items():
            sequences[pid] = desk.send(pid, sequence, desk.dice.randint(1, 5))
        desk.append()
    desk.send(14, 0, 3, epoch=1)


def transactions(desk: Desk) -> None:
    """Three producers whose transactions cross, records of nobody between; nothing is open at the end."""
    sequences = {21: 0, 22: 0, 23: 0}
    for turn in range(18):
        for pid, sequence in sequences.items():
            sequences[pid] = desk.send(pid, sequence, desk.dice.randint(1, 4), txn=True)
            if turn % (pid - 19) == 0:
                desk.end_txn(pid, abort=bool(desk.dice.randrange(2)), coordinator=turn)
        desk.append()
    for pid in sequences:
        desk.end_txn(pid, abort=pid == 22, coordinator=20)


def open_transaction(desk: Desk) -> None:
    """One committed, one aborted, one open, and records behind it."""
    desk.send(31, 0, 2, txn=True)
    desk.end_txn(31)
    desk.send(32, 0, 2, txn=True, codec=Codec.LZ4)
    desk.end_txn(32, abort=True)
    sequence = desk.send(31, 2, 3, txn=True)
    desk.append(20)
    desk.send(33, 0, 2)
    desk.send(31, sequence, 2, txn=True)


def cut_transaction(desk: Desk) -> None:
    """A truncation takes an ABORT marker back: its transaction is open again."""
    desk.send(41, 0, 4, txn=True)
    desk.append(20)
    before = desk.end
    desk.end_txn(41, abort=True)
    desk.append(20)
    desk.truncate(before)


def compacted(desk: Desk) -> None:
    """Two rounds: tombstones, gaps, a delete horizon on those that were cleaned, a dirty tail."""
    for _ in range(2):
        desk.append(30)
        tombs = [NewRecord(None, b"key-%d" % number, desk.clock.now_ms()) for number in (1, 5)]
        desk.note(tombs, desk.partition.append(tombs))
        desk.append(1, most=2)
        desk.clean()
    desk.append(10)


def compacted_far(desk: Desk) -> None:
    desk.partition.start_at(FAR, 0)
    desk.append(60)
    desk.clean()


def compacted_producers(desk: Desk) -> None:
    """Everything of a producer is overwritten: an empty batch keeps its sequence."""
    sequence = desk.send(51, 0, 4, keys=1)
    desk.send(51, sequence, 1, keys=1)
    desk.append(40)
    for number in range(9):
        record = [NewRecord(b"last", b"key-%d" % number, desk.clock.now_ms())]
        desk.note(record, desk.partition.append(record))
    desk.clean()


def compacted_transactions(desk: Desk) -> None:
    """Aborted data goes, markers stay with a horizon, then go; an open transaction holds the cleaner back."""
    for pid in (61, 62, 63):
        desk.send(pid, 0, 6, txn=True)
        desk.end_txn(pid, abort=pid != 62)
    desk.append(30)
    desk.clean()
    desk.append(5)
    desk.clean()
    desk.clock.advance(61)
    desk.append(5)
    desk.clean()
    desk.send(62, 6, 3, txn=True)
    desk.append(5)


def compacted_and_deleted(desk: Desk) -> None:
    desk.append(60)
    assert desk.partition.apply_retention()
    desk.clean()
    desk.append(10)


def overflowed(desk: Desk) -> None:
    """As old brokers made them; the raw file is laid before the next open (:func:`lay_overflow`)."""
    desk.append(1)


def check_split(desk: Desk) -> None:
    assert [segment.base_offset for segment in desk.partition.sealed_segments()] == [0]
    desk.append(3)


def moved(desk: Desk) -> None:
    """Comes from the other log directory."""
    desk.append(40)
    desk.send(71, 0, 3, txn=True)
    desk.end_txn(71, abort=True)
    here = desk.log.directory_of(desk.tp)
    desk.log.move(desk.tp, next(path for path in desk.log.directories if path != here))
    desk.append(4)


def more(desk: Desk) -> None:
    """Carried on after a clean close."""
    desk.append(10)


def _codec(name: str) -> Kind:
    return Kind(plain, {**SMALL, "compression.type": name})


KINDS = {
    **{name: _codec(name) for name in ("gzip", "snappy", "lz4", "zstd")},
    "plain": Kind(plain, later=more),
    "append-time": Kind(plain, {**SMALL, "message.timestamp.type": "LogAppendTime"}),
    "preallocated": Kind(plain, {**SMALL, "preallocate": True}),
    "nothing": Kind(nothing),
    "rolled": Kind(rolled),
    "far": Kind(far, later=more),
    "gaps": Kind(gaps),
    "deleted-records": Kind(deleted_records),
    "all-deleted": Kind(all_deleted),
    "truncated": Kind(truncated),
    "restarted": Kind(restarted),
    "retained-by-size": Kind(retained_by_size, {**SMALL, "retention.bytes": 10_000}),
    "retained-by-time": Kind(retained_by_time, {**SMALL, "retention.ms": 5_000}),
    "epochs": Kind(epochs),
    "idempotent": Kind(idempotent),
    "transactions": Kind(transactions),
    "open-transaction": Kind(open_transaction),
    "cut-transaction": Kind(cut_transaction),
    "compacted": Kind(compacted, COMPACT),
    "compacted-far": Kind(compacted_far, COMPACT),
    "compacted-producers": Kind(compacted_producers, COMPACT),
    "compacted-transactions": Kind(compacted_transactions, COMPACT),
    "compacted-and-deleted": Kind(
        compacted_and_deleted, {**COMPACT, "cleanup.policy": "compact,delete", "retention.bytes": 15_000}
    ),
    "overflowed": Kind(overflowed, later=check_split),
    "moved": Kind(moved),
}
"""By the name of the topic."""
