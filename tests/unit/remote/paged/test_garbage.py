"""What leaves the bucket, when, and what stops it. Numbers are those of bugs that others shipped."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.unit.remote.building import TRUSTED
from tests.unit.remote.catalog.script import TOPIC_ID
from tests.unit.remote.paged.collecting import PREFIX, Place
from tiered.config import DAY_MS, TopicConfig
from tiered.errors import CorruptionError, RemotePermissionError, RemoteUnavailableError, TieredError
from tiered.format.keys import PageName, Role, index_key, join_uid, page_key, pin_key, segment_key
from tiered.format.root import encode_complete_snapshot, encode_root
from tiered.model import TRASH_OBJECT, TRASH_PAGE, TRASH_ROWS, TRASH_TREE, TopicPartition
from tiered.plan.maintenance import MaintenanceKind, newest_trimmed
from tiered.remote.catalog_view import PageCache
from tiered.remote.gc.garbage import Collected, page_key_of
from tiered.remote.maintain import ALL_GOES, Maintainer
from tiered.store.base import (
    Delete,
    Deleted,
    Get,
    List,
    ListPage,
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


def planner_of() -> Maintainer:
    config = TopicConfig(gc_grace_ms=DAY_MS, retention_ms=DAY_MS, cleanup_policy="delete")
    return Maintainer(TopicPartition("flights", 0), TOPIC_ID, config, owner="m:2")


@pytest.mark.parametrize("times", [1, 2])
def test_a_plan_whose_pages_were_collected_meanwhile_is_made_of_the_newest_root(place: Place, times: int) -> None:
    """The reader stands still between a root and its pages, for longer than the grace."""
    place.append(50)
    execute, trims = place.store.execute, iter([200, 420][:times])

    def standing_still(request: StoreRequest) -> Outcome:
        if isinstance(request, Get) and request.key.endswith(".page") and (to := next(trims, None)) is not None:
            place.store.execute = execute  # type: ignore[method-assign]
            place.trim(to)
            place.wait()
            place.collect()
            place.store.execute = standing_still  # type: ignore[method-assign]
        return execute(request)

    place.store.execute = standing_still  # type: ignore[method-assign]
    plan = place.world.run(planner_of().plan([MaintenanceKind.RETENTION]))
    assert plan is not None
    assert (plan.version, next(trims, None)) == (place.root.version, None)
    assert [(each.kind, each.start) for each in plan.actions] == [(MaintenanceKind.RETENTION, place.root.start_offset)]


def test_a_plan_says_that_a_page_is_lost(place: Place) -> None:
    place.append(50)
    lost = sorted(key for key in place.named if key.endswith(".page"))
    place.store.execute(Delete(tuple(lost)))
    place.store.forget()
    with pytest.raises(CorruptionError, match=r"its page .* is gone"):
        place.world.run(planner_of().plan([MaintenanceKind.RETENTION]))
    asked = [request.key for request in place.store.requests if isinstance(request, Get)]
    assert [key.endswith("/root") for key in asked] == [True, False, True, False]


def test_what_a_clock_that_is_behind_trimmed_has_its_grace(place: Place) -> None:
    place.append(50)
    before = place.keys
    place.wait(2 * DAY_MS)
    behind, catalog = FakeClock(), place.maintainer.catalog
    behind.advance(2 * DAY_MS / 1000)
    behind.jump(-2 * DAY_MS / 1000)
    for steps in (catalog.load(), catalog.trim(333)):
        drive(place.store, steps, clock=behind, ids=place.world.ids)
    place.wait(DAY_MS - 1)
    assert place.collect() == Collected()
    assert before <= place.keys
    place.wait(1000)
    assert place.collect().entries > 0
    assert place.keys == place.named


def test_what_a_snapshot_holds_costs_neither_a_version_nor_a_line_a_round(place: Place) -> None:
    """One cycle looks at each thing that has left; those behind it change nothing, until something has left again."""
    place.append(50)
    snapshot = f"{PREFIX}snap/release"
    place.put(snapshot, encode_complete_snapshot(encode_root(place.root), "0" * 32, "release"))
    place.trim(200)
    place.wait()

    def turn() -> Collected:
        maintainer = planner_of()
        plan = place.world.run(maintainer.plan([MaintenanceKind.COLLECT]))
        assert plan is not None
        (action,) = plan.actions
        collected = place.world.run(maintainer.run(action, TRUSTED)).collected
        assert collected is not None
        return collected

    def lines() -> int:
        page = place.store.inner.execute(List("jobs/gc/"))
        assert isinstance(page, ListPage)
        return len(page.entries)

    first = turn()
    held, version = first.held, place.root.version
    assert (first.entries, first.pins, held > 0, lines()) == (0, 1, True, 1)
    for _ in range(3):
        place.wait()
        again = turn()
        assert (again.entries, again.pins, again.held, again.note) == (0, 1, held, f"{held} entries wait for 1 pins")
        assert (place.root.version, lines()) == (version, 1)
    place.maintainer = place.desk("m3")
    place.maintainer.maintain()
    place.trim(300)
    place.wait()
    assert turn().held > held
    assert lines() == 2
    place.store.execute(Delete((snapshot,)))
    place.store.forget()
    assert turn().entries > held
    assert place.keys == place.named


def test_what_a_stranger_put_among_the_pins_holds_nothing(place: Place) -> None:
    place.append(20)
    place.trim(100)
    place.wait()
    for name in ("README", "\U0001f600", "1" * 31):
        place.put(PREFIX + f"pin/{name}")
        place.put(PREFIX + f"snap/-{name}")
    assert place.collect().entries > 0


def test_a_pin_that_cannot_be_read_stops_the_collection(place: Place) -> None:
    place.append(20)
    place.trim(100)
    place.wait()
    place.put(pin_key(TOPIC_ID, 0, "0" * 32), b"not a pin")
    with pytest.raises(CorruptionError):
        place.collect()
    assert deletes(place) == []


@pytest.mark.parametrize(
    ("why", "error"), [("AccessDenied", RemotePermissionError), ("Internal", RemoteUnavailableError)]
)
@pytest.mark.parametrize("is_leaf", [False, True])
def test_a_key_that_is_refused_ends_the_cycle_and_the_next_one_deletes_it(
    place: Place, why: str, error: type[TieredError], is_leaf: bool
) -> None:
    """The key is that of a leaf whose rows a trim and a replacement removed, or of a segment in it."""
    place.append(50)
    refused = segment_key(TOPIC_ID, 0, place.rows()[0])
    place.trim(15)
    place.replace(*place.rows()[1:3])
    assert [entry.what for entry in place.root.trash][:4] == [TRASH_ROWS, TRASH_OBJECT, TRASH_OBJECT, TRASH_PAGE]
    if is_leaf:
        refused = page_key_of(place.root, place.root.trash.entry(0))
    place.wait()

    def answer(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        if isinstance(request, Delete) and refused in request.keys:
            place.store.inner.execute(Delete(tuple(key for key in request.keys if key != refused)))
            return Deleted(((refused, why),))
        return carry_out()

    before, place.store.answer = len(place.root.trash), answer
    with pytest.raises(error, match=refused):
        place.collect()
    assert (refused in place.keys, len(place.root.trash)) == (True, before)
    place.store.answer = None
    place.collect()
    assert place.keys == place.named


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
    assert (line["topic"], line["entries"], line["objects"]) == ("flights", 3, 6)


@pytest.mark.parametrize(
    ("rows", "rewritten", "start"),
    [(12, 3, 0), (12, 11, 0), (12, 3, 110), (40, 20, 0), (40, 4, 0), (40, 37, 395), (60, 30, 450), (120, 90, 0)],
)
def test_a_trim_to_the_end_leaves_the_objects_of_the_newest_row_until_the_next_append(
    place: Place, rows: int, rewritten: int, start: int
) -> None:
    """Wherever it stands: in the root, in a leaf below the root, in one below an inner page, alone or not."""
    place.append(rows)
    place.replace(*place.rows()[rewritten : rewritten + (2 if rows > 100 else rows)])
    if start:
        place.trim(start)
        place.wait()
        place.collect()
    newest = place.rows()[-1]
    maintainer = Maintainer(TopicPartition("flights", 0), TOPIC_ID, TopicConfig(), owner="m:1")
    plan = place.world.run(maintainer.plan((MaintenanceKind.RETENTION,), begin_at=place.end))
    assert plan is not None
    assert plan.notes == (ALL_GOES,)
    place.trim(place.end)
    told = newest_trimmed(place.root)
    assert told is not None
    assert (told.base, told.id_hi, told.id_lo) == (newest.base, newest.id_hi, newest.id_lo)
    place.wait()
    place.collect()
    kept = {segment_key(TOPIC_ID, 0, newest), index_key(TOPIC_ID, 0, newest)}
    assert place.keys == kept
    assert list(place.root.trash) == [told]
    assert place.collect() == Collected()
    place.append(1)
    place.wait()
    assert place.collect().objects == 2
    assert place.keys == place.named


def test_a_commit_on_a_root_whose_pages_are_collected_goes_on_with_the_newest(place: Place) -> None:
    """The writer stood still for a day: its claim holds, but what its root names a maintainer has replaced since."""
    place.append(40)
    rows, held = place.rows(), place.root
    place.replace(*rows[0:3])
    place.wait()
    assert place.collect().objects > 0
    place.writer.catalog.pages = PageCache()
    assert place.writer.catalog.root is not None
    assert place.writer.catalog.root.version == held.version < place.root.version
    trimmed = place.world.run(place.writer.catalog.trim(rows[1].base))
    assert (trimmed.start_offset, trimmed.roles["m"].epoch) == (rows[1].base, place.root.roles["m"].epoch)
    assert place.rows()[0].next == rows[2].next
