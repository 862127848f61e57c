"""An unclean open reads what follows the recovery points, however much lies below them."""

from __future__ import annotations

from pathlib import Path

from tests.unit.local.bench import CaseBench
from tests.unit.local.counting import CountingFiles
from tiered.format.local_names import log_name
from tiered.local.disk.directory_files import CLEAN_SHUTDOWN_NAME
from tiered.model import NewRecord

VALUE = b"v" * 1000
BATCH_BYTES = 1068
INTERVAL_BYTES = 4096


def crashed(path: Path, *, below: int, behind: int) -> CaseBench:
    """``below`` batches under the recovery point, ``behind`` above it; then the process is gone."""
    bench = CaseBench(path, index_interval_bytes=INTERVAL_BYTES, segment_bytes=1 << 26, segment_index_bytes=1 << 16)
    fill(bench, below)
    bench.partition.flush()
    bench.log.checkpoint()
    fill(bench, behind)
    bench.kill()
    return bench


def fill(bench: CaseBench, count: int) -> None:
    """Batches of one record, a millisecond apart: offset entries are believed up to the last time entry."""
    for _ in range(count):
        bench.clock.advance(0.001)
        bench.partition.append([NewRecord(VALUE)])


def reopened(bench: CaseBench) -> CountingFiles:
    files = CountingFiles()
    bench.files = files
    bench.open()
    return files


def test_the_bytes_read_do_not_depend_on_what_lies_below(tmp_path: Path) -> None:
    read = {}
    for below in (100, 1000):
        bench = crashed(tmp_path / str(below), below=below, behind=20)
        files = reopened(bench)
        read[below] = files.log_bytes
        assert bench.partition.positions().end_offset == below + 20
        assert bench.append(b"next") == below + 20
        assert len(bench.offsets()) == below + 21
    assert max(read.values()) <= 20 * BATCH_BYTES + 3 * INTERVAL_BYTES


def test_the_bytes_read_grow_with_what_follows(tmp_path: Path) -> None:
    few = reopened(crashed(tmp_path / "few", below=200, behind=10)).log_bytes
    many = reopened(crashed(tmp_path / "many", below=200, behind=110)).log_bytes
    assert abs(many - few - 100 * BATCH_BYTES) <= INTERVAL_BYTES + BATCH_BYTES


def test_nothing_is_fsynced_where_nothing_follows(tmp_path: Path) -> None:
    bench = crashed(tmp_path, below=100, behind=0)
    files = reopened(bench)
    assert files.log_bytes <= 3 * INTERVAL_BYTES
    assert [path.name for operation, path in files.effects if operation == "sync" and path.parent == bench.folder] == []
    assert bench.partition.positions().flushed_offset == 100


def test_the_clean_mark_is_gone_for_good_before_anything_is_read(tmp_path: Path) -> None:
    """If it came back after a power cut, what was written since would be taken for a clean end."""
    bench = CaseBench(tmp_path)
    bench.fill(3)
    bench.log.close()
    mark = bench.directory / CLEAN_SHUTDOWN_NAME
    assert mark.exists()
    effects = reopened(bench).effects
    gone = effects.index(("unlink", mark))
    assert effects[gone + 1] == ("sync_directory", bench.directory)
    assert [path for _, path in effects[:gone] if bench.folder in (path, path.parent)] == []


def test_an_index_that_lies_is_not_believed(tmp_path: Path) -> None:
    for name, damage in {
        "zeros": lambda data: bytes(len(data)),
        "shifted": lambda data: data[:4] + b"\x00\x00\x00\x01" + data[8:],
        "behind": lambda data: data[-8:] + data[8:],
    }.items():
        bench = crashed(tmp_path / name, below=60, behind=5)
        path = (bench.folder / log_name(0)).with_suffix(".index")
        data = path.read_bytes()
        path.write_bytes(damage(data[:96]))
        bench.files = CountingFiles()
        bench.open()
        assert bench.partition.positions().end_offset == 65
        assert bench.offsets() == list(range(65))
        assert bench.offsets(33) == list(range(33, 65))


def test_offset_entries_without_their_times_are_not_believed(tmp_path: Path) -> None:
    bench = crashed(tmp_path, below=60, behind=5)
    times = (bench.folder / log_name(0)).with_suffix(".timeindex")
    data = times.read_bytes()
    times.write_bytes(data[:24] + bytes(len(data) - 24))
    reopened(bench)
    bench.partition.roll()
    for record in bench.records(0):
        assert bench.partition.offset_for_time(record.timestamp) == (record.offset, record.timestamp)


def test_a_hole_in_the_time_index_of_a_killed_writer_is_filled(tmp_path: Path) -> None:
    bench = crashed(tmp_path, below=60, behind=0)
    path = (bench.folder / log_name(0)).with_suffix(".timeindex")
    data = path.read_bytes()
    path.write_bytes(bytes(12) + data[12:])
    reopened(bench)
    bench.partition.roll()
    records = {record.offset: record.timestamp for record in bench.records(0)}
    entries = bench.times(0).entries
    assert entries == [(records[offset], offset) for _, offset in entries]
