"""The loop of a partition against a model of disk and bucket in random orders, and each of its rules by itself."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest

from tests.unit.engine.desk import DENIED, DOWN, Desk, Dice, row, topic_id, tp
from tests.unit.engine.world import World
from tiered.engine.disk import Granted
from tiered.engine.failure import RECHECK_PERMISSION_MS, retry_delay_ms
from tiered.engine.partition import EngineLimits
from tiered.engine.reports import StepKind
from tiered.errors import CommitUnknownError, ConfigError, FencedError
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.plan.pacing import BACKOFF_MAX_SECONDS

CAP_MS = int(BACKOFF_MAX_SECONDS * 1000)


@pytest.mark.parametrize("seed", range(100))
def test_random_orders_keep_every_invariant(seed: int) -> None:
    world = World(
        seed, partitions=1 + seed % 5, limits=EngineLimits(uploads=1 + seed % 4, commit_segments=1 + seed % 7)
    )
    steal_at = world.rng.randrange(50, 150) if seed % 3 == 0 else -1
    for step in range(200):
        if step == steal_at:
            stolen = world.truths[tp(0)]
            stolen.stolen, stolen.epoch = True, stolen.epoch + 1
        world.step()
    world.settle()
    for at, truth in world.truths.items():
        if truth.stolen:
            continue
        assert truth.next_offset == (world.disk[at][-1].end if world.disk[at] else 0), f"seed {seed}: {at}"
        assert [(s.base, s.end) for s in world.disk[at]] == [(base, end) for base, end, _ in truth.commits]
        assert world.noted_ends.get(at, 0) == truth.next_offset
    assert world.engine.queue.running == 0


def test_a_commit_waits_250_ms_for_company() -> None:
    desk = Desk().claimed()
    first, second = desk.seal(0, 10)
    desk.store(first)
    desk.turn(249)
    assert desk.commits == []
    desk.turn(1)
    assert [[r.base for r in commit.rows] for commit in desk.commits] == [[0]]
    desk.store(second)
    assert len(desk.commits) == 1  # one at a time


def test_a_commit_holds_at_most_64_segments() -> None:
    desk = Desk(limits=EngineLimits(uploads=200)).claimed()
    uploads = desk.seal(*range(0, 1000, 10))
    assert len(uploads) == 64  # no further ahead of the committed end
    for upload in uploads:
        desk.store(upload)
    (commit,) = desk.commits
    assert len(commit.rows) == 64
    desk.commit(commit)
    assert len(desk.uploads) == 36


def test_uploads_go_on_while_a_commit_is_under_way() -> None:
    desk = Desk(limits=EngineLimits(uploads=2)).claimed()
    first, second = desk.seal(0, 10, 20, 30)
    desk.store(first)
    desk.turn(250)
    assert len(desk.commits) == 1
    desk.store(second)
    assert [call.segment.base for call in desk.uploads] == [20, 30]


def test_a_fenced_commit_stops_the_partition_for_good() -> None:
    desk = Desk().claimed()
    (upload,) = desk.seal(0)
    desk.store(upload)
    desk.answer(desk.commits[0], FencedError("a newer claim"))
    assert desk.notes[-1] == (tp(0), PartitionUpload(0, 7, fenced=True, start_offset=0))
    desk.seal(10, 20)
    desk.do(desk.engine.scan_now)
    desk.turn(3_600_000)
    assert desk.open == []
    assert (desk.view().phase, desk.waiting()) == ("fenced", "fenced")


def test_an_unknown_commit_is_settled_by_a_new_claim_and_uploads_again() -> None:
    desk = Desk().claimed()
    first, second = desk.seal(0, 10)
    desk.store(first)
    desk.turn(250)
    desk.answer(desk.commits[0], CommitUnknownError("no answer"))
    assert second.cancelled
    desk.turn(60_000)
    assert desk.claims == []  # not while an old upload is under way
    assert desk.waiting() == "retry"
    desk.store(second)
    (claim,) = desk.claims
    desk.grant(claim, 8, 10)  # it had landed
    (again,) = desk.uploads
    assert (again.segment.base, again.epoch) == (10, 8)


def test_a_row_that_is_not_the_segment_is_never_committed() -> None:
    desk = Desk().claimed()
    (upload,) = desk.seal(0)
    desk.answer(upload, row(replace(upload.segment, size_bytes=1), upload.epoch))
    assert desk.commits == []
    assert desk.waiting() == "internal"


def test_permission_is_reported_at_once_and_drains_unaided_when_the_policy_is_fixed() -> None:
    desk = Desk().claimed()
    (upload,) = desk.seal(0)
    desk.answer(upload, DENIED)
    assert (desk.reports[-1].level, desk.reports[-1].event) == (logging.ERROR, "failed")
    assert "allow it" in desk.reports[-1].message
    waiting = desk.view().waiting
    assert waiting is not None
    assert (waiting.code, waiting.since_ms, waiting.unblocks) == ("permission", desk.now_ms, "allow it")
    desk.turn(RECHECK_PERMISSION_MS - 1)
    assert desk.uploads == []
    desk.turn(1)
    (again,) = desk.uploads
    desk.store(again)
    assert "recovered" in desk.events()
    assert len(desk.commits) == 1


def test_repeats_of_one_failure_are_reported_rarely() -> None:
    desk = Desk().claimed()
    desk.seal(0)
    desk.reports.clear()
    for _ in range(200):
        for upload in desk.uploads:
            desk.answer(upload, DOWN)
        desk.turn(5_000)
    assert 2 <= len(desk.reports) <= 5


def test_after_a_failure_one_upload_is_the_probe() -> None:
    desk = Desk().claimed()
    uploads = desk.seal(0, 10, 20, 30)
    for upload in uploads:
        desk.answer(upload, DOWN)
    desk.turn(CAP_MS)
    (probe,) = desk.uploads
    desk.store(probe)
    assert len(desk.uploads) == 3


def test_one_failing_partition_backs_off_alone() -> None:
    desk = Desk(partitions=2).claimed()
    (failing,) = desk.seal(0, at=0)
    desk.answer(failing, DENIED)
    (other,) = desk.seal(0, at=1)
    desk.store(other)
    assert [commit.tp for commit in desk.commits] == [tp(1)]


def test_a_gap_is_never_committed_and_says_so() -> None:
    desk = Desk().claimed(next_offset=5, end=40)
    assert desk.seal(20, 30) == []
    waiting = desk.view().waiting
    assert waiting is not None
    assert (waiting.code, waiting.reason) == ("gap", "offsets 5..20 are neither in the bucket nor on this disk")
    assert [report.event for report in desk.reports if report.level is logging.ERROR] == ["failed"]


def test_a_root_inside_a_segment_is_never_committed_over() -> None:
    desk = Desk().claimed(next_offset=5, end=10)
    assert desk.seal(0) == []
    assert desk.waiting() == "misaligned"


def test_a_bucket_beyond_the_local_end_fences_a_log_with_records() -> None:
    desk = Desk()
    desk.see(end=3)
    desk.answer(desk.of(StepKind.REGISTER)[0])
    desk.grant(desk.claims[0], 4, 100)
    assert desk.notes == [(tp(0), PartitionUpload(0, 4, True, 0))]  # 0 to 100 are not what this disk holds


def test_a_topic_with_another_id_waits_and_others_go_on() -> None:
    desk = Desk()
    desk.see(0, "bad", end=1)
    desk.answer(desk.of(StepKind.REGISTER)[0], ConfigError("another id"))
    desk.see(0, "good", end=1, topic_id=topic_id(2))
    desk.answer(desk.of(StepKind.REGISTER)[0])
    assert [claim.topic for claim in desk.claims] == ["good"]
    views = desk.engine.views(desk.now_ms)
    assert [view.waiting.code for view in views if view.waiting] == ["config", "claim"]


def test_a_registration_is_tried_again_by_itself() -> None:
    desk = Desk()
    desk.see(end=1)
    desk.answer(desk.of(StepKind.REGISTER)[0], DOWN)
    assert desk.of(StepKind.REGISTER) == []
    desk.turn(CAP_MS)
    desk.answer(desk.of(StepKind.REGISTER)[0])
    assert len(desk.claims) == 1


def test_a_log_that_resumes_is_noted_only_when_it_begins_where_the_bucket_ends() -> None:
    desk = Desk()
    desk.see()
    desk.answer(desk.of(StepKind.REGISTER)[0])
    desk.grant(desk.claims[0], 4, 100, resumes=True)
    assert desk.notes == []
    desk.see(start=100, end=101)
    assert desk.notes == [(tp(0), PartitionUpload(100, 4, False, 0))]
    assert [upload.segment.base for upload in desk.seal(100)] == [100]


def test_records_that_were_appended_below_the_resumed_end_fence_the_log() -> None:
    desk = Desk()
    desk.see()
    desk.answer(desk.of(StepKind.REGISTER)[0])
    desk.grant(desk.claims[0], 4, 100, resumes=True)
    desk.see(end=1)
    assert desk.notes == [(tp(0), PartitionUpload(0, 4, True, 0))]
    assert desk.seal(0) == []


def test_a_log_that_has_begun_where_the_bucket_ends_before_the_claim_is_told_is_noted_at_once() -> None:
    """Its writer reads the root, too. A scan reports the changes, and nothing may change afterwards."""
    desk = Desk()
    desk.see()
    desk.answer(desk.of(StepKind.REGISTER)[0])
    (claim,) = desk.claims
    desk.see(start=100, end=101)
    desk.grant(claim, 4, 100, resumes=True)
    assert desk.notes == [(tp(0), PartitionUpload(100, 4, False, 0))]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_committed_before_what_dead_claims_left_was_looked_at(fails: bool) -> None:
    """Uploads below the committed end are no longer swept: a kill in between would leave them for ever."""
    desk = Desk()
    desk.see(end=10)
    desk.answer(desk.of(StepKind.REGISTER)[0])
    desk.answer(desk.claims[0], Granted("token", 7, 0, 0, 0))
    desk.seal(0)
    (settle,) = desk.of(StepKind.SETTLE)
    desk.store(desk.uploads[0], later_ms=1_000)
    assert desk.commits == []
    desk.answer(settle, DOWN if fails else 3)
    assert [commit.epoch for commit in desk.commits] == [7]
    if fails:
        desk.commit(desk.commits[0])
        desk.turn(CAP_MS)
        assert len(desk.of(StepKind.SETTLE)) == 1


@pytest.mark.parametrize("error", [OSError(5, "no answer of the disk"), ConnectionResetError(104, "reset")])
def test_an_unexpected_error_of_a_commit_leaves_its_outcome_unknown(error: OSError) -> None:
    """The rows may be in the bucket: a repetition under the same claim would be refused for ever."""
    desk = Desk().claimed()
    (upload,) = desk.seal(0)
    desk.store(upload)
    desk.answer(desk.commits[0], error)
    desk.turn(CAP_MS)
    assert desk.commits == []
    desk.grant(desk.claims[0], 8, 10)
    assert (desk.commits, desk.uploads, desk.notes[-1][1].end_offset) == ([], [], 10)


def test_a_refused_commit_is_repeated_less_and_less_often() -> None:
    desk = Desk().claimed()
    (upload,) = desk.seal(0)
    desk.store(upload)
    waits = []
    for _ in range(14):
        desk.answer(desk.commits[0], ConfigError("row 0..10: size 0", hint="check the segment"))
        waiting = desk.view().waiting
        assert waiting is not None
        found = (waiting.code, waiting.reason, waiting.unblocks)
        assert found == ("config", "committing t-0 from offset 0: row 0..10: size 0", "check the segment")
        begun = desk.now_ms
        while not desk.commits:
            desk.turn(250)
        waits.append(desk.now_ms - begun)
    assert waits == [min(600_000, 500 << times) for times in range(14)]
    desk.commit(desk.commits[0])
    assert (desk.view().waiting, desk.claims, desk.uploads) == (None, [], [])


def test_uploads_that_succeed_do_not_make_a_refused_commit_new() -> None:
    desk = Desk().claimed()
    desk.reports.clear()
    commits = 0
    for base in range(0, 600, 10):
        desk.seal(base)
        for call in desk.uploads:
            desk.store(call)
        for call in desk.commits:
            commits += 1
            desk.answer(call, ConfigError("row 0..10: size 0"))
        desk.turn(1_000)
    assert (commits <= 8, [report.event for report in desk.reports]) == (True, ["failed"])


def test_what_stands_before_a_refused_segment_is_committed() -> None:
    desk = Desk().claimed()
    for upload in desk.seal(0, 10, 20, 30):
        desk.store(upload)
    for bases in ([0, 10, 20, 30], [10, 20, 30], [20, 30]):
        (commit,) = desk.commits
        assert [r.base for r in commit.rows] == bases
        desk.answer(commit, ConfigError("row 20..30: size 0"))
        desk.turn(500)
        assert [r.base for r in desk.commits[0].rows] == bases[:1]
        if bases[0] < 20:
            desk.commit(desk.commits[0])


def test_a_partition_that_is_gone_frees_its_slots() -> None:
    desk = Desk(limits=EngineLimits(uploads=1), partitions=2).claimed()
    (upload,) = desk.seal(0)
    desk.do(desk.engine.forget, tp(0))
    assert upload.cancelled
    assert desk.seal(0, at=1) == []  # the cancelled one still runs
    desk.answer(upload, DOWN)
    assert [call.tp for call in desk.uploads] == [tp(1)]


def test_a_topic_that_was_made_again_begins_anew() -> None:
    desk = Desk().claimed()
    (upload,) = desk.seal(0)
    desk.see(topic_id=topic_id(9))
    assert upload.cancelled
    assert len(desk.of(StepKind.REGISTER)) == 1
    assert desk.view().topic_id == topic_id(9)


def test_an_idle_partition_is_a_row_without_a_coroutine() -> None:
    desk = Desk(partitions=3).claimed()
    assert desk.engine._workers == {}
    (upload,) = desk.seal(0, at=1)
    assert list(desk.engine._workers) == [tp(1)]
    desk.store(upload)
    desk.commit(desk.commits[0])
    assert desk.engine._workers == {}


def test_a_bug_in_a_partition_ends_the_run() -> None:
    desk = Desk().claimed()
    desk.engine.note = None  # type: ignore[method-assign, assignment]  # a bug: a note that cannot be called
    (upload,) = desk.seal(0)
    desk.store(upload)
    with pytest.raises(TypeError):
        desk.commit(desk.commits[0])


def test_backoff_is_bounded_and_jittered() -> None:
    ids = Dice(random.Random(3))
    waits = [retry_delay_ms(attempt, ids) for attempt in range(1, 500)]
    assert max(waits) <= CAP_MS
    assert min(waits) >= 1
    assert len(set(waits)) > 300
    assert all(retry_delay_ms(1, ids) <= 200 for _ in range(100))


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="uploads is 0"):
        EngineLimits(uploads=0)
    with pytest.raises(ConfigError, match="at most 64"):
        EngineLimits(commit_segments=65)
