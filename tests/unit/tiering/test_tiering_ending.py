"""The last drain: what it looks at before it says that nothing is left on this disk."""

from __future__ import annotations

import pytest

from tests.unit.tiering.desk import Desk, segment
from tests.unit.tiering.world import World, failure, topic_id, tp
from tiered.errors import FencedError
from tiered.plan.tiering import facts, orders
from tiered.plan.tiering.backoff import FATAL_ATTEMPTS, RECHECK_FATAL_MS
from tiered.plan.tiering.facts import DrainMode, Failure, FailureKind


def seen(end: int, active_bytes: int = 0) -> facts.PartitionSeen:
    return facts.PartitionSeen(tp(0), topic_id(), 0, end, end, active_bytes=active_bytes, active_since_ms=1)


def sigterm(desk: Desk, mode: DrainMode = DrainMode.ALL) -> list[orders.Action]:
    return desk.send(facts.DrainRequested(mode, desk.now_ms + 25_000, last=True))


def send_one(desk: Desk) -> None:
    (upload,) = desk.of(orders.Upload)
    (commit,) = (c for c in desk.store(upload) if isinstance(c, orders.Commit))
    desk.send(facts.CommitDone(commit.order, upload.segment.end))


def test_the_end_comes_after_a_look_at_the_disk() -> None:
    desk = Desk().claimed()
    sigterm(desk)
    assert desk.of(orders.Exit) == []
    (look,) = desk.of(orders.Look)
    assert desk.send(facts.Tick()) == []  # one look is enough
    desk.send(facts.Done(look.order))
    assert [e.code for e in desk.of(orders.Exit)] == [0]


def test_what_the_last_look_finds_is_sent_and_looked_after_again() -> None:
    desk = Desk().claimed()
    desk.send(facts.WriterSeen(""))
    sigterm(desk)
    (look,) = desk.of(orders.Look)
    desk.send(seen(1, active_bytes=100))
    (seal,) = desk.of(orders.Seal)
    desk.send(facts.Done(look.order))
    assert desk.of(orders.Exit) == []
    desk.send(facts.SegmentSealed(tp(0), segment(0)))
    send_one(desk)
    assert desk.of(orders.Exit) == desk.of(orders.Look) == []  # while it seals, its own lock looks like a writer's
    desk.send(facts.SealDone(seal.order, by_writer=False))
    (again,) = desk.of(orders.Look)
    desk.send(facts.Done(again.order))
    assert [e.code for e in desk.of(orders.Exit)] == [0]


def test_a_log_that_still_grows_does_not_keep_the_drain_going() -> None:
    desk = Desk().claimed()
    desk.send(facts.WriterSeen("process 1"))
    sigterm(desk)
    (look,) = desk.of(orders.Look)
    desk.send(seen(1, active_bytes=100), facts.Done(look.order))
    assert [e.code for e in desk.of(orders.Exit)] == [0]


def test_a_writer_that_goes_without_rolling_is_stood_in_for() -> None:
    desk = Desk().claimed(end=1)
    desk.send(facts.WriterSeen("process 1"))
    sigterm(desk)
    (seal,) = desk.of(orders.Seal)
    desk.send(facts.SealDone(seal.order, by_writer=True))
    assert desk.of(orders.Seal) == []
    desk.send(facts.WriterSeen(""))
    assert len(desk.of(orders.Seal)) == 1


@pytest.mark.parametrize("mode", [DrainMode.SEALED, DrainMode.INFLIGHT])
def test_a_drain_that_sends_less_than_all_says_what_it_keeps(mode: DrainMode) -> None:
    desk = Desk().claimed(end=1)
    sigterm(desk, mode)
    (end,) = desk.of(orders.Exit)
    assert (end.code, "t-0 from offset 0 is only on this disk" in end.reason) == (75, True)


def test_a_sealed_drain_takes_what_a_writer_sealed_last() -> None:
    desk = Desk().claimed()
    sigterm(desk, DrainMode.SEALED)
    (look,) = desk.of(orders.Look)
    desk.send(facts.SegmentSealed(tp(0), segment(0)))
    send_one(desk)
    desk.send(facts.Done(look.order))
    assert [e.code for e in desk.of(orders.Exit)] == [0]


def test_without_a_last_look_the_status_is_75() -> None:
    desk = Desk().claimed()
    sigterm(desk)
    (look,) = desk.of(orders.Look)
    desk.send(facts.Failed(look.order, failure(FailureKind.FATAL)))
    assert [e.code for e in desk.of(orders.Exit)] == [75]
    late = Desk().claimed()
    sigterm(late)
    late.send(facts.Tick(), later_ms=25_000)
    assert [e.code for e in late.of(orders.Exit)] == [75]


@pytest.mark.parametrize("kind", [FailureKind.PERMISSION, FailureKind.FATAL])
@pytest.mark.parametrize("mended", [True, False])
def test_what_was_refused_is_asked_once_more_before_the_end(kind: FailureKind, mended: bool) -> None:
    desk = Desk().claimed()
    desk.seal(0)
    for _ in range(FATAL_ATTEMPTS):
        (upload,) = desk.of(orders.Upload)
        desk.send(facts.Failed(upload.order, failure(kind)))
        desk.send(facts.Tick(), later_ms=RECHECK_FATAL_MS)
    (upload,) = desk.of(orders.Upload)
    desk.send(facts.Failed(upload.order, failure(kind)))
    sigterm(desk)
    assert desk.of(orders.Exit) == []
    (again,) = desk.of(orders.Upload)
    if not mended:
        desk.send(facts.Failed(again.order, failure(kind)))
        (end,) = desk.of(orders.Exit)
        assert (end.code, end.reason) == (75, "t-0 from offset 0 is only on this disk: because")
        return
    (commit,) = (c for c in desk.store(again) if isinstance(c, orders.Commit))
    desk.send(facts.CommitDone(commit.order, 10))
    desk.send(facts.Done(desk.of(orders.Look)[0].order))
    assert [e.code for e in desk.of(orders.Exit)] == [0]


def test_a_topic_that_was_refused_is_asked_once_more_before_the_end() -> None:
    desk = Desk()
    desk.send(facts.PartitionSeen(tp(0), topic_id(), 0, 0, 0), facts.SegmentSealed(tp(0), segment(0)))
    refused = failure(FailureKind.PERMISSION)
    desk.send(facts.Failed(1, refused))
    sigterm(desk)
    (register,) = desk.of(orders.RegisterTopic)
    assert desk.of(orders.Exit) == []
    desk.send(facts.Failed(register.order, refused))
    assert [e.code for e in desk.of(orders.Exit)] == [75]


def test_a_fenced_log_says_only_of_what_it_knows_that_it_is_on_this_disk_only() -> None:
    """Of a commit that was not answered nobody knows; of one below another's rows everybody does."""
    fenced = Failure.of(FencedError("a newer claim", hint="rejoin"))
    unknown, landed = Desk().claimed(), Desk().claimed()
    for desk in (unknown, landed):
        (upload,) = (u for u in desk.seal(0) if isinstance(u, orders.Upload))
        (commit,) = (c for c in desk.store(upload) if isinstance(c, orders.Commit))
        desk.seal(10)
        (behind,) = desk.of(orders.Upload)
        if desk is landed:
            desk.send(facts.CommitDone(commit.order, 30))  # another went on behind it
            assert desk.of(orders.Note) == [orders.Note(tp(0), 10, 7, False, 0)]
        else:
            desk.send(facts.Failed(commit.order, failure(FailureKind.UNKNOWN)))
        desk.send(facts.Failed(behind.order, failure(FailureKind.RETRIABLE)))
        desk.send(facts.Tick(), later_ms=RECHECK_FATAL_MS)
        (claim,) = desk.of(orders.Claim)
        desk.send(facts.Failed(claim.order, fenced))
        sigterm(desk)
    (end,) = unknown.of(orders.Exit)
    assert end.reason == (
        "t-0 from offset 10 (whether the bucket holds 0..10 is not known) is only on this disk: a newer claim"
    )
    (end,) = landed.of(orders.Exit)
    assert end.reason == "t-0 from offset 10 is only on this disk: a newer claim"


def test_a_second_signal_ends_at_once() -> None:
    desk = Desk().claimed(end=1)
    sigterm(desk)
    assert desk.of(orders.Exit) == []
    desk.send(facts.DrainRequested(DrainMode.INFLIGHT, desk.now_ms, last=True))
    (end,) = desk.of(orders.Exit)
    assert end.code == 75


@pytest.mark.parametrize("seed", range(60))
def test_status_0_is_the_truth_whatever_was_appended_before_the_last_look(seed: int) -> None:
    world = World(seed, partitions=3)
    for _ in range(60):
        world.step()
    world.send(facts.DrainRequested(DrainMode.SEALED, None, last=True))
    for number in range(2_000):
        if world.exit is not None:
            break
        if world.open and number > 20:
            world.answer(min(world.open))
        elif number > 20 and world.wake_ms is not None:
            world.now_ms = max(world.now_ms, world.wake_ms)
            world.send(facts.Tick())
        else:
            world.step()
    assert world.exit is not None, f"seed {seed}"
    if world.exit.code == 0:
        looked_at = world.seen_ends
        assert all(world.buckets[at].next_offset >= end for at, end in looked_at.items()), f"seed {seed}"
        assert looked_at == {at: segments[-1].end if segments else 0 for at, segments in world.disk.items()}
