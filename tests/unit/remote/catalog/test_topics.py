"""The topic registry: one entry a name, whoever races."""

from __future__ import annotations

import dataclasses
import json
from uuid import UUID

import pytest

from tests.unit.remote.catalog.script import World
from tiered.errors import CommitUnknownError, ConfigError, CorruptionError, TieredError, UnknownTopicError
from tiered.format.framed_object import MAX_OBJECT_BYTES
from tiered.format.keys import topic_key
from tiered.format.root import STATE_DELETING
from tiered.remote.root_view import RootView
from tiered.remote.roots import TopicIds, load_roots
from tiered.remote.topics import (
    CHANGES_KEPT,
    MAX_ENTRY_BYTES,
    TopicEntry,
    decode_topic,
    encode_topic,
    list_topics,
    load_topic,
    register_topic,
    update_topic,
)
from tiered.store.base import ABSENT, Outcome, Put, PutResult, PutStatus, StoreRequest
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock, SeededIds

ID, OTHER = UUID(int=5), UUID(int=6)
CONFIG = {"segment.bytes": "1024", "x": "ü"}


@pytest.fixture
def world() -> World:
    return World()


def add_option(entry: TopicEntry) -> TopicEntry:
    return dataclasses.replace(entry, config={**entry.config, "n": str(int(entry.config.get("n", "0")) + 1)})


def test_the_loser_of_a_race_adopts_the_winners_id(world: World) -> None:
    world.store.script.append(lambda: world.run(register_topic("flights", OTHER, 2, {})))
    assert world.run(register_topic("flights", ID, 3, CONFIG)).topic_id == OTHER
    assert world.run(register_topic("flights", ID, 3, CONFIG)).partitions == 2


def test_updates_are_applied_once_each(world: World) -> None:
    world.run(register_topic("flights", ID, 3, {}))
    world.store.script.extend(["lost", lambda: world.run(update_topic("flights", add_option))])
    entry = world.run(update_topic("flights", add_option))
    assert (entry.config["n"], entry.version) == ("2", 3)
    world.store.script.append(lambda: world.run(update_topic("flights", add_option)))
    assert world.run(update_topic("flights", add_option)).config["n"] == "4"
    sent = len(world.store.puts)
    assert world.run(update_topic("flights", lambda entry: entry)).version == 5
    assert len(world.store.puts) == sent


def test_an_update_far_behind_others_is_unknown_not_repeated(world: World) -> None:
    world.run(register_topic("flights", ID, 3, {}))

    def others() -> None:
        for _ in range(CHANGES_KEPT + 1):
            world.run(update_topic("flights", add_option))

    others()
    world.store.script.append("drop")
    assert world.run(update_topic("flights", add_option)).version == CHANGES_KEPT + 3
    world.store.script.extend(["lost", others])
    with pytest.raises(CommitUnknownError):
        world.run(update_topic("flights", add_option))


def test_what_may_not_change(world: World) -> None:
    with pytest.raises(UnknownTopicError):
        world.run(update_topic("flights", add_option))
    world.run(register_topic("flights", ID, 3, {}))
    for change in (
        lambda entry: dataclasses.replace(entry, name="x"),
        lambda entry: dataclasses.replace(entry, topic_id=OTHER),
        lambda entry: dataclasses.replace(entry, partitions=2),
    ):
        with pytest.raises(ConfigError):
            world.run(update_topic("flights", change))
    entry = world.run(update_topic("flights", lambda e: dataclasses.replace(e, partitions=5, state=STATE_DELETING)))
    assert (entry.partitions, entry.state) == (5, "deleting")


def test_list_is_sorted_and_passes_over_foreign_objects(world: World) -> None:
    assert world.run(list_topics()) == []
    names = [f"t{i}" for i in range(40)]
    for name in reversed(names):
        world.run(register_topic(name, ID, 1, {}))
    world.store.inner.execute(Put("topics/not a topic", b"x", ABSENT))
    assert [entry.name for entry in world.run(list_topics())] == sorted(names)
    world.store.inner.execute(Put("topics/broken", b"x", ABSENT))
    with pytest.raises(CorruptionError, match="topics/broken"):
        world.run(list_topics())
    unreadable: dict[str, TieredError] = {}
    assert [entry.name for entry in world.run(list_topics(unreadable))] == sorted(names)
    assert {name: type(error) for name, error in unreadable.items()} == {"broken": CorruptionError}


def test_bad_calls(world: World) -> None:
    for name, topic_id, partitions in [("a/b", ID, 1), ("a", ID, 0), ("a", ID, 2**31), ("a", UUID(int=0), 1)]:
        with pytest.raises(ConfigError):
            world.run(register_topic(name, topic_id, partitions, {}))
    with pytest.raises(ConfigError, match="larger"):
        world.run(register_topic("a", ID, 1, {"x": "y" * 300_000}))


def test_an_entry_or_a_root_that_is_too_large_is_refused_before_it_is_in_memory(world: World) -> None:
    view = RootView(ID, 0, "flights")
    for key, limit in ((topic_key("flights"), MAX_ENTRY_BYTES), (view.key, MAX_OBJECT_BYTES)):
        world.store.inner.execute(Put(key, bytes(limit + 1), ABSENT))
        with pytest.raises(CorruptionError, match=f"more than the limit of {limit}") as error:
            world.run(load_topic("flights") if key == topic_key("flights") else view.load())
        assert (error.value.path_or_key, error.value.position) == (key, limit)


def test_hostile_entries() -> None:
    good = json.loads(encode_topic(TopicEntry("t", ID, 1, {"a": "b"}, changes=("c",))))
    decode_topic(json.dumps(good).encode(), key="topics/t")
    lies: tuple[dict[str, object], ...] = (
        {"topic": "u"},
        {"topic": 5},
        {"topic_id": "xyz"},
        {"partitions": 0},
        {"partitions": "1"},
        {"state": "haunted"},
        {"config": {"a": 1}},
        {"config": []},
        {"changes": ["x"]},
        {"changes": [["x"]] * 65},
        {"version": 0},
        {"format": 0},
    )
    for change in lies:
        with pytest.raises(CorruptionError):
            decode_topic(json.dumps({**good, **change}).encode(), key="topics/t")
    for data in (b"", b"x" * 300_000, b"null", b"[" * 5000, b"\xff"):
        with pytest.raises(CorruptionError):
            decode_topic(data, key="topics/t")
    with pytest.raises(ConfigError, match="newer"):
        decode_topic(json.dumps({**good, "format": 2}).encode(), key="topics/t")


class Denying(MemoryStore):
    """It answers the first PUTs of roots with 412 although nothing is there, as a proxy or a retry inside one may."""

    denied = 0

    def execute(self, request: StoreRequest) -> Outcome:
        if isinstance(request, Put) and request.key.endswith("/root") and self.denied:
            self.denied -= 1
            return PutResult(PutStatus.LOST)
        return super().execute(request)


@pytest.mark.parametrize("denied", [1, 3, 5])
def test_an_entry_vouches_for_no_root_that_is_not_there(denied: int) -> None:
    store, clock, ids = Denying(), FakeClock(), SeededIds(1)
    store.denied = denied
    drive(store, register_topic("flights", ID, 3, {}), clock=clock, ids=ids)
    roots = drive(store, load_roots(TopicIds("flights", ID), range(3)), clock=clock, ids=ids)
    assert {number: root is not None for number, root in roots.items()} == {0: True, 1: True, 2: True}


def test_a_store_that_never_lets_a_root_be_made_gets_no_entry() -> None:
    store, clock, ids = Denying(), FakeClock(), SeededIds(1)
    store.denied = 1 << 30
    with pytest.raises(CommitUnknownError, match="the object is missing now"):
        drive(store, register_topic("flights", ID, 2, {}), clock=clock, ids=ids)
    assert drive(store, load_topic("flights"), clock=clock, ids=ids) is None
