"""The driver of a sink: decisions and commits, request by request, with lost answers, crashes and rivals."""

from __future__ import annotations

import dataclasses
from uuid import UUID

import pytest

from tests.unit.plan.staging import staged
from tests.unit.remote.catalog.script import TOPIC_ID, ScriptedStore, World
from tiered.errors import (
    ConfigError,
    CorruptionError,
    FencedError,
    LogDestroyedError,
)
from tiered.format.decision import ABORTED, COMMITTED, Decision, decode_decision, encode_decision
from tiered.format.keys import decision_key, parse_decision_key
from tiered.format.root import Root
from tiered.model import Row
from tiered.remote.catalog import Catalog
from tiered.remote.conditional_put import COMMIT_DEADLINE_MS, deadline_after
from tiered.remote.roots import TopicIds, make_roots
from tiered.remote.sink_commit import Sink, hand_over, put_decision, read_decision
from tiered.store.driver import drive
from tiered.testing.clock import FakeClock

IDS = TopicIds("flights", TOPIC_ID)
NAMES = {TOPIC_ID: "flights"}


def made(partitions: int = 3) -> World:
    world = World()
    world.run(make_roots(IDS, range(partitions), "test"))
    world.store.puts.clear()
    world.store.gets = 0
    return world


def decided(txn: str, batch: int, *partitions: int, first: int = 0) -> Decision:
    rows = {
        (TOPIC_ID, p): (staged(3, first + 10 * p, txn, batch), staged(2, first + 10 * p + 1, txn, batch))
        for p in partitions
    }
    return Decision(txn, batch, COMMITTED, rows)


def root_of(world: World, partition: int) -> Root:
    root = world.run(Catalog(TOPIC_ID, partition, "flights").load())
    assert root is not None
    return root


def requests(store: ScriptedStore) -> tuple[int, int]:
    return store.gets, len(store.puts)


def test_a_batch_costs_one_get_and_one_cas_a_partition_it_touches_and_a_decision() -> None:
    world = made()
    sink = Sink("driver:1", NAMES)
    decision = world.run(sink.decide(decided("q", 0, 0, 2)))
    assert requests(world.store) == (2, 1)
    landed = world.run(sink.commit_staged(decision))
    assert requests(world.store) == (2, 5)  # a copy of each root
    assert [(each.partition, each.base, each.end) for each in landed] == [(0, 0, 5), (2, 0, 5)]
    assert [root_of(world, number).version for number in range(3)] == [2, 1, 2]
    world.store.gets = 0
    decision = world.run(sink.decide(decided("q", 1, 2)))
    landed = world.run(sink.commit_staged(decision))
    assert requests(world.store) == (1, 8)
    assert [(each.base, each.end, each.root.txns) for each in landed] == [(5, 10, (("q", 1),))]


@pytest.mark.parametrize("rival", [False, True])
def test_a_machine_that_slept_asks_the_store_what_time_it_is(rival: bool) -> None:
    """Its monotonic clock did not count the sleep, and a root that is unchanged tells no time."""
    world = made()
    sink = Sink("driver:1", NAMES)
    world.run(sink.commit_staged(world.run(sink.decide(decided("q", 0, 0)))))
    decision = world.run(sink.decide(decided("q", 1, 0)))
    if rival:
        other = Sink("driver:2", NAMES)
        world.run(other.commit_staged(world.run(other.decide(decided("r", 0, 0)))))
    world.clock.jump(2 * 86_400)
    world.store.gets = 0
    (landed,) = world.run(sink.commit_staged(decision))
    assert (landed.base, landed.end) == ((10, 15) if rival else (5, 10))
    assert landed.root.commit.ts_ms >= world.clock.now_ms() - 60_000
    assert world.store.gets == 1
    world.store.gets = 0
    world.run(sink.commit_staged(world.run(sink.decide(decided("q", 2, 0)))))
    assert world.store.gets == 1


def test_a_clock_far_ahead_is_refused_once_the_store_was_asked() -> None:
    world = made()
    sink = Sink("driver:1", NAMES)
    decision = world.run(sink.decide(decided("q", 0, 0)))
    puts = len(world.store.puts)
    ahead = FakeClock(world.clock.now_ms() + 2 * 86_400_000)
    with pytest.raises(ConfigError, match="later than the store's clock"):
        drive(world.store, sink.commit_staged(decision), clock=ahead, ids=world.ids)
    assert len(world.store.puts) == puts


def test_nothing_is_decided_while_a_local_log_owns_a_partition() -> None:
    world = made()
    desk = world.desk()
    desk.claim(desk.proof(empty=True, end_offset=0))
    sink = Sink("driver:1", NAMES)
    with pytest.raises(FencedError, match="tiered topic transfer flights spark"):
        world.run(sink.decide(decided("q", 0, 0, 1)))
    assert world.run(read_decision(decision_key("q", 0))) is None
    changed = world.run(hand_over(IDS, range(3), "spark", "cli:1"))
    assert [made for _, made in changed] == [True] * 3
    assert [made for _, made in world.run(hand_over(IDS, range(3), "spark", "cli:1"))] == [False] * 3
    world.run(sink.commit_staged(world.run(sink.decide(decided("q", 0, 0, 1)))))
    with pytest.raises(FencedError, match="the commit was not made"):
        world.run(desk.catalog.append([desk.row(0, 10)]))
    with pytest.raises(FencedError, match="topic transfer flights local"):
        desk.claim()


def test_a_handover_between_decision_and_commit_stops_that_partition_alone() -> None:
    world = made()
    sink = Sink("driver:1", NAMES)
    decision = world.run(sink.decide(decided("q", 0, 0, 1)))
    world.run(hand_over(IDS, [0], "local", "cli:1"))
    with pytest.raises(FencedError, match="flights-0"):
        world.run(sink.commit_staged(decision))
    assert [root_of(world, number).next_offset for number in range(2)] == [0, 5]
    world.run(hand_over(IDS, [0], "spark", "cli:1"))
    world.run(sink.commit_staged(decision))
    assert [root_of(world, number).next_offset for number in range(2)] == [5, 5]


def aborted(world: World, decision: Decision) -> Decision:
    steps = put_decision(dataclasses.replace(decision, state=ABORTED), world.run(deadline_after(COMMIT_DEADLINE_MS)))
    found = world.run(steps)
    assert found is not None
    return found


def test_what_a_collector_aborted_is_never_committed_and_what_is_staged_anew_is() -> None:
    world = made()
    gone = decided("q", 0, 0)
    assert aborted(world, gone).state == ABORTED
    sink = Sink("driver:1", NAMES)
    with pytest.raises(FencedError, match="aborted"):
        world.run(sink.decide(gone))
    anew = world.run(sink.decide(decided("q", 0, 0, 1, first=700)))
    assert (anew.generation, anew.key) == (1, "txn/q/0.1")
    world.run(sink.commit_staged(anew))
    assert world.run(Sink("driver:2", NAMES).decide(decided("q", 0, 2, first=900))) == anew
    with pytest.raises(ConfigError, match="aborted"):
        world.run(sink.commit_staged(dataclasses.replace(gone, state=ABORTED)))


def test_a_partition_without_a_root_is_an_error() -> None:
    world = made(1)
    with pytest.raises(LogDestroyedError, match="flights-5"):
        world.run(Sink("driver:1", NAMES).decide(decided("q", 0, 5)))


def test_many_segments_and_partitions_in_one_batch() -> None:
    world = made(100)
    rows = {(TOPIC_ID, p): tuple([staged(2, p * 1000 + n, "q", 0) for n in range(40)]) for p in range(99)}
    rows[TOPIC_ID, 99] = tuple([staged(1, 10**6 + number, "q", 0) for number in range(2500)])
    sink = Sink("driver:1", NAMES)
    decision = world.run(sink.decide(Decision("q", 0, COMMITTED, rows)))
    assert decode_decision(encode_decision(decision), key=decision.key) == decision
    landed = world.run(sink.commit_staged(decision))
    assert [each.end for each in landed] == [80] * 99 + [2500]
    more = tuple([staged(1, 2 * 10**6 + number, "q", 1) for number in range(2)])
    decision = world.run(sink.decide(Decision("q", 1, COMMITTED, {(TOPIC_ID, 99): more})))
    (last,) = world.run(sink.commit_staged(decision))
    assert (last.end, len(last.root.rows), last.root.leaves.tally.segments) == (2502, 454, 2048)


# -- the object ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("txn", ["q", "a/b", "..", ".", "käse 100%", "x" * 200, "%2E"])
def test_keys_of_decisions_are_taken_apart_as_they_were_made(txn: str) -> None:
    for generation in (0, 7):
        key = decision_key(txn, 12, generation)
        assert parse_decision_key(key) == (txn, 12, generation)
        assert key.count("/") == 2


@pytest.mark.parametrize("txn", ["", "x" * 201, "ä" * 34, "a\nb", "\ud800"])
def test_ids_that_no_key_can_hold_are_refused(txn: str) -> None:
    with pytest.raises(ConfigError, match="transaction id"):
        decision_key(txn, 0)


@pytest.mark.parametrize(
    "key", ["txn/q", "txn/q/01", "txn/q/1.0", "txn/q/x", "txn/a b/1", "txn/%2e/1", "txn/q/4294967296"]
)
def test_other_keys_are_no_decisions(key: str) -> None:
    assert parse_decision_key(key) is None


def test_a_decision_is_what_was_written_or_refused() -> None:
    rows: dict[tuple[UUID, int], tuple[Row, ...]] = {(TOPIC_ID, 1): (staged(3, 1),), (TOPIC_ID, 0): ()}
    decision = Decision("q", 0, COMMITTED, rows, {(TOPIC_ID, 1): 7, (TOPIC_ID, 0): 0})
    body = encode_decision(decision)
    assert decode_decision(body, key="txn/q/0") == decision
    for at in range(0, len(body), 7):
        broken = body[:at] + bytes([body[at] ^ 0x40]) + body[at + 1 :]
        with pytest.raises(CorruptionError):
            decode_decision(broken, key="txn/q/0")
    with pytest.raises(CorruptionError, match="copied"):
        decode_decision(body, key="txn/q/1")
    odd = encode_decision(dataclasses.replace(decision, state="perhaps"))
    with pytest.raises(CorruptionError, match="neither"):
        decode_decision(odd, key="txn/q/0")
