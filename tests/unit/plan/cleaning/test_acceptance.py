"""The acceptance cases of compaction that concern decisions (Kafka's LogCleanerTest, LogCleanerManagerTest).

Cases 75, 77 and 79 are about files and threads: see the tests of the local cleaner.
"""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit.plan.cleaning.building import LogBuilder, compacted
from tests.unit.plan.cleaning.rounds import TP, MemoryLog, clean, markers, visible
from tiered.config import MAX_INT, MAX_LONG, TopicConfig
from tiered.format.batch import read_header
from tiered.format.control import ControlType
from tiered.format.kernels import Record
from tiered.model import TopicPartition
from tiered.plan.cleaning import (
    CleaningCandidate,
    LogState,
    SegmentState,
    choose_filthiest,
    cleaning_candidate,
    group_segments,
)

LATER = 10**15
ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


def _ends(log: MemoryLog) -> list[int]:
    return [read_header(batch).last_offset for batch in log.batches]


def _facts(records: list[Record]) -> list[tuple[int, bytes | None]]:
    return [(r.offset, r.key) for r in records]


def _offsets(log: MemoryLog) -> list[int]:
    return [r.offset for r in visible(log.batches)]


def test_case_70_an_abort_marker_loses_its_index_entry_one_round_before_it_goes() -> None:
    build = LogBuilder(compacted(delete_retention_ms=100))
    build.keys(1, producer=1, transactional=True)
    build.end(1, ABORT)
    build.keys(1)
    build.roll()
    log = build.build(live=False)
    seen = []
    for now in (1_000, 2_000, 2_100):
        log = dataclasses.replace(clean(log, now).log, checkpoint=None)
        seen.append((len(log.aborted), markers(log.batches)))
    assert seen == [(1, [1]), (0, [1]), (0, [])]


def test_case_70_an_empty_batch_of_the_transaction_holds_its_marker() -> None:
    build = LogBuilder(compacted(delete_retention_ms=0))
    build.keys(1, producer=1, transactional=True)
    build.end(1, COMMIT)
    build.keys(1)
    build.roll()
    log = build.build()
    for now in (1_000, 2_000, 3_000):
        log = dataclasses.replace(clean(log, now).log, checkpoint=None)
        assert _ends(log) == [0, 1, 2]
        assert read_header(log.batches[1]).delete_horizon_ms is None


def _segments(count: int, *, size: int = 100, index: int = 8, span: int = 5) -> list[SegmentState]:
    return [
        SegmentState(i * span, (i + 1) * span, size, offset_index_bytes=index, time_index_bytes=index)
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("segment_bytes", "index_bytes", "sizes"),
    [
        (MAX_INT, MAX_INT, [10]),
        (14, MAX_INT, [1] * 10),
        (MAX_INT, 24, [3, 3, 3, 1]),
        (MAX_INT, 25, [3, 3, 3, 1]),
        (500, MAX_INT, [5, 5]),
        (499, MAX_INT, [4, 4, 2]),
    ],
)
def test_case_74_groups_keep_to_the_limits(segment_bytes: int, index_bytes: int, sizes: list[int]) -> None:
    config = compacted(segment_bytes=segment_bytes, segment_index_bytes=index_bytes)
    segments = _segments(10)
    groups = group_segments(segments, map_end=50, first_uncleanable=50, config=config)
    assert [len(group) for group in groups] == sizes
    assert [segment for group in groups for segment in group] == segments


def test_case_74_a_time_index_counts_like_an_offset_index() -> None:
    segments = [dataclasses.replace(s, offset_index_bytes=0, time_index_bytes=24) for s in _segments(3)]
    groups = group_segments(segments, map_end=15, first_uncleanable=15, config=compacted(segment_index_bytes=48))
    assert [len(group) for group in groups] == [2, 1]


@pytest.mark.parametrize(("last", "sizes"), [(2**31 - 1, [2]), (2**31, [1, 1])])
def test_case_74_offsets_of_a_group_fit_its_index(last: int, sizes: list[int]) -> None:
    segments = [SegmentState(0, 10, 100), SegmentState(10, last + 1, 100)]
    groups = group_segments(segments, map_end=last + 1, first_uncleanable=last + 1, config=compacted())
    assert [len(group) for group in groups] == sizes
    middle = [*segments, SegmentState(last + 1, last + 2, 100)]  # bounded by the base of the next one
    bounded = group_segments(middle, map_end=last + 2, first_uncleanable=last + 2, config=compacted())
    assert [len(group) for group in bounded][: len(sizes) - 1] == sizes[:-1]


def test_case_74_a_segment_without_bytes_joins_at_any_distance() -> None:
    far = 2**33
    segments = [SegmentState(0, 10, 100), SegmentState(10, far, 0)]
    assert len(group_segments(segments, map_end=far, first_uncleanable=far, config=compacted())) == 1


def test_case_74_only_segments_of_the_map_are_rewritten() -> None:
    groups = group_segments(_segments(4), map_end=11, first_uncleanable=20, config=compacted(segment_bytes=14))
    assert [[s.base_offset for s in group] for group in groups] == [[0], [5], [10]]
    assert group_segments([], map_end=0, first_uncleanable=0, config=compacted()) == ()


def _state(name: str, clean_bytes: int, dirty_bytes: int, **more: object) -> LogState:
    segments = (SegmentState(0, 10, clean_bytes), SegmentState(10, 20, dirty_bytes))
    fields: dict[str, object] = {"log_start_offset": 0, "end_offset": 25, "last_stable_offset": 25}
    fields |= {"active_base_offset": 20, "checkpoint": 10, "config": compacted()}
    return LogState(TopicPartition(name, 0), segments=segments, **fields | more)  # type: ignore[arg-type]  # by name


def test_case_78_half_dirty_is_not_dirty_enough() -> None:
    zero = compacted(min_cleanable_dirty_ratio=0)
    for state, chosen in (
        (_state("t", 50, 50), False),
        (_state("t", 49, 50), True),
        (_state("t", 100, 0, config=zero), False),
        (_state("t", 100, 1, config=zero), True),
        (LogState(TP, compacted(), (), 0, 5, 5, 0), False),
    ):
        assert (choose_filthiest(_candidates(state)) is not None) is chosen


def _candidates(*states: LogState) -> list[CleaningCandidate]:
    found = [cleaning_candidate(state, 0) for state in states]
    return [candidate for candidate in found if candidate is not None]


def test_case_78_the_filthiest_is_chosen_and_others_are_skipped() -> None:
    candidates = _candidates(_state("a", 40, 60), _state("b", 20, 80), _state("e", 1, 99, config=TopicConfig()))
    assert [c.tp.topic for c in candidates] == ["a", "b"]
    chosen = choose_filthiest(candidates)
    assert chosen is not None
    assert (chosen.tp.topic, chosen.ratio) == ("b", 0.8)
    assert choose_filthiest([]) is None


def test_a_timestamp_of_the_future_pins_nothing() -> None:
    state = _state("t", 50, 50, config=compacted(min_compaction_lag_ms=100))
    future = dataclasses.replace(state.segments[1], max_timestamp=LATER, modified_ms=1_000)
    candidate = cleaning_candidate(dataclasses.replace(state, segments=(state.segments[0], future)), 1_100)
    assert candidate is not None
    assert candidate.first_uncleanable == 20


@pytest.mark.parametrize(("now", "delay"), [(1_100, 0), (1_101, 1), (1_500, 400)])
def test_an_overdue_segment_forces_the_cleaning(now: int, delay: int) -> None:
    state = _state("t", 99, 1, config=compacted(max_compaction_lag_ms=100))
    segments = (state.segments[0], dataclasses.replace(state.segments[1], first_batch_timestamp=1_000))
    candidate = cleaning_candidate(dataclasses.replace(state, segments=segments), now)
    assert candidate is not None
    assert (candidate.delay_ms, candidate.forced, candidate.eligible) == (delay, delay > 0, delay > 0)
    blocked = cleaning_candidate(dataclasses.replace(state, segments=segments, last_stable_offset=10), now)
    assert blocked is not None
    assert not blocked.eligible


def test_a_horizon_beyond_all_time_stays_in_64_bits() -> None:
    build = LogBuilder(compacted(delete_retention_ms=MAX_LONG))
    build.append([(b"k", None)])
    build.roll()
    cleaned = clean(build.build(), LATER).log
    assert read_header(cleaned.batches[0]).delete_horizon_ms == MAX_LONG
    assert [(r.timestamp, r.value) for r in visible(cleaned.batches)] == [(1_000, None)]
