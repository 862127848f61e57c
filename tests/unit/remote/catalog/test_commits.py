"""Every way a commit can end: landed, lost, fenced both ways, unknown, destroyed."""

from __future__ import annotations

import pytest

from tests.unit.remote.catalog.script import TOPIC_ID, Desk, World
from tiered.errors import (
    CommitUnknownError,
    ConfigError,
    CorruptionError,
    FencedError,
    LogDestroyedError,
    OffsetGapError,
    OffsetOutOfRangeError,
    RemotePermissionError,
    RemoteUnavailableError,
)
from tiered.format.keys import root_key
from tiered.format.root import Root
from tiered.model import EpochEntry
from tiered.plan.catalog_edit import TrimIntent
from tiered.plan.root_lower_bounds import HELD_LIMIT
from tiered.remote.catalog import Catalog
from tiered.store.base import Blocking, Delete, NewId, Now, Put, Steps, Time
from tiered.store.driver import drive
from tiered.testing.clock import FakeClock


class StoppedClock(FakeClock):
    """Of a process that is stopped for a day wherever it waits."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds + 86_400)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def desk(world: World) -> Desk:
    desk = world.desk()
    desk.claim(desk.proof(empty=True, end_offset=0))
    return desk


def stored(world: World) -> Root:
    root = world.run(Catalog(TOPIC_ID, 0, "flights").load())
    assert root is not None
    return root


def roots_put(world: World) -> list[Put]:
    """Return the PUTs of roots, without their copies."""
    return [put for put in world.store.puts if put.key == root_key(TOPIC_ID, 0)]


def fence(world: World) -> None:
    thief = world.desk("v2")
    thief.claim(thief.proof(empty=True, end_offset=0))


def test_fenced_over_sixty_four_claims_ago_is_unknown(world: World, desk: Desk) -> None:
    def chain() -> None:
        thief = world.desk("v2")
        thief.claim(thief.proof(empty=True, end_offset=0))
        for _ in range(70):
            thief.claim()

    world.store.script.extend(["lost", chain])
    with pytest.raises(CommitUnknownError, match=r"the outcome of commit [0-9a-f]{32} is unknown: role w is at epoch"):
        world.run(desk.catalog.append([desk.row(0, 10)]))


def test_a_copy_of_the_process_under_the_same_claim_is_found(world: World, desk: Desk) -> None:
    twin = world.desk("v1")
    twin.catalog.__dict__.update({k: v for k, v in desk.catalog.__dict__.items() if k not in {"_busy", "_persist"}})
    world.run(twin.catalog.append([twin.row(0, 10)]))
    with pytest.raises(FencedError, match="another process commits under epoch 1"):
        world.run(desk.catalog.append([desk.row(0, 10)]))


def test_a_refusal_leaves_the_commit_in_doubt_until_a_claim(world: World, desk: Desk) -> None:
    world.store.script.append("denied")
    with pytest.raises(RemotePermissionError):
        world.run(desk.catalog.append([desk.row(0, 10)]))
    with pytest.raises(CommitUnknownError, match="was sent, and its outcome is unknown"):
        world.run(desk.catalog.append([desk.row(0, 10)]))
    desk.claim(desk.proof(end_offset=10))
    world.store.script.extend(["late", "denied"])
    with pytest.raises(CommitUnknownError):
        world.run(desk.catalog.append([desk.row(0, 10)]))
    world.store.script.append("denied")
    with pytest.raises(RemotePermissionError):
        desk.claim()
    assert desk.catalog.in_doubt  # a claim that was refused has settled nothing
    desk.claim()
    assert desk.catalog.in_doubt == ""


def test_ids_that_may_have_landed_are_kept_until_a_root_was_read_back(world: World, desk: Desk) -> None:
    world.run(desk.catalog.read_back())
    rows = [desk.row(0, 10), desk.row(10, 20), desk.row(20, 30)]
    ids = [world.run(desk.catalog.append([row])).writer.last_append for row in rows]
    assert desk.last_append.split(",") == ids  # acknowledged, but no root was read
    world.run(desk.catalog.read_back())
    ids.append(world.run(desk.catalog.append([desk.row(30, 40)])).writer.last_append)
    assert desk.last_append.split(",") == ids[2:]  # the root that was read back carried the third


def test_any_number_of_pending_ids_leaves_the_one_in_the_root(world: World, desk: Desk) -> None:
    for _ in range(HELD_LIMIT + 10):  # a policy that forbids the PUT for hours
        world.store.script.append("denied")
        with pytest.raises(RemotePermissionError):
            desk.claim(desk.proof(end_offset=0))
    assert len(desk.token.split(",")) == HELD_LIMIT
    again = world.desk("v1")
    again.token, again.last_append = desk.token, desk.last_append
    assert again.claim(again.proof(end_offset=0)).epoch == 2


def test_abandoned_steps_leave_the_catalog_in_doubt(world: World, desk: Desk) -> None:
    steps = desk.catalog.append([desk.row(0, 10)])
    request = next(steps)
    while not isinstance(request, Put):
        answer: object = world.ids.uid() if isinstance(request, NewId) else Time(1_700_000_000_000, 0.0)
        assert isinstance(request, NewId | Now | Blocking)
        if isinstance(request, Blocking):
            request.call()
        request = steps.send(answer)
    steps.close()  # what a cancelled asyncio task does
    with pytest.raises(CommitUnknownError):
        world.run(desk.catalog.append([desk.row(0, 10)]))
    desk.claim(desk.proof(end_offset=0))
    assert world.run(desk.catalog.append([desk.row(0, 10)])).next_offset == 10


def test_the_root_that_vanished_is_terminal(world: World, desk: Desk) -> None:
    world.run(desk.catalog.append([desk.row(0, 10)]))
    world.store.inner.execute(Delete((desk.catalog.key,)))
    with pytest.raises(LogDestroyedError, match="gone"):
        world.run(desk.catalog.append([desk.row(10, 20)]))
    with pytest.raises(LogDestroyedError):
        world.run(desk.catalog.load())
    with pytest.raises(LogDestroyedError):
        world.run(desk.catalog.read_back())
    with pytest.raises(CommitUnknownError):
        world.run(desk.catalog.append([desk.row(10, 20)]))


def test_appends_must_continue_the_catalog(world: World, desk: Desk) -> None:
    root = world.run(desk.catalog.append([desk.row(0, 10)]))
    sent = len(world.store.puts)
    with pytest.raises(OffsetGapError, match="ends at offset 10") as gap:
        world.run(desk.catalog.append([desk.row(12, 20)]))
    assert (gap.value.start, gap.value.end) == (10, 12)
    bad = [
        [],
        [desk.row(0, 10)],
        [desk.row(10, 20), desk.row(21, 30)],
        [desk.row(10, 10)],
        [desk.row(10, 20, claim_epoch=2)],
        [desk.row(10, 20, flags=1)],
        [desk.row(10, 20, flags=64)],
        [desk.row(10, 20, min_ts=5, max_ts=4)],
        [desk.row(10, 20, size=0)],
        [desk.row(10, 20, crc=1 << 32)],
        [root.rows.row(0)._replace(base=10, next=20)],
        [desk.row(10, 20, id_hi=1, id_lo=1), desk.row(20, 30, id_hi=1, id_lo=1)],
    ]
    for rows in bad:
        with pytest.raises(ConfigError):
            world.run(desk.catalog.append(rows))
    assert len(world.store.puts) == sent
    assert stored(world) == root


def test_trims(world: World, desk: Desk) -> None:
    world.run(desk.catalog.append([desk.row(0, 10), desk.row(10, 20), desk.row(20, 30)]))
    root = world.run(desk.catalog.trim(5))  # in the middle of a segment: no row leaves
    assert (root.start_offset, len(root.rows), len(root.trash)) == (5, 3, 0)
    version = root.version
    assert world.run(desk.catalog.trim(5)).version == version
    assert world.run(desk.catalog.trim(3)).version == version
    root = world.run(desk.catalog.trim(10))  # exactly an edge
    assert (root.start_offset, len(root.rows), len(root.trash)) == (10, 2, 1)
    assert root.trash.entry(0).removed_version == root.version
    with pytest.raises(OffsetOutOfRangeError) as error:
        world.run(desk.catalog.trim(31))
    assert (error.value.requested, error.value.earliest, error.value.latest) == (31, 10, 30)
    root = world.run(desk.catalog.trim(30))  # the whole log
    assert (root.start_offset, root.next_offset, len(root.rows), len(root.trash)) == (30, 30, 0, 3)
    assert (root.added.segments, root.removed.segments, root.added.sum) == (3, 3, root.removed.sum)
    root = world.run(desk.catalog.append([desk.row(30, 40)]))
    assert (root.start_offset, root.next_offset, len(root.rows)) == (30, 40, 1)


def test_a_trim_beyond_the_end_that_is_known_looks_for_a_newer_one(world: World, desk: Desk) -> None:
    other = world.desk("m")
    other.maintain()
    world.run(desk.catalog.append([desk.row(0, 10), desk.row(10, 20)]))
    root = world.run(other.catalog.trim(15))
    assert (root.start_offset, root.next_offset) == (15, 20)
    with pytest.raises(OffsetOutOfRangeError) as error:
        world.run(other.catalog.trim(21))
    assert (error.value.requested, error.value.earliest, error.value.latest) == (21, 15, 20)


def test_leader_epochs_that_begin_inside_appended_rows_join_the_lineage(world: World, desk: Desk) -> None:
    rows = [desk.row(0, 10), desk.row(10, 20, leader_epoch=3)]
    root = world.run(desk.catalog.append(rows, epochs=[EpochEntry(0, 0), EpochEntry(2, 12), EpochEntry(3, 15)]))
    assert root.lineage == (EpochEntry(0, 0), EpochEntry(2, 12), EpochEntry(3, 15))
    root = world.run(desk.catalog.append([desk.row(20, 30, leader_epoch=4)]))
    assert root.lineage[-1] == EpochEntry(4, 20)
    assert world.run(desk.catalog.trim(13)).lineage == (EpochEntry(2, 12), EpochEntry(3, 15), EpochEntry(4, 20))


def test_time_never_goes_back_and_a_clock_far_ahead_is_refused(world: World, desk: Desk) -> None:
    first = world.run(desk.catalog.append([desk.row(0, 10)]))
    world.clock.jump(-86_400)
    second = world.run(desk.catalog.append([desk.row(10, 20)]))
    assert second.commit.ts_ms == first.commit.ts_ms + 1
    world.run(desk.catalog.read_back())  # the store's clock of this answer
    ahead = FakeClock(world.clock.now_ms() + 2 * 86_400_000)
    with pytest.raises(ConfigError, match="later than the store's clock"):
        drive(world.store, desk.catalog.append([desk.row(20, 30)]), clock=ahead, ids=world.ids)
    assert desk.catalog.in_doubt == ""


def test_a_machine_that_slept_asks_the_store_what_time_it_is(world: World, desk: Desk) -> None:
    """Its monotonic clock did not count the sleep: what it knows of the store's clock is as old."""
    world.run(desk.catalog.read_back())
    world.clock.jump(2 * 86_400)
    gets = world.store.gets
    root = world.run(desk.catalog.append([desk.row(0, 10)]))
    assert (root.commit.ts_ms, world.store.gets) == (world.clock.now_ms(), gets + 1)
    assert world.run(desk.catalog.append([desk.row(10, 20)])).next_offset == 20
    assert world.store.gets == gets + 1


def test_a_clock_that_is_behind_dates_a_commit_by_the_stores(world: World, desk: Desk) -> None:
    behind = FakeClock(world.clock.now_ms() - 2 * 86_400_000)
    drive(world.store, desk.catalog.read_back(), clock=behind, ids=world.ids)
    behind.advance(5)
    root = drive(world.store, desk.catalog.append([desk.row(0, 10)]), clock=behind, ids=world.ids)
    assert root.commit.ts_ms == world.clock.now_ms() + 5_000  # the store's clock stood still meanwhile


def test_a_root_that_was_dated_ahead_keeps_no_commit_out(world: World, desk: Desk) -> None:
    """One commit under a fast clock where nothing else tells the time, as on ``file://``."""
    world.clock.jump(3 * 86_400)
    fast = world.run(desk.catalog.append([desk.row(0, 10)]))
    world.clock.jump(-3 * 86_400)
    world.run(desk.catalog.read_back())
    root = world.run(desk.catalog.append([desk.row(10, 20)]))
    assert root.commit.ts_ms == fast.commit.ts_ms + 1
    assert desk.claim(desk.proof(end_offset=20)).epoch == 2


@pytest.mark.parametrize("stopped", [True, False], ids=["the process stood still", "the machine did"])
def test_what_stood_still_before_its_put_is_dated_anew_or_given_up(world: World, desk: Desk, stopped: bool) -> None:
    """The grace of what a commit removes counts from its date."""
    world.run(desk.catalog.append([desk.row(0, 10)]))
    other = world.desk("m")
    other.maintain()
    sent, before_ms = len(roots_put(world)), world.clock.now_ms()

    def stand_still() -> Steps[None]:
        (world.clock.advance if stopped else world.clock.jump)(86_400)  # a machine's monotonic clock stops with it
        yield Now()

    steps = other.catalog.commit(TrimIntent(4), before=stand_still)
    if stopped:
        with pytest.raises(RemoteUnavailableError, match="nothing was committed"):
            world.run(steps)
        assert (len(roots_put(world)), stored(world).start_offset, other.catalog.in_doubt) == (sent, 0, "")
    else:
        assert world.run(steps).commit.ts_ms >= before_ms + 86_400_000
    assert world.run(other.catalog.trim(4)).start_offset == 4


def test_what_stood_still_after_an_unknown_put_is_not_sent_again(world: World, desk: Desk) -> None:
    sent = len(world.store.puts)
    world.store.script.append("late")
    clock = StoppedClock(world.clock.now_ms())
    with pytest.raises(CommitUnknownError, match="timeout"):
        drive(world.store, desk.catalog.append([desk.row(0, 10)]), clock=clock, ids=world.ids)
    assert len(world.store.puts) == sent + 1
    desk.claim(desk.proof(end_offset=0))
    assert world.run(desk.catalog.append([desk.row(0, 10)])).next_offset == 10


def test_a_commit_needs_a_claim(world: World) -> None:
    catalog = Catalog(TOPIC_ID, 0, "flights")
    with pytest.raises(ConfigError, match="claim"):
        world.run(catalog.trim(0))


def test_read_back_names_a_row_that_is_not_there(world: World, desk: Desk) -> None:
    row = desk.row(0, 10)
    world.run(desk.catalog.append([row]))
    with pytest.raises(CorruptionError, match="beyond it"):
        world.run(desk.catalog.read_back([desk.row(10, 20)]))
    with pytest.raises(CorruptionError, match="is held by"):
        world.run(desk.catalog.read_back([desk.row(0, 10)]))
    second, third = desk.row(10, 20), desk.row(20, 30)
    world.run(desk.catalog.append([second, third]))
    world.run(desk.catalog.read_back([row, second, third]))
    with pytest.raises(CorruptionError, match="offset 10 is held by"):
        world.run(desk.catalog.read_back([desk.row(10, 20), third]))
    world.run(desk.catalog.trim(10))
    world.run(desk.catalog.read_back([row]))
    world.run(desk.catalog.read_back([row, second, third]))
