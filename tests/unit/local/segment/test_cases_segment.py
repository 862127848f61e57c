"""Acceptance cases of one segment and its indexes; the number in a name is the case's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.given import append_given
from tests.unit.local.bench import CaseBench, batch
from tiered.config import TopicConfig
from tiered.format.batch import encode_batch
from tiered.format.segment_indexes import decode_txns, encode_txns
from tiered.local.disk.files import PosixFiles
from tiered.local.segment.active import ActiveSegment, FoundSegment
from tiered.model import AbortedTxn, EpochEntry, NewRecord
from tiered.plan.roll import MAX_RELATIVE_OFFSET, RollReason
from tiered.testing.clock import START_MS


def test_case_05_an_empty_segment_that_is_cut_can_be_filled(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", segment_ms=1000, segment_index_bytes=1000, index_interval_bytes=0)
    bench.partition.start_at(57, 0)
    bench.reopen()
    bench.partition.truncate_to(57)
    bench.clock.advance(1_000_000)
    active = bench.partition.segments.active
    now_ms = bench.clock.now_ms()
    assert active.roll_reason(100, -1, 58, now_ms) is None
    assert active.roll_reason(100, -1, 2**31 + 199, now_ms) is RollReason.OFFSET_OVERFLOW
    for _ in range(3):
        bench.append(b"v", timestamp=5)
    assert (bench.bases, bench.offsets()) == ([57], [57, 58, 59])
    sizes = [(bench.folder / f"{57:020d}{suffix}").stat().st_size for suffix in (".index", ".timeindex")]
    assert sizes == [1000 // 8 * 8, 1000 // 12 * 12]


def test_case_05_trimmed_index_files_of_no_length_are_not_full(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", segment_ms=1000, index_interval_bytes=0)
    bench.partition.start_at(57, 0)
    bench.log.close()
    sizes = [(bench.folder / f"{57:020d}{suffix}").stat().st_size for suffix in (".index", ".timeindex")]
    assert sizes == [0, 0]
    bench.open()
    bench.partition.truncate_to(57)
    active = bench.partition.segments.active
    bench.clock.advance(3600)
    assert active.roll_reason(100, bench.clock.now_ms(), 58, bench.clock.now_ms()) is None
    bench.fill(5)
    assert bench.bases == [57]


def test_case_05_a_segment_that_is_cut_to_nothing_begins_afresh(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", segment_ms=1000)
    bench.fill(2, timestamp=5)
    bench.clock.advance(100)
    bench.partition.truncate_to(0)
    active = bench.partition.segments.active
    assert (active.size_bytes, active.first_timestamp, active.max_timestamp) == (0, -1, -1)
    assert active.created_ms == bench.clock.now_ms()
    assert bench.append(b"v") == 0


def test_case_06_the_time_index_is_cut_and_the_largest_timestamp_found_again(tmp_path: Path) -> None:
    size = len(batch(40, 400))
    bench = CaseBench(tmp_path / "log", index_interval_bytes=2 * size - 1, segment_index_bytes=1000)
    bench.partition.start_at(40, 0)
    for offset in range(40, 70):
        append_given(bench.partition, batch(offset, offset * 10))
    assert bench.partition.segments.active.indexes.time_count == 14
    bench.partition.truncate_to(41)
    active = bench.partition.segments.active
    assert (active.indexes.time_count, active.max_timestamp, bench.partition.end_offset) == (0, 400, 41)


def test_case_07_the_next_offset_of_a_segment(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.partition.start_at(50, 0)
    bench.reopen()
    assert bench.partition.positions().end_offset == 50  # empty: its base
    append_given(bench.partition, batch(50, 5, 5, 5))
    bench.reopen()
    assert bench.partition.positions().end_offset == 53
    bench.kill()
    bench.open()
    assert bench.partition.positions().end_offset == 53


def test_case_08_renaming_makes_no_index_files(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=2)
    bench.fill(2)
    bench.partition.roll()
    for suffix in (".index", ".timeindex", ".seal"):
        (bench.folder / f"{0:020d}{suffix}").unlink()
    bench.partition.delete_local_before(2)
    assert bench.names(".deleted") == [f"{0:020d}.log.deleted"]


@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_time_index_behind_a_batch_without_timestamp_is_rebuilt(tmp_path: Path, clean: bool) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.partition.append_batches(encode_batch([NewRecord(b"v", timestamp=-1)]))
    bench.append(b"v", timestamp=10)
    bench.partition.roll()
    bench.partition.flush()
    bench.log.close() if clean else bench.kill()
    (bench.folder / f"{0:020d}.seal").unlink()
    (bench.folder / f"{0:020d}.timeindex").write_bytes(b"")
    bench.open()
    assert bench.partition.offset_for_time(10) == (1, 10)


def test_case_11_epochs_are_learned_from_the_batches(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.partition.start_at(104, 0)
    for base, epoch in ((104, 0), (106, 1), (108, 1), (110, 2)):
        append_given(bench.partition, batch(base, 5, 5, epoch=epoch))
    bench.kill()
    (bench.folder / "leader-epoch-checkpoint").unlink()
    bench.open()
    assert bench.partition.leader_epochs() == (EpochEntry(0, 104), EpochEntry(1, 106), EpochEntry(2, 110))


def test_case_12_what_an_index_entry_can_hold(tmp_path: Path) -> None:
    base = 7
    segment = ActiveSegment(
        PosixFiles(), tmp_path, FoundSegment(base, base, 0), config=TopicConfig(), created_ms=START_MS
    )
    assert segment.roll_reason(10, 5, base + MAX_RELATIVE_OFFSET, START_MS) is None
    for last_offset in (base + MAX_RELATIVE_OFFSET + 1, base - 1):
        assert segment.roll_reason(10, 5, last_offset, START_MS) is RollReason.OFFSET_OVERFLOW
    segment.append(b"bytes", (5, base + 2**31 - 1, 1, 5, 5), 0, 0, START_MS)
    assert segment.size_bytes == 5
    segment.close()


TXNS = [AbortedTxn(0, 0, 10, 11), AbortedTxn(1, 5, 15, 13), AbortedTxn(2, 18, 35, 25), AbortedTxn(3, 32, 50, 40)]


@pytest.mark.parametrize(("offset", "left"), [(51, 4), (50, 3), (0, 0)])
def test_case_18_the_file_is_cut_with_its_log(tmp_path: Path, offset: int, left: int) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.fill(60)
    path = bench.folder / f"{0:020d}.txnindex"
    path.write_bytes(encode_txns(TXNS))
    bench.partition.truncate_to(offset)
    assert decode_txns(path.read_bytes()) == TXNS[:left]
    assert bench.partition.aborted_txns(0, 60) == TXNS[:left]


def test_case_19_no_transaction_index_is_made_by_looking(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=5)
    bench.fill(12)
    assert bench.partition.aborted_txns(0, 12) == []
    bench.partition.truncate_to(3)
    assert bench.names(".txnindex") == []
