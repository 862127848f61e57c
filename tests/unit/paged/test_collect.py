"""What leaves the bucket, when, and what stops it. Numbers are those of bugs that others shipped."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Callable, Iterator

import pytest

from tests.unit.catalog.script import TOPIC_ID
from tests.unit.paged.collecting import PREFIX, TINY, Place
from tiered.config import DAY_MS, TopicConfig
from tiered.errors import CorruptionError, RemotePermissionError
from tiered.format.keys import PageName, Role, join_uid, page_key, pin_key, segment_key
from tiered.format.root import encode_root
from tiered.format.rows import TRASH_OBJECT, TRASH_PAGE, TRASH_ROWS, TRASH_TREE
from tiered.model import TopicPartition
from tiered.plan.maintenance import PIN_MS, Kind
from tiered.remote.collect import Collected
from tiered.remote.maintain import ALL_GOES, ALL_GOES_UNKNOWN, Maintainer
from tiered.store.base import (
    Delete,
    Deleted,
    Get,
    Match,
    Object,
    Outcome,
    Put,
    StoreRequest,
)
from tiered.store.driver import drive
from tiered.testing.clock import FakeClock


@pytest.fixture
def place() -> Place:
    return Place()


def deletes(place: Place) -> list[str]:
    return [key for request in place.store.requests if isinstance(request, Delete) for key in request.keys]


def test_what_left_goes_after_its_grace_and_not_before(place: Place) -> None:
    place.append(50)
    before = place.keys
    place.trim(333)
    place.wait(DAY_MS - 1)
    assert place.collect() == Collected()
    assert deletes(place) == []
    assert place.keys == before
    place.wait(1000)
    done = place.collect()
    assert (done.entries > 0, done.objects, done.failed) == (True, len(before - place.keys), ())
    assert len(place.root.trash) == 0
    assert place.keys == place.named
    assert place.collect() == Collected()


def test_what_a_clock_that_is_behind_trimmed_has_its_grace(place: Place) -> None:
    place.append(50)
    before = place.keys
    place.wait(2 * DAY_MS)
    behind, catalog = FakeClock(), place.maintainer.catalog
    for steps in (catalog.load(), catalog.trim(333)):
        drive(place.store, steps, clock=behind, ids=place.world.ids)
    place.wait(DAY_MS - 1)
    assert place.collect() == Collected()
    assert before <= place.keys
    place.wait(1000)
    assert place.collect().entries > 0
    assert place.keys == place.named


def test_bug_26_the_floor_is_committed_before_the_first_delete_and_pages_go_last(place: Place) -> None:
    place.append(50)
    place.trim(333)
    place.wait()
    place.collect()
    kinds = []
    for request in place.store.requests:
        if isinstance(request, Put) and request.key.endswith("/root"):
            kinds.append("root")
        elif isinstance(request, Delete):
            kinds += ["page" if "/p/" in key else "segment" for key in request.keys]
    first, last = kinds.index("segment"), len(kinds) - 1
    assert kinds[:first] == kinds[last:] == ["root"]  # gc_floor, gc_done
    assert kinds[first:last] == sorted(kinds[first:last], reverse=True)
    assert place.root.gc_floor > 0


@pytest.mark.parametrize("seed", range(10))
def test_bug_3_nothing_that_a_root_names_ever_goes_and_nothing_else_stays(seed: int) -> None:
    place, dice = Place(), random.Random(seed)
    for _ in range(60):
        roll = dice.random()
        if roll < 0.5:
            place.append(dice.randint(1, 6))
        elif roll < 0.65 and place.end:
            start = place.root.start_offset
            place.trim(dice.randint(start, start + (place.end - start) // 2))
        elif roll < 0.8 and len(rows := place.rows()) > 3:
            at = dice.randrange(len(rows) - 2)
            place.replace(*rows[at : at + dice.randint(1, 3)])
        elif roll < 0.9:
            place.wait(dice.choice([DAY_MS // 3, DAY_MS]))
        else:
            place.collect()
        assert place.named <= place.keys
    for _ in range(2):
        place.wait()
        place.collect()
    assert len(place.root.trash) == 0
    assert place.keys == place.named


def test_a_cycle_that_was_cut_short_is_repeated_to_the_same_end() -> None:
    for cut in itertools.count(1):
        place = Place()
        place.append(50)
        place.replace(*place.rows()[3:6])
        place.trim(333)
        place.wait()
        left = itertools.count(cut, -1)

        def answer(_: StoreRequest, carry_out: Callable[[], Outcome], left: Iterator[int] = left) -> Outcome:
            if next(left) <= 0:
                raise KeyboardInterrupt
            return carry_out()

        place.store.answer = answer
        with contextlib.suppress(KeyboardInterrupt):
            place.collect()
            break
        place.store.answer = None
        assert place.named <= place.keys
        place.maintainer = place.desk("m2", TINY)
        place.maintainer.maintain()
        place.collect()
        assert len(place.root.trash) == 0
        assert place.keys == place.named, cut
    assert cut > 10


def test_a_pin_holds_what_its_version_names_and_one_that_expired_does_not(place: Place) -> None:
    place.append(50)
    pinned, version = place.named, place.root.version
    place.trim(200)
    place.wait()
    pin = pin_key(TOPIC_ID, 0, "0" * 32)
    place.put(pin, json.dumps({"version": version}).encode())
    done = place.collect()
    assert (done.entries, done.pins, "wait for 1 pins" in done.note) == (0, 1, True)
    assert pinned <= place.keys
    place.wait(PIN_MS + 1)  # its reader crashed
    assert place.collect().entries > 0
    assert place.keys == place.named


def test_a_snapshot_holds_for_ever_what_it_names(place: Place) -> None:
    place.append(50)
    pinned = place.named
    place.put(f"{PREFIX}snap/release", encode_root(place.root))
    place.trim(200)
    place.wait(1000 * DAY_MS)
    assert place.collect().entries == 0
    assert pinned <= place.keys


def test_a_pin_that_cannot_be_read_stops_the_collection(place: Place) -> None:
    place.append(20)
    place.trim(100)
    place.wait()
    place.put(pin_key(TOPIC_ID, 0, "0" * 32), b"not a pin")
    with pytest.raises(CorruptionError):
        place.collect()
    assert deletes(place) == []


def test_bug_25_a_key_that_is_refused_keeps_its_own_entry_and_no_other(place: Place) -> None:
    place.append(5)
    place.trim(30)
    place.wait()
    refused = [key for key in sorted(place.keys - place.named) if key.endswith(".log")][1]

    def answer(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        if isinstance(request, Delete) and refused in request.keys:
            place.store.inner.execute(Delete(tuple(key for key in request.keys if key != refused)))
            return Deleted(((refused, "InternalError"),))
        return carry_out()

    place.store.answer = answer
    done = place.collect()
    assert (done.entries, done.objects, done.failed) == (2, 5, ((refused, "InternalError"),))
    assert refused in done.note
    assert place.keys - place.named == {refused}
    place.store.answer = None
    assert place.collect().entries == 1
    assert place.keys == place.named


def test_a_page_stays_as_long_as_something_that_it_names_is_there(place: Place) -> None:
    """A leaf that a trim left partly dead, and a replacement whole: the one entry lists its rows, the other ends it."""
    place.append(50)
    refused = segment_key(TOPIC_ID, 0, place.rows()[0])
    place.trim(15)
    place.replace(*place.rows()[1:3])
    kinds = [entry.what for entry in place.root.trash]
    assert kinds[:4] == [TRASH_ROWS, TRASH_OBJECT, TRASH_OBJECT, TRASH_PAGE]
    place.wait()

    def answer(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        if isinstance(request, Delete) and refused in request.keys:
            place.store.inner.execute(Delete(tuple(key for key in request.keys if key != refused)))
            return Deleted(((refused, "InternalError"),))
        return carry_out()

    place.store.answer = answer
    place.collect()
    assert refused in place.keys
    place.store.answer = None
    place.collect()
    assert place.keys == place.named


def test_a_right_that_is_missing_stops_the_cycle_and_is_named(place: Place) -> None:
    place.append(5)
    place.trim(30)
    place.wait()

    def answer(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        if isinstance(request, Delete):
            return Deleted(tuple((key, "AccessDenied") for key in request.keys))
        return carry_out()

    place.store.answer = answer
    with pytest.raises(RemotePermissionError, match="s3:DeleteObject"):
        place.collect()
    assert len(place.root.trash) == 3


def test_a_page_that_cannot_be_read_stops_the_collection_loudly(place: Place) -> None:
    place.append(50)
    place.trim(333)
    place.wait()
    kinds = {entry.what for entry in place.root.trash}
    assert TRASH_TREE in kinds
    entry = next(entry for entry in place.root.trash if entry.what == TRASH_TREE)
    name = PageName(Role.WRITER, entry.epoch, join_uid(entry.id_hi, entry.id_lo))
    key = page_key(TOPIC_ID, 0, name)
    found = place.store.inner.execute(Get(key))
    assert isinstance(found, Object)
    place.store.inner.execute(Put(key, found.data[:-1] + b"?", Match(found.etag)))
    with pytest.raises(CorruptionError) as raised:
        place.collect()
    assert raised.value.path_or_key == key
    assert deletes(place) == []


def test_each_cycle_leaves_a_line_in_the_bucket(place: Place) -> None:
    place.append(5)
    place.trim(30)
    place.wait()
    done = place.collect()
    found = place.store.inner.execute(Get(done.audit))
    assert isinstance(found, Object)
    line = json.loads(found.data)
    assert done.audit.startswith("jobs/gc/")
    assert (line["topic"], line["entries"], line["objects"], line["failed"]) == ("flights", 3, 6, [])


def test_a_trim_to_the_end_says_whether_it_is_known_afterwards_who_wrote(place: Place) -> None:
    """The newest row stands in the root, or, after a rewrite up to the end, in a page."""
    place.append(12)
    maintainer = Maintainer(TopicPartition("flights", 0), TOPIC_ID, TopicConfig(), owner="m:1")
    said = []
    for _ in range(2):
        plan = place.world.run(maintainer.plan((Kind.RETENTION,), begin_at=place.end))
        assert plan is not None
        said.append((len(place.root.rows) > 0, plan.notes))
        place.replace(*place.rows()[3:])
    assert said == [(True, (ALL_GOES,)), (False, (ALL_GOES_UNKNOWN,))]
