"""The stations of a round trip: what a broker, its clients and we do to the same directories, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tiered
from tests.integration.servers.kafka import Broker, Heard
from tests.integration.servers.kafka_clients import BATCHES, Group, Writer, commit_offsets, delete_group, groups
from tests.integration.servers.kafka_desk import Desk
from tests.integration.servers.kafka_kinds import SMALL
from tests.integration.servers.kafka_wire import (
    ActiveProducer,
    ListedTransaction,
    describe_producers,
    list_transactions,
)
from tests.support.given import move_start
from tiered.clock import SystemIds
from tiered.format.batch import read_header
from tiered.format.checkpoint import decode_offsets
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.model import TopicPartition
from tiered.testing.clock import FakeClock

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PLAIN = [TopicPartition(f"codec-{codec}", 0) for codec in CODECS]
TXN = [TopicPartition("txn", 0), TopicPartition("txn", 1)]
COMPACT = [TopicPartition("compact", 0), TopicPartition("compact-txn", 0)]
OFFSETS, TXN_STATE = TopicPartition("__consumer_offsets", 0), TopicPartition("__transaction_state", 0)
CLEANED = TopicPartition("cleaned", 0)
WRITTEN = [*PLAIN, *TXN, *COMPACT, CLEANED]
ALL = [*WRITTEN, OFFSETS, TXN_STATE]
BROKER_TOPIC = {"retention.ms": "-1", "internal.segment.bytes": "3000", "index.interval.bytes": "300"}
COMPACTED = {**BROKER_TOPIC, "cleanup.policy": "compact"}
HELD_BACK = {**COMPACTED, "min.compaction.lag.ms": str(2**62), "max.compaction.lag.ms": str(2**63 - 1)}
AT_ONCE = {**COMPACTED, "min.cleanable.dirty.ratio": "0.01"}
PASSING = ("gone", "again")
"""Topics that the broker deletes, and one of them it makes again, behind our back."""

OUR_PID = 1_000_000


@dataclass
class Saying:
    """What a broker says of itself, asked at once."""

    everything: dict[TopicPartition, Heard]
    committed: dict[TopicPartition, Heard]
    producers: dict[TopicPartition, list[ActiveProducer]]
    groups: dict[str, Group]
    transactions: list[ListedTransaction]

    @classmethod
    def of(cls, broker: Broker) -> Saying:
        return cls(
            broker.hear(ALL, isolation="read_uncommitted"),
            broker.hear(ALL, isolation="read_committed"),
            describe_producers(broker.bootstrap, ALL),
            groups(broker.bootstrap),
            list_transactions(broker.bootstrap),
        )


def make_topics(broker: Broker) -> None:
    """Over two log directories; of ``txn`` one partition lies in each."""
    broker.create({**{tp.topic: 1 for tp in PLAIN}, "txn": 2, **dict.fromkeys(PASSING, 3)}, BROKER_TOPIC)
    broker.create({tp.topic: 1 for tp in COMPACT}, HELD_BACK)
    broker.create({CLEANED.topic: 1}, AT_ONCE)


def write_cleaned(broker: Broker, seed: int) -> None:
    """Keys that are overwritten, and a wait until the broker's cleaner has come to the active segment."""
    with Writer(broker.bootstrap, seed) as writer:
        for _ in range(BATCHES):
            writer.batch(CLEANED)
    [directory] = [path for path in broker.log_dirs if (path / str(CLEANED)).exists()]
    checkpoint = directory / "cleaner-offset-checkpoint"

    def cleaned() -> bool:
        active = max(int(path.stem) for path in (directory / str(CLEANED)).glob("*.log"))
        return checkpoint.exists() and decode_offsets(checkpoint.read_text()).get(CLEANED) == active

    broker.wait_until(cleaned)


def broker_writes(broker: Broker) -> None:
    """All codecs, transactions of three ids, the last one left open, keys that are overwritten, groups."""
    for tp in PLAIN:
        with Writer(broker.bootstrap, 1, codec=tp.topic.removeprefix("codec-")) as writer:
            for _ in range(BATCHES):
                writer.batch(tp)
    both = [*TXN, COMPACT[1]]
    with (
        Writer(broker.bootstrap, 2, identity="a") as one,
        Writer(broker.bootstrap, 3, identity="b", codec="lz4") as two,
    ):
        for turn in range(6):
            one.transaction(both, commit=turn != 2)
            two.transaction(both, commit=turn % 2 == 0)
    with Writer(broker.bootstrap, 4) as writer:
        for _ in range(2 * BATCHES):
            writer.batch(COMPACT[0])
        writer.batch(TXN[1])
    write_cleaned(broker, 10)
    left = Writer(broker.bootstrap, 5, identity="left open")
    left.transaction([TXN[0]], commit=None)
    with Writer(broker.bootstrap, 6) as writer:
        writer.batch(TXN[0])
    for turn in range(5):
        commit_offsets(broker.bootstrap, "steady", {PLAIN[0]: (turn, "note"), TXN[1]: (turn * 2, "")})
    commit_offsets(broker.bootstrap, "other", {PLAIN[1]: (7, "é")})
    commit_offsets(broker.bootstrap, "gone", {PLAIN[1]: (8, "")})
    delete_group(broker.bootstrap, "gone")


def clean(log: LocalTier, tp: TopicPartition, clock: FakeClock) -> None:
    """Seals it and cleans it once, as a compacted topic."""
    log.alter_topic(tp.topic, {"cleanup.policy": "compact", "delete.retention.ms": 60_000})
    Desk(log, tp, clock).clean()


def we_change(log: LocalTier, clock: FakeClock) -> None:
    """Each operation on a partition that the broker wrote."""
    for tp in WRITTEN:
        log.alter_topic(tp.topic, SMALL)
    none, gzip, snappy, lz4, zstd = (Desk(log, tp, clock) for tp in PLAIN)
    none.append(10)
    none.partition.roll()
    log.alter_topic(gzip.tp.topic, {"retention.bytes": 3_000})
    assert gzip.partition.apply_retention()
    log.alter_topic(gzip.tp.topic, {"retention.bytes": -1})  # else the next open may go on with it behind our back
    gzip.append(2)
    move_start(snappy.partition, snappy.end // 2)
    assert snappy.partition.apply_retention()
    lz4.partition.truncate_to(lz4.end // 2)
    lz4.append(2)
    for batch in list(none.partition.read_batches(none.end - 20)):
        zstd.partition.append_batches(bytes(batch))
    desk = Desk(log, TXN[0], clock)
    for number, abort in enumerate((True, False)):
        desk.send(OUR_PID + number, 0, 3, txn=True)
        desk.append(1)
        desk.end_txn(OUR_PID + number, abort=abort)
    bounds = [read_header(batch).base_offset for batch in log.partition(TXN[1]).read_batches(0)]
    log.partition(TXN[1]).truncate_to(bounds[-1])
    for tp in (*COMPACT, OFFSETS, TXN_STATE):
        clean(log, tp, clock)
    Desk(log, COMPACT[0], clock).append(3)
    Desk(log, CLEANED, clock).append(10)
    clean(log, CLEANED, clock)


def broker_goes_on(broker: Broker) -> None:
    """Batches everywhere, the same transactional ids, one of which had a transaction open; more commits."""
    with Writer(broker.bootstrap, 7) as writer:
        for tp in (*PLAIN, COMPACT[0]):
            for _ in range(5):
                writer.batch(tp)
    write_cleaned(broker, 11)
    broker.delete(PASSING)
    broker.create({"again": 2}, BROKER_TOPIC)
    with Writer(broker.bootstrap, 8, identity="a") as one, Writer(broker.bootstrap, 9, identity="left open") as left:
        one.transaction([*TXN, COMPACT[1]], commit=True)
        left.transaction(TXN, commit=True)
        one.transaction(TXN, commit=False)
        left.transaction(TXN, commit=None)
    commit_offsets(broker.bootstrap, "steady", {PLAIN[0]: (90, "later")})


def take_over(dirs: list[Path], clock: FakeClock, sessions: int) -> None:
    """Transactions of a new id, and of one that a broker's client used; one commits, one aborts, in each session."""
    for _ in range(sessions):
        with tiered.open(dirs, clock=clock, ids=SystemIds()) as log:
            topic = log.topic("txn")
            for name, turn in (("ours", 0), ("a", 1)):
                with topic.transaction(name) as txn:
                    txn.append(b"first", key=b"key-1", partition=turn)
                    txn.append(b"second", key=b"key-2", topic="compact-txn")
                txn = topic.transaction(name)
                txn.append(b"never", key=b"key-1", partition=turn)
                txn.abort()


def broker_takes_back(broker: Broker) -> None:
    """The same ids again."""
    url = broker.bootstrap
    for number, name in enumerate(("ours", "a", "left open")):
        with Writer(url, 20 + number, identity=name) as writer:
            writer.transaction([*TXN, COMPACT[1]], commit=True)
            writer.transaction(TXN, commit=False)
