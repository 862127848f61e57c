"""The uploader's rules against a model of disk and bucket: random orders of facts, and each rule by itself."""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.tiering.desk import Desk, segment
from tests.unit.tiering.world import Dice, World, failure, row, topic_id, tp
from tiered.clock import SystemIds
from tiered.errors import (
    CommitUnknown,
    ConfigError,
    FencedError,
    RemotePermissionError,
    RemoteUnavailableError,
)
from tiered.model import TopicPartition
from tiered.plan.backoff import BACKOFF_MAX_SECONDS
from tiered.plan.tiering import facts, orders
from tiered.plan.tiering.backoff import RECHECK_PERMISSION_MS, retry_delay_ms
from tiered.plan.tiering.facts import DrainMode, Failure, FailureKind, SegmentRef
from tiered.plan.tiering.limits import Limits
from tiered.plan.tiering.partition import Partition
from tiered.plan.tiering.state import State


@pytest.mark.parametrize("seed", range(300))
def test_random_orders_of_facts_keep_every_invariant(seed: int) -> None:
    world = World(seed, partitions=1 + seed % 5, limits=Limits(uploads=1 + seed % 4, commit_segments=1 + seed % 7))
    steal_at = world.rng.randrange(50, 150) if seed % 3 == 0 else -1
    for step in range(200):
        if step == steal_at:
            stolen = world.buckets[tp(0)]
            stolen.stolen, stolen.epoch = True, stolen.epoch + 1
        world.step()
    world.settle()
    for at, bucket in world.buckets.items():
        if bucket.stolen:
            continue
        assert bucket.next_offset == (world.disk[at][-1].end if world.disk[at] else 0), f"seed {seed}: {at}"
        assert [(s.base, s.end) for s in world.disk[at]] == [(base, end) for base, end, _ in bucket.commits]
        assert world.noted.get(at, 0) == bucket.next_offset
    assert world.state._books.uploads == 0


@pytest.mark.parametrize("seed", range(40))
def test_a_drain_ends_with_the_truth(seed: int) -> None:
    world = World(seed, partitions=3)
    for _ in range(60):
        world.step()
    world.scan()
    world.send(facts.DrainRequested(DrainMode.SEALED, world.now_ms + 25_000))
    for _ in range(400):
        if world.exit is not None:
            break
        world.step()
    else:
        world.now_ms += 25_000
        world.send(facts.Tick())
    assert world.exit is not None
    ends = {at: segments[-1].end if segments else 0 for at, segments in world.disk.items()}
    behind = [at for at, bucket in world.buckets.items() if bucket.next_offset < ends[at]]
    if world.exit.code == 75:
        assert behind
    assert world.state.handle(facts.Tick(), world.now_ms) == ()


def test_only_the_contiguous_prefix_is_committed() -> None:
    desk = Desk().claimed()
    first, second, third = (u for u in desk.seal(0, 10, 20) if isinstance(u, orders.Upload))
    desk.store(third, later_ms=1_000)
    assert desk.of(orders.Commit) == []
    desk.store(second, later_ms=1_000)
    assert desk.of(orders.Commit) == []
    desk.store(first)
    (commit,) = desk.of(orders.Commit)
    assert [(r.base, r.next) for r in commit.rows] == [(0, 10), (10, 20), (20, 30)]


def test_a_commit_waits_250_ms_for_company() -> None:
    desk = Desk().claimed()
    first, second = (u for u in desk.seal(0, 10) if isinstance(u, orders.Upload))
    desk.store(first)
    assert desk.of(orders.Commit) == []
    assert [r.at_ms for r in desk.of(orders.RetryAt)] == [desk.now_ms + 250]
    desk.send(facts.Tick(), later_ms=249)
    assert desk.of(orders.Commit) == []
    desk.send(facts.Tick(), later_ms=1)
    assert [r.base for r in desk.of(orders.Commit)[0].rows] == [0]
    desk.store(second)
    assert desk.of(orders.Commit) == []  # one at a time


def test_a_commit_holds_at_most_64_segments() -> None:
    desk = Desk(limits=Limits(uploads=200)).claimed()
    uploads = [u for u in desk.seal(*range(0, 1000, 10)) if isinstance(u, orders.Upload)]
    assert len(uploads) == 64  # no further ahead of the committed end
    for upload in uploads:
        desk.store(upload)
    (commit,) = desk.of(orders.Commit)
    assert len(commit.rows) == 64
    desk.send(facts.CommitDone(commit.order, 640))
    assert len(desk.of(orders.Upload)) == 36


def test_the_oldest_byte_goes_first_and_nobody_takes_more_than_a_quarter_while_another_waits() -> None:
    desk = Desk(limits=Limits(uploads=4), partitions=3).claimed()
    assert len([u for u in desk.seal(0, 10, 20, 30, 40, 50, at=0, first_ms=5) if isinstance(u, orders.Upload)]) == 4
    desk.seal(0, 10, at=1, first_ms=3)
    desk.seal(0, 10, at=2, first_ms=1)
    assert desk.of(orders.Upload) == []  # the pool is full
    answered = [facts.Failed(number, failure(FailureKind.RETRIABLE)) for number in range(1, 30)]
    desk.send(*answered)
    assert [u.tp.partition for u in desk.of(orders.Upload)][:2] == [2, 1]


def test_a_fenced_commit_stops_the_partition_for_good() -> None:
    desk = Desk().claimed()
    (upload,) = (u for u in desk.seal(0) if isinstance(u, orders.Upload))
    (commit,) = (c for c in desk.store(upload) if isinstance(c, orders.Commit))
    desk.send(facts.Failed(commit.order, Failure.of(FencedError("a newer claim"))))
    assert desk.of(orders.Note) == [orders.Note(tp(0), 0, 7, fenced=True, start_offset=0)]
    desk.seal(10, 20)
    desk.send(facts.Poked(), facts.Tick(), later_ms=3_600_000)
    assert [a for a in desk.last if not isinstance(a, orders.RetryAt)] == []
    (view,) = desk.state.views(desk.now_ms)
    assert view.phase == "fenced"
    assert view.waiting is not None
    assert view.waiting.code == "fenced"


def test_an_unknown_commit_is_settled_by_a_new_claim_and_uploads_again() -> None:
    desk = Desk().claimed()
    first, second = (u for u in desk.seal(0, 10) if isinstance(u, orders.Upload))
    desk.store(first)
    (commit,) = (c for c in desk.send(facts.Tick(), later_ms=250) if isinstance(c, orders.Commit))
    desk.send(facts.Failed(commit.order, Failure.of(CommitUnknown("no answer"))))
    assert desk.of(orders.CancelUpload) == [orders.CancelUpload(second.order)]
    assert desk.send(facts.Tick(), later_ms=60_000) == []  # not while an old upload is under way
    (claim,) = (c for c in desk.store(second) if isinstance(c, orders.Claim))
    desk.send(facts.ClaimDone(claim.order, 8, 0, 10))  # it had landed
    (again,) = desk.of(orders.Upload)
    assert (again.segment.base, again.claim_epoch) == (10, 8)


def test_a_row_that_is_not_the_segment_is_never_committed() -> None:
    desk = Desk().claimed()
    (upload,) = (u for u in desk.seal(0) if isinstance(u, orders.Upload))
    wrong = row(replace(upload.segment, size_bytes=1), upload.claim_epoch)
    desk.send(facts.UploadDone(upload.order, wrong))
    assert desk.of(orders.Commit) == []
    assert desk.state.views(desk.now_ms)[0].waiting.code == "internal"  # type: ignore[union-attr] # it waits


def test_permission_is_said_at_once_and_drains_unaided_when_the_policy_is_fixed() -> None:
    desk = Desk().claimed()
    (upload,) = (u for u in desk.seal(0) if isinstance(u, orders.Upload))
    denied = Failure.of(RemotePermissionError("AccessDenied", operation="PutObject", resource="x", hint="allow it"))
    desk.send(facts.Failed(upload.order, denied))
    (report,) = desk.of(orders.Report)
    assert (report.level, report.event) == (orders.Level.ERROR, "failed")
    assert "allow it" in report.message
    waiting = desk.state.views(desk.now_ms)[0].waiting
    assert waiting is not None
    assert (waiting.code, waiting.since_ms, waiting.unblocks) == ("permission", desk.now_ms, "allow it")
    assert desk.send(facts.Tick(), later_ms=RECHECK_PERMISSION_MS - 1) == []
    (again,) = desk.send(facts.Tick(), later_ms=1)
    assert isinstance(again, orders.Upload)
    desk.store(again)
    assert "recovered" in [r.event for r in desk.of(orders.Report)]
    assert len(desk.of(orders.Commit)) == 1


def test_repeats_of_one_failure_are_said_rarely() -> None:
    desk = Desk().claimed()
    desk.seal(0)
    said = 0
    for _ in range(200):
        for upload in desk.of(orders.Upload):
            desk.send(facts.Failed(upload.order, Failure.of(RemoteUnavailableError("503"))))
            said += len(desk.of(orders.Report))
        desk.send(facts.Tick(), later_ms=5_000)
    assert 2 <= said <= 5


def test_a_gap_is_never_committed_and_says_so() -> None:
    desk = Desk().claimed(next_offset=5, end=40)
    desk.seal(20, 30)
    assert desk.of(orders.Upload) == []
    waiting = desk.state.views(desk.now_ms)[0].waiting
    assert waiting is not None
    assert (waiting.code, waiting.reason) == ("gap", "offsets 5..20 are neither in the bucket nor on this disk")


def test_a_root_inside_a_segment_is_never_committed_over() -> None:
    desk = Desk().claimed(next_offset=5, end=10)
    desk.seal(0)
    assert desk.of(orders.Upload) == []
    assert desk.state.views(desk.now_ms)[0].waiting.code == "misaligned"  # type: ignore[union-attr] # it waits


def test_a_bucket_beyond_the_local_end_fences_a_log_with_records() -> None:
    desk = Desk()
    desk.send(facts.PartitionSeen(tp(0), topic_id(), 0, 3, 3))
    desk.send(facts.Done(desk.of(orders.RegisterTopic)[0].order))
    desk.send(facts.ClaimDone(desk.of(orders.Claim)[0].order, 4, 0, 100))
    assert desk.of(orders.Note) == [
        orders.Note(tp(0), 0, 4, fenced=True, start_offset=0)
    ]  # 0 to 100 are not what this disk holds


def test_a_topic_with_another_id_is_skipped_and_others_go_on() -> None:
    desk = Desk()
    desk.send(facts.PartitionSeen(tp(0, "bad"), topic_id(1), 0, 1, 1))
    (bad,) = desk.of(orders.RegisterTopic)
    desk.send(facts.Failed(bad.order, Failure.of(ConfigError("another id"))))
    desk.send(facts.PartitionSeen(tp(0, "good"), topic_id(2), 0, 1, 1))
    (good,) = desk.of(orders.RegisterTopic)
    desk.send(facts.Done(good.order))
    assert [c.tp.topic for c in desk.of(orders.Claim)] == ["good"]
    assert [v.waiting.code for v in desk.state.views(desk.now_ms) if v.waiting] == ["config", "claim"]


def test_a_one_shot_run_exits_with_the_status_of_what_is_in_the_way() -> None:
    desk = Desk().claimed(end=10)
    (upload,) = (u for u in desk.seal(0) if isinstance(u, orders.Upload))
    desk.send(facts.DrainRequested(DrainMode.SEALED, None, oneshot=True))
    desk.send(facts.Failed(upload.order, Failure.of(RemotePermissionError("AccessDenied"))))
    assert [e.code for e in desk.of(orders.Exit)] == [12]


def test_a_one_shot_run_without_anything_to_do_makes_no_request() -> None:
    desk = Desk(lazy=True)
    desk.send(facts.PartitionSeen(tp(0), topic_id(), 0, 10, 10, noted_offset=10))
    assert desk.last == []
    desk.send(facts.DrainRequested(DrainMode.ALL, None, oneshot=True))
    assert [e.code for e in desk.of(orders.Exit)] == [0]


def test_a_drain_of_everything_seals_first_and_waits_for_the_commit() -> None:
    desk = Desk().claimed(end=10)
    desk.send(facts.DrainRequested(DrainMode.ALL, desk.now_ms + 25_000))
    (seal,) = desk.of(orders.Seal)
    desk.send(facts.SegmentSealed(tp(0), segment(0)))
    (upload,) = desk.of(orders.Upload)
    desk.send(facts.SealDone(seal.order, by_writer=False))
    (commit,) = (c for c in desk.store(upload) if isinstance(c, orders.Commit))
    assert desk.of(orders.Exit) == []
    desk.send(facts.CommitDone(commit.order, 10))
    assert [e.code for e in desk.of(orders.Exit)] == [0]


def test_a_drain_that_runs_out_of_time_says_what_stays_local() -> None:
    desk = Desk().claimed(end=10)
    desk.seal(0)
    desk.send(facts.DrainRequested(DrainMode.INFLIGHT, desk.now_ms + 25_000))
    desk.seal(10)
    assert desk.of(orders.Upload) == []  # not in flight when the drain began
    desk.send(facts.Tick(), later_ms=25_000)
    (end,) = desk.of(orders.Exit)
    assert end.code == 75
    assert "t-0 from offset 0" in end.reason


def test_an_idle_tail_is_sealed_only_when_nobody_writes() -> None:
    desk = Desk(limits=Limits(seal_idle_ms=1_000)).claimed()
    active = facts.PartitionSeen(tp(0), topic_id(), 0, 5, 5, active_bytes=100, active_since_ms=desk.now_ms)
    desk.send(facts.WriterSeen("process 1"), active)
    assert desk.send(facts.Tick(), later_ms=1_000) == []
    assert [type(a) for a in desk.send(facts.WriterSeen(""))] == [orders.Seal]


def test_the_tail_of_a_writer_that_died_is_sealed_by_its_own_seal_ms() -> None:
    """A record of a topic with seal.ms of one second need not wait for --seal-idle, ten minutes by default."""
    for seal_ms, idle_ms, due_ms in (
        (1_000, 600_000, 1_000),
        (600_000, 2_000, 2_000),
        (1_000, -1, 1_000),
        (-1, -1, -1),
    ):
        desk = Desk(limits=Limits(seal_idle_ms=idle_ms)).claimed()
        active = facts.PartitionSeen(
            tp(0), topic_id(), 0, 5, 5, active_bytes=100, active_since_ms=desk.now_ms, seal_ms=seal_ms
        )
        desk.send(facts.WriterSeen("process 1"), active)
        assert desk.send(facts.Tick(), later_ms=max(due_ms, 0)) == []  # the writer does it
        if due_ms < 0:
            assert desk.send(facts.WriterSeen(""), facts.Tick(), later_ms=10**9) == []
            continue
        assert [type(a) for a in desk.send(facts.WriterSeen(""))] == [orders.Seal]
        desk = Desk(limits=Limits(seal_idle_ms=idle_ms)).claimed()
        desk.send(facts.WriterSeen(""), dataclasses.replace(active, active_since_ms=desk.now_ms))
        assert desk.send(facts.Tick(), later_ms=due_ms - 1) == []
        assert [type(a) for a in desk.send(facts.Tick(), later_ms=1)] == [orders.Seal]


def test_a_partition_that_is_gone_frees_its_slots() -> None:
    desk = Desk(limits=Limits(uploads=1), partitions=2).claimed()
    (upload,) = (u for u in desk.seal(0) if isinstance(u, orders.Upload))
    desk.send(facts.PartitionGone(tp(0)))
    assert desk.of(orders.CancelUpload) == [orders.CancelUpload(upload.order)]
    desk.seal(0, at=1)
    assert desk.of(orders.Upload) == []  # the cancelled one still runs
    desk.send(facts.Failed(upload.order, failure(FailureKind.RETRIABLE)))
    assert [u.tp for u in desk.of(orders.Upload)] == [tp(1)]


def test_an_answer_of_the_wrong_kind_changes_nothing() -> None:
    desk = Desk().claimed()
    (upload,) = (u for u in desk.seal(0) if isinstance(u, orders.Upload))
    assert desk.send(facts.CommitDone(upload.order, 10), facts.SettleDone(upload.order), facts.CommitDone(999, 1)) == []
    assert len([c for c in desk.store(upload) if isinstance(c, orders.Commit)]) == 1


def test_backoff_is_bounded_and_jittered() -> None:
    ids = Dice(random.Random(3))
    waits = [retry_delay_ms(attempt, ids) for attempt in range(1, 500)]
    assert max(waits) <= BACKOFF_MAX_SECONDS * 1000
    assert min(waits) >= 1
    assert len(set(waits)) > 300
    assert all(retry_delay_ms(1, ids) <= 200 for _ in range(100))


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="uploads is 0"):
        Limits(uploads=0)
    with pytest.raises(ConfigError, match="at most 64"):
        Limits(commit_segments=65)


def test_a_log_that_resumes_is_noted_only_when_it_begins_where_the_bucket_ends() -> None:
    desk = Desk()
    desk.send(facts.PartitionSeen(tp(0), topic_id(), 0, 0, 0))
    desk.send(facts.Done(desk.of(orders.RegisterTopic)[0].order))
    desk.send(facts.ClaimDone(desk.of(orders.Claim)[0].order, 4, 0, 100, resumes=True))
    assert desk.of(orders.Note) == []
    desk.send(facts.PartitionSeen(tp(0), topic_id(), 100, 100, 101))
    assert desk.of(orders.Note) == [orders.Note(tp(0), 100, 4, fenced=False, start_offset=0)]
    desk.seal(100)
    assert [u.segment.base for u in desk.of(orders.Upload)] == [100]


def test_records_that_were_appended_below_the_resumed_end_fence_the_log() -> None:
    desk = Desk()
    desk.send(facts.PartitionSeen(tp(0), topic_id(), 0, 0, 0))
    desk.send(facts.Done(desk.of(orders.RegisterTopic)[0].order))
    desk.send(facts.ClaimDone(desk.of(orders.Claim)[0].order, 4, 0, 100, resumes=True))
    desk.send(facts.PartitionSeen(tp(0), topic_id(), 0, 0, 1))
    assert desk.of(orders.Note) == [
        orders.Note(tp(0), 0, 4, fenced=True, start_offset=0)
    ]  # 0 to 100 are not what this disk holds
    desk.seal(0)
    assert desk.of(orders.Upload) == []


def test_a_fatal_commit_is_settled_by_a_new_claim_too() -> None:
    desk = Desk().claimed()
    (upload,) = (u for u in desk.seal(0) if isinstance(u, orders.Upload))
    (commit,) = (c for c in desk.store(upload) if isinstance(c, orders.Commit))
    desk.send(facts.Failed(commit.order, failure(FailureKind.FATAL, "corruption")))
    assert [type(a) for a in desk.send(facts.Tick(), later_ms=600_000)] == [orders.Claim]


def test_a_refused_commit_is_claimed_for_less_and_less_often() -> None:
    """Claims and uploads that succeed in between do not make it new: each of them costs a version of the root."""
    desk, refused = Desk().claimed(), Failure.of(ConfigError("row 0..10: size 0", hint="check the segment"))
    (upload,) = (u for u in desk.seal(0) if isinstance(u, orders.Upload))
    waits = []
    for epoch in range(8, 22):
        desk.store(upload)
        (commit,) = desk.of(orders.Commit)
        desk.send(facts.Failed(commit.order, refused))
        (retry,) = desk.of(orders.RetryAt)
        waits.append(retry.at_ms - desk.now_ms)
        (claim,) = desk.send(facts.Tick(), later_ms=waits[-1])
        desk.send(facts.ClaimDone(claim.order, epoch, 0, 0))
        (upload,), (settle,) = desk.of(orders.Upload), desk.of(orders.Settle)
        desk.send(facts.SettleDone(settle.order))
        waiting = desk.state.views(desk.now_ms)[0].waiting
        assert waiting is not None
        found = (waiting.code, waiting.reason, waiting.unblocks)
        assert found == ("config", "committing t-0 from offset 0: row 0..10: size 0", "check the segment")
    assert waits == [min(600_000, 500 << times) for times in range(14)]
    desk.store(upload)
    desk.send(facts.CommitDone(desk.of(orders.Commit)[0].order, 10))
    assert desk.state.views(desk.now_ms)[0].waiting is None


def test_what_stands_before_a_refused_segment_is_committed() -> None:
    desk = Desk().claimed()
    uploads = [u for u in desk.seal(0, 10, 20, 30) if isinstance(u, orders.Upload)]
    for upload in uploads:
        desk.store(upload)
    (commit,) = desk.of(orders.Commit)
    assert [row.base for row in commit.rows] == [0, 10, 20, 30]
    desk.send(facts.Failed(commit.order, Failure.of(ConfigError("row 20..30: size 0"))))
    (claim,) = desk.send(facts.Tick(), later_ms=500)
    desk.send(facts.ClaimDone(claim.order, 8, 0, 0))
    ((upload,), (settle,)) = desk.of(orders.Upload), desk.of(orders.Settle)
    desk.send(facts.SettleDone(settle.order))
    for end in (10, 20):
        desk.store(upload)
        (commit,), following = desk.of(orders.Commit), desk.of(orders.Upload)
        assert [row.base for row in commit.rows] == [upload.segment.base]
        desk.send(facts.CommitDone(commit.order, end))
        (upload,) = following or desk.of(orders.Upload)
    desk.store(upload)
    (commit,) = desk.of(orders.Commit)
    assert [row.base for row in commit.rows] == [20]


def test_a_thousand_partitions_share_the_pool_by_age() -> None:
    desk = Desk(limits=Limits(uploads=4, claims=2_000), partitions=1_000).claimed()
    for number in range(1_000):
        desk.seal(0, 10, at=number, first_ms=1_000 - number)
    started = [u.tp.partition for u in desk.of(orders.Upload)]
    order: list[int] = []
    open_orders = list(range(1, desk.state._books.last_order + 1))
    for _ in range(20):
        for number in open_orders:
            desk.send(facts.Failed(number, failure(FailureKind.RETRIABLE)))
            order += [u.tp.partition for u in desk.of(orders.Upload)]
        open_orders = list(range(desk.state._books.last_order - 4, desk.state._books.last_order + 1))
    assert started == []
    assert order[:3] == [999, 998, 997]
    assert desk.state._books.uploads <= 4


class Walked(dict[TopicPartition, Partition]):
    """Counts how often all partitions were looked at."""

    walks = 0

    def __iter__(self) -> Iterator[TopicPartition]:
        Walked.walks += 1
        return super().__iter__()

    def values(self) -> Any:
        Walked.walks += 1
        return super().values()

    def items(self) -> Any:
        Walked.walks += 1
        return super().items()


class Watched(State):
    """Counts how often the rules looked at one partition."""

    def __init__(self, ids: SystemIds, limits: Limits) -> None:
        super().__init__(ids, limits)
        self.pumps = self.waits = 0
        pump, track_wait = self._planner._pump, self._books.track_wait

        def counted_pump(p: Partition, now_ms: int) -> bool:
            self.pumps += 1
            return pump(p, now_ms)

        def counted_wait(p: Partition, now_ms: int) -> None:
            self.waits += 1
            track_wait(p, now_ms)

        self._planner._pump = counted_pump  # type: ignore[method-assign]
        self._books.track_wait = counted_wait  # type: ignore[method-assign]


def work_for(partitions: int, *, draining: bool) -> tuple[float, float, int]:
    """Claims, uploads and commits one segment of each partition: looks at one per commit, walks over all."""
    state = Watched(SystemIds(), Limits(uploads=4, claims=16, commits=16))
    state._books.partitions = Walked()
    Walked.walks = 0
    todo: deque[orders.Action] = deque()
    committed = 0

    def send(event: facts.Event) -> None:
        todo.extend(state.handle(event, 1_000_000))

    for number in range(partitions):
        send(facts.PartitionSeen(tp(number), topic_id(), 0, 10, 10))
        send(facts.SegmentSealed(tp(number), SegmentRef(0, 10, 100, 1_000 - number)))
    if draining:
        send(facts.DrainRequested(facts.DrainMode.ALL, None))
    before = Walked.walks
    while todo:
        match todo.popleft():
            case orders.RegisterTopic(order):
                send(facts.Done(order))
            case orders.Claim(order):
                send(facts.ClaimDone(order, 1, 0, 0))
            case orders.Settle(order):
                send(facts.SettleDone(order))
            case orders.Upload(order, _, segment, epoch):
                send(facts.UploadDone(order, row(segment, epoch)))
            case orders.Commit(order, _, _, rows):
                committed += 1
                send(facts.CommitDone(order, rows[-1].next))
            case _:
                pass
        send(facts.Tick())
    assert committed == partitions
    return state.pumps / partitions, state.waits / partitions, Walked.walks - before


@pytest.mark.parametrize("draining", [False, True])
def test_a_commit_costs_the_same_work_however_many_partitions_are_held(draining: bool) -> None:
    few_pumps, few_waits, few_walks = work_for(50, draining=draining)
    pumps, waits, walks = work_for(1_000, draining=draining)
    assert pumps <= few_pumps * 1.1
    assert waits <= few_waits * 1.1
    assert walks == few_walks <= 2  # the end of a drain looks at all, once


def test_a_log_that_has_begun_where_the_bucket_ends_before_the_claim_is_told_is_noted_at_once() -> None:
    """Its writer reads the root, too; the scanner tells what changed, and nothing may change after that."""
    desk = Desk()
    desk.send(facts.PartitionSeen(tp(0), topic_id(), 0, 0, 0))
    desk.send(facts.Done(desk.of(orders.RegisterTopic)[0].order))
    (claim,) = desk.of(orders.Claim)
    desk.send(facts.PartitionSeen(tp(0), topic_id(), 100, 100, 101))
    desk.send(facts.ClaimDone(claim.order, 4, 0, 100, resumes=True))
    assert desk.of(orders.Note) == [orders.Note(tp(0), 100, 4, fenced=False, start_offset=0)]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_committed_before_what_dead_claims_left_was_looked_at(fails: bool) -> None:
    """What lies below the committed end is no longer swept: a kill in between would leave it for ever."""
    desk = Desk()
    desk.send(facts.PartitionSeen(tp(0), topic_id(), 0, 10, 10))
    desk.send(facts.Done(desk.of(orders.RegisterTopic)[0].order))
    desk.send(facts.ClaimDone(desk.of(orders.Claim)[0].order, 7, 0, 0))
    (settle,) = desk.of(orders.Settle)
    desk.seal(0)
    desk.store(desk.of(orders.Upload)[0])
    assert desk.of(orders.Commit) == []
    order = settle.order
    desk.send(facts.Failed(order, failure(FailureKind.RETRIABLE)) if fails else facts.SettleDone(order, 3))
    assert [commit.claim_epoch for commit in desk.of(orders.Commit)] == [7]
