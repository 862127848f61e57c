"""Every kind of partition directory that we write, each as a topic of one partition ``{kind}-0``.

A kind is a function that gets a :class:`Desk`: the partition, open for writing in a broker's directory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.integration.servers.kafka import Seen
from tests.integration.servers.kafka_desk import LAST_SEQUENCE, Desk
from tests.support.given import append_given, move_start, start_over
from tests.unit.format.legacy import message, wrapper
from tiered.format.batch import encode_batch
from tiered.format.codecs import Codec
from tiered.model import NO_TIMESTAMP, NewRecord
from tiered.plan.producer import ProducerStamp

FAR = 2**31 + 5
SMALL = {"segment.bytes": 4_000, "index.interval.bytes": 300, "segment.index.bytes": 4096, "seal.ms": -1}
COMPACT = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "delete.retention.ms": 60_000}


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
    move_start(desk.partition, desk.end // 2)
    desk.partition.apply_retention()
    desk.append(2)


def all_deleted(desk: Desk) -> None:
    """The start is the end."""
    desk.append(30)
    move_start(desk.partition, desk.end)
    desk.partition.apply_retention()


def truncated(desk: Desk) -> None:
    desk.append(60)
    desk.truncate(next(batch[-1] for batch in desk.batches if batch[0] > 100 and len(batch) > 1))
    desk.append(4)


def restarted(desk: Desk) -> None:
    desk.append(20)
    start_over(desk.partition, 700)
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


def epochs_ahead(desk: Desk) -> None:
    """Epochs that the cluster has not reached: its leader begins below them."""
    desk.append(10)
    desk.partition.new_leader_epoch(40)
    desk.append(10)
    desk.partition.new_leader_epoch(41)
    desk.append(10)


def timeless(desk: Desk) -> None:
    """Records without a time, then some with."""
    for number in range(3):
        records = [NewRecord(b"v", b"%d" % number, NO_TIMESTAMP)] * 2
        desk.note(records, desk.partition.append_batches(encode_batch(records)))
    desk.append(20)


def recompressed(desk: Desk) -> None:
    """Producers' codecs differ from the topic's."""
    for number in range(30):
        desk.send(16, number * 2, 2, codec=list(Codec)[number % 5])


def old_formats(desk: Desk) -> None:
    """Messages of before 2017, single and in compressed sets, in front of batches."""
    at = desk.clock.now_ms()
    for magic in (0, 1):
        for _ in range(6):
            base = desk.end
            inner = b"".join(message(magic, number + (base + 1) * (1 - magic), b"k", b"v", at) for number in range(3))
            data = message(magic, base, b"k", b"single", at)
            data += wrapper(magic, base + 3, inner, Codec.GZIP, at)
            append_given(desk.partition, data)
            for offset, value in enumerate((b"single", b"v", b"v", b"v"), base):
                desk.wrote[offset] = Seen(offset, at if magic else NO_TIMESTAMP, 0, b"k", value, [])
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


def our_transactions(desk: Desk) -> None:
    """By our coordinator: committed, aborted, committed again under the same id."""
    desk.append(2)
    coordinator = desk.log.transactions
    for commit in (True, False, True):
        producer = coordinator.begin("ours")
        coordinator.join(producer, [desk.tp])
        for sequence in (0, 2):
            records = desk.records(2)
            stamp = ProducerStamp(producer.producer_id, producer.producer_epoch, sequence)
            desk.note(records, desk.partition.append_as_producer(records, stamp))
        coordinator.end(producer, commit=commit)


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
    "epochs-ahead": Kind(epochs_ahead),
    "timeless": Kind(timeless),
    "old-formats": Kind(old_formats),
    "recompressed": Kind(recompressed, {**SMALL, "compression.type": "zstd"}),
    "idempotent": Kind(idempotent),
    "transactions": Kind(transactions),
    "open-transaction": Kind(open_transaction),
    "our-transactions": Kind(our_transactions, later=our_transactions),
    "cut-transaction": Kind(cut_transaction),
    "compacted": Kind(compacted, COMPACT),
    "compacted-far": Kind(compacted_far, COMPACT),
    "compacted-producers": Kind(compacted_producers, COMPACT),
    "compacted-transactions": Kind(compacted_transactions, COMPACT),
    "compacted-and-deleted": Kind(
        compacted_and_deleted, {**COMPACT, "cleanup.policy": "compact,delete", "retention.bytes": 15_000}
    ),
    "moved": Kind(moved),
}
"""By the name of the topic."""
