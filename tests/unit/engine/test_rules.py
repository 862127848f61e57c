"""The decisions as tables: a row of a partition and a time in, what is due out."""

from __future__ import annotations

import pytest

from tests.unit.engine.desk import row, segment, topic_id, tp
from tiered.engine import partition
from tiered.engine.failure import NONE_MS, Failure, FailureKind, FailureStreak
from tiered.engine.partition import EngineLimits, Partition, Phase, SegmentUpload
from tiered.plan.pacing import Pause

LIMITS = EngineLimits(commit_wait_ms=250, commit_segments=2)
REFUSED = Failure(FailureKind.FATAL, "config", "because")


def claimed(works: str, **changes: object) -> Partition:
    """A claimed partition; one letter for each segment: stored at 1000 ms (s), uploading (u), neither (.)."""
    p = Partition(tp(0), topic_id(), end=10 * len(works))
    p.claimed(7, 0)
    for number, letter in enumerate(works):
        ref = segment(10 * number)
        stored = row(ref, 7) if letter == "s" else None
        p.works[ref.base] = SegmentUpload(ref, letter == "u", stored, 1_000 if stored else NONE_MS)
    p.uploading = works.count("u")
    for name, value in changes.items():
        setattr(p, name, value)
    return p


def wanted(p: Partition, base: int) -> bool:
    return base < 1_000


@pytest.mark.parametrize(
    ("works", "now_ms", "bases"),
    [
        ("", 9_999, ()),
        (".s", 9_999, ()),  # a gap
        ("s", 1_000, (0,)),  # nothing else is under way
        ("su", 1_249, ()),  # company may come
        ("su", 1_250, (0,)),
        ("ssu", 1_000, (0, 10)),  # full
        ("sss", 1_000, (0, 10)),
        ("us", 9_999, ()),
    ],
)
def test_rows_are_due_when_the_prefix_is_full_old_or_alone(works: str, now_ms: int, bases: tuple[int, ...]) -> None:
    assert tuple(r.base for r in partition.rows_due(claimed(works), LIMITS, now_ms)) == bases


def test_of_a_refused_commit_one_row_at_a_time_is_due() -> None:
    p = claimed("ss", trouble=FailureStreak(REFUSED))
    assert [r.base for r in partition.rows_due(p, LIMITS, 1_000)] == [0]


@pytest.mark.parametrize(
    ("works", "changes", "base"),
    [
        (".", {}, 0),
        ("u.", {}, 10),
        ("s", {}, None),
        ("", {}, None),
        (".", {"pause": Pause(1)}, None),
        (".", {"phase": Phase.FENCED}, None),
        (".", {"phase": Phase.NEW}, None),
        (".", {"given_up": True}, None),
        (".", {"committed": 5}, None),  # the root ends inside the segment
        ("u.", {"trouble": FailureStreak(attempts=1)}, None),  # one upload is the probe
        (".", {"trouble": FailureStreak(attempts=1)}, 0),
    ],
)
def test_the_upload_that_may_begin(works: str, changes: dict[str, object], base: int | None) -> None:
    work = partition.upload_due(claimed(works, **changes), wanted)
    assert (None if work is None else work.segment.base) == base


def test_what_a_drain_does_not_want_is_not_uploaded() -> None:
    assert partition.upload_due(claimed("."), lambda p, base: False) is None


@pytest.mark.parametrize(
    ("works", "changes", "works_on"),
    [
        ("", {}, False),
        (".", {}, True),
        ("s", {}, True),
        ("u", {"phase": Phase.FENCED}, True),  # until its uploads have ended
        (".", {"phase": Phase.FENCED}, False),
        ("", {"phase": Phase.NEW}, True),
        ("", {"settled": False}, True),
        (".", {"pause": Pause(1)}, False),
        ("s", {"pause": Pause(1)}, True),
        ("s", {"given_up": True}, False),
        (".", {"committed": 5}, False),
    ],
)
def test_a_partition_has_a_coroutine_while_it_has_work(works: str, changes: dict[str, object], works_on: bool) -> None:
    assert partition.has_work(claimed(works, **changes), wanted) is works_on


@pytest.mark.parametrize(("noted", "end", "claims"), [(10, 10, False), (-1, 0, False), (9, 10, True), (-1, 1, True)])
def test_a_one_shot_run_claims_only_what_is_not_noted_as_committed(noted: int, end: int, claims: bool) -> None:
    p = Partition(tp(0), topic_id(), end=end, noted=noted)
    assert partition.has_work(p, wanted, lazy=True) is claims


@pytest.mark.parametrize(
    ("works", "changes", "at_ms"),
    [
        ("", {}, NONE_MS),
        ("su", {}, 1_250),
        ("s", {}, 0),
        ("", {"settled": False, "sweep": FailureStreak(retry_at_ms=77)}, 77),
    ],
)
def test_when_time_alone_makes_something_due(works: str, changes: dict[str, object], at_ms: int) -> None:
    assert partition.next_ms(claimed(works, **changes), LIMITS) == at_ms


@pytest.mark.parametrize(
    ("start", "end", "committed", "resume_at", "diverged"),
    [
        (0, 0, 100, -1, False),  # no records: nothing to hold against the bucket
        (0, 3, 100, -1, True),
        (0, 100, 100, -1, False),
        (100, 101, 100, 100, False),
        (0, 1, 100, 100, True),
    ],
)
def test_a_disk_has_diverged_where_the_bucket_gave_its_offsets_to_others(
    start: int, end: int, committed: int, resume_at: int, diverged: bool
) -> None:
    p = Partition(tp(0), topic_id(), local_start=start, end=end, committed=committed, resume_at=resume_at)
    assert partition.has_diverged(p) is diverged
