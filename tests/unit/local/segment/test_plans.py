"""Roll and local retention: decisions without a disk."""

from __future__ import annotations

import pytest

from tiered.config import TopicConfig
from tiered.plan.retention import LocalSegmentFacts, plan_local_retention
from tiered.plan.roll import (
    MAX_RELATIVE_OFFSET,
    RollReason,
    effective_segment_ms,
    idle_roll,
    jitter_ms,
    record_time_bound,
    roll_before_append,
    waited_ms,
    wall_clock_bound,
)


@pytest.mark.parametrize(
    ("size", "incoming", "waited", "relative", "full", "reason"),
    [
        (0, 100, 0, 0, (False, False), None),
        (900, 100, 0, 5, (False, False), None),
        (901, 100, 0, 5, (False, False), RollReason.SIZE),
        (0, 100, 51, 0, (False, False), None),
        (1, 100, 50, 1, (False, False), None),
        (1, 100, 51, 1, (False, False), RollReason.RECORD_TIME),
        (1, 100, -7, 1, (False, False), None),
        (1, 100, 0, 1, (True, False), RollReason.OFFSET_INDEX_FULL),
        (1, 100, 0, 1, (False, True), RollReason.TIME_INDEX_FULL),
        (1, 100, 0, MAX_RELATIVE_OFFSET, (False, False), None),
        (1, 100, 0, MAX_RELATIVE_OFFSET + 1, (False, False), RollReason.OFFSET_OVERFLOW),
        (1, 100, 0, -1, (False, False), RollReason.OFFSET_OVERFLOW),
    ],
)
def test_kafkas_roll_rules(
    size: int, incoming: int, waited: int, relative: int, full: tuple[bool, bool], reason: RollReason | None
) -> None:
    assert roll_before_append(size, incoming, 1000, waited, 50, relative, *full) == reason


def test_age_is_record_time_unless_records_have_none() -> None:
    assert waited_ms(max_timestamp=130, first_timestamp=100, now_ms=10**9, created_ms=0) == 30
    assert waited_ms(max_timestamp=-1, first_timestamp=-1, now_ms=500, created_ms=100) == 400
    assert record_time_bound(100, 30) == 130
    assert record_time_bound(-1, 30) == -2


def test_seal_ms_counts_from_the_first_append_on_the_wall_clock() -> None:
    assert idle_roll(1, 100, 50, 149) is None
    assert idle_roll(1, 100, 50, 150) is RollReason.WALL_CLOCK
    assert idle_roll(0, 100, 50, 10**6) is None
    assert idle_roll(1, 100, -1, 10**6) is None
    assert idle_roll(1, 100, 50, 20) is None
    for first, seal_ms in ((100, 50), (-1, 50), (100, -1)):
        bound = wall_clock_bound(first, seal_ms)
        assert idle_roll(1, first, seal_ms, bound - 1) is None


def test_jitter_and_compaction_lag_shorten_segment_ms() -> None:
    assert effective_segment_ms(100, 40, False, 7) == 93
    assert effective_segment_ms(100, 40, True, 7) == 33
    assert jitter_ms(0, 100, 0.9) == 0
    assert jitter_ms(500, 100, 0.5) == 50


def facts(*sizes: int, stamp: int = 1000, appended: int = 1000) -> list[LocalSegmentFacts]:
    return [LocalSegmentFacts(i * 10, i * 10 + 10, size, stamp, appended) for i, size in enumerate(sizes)]


def bases(
    segments: list[LocalSegmentFacts], config: TopicConfig, committed_end: int | None, now_ms: int = 5000
) -> tuple[int, ...]:
    plan = plan_local_retention(
        segments, active_bytes=5, config=config, now_ms=now_ms, log_start_offset=0, committed_end=committed_end
    )
    assert plan.delete_below == (plan.bases[-1] + 10 if plan.bases else 0)
    return plan.bases


def test_nothing_goes_by_default() -> None:
    assert bases(facts(100, 100), TopicConfig(), None, now_ms=10**15) == ()
    assert bases(facts(100, 100), TopicConfig(), 20, now_ms=10**15) == ()


def test_a_tiered_log_keeps_what_the_bucket_does_not_hold() -> None:
    config = TopicConfig(local_retention_ms=10)
    assert bases(facts(100, 100, 100), config, 0) == ()
    assert bases(facts(100, 100, 100), config, 19) == (0,)
    assert bases(facts(100, 100, 100), config, 20) == (0, 10)
    assert bases(facts(100, 100, 100), config, 30) == (0, 10, 20)


def test_retention_of_the_topic_does_not_touch_a_tiered_disk_unless_local_says_the_same() -> None:
    assert bases(facts(100, 100), TopicConfig(retention_ms=10), 20) == ()
    assert bases(facts(100, 100), TopicConfig(retention_ms=10, local_retention_ms=-2), 20) == (0, 10)
    assert bases(facts(100, 100), TopicConfig(retention_ms=10), None) == (0, 10)
    assert bases(facts(100, 100), TopicConfig(retention_ms=10, cleanup_policy="compact"), None) == ()


def test_time_is_strict_and_a_timestamp_from_the_future_counts_as_its_append() -> None:
    config = TopicConfig(retention_ms=4000)
    assert bases(facts(1), config, None, now_ms=5000) == ()
    assert bases(facts(1), config, None, now_ms=5001) == (0,)
    assert bases(facts(1, stamp=10**15, appended=1000), config, None, now_ms=5001) == (0,)
    assert bases(facts(1, stamp=-1, appended=1000), config, None, now_ms=5001) == (0,)


def test_size_never_goes_below_the_limit() -> None:
    config = TopicConfig(retention_bytes=205)
    assert bases(facts(100, 100, 100), config, None) == (0,)
    assert bases(facts(100, 100, 99), config, None) == ()
    assert bases(facts(100, 100, 100), TopicConfig(local_retention_bytes=0), 30) == (0, 10, 20)


def test_only_a_prefix_goes() -> None:
    mixed = [facts(1)[0], LocalSegmentFacts(10, 20, 1, 4999, 4999), LocalSegmentFacts(20, 30, 1, 1000, 1000)]
    assert bases(mixed, TopicConfig(retention_ms=1000), None) == (0,)


def test_segments_below_the_log_start_go_without_any_limit() -> None:
    plan = plan_local_retention(
        facts(1, 1, 1), active_bytes=0, config=TopicConfig(), now_ms=0, log_start_offset=20, committed_end=None
    )
    assert plan.bases == (0, 10)
