"""Orphans: proven dead by their epoch, and named by nothing."""

from __future__ import annotations

import json

import pytest

from tests.unit.remote.catalog.script import TOPIC_ID
from tests.unit.remote.paged.collecting import Place
from tiered.config import DAY_MS, TopicConfig
from tiered.errors import CorruptionError, RemotePermissionError, RemoteUnavailableError, TieredError
from tiered.format.kernels import crc32c
from tiered.format.keys import (
    PageName,
    Role,
    SegmentName,
    index_key,
    page_key,
    pin_key,
    root_key,
    segment_key,
)
from tiered.format.root import encode_root
from tiered.model import TopicPartition
from tiered.plan.commit import DeletionIntent
from tiered.plan.maintenance import ORPHAN_MS, PIN_MS
from tiered.plan.root_lower_bounds import RootLowerBounds
from tiered.remote.gc.orphans import Swept, sweep
from tiered.remote.maintain import Maintainer
from tiered.store.base import (
    Delete,
    Get,
    Head,
    List,
    ListPage,
    Match,
    Object,
    Outcome,
    Put,
    StoreAround,
    StoreRequest,
)
from tiered.store.driver import drive


@pytest.fixture
def place() -> Place:
    return Place()


def run(place: Place, *, delete: bool = True) -> Swept:
    place.store.forget()
    return place.world.run(sweep(place.maintainer.catalog, delete=delete))


def orphans(place: Place, role: Role, epoch: int) -> set[str]:
    """A segment and a page that nobody ever committed."""
    name = SegmentName(role, epoch, 70, place.world.ids.uid())
    page = page_key(TOPIC_ID, 0, PageName(role, epoch, place.world.ids.uid()))
    keys = {segment_key(TOPIC_ID, 0, name), index_key(TOPIC_ID, 0, name), page}
    for key in keys:
        place.put(key, b"orphan")
    return keys


@pytest.mark.parametrize("role", [Role.WRITER, Role.MAINTAINER])
def test_an_object_of_a_dead_epoch_that_nothing_names_goes(place: Place, role: Role) -> None:
    place.append(50)
    place.trim(333)
    place.replace(*place.rows()[1:4])
    dead = orphans(place, role, 1)
    kept = place.keys - dead
    place.wait(ORPHAN_MS)
    assert run(place).count == 0  # its epoch may still commit it
    desk = place.writer if role is Role.WRITER else place.maintainer
    desk.claim() if role is Role.WRITER else desk.maintain()
    assert run(place, delete=False).orphans == sorted(dead, key=lambda key: ("/p/" in key, key))
    assert place.keys == kept | dead
    found = run(place)
    assert (found.count, found.size_bytes) == (3, 18)
    assert place.keys == kept


def test_a_partition_that_a_reader_has_pinned_is_left_alone(place: Place) -> None:
    """The reader may have a root that was replaced by an older one, which names none of its objects."""
    place.append(5)
    dead = orphans(place, Role.WRITER, 0)
    place.wait(ORPHAN_MS)
    pin = pin_key(TOPIC_ID, 0, "0" * 32)
    body = b'{"version":%d,"uid":"%s"}' % (place.root.version, b"0" * 32)
    place.put(pin, body)
    found = run(place)
    assert (found.count, found.readers) == (3, 1)
    assert dead <= place.keys
    place.wait(PIN_MS + 1)
    found = run(place)  # its reader is gone, or has ended it
    assert (found.count, found.readers) == (3, 0)
    assert not dead & place.keys


def test_what_waits_in_the_trash_is_no_orphan_with_all_that_it_names(place: Place) -> None:
    place.append(60)
    place.trim(333)
    before = place.keys
    place.wait(ORPHAN_MS)
    place.writer.claim()
    place.maintainer.maintain()
    assert run(place).count == 0
    assert place.keys == before
    assert before - place.named


def test_what_is_young_and_what_is_not_ours_stays(place: Place) -> None:
    place.append(5)
    dead = orphans(place, Role.WRITER, 1)
    place.put(f"{min(dead).rpartition('/')[0]}/readme.txt")
    place.writer.claim()
    place.wait(ORPHAN_MS - 1)
    found = run(place)
    assert found.count == 0
    assert not [request for request in place.store.requests if isinstance(request, Put | Delete)]
    place.wait(1)
    assert run(place).count == 3


def test_under_an_older_root_that_was_put_back_nothing_is_swept(place: Place) -> None:
    """The copy that was made before a rewrite has a higher version than the root."""
    place.append(4)
    older = encode_root(place.root)
    place.append(1)
    version = place.root.version
    place.replace(*place.rows())
    put_back(place, older)
    refuses(place, f"has a copy of version {version}, the root has version {version - 1}")


def put_back(place: Place, older: bytes) -> None:
    """An older root in the place of the newest, and days go by."""
    newest = place.store.inner.execute(Head(place.root.key))
    assert isinstance(newest, Object)
    place.store.inner.execute(Put(place.root.key, older, Match(newest.etag), crc32c(older)))
    place.wait(3 * DAY_MS)


def refuses(place: Place, because: str) -> None:
    """Nothing is swept, planned or claimed, however often."""
    kept, root = place.keys, place.store.inner.execute(Get(root_key(TOPIC_ID, 0)))
    stranger = Maintainer(TopicPartition("flights", 0), TOPIC_ID, TopicConfig(), owner="gc:1")
    for delete in (False, True, True):
        with pytest.raises(CorruptionError, match=because):
            place.world.run(stranger.sweep(delete=delete))
    assert (place.keys, place.store.inner.execute(Get(root_key(TOPIC_ID, 0)))) == (kept, root)


def test_a_root_behind_its_copies_is_swept(place: Place) -> None:
    place.append(4)
    place.replace(*place.rows())
    place.trim(40)
    stranger = Maintainer(TopicPartition("flights", 0), TOPIC_ID, TopicConfig(), owner="gc:1")
    assert place.world.run(stranger.sweep(delete=True)).count == 0


def test_a_root_that_the_registry_vouches_for_is_lost_and_nothing_is_swept(place: Place) -> None:
    known = RootLowerBounds(made=True)
    stranger = Maintainer(TopicPartition("flights", 1), TOPIC_ID, TopicConfig(), owner="gc:1", known=known)
    with pytest.raises(CorruptionError, match="it was lost"):
        place.world.run(stranger.sweep(delete=True))


def test_a_topic_that_is_being_deleted_is_left_to_its_deletion(place: Place) -> None:
    place.append(4)
    place.world.run(place.maintainer.catalog.commit(DeletionIntent()))
    kept = place.keys
    place.wait(3 * DAY_MS)
    stranger = Maintainer(TopicPartition("flights", 0), TOPIC_ID, TopicConfig(), owner="gc:1")
    assert place.world.run(stranger.sweep(delete=True)) == Swept()
    assert place.keys == kept


def test_a_sweep_makes_no_root(place: Place) -> None:
    """The deletion of the topic has just ended: a claim would begin a log that no topic has."""
    kept = place.keys
    stranger = Maintainer(TopicPartition("flights", 1), TOPIC_ID, TopicConfig(), owner="gc:1")
    assert place.world.run(stranger.sweep(delete=True)) == Swept()
    assert place.keys == kept


@pytest.mark.parametrize("ended_by", [RemoteUnavailableError("no answer"), RemotePermissionError("403")])
def test_a_sweep_that_is_cut_short_has_left_an_audit_line(place: Place, ended_by: TieredError) -> None:
    """Before anything went: also where nothing can be written any more once the store has gone away."""
    place.append(20)
    orphans(place, Role.WRITER, 0)
    place.wait(ORPHAN_MS)
    gone: list[StoreRequest] = []

    class Ending(StoreAround):
        def execute(self, request: StoreRequest) -> Outcome:
            gone.extend([request] if isinstance(request, Delete) or gone else [])
            if gone:
                raise ended_by
            return self.inner.execute(request)

    with pytest.raises(type(ended_by)):
        drive(Ending(place.store), sweep(place.maintainer.catalog, delete=True), clock=place.world.clock)
    assert gone
    (key,) = keys_below(place, "jobs/gc/")
    got = place.store.inner.execute(Get(key))
    assert isinstance(got, Object)
    line = json.loads(got.data)
    assert (line["begun"], line["orphans"], line["version"]) == (True, 2, place.root.version)


def keys_below(place: Place, prefix: str) -> list[str]:
    page = place.store.inner.execute(List(prefix))
    assert isinstance(page, ListPage)
    return [entry.key for entry in page.entries]
