"""How wanted ranges become tasks, without a session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import ConfigError
from tiered.model import AbortedTxn, Row, TopicPartition
from tiered.plan.read import Tier
from tiered.spark.slices import PartitionSlice, Slice, cut_slices, target_bytes

TP = TopicPartition("flights", 0)


def row(base: int, end: int, size: int) -> Row:
    return Row(base, end, 0, 0, size, 0, 0, base, 100, 1, end - base, 0, 0)


def remote(*rows: Row, start: int | None = None, end: int | None = None, tp: TopicPartition = TP) -> PartitionSlice:
    start, end = rows[0].base if start is None else start, rows[-1].next if end is None else end
    size = sum(r.size * (min(r.next, end) - max(r.base, start)) // (r.next - r.base) for r in rows)
    return PartitionSlice(tp, "00" * 16, Tier.REMOTE, start, end, size, rows)


def covered(slices: list[Slice]) -> list[tuple[TopicPartition, int]]:
    return sorted((piece.tp, at) for part in slices for piece in part.pieces for at in range(piece.start, piece.end))


def test_small_neighbours_share_a_task() -> None:
    rows = [row(at * 10, at * 10 + 10, 30) for at in range(6)]
    slices = cut_slices([remote(*rows)], slice_bytes=100)
    assert [[(p.start, p.end, len(p.rows)) for p in part.pieces] for part in slices] == [[(0, 30, 3)], [(30, 60, 3)]]


def test_partitions_share_a_task_and_slices_are_in_offset_order() -> None:
    other = TopicPartition("flights", 1)
    slices = cut_slices([remote(row(0, 10, 30)), remote(row(0, 50, 60), tp=other)], slice_bytes=100)
    assert [[p.tp for p in part.pieces] for part in slices] == [[TP, other]]
    slices = cut_slices([remote(row(0, 10, 30)), remote(row(0, 50, 90), tp=other)], slice_bytes=100)
    assert [[p.tp for p in part.pieces] for part in slices] == [[TP], [other]]


def test_only_the_wanted_part_of_a_segment_counts() -> None:
    piece = remote(row(0, 100, 1000), start=90)
    slices = cut_slices([piece], slice_bytes=300)
    assert [(p.start, p.end, p.size_bytes) for part in slices for p in part.pieces] == [(90, 100, 100)]


def test_min_partitions_cuts_what_is_there() -> None:
    pieces = [remote(row(0, 10, 100), row(10, 20, 100))]
    assert len(cut_slices(pieces, slice_bytes=1 << 30, min_partitions=1)) == 1
    assert len(cut_slices(pieces, slice_bytes=1 << 30, min_partitions=8)) >= 8
    assert len(cut_slices(pieces, slice_bytes=1 << 30, min_partitions=1000)) == 20  # one offset each
    assert cut_slices([], slice_bytes=100, min_partitions=4) == []
    assert target_bytes(pieces, 1 << 30, 8) == 25


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 500)), min_size=1, max_size=8),
    st.integers(1, 600),
    st.integers(1, 40),
    st.none() | st.integers(1, 50),
    st.data(),
)
def test_each_offset_is_in_exactly_one_slice_in_order(
    segments: list[tuple[int, int]],
    slice_bytes: int,
    min_partitions: int,
    max_records: int | None,
    data: st.DataObject,
) -> None:
    rows, base = [], 0
    for span, size in segments:
        rows.append(row(base, base + span, size))
        base += span
    start = data.draw(st.integers(0, rows[0].next - 1))
    end = data.draw(st.integers(rows[-1].base + 1, base))
    if start >= end:
        return
    pieces = [remote(*rows, start=start, end=end), PartitionSlice(TP, "", Tier.LOCAL, base, base + 20, 99)]
    slices = cut_slices(pieces, slice_bytes=slice_bytes, min_partitions=min_partitions, max_records=max_records)
    wanted = [*range(start, end), *range(base, base + 20)]
    assert [at for part in slices for piece in part.pieces for at in range(piece.start, piece.end)] == wanted
    assert len(slices) >= min(min_partitions, len(wanted))
    for part in slices:
        assert sum(piece.end - piece.start for piece in part.pieces) <= (max_records or len(wanted))
        for piece in part.pieces:
            if piece.tier is Tier.REMOTE:
                ranges = list(piece.segments_from(piece.start))
                assert [at for s in ranges for at in range(s.start, s.end)] == list(range(piece.start, piece.end))
                assert [s.row for s in ranges] == list(piece.rows)


def test_max_records_bounds_each_task() -> None:
    pieces = [
        remote(*(row(at * 10, at * 10 + 10, 30) for at in range(6))),
        PartitionSlice(TP, "", Tier.LOCAL, 60, 75, 0),
    ]
    slices = cut_slices(pieces, slice_bytes=1 << 30, max_records=25)
    assert [[(p.start, p.end) for p in part.pieces] for part in slices] == [
        [(0, 20)], [(20, 40)], [(40, 60)], [(60, 75)],
    ]  # fmt: skip
    slices = cut_slices(pieces, slice_bytes=1 << 30, max_records=4)
    assert covered(slices) == [(TP, at) for at in range(75)]
    assert max(p.end - p.start for part in slices for p in part.pieces) <= 4
    more = cut_slices(pieces, slice_bytes=1 << 30, max_records=25, min_partitions=6)
    assert (len(more), covered(more)) == (6, covered(slices))


def test_a_query_of_too_many_tasks_is_refused() -> None:
    piece = remote(row(0, 1_000_000_000_000, 1 << 30))
    with pytest.raises(ConfigError, match="more than 100000 tasks"):
        cut_slices([piece], slice_bytes=1 << 30, max_records=1)
    assert len(cut_slices([piece], slice_bytes=1 << 30, max_records=10**12 // 5, max_slices=5)) == 5
    with pytest.raises(ConfigError, match=r"more than 4 tasks .*maxRecordsPerPartition"):
        cut_slices([piece], slice_bytes=1 << 30, max_records=10**12 // 5, max_slices=4)


def test_a_slice_carries_only_the_aborted_transactions_of_its_range() -> None:
    txns = (AbortedTxn(1, 5, 12, 13), AbortedTxn(2, 0, 95, 96), AbortedTxn(1, 30, 39, 40), AbortedTxn(1, 40, 45, 46))
    piece = remote(*(row(at * 10, at * 10 + 10, 100) for at in range(10)))
    slices = cut_slices([replace(piece, aborted=txns)], slice_bytes=100)
    carried = {part.pieces[0].start: set(part.pieces[0].aborted) for part in slices}
    assert carried == {
        start: {txn for txn in txns if txn.first_offset < start + 10 and txn.last_offset >= start}
        for start in range(0, 100, 10)
    }
    assert [len(carried[at]) for at in (0, 10, 20, 30, 40, 90)] == [2, 2, 1, 2, 2, 1]


class CountedRow(Row):
    """A row whose comparisons are calls that a profile sees."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other)  # type: ignore[arg-type]

    __hash__ = Row.__hash__


def calls_of_cutting(segments: int, **limits: int) -> int:
    """Calls, of Python and of C, that it takes to cut a log of ``segments`` with an aborted transaction in each."""
    rows = [CountedRow(*row(at * 10, at * 10 + 10, 100)) for at in range(segments)]
    aborted = tuple(AbortedTxn(1, at * 10, at * 10 + 5, at * 10 + 6) for at in range(segments))
    piece = replace(remote(*rows), aborted=aborted)
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        slices = cut_slices([piece], **limits)
    finally:
        sys.setprofile(None)
    assert sum(len(part.pieces[0].aborted) for part in slices) <= segments + len(slices)
    return calls


@pytest.mark.parametrize(
    "limits",
    [
        lambda segments: {"slice_bytes": 1 << 40},  # all in one slice
        lambda segments: {"slice_bytes": 1000},  # a slice for every ten segments
        lambda segments: {"slice_bytes": 30},  # every segment cut in four
        lambda segments: {"slice_bytes": 1 << 40, "max_records": 3},
        lambda segments: {"slice_bytes": 1 << 40, "min_partitions": segments * 7},
    ],
)
def test_planning_is_linear(limits: Callable[[int], dict[str, int]]) -> None:
    few, many = calls_of_cutting(400, **limits(400)), calls_of_cutting(1600, **limits(1600))
    assert many < 4.4 * few  # heaps add a logarithm
    assert many < 1600 * 300
