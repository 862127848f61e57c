"""Pages in a store: what is sent in which order, what a lookup costs, and every way in which a page's PUT can end."""

from __future__ import annotations

import dataclasses
import sys
import threading
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.unit.remote.catalog.script import TOPIC_ID, Desk, World
from tests.unit.remote.paged.model import TINY
from tiered.errors import CorruptionError, FencedError, NotFoundError, RemotePermissionError, RemoteUnavailableError
from tiered.format.keys import FLAG_MAINTAINER, hist_key, parse_hist_key, root_key
from tiered.format.root import CompactedRange, encode_root
from tiered.model import Row
from tiered.plan.catalog_edit import ReplaceIntent, TrimIntent
from tiered.plan.commit import SHAPE, GcDoneIntent, GcFloorIntent
from tiered.remote.catalog_view import CatalogView, PageCache, PageGone
from tiered.remote.root_history import HIST_AGE_MS, HIST_EVERY, HIST_KEPT
from tiered.remote.root_view import RootView
from tiered.store.base import ABSENT, Delete, Get, List, ListPage, Object, Put, PutStatus, Steps, StoreRequest

T = TypeVar("T")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def desk(world: World) -> Desk:
    desk = small(world.desk())
    desk.claim(desk.proof(empty=True, end_offset=0))
    return desk


def small(desk: Desk) -> Desk:
    desk.catalog._shape = TINY
    return desk


def maintainer(world: World) -> Desk:
    desk = small(world.desk("m"))
    desk.maintain()
    return desk


def fill(desk: Desk, rows: int, at_once: int = 1) -> list[Row]:
    """Rows of ten offsets each, committed."""
    made: list[Row] = []
    for _ in range(0, rows, at_once):
        end = desk.catalog.root.next_offset if desk.catalog.root else 0
        some = [desk.row(end + 10 * at, end + 10 * at + 10) for at in range(at_once)]
        desk.world.run(desk.catalog.append(some))
        made += some
    return made


def counted(world: World, steps: Steps[T]) -> tuple[T, int]:
    """What steps give, and how many GETs they took."""
    before = world.store.gets
    result = world.run(steps)
    return result, world.store.gets - before


def view(world: World) -> RootView:
    return RootView(TOPIC_ID, 0, "flights")


def pinned(world: World) -> CatalogView:
    found = world.run(view(world).pin())
    assert found is not None
    return found


def rows_of(world: World, snapshot: CatalogView) -> list[Row]:
    found: list[Row] = []
    at = 0
    while len(rows := world.run(snapshot.piece(at))):
        found += rows
        at = rows.end_offset
    return found


def keys_put(world: World, since: int) -> list[str]:
    return [put.key.split("/", 2)[2].split("/")[0] for put in world.store.puts[since:]]


# -- commits -----------------------------------------------------------------------------------------------------------


def test_requests_of_a_thousand_commits_are_exact(world: World, desk: Desk) -> None:
    """A leaf every 4 rows, an inner page every 3 leaves; nothing is read, nothing is listed."""
    gets, puts = world.store.gets, len(world.store.puts)
    made = fill(desk, 300)
    sent = keys_put(world, puts)
    root = pinned(world).root
    assert (len(root.inner), len(root.leaves), len(root.rows)) == (24, 2, 4)
    leaves = 24 * 3 + 2
    copies = [put for put in world.store.puts[puts:] if parse_hist_key(put.key) is not None]
    assert (sent.count("root"), sent.count("p"), len(copies)) == (300, leaves + 24, root.version // HIST_EVERY)
    assert world.store.gets - gets == 1  # the pin above
    assert rows_of(world, pinned(world)) == made


PAGE_FAULTS = [["lost"], ["drop"], ["lost", "lost", "drop"], ["conflict"], ["conflict", "lost"], ["down"], ["late"]]


@pytest.mark.parametrize("script", PAGE_FAULTS)
def test_a_page_is_sent_until_it_is_there(world: World, desk: Desk, script: list[str]) -> None:
    made = fill(desk, 5)
    before = len(world.store.puts)
    world.store.script.extend(script)
    made += fill(desk, 1)
    sent = keys_put(world, before)
    assert sent == ["p"] * (len(script) + 1) + ["root"]
    assert len({put.body for put in world.store.puts[before:-1] if isinstance(put.body, bytes)}) == 1
    assert world.store.deliver() in ([], [PutStatus.LOST])
    assert rows_of(world, pinned(world)) == made


def test_without_its_page_no_root_is_sent(world: World, desk: Desk) -> None:
    made = fill(desk, 5)
    for word, error in (("drop", RemoteUnavailableError), ("lost", RemoteUnavailableError)):
        before = len(world.store.puts)
        world.store.script.extend([word] * 10_000)
        with pytest.raises(error, match="nothing was committed"):
            world.run(desk.catalog.append([desk.row(50, 60)]))
        world.store.script.clear()
        assert set(keys_put(world, before)) == {"p"}
        assert not desk.catalog.in_doubt
    world.store.script.append("denied")
    with pytest.raises(RemotePermissionError):
        world.run(desk.catalog.append([desk.row(50, 60)]))
    assert not desk.catalog.in_doubt
    made += fill(desk, 1)
    assert rows_of(world, pinned(world)) == made


def test_a_claim_makes_no_page(world: World, desk: Desk) -> None:
    desk.catalog._shape = SHAPE
    made = fill(desk, 20, 20)
    again = small(world.desk())
    again.token, again.last_append = desk.token, desk.last_append
    before = len(world.store.puts)
    again.claim(again.proof())
    assert keys_put(world, before) == ["root", "hist"]
    made += fill(again, 1)
    assert len(pinned(world).root.leaves) == 4
    assert rows_of(world, pinned(world)) == made


# -- lookups -----------------------------------------------------------------------------------------------------------


def test_a_cold_lookup_takes_three_requests_a_warm_one_none(world: World, desk: Desk) -> None:
    made = fill(desk, 100)
    assert len(pinned(world).root.inner) > 5
    for row in made:
        snapshot, root_gets = counted(world, view(world).pin())
        assert snapshot is not None
        found, gets = counted(world, snapshot.at(row.base + 3))
        assert (found, root_gets, gets <= 2) == (row, 1, True)
        assert counted(world, snapshot.at(row.base)) == (row, 0)
        cold = pinned(world)
        found, gets = counted(world, cold.reaching(row.max_ts))
        assert found is not None
        assert found.max_ts >= row.max_ts
        assert gets <= 2
        assert counted(world, cold.reaching(row.max_ts)) == (found, 0)
    snapshot = pinned(world)
    assert counted(world, snapshot.last()) == (made[-1], 0)
    found, gets = counted(world, snapshot.times())
    assert (found, gets <= 2) == ((0, 1000), True)
    assert counted(world, snapshot.flagged(4, 0))[1] == 0  # no page has such a row


def test_what_lies_below_the_start_is_never_shown(world: World, desk: Desk) -> None:
    made = fill(desk, 60)
    other = maintainer(world)
    for start in (15, 40, 125, 130, 311, 570):
        world.run(other.catalog.trim(start))
        snapshot = pinned(world)
        alive = [row for row in made if row.next > start]
        assert rows_of(world, snapshot) == alive
        assert world.run(snapshot.first()) == alive[0]
        assert world.run(snapshot.at(alive[0].base - 1)) is None
        assert world.run(snapshot.reaching(0)) == alive[0]
        assert world.run(snapshot.times()) == (alive[0].min_ts, 600)
        assert (snapshot.segments, snapshot.records) == (len(alive), sum(row.records for row in alive))


def test_a_trim_reads_two_pages_at_most_and_writes_none(world: World, desk: Desk) -> None:
    fill(desk, 100)
    other = maintainer(world)
    other.catalog._shape = dataclasses.replace(TINY, trash_entries=1000)
    for start in (5, 133, 400, 401, 905):
        before = len(world.store.puts)
        _, gets = counted(world, other.catalog.trim(start))
        assert gets <= 2
        assert keys_put(world, before) == ["hist", "root"]


# -- pages that are damaged or gone ------------------------------------------------------------------------------------


def first_leaf(world: World) -> str:
    root = pinned(world).root
    return root.page_key(root.leaves.pointer(0))


def test_a_page_that_is_damaged_on_the_wire_is_read_again(world: World, desk: Desk) -> None:
    made = fill(desk, 10)
    key = first_leaf(world)
    real, spoiled = world.store.execute, [key]

    def spoil(request: StoreRequest) -> object:
        got = real(request)
        if isinstance(request, Get) and request.key in spoiled and isinstance(got, Object):
            spoiled.remove(request.key)
            return dataclasses.replace(got, data=got.data[:-9] + b"x" + got.data[-8:])
        return got

    world.store.execute = spoil  # type: ignore[method-assign, assignment]
    assert rows_of(world, pinned(world)) == made
    assert spoiled == []


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: b"", lambda d: d[:40] + b"?" + d[41:]])
def test_a_damaged_page_is_named_and_stops_the_change(
    world: World, desk: Desk, damage: Callable[[bytes], bytes]
) -> None:
    fill(desk, 10)
    other = maintainer(world)
    key = first_leaf(world)
    got = world.store.inner.execute(Get(key))
    assert isinstance(got, Object)
    world.store.inner.execute(Delete((key,)))
    world.store.inner.execute(Put(key, damage(got.data), ABSENT))
    version = pinned(world).version
    for steps in (pinned(world).at(5), other.catalog.trim(15)):
        with pytest.raises(CorruptionError, match=key):
            world.run(steps)
    assert pinned(world).version == version
    assert not other.catalog.in_doubt


def test_a_page_that_is_gone_is_looked_for_in_a_newer_root(world: World, desk: Desk) -> None:
    fill(desk, 30)
    other = pinned(world)
    stale = small(world.desk("m2"))
    stale.maintain()
    one = maintainer(world)
    world.run(one.catalog.trim(170))
    key = other.root.page_key(other.root.inner.pointer(0))
    world.store.inner.execute(Delete((key,)))
    with pytest.raises(PageGone):
        world.run(other.at(5))
    with pytest.raises(FencedError):
        world.run(stale.catalog.trim(15))
    one.catalog.pages = PageCache()
    world.store.inner.execute(Delete((first_leaf(world),)))
    with pytest.raises(PageGone, match="is gone"):
        world.run(one.catalog.trim(pinned(world).root.leaves.pointer(0).base + 15))


# -- intents of a maintainer -------------------------------------------------------------------------------------------


def merged(desk: Desk, old: list[Row]) -> ReplaceIntent:
    row = desk.row(old[0].base, old[-1].next, flags=FLAG_MAINTAINER, records=len(old))
    return ReplaceIntent(tuple(old), (row,), CompactedRange(old[-1].next, 7))


def test_a_replacement_rewrites_one_leaf_and_what_is_above_it(world: World, desk: Desk) -> None:
    made = fill(desk, 50)
    other = maintainer(world)
    before = len(world.store.puts)
    intent = merged(other, made[17:19])
    root = world.run(other.catalog.commit(intent))
    assert keys_put(world, before) == ["p", "p", "hist", "root"]
    assert root.cleaned == (CompactedRange(190, 7),)
    assert rows_of(world, pinned(world)) == [*made[:17], intent.rows[0], *made[19:]]
    with pytest.raises(NotFoundError, match="other rows"):
        world.run(other.catalog.commit(merged(other, made[17:19])))
    assert not other.catalog.in_doubt


def test_nothing_is_sent_where_nothing_changes(world: World, desk: Desk) -> None:
    made = fill(desk, 12)
    other = maintainer(world)
    world.run(other.catalog.trim(20))
    before = len(world.store.puts)
    world.run(other.catalog.commit(TrimIntent(20)))
    with pytest.raises(NotFoundError):
        world.run(other.catalog.commit(merged(other, made[:2])))
    assert len(world.store.puts) == before


def test_the_books_of_the_collector(world: World, desk: Desk) -> None:
    fill(desk, 12)
    other = maintainer(world)
    world.run(other.catalog.trim(55))
    root = world.run(other.catalog.trim(75))
    entries = tuple(root.trash)
    with pytest.raises(Exception, match="above the floor 0"):
        world.run(other.catalog.commit(GcDoneIntent(entries)))
    with pytest.raises(Exception, match="beyond"):
        world.run(other.catalog.commit(GcFloorIntent(root.version + 1)))
    root = world.run(other.catalog.commit(GcFloorIntent(entries[0].removed_version)))
    first = tuple([entry for entry in entries if entry.removed_version <= root.gc_floor])
    root = world.run(other.catalog.commit(GcDoneIntent(first)))
    assert tuple(root.trash) == entries[len(first) :]
    before = len(world.store.puts)
    world.run(other.catalog.commit(GcDoneIntent(first)))
    world.run(other.catalog.commit(GcFloorIntent(1)))
    assert len(world.store.puts) == before


# -- copies ------------------------------------------------------------------------------------------------------------


def copies(world: World) -> list[int]:
    found = world.store.inner.execute(List(pinned(world).root.key.removesuffix("root") + "hist/"))
    assert isinstance(found, ListPage)
    return [version for entry in found.entries if (version := parse_hist_key(entry.key)) is not None]


def test_roots_are_copied_before_removals_and_at_intervals(world: World, desk: Desk) -> None:
    claimed = pinned(world).version
    fill(desk, HIST_EVERY)
    assert copies(world) == [claimed, HIST_EVERY]
    other = maintainer(world)
    version = pinned(world).version
    body = world.store.inner.execute(Get(root_key(TOPIC_ID, 0)))
    world.run(other.catalog.trim(15))
    kept = world.store.inner.execute(Get(hist_key(TOPIC_ID, 0, version)))
    assert isinstance(body, Object)
    assert isinstance(kept, Object)
    assert kept.data == body.data


def test_copies_within_the_grace_are_kept_however_many(world: World, desk: Desk) -> None:
    fill(desk, HIST_EVERY)
    other = maintainer(world)
    first = pinned(world).version
    for at in range(15, 16 + HIST_KEPT):
        world.run(other.catalog.trim(at))
    every = copies(world)
    assert set(range(first, first + HIST_KEPT + 1)) <= set(every)
    world.run(maintainer(world).catalog.trim(620))
    assert set(every) <= set(copies(world))
    world.clock.advance(HIST_AGE_MS / 1000 + 1)
    again = small(world.desk())
    again.token, again.last_append = desk.token, desk.last_append
    again.claim(again.proof())
    fill(again, HIST_EVERY)  # a writer deletes no copy: its key may be stolen
    assert set(every) < set(copies(world))
    world.run(maintainer(world).catalog.trim(630))
    world.run(maintainer(world).catalog.trim(631))
    assert len(copies(world)) == HIST_KEPT
    assert copies(world)[-1] == pinned(world).version - 1


def test_a_removal_whose_copy_is_refused_is_not_sent(world: World, desk: Desk) -> None:
    fill(desk, 3)
    other = maintainer(world)
    before = copies(world)
    world.store.script.append("denied")
    with pytest.raises(RemotePermissionError):
        world.run(other.catalog.trim(5))
    assert (pinned(world).start_offset, copies(world)) == (0, before)
    world.store.script.append("down")
    assert world.run(other.catalog.trim(6)).start_offset == 6
    assert copies(world) == [*before, pinned(world).version - 1]


def test_a_copy_of_another_commit_stops_a_removal(world: World, desk: Desk) -> None:
    """Two commits of one version exist only after the root went back."""
    fill(desk, 3)
    other = maintainer(world)
    root = pinned(world).root
    twin = dataclasses.replace(root, commit=dataclasses.replace(root.commit, id="0f" * 16))
    world.store.inner.execute(Put(hist_key(TOPIC_ID, 0, root.version), encode_root(twin), ABSENT))
    with pytest.raises(CorruptionError, match="another commit of version"):
        world.run(other.catalog.trim(5))
    assert pinned(world).start_offset == 0


def test_a_claim_needs_no_copy(world: World, desk: Desk) -> None:
    again = world.desk()
    again.token, again.last_append = desk.token, desk.last_append
    before = copies(world)
    world.store.script.extend(["ok", "denied"])
    again.claim(again.proof())
    assert copies(world) == before


@pytest.mark.parametrize("rows", [0, 600, 1_087, 3_000])
def test_a_commit_holds_no_more_than_it_is_counted_with(world: World, rows: int) -> None:
    """Also where it puts 1,024 rows into a leaf (from 1,152 on) or has leaves already."""
    other = World().desk()  # the modules that a first commit loads are nobody's to count
    other.claim(other.proof(empty=True, end_offset=0))
    fill(other, 64, at_once=64)
    desk = world.desk()
    desk.claim(desk.proof(empty=True, end_offset=0))
    if rows:
        fill(desk, rows, at_once=rows)
    end = 10 * rows
    some = [desk.row(end + 10 * at, end + 10 * at + 10) for at in range(64)]
    counted_with = desk.catalog.commit_bytes(len(some))
    steps, loaded = desk.catalog.append(some), set(sys.modules)
    tracemalloc.start()
    world.run(steps)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    others = set(sys.modules) - loaded, [thread.name for thread in threading.enumerate()]
    assert peak < counted_with, others  # what else was counted
    assert counted_with < 4 * 1024 * 1024
