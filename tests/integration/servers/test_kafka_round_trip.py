"""A broker writes, we change its directories, it goes on, and we go on behind it: both say the same at each step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.integration.servers.commands import require, run
from tests.integration.servers.kafka import Broker
from tests.integration.servers.kafka_clients import Writer
from tests.integration.servers.kafka_desk import Desk
from tests.integration.servers.kafka_killed import DECIDED, UNDECIDED, write_and_be_killed
from tests.integration.servers.kafka_trip import (
    ALL,
    CLEANED,
    OFFSETS,
    PASSING,
    PLAIN,
    TXN,
    WRITTEN,
    Saying,
    broker_goes_on,
    broker_takes_back,
    broker_writes,
    make_topics,
    take_over,
    we_change,
)
from tests.integration.servers.kafka_view import Told, now_clock, open_for_writing, producers_of, tell
from tests.integration.servers.kafka_wire import ActiveProducer, ListedTransaction, list_transactions
from tests.support.admin import check
from tiered.check.findings import Finding, Severity
from tiered.model import TopicPartition


def states(transactions: list[ListedTransaction]) -> dict[str, str]:
    return {one.transactional_id: one.state for one in transactions}


@dataclass
class Trip:
    """The stations: the broker wrote; we changed; it loaded that; it wrote more and was killed, a transaction open; we
    recovered that and took its transactional ids over; it loaded that and took them back; we went on and checked, and
    were killed in the middle of transactions; the broker ended those."""

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
    held: list[TopicPartition]
    sixth: Saying
    seventh: Saying
    read_after_kill: dict[TopicPartition, Told]
    findings: list[Finding]
    verified: str
    said: list[str]


@pytest.fixture(scope="module")
def trip(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trip]:
    """All stations, one broker."""
    require("kafka")
    work = tmp_path_factory.mktemp("trip") / "broker"
    broker = Broker(work, "log.cleaner.backoff.ms=100", "log.segment.delete.delay.ms=100", log_dirs=2)
    dirs, clock = broker.log_dirs, now_clock()
    try:
        broker.start()
        make_topics(broker)
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
            held = log.partitions()
            appended = {tp: log.partition(tp).positions().end_offset for tp in WRITTEN}
        verified = run("kafka", "verify", *map(str, dirs), check=False)

        write_and_be_killed("transactions", dirs)
        broker.start()
        broker.wait_until(lambda: states(list_transactions(broker.bootstrap))[DECIDED] == "CompleteCommit")
        sixth = Saying.of(broker)
        with Writer(broker.bootstrap, 30, identity=UNDECIDED) as writer:
            writer.transaction(TXN, commit=True)
        seventh = Saying.of(broker)
        broker.stop()
        read_after_kill = tell(dirs, ALL)
        findings = [
            finding for path in dirs for finding in check(path, None).findings if finding.severity is not Severity.INFO
        ]
        yield Trip(
            first=first,
            read=read,
            changed=changed,
            producers=producers,
            second=second,
            third=third,
            read_again=read_again,
            taken_over=taken_over,
            fourth=fourth,
            fifth=fifth,
            read_last=read_last,
            appended=appended,
            held=held,
            sixth=sixth,
            seventh=seventh,
            read_after_kill=read_after_kill,
            findings=findings,
            verified=verified,
            said=said,
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
    if tp != CLEANED:
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


def test_both_clean_behind_each_other(trip: Trip) -> None:
    """The broker's cleaner, ours, the broker's again: the newest record of each key is what it was."""
    views = [trip.first.everything[CLEANED], trip.changed[CLEANED].everything, trip.third.everything[CLEANED]]
    assert all(len(view.records) < view.end - view.start for view in views)
    for before, after in itertools.pairwise(views):
        newest = {record.key: record for record in before.records} | {record.key: record for record in after.records}
        kept = {record.key: record for record in after.records}
        assert {key: record for key, record in newest.items() if record.value is not None} == {
            key: record for key, record in kept.items() if record.value is not None
        }


def test_topics_that_the_broker_deleted_stay_deleted(trip: Trip) -> None:
    assert [tp for tp in trip.held if tp.topic in PASSING] == [TopicPartition("again", number) for number in (0, 1)]


@pytest.mark.parametrize("tp", WRITTEN, ids=str)
def test_we_append_behind_it(trip: Trip, tp: TopicPartition) -> None:
    assert trip.appended[tp] > trip.fifth.everything[tp].end


def test_groups_outlive_our_cleaning_of_their_log(trip: Trip) -> None:
    assert set(trip.first.groups) == {"steady", "other"}
    assert trip.second.groups == trip.first.groups
    assert trip.third.groups["steady"] == {**trip.first.groups["steady"], PLAIN[0]: (90, "later")}
    assert trip.fourth.groups == trip.fifth.groups == trip.third.groups
    assert len(trip.changed[OFFSETS].everything.records) < len(trip.read[OFFSETS].everything.records)


def test_transactional_ids_outlive_our_cleaning_of_their_log(trip: Trip) -> None:
    assert states(trip.first.transactions) == {"a": "CompleteCommit", "b": "CompleteAbort", "left open": "Ongoing"}
    assert trip.second.transactions == trip.first.transactions


def test_an_open_transaction_stays_open_until_its_owner_comes_back(trip: Trip) -> None:
    opened = trip.first.committed[TXN[0]].end
    assert opened < trip.first.everything[TXN[0]].end
    assert trip.changed[TXN[0]].committed.end == trip.second.committed[TXN[0]].end == opened
    assert trip.third.committed[TXN[0]].end > opened


def test_transactional_ids_change_hands_both_ways(trip: Trip) -> None:
    assert states(trip.third.transactions) == {"a": "CompleteAbort", "b": "CompleteAbort", "left open": "Ongoing"}
    ended = dict.fromkeys(("a", "b", "left open", "ours"), "CompleteAbort")
    taken = states(trip.fourth.transactions)
    assert taken | {"left open": "CompleteAbort"} == ended
    assert taken["left open"] in ("CompleteAbort", "Ongoing")  # ended by us, or left to the broker
    assert states(trip.fifth.transactions) == ended
    for tp in TXN:
        assert trip.third.committed[tp].end < trip.third.everything[tp].end
        assert trip.fifth.committed[tp].end == trip.fifth.everything[tp].end
    mine = [record for record in trip.fifth.committed[TXN[0]].records if record.value == b"first"]
    assert len(mine) == 3
    assert b"never" not in {record.value for record in trip.fifth.committed[TXN[1]].records}


def test_a_broker_completes_what_a_killed_process_of_ours_had_decided(trip: Trip) -> None:
    after = states(trip.sixth.transactions)
    assert (after[DECIDED], after[UNDECIDED]) == ("CompleteCommit", "Ongoing")
    for tp in TXN:
        everything = [record.value for record in trip.seventh.everything[tp].records]
        committed = [record.value for record in trip.seventh.committed[tp].records]
        assert (everything.count(DECIDED.encode()), everything.count(UNDECIDED.encode())) == (1, 1)
        assert (committed.count(DECIDED.encode()), committed.count(UNDECIDED.encode())) == (1, 0)
        assert trip.seventh.committed[tp].end == trip.seventh.everything[tp].end
        assert trip.read_after_kill[tp][:2] == (trip.seventh.everything[tp], trip.seventh.committed[tp])


def test_nobody_complained(trip: Trip) -> None:
    assert trip.verified.splitlines()[-1].endswith(": OK"), trip.verified
    names = [str(tp) for tp in ALL]
    bad = [line for line in trip.said if "ERROR" in line or ("WARN" in line and any(name in line for name in names))]
    assert bad == []
    assert trip.findings == []
