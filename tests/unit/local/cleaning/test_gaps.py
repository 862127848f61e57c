"""Offsets without records at the end of a log, what an older leader leaves behind, and indexes that lie about time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.given import move_start, start_over
from tests.unit.local.bench import TP, CaseBench
from tiered.format.batch import decode_records
from tiered.local.directory.read_only_log import LogView


@pytest.mark.parametrize("ticks", [False, True])
@pytest.mark.parametrize("anew", [False, True])
def test_what_follows_a_cut_below_the_log_start_survives_a_kill(tmp_path: Path, anew: bool, ticks: bool) -> None:
    """The log start that was noted before lies above the end: the open would put all aside as deleted.

    ``ticks``: the background work has its turn while the cut is under way.
    """
    bench = CaseBench(tmp_path / "log")
    bench.fill(10)
    move_start(bench.partition, 8)
    bench.log.checkpoint()

    def noted(operation: str, path: Path) -> int:
        if ticks and operation in ("truncate", "rename") and path.parent == bench.folder and path.suffix == ".log":
            bench.log.notes.write_starts()
        return 0

    bench.files.fail = noted
    if anew:
        start_over(bench.partition, 5)
    else:
        bench.partition.truncate_to(5)
    bench.files.fail = None
    bench.fill(2)
    bench.partition.flush()
    bench.kill()
    bench.open()
    positions = bench.partition.positions()
    assert (positions.start_offset, positions.end_offset, bench.offsets()) == (5, 7, [5, 6])


def test_a_growing_segment_is_read_from_outside_whatever_its_index_says(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", index_interval_bytes=0)
    bench.fill(3)
    (bench.folder / f"{0:020d}.index").write_bytes(bytes.fromhex("00000007 00000040"))
    with LogView.open(bench.directory, clock=bench.clock) as outside:
        assert outside.partition(TP).positions().end_offset == 3


def test_a_log_that_was_cut_and_grew_again_is_read_from_outside(tmp_path: Path) -> None:
    """The known end is in the middle of a batch now."""
    bench = CaseBench(tmp_path / "log")
    bench.fill(10)
    with LogView.open(bench.directory, clock=bench.clock) as outside:
        reader = outside.partition(TP)
        assert reader.positions().end_offset == 10
        bench.partition.truncate_to(5)
        bench.append(b"longer than what was cut" * 30)
        bench.fill(2)
        assert reader.positions().end_offset == 8
        found = [r.value for data in reader.read_batches(0) for r in decode_records(data)]
        assert found == [*[b"v"] * 5, b"longer than what was cut" * 30, b"v", b"v"]


def test_no_index_entry_outlives_the_batches_that_a_power_cut_took(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", index_interval_bytes=0)
    bench.fill(3)
    bench.kill()
    log = bench.folder / f"{0:020d}.log"
    log.write_bytes(bytes(log.stat().st_size))
    bench.open()
    assert not any((bench.folder / f"{0:020d}.index").read_bytes())
