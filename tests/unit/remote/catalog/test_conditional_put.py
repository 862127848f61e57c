"""The one compare-and-swap step: each row of its table of outcomes."""

from __future__ import annotations

import operator

import pytest

from tests.unit.remote.catalog.script import World
from tiered.errors import CommitUnknownError, LogDestroyedError, RemotePermissionError, RemoteUnavailableError
from tiered.remote.conditional_put import (
    LOOK,
    Cell,
    NextBody,
    Planned,
    Tagged,
    Updated,
    any_is_ours,
    deadline_after,
    read_cell,
    replace_once,
    stored_bytes,
    update,
)
from tiered.store.base import ABSENT, Delete, Get, Match, Object, Put, PutStatus, Steps

KEY = "counter"
Count = Updated[bytes | None]
CELL = Cell(KEY, "the counter", read_cell(KEY, stored_bytes), operator.eq)


@pytest.fixture
def world() -> World:
    return World()


def stored(world: World) -> bytes:
    got = world.store.inner.execute(Get(KEY))
    return got.data if isinstance(got, Object) else b""


def put_by_another(world: World, body: bytes) -> None:
    got = world.store.inner.execute(Get(KEY))
    world.store.inner.execute(Put(KEY, body, Match(got.etag) if isinstance(got, Object) else ABSENT))


def add(world: World, who: bytes, cell: Cell[bytes | None] = CELL) -> Count:
    """Append one token: a body is never put twice."""

    def change(seen: Tagged[bytes | None]) -> Planned[bytes | None]:
        yield from ()
        if seen.value is not None and seen.value.endswith(b"full"):
            return None
        body = (seen.value or b"") + who
        return NextBody(body, body)

    def steps() -> Steps[Count]:
        return (yield from update(cell, change, (yield from deadline_after(60_000))))

    return world.run(steps())


@pytest.mark.parametrize(
    ("script", "requests"),
    [
        (["ok"], (1, 1)),
        (["conflict", "ok"], (1, 2)),
        (["drop", "ok"], (1, 2)),
        (["down", "ok"], (1, 2)),
        (["lost"], (2, 2)),  # the repetition loses to it: a look finds the token
        (["late", "ok"], (1, 2)),
    ],
    ids=str,
)
def test_what_was_written_is_written_once(world: World, script: list[str], requests: tuple[int, int]) -> None:
    put_by_another(world, b"a")
    world.store.script.extend(script)
    done = add(world, b"b")
    assert (done.value, done.written, stored(world)) == (b"ab", True, b"ab")
    assert (world.store.gets, len(world.store.puts)) == requests
    assert set(world.store.deliver()) <= {PutStatus.LOST}
    assert stored(world) == b"ab"


def test_a_lost_race_is_planned_again_on_what_won(world: World) -> None:
    world.store.script.append(lambda: put_by_another(world, b"x"))
    assert add(world, b"b").value == b"xb"
    world.store.script.append(lambda: put_by_another(world, b"full"))
    done = add(world, b"c")
    assert (done.value, done.written, stored(world)) == (b"full", False, b"full")


def test_an_unknown_put_that_lost_to_another_is_sent_again(world: World) -> None:
    world.store.script.extend(["late", lambda: put_by_another(world, b"x")])
    assert add(world, b"b").value == b"xb"
    assert world.store.deliver() == [PutStatus.LOST]


def test_nothing_is_sent_where_nothing_changes(world: World) -> None:
    put_by_another(world, b"full")
    assert not add(world, b"b").written
    assert world.store.puts == []


@pytest.mark.parametrize("landed", [True, False])
def test_without_an_answer_the_outcome_is_unknown(world: World, landed: bool) -> None:
    world.store.script.extend(["lost" if landed else "drop", *["drop"] * 1000])
    with pytest.raises(CommitUnknownError, match="timeout"):
        add(world, b"b")
    assert stored(world) == (b"b" if landed else b"")


def test_a_look_that_fails_after_a_loss_leaves_the_outcome_unknown(world: World) -> None:
    put_by_another(world, b"a")

    def goes_down() -> None:
        world.store.fail_gets = 1000

    world.store.script.extend(["lost", goes_down, "ok"])
    with pytest.raises(CommitUnknownError, match="reading it failed"):
        add(world, b"b")
    assert stored(world) == b"ab"


def test_a_look_that_comes_in_time_decides(world: World) -> None:
    put_by_another(world, b"a")

    def goes_down() -> None:
        world.store.fail_gets = 3

    world.store.script.extend(["lost", goes_down, "ok"])
    done = add(world, b"b")
    assert (done.value, done.written) == (b"ab", True)


def test_conflicts_and_lost_races_until_the_deadline_wrote_nothing(world: World) -> None:
    world.store.script.extend(["conflict"] * 1000)
    with pytest.raises(RemoteUnavailableError, match="409"):
        add(world, b"b")
    world.store.script.clear()
    for number in range(1000):
        world.store.script.extend([lambda number=number: put_by_another(world, b"%d" % number), "ok"])
    with pytest.raises(RemoteUnavailableError, match="nothing was committed"):
        add(world, b"b")
    assert b"b" not in stored(world)


def test_without_a_token_lost_races_until_the_deadline_are_unknown(world: World) -> None:
    for number in range(1000):
        world.store.script.extend([lambda number=number: put_by_another(world, b"%d" % number), "ok"])
    with pytest.raises(CommitUnknownError, match="was refused, but an earlier attempt may have been stored"):
        add(world, b"b", Cell(KEY, "it", read_cell(KEY, stored_bytes)))


def test_makers_of_an_object_go_on_with_the_first(world: World) -> None:
    world.store.script.append(lambda: put_by_another(world, b"first"))
    done = add(world, b"b", Cell(KEY, "it", read_cell(KEY, stored_bytes), any_is_ours))
    assert (done.value, world.clock.monotonic()) == (b"first", 0.0)


def test_a_refusal_is_raised_and_proves_nothing(world: World) -> None:
    world.store.script.append("denied-late")
    with pytest.raises(RemotePermissionError):
        add(world, b"b")
    assert stored(world) == b"b"
    world.store.script.extend(["drop", "denied"])
    with pytest.raises(CommitUnknownError):
        add(world, b"c")


def test_an_object_that_is_never_deleted_is_not_made_again(world: World) -> None:
    put_by_another(world, b"a")

    def deleted() -> None:
        world.store.inner.execute(Delete((KEY,)))

    world.store.script.append(deleted)
    assert add(world, b"b").value == b"b"
    world.store.script.append(deleted)
    cell = Cell(KEY, "it", read_cell(KEY, stored_bytes), operator.eq, gone=lambda: LogDestroyedError("it is gone"))
    with pytest.raises(LogDestroyedError):
        add(world, b"c", cell)
    assert stored(world) == b""


def test_a_look_that_was_too_old_is_repeated(world: World) -> None:
    put_by_another(world, b"a")
    asked: list[bytes | None] = []

    def change(seen: Tagged[bytes | None]) -> Planned[bytes | None]:
        yield from ()
        asked.append(seen.value)
        return LOOK if len(asked) == 1 else NextBody(b"ab", b"ab")

    def steps() -> Steps[Count]:
        return (yield from update(CELL, change, (yield from deadline_after(60_000)), seen=Tagged(b"old", '"old"')))

    assert world.run(steps()).written
    assert (asked, world.store.gets) == ([b"old", b"a"], 1)


@pytest.mark.parametrize(("found", "written"), [(b"ours", True), (b"another's", False), (b"", None)])
def test_a_last_look_settles_what_no_answer_did(world: World, found: bytes, written: bool | None) -> None:
    def steps() -> Steps[Count]:
        deadline = yield from deadline_after(60_000)
        return (yield from replace_once(CELL, "", NextBody(b"ours", b"ours"), deadline, last_look=True))

    if found:
        world.store.script.append(lambda: put_by_another(world, found))
    world.store.script.extend(["drop"] * 1000)
    if written is None:
        with pytest.raises(CommitUnknownError):
            world.run(steps())
    else:
        done = world.run(steps())
        assert (done.written, done.value) == (written, found)
