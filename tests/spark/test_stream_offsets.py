"""Offsets of a stream and how far a trigger goes: values in, values out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import ConfigError
from tiered.model import TopicPartition
from tiered.spark.options import STREAM, ReadOptions
from tiered.spark.stream_offsets import (
    AvailableOffsets,
    Range,
    StreamOffset,
    batch_ranges,
    end_of,
    lag,
    limited,
    proportional,
)

P0, P1, W0 = TopicPartition("flights", 0), TopicPartition("flights", 1), TopicPartition("weather", 0)
ID, OTHER = "0d9f8c7e6b5a4c3d8e1f2a3b4c5d6e7f", "00000000000000000000000000000007"

TPS = st.builds(TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,8}[a-z]", fullmatch=True), st.integers(0, 120))
OFFSETS = st.dictionaries(TPS, st.integers(0, 2**63 - 1), max_size=12)
IDS = st.dictionaries(st.from_regex(r"[a-zA-Z0-9._-]{1,8}[a-z]", fullmatch=True), st.uuids().map(lambda u: u.hex))
STREAM_OFFSETS = st.builds(StreamOffset, OFFSETS, IDS, st.none() | OFFSETS)


@given(STREAM_OFFSETS)
def test_json_brings_an_offset_back_and_its_keys_are_sorted(offset: StreamOffset) -> None:
    text = json.dumps(offset.to_json())
    assert StreamOffset.from_json(json.loads(text)) == offset
    assert text == json.dumps(json.loads(text), sort_keys=True)
    assert json.dumps(StreamOffset.from_json(json.loads(text)).to_json()) == text


def test_an_initial_offset_is_kafkas_json_and_an_end_says_more_under_a_reserved_key() -> None:
    initial = StreamOffset({P1: 7, P0: 20, TopicPartition("flights", 10): 1}, {})
    assert json.dumps(initial.to_json()) == '{"flights": {"0": 20, "1": 7, "10": 1}}'
    end = end_of(initial, {P0: Range(20, 25)}, {P0: AvailableOffsets(ID, 0, 25, 25)})
    assert json.dumps(end.to_json()) == (
        '{"@": {"start": {"flights": {"0": 20, "1": 7, "10": 1}}, "topic_ids": {"flights": "' + ID + '"}}, '
        '"flights": {"0": 25}}'
    )


@pytest.mark.parametrize("value", [{"@": 5}, {"@": {"topic_ids": []}}, {"@": {"start": 7}}, {"flights": {"0": "1"}}])
def test_what_this_source_did_not_make_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        StreamOffset.from_json(value)


@given(STREAM_OFFSETS.filter(lambda offset: offset.offsets))
def test_an_offset_of_a_stream_can_be_pasted_into_starting_offsets(offset: StreamOffset) -> None:
    text = json.dumps(offset.to_json())
    read = ReadOptions.parse({"path": "file:///x", "subscribepattern": ".*", "startingoffsets": text}, STREAM)
    assert (read.start.offsets, read.start.topic_ids) == (offset.offsets, offset.topic_ids)


# -- what there is to read -------------------------------------------------------------------------------------------


def at(offsets: dict[TopicPartition, int], topic_id: str = ID) -> StreamOffset:
    return StreamOffset(offsets, {tp.topic: topic_id for tp in offsets})


def test_partitions_that_are_new_are_read_from_their_start() -> None:
    extents = {
        P0: AvailableOffsets(ID, 0, 9, 9),
        P1: AvailableOffsets(ID, 0, 4, 4),
        W0: AvailableOffsets(OTHER, 0, 2, 2),
    }
    start = at({P0: 5})
    ranges, losses = lag(start, extents)
    assert (ranges, losses) == ({P0: Range(5, 9), P1: Range(0, 4), W0: Range(0, 2)}, [])
    end = end_of(start, ranges, extents)
    assert end == StreamOffset({P0: 9, P1: 4, W0: 2}, {"flights": ID, "weather": OTHER})
    assert batch_ranges(start, end) == ranges


@pytest.mark.parametrize(
    ("start", "extent", "found", "told"),
    [
        (at({P0: 5}), AvailableOffsets(ID, 8, 9, 9), Range(8, 9), ("offsets 5 to 8 are gone", 3)),
        (at({P0: 5}), AvailableOffsets(ID, 9, 9, 9), Range(9, 9), ("offsets 5 to 9 are gone", 4)),
        (at({}), AvailableOffsets(ID, 3, 9, 9), Range(3, 9), ("offsets 0 to 3 are gone", 3)),
        (at({P0: 12}), AvailableOffsets(ID, 0, 9, 9), Range(9, 9), ("the stream is at offset 12", 0)),
        (at({P0: 5}, OTHER), AvailableOffsets(ID, 0, 9, 9), Range(0, 9), ("the topic was made again", 0)),
    ],
)
def test_what_is_gone_is_told_and_passed_over(
    start: StreamOffset, extent: AvailableOffsets, found: Range, told: tuple[str, int]
) -> None:
    ranges, (loss,) = lag(start, {P0: extent})
    assert ranges == {P0: found}
    assert told[0] in loss.what
    assert (loss.offsets, loss.held) == (told[1], (extent.earliest, extent.latest))


def test_what_read_committed_may_not_see_yet_is_no_loss() -> None:
    ranges, losses = lag(at({P0: 5}), {P0: AvailableOffsets(ID, 0, 9, 3)})
    assert (ranges, losses) == ({P0: Range(5, 5)}, [])


def test_a_partition_that_is_gone_is_told_and_left_out() -> None:
    ranges, (loss,) = lag(at({P0: 5, P1: 3}), {P0: AvailableOffsets(ID, 0, 5, 5)})
    assert ranges == {P0: Range(5, 5)}
    assert "flights-1: the stream is at offset 3, and the partition is deleted" in loss.what


# -- limits ----------------------------------------------------------------------------------------------------------

RANGES = st.dictionaries(
    TPS, st.tuples(st.integers(0, 2**40), st.integers(0, 2**30)).map(lambda r: Range(r[0], r[0] + r[1])), max_size=20
)


@given(RANGES, st.integers(1, 2**31))
def test_a_limit_is_shared_in_proportion_and_exceeded_by_at_most_a_record_each(
    ranges: dict[TopicPartition, Range], most: int
) -> None:
    found = limited(ranges, most)
    lagging = [tp for tp, has in ranges.items() if has.offsets]
    total = sum(has.offsets for has in ranges.values())
    taken = sum(has.offsets for has in found.values())
    assert found.keys() == ranges.keys()
    assert min(most, total) <= taken <= most + len(lagging)
    if len(lagging) <= 1:
        assert taken == min(most, total)
    for tp, has in ranges.items():
        assert found[tp].start == has.start
        assert found[tp].end <= has.end
        assert (found[tp].offsets > 0) == (has.offsets > 0)
        assert found[tp].offsets <= has.offsets * most // max(total, 1) + 1 or total <= most


@given(st.dictionaries(TPS, st.integers(0, 2**40)), st.integers(0, 2**40))
def test_shares_add_up(weights: dict[TopicPartition, int], amount: int) -> None:
    shares = proportional(weights, amount)
    assert sum(shares.values()) == (amount if any(weights.values()) else 0)
    assert all(share == 0 for tp, share in shares.items() if not weights[tp])
