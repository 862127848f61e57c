"""How wanted ranges become tasks, without a session."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiered.model import AbortedTxn, Row, TopicPartition
from tiered.plan.read import Tier
from tiered.spark.slices import Piece, Slice, cut_slices, rows_to_cut, target_bytes

TP = TopicPartition("flights", 0)


def row(base: int, end: int, size: int) -> Row:
    return Row(base, end, 0, 0, size, 0, 0, base, 100, 1, end - base, 0, 0)


def remote(*rows: Row, start: int | None = None, end: int | None = None, tp: TopicPartition = TP) -> Piece:
    start, end = rows[0].base if start is None else start, rows[-1].next if end is None else end
    size = sum(r.size * (min(r.next, end) - max(r.base, start)) // (r.next - r.base) for r in rows)
    return Piece(tp, "00" * 16, Tier.REMOTE, start, end, size, rows)


def covered(slices: list[Slice]) -> list[tuple[TopicPartition, int]]:
    return sorted((piece.tp, at) for part in slices for piece in part.pieces for at in range(piece.start, piece.end))


def test_small_neighbours_share_a_task() -> None:
    rows = [row(at * 10, at * 10 + 10, 30) for at in range(6)]
    slices = cut_slices([remote(*rows)], slice_bytes=100)
    assert [[(p.start, p.end, len(p.rows)) for p in part.pieces] for part in slices] == [[(0, 30, 3)], [(30, 60, 3)]]


def test_partitions_share_a_task_and_the_largest_comes_first() -> None:
    other = TopicPartition("flights", 1)
    slices = cut_slices([remote(row(0, 10, 30)), remote(row(0, 50, 60), tp=other)], slice_bytes=100)
    assert [[p.tp for p in part.pieces] for part in slices] == [[TP, other]]
    slices = cut_slices([remote(row(0, 10, 30)), remote(row(0, 50, 90), tp=other)], slice_bytes=100)
    assert [[p.tp for p in part.pieces] for part in slices] == [[other], [TP]]


def test_a_large_segment_is_cut_behind_indexed_batches() -> None:
    piece = remote(row(0, 100, 1000))
    assert rows_to_cut([piece], 300) == [(piece, piece.rows[0])]
    entries = {(TP, 0): [(at * 10 + 9, at * 100) for at in range(10)]}
    slices = cut_slices([piece], slice_bytes=300, entries=entries)
    assert sorted((p.start, p.end) for part in slices for p in part.pieces) == [(0, 40), (40, 70), (70, 100)]


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


def test_local_ranges_are_cut_by_offset() -> None:
    piece = Piece(TP, "", Tier.LOCAL, 0, 100, 1000)
    slices = cut_slices([piece], slice_bytes=250)
    assert sorted((p.start, p.end) for part in slices for p in part.pieces) == [(0, 25), (25, 50), (50, 75), (75, 100)]


def test_tiers_do_not_share_a_piece() -> None:
    slices = cut_slices([remote(row(0, 10, 10)), Piece(TP, "", Tier.LOCAL, 10, 20, 10)], slice_bytes=100)
    assert [(p.tier, p.start, p.end) for p in slices[0].pieces] == [(Tier.REMOTE, 0, 10), (Tier.LOCAL, 10, 20)]


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 500)), min_size=1, max_size=8),
    st.integers(1, 600),
    st.integers(1, 40),
    st.booleans(),
    st.data(),
)
def test_each_offset_is_in_exactly_one_slice(
    segments: list[tuple[int, int]], slice_bytes: int, min_partitions: int, indexed: bool, data: st.DataObject
) -> None:
    rows, base = [], 0
    for span, size in segments:
        rows.append(row(base, base + span, size))
        base += span
    start = data.draw(st.integers(0, rows[0].next - 1))
    end = data.draw(st.integers(rows[-1].base + 1, base))
    entries = {}
    if indexed:
        entries = {(TP, r.base): [(at, (at - r.base) * 7) for at in range(r.base + 2, r.next, 3)] for r in rows}
    pieces = [remote(*rows, start=start, end=end), Piece(TP, "", Tier.LOCAL, base, base + 20, 99)]
    if start >= end:
        return
    slices = cut_slices(pieces, slice_bytes=slice_bytes, min_partitions=min_partitions, entries=entries)
    assert covered(slices) == [(TP, at) for at in [*range(start, end), *range(base, base + 20)]]
    for part in slices:
        for piece in part.pieces:
            if piece.tier is Tier.REMOTE:
                segments_of = list(piece.segments_from(piece.start))
                assert [s.start for s in segments_of][:1] == [piece.start]
                assert [s.end for s in segments_of][-1:] == [piece.end]


def test_what_read_committed_hides() -> None:
    piece = Piece(TP, "", Tier.REMOTE, 0, 100, 0, aborted=(AbortedTxn(7, 10, 30, 31),))
    assert [piece.hides(7, at) for at in (9, 10, 29, 30, 31)] == [False, True, True, False, False]
    assert not piece.hides(8, 15)
