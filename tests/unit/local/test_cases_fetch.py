"""Acceptance cases of raw reads, their places and bounds; the number in a name is the case's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.local.bench import RECORD_BYTES, CaseBench, batch
from tests.unit.local.producer_bench import PID, ProducerBench
from tiered.errors import ConfigError, OffsetOutOfRangeError
from tiered.format.batch import read_header
from tiered.local.partition.replica import Fetched, FetchPlace, Isolation, Replica, fetch_segment, locate
from tiered.model import AbortedTxn

PLENTY = 1_000_000


def one_segment(bench: CaseBench, start: int, max_bytes: int, max_position: int | None = PLENTY) -> Fetched | None:
    """A read of the only segment there is."""
    view = bench.writer.view()
    (extent,) = view.extents
    limit = None if max_position is None else min(max_position, extent.size_bytes)
    return fetch_segment(
        bench.files, view, extent, start, max_bytes=max_bytes, max_position=limit, min_one_message=False
    )


def first_offset(found: Fetched | None) -> int:
    assert found is not None
    return read_header(found.data).base_offset


def gaps(directory: Path) -> tuple[CaseBench, list[int]]:
    """Offsets 0 to 49, then every seventh, in segments of ten; one batch each."""
    bench = CaseBench(directory, per_segment=10, index_interval_bytes=1)
    given = [*range(50), *range(50, 300, 7)]
    for offset in given:
        Replica(bench.partition).append_as_follower(batch(offset))
    return bench, given


def test_case_01_a_read_of_an_empty_segment_is_none(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.partition.start_at(40, 0)
    assert one_segment(bench, 40, 300) is None


def test_case_02_a_read_before_the_first_batch_gives_all_of_it(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.partition.start_at(40, 0)
    sent = batch(50, 5, 5, 5, 5)
    Replica(bench.partition).append_as_follower(sent)
    found = one_segment(bench, 41, 300)
    assert found == Fetched(FetchPlace(41, 40, 0), sent)


def test_case_03_a_read_between_batches_gives_the_next_one(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    first, second = batch(50, 5, 5), batch(60, 5, 5)
    Replica(bench.partition).append_as_follower(first)
    Replica(bench.partition).append_as_follower(second)
    assert one_segment(bench, 55, 200) == Fetched(FetchPlace(55, 0, len(first)), second)
    assert one_segment(bench, 62, 200) is None


def test_case_04_without_a_position_to_read_up_to_there_is_a_place_and_no_record(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.partition.start_at(40, 0)
    Replica(bench.partition).append_as_follower(batch(50, 5, 5))
    assert one_segment(bench, 50, 300, max_position=None) == Fetched(FetchPlace(50, 40, 0), b"")


@pytest.mark.parametrize("max_bytes", [1, 100, 100_000])
def test_case_25_a_fetch_begins_at_the_next_record_there_is(tmp_path: Path, max_bytes: int) -> None:
    bench, given = gaps(tmp_path / "log")
    for start in range(given[-1] + 1):
        found = Replica(bench.partition).fetch(start, max_bytes)
        wanted = next(offset for offset in given if offset >= start)
        assert (start, first_offset(found)) == (start, wanted)
        assert found.place.offset == start
        size = max(len(batch(wanted)), max_bytes)
        assert len(batch(wanted)) <= len(found.data) <= size
        assert not found.first_entry_incomplete
    assert Replica(bench.partition).fetch(given[-1] + 1, max_bytes).data == b""


def test_case_26_a_read_of_no_byte_is_empty_one_of_one_byte_is_one_byte(tmp_path: Path) -> None:
    bench, given = gaps(tmp_path / "log")
    for start in range(given[-1]):
        none = Replica(bench.partition).fetch(start, 0, min_one_message=False)
        assert (none.data, none.place.offset) == (b"", start)
        one = Replica(bench.partition).fetch(start, 1, min_one_message=False)
        assert (len(one.data), one.first_entry_incomplete) == (1, True)
        assert one.place == none.place
    whole = Replica(bench.partition).fetch(0, len(batch(0)), min_one_message=False)
    assert (whole.data, whole.first_entry_incomplete) == (batch(0), False)
    with pytest.raises(ConfigError, match="-1 bytes"):
        Replica(bench.partition).fetch(0, -1)


def test_case_27_a_read_ends_at_the_high_watermark(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.fill(10)
    assert bench.partition.high_watermark() == 10
    assert Replica(bench.partition).update_high_watermark(5) == 5
    uncommitted, committed, end = Isolation.HIGH_WATERMARK, Isolation.COMMITTED, Isolation.LOG_END
    for isolation in (uncommitted, committed):
        at_mark = Replica(bench.partition).fetch(5, PLENTY, isolation=isolation)
        assert (at_mark.data, at_mark.place) == (b"", FetchPlace(5, 0, 5 * RECORD_BYTES))
        below = Replica(bench.partition).fetch(4, PLENTY, isolation=isolation)
        assert len(below.data) == RECORD_BYTES
        assert first_offset(below) == 4
        assert Replica(bench.partition).fetch(7, PLENTY, isolation=isolation).place == FetchPlace(
            7, 0, 7 * RECORD_BYTES
        )
    assert Replica(bench.partition).fetch(4, PLENTY, isolation=committed).aborted == ()
    assert Replica(bench.partition).fetch(4, PLENTY, isolation=uncommitted).aborted is None
    assert len(Replica(bench.partition).fetch(0, PLENTY, isolation=end).data) == 10 * RECORD_BYTES
    for offset in (-1, 11):
        with pytest.raises(OffsetOutOfRangeError):
            Replica(bench.partition).fetch(offset, PLENTY, isolation=uncommitted)


def test_a_fetch_never_leaves_its_segment(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=5)
    bench.fill(12)
    assert [len(Replica(bench.partition).fetch(at, PLENTY).data) for at in (0, 4, 5, 11)] == [
        count * RECORD_BYTES for count in (5, 1, 5, 1)
    ]
    Replica(bench.partition).update_high_watermark(7)
    lengths = [
        len(Replica(bench.partition).fetch(at, PLENTY, isolation=Isolation.HIGH_WATERMARK).data) for at in (0, 5, 6, 7)
    ]
    assert lengths == [count * RECORD_BYTES for count in (5, 2, 1, 0)]


def test_a_batch_across_the_high_watermark_is_not_read(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.fill(1)
    bench.append(b"a", b"b", b"c")
    Replica(bench.partition).update_high_watermark(2)
    assert len(Replica(bench.partition).fetch(0, PLENTY, isolation=Isolation.HIGH_WATERMARK).data) == RECORD_BYTES
    assert Replica(bench.partition).fetch(1, PLENTY, isolation=Isolation.HIGH_WATERMARK).data == b""


def test_places_of_offsets_that_are_gone_or_yet_to_come(tmp_path: Path) -> None:
    bench, given = gaps(tmp_path / "log")
    view = bench.writer.view()
    assert locate(bench.files, view, 51) == locate(bench.files, view, 57)._replace(offset=51)
    assert locate(bench.files, view, given[-1] + 1).offset == given[-1] + 1
    empty = CaseBench(tmp_path / "empty")
    assert Replica(empty.partition).fetch(0, PLENTY) == Fetched(FetchPlace(0, 0, 0))


def test_a_committed_fetch_names_the_aborted_transactions_of_its_bytes(tmp_path: Path) -> None:
    bench = ProducerBench(tmp_path / "log", index_interval_bytes=0)
    for round_ in range(2):
        for i in range(3):
            bench.send(3 * round_ + i, txn=True)
        bench.mark(abort=True)
        bench.partition.roll()
    bench.send(6, txn=True)
    txns = (AbortedTxn(PID, 0, 3, 4), AbortedTxn(PID, 4, 7, 8))
    assert bench.lso == 8

    def aborted(start: int, max_bytes: int = PLENTY) -> tuple[AbortedTxn, ...] | None:
        return Replica(bench.partition).fetch(start, max_bytes, isolation=Isolation.COMMITTED).aborted

    assert aborted(0) == txns[:1]
    assert aborted(0, 1) == txns[:1]
    assert aborted(3) == txns[:1]
    assert aborted(4) == aborted(7) == txns[1:]
    assert aborted(8) == ()
