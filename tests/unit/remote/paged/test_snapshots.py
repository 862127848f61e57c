"""Who makes a snapshot may only take back what is his own."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.unit.remote.catalog.script import TOPIC_ID
from tests.unit.remote.paged.collecting import PREFIX, Place
from tiered.check.remote import check_kept
from tiered.errors import CommitUnknownError, ConfigError, CorruptionError, NotFoundError, RemoteUnavailableError
from tiered.format.kernels import crc32c
from tiered.format.keys import snap_key
from tiered.format.root import (
    DROPPED_BYTES,
    Root,
    decode_snapshot_root,
    encode_complete_snapshot,
    encode_dropped,
    encode_pending_snapshot,
    encode_root,
    is_pending,
)
from tiered.model import TopicPartition
from tiered.plan.commit import DeletionIntent
from tiered.remote.gc.orphans import drop_kept, sweep
from tiered.remote.pins import BEGUN_MS, read_pins
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import AsOf, Past, create_snapshot, delete_snapshot, list_snapshots, load_snapshot
from tiered.store.base import (
    Delete,
    Get,
    Match,
    Missing,
    Object,
    Outcome,
    Put,
    PutResult,
    PutStatus,
    Steps,
    StoreRequest,
)

NAME = "nightly"
KEY = snap_key(TOPIC_ID, 0, NAME)


def view() -> RootView:
    return RootView(TOPIC_ID, 0, "flights")


def under(place: Place) -> bytes:
    """What stands under the name."""
    found = place.store.inner.execute(Get(KEY))
    assert isinstance(found, Object)
    return bytes(found.data)


def test_one_of_a_topic_that_is_deleted_meanwhile_holds_nothing() -> None:
    place = Place()
    place.append(4)
    place.after_put(KEY, lambda: place.world.run(place.maintainer.catalog.commit(DeletionIntent())))
    with pytest.raises(NotFoundError, match="is being deleted"):
        place.world.run(create_snapshot(view(), NAME))
    assert place.world.run(read_pins(place.root)).count == 0


def test_roots_that_collectors_pass_again_and_again_leave_nothing_behind() -> None:
    place = Place()
    place.append(50)
    offsets = itertools.count(50, 50)

    def passed() -> None:
        place.trim(next(offsets))
        place.wait()
        place.collect()

    place.after_put(KEY, passed, always=True)
    with pytest.raises(RemoteUnavailableError, match="garbage collection overtook each attempt"):
        place.world.run(create_snapshot(view(), NAME))
    assert place.world.run(list_snapshots(view())) == []


def killed_over_it(place: Place) -> Root:
    """The root that somebody begins to keep, and is killed before the look that would tell whether it can be kept."""
    root = place.root

    def killed() -> None:
        raise KeyboardInterrupt

    place.after_put(KEY, killed)
    with pytest.raises(KeyboardInterrupt):
        place.world.run(create_snapshot(view(), NAME))
    return root


def test_one_whose_creator_was_killed_is_read_by_nobody_and_goes_by_itself() -> None:
    place = Place()
    place.append(50)
    begun = killed_over_it(place)
    assert [(each.root, each.begun) for each in place.world.run(list_snapshots(view()))] == [(begun, True)]
    with pytest.raises(NotFoundError, match="nightly was begun and is not finished"):
        place.world.run(Past(view(), AsOf(name=NAME)).pin())
    place.append(1)
    with pytest.raises(NotFoundError, match=f"version {begun.version} was not kept"):
        place.world.run(Past(view(), AsOf(version=begun.version)).pin())

    place.trim(490)
    place.wait()
    assert place.collect().held > 0  # its creator may be at work still
    place.wait(BEGUN_MS)
    assert place.collect().held > 0
    assert len(under(place)) == DROPPED_BYTES
    place.collect()
    assert place.keys == place.named | {KEY}
    kept = place.root
    assert place.world.run(create_snapshot(view(), NAME)) == kept
    place.trim(500)
    place.wait(BEGUN_MS + 1000)
    assert place.collect().held > 0
    assert [(each.root, each.begun) for each in place.world.run(list_snapshots(view()))] == [(kept, False)]


def test_one_that_was_begun_too_late_stops_no_sweep() -> None:
    """A collector has passed its version before it was put: pages that it names are gone."""
    place = Place()
    place.append(50)
    late = encode_pending_snapshot(encode_root(place.root), "0123456789abcdef" * 2, NAME)
    kept = encode_complete_snapshot(encode_root(place.root), "0123456789abcdef" * 2, NAME)
    place.trim(490)
    place.wait()
    place.collect()
    place.put(f"{PREFIX}s/w00000001/{0:020d}-{7:032x}.log")
    place.writer.claim()
    place.wait()
    place.put(KEY, late)
    place.world.run(place.maintainer.catalog.load())
    swept = place.world.run(sweep(place.maintainer.catalog, delete=True))
    assert swept.orphans == [f"{PREFIX}s/w00000001/{0:020d}-{7:032x}.log"]
    place.wait(BEGUN_MS + 1000)
    place.world.run(sweep(place.maintainer.catalog, delete=True))
    assert len(under(place)) == DROPPED_BYTES
    stands = place.store.execute(Get(KEY))
    assert isinstance(stands, Object)
    place.put(f"{PREFIX}s/w00000001/{0:020d}-{8:032x}.log")
    place.wait()
    place.store.execute(Put(KEY, kept, Match(stands.etag), crc32c(kept)))
    with pytest.raises(CorruptionError, match="is gone"):  # of one that somebody was told of, that is damage
        place.world.run(sweep(place.maintainer.catalog, delete=True))


def test_a_deletion_that_nobody_answers_is_in_doubt() -> None:
    place = Place()
    place.append(4)
    place.world.run(create_snapshot(view(), NAME))
    execute = place.store.execute

    def lost(request: StoreRequest) -> Outcome:
        if isinstance(request, Put) and request.key == KEY:
            return PutResult(PutStatus.UNKNOWN, cause="timeout")
        return execute(request)

    place.store.execute = lost  # type: ignore[method-assign]
    with pytest.raises(CommitUnknownError, match="timeout"):
        place.world.run(delete_snapshot(view(), NAME))


def test_what_stands_under_a_name_reads_back() -> None:
    place = Place()
    place.append(4)
    plain, uid = encode_root(place.root), "0123456789abcdef" * 2
    kept, begun = encode_complete_snapshot(plain, uid, NAME), encode_pending_snapshot(plain, uid, NAME)
    assert kept != encode_complete_snapshot(plain, uid[::-1], NAME) != plain
    assert decode_snapshot_root(kept, key=KEY) == decode_snapshot_root(begun, key=KEY) == place.root
    assert decode_snapshot_root(encode_dropped(uid), key=KEY) is None
    assert len(encode_dropped(uid)) == DROPPED_BYTES < len(plain)
    assert [is_pending(body) for body in (begun, kept)] == [True, False]
    with pytest.raises(CorruptionError, match="is no snapshot: a root was copied there"):
        decode_snapshot_root(plain, key=KEY)
    with pytest.raises(CorruptionError, match="neither a snapshot nor"):
        decode_snapshot_root(b"?" * DROPPED_BYTES, key=KEY)


def test_two_that_have_changed_places_are_damage_for_whoever_meets_them() -> None:
    place = Place()
    place.append(4)
    keys = [snap_key(TOPIC_ID, 0, name) for name in ("monday", "tuesday")]
    for name in ("monday", "tuesday"):
        place.append(1)
        place.world.run(create_snapshot(view(), name))
    bodies = [place.store.inner.execute(Get(key)) for key in keys]
    place.store.execute(Delete(tuple(keys)))
    for key, got in zip(keys, reversed(bodies), strict=True):
        assert isinstance(got, Object)
        place.put(key, bytes(got.data))
    looks: tuple[Steps[object], ...] = (
        load_snapshot(view(), "monday"),
        Past(view(), AsOf(name="monday")).choose(),
        Past(view(), AsOf(version=place.root.version - 1)).choose(),
        list_snapshots(view()),
        read_pins(place.root),
        create_snapshot(view(), "monday"),
    )
    for look in looks:
        with pytest.raises(
            CorruptionError, match="snap/monday is the snapshot tuesday: two snapshots were swapped"
        ) as told:
            place.world.run(look)
        assert "`tiered snapshot delete monday flights:0`" in told.value.hint
    place.append(8)
    place.trim(10)
    place.wait()
    with pytest.raises(CorruptionError, match="two snapshots were swapped"):
        place.collect()
    findings = place.world.run(check_kept(TopicPartition("flights", 0), view(), read_data=False))
    assert [(found.code, found.where) for found in findings] == [("snapshot", key) for key in keys]
    place.world.run(delete_snapshot(view(), "monday"))
    place.world.run(delete_snapshot(view(), "tuesday"))
    assert place.world.run(list_snapshots(view())) == []


@pytest.mark.parametrize("then", ["deleted", "deleted and taken again", "there"])
def test_one_that_is_deleted_while_a_sweep_reads_it_holds_nothing(then: str) -> None:
    """Its pages may be collected as soon as it is: that is no damage."""
    place = Place()
    place.append(50)
    place.world.run(create_snapshot(view(), NAME))
    (taken,) = place.world.run(list_snapshots(view()))
    place.trim(490)
    place.wait()
    if then != "there":
        place.world.run(delete_snapshot(view(), NAME))
    if then == "deleted and taken again":
        place.world.run(create_snapshot(view(), NAME))
    place.collect()
    for key in () if then != "there" else [page for page in place.keys if "/p/" in page]:
        place.store.execute(Delete((key,)))
    left = {"a": 1}
    if then == "there":
        with pytest.raises(CorruptionError, match="is gone"):
            place.world.run(drop_kept(view(), taken, left))
    else:
        place.world.run(drop_kept(view(), taken, left))
    assert left == {"a": 1}


@pytest.mark.parametrize("landed", [True, False])
def test_a_snapshot_whose_answer_was_lost_is_there_or_not_known(landed: bool) -> None:
    place = Place()
    place.append(5)

    def answer(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        if isinstance(request, Put) and request.key.startswith(f"{PREFIX}snap/"):
            if landed:
                carry_out()
            return PutResult(PutStatus.UNKNOWN, cause="timeout")
        return carry_out()

    place.store.answer = answer
    if landed:
        assert place.world.run(create_snapshot(view(), NAME)) == place.root
        with pytest.raises(ConfigError, match="has a snapshot nightly already"):
            place.world.run(create_snapshot(view(), NAME))
    else:
        with pytest.raises(CommitUnknownError, match="timeout"):
            place.world.run(create_snapshot(view(), NAME))
        assert isinstance(place.store.inner.execute(Get(snap_key(TOPIC_ID, 0, NAME))), Missing)
