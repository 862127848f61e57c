"""Acceptance cases of retention, log start and truncation; the number in a name is the case's own."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.faulty_files import on_nth
from tests.support.given import move_start, start_over
from tests.unit.local.bench import RECORD_BYTES, CaseBench
from tests.unit.local.opening import run_task
from tiered.errors import LocalIOError, LocalPermissionError, OffsetOutOfRangeError
from tiered.testing.clock import START_MS


def test_case_37_an_expired_log_is_one_empty_segment_at_its_end(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=5, retention_ms=10_000)
    bench.fill(15, timestamp=10)
    bench.retain()
    assert bench.bases == [15]
    assert (bench.partition.positions().start_offset, bench.partition.positions().end_offset) == (15, 15)
    assert bench.append(b"v") == 15


def test_case_37_the_active_segment_alone_is_rolled_when_it_has_expired(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", retention_ms=10_000)
    bench.fill(3)
    bench.clock.advance(10)
    bench.retain()
    assert bench.bases == [0]  # not older than the limit: strictly
    bench.clock.advance(0.001)
    bench.retain()
    assert bench.bases == [3]
    bench.retain()
    assert bench.bases == [3]  # an empty active segment never goes


def test_case_38_timestamps_from_the_future_keep_their_segments(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=5, retention_ms=10_000)
    bench.fill(15, timestamp=START_MS + 100_000)
    bench.retain()
    assert bench.bases == [0, 5, 10]
    bench.clock.advance(10)
    bench.retain()
    assert (bench.bases, bench.offsets()) == ([0, 5, 10], list(range(15)))
    bench.clock.advance(100.001)
    bench.retain()
    assert bench.bases == [15]


def test_case_39_epochs_follow_what_goes(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=5, retention_ms=1000)
    bench.partition.start_at(0, 0)
    bench.fill(40, timestamp=10)
    start_over(bench.partition, 0)
    bench.partition.epochs.clear()
    bench.fill(40, timestamp=10)
    bench.partition.epochs.clear()
    bench.partition.epochs.assign(0, 40)
    bench.fill(50, timestamp=10)
    bench.partition.new_leader_epoch(1)
    bench.fill(10, timestamp=10)
    assert (len(bench.bases), bench.epochs) == (20, [(0, 40), (1, 90)])
    bench.retain()
    assert (bench.bases, bench.epochs) == ([100], [(1, 100)])


@pytest.mark.parametrize(("offset", "segments"), [(1, 3), (6, 2), (15, 1)])
def test_case_40_deleted_records_move_the_start_and_take_whole_segments(
    tmp_path: Path, offset: int, segments: int
) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=5)
    bench.fill(15)
    assert move_start(bench.partition, offset) == offset
    bench.retain()
    assert len(bench.bases) == segments
    positions = bench.partition.positions()
    assert (positions.start_offset, positions.local_start_offset) == (offset, offset)
    with pytest.raises(OffsetOutOfRangeError):
        bench.partition.read_batches(offset - 1)
    assert bench.offsets() == list(range(offset, 15))
    bench.reopen()
    assert bench.partition.positions().start_offset == offset


def test_case_41_epochs_after_the_start_moved(tmp_path: Path) -> None:
    for starts, expected in ((((1, 5), (2, 10)), [(1, 5), (2, 10)]), (((1, 7), (2, 10)), [(0, 5), (1, 7), (2, 10)])):
        bench = CaseBench(tmp_path / f"log{starts[0][1]}", per_segment=5)
        for epoch, start in starts:
            bench.fill(start - bench.partition.positions().end_offset)
            bench.partition.new_leader_epoch(epoch)
        bench.fill(5)
        assert bench.partition.delete_local_before(5) == [0]
        assert bench.epochs == expected


def test_case_42_epochs_after_truncation(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=3)
    bench.fill(10)
    bench.partition.new_leader_epoch(1)
    bench.fill(6)
    bench.partition.new_leader_epoch(2)
    bench.fill(4)
    for offset, entries in ((20, 3), (11, 2), (10, 1), (0, 0)):
        bench.partition.truncate_to(offset)
        assert (offset, len(bench.epochs)) == (offset, entries)
        assert bench.partition.positions().end_offset == offset
        assert bench.offsets(0) == list(range(offset))
    bench.fill(1)
    assert bench.epochs == [(2, 0)]  # whoever leads now goes on under its epoch


def test_case_43_snapshots_go_with_their_segments(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=1, retention_ms=1000, file_delete_delay_ms=1000)
    bench.fill(3, timestamp=10)
    assert bench.names(".snapshot") == [f"{offset:020d}.snapshot" for offset in (1, 2)]
    bench.retain()
    assert bench.names(".snapshot") == [f"{3:020d}.snapshot"]
    assert bench.names(".snapshot.deleted") == [f"{offset:020d}.snapshot.deleted" for offset in (1, 2)]
    assert bench.partition.positions().start_offset == 3
    bench.clock.advance(1)
    bench.log.tick()
    assert bench.names(".deleted") == []


def test_case_44_files_are_unlinked_after_the_delay(tmp_path: Path) -> None:
    """An unlink that is refused is told and tried again; a disk that fails at it takes the directory offline."""
    bench = CaseBench(tmp_path / "log", per_segment=5, retention_ms=1000, file_delete_delay_ms=1000)
    bench.fill(15, timestamp=10)
    reading = bench.partition.read_batches(0)
    next(reading)
    bench.retain()
    assert bench.names(".log") == [f"{15:020d}.log"]
    assert len(bench.names(".log.deleted")) == 3
    assert sum(1 for _ in reading) == 14  # who reads already, reads on
    bench.clock.advance(0.999)
    bench.log.tick()
    assert len(bench.names(".log.deleted")) == 3
    bench.clock.advance(0.001)
    bench.files.fail = on_nth(1, "unlink", errno.EACCES)
    with pytest.raises(LocalPermissionError):
        bench.log.tick()
    assert len(bench.names(".deleted")) == 1
    bench.log.tick()
    assert bench.names(".deleted") == []
    assert bench.append(b"v") == 15
    bench.partition.roll()
    bench.clock.advance(2)
    run_task(bench.log.tasks, "retention")
    bench.clock.advance(1)
    bench.files.fail = on_nth(1, "unlink", errno.EIO)
    with pytest.raises(LocalIOError):
        bench.log.tick()
    with pytest.raises(LocalIOError, match="offline"):
        bench.append(b"v")


def test_case_45_a_tiered_log_keeps_what_is_not_remote(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=1, retention_bytes=1, local_retention_bytes=-2)
    bench.fill(6)
    bench.partition.flush()
    bench.partition.set_uploaded(0, 1, start_offset=0)
    bench.retain()
    assert len(bench.bases) == 6
    bench.partition.set_uploaded(2, 1, start_offset=0)
    bench.retain()
    positions = bench.partition.positions()
    assert (len(bench.bases), positions.start_offset, positions.local_start_offset) == (4, 0, 2)


def test_case_45_an_expired_active_segment_of_a_tiered_log_is_rolled_and_kept(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", local_retention_ms=1000)
    bench.fill(2, timestamp=10)
    bench.partition.set_uploaded(0, 1)
    bench.retain()
    assert bench.bases == [0, 2]
    assert bench.offsets() == [0, 1]


def test_case_46_without_a_remote_tier_local_retention_is_ignored(tmp_path: Path) -> None:
    """There is no switch for remote copies here: a log that is not tiered is what the case is about."""
    bench = CaseBench(
        tmp_path / "log", per_segment=1, retention_bytes=5 * 69, local_retention_bytes=1, retention_ms=10_000
    )
    bench.fill(6)
    move_start(bench.partition, 2)
    bench.fill(3)
    bench.retain()
    positions = bench.partition.positions()
    assert len(bench.bases) == 5
    assert (positions.start_offset, positions.local_start_offset) == (4, 4)
    bench.clock.advance(11)
    bench.retain()
    positions = bench.partition.positions()
    assert (bench.bases, positions.start_offset, positions.local_start_offset) == ([9], 9, 9)


def filled_up(bench: CaseBench) -> None:
    """From now on the disk takes no byte more."""
    bench.files.fail = lambda operation, path: errno.ENOSPC if operation == "write" else 0


def test_a_full_disk_keeps_no_segment_that_may_go(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=5, retention_bytes=5 * RECORD_BYTES, file_delete_delay_ms=0)
    bench.fill(15)
    filled_up(bench)
    bench.retain()
    assert (bench.bases, bench.partition.positions().start_offset) == ([10], 10)
    assert bench.partition.maintenance.empty_trash(START_MS) is not None
    assert (bench.names(".log"), bench.names(".deleted")) == ([f"{10:020d}.log"], [])
    bench.files.fail = None
    assert bench.append(b"v") == 15
    bench.reopen()
    assert (bench.offsets(), bench.epochs) == ([10, 11, 12, 13, 14, 15], [(0, 10)])


def test_a_full_disk_that_cannot_seal_the_expired_segment_keeps_no_other(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=5, retention_ms=1000)
    bench.fill(13, timestamp=10)
    filled_up(bench)
    bench.retain()
    assert (bench.bases, bench.offsets()) == ([10], [10, 11, 12])
    bench.files.fail = None
    bench.retain()
    assert (bench.bases, bench.append(b"v")) == ([13], 13)


def test_a_deletion_that_fails_takes_the_partition_offline(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=5, retention_ms=1000)
    bench.fill(15, timestamp=10)
    bench.partition.flush()
    bench.files.fail = on_nth(4, "rename", 5)
    with pytest.raises(LocalIOError):
        bench.partition.delete_local_before(10)
    bench.files.fail = None
    with pytest.raises(LocalIOError, match="offline"):
        bench.append(b"v")
    with pytest.raises(LocalIOError):
        bench.log.close()
    bench.open()
    assert bench.partition.positions().end_offset == 15
