"""``preallocate``: the active ``.log`` at its full length; trimmed at the roll and the close; a crash leaves zeros."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from tests.support.faulty_files import FaultyFiles, PowerCut, on_nth
from tests.support.given import start_over
from tests.unit.local.bench import RECORD_BYTES, CaseBench
from tests.unit.local.counting import CountingFiles
from tests.unit.local.several import SMALL, TP, opened, values
from tiered.errors import DiskFullError
from tiered.format.batch import decode_records
from tiered.format.local_names import log_name
from tiered.local.directory.read_only_log import LogView
from tiered.model import NewRecord
from tiered.testing.clock import START_MS

FULL = 5 * RECORD_BYTES


def sizes(bench: CaseBench) -> list[int]:
    return [(bench.folder / log_name(base)).stat().st_size for base in bench.bases]


@pytest.fixture
def bench(tmp_path: Path) -> CaseBench:
    """Segments of five batches."""
    bench = CaseBench(tmp_path / "log", per_segment=5)
    bench.log.alter_topic("t", {"preallocate": True})
    bench.fill(1)
    bench.partition.roll()
    return bench


def test_the_active_file_has_its_full_length_and_sealed_ones_their_own(bench: CaseBench) -> None:
    assert (bench.bases, sizes(bench)) == ([0, 1], [RECORD_BYTES, FULL])
    bench.fill(3)
    assert sizes(bench) == [RECORD_BYTES, FULL]
    assert bench.partition.segments.active.size_bytes == 3 * RECORD_BYTES
    bench.fill(3)
    assert (bench.bases, sizes(bench)) == ([0, 1, 6], [RECORD_BYTES, FULL, FULL])
    assert bench.offsets() == list(range(7))
    bench.partition.roll()
    assert sizes(bench) == [RECORD_BYTES, FULL, RECORD_BYTES, FULL]
    assert [s.descriptor.size_bytes for s in bench.partition.sealed_segments()] == [RECORD_BYTES, FULL, RECORD_BYTES]


def test_a_clean_close_trims_and_an_open_one_grows_as_it_is(bench: CaseBench) -> None:
    bench.fill(2)
    bench.reopen()
    assert sizes(bench) == [RECORD_BYTES, 2 * RECORD_BYTES]
    bench.fill(1)
    assert sizes(bench) == [RECORD_BYTES, 3 * RECORD_BYTES]
    assert bench.offsets() == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_crash_leaves_zeros_that_recovery_cuts(bench: CaseBench, count: int) -> None:
    bench.fill(count)
    bench.kill()
    bench.open()
    assert sizes(bench) == [RECORD_BYTES, count * RECORD_BYTES]
    assert bench.offsets() == list(range(count + 1))
    assert bench.names(".log") == [log_name(0), log_name(1)]  # zeros are not kept aside
    assert bench.append(b"v") == count + 1


def test_a_torn_batch_before_the_zeros_is_kept_aside(bench: CaseBench) -> None:
    bench.fill(2)
    bench.kill()
    path = bench.folder / log_name(1)
    data = path.read_bytes()
    path.write_bytes(data[: 2 * RECORD_BYTES - 3] + bytes(FULL - 2 * RECORD_BYTES + 3))
    bench.open()
    assert bench.offsets() == [0, 1]
    assert len([name for name in bench.names("") if ".log.torn-" in name]) == 1


def test_a_trim_that_was_lost_takes_no_later_segment_away(bench: CaseBench) -> None:
    bench.fill(7)
    bench.kill()
    path = bench.folder / log_name(0)
    path.write_bytes(path.read_bytes() + bytes(4 * RECORD_BYTES))
    bench.log.directory.joinpath("recovery-point-offset-checkpoint").write_text("0\n1\nt 0 0\n")
    bench.open()
    assert bench.offsets() == list(range(8))
    assert sizes(bench)[:2] == [RECORD_BYTES, FULL]


def test_truncation_trims_and_a_fresh_start_is_preallocated(bench: CaseBench) -> None:
    bench.fill(4)
    bench.partition.truncate_to(3)
    assert sizes(bench) == [RECORD_BYTES, 2 * RECORD_BYTES]
    assert bench.append(b"v") == 3
    start_over(bench.partition, 50)
    assert (bench.bases, sizes(bench)) == ([50], [FULL])
    assert bench.append(b"v") == 50


def test_a_full_disk_cuts_the_file_back_and_the_append_is_repeated(bench: CaseBench) -> None:
    bench.fill(1)
    bench.files.fail = lambda operation, _: errno.ENOSPC if operation == "write" else 0
    with pytest.raises(DiskFullError):
        bench.fill(1)
    bench.files.fail = None
    bench.fill(3)
    assert bench.offsets() == list(range(5))


@pytest.mark.parametrize("nth", range(1, 26))
def test_no_flushed_record_is_missing_after_a_power_cut(tmp_path: Path, nth: int) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=3, preallocate=True)
    bench.fill(4)
    bench.partition.flush()
    safe = bench.partition.positions().flushed_offset
    bench.files.fail = on_nth(nth, "*", PowerCut)
    try:
        for _ in range(4):
            bench.fill(2)
            bench.partition.flush()
            safe = bench.partition.positions().flushed_offset
    except PowerCut:
        pass
    bench.files.cut_power(random.Random(nth))
    bench.kill()
    bench.open()
    found = bench.offsets()
    assert found == list(range(len(found)))
    assert len(found) >= safe
    assert bench.append(b"v") == len(found)


def test_what_is_appended_while_a_partition_moves_moves_along(tmp_path: Path) -> None:
    files = FaultyFiles()
    left = [b"2", b"3"]

    def append(operation: str, path: Path) -> int:
        if operation == "sync" and path.parent.name.endswith("-future") and path.suffix == ".log" and left:
            logs.partition(TP).append([NewRecord(left.pop(0))])
        return 0

    with opened(tmp_path, files=files) as logs:
        logs.create_topic("t", 1, SMALL.replace({"preallocate": True, "segment.bytes": 3000}))
        logs.partition(TP).append([NewRecord(b"1")])
        files.fail = append
        (target,) = [path for path, log in logs.logs().items() if TP not in log.partitions()]
        logs.move(TP, target)
        files.fail = None
        assert values(logs) == [b"1", b"2", b"3"]


def test_a_reader_beside_the_writer_stops_at_the_zeros(bench: CaseBench) -> None:
    with LogView.open(bench.directory, clock=bench.clock) as log:
        reader = log.partition(TP)
        for end in range(2, 13):
            bench.fill(1)
            assert reader.positions().end_offset == end
            found = [r.offset for batch in reader.read_batches(0) for r in decode_records(batch)]
            assert found == list(range(end))
            assert reader.offset_for_time(START_MS + 1) is None
        assert [s.size_bytes for s in reader.sealed_segments()] == [RECORD_BYTES, FULL, FULL]


def test_what_was_never_written_is_not_read(tmp_path: Path) -> None:
    length = 256 * 1024 * 1024
    bench = CaseBench(tmp_path / "log", segment_bytes=length, preallocate=True)
    bench.fill(3)
    assert sizes(bench) == [length]
    bench.kill()
    counting = CountingFiles()
    bench.files = counting
    bench.open()
    assert (bench.offsets(), sizes(bench)) == ([0, 1, 2], [3 * RECORD_BYTES])
    assert counting.log_bytes < 4 * 1024 * 1024
