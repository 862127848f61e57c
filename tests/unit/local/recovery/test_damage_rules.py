"""What a sealed segment must be to be measured, and to leave the disk; what a note and a lost end tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.local.bench import RECORD_BYTES, TP, CaseBench, batch
from tiered.errors import CorruptionError, OffsetOutOfRangeError
from tiered.format.batch_scanner import Offsets
from tiered.format.local_names import log_name
from tiered.format.segment_builder import SegmentStats
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.partition_files import SPARSE_NAME
from tiered.local.segment.scan import LogFile
from tiered.local.segment.side_files import measure, read_note, write_note


@pytest.mark.parametrize("extra", [1, 17, 18, 60], ids=str)
def test_a_segment_with_a_partial_tail_is_not_measured(tmp_path: Path, extra: int) -> None:
    path = tmp_path / log_name(0)
    whole = batch(0) + batch(1)
    path.write_bytes(whole + batch(2)[:extra])
    with LogFile(PosixFiles(), path) as log:
        assert measure(log, len(whole), Offsets(0, 3)).records == 2
        with pytest.raises(CorruptionError) as error:
            measure(log, len(whole) + extra, Offsets(0, 3))
    assert (error.value.position, error.value.offset) == (len(whole), 2)
    assert str(path) in error.value.message


@pytest.mark.parametrize(("offsets", "next_offset"), [((0, 9), 9), ((0, 2, 1), 5), ((3,), 4)])
def test_a_segment_with_a_batch_outside_its_offsets_is_not_measured(
    tmp_path: Path, offsets: tuple[int, ...], next_offset: int
) -> None:
    path = tmp_path / log_name(4)
    data = b"".join(batch(offset) for offset in offsets)
    path.write_bytes(data)
    base = 4 if offsets == (3,) else 0
    with LogFile(PosixFiles(), path) as log, pytest.raises(CorruptionError, match="expected"):
        measure(log, len(data), Offsets(base, next_offset))


def test_a_note_that_rotted_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "note"
    stats = SegmentStats(100, 7, 3, 50, 60, 1, 40)
    write_note(PosixFiles(), path, stats)
    assert read_note(PosixFiles(), path, 100) == stats
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"min_timestamp": 50', b'"min_timestamp": 58'))
    assert read_note(PosixFiles(), path, 100) is None


def test_a_sealed_segment_with_gaps_that_lost_its_end_is_neither_measured_nor_uploaded(tmp_path: Path) -> None:
    """Whole batches at its end are gone; where offsets may be left out, only its note and its indexes tell."""
    bench = CaseBench(tmp_path / "log", per_segment=12, index_interval_bytes=100)
    bench.fill(13)
    bench.log.close()
    (bench.folder / SPARSE_NAME).write_bytes(b"")
    path = bench.folder / log_name(0)
    path.write_bytes(path.read_bytes()[: 9 * RECORD_BYTES])
    bench.open()
    for ask in (lambda segment: segment.descriptor, lambda segment: segment.indexes()):
        with pytest.raises(CorruptionError, match="it was longer when it was sealed") as error:
            ask(bench.partition.sealed_segments()[0])
        assert (error.value.path_or_key, error.value.position) == (str(path), 9 * RECORD_BYTES)


def test_a_cut_lowers_the_recovery_point_first(tmp_path: Path) -> None:
    """A crash in the middle of a cut is no loss: the log opens and ends where it was cut, or where it ended."""
    bench = CaseBench(tmp_path / "log")
    bench.fill(6)
    bench.partition.flush()
    bench.log.checkpoint()
    noted: list[str] = []

    def look(name: str, path: Path) -> int:
        if name == "truncate" and path.name == log_name(0):
            noted.append((bench.directory / "recovery-point-offset-checkpoint").read_text().split()[-1])
        return 0

    bench.files.fail = look
    bench.partition.truncate_to(3)
    assert noted[0] == "3"


def test_a_log_that_ends_below_its_recovery_point_says_so(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.fill(6)
    bench.partition.flush()
    bench.log.checkpoint()
    bench.kill()
    path = bench.folder / log_name(0)
    path.write_bytes(path.read_bytes()[: 4 * len(path.read_bytes()) // 6])
    bench.open()
    assert bench.partition.positions().end_offset == 6
    assert bench.append(b"next") == 6
    with pytest.raises(CorruptionError, match="4 to 6"):
        bench.offsets()
    assert bench.offsets(6) == [6]
    with pytest.raises(OffsetOutOfRangeError):
        bench.offsets(8)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_zeros_at_the_end_of_a_log_are_cut_and_not_kept_aside(tmp_path: Path, count: int) -> None:
    """A broker that preallocates, or a crash, leaves them there."""
    bench = CaseBench(tmp_path / "log")
    bench.fill(count)
    bench.kill()
    path = bench.folder / log_name(0)
    path.write_bytes(path.read_bytes() + bytes(5 * RECORD_BYTES))
    with LogView.open(bench.directory, clock=bench.clock) as log:
        assert log.partition(TP).positions().end_offset == count
    bench.open()
    assert (path.stat().st_size, bench.offsets()) == (count * RECORD_BYTES, list(range(count)))
    assert bench.names(".log") == [log_name(0)]
    assert bench.append(b"v") == count


def test_zeros_behind_a_torn_batch_are_kept_aside_with_it(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.fill(2)
    bench.kill()
    path = bench.folder / log_name(0)
    path.write_bytes(path.read_bytes()[:-3] + bytes(2 * RECORD_BYTES))
    bench.open()
    assert bench.offsets() == [0]
    assert len([name for name in bench.names("") if ".log.torn-" in name]) == 1


def test_zeros_at_the_end_of_a_sealed_segment_take_no_later_segment_away(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=2)
    bench.fill(7)
    bench.kill()
    path = bench.folder / log_name(2)
    path.write_bytes(path.read_bytes() + bytes(4 * RECORD_BYTES))
    bench.log.directory.joinpath("recovery-point-offset-checkpoint").write_text("0\n1\nt 0 0\n")
    bench.open()
    assert bench.offsets() == list(range(7))
    assert path.stat().st_size == 2 * RECORD_BYTES
