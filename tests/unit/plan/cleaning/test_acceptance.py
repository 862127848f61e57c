"""The acceptance cases of compaction that concern decisions (Kafka's LogCleanerTest, LogCleanerManagerTest).

Cases 75, 77 and 79 are about files and threads: see the tests of the local cleaner.
"""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit.plan.cleaning.building import LogBuilder, compacted
from tests.unit.plan.cleaning.rounds import TP, MemoryLog, MemorySegment, clean, markers, visible
from tiered.config import MAX_INT, MAX_LONG, TopicConfig
from tiered.errors import CorruptionError
from tiered.format.batch import encode_batch, read_header
from tiered.format.codecs import Codec
from tiered.format.control import ControlType
from tiered.format.kernels import Record
from tiered.model import NewRecord, TopicPartition
from tiered.plan.batch_filter import BatchFilter
from tiered.plan.cleaning import LogState, SegmentState, choose_filthiest, cleaning_candidate, group_segments
from tiered.plan.offset_map import OffsetMap, OffsetMapBuilder

LATER = 10**15
ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


def _ends(log: MemoryLog) -> list[int]:
    return [read_header(batch).last_offset for batch in log.batches]


def _facts(records: list[Record]) -> list[tuple[int, bytes | None]]:
    return [(r.offset, r.key) for r in records]


def _offsets(log: MemoryLog) -> list[int]:
    return [r.offset for r in visible(log.batches)]


def test_case_68_a_producer_that_is_forgotten_leaves_nothing() -> None:
    build = LogBuilder()
    build.keys(1, producer=1)
    build.keys(1)
    build.roll()
    assert _ends(clean(build.build(), LATER).log) == [0, 1]
    assert _ends(clean(build.build(live=False), LATER).log) == [1]


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


def test_case_71_an_aborted_transaction_over_two_segments_goes_and_its_entry_stays_with_the_marker() -> None:
    build = LogBuilder(compacted(segment_bytes=14))
    build.keys(1, producer=1, transactional=True)
    build.roll()
    build.keys(2, producer=1, transactional=True)
    build.end(1, ABORT)
    build.roll()
    log = clean(build.build(), LATER).log
    assert _offsets(log) == []
    assert [len(segment.aborted) for segment in log.segments] == [0, 1, 0]


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


@pytest.mark.parametrize("place", [0, 8, 16, 21, 57, 61, -1])
def test_case_76_damage_ends_the_round(place: int) -> None:
    data = bytearray(encode_batch([NewRecord(b"v", b"k", 1), NewRecord(b"w", b"k", 2)]))
    data[place] ^= 0x80
    _refused(bytes(data))


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_case_76_a_truncated_batch_ends_the_round(cut: int) -> None:
    _refused(encode_batch([NewRecord(b"v", b"k", 1), NewRecord(b"w", b"k", 2)])[:-cut])


def test_case_76_batches_out_of_order_end_the_round() -> None:
    build = LogBuilder()
    build.keys(1)
    build.keys(1)
    build.roll()
    first, second = build.build().batches
    log = build.build()
    broken = dataclasses.replace(log.segments[0], data=second + first)
    with pytest.raises(CorruptionError, match="offset 0 overlaps the previous batch, which ends at 2"):
        clean(dataclasses.replace(log, segments=(broken, log.segments[1])), LATER)


def _refused(batch: bytes) -> None:
    """Neither the map nor the filter takes it."""
    with pytest.raises(CorruptionError):
        OffsetMapBuilder(OffsetMap(), start_offset=0).add(batch)
    with pytest.raises(CorruptionError):
        BatchFilter(OffsetMap(), first_uncleanable=2, now_ms=0, delete_retention_ms=0).clean(batch)


def _state(name: str, clean_bytes: int, dirty_bytes: int, **more: object) -> LogState:
    segments = (SegmentState(0, 10, clean_bytes), SegmentState(10, 20, dirty_bytes))
    fields: dict[str, object] = {"log_start_offset": 0, "end_offset": 25, "last_stable_offset": 25}
    fields |= {"active_base_offset": 20, "checkpoint": 10, "config": compacted()}
    return LogState(TopicPartition(name, 0), segments=segments, **fields | more)  # type: ignore[arg-type]  # by name


def test_case_78_half_dirty_is_not_dirty_enough() -> None:
    even, more = _state("t", 50, 50), _state("t", 49, 50)
    assert choose_filthiest([even], 0).filthiest is None
    assert choose_filthiest([more], 0).filthiest is not None
    zero = compacted(min_cleanable_dirty_ratio=0)
    assert choose_filthiest([_state("t", 100, 0, config=zero)], 0).filthiest is None
    assert choose_filthiest([_state("t", 100, 1, config=zero)], 0).filthiest is not None


def test_case_78_the_filthiest_is_chosen_and_others_are_skipped() -> None:
    sixty, eighty = _state("a", 40, 60), _state("b", 20, 80)
    others = [
        _state("c", 1, 99, in_progress=True),
        _state("d", 1, 99, uncleanable=True),
        _state("e", 1, 99, config=TopicConfig()),
    ]
    choice = choose_filthiest([sixty, eighty, *others], 0)
    assert choice.filthiest is not None
    assert (choice.filthiest.tp.topic, choice.filthiest.ratio) == ("b", 0.8)
    assert [c.tp.topic for c in choice.candidates] == ["a", "b"]
    assert choose_filthiest([], 0).filthiest is None


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


def test_a_log_without_segments_is_no_choice() -> None:
    state = LogState(TP, compacted(), (), 0, 5, 5, 0)
    choice = choose_filthiest([state], LATER)
    assert choice.filthiest is None
    assert choice.candidates[0].ratio == 0


def test_codecs_survive_a_rebuild() -> None:
    for codec in Codec:
        records = [NewRecord(b"v%d" % i, b"k%d" % (i % 2), i) for i in range(4)]
        batch = encode_batch(records, codec=codec, leader_epoch=3)
        log = MemoryLog((MemorySegment(0, batch), MemorySegment(4, b"")), compacted())
        (left,) = clean(log, LATER).log.batches
        header = read_header(left)
        assert (header.codec, header.last_offset, header.leader_epoch, header.max_timestamp) == (codec, 3, 3, 3)
        assert _facts(visible([left])) == [(2, b"k0"), (3, b"k1")]


def test_a_horizon_beyond_all_time_stays_in_64_bits() -> None:
    build = LogBuilder(compacted(delete_retention_ms=MAX_LONG))
    build.append([(b"k", None)])
    build.roll()
    cleaned = clean(build.build(), LATER).log
    assert read_header(cleaned.batches[0]).delete_horizon_ms == MAX_LONG
    assert [(r.timestamp, r.value) for r in visible(cleaned.batches)] == [(1_000, None)]
