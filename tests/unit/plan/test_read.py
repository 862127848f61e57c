"""Which tier serves which offsets, and which bytes of an object."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import OffsetGapError, OffsetOutOfRangeError
from tiered.format.rows import Rows
from tiered.model import Positions, Row, TopicPartition
from tiered.plan.read import (
    LocalSpan,
    ReadLimits,
    RemoteSpan,
    RequestSizes,
    Tier,
    byte_range,
    earliest_offset,
    latest_offset,
    plan_tiers,
    segment_ranges,
)

TP = TopicPartition("flights", 0)


def plan(start: int, end: int | None, local: LocalSpan | None, remote: RemoteSpan | None) -> list[tuple[str, int, int]]:
    return [(r.tier.value, r.start, r.end) for r in plan_tiers(TP, start, end, local=local, remote=remote)]


def test_one_tier_alone() -> None:
    assert plan(5, None, LocalSpan(0, 10, 0), None) == [("local", 5, 10)]
    assert plan(5, None, None, RemoteSpan(0, 10)) == [("remote", 5, 10)]
    assert plan(0, None, None, None) == []


def test_at_the_end_there_is_nothing_and_beyond_it_an_error() -> None:
    local, remote = LocalSpan(40, 100, 80), RemoteSpan(20, 80)
    assert plan(100, None, local, remote) == []
    assert plan(30, 20, local, remote) == []
    assert plan(90, 1000, local, remote) == [("local", 90, 100)]
    with pytest.raises(OffsetOutOfRangeError) as above:
        plan(101, None, local, remote)
    assert (above.value.requested, above.value.earliest, above.value.latest) == (101, 20, 100)
    with pytest.raises(OffsetOutOfRangeError) as below:
        plan(19, None, local, remote)
    assert "flights-0: offset 19 is outside 20 to 100" in str(below.value)


def test_offsets_in_no_tier_are_an_error_with_both_ends() -> None:
    with pytest.raises(OffsetGapError) as gap:
        plan(0, None, LocalSpan(60, 100, 0), RemoteSpan(0, 40))
    assert (gap.value.start, gap.value.end) == (40, 60)
    with pytest.raises(OffsetGapError) as late_remote:
        plan(0, None, LocalSpan(0, 100, 20), RemoteSpan(30, 80))
    assert (late_remote.value.start, late_remote.value.end) == (20, 30)
    # A range that does not touch the gap is served.
    assert plan(70, 90, LocalSpan(60, 100, 0), RemoteSpan(0, 40)) == [("local", 70, 90)]


def test_an_empty_tier_has_no_earliest() -> None:
    assert earliest_offset(LocalSpan(90, 90, 90), RemoteSpan(20, 90)) == 20
    assert earliest_offset(LocalSpan(0, 0, 0), RemoteSpan(20, 90)) == 20
    assert earliest_offset(LocalSpan(90, 90, 90), RemoteSpan(90, 90)) == 90
    assert latest_offset(LocalSpan(0, 0, 0), RemoteSpan(20, 90)) == 90
    assert (earliest_offset(None, None), latest_offset(None, None)) == (0, 0)


def test_a_span_of_a_partition_log() -> None:
    assert LocalSpan.from_positions(Positions(0, 40, 80, 90, 100)) == LocalSpan(40, 100, 80)


spans = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted)


@given(spans, st.integers(0, 40), spans, st.integers(0, 45), st.integers(0, 45))
def test_every_offset_is_served_once_by_the_tier_that_may(
    local_span: list[int], uploaded: int, remote_span: list[int], start: int, end: int
) -> None:
    local, remote = LocalSpan(local_span[0], local_span[1], uploaded), RemoteSpan(*remote_span)

    def server(offset: int) -> Tier | None:
        here, there = (span.start_offset <= offset < span.end_offset for span in (local, remote))
        if here and (offset < uploaded or offset >= remote.end_offset):
            return Tier.LOCAL
        return Tier.REMOTE if there else None

    earliest, latest = earliest_offset(local, remote), latest_offset(local, remote)
    if not earliest <= start <= latest:
        with pytest.raises(OffsetOutOfRangeError):
            plan_tiers(TP, start, end, local=local, remote=remote)
        return
    wanted = {offset: server(offset) for offset in range(start, min(end, latest))}
    if None in wanted.values():
        with pytest.raises(OffsetGapError) as gap:
            plan_tiers(TP, start, end, local=local, remote=remote)
        first, behind = gap.value.start, gap.value.end
        assert first == min(offset for offset, tier in wanted.items() if tier is None)
        assert all(server(offset) is None for offset in range(first, behind))
        assert behind == latest or server(behind) is not None
        return
    ranges = plan_tiers(TP, start, end, local=local, remote=remote)
    assert {offset: part.tier for part in ranges for offset in range(part.start, part.end)} == wanted
    assert all(a.end == b.start and a.tier is not b.tier for a, b in itertools.pairwise(ranges))


def row(base: int, end: int) -> Row:
    return Row(base, end, 0, 0, 100, 0, 0, base, 0, 1, end - base, 0, 0)


def test_segments_of_a_range() -> None:
    rows = Rows.from_rows([row(0, 10), row(10, 20), row(20, 30)])
    found = [(part.row.base, part.start, part.end) for part in segment_ranges(rows, 5, 21)]
    assert found == [(0, 5, 10), (10, 10, 20), (20, 20, 21)]
    assert list(segment_ranges(rows, 7, 7)) == []
    assert list(segment_ranges(rows, 30, 40)) == []
    assert list(segment_ranges(Rows.from_rows([]), 0, 9)) == []


@dataclass(frozen=True)
class Batch:
    last: int
    position: int


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(0, 60), st.integers(1, 60))
def test_a_byte_range_always_holds_the_batches_of_the_offsets(indexed: list[bool], start: int, length: int) -> None:
    all_batches = [Batch(i * 3 + 2, i * 7) for i in range(len(indexed))]
    size = len(indexed) * 7
    entries = [(b.last, b.position) for b, kept in zip(all_batches, indexed, strict=True) if kept]
    end = min(start + length, len(indexed) * 3)
    if start >= end:
        return
    wanted = byte_range(entries, size, start, end)
    for b in all_batches:
        if b.last >= start and b.last - 2 < end:
            assert wanted.start <= b.position
            assert wanted.end >= b.position + 7


def test_requests_double_and_end_at_chunks() -> None:
    sizes = RequestSizes(ReadLimits(chunk_bytes=4, request_bytes=16))
    position, taken = 6, []
    while position < 70:
        piece = sizes.next_request(position, 70)
        taken.append((piece.start, piece.end))
        position = piece.end
    assert taken == [(6, 8), (8, 16), (16, 32), (32, 48), (48, 64), (64, 70)]
