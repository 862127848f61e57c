"""A broker writes, we change its directories, it goes on, and we go on behind it: both say the same at each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tiered
from tests.integration.servers.commands import require, run
from tests.integration.servers.kafka import Broker, Heard
from tests.integration.servers.kafka_clients import BATCHES, Group, Writer, commit_offsets, delete_group, groups
from tests.integration.servers.kafka_desk import Desk
from tests.integration.servers.kafka_kinds import SMALL
from tests.integration.servers.kafka_view import Told, now_clock, open_for_writing, producers_of, tell
from tests.integration.servers.kafka_wire import (
    ActiveProducer,
    ListedTransaction,
    describe_producers,
    list_transactions,
)
from tiered.clock import SystemIds
from tiered.format.batch import read_header
from tiered.local.directory.directories import LocalLogs
from tiered.model import TopicPartition
from tiered.testing.clock import FakeClock

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PLAIN = [TopicPartition(f"codec-{codec}", 0) for codec in CODECS]
TXN = [TopicPartition("txn", 0), TopicPartition("txn", 1)]
COMPACT = [TopicPartition("compact", 0), TopicPartition("compact-txn", 0)]
OFFSETS, TXN_STATE = TopicPartition("__consumer_offsets", 0), TopicPartition("__transaction_state", 0)
WRITTEN = [*PLAIN, *TXN, *COMPACT]
ALL = [*WRITTEN, OFFSETS, TXN_STATE]
BROKER_TOPIC = {"retention.ms": "-1", "internal.segment.bytes": "3000", "index.interval.bytes": "300"}
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


@dataclass
class Trip:
    """The stations: the broker wrote; we changed; it loaded that; it wrote more and was killed, a transaction open; we
    recovered that and took its transactional ids over; it loaded that and took them back; we went on and checked."""

    first: Saying
    read: dict[TopicPartition, Told]
    changed: dict[TopicPartition, Told]
    producers: dict[TopicPartition, list[ActiveProducer]]
    second: Saying
    third: Saying
    read_again: dict[TopicPartition, Told]
    taken_over: dict[TopicPartition, Told]
    fourth: Saying
    fifth: Saying
    read_last: dict[TopicPartition, Told]
    appended: dict[TopicPartition, int]
    verified: str
    said: list[str]


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
    left = Writer(broker.bootstrap, 5, identity="left open")
    left.transaction([TXN[0]], commit=None)
    with Writer(broker.bootstrap, 6) as writer:
        writer.batch(TXN[0])
    for turn in range(5):
        commit_offsets(broker.bootstrap, "steady", {PLAIN[0]: (turn, "note"), TXN[1]: (turn * 2, "")})
    commit_offsets(broker.bootstrap, "other", {PLAIN[1]: (7, "é")})
    commit_offsets(broker.bootstrap, "gone", {PLAIN[1]: (8, "")})
    delete_group(broker.bootstrap, "gone")


def clean(log: LocalLogs, tp: TopicPartition, clock: FakeClock) -> None:
    """Seals it and cleans it once, as a compacted topic."""
    log.alter_topic(tp.topic, {"cleanup.policy": "compact", "delete.retention.ms": 60_000})
    Desk(log, tp, clock).clean()


def we_change(log: LocalLogs, clock: FakeClock) -> None:
    """Each operation on a partition that the broker wrote."""
    for tp in WRITTEN:
        log.alter_topic(tp.topic, SMALL)
    none, gzip, snappy, lz4, zstd = (Desk(log, tp, clock) for tp in PLAIN)
    none.append(10)
    none.partition.roll()
    log.alter_topic(gzip.tp.topic, {"retention.bytes": 3_000})
    assert gzip.partition.apply_retention()
    gzip.append(2)
    snappy.partition.delete_records(snappy.end // 2)
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


def broker_goes_on(broker: Broker) -> None:
    """Batches everywhere, the same transactional ids, one of which had a transaction open; more commits."""
    with Writer(broker.bootstrap, 7) as writer:
        for tp in (*PLAIN, COMPACT[0]):
            for _ in range(5):
                writer.batch(tp)
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


@pytest.fixture(scope="module")
def trip(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trip]:
    """All stations, one broker."""
    require("kafka")
    broker = Broker(tmp_path_factory.mktemp("trip") / "broker", "log.cleaner.enable=false")
    dirs, clock = broker.log_dirs, now_clock()
    try:
        broker.start()
        broker.create({**{tp.topic: 1 for tp in PLAIN}, "txn": 2}, BROKER_TOPIC)
        broker.create({tp.topic: 1 for tp in COMPACT}, {**BROKER_TOPIC, "cleanup.policy": "compact"})
        broker_writes(broker)
        first = Saying.of(broker)
        broker.stop()

        read = tell(dirs, ALL)
        clock.set_ms(now_clock().now_ms())
        with open_for_writing(dirs, clock) as log:
            we_change(log, clock)
        changed = tell(dirs, ALL)
        producers = {tp: producers_of(dirs, tp, one.everything.end) for tp, one in changed.items()}

        broker.start()
        second = Saying.of(broker)
        broker_goes_on(broker)
        third = Saying.of(broker)
        said = broker.said()
        broker.kill()

        read_again = tell(dirs, ALL)
        take_over(dirs, clock, 3)
        taken_over = tell(dirs, ALL)

        broker.start()
        fourth = Saying.of(broker)
        broker_takes_back(broker)
        fifth = Saying.of(broker)
        said += broker.said()
        broker.stop()

        read_last = tell(dirs, ALL)
        take_over(dirs, clock, 1)
        with open_for_writing(dirs, clock) as log:
            for tp in WRITTEN:
                Desk(log, tp, clock).append(3)
            appended = {tp: log.partition(tp).positions().end_offset for tp in WRITTEN}
        verified = run("kafka", "verify", *map(str, dirs), check=False)
        yield Trip(
            *(first, read, changed, producers, second, third, read_again),
            *(taken_over, fourth, fifth, read_last, appended, verified, said),
        )
    finally:
        broker.stop()


partitions = pytest.mark.parametrize("tp", ALL, ids=str)


@partitions
def test_we_read_what_it_wrote(trip: Trip, tp: TopicPartition) -> None:
    assert trip.read[tp][:2] == (trip.first.everything[tp], trip.first.committed[tp])


@partitions
def test_it_serves_what_we_changed(trip: Trip, tp: TopicPartition) -> None:
    assert trip.changed[tp] != trip.read[tp]
    assert (trip.second.everything[tp], trip.second.committed[tp]) == trip.changed[tp][:2]
    assert trip.second.producers[tp] == trip.producers[tp]


@partitions
def test_we_read_what_it_appended(trip: Trip, tp: TopicPartition) -> None:
    before, after = trip.second.everything[tp], trip.third.everything[tp]
    assert after.records[: len(before.records)] == before.records
    assert after.end > before.end
    assert trip.read_again[tp][:2] == (after, trip.third.committed[tp])


@partitions
def test_it_serves_what_we_recovered(trip: Trip, tp: TopicPartition) -> None:
    before, after = trip.read_again[tp].everything, trip.taken_over[tp]
    assert after.everything.records[: len(before.records)] == before.records
    assert (trip.fourth.everything[tp], trip.fourth.committed[tp]) == after[:2]


@partitions
def test_we_read_what_it_took_back(trip: Trip, tp: TopicPartition) -> None:
    assert trip.read_last[tp][:2] == (trip.fifth.everything[tp], trip.fifth.committed[tp])


@pytest.mark.parametrize("tp", WRITTEN, ids=str)
def test_we_append_behind_it(trip: Trip, tp: TopicPartition) -> None:
    assert trip.appended[tp] > trip.fifth.everything[tp].end


def test_groups_outlive_our_cleaning_of_their_log(trip: Trip) -> None:
    assert set(trip.first.groups) == {"steady", "other"}
    assert trip.second.groups == trip.first.groups
    assert trip.third.groups["steady"] == {**trip.first.groups["steady"], PLAIN[0]: (90, "later")}
    assert trip.fourth.groups == trip.fifth.groups == trip.third.groups
    assert len(trip.changed[OFFSETS].everything.records) < len(trip.read[OFFSETS].everything.records)


def states(saying: Saying) -> dict[str, str]:
    return {one.transactional_id: one.state for one in saying.transactions}


def test_transactional_ids_outlive_our_cleaning_of_their_log(trip: Trip) -> None:
    assert states(trip.first) == {"a": "CompleteCommit", "b": "CompleteAbort", "left open": "Ongoing"}
    assert trip.second.transactions == trip.first.transactions


def test_an_open_transaction_stays_open_until_its_owner_comes_back(trip: Trip) -> None:
    opened = trip.first.committed[TXN[0]].end
    assert opened < trip.first.everything[TXN[0]].end
    assert trip.changed[TXN[0]].committed.end == trip.second.committed[TXN[0]].end == opened
    assert trip.third.committed[TXN[0]].end > opened


def test_transactional_ids_change_hands_both_ways(trip: Trip) -> None:
    assert states(trip.third) == {"a": "CompleteAbort", "b": "CompleteAbort", "left open": "Ongoing"}
    assert states(trip.fourth) == {**dict.fromkeys(("a", "b", "left open", "ours"), "CompleteAbort")}
    assert states(trip.fifth) == states(trip.fourth)
    for tp in TXN:
        assert trip.third.committed[tp].end < trip.third.everything[tp].end
        assert trip.fifth.committed[tp].end == trip.fifth.everything[tp].end
    mine = [record for record in trip.fourth.committed[TXN[0]].records if record.value == b"first"]
    assert len(mine) == 3
    assert b"never" not in {record.value for record in trip.fifth.committed[TXN[1]].records}


def test_nobody_complained(trip: Trip) -> None:
    assert trip.verified.splitlines()[-1].endswith(": OK"), trip.verified
    names = [str(tp) for tp in ALL]
    bad = [line for line in trip.said if "ERROR" in line or ("WARN" in line and any(name in line for name in names))]
    assert bad == []
