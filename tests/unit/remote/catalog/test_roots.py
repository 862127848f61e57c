"""Roots are made with their topic; a root that the registry, or a disk, has seen is never taken for "never there"."""

from __future__ import annotations

import dataclasses
import struct
from uuid import UUID

import pytest

from tests.unit.remote.catalog.script import TOPIC_ID, World
from tiered.config import MAX_PARTITIONS
from tiered.errors import CommitUnknownError, ConfigError, CorruptionError, LogDestroyedError, RemotePermissionError
from tiered.format.kernels import crc32c
from tiered.format.keys import Role, SegmentName, root_key, segment_key, topic_key
from tiered.format.root import Root, decode_root, encode_root
from tiered.plan.ownership import VolumeProof
from tiered.plan.root_lower_bounds import NOTHING_KNOWN, RootLowerBounds
from tiered.remote.catalog import Catalog
from tiered.remote.root_view import RootCache, RootView
from tiered.remote.roots import ROOTS_TOGETHER, list_partitions
from tiered.remote.topics import (
    Registrant,
    TopicEntry,
    check_entry,
    check_successor,
    decode_topic,
    encode_topic,
    load_topic,
    register_topic,
    update_topic,
)
from tiered.store.base import ABSENT, Delete, Get, List, Object, Outcome, Put, PutResult, PutStatus, StoreRequest

ID = TOPIC_ID


@pytest.fixture
def world() -> World:
    return World()


def root_of(world: World, partition: int = 0) -> Root | None:
    key = root_key(ID, partition)
    got = world.store.inner.execute(Get(key))
    return decode_root(got.data, key=key) if isinstance(got, Object) else None


def lose(world: World, key: str) -> None:
    world.store.inner.execute(Delete((key,)))


def put(world: World, key: str, data: bytes) -> None:
    lose(world, key)
    world.store.inner.execute(Put(key, data, ABSENT))


def claim(world: World, partition: int = 0, known: RootLowerBounds = NOTHING_KNOWN) -> Catalog:
    catalog = Catalog(ID, partition, "flights", persist=lambda *_: None, known=known)
    if known is NOTHING_KNOWN:
        world.make_root(ID, partition)
    world.run(catalog.claim("w", "h", VolumeProof("v1", True, 0)))
    return catalog


def test_one_deadline_holds_for_all_groups_of_roots(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first root of each group gets no answer for 40 s: after the second group the minute is over."""
    late, execute = {root_key(ID, group * ROOTS_TOGETHER) for group in range(5)}, world.store.execute

    def slow(request: StoreRequest) -> Outcome:
        if isinstance(request, Put) and request.key in late:
            late.remove(request.key)
            world.clock.sleep(40)
            return PutResult(PutStatus.UNKNOWN, cause="timeout")
        return execute(request)

    monkeypatch.setattr(world.store, "execute", slow)
    with pytest.raises(CommitUnknownError, match="create the topic again"):
        world.run(register_topic("flights", ID, 5 * ROOTS_TOGETHER, {}, Registrant("host:1")))
    assert 80 <= world.clock.monotonic() < 90
    late.clear()
    assert world.run(register_topic("flights", ID, 5 * ROOTS_TOGETHER, {}, Registrant("host:1")))


def test_registration_makes_all_roots_and_the_entry_last(world: World) -> None:
    partitions = 2 * ROOTS_TOGETHER + 3
    entry = world.run(register_topic("flights", ID, partitions, {}, Registrant("host:1")))
    assert [sent.key for sent in world.store.puts] == [
        *(root_key(ID, number) for number in range(partitions)),
        topic_key("flights"),
    ]
    roots = [root_of(world, number) for number in range(partitions)]
    assert {(root.version, root.commit.owner, len(root.rows)) for root in roots if root} == {(1, "host:1", 0)}
    assert None not in roots
    sent, asked = len(world.store.puts), world.store.gets
    assert world.run(register_topic("flights", ID, partitions, {})) == entry
    assert (len(world.store.puts), world.store.gets) == (sent, asked + 1)


def test_a_registration_that_died_is_ended_by_the_next(world: World) -> None:
    world.store.script.extend(["ok", "ok", "denied"])
    with pytest.raises(RemotePermissionError):
        world.run(register_topic("flights", ID, 3, {}))
    assert world.run(load_topic("flights")) is None
    first = root_of(world, 0)
    assert world.run(register_topic("flights", ID, 3, {}))
    assert root_of(world, 0) == first
    assert root_of(world, 2) is not None


def test_a_root_that_did_not_change_is_held_against_what_became_known(world: World) -> None:
    """The root went back to the one that was read last: a conditional GET alone reports no change."""
    world.run(register_topic("flights", ID, 1, {}))
    view = RootView(ID, 0, "flights")
    root = world.run(view.load())
    assert world.run(view.load()) is root
    view.known = RootLowerBounds(next_offset=1)
    with pytest.raises(CorruptionError, match="saw offset 1 committed, the root ends at 0"):
        world.run(view.load())


def test_a_root_that_is_gone_is_lost_for_everybody(world: World) -> None:
    world.run(register_topic("flights", ID, 1, {}))
    claim(world)
    lose(world, root_key(ID, 0))
    with pytest.raises(CorruptionError, match="made with its topic"):
        world.run(RootView(ID, 0, "flights", RootLowerBounds(made=True)).load())
    with pytest.raises(CorruptionError, match="made with its topic"):
        claim(world, known=RootLowerBounds(made=True))
    seen = "this disk has claimed the partition, or was restored from it"
    for known, why in (
        (RootLowerBounds(made=True, next_offset=60), "offset 60 committed in it"),
        (RootLowerBounds(start_offset=10), seen),
        (RootLowerBounds(version=5), seen),
        (RootLowerBounds(writer_epoch=2), seen),
        (RootLowerBounds(made=True, tokens=("t1",)), seen),
    ):
        with pytest.raises(LogDestroyedError, match=f"{why}: it was there and is gone"):
            world.run(RootView(ID, 0, "flights", known).load())
    assert root_of(world) is None  # nobody made another


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        (RootLowerBounds(next_offset=1), "saw offset 1 committed, the root ends at 0"),
        (RootLowerBounds(start_offset=5), "begin at 5, by the root it begins at 0"),
        (RootLowerBounds(version=3), "restored from version 3, the root has version 2"),
        (RootLowerBounds(writer_epoch=2), "holds claim 2, the root knows claims up to 1"),
        (RootLowerBounds(writer_epoch=1, tokens=("other",)), "claim 1 was made with a token of this disk"),
    ],
)
def test_an_older_root_than_the_disk_saw(world: World, known: RootLowerBounds, sentence: str) -> None:
    claim(world)
    with pytest.raises(CorruptionError, match=sentence):
        world.run(RootView(ID, 0, "flights", known).load())
    root = root_of(world)
    assert root is not None
    fits = RootLowerBounds(True, root.version, 0, 0, 1, (root.writer.token,))
    assert world.run(RootView(ID, 0, "flights", fits).load()) == root
    assert (
        world.run(RootView(ID, 0, "flights", RootLowerBounds(writer_epoch=1, tokens=(root.writer.token,))).load())
        == root
    )


def test_a_view_that_lives_long_names_an_older_root(world: World) -> None:
    world.run(register_topic("flights", ID, 1, {}))
    view = RootView(ID, 0, "flights", RootLowerBounds(made=True))
    first = world.run(view.load())
    assert first is not None
    claim(world)
    newer = world.run(view.load())
    assert newer is not None
    assert newer.version == 2
    put(world, root_key(ID, 0), encode_root(first))
    with pytest.raises(CorruptionError, match="version 2 became 1: an older root was restored"):
        world.run(view.load())
    lose(world, root_key(ID, 0))
    with pytest.raises(LogDestroyedError):
        world.run(view.load())


# -- the number of partitions ------------------------------------------------------------------------------------------


def test_partitions_are_added_roots_first(world: World) -> None:
    world.run(register_topic("flights", ID, 1, {"a": "b"}))
    sent = len(world.store.puts)
    entry = world.run(register_topic("flights", ID, 3, {}))
    assert (entry.partitions, dict(entry.config)) == (3, {"a": "b"})
    assert [each.key for each in world.store.puts[sent:]] == [root_key(ID, 1), root_key(ID, 2), topic_key("flights")]
    assert world.run(register_topic("flights", ID, 2, {})) == entry


def test_two_that_add_partitions_at_once(world: World) -> None:
    world.run(register_topic("flights", ID, 1, {}))

    def other() -> None:
        world.run(register_topic("flights", ID, 3, {}))
        claim(world, 2)

    world.store.script.append(other)
    assert world.run(register_topic("flights", ID, 4, {})).partitions == 4
    assert [root_of(world, number).version for number in range(4)] == [1, 1, 2, 1]  # type: ignore[union-attr]


def test_an_entry_with_fewer_partitions_than_were_uploaded(world: World) -> None:
    first = world.run(register_topic("flights", ID, 1, {}))
    world.run(register_topic("flights", ID, 2, {}))
    claim(world, 1)
    put(world, topic_key("flights"), encode_topic(first))
    with pytest.raises(CorruptionError, match="has 1 partitions, but this disk uploaded partition 1"):
        world.run(register_topic("flights", ID, 2, {}, Registrant(seen={1})))
    with pytest.raises(CorruptionError, match=r"has 1 partitions, but the root .* is in use"):
        world.run(register_topic("flights", ID, 2, {}))
    assert world.run(load_topic("flights")) == first


def test_an_entry_that_is_gone_while_its_roots_are_in_use(world: World) -> None:
    world.run(register_topic("flights", ID, 1, {}))
    claim(world)
    lose(world, topic_key("flights"))
    with pytest.raises(CorruptionError, match="the entry was lost"):
        world.run(register_topic("flights", ID, 1, {}))
    assert world.run(load_topic("flights")) is None


def test_absurd_numbers_are_refused_before_anything_is_made(world: World) -> None:
    with pytest.raises(ConfigError, match=str(MAX_PARTITIONS)):
        world.run(register_topic("flights", ID, MAX_PARTITIONS + 1, {}))
    world.run(register_topic("flights", ID, 1, {}))
    with pytest.raises(ConfigError):
        world.run(update_topic("flights", lambda e: dataclasses.replace(e, partitions=MAX_PARTITIONS + 1)))
    absurd = encode_topic(TopicEntry("flights", ID, 2**31 - 1))
    with pytest.raises(CorruptionError, match="partitions is not an integer"):
        decode_topic(absurd, key=topic_key("flights"))
    most = TopicEntry("flights", ID, MAX_PARTITIONS)
    assert decode_topic(encode_topic(most), key=topic_key("flights")) == most


# -- what is known of an entry -----------------------------------------------------------------------------------------


def test_an_entry_is_held_against_a_disk_and_against_what_was_seen() -> None:
    entry = TopicEntry("flights", ID, 2, version=4)
    check_entry("flights", entry, {0: RootLowerBounds(next_offset=1), 1: RootLowerBounds()})
    check_entry("flights", None, {0: RootLowerBounds(made=True)})
    with pytest.raises(LogDestroyedError, match="does not know it"):
        check_entry("flights", None, {0: RootLowerBounds(), 1: RootLowerBounds(tokens=("t",))})
    with pytest.raises(CorruptionError, match="uploaded partition 2"):
        check_entry("flights", entry, {2: RootLowerBounds(writer_epoch=1)})
    check_successor("flights", None, None, where="here")
    check_successor("flights", entry, dataclasses.replace(entry, partitions=3, version=5), where="here")
    for now in (None, dataclasses.replace(entry, topic_id=UUID(int=9))):
        with pytest.raises(LogDestroyedError):
            check_successor("flights", entry, now, where="here")
    for changed in ({"partitions": 1}, {"version": 3}):
        with pytest.raises(CorruptionError, match="older entry"):
            check_successor("flights", entry, dataclasses.replace(entry, **changed), where="here")  # type: ignore[arg-type]


# -- a release that cannot write a root --------------------------------------------------------------------------------


def of_format_2(root: Root) -> bytes:
    data = bytearray(encode_root(root)[:-4])
    struct.pack_into("<H", data, 4, 2)
    return bytes(data) + struct.pack("<I", crc32c(bytes(data)))


def test_a_root_of_a_newer_format_stops_everybody_and_stays(world: World) -> None:
    desk = world.desk()
    desk.claim(desk.proof(empty=True))
    root = desk.catalog.root
    assert root is not None
    body = of_format_2(root)
    put(world, root_key(ID, 0), body)
    desk.catalog.etag = ""
    told, sent = len(desk.kept), len(world.store.puts)
    other = world.desk("v2")
    for refused in (
        lambda: world.run(desk.catalog.load()),
        lambda: other.claim(other.proof(empty=True)),
        other.maintain,
    ):
        with pytest.raises(ConfigError, match="it has format 2, this one reads 1"):
            refused()
    assert (len(desk.kept), other.kept, len(world.store.puts)) == (told, [], sent)
    got = world.store.inner.execute(Get(root_key(ID, 0)))
    assert isinstance(got, Object)
    assert got.data == body


# -- the listing -------------------------------------------------------------------------------------------------------


def test_the_survey_sees_every_partition_among_strangers(world: World) -> None:
    ids = [UUID(int=number) for number in range(1, 30)]
    owners = {(topic_id, number) for topic_id in ids for number in (0, 1, 10, 100)}
    for topic_id, number in owners:
        put(world, root_key(topic_id, number), b"x")
        for uid in range(3):
            put(world, segment_key(topic_id, number, SegmentName(Role.WRITER, 1, uid, f"{uid:032x}")), b"x")
    for name in ("00-x/y", "ab/z", "ab-/z", "ff~", "a", "zz/y", "topics/flights", "7f/not-a-partition/x"):
        put(world, name, b"x")
    assert world.run(list_partitions()) == owners
    asked: list[StoreRequest] = []
    real = world.store.inner.execute

    def small(request: StoreRequest) -> Outcome:
        assert isinstance(request, List)
        asked.append(request)
        return real(dataclasses.replace(request, limit=2))

    world.store.inner.execute = small  # type: ignore[method-assign]
    assert world.run(list_partitions()) == owners
    assert len(asked) <= len(owners) + 16


def test_the_next_view_of_a_reader_asks_whether_the_root_is_still_that_one(world: World) -> None:
    world.run(register_topic("flights", ID, 1, {}))
    roots = RootCache()
    first = world.run(RootView(ID, 0, "flights", roots=roots).load())
    view = RootView(ID, 0, "flights", roots=roots)
    assert world.run(view.load()) is first  # the store said that it is unchanged: nothing was decoded
    assert world.run(view.load()) is first
    claim(world)
    newer = world.run(RootView(ID, 0, "flights", roots=roots).load())
    assert newer is not None
    assert newer.version == 2
    assert newer == root_of(world)
    assert world.run(RootView(ID, 0, "flights", roots=roots).load()) is newer
    assert world.run(view.load()) == newer


def test_a_root_that_another_view_read_is_held_against_what_this_one_knows(world: World) -> None:
    world.run(register_topic("flights", ID, 1, {}))
    roots = RootCache()
    world.run(RootView(ID, 0, "flights", roots=roots).load())
    with pytest.raises(CorruptionError, match="saw offset 1 committed, the root ends at 0"):
        world.run(RootView(ID, 0, "flights", RootLowerBounds(next_offset=1), roots=roots).load())
    with pytest.raises(CorruptionError, match="belongs to topic flights, but the entry of topic other in the bucket"):
        world.run(RootView(ID, 0, "other", roots=roots).load())


def test_a_view_that_waits_for_its_first_answer_takes_no_other_root_for_it(world: World) -> None:
    """Two threads look at one view: the answer to the older question must not stand for a newer root."""
    world.run(register_topic("flights", ID, 1, {}))
    roots = RootCache()
    first = world.run(RootView(ID, 0, "flights", roots=roots).load())
    view = RootView(ID, 0, "flights", roots=roots)
    request = view.request()
    answer = world.store.inner.execute(request)
    claim(world)
    newer = world.run(RootView(ID, 0, "flights", roots=roots).load())
    assert newer is not None
    assert newer.version == 2
    assert view.request() == request
    pinned = view.pin_received(answer)
    assert pinned is not None
    assert pinned.root is first
    assert world.run(view.load()) == newer
