"""A member of a group: joining, taking, handing over, dying, committing, leaving."""

from __future__ import annotations

import copy
import json
from collections import Counter
from uuid import UUID

import pytest

from tests.unit.group.group_world import HEARTBEAT_S, SETTINGS, TOPIC_ID, GroupWorld
from tiered.errors import CommitUnknownError, ConfigError, CorruptionError, PartitionLostError, RemotePermissionError
from tiered.format.keys import group_plan_key
from tiered.group.objects import PlannedTopic
from tiered.model import Position, TopicPartition
from tiered.store.base import Get, Match, Object, Put
from tiered.testing.faults import Fault, FaultKind

T0 = TopicPartition("t", 0)


def test_a_member_alone_owns_all_after_a_quarter_of_a_heartbeat() -> None:
    world = GroupWorld(3)
    world.start = 5
    member = world.join("a")
    world.pass_time(HEARTBEAT_S / 2, polls=False)
    changes = member.poll([], world.clock.monotonic())
    assert {tp.partition: position.offset for tp, position in changes.assigned.items() if position} == {
        0: 5,
        1: 5,
        2: 5,
    }
    assert not changes.wait


def test_fifty_members_settle_within_six_heartbeats_and_one_that_leaves_moves_its_four() -> None:
    world = GroupWorld(200)
    for number in range(50):
        world.join(f"m{number:02}", after_s=number / 50)
    world.pass_time(6 * HEARTBEAT_S)
    before = world.owners()
    assert Counter(before.values()) == {f"m{number:02}": 4 for number in range(50)}
    assert max(world.store.puts[world.key(number)] for number in range(200)) <= 3
    world.leave("m07")
    world.pass_time(3 * HEARTBEAT_S)
    after = world.owners()
    assert {number for number in before if before[number] != after[number]} == {
        number for number, owner in before.items() if owner == "m07"
    }


def test_a_heartbeat_costs_one_put_one_list_and_one_get() -> None:
    world = GroupWorld(4)
    world.join("a")
    world.join("b")
    world.pass_time(10 * HEARTBEAT_S)
    world.store.requests.clear()
    world.pass_time(6 * HEARTBEAT_S)
    assert world.store.requests == {"Put": 12, "List": 12, "Get": 12}


def test_a_dead_member_is_replaced_after_its_lease_and_not_before() -> None:
    world = GroupWorld(4)
    world.join("a")
    world.join("b")
    world.pass_time(6 * HEARTBEAT_S)
    assert Counter(world.owners().values()) == {"a": 2, "b": 2}
    world.pause("a")
    world.pass_time(SETTINGS.lease_ms / 1000 - HEARTBEAT_S - 1)  # since its last heartbeat, at most a lease
    assert Counter(world.owners().values()) == {"a": 2, "b": 2}
    world.pass_time(3 * HEARTBEAT_S)
    assert Counter(world.owners().values()) == {"b": 4}


def test_a_share_is_incomplete_while_a_dead_member_still_owns_it() -> None:
    world = GroupWorld(2)
    world.join("a")
    world.pass_time(2 * HEARTBEAT_S)
    world.pause("a")
    member = world.join("b")
    world.pass_time(3 * HEARTBEAT_S, polls=False)
    changes = member.poll([], world.clock.monotonic())
    assert (dict(changes.assigned), changes.wait, changes.incomplete) == ({}, False, True)
    world.pass_time(SETTINGS.lease_ms / 1000 + HEARTBEAT_S, polls=False)
    changes = member.poll([], world.clock.monotonic())
    assert ({tp.partition for tp in changes.assigned}, changes.incomplete) == ({0, 1}, False)


def test_a_heartbeat_that_failed_starts_the_count_again() -> None:
    world = GroupWorld(2)
    world.join("a")
    world.join("b")
    world.pass_time(6 * HEARTBEAT_S)
    world.pause("a")
    world.pass_time(2.5 * HEARTBEAT_S)
    world.faults.add(Fault(FaultKind.ERROR, "get", group_plan_key("g")))  # of b, the only one that runs
    world.pass_time(2.5 * HEARTBEAT_S)
    assert Counter(world.owners().values()) == {"a": 1, "b": 1}
    world.pass_time(3 * HEARTBEAT_S)
    assert Counter(world.owners().values()) == {"b": 2}


def test_a_member_that_stops_hands_over_at_the_next_heartbeat_of_another() -> None:
    world = GroupWorld(2)
    world.join("a")
    world.join("b")
    world.pass_time(6 * HEARTBEAT_S)
    world.leave("a")
    world.pass_time(HEARTBEAT_S + 1)
    assert Counter(world.owners().values()) == {"b": 2}
    assert not [key for key in world.store._bucket.objects if "/members/a" in key]


def test_an_idle_caller_loses_its_partitions_and_its_next_poll_raises() -> None:
    world = GroupWorld(2)
    a = world.join("a")
    world.pass_time(HEARTBEAT_S)
    world.pass_time(SETTINGS.max_poll_interval_ms / 1000 + 2 * HEARTBEAT_S, polls=False)
    assert world.owners() == {}
    with pytest.raises(PartitionLostError, match="because it did not poll for"):
        a.poll([], world.clock.monotonic())
    assert len(a.poll([], world.clock.monotonic()).lost) == 2
    world.pass_time(2 * HEARTBEAT_S)
    assert world.owners() == {0: "a", 1: "a"}


# -- commits -----------------------------------------------------------------------------------------------------------


def test_a_commit_is_stored_and_a_successor_begins_there() -> None:
    world = GroupWorld(1)
    a = world.join("a")
    world.pass_time(HEARTBEAT_S)
    assert world.run(a.commit({T0: Position(7, 3, "note")})) == {}
    world.leave("a")
    b = world.join("b")
    world.pass_time(HEARTBEAT_S, polls=False)
    position = b.poll([], world.clock.monotonic()).assigned[T0]
    assert position is not None
    assert (position.offset, position.leader_epoch, position.metadata) == (7, 3, "note")
    assert world.run(b.committed([T0])) == {T0: position}


@pytest.mark.parametrize("kind", [FaultKind.UNKNOWN_BEFORE, FaultKind.UNKNOWN_AFTER])
def test_the_next_commit_settles_one_whose_outcome_is_unknown(kind: FaultKind) -> None:
    world = GroupWorld(1)
    a = world.join("a")
    world.pass_time(HEARTBEAT_S)
    world.faults.add(Fault(kind, "put", world.key(0), times=-1))
    errors = world.run(a.commit({T0: Position(7)}))
    assert isinstance(errors[T0], CommitUnknownError)
    world.faults.clear()
    assert world.run(a.commit({T0: Position(9)})) == {}
    assert world.stored(0).position.offset == 9


def test_two_processes_of_one_member_are_an_error() -> None:
    world = GroupWorld(1)
    a = world.join("a")
    world.pass_time(HEARTBEAT_S)
    twin = copy.copy(a)
    twin._held = {tp: copy.copy(held) for tp, held in a._held.items()}
    twin._held[T0].known = set(twin._held[T0].known)
    assert world.run(twin.commit({T0: Position(1)})) == {}
    errors = world.run(a.commit({T0: Position(2)}))
    assert isinstance(errors[T0], ConfigError)
    assert "another process" in errors[T0].message


def test_a_refused_commit_says_which_right_is_missing() -> None:
    world = GroupWorld(2)
    a = world.join("a")
    world.pass_time(HEARTBEAT_S)
    world.faults.add(Fault(FaultKind.PERMISSION, "put", world.key(0), times=-1))
    errors = world.run(a.commit({T0: Position(1), TopicPartition("t", 1): Position(1)}))
    assert [(tp, type(error)) for tp, error in errors.items()] == [(T0, RemotePermissionError)]
    assert world.stored(1).position.offset == 1


# -- bad input ---------------------------------------------------------------------------------------------------------


def change(world: GroupWorld, key: str, data: bytes) -> None:
    found = world.store.execute(Get(key))
    assert isinstance(found, Object)
    world.store.execute(Put(key, data, Match(found.etag)))


@pytest.mark.parametrize(
    ("data", "error"), [(b"{}", CorruptionError), (b"\0", CorruptionError), (b'{"format": 2}', ConfigError)]
)
def test_a_damaged_partition_is_reported_and_the_others_go_on(data: bytes, error: type[Exception]) -> None:
    world = GroupWorld(2)
    world.join("a")
    world.pass_time(HEARTBEAT_S)
    world.leave("a")
    change(world, world.key(0), data)
    b = world.join("b")
    world.pass_time(HEARTBEAT_S, polls=False)
    with pytest.raises(error, match=world.key(0)):
        b.poll([], world.clock.monotonic())
    assert list(b.poll([], world.clock.monotonic()).assigned) == [TopicPartition("t", 1)]


def test_fields_of_a_later_release_are_carried_along() -> None:
    world = GroupWorld(1)
    world.join("a")
    world.pass_time(HEARTBEAT_S)
    world.leave("a")
    for key in (world.key(0), group_plan_key("g")):
        found = json.loads(world.store._bucket.objects[key].data)
        change(world, key, json.dumps(found | {"color": "red"}).encode())
    b = world.join("b")
    world.pass_time(HEARTBEAT_S)
    assert world.owners() == {0: "b"}
    assert world.run(b.commit({T0: Position(4)})) == {}
    for key in (world.key(0), group_plan_key("g")):
        assert json.loads(world.store._bucket.objects[key].data)["color"] == "red"


def test_a_topic_that_was_made_again_is_read_from_its_start() -> None:
    world = GroupWorld(1)
    world.start = 5
    a = world.join("a")
    world.pass_time(HEARTBEAT_S)
    world.topics["t"] = PlannedTopic(UUID(int=8), 1, 1)
    world.pass_time(7 * HEARTBEAT_S, polls=False)
    assert set(a.poll([], world.clock.monotonic()).stop) == {T0}
    world.pass_time(2 * HEARTBEAT_S)
    assert a.topic_id(T0) == UUID(int=8)
    assert world.stored(0).position.offset == 0
    assert world.topics["t"].topic_id != TOPIC_ID
