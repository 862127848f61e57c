"""Drains, seals and the end: what is sent before it, what is looked at, and the exit status."""

from __future__ import annotations

import pytest

from tests.unit.engine.desk import DENIED, DOWN, WRONG, Desk, segment, tp
from tests.unit.engine.world import World
from tiered.engine.drain import DrainMode
from tiered.engine.failure import FATAL_ATTEMPTS, RECHECK_FATAL_MS
from tiered.engine.partition import EngineLimits
from tiered.engine.reports import StepKind
from tiered.errors import CommitUnknownError, CorruptionError, FencedError, TieredError


def code(desk: Desk) -> int | None:
    return None if desk.exit is None else desk.exit.code


def send_one(desk: Desk) -> None:
    (upload,) = desk.uploads
    desk.store(upload)
    desk.commit(desk.commits[0])


# ------------------------------------------------------------------ one-shot runs, drains


@pytest.mark.parametrize("seed", range(30))
def test_a_drain_ends_with_the_truth(seed: int) -> None:
    world = World(seed, partitions=3)
    for _ in range(60):
        world.step()
    world.scan()
    world.drain(DrainMode.SEALED)
    for _ in range(400):
        if world.exit is not None:
            break
        world.step()
    else:
        world.turn(25_000)
    assert world.exit is not None
    ends = {at: segments[-1].end if segments else 0 for at, segments in world.disk.items()}
    behind = [at for at, truth in world.truths.items() if truth.next_offset < ends[at]]
    if world.exit.code == 75:
        assert behind


def test_a_one_shot_run_exits_with_the_status_of_what_is_in_the_way() -> None:
    desk = Desk().claimed(end=10)
    (upload,) = desk.seal(0)
    desk.drain(DrainMode.SEALED, None, oneshot=True)
    desk.answer(upload, DENIED)
    assert code(desk) == 12


def test_a_one_shot_run_without_anything_to_do_makes_no_request() -> None:
    desk = Desk(lazy=True)
    desk.see(end=10, noted_offset=10)
    assert desk.open == []
    desk.drain(DrainMode.ALL, None, oneshot=True)
    assert code(desk) == 0


def test_a_one_shot_run_looks_at_what_is_fatal_three_times() -> None:
    desk = Desk().claimed()
    desk.drain(DrainMode.SEALED, None, oneshot=True)
    assert code(desk) == 0
    desk = Desk().claimed(end=10)
    desk.seal(0)
    desk.drain(DrainMode.SEALED, None, oneshot=True)
    for attempt in range(FATAL_ATTEMPTS):
        assert desk.exit is None, attempt
        (upload,) = desk.uploads
        desk.answer(upload, CorruptionError("bad"))
        desk.turn(5_000)
    assert code(desk) == CorruptionError.exit_code
    assert desk.exit is not None
    assert desk.exit.hint == ""


def test_a_drain_of_everything_seals_first_and_waits_for_the_commit() -> None:
    desk = Desk().claimed(end=10)
    desk.drain(DrainMode.ALL)
    assert len(desk.seals) == 1
    (upload,) = desk.seal(0)
    desk.sealed()
    desk.store(upload)
    assert desk.exit is None
    desk.commit(desk.commits[0])
    assert code(desk) == 0


def test_a_drain_that_runs_out_of_time_says_what_stays_local() -> None:
    desk = Desk().claimed(end=10)
    desk.seal(0)
    desk.drain(DrainMode.INFLIGHT)
    assert desk.seal(10) == []  # not in flight when the drain began
    desk.turn(25_000)
    assert code(desk) == 75
    assert desk.exit is not None
    assert "t-0 from offset 0" in desk.exit.reason


# ------------------------------------------------------------------ seals


def test_an_idle_tail_is_sealed_only_when_nobody_writes() -> None:
    desk = Desk(limits=EngineLimits(seal_idle_ms=1_000)).claimed()
    desk.writer("process 1")
    desk.see(end=5, active_bytes=100, active_since_ms=desk.now_ms)
    desk.do(desk.sealer.review)
    desk.turn(1_000)
    assert desk.seals == []
    desk.writer("")
    assert len(desk.seals) == 1


@pytest.mark.parametrize(
    ("seal_ms", "idle_ms", "due_ms"),
    [(1_000, 600_000, 1_000), (600_000, 2_000, 2_000), (1_000, -1, 1_000), (-1, -1, -1)],
)
def test_the_tail_of_a_writer_that_died_is_sealed_by_its_own_seal_ms(seal_ms: int, idle_ms: int, due_ms: int) -> None:
    """A record of a topic with seal.ms of one second need not wait for --seal-idle, ten minutes by default."""
    desk = Desk(limits=EngineLimits(seal_idle_ms=idle_ms)).claimed()
    desk.see(end=5, active_bytes=100, active_since_ms=desk.now_ms, seal_ms=seal_ms)
    desk.do(desk.sealer.review)
    if due_ms < 0:
        desk.turn(10**9)
        assert desk.seals == []
        return
    desk.turn(due_ms - 1)
    assert desk.seals == []
    desk.turn(1)
    assert len(desk.seals) == 1


def test_a_writer_that_goes_without_rolling_is_stood_in_for() -> None:
    desk = Desk().claimed(end=1)
    desk.writer("process 1")
    desk.sigterm()
    assert len(desk.seals) == 1
    desk.sealed(by_writer=True)
    assert len(desk.seals) == 1
    desk.writer("")
    assert len(desk.seals) == 2


# ------------------------------------------------------------------ the last look


def test_the_end_comes_after_a_look_at_the_disk() -> None:
    desk = Desk().claimed()
    desk.sigterm()
    assert desk.exit is None
    desk.turn()
    assert len(desk.looks) == 1  # one look is enough
    desk.looked()
    assert code(desk) == 0


def test_what_the_last_look_finds_is_sent_and_looked_after_again() -> None:
    desk = Desk().claimed()
    desk.writer("")
    desk.sigterm()
    desk.see(end=1, active_bytes=100, active_since_ms=1)
    desk.looked()
    assert len(desk.seals) == 1
    assert desk.exit is None
    desk.seal(0)
    send_one(desk)
    assert len(desk.looks) == 1  # while it seals, its own lock looks like a writer's
    assert desk.exit is None
    desk.sealed()
    assert len(desk.looks) == 2
    desk.looked()
    assert code(desk) == 0


def test_a_log_that_still_grows_does_not_keep_the_drain_going() -> None:
    desk = Desk().claimed()
    desk.writer("process 1")
    desk.sigterm()
    desk.see(end=1, active_bytes=100, active_since_ms=1)
    desk.looked()
    assert code(desk) == 0


@pytest.mark.parametrize("mode", [DrainMode.SEALED, DrainMode.INFLIGHT])
def test_a_drain_that_sends_less_than_all_says_what_it_keeps(mode: DrainMode) -> None:
    desk = Desk().claimed(end=1)
    desk.sigterm(mode)
    assert desk.exit is not None
    assert (desk.exit.code, "t-0 from offset 0 is only on this disk" in desk.exit.reason) == (75, True)


def test_a_sealed_drain_takes_what_a_writer_sealed_last() -> None:
    desk = Desk().claimed()
    desk.sigterm(DrainMode.SEALED)
    desk.seal(0)
    desk.looked()
    assert desk.exit is None
    send_one(desk)
    desk.looked()
    assert code(desk) == 0


def test_without_a_last_look_the_status_is_75() -> None:
    desk = Desk().claimed()
    desk.sigterm()
    desk.looked(CorruptionError("unreadable"))
    assert code(desk) == 75
    late = Desk().claimed()
    late.sigterm()
    late.turn(25_000)
    assert code(late) == 75


@pytest.mark.parametrize("error", [DENIED, WRONG])
@pytest.mark.parametrize("mended", [True, False])
def test_what_was_refused_is_asked_once_more_before_the_end(error: TieredError, mended: bool) -> None:
    desk = Desk().claimed()
    (upload,) = desk.seal(0)
    desk.answer(upload, error)
    assert desk.uploads == []
    desk.sigterm(DrainMode.SEALED)
    assert desk.exit is None
    if mended:
        send_one(desk)
        desk.looked()
        assert code(desk) == 0
        return
    for _ in range(FATAL_ATTEMPTS):
        for again in desk.uploads:
            desk.answer(again, error)
        desk.turn(5_000)
    assert code(desk) == 75


def test_a_topic_that_was_refused_is_asked_once_more_before_the_end() -> None:
    desk = Desk()
    desk.see()
    desk.add(tp(0), segment(0))
    desk.answer(desk.of(StepKind.REGISTER)[0], DENIED)
    desk.sigterm()
    (register,) = desk.of(StepKind.REGISTER)
    assert desk.exit is None
    desk.answer(register, DENIED)
    assert code(desk) == 75


def test_a_fenced_log_says_only_of_what_it_knows_that_it_is_on_this_disk_only() -> None:
    """A commit without an answer is in doubt. A commit below another writer's rows is not."""
    unknown, landed = Desk().claimed(), Desk().claimed()
    for desk in (unknown, landed):
        (upload,) = desk.seal(0)
        desk.store(upload)
        (after,) = desk.seal(10)
        if desk is landed:
            desk.commit(desk.commits[0], 30)  # another went on after it
            assert desk.notes[-1][1].end_offset == 10
        else:
            desk.answer(desk.commits[0], CommitUnknownError("no answer"))
        desk.answer(after, DOWN)
        desk.turn(RECHECK_FATAL_MS)
        desk.answer(desk.claims[0], FencedError("a newer claim", hint="rejoin"))
        desk.sigterm()
    assert unknown.exit is not None
    assert unknown.exit.reason == (
        "t-0 from offset 10 (whether the bucket holds 0..10 is not known) is only on this disk: a newer claim"
    )
    assert landed.exit is not None
    assert landed.exit.reason == "t-0 from offset 10 is only on this disk: a newer claim"


def test_a_second_signal_ends_at_once() -> None:
    desk = Desk().claimed(end=1)
    desk.sigterm()
    assert desk.exit is None
    desk.drain(DrainMode.INFLIGHT, 0, last=True)
    assert code(desk) == 75


@pytest.mark.parametrize("seed", range(40))
def test_status_0_is_the_truth_whatever_was_appended_before_the_last_look(seed: int) -> None:
    world = World(seed, partitions=3)
    for _ in range(60):
        world.step()
    world.drain(DrainMode.SEALED, None, last=True)
    for number in range(2_000):
        if world.exit is not None:
            break
        if number > 20 and world.looks and not world.looks[-1].done():
            world.scan()
            world.looked()
        elif world.open and number > 20:
            world.carry_out(world.open[0])
        elif number > 20:
            world.turn(1_000)
        else:
            world.step()
    assert world.exit is not None, f"seed {seed}"
    if world.exit.code == 0:
        assert all(world.truths[at].next_offset >= end for at, end in world.seen_ends.items()), f"seed {seed}"
        assert world.seen_ends == {at: segments[-1].end if segments else 0 for at, segments in world.disk.items()}
