"""High watermarks that a broker noted: no reader ends at them, and they are right when the broker starts again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.local.bench import TP, CaseBench
from tiered.local.directory.read_only_log import LogView
from tiered.read.stream import ReadRange
from tiered.read.topic import PartitionStream

CHECKPOINT = "replication-offset-checkpoint"


def checkpoint(bench: CaseBench) -> str:
    return (bench.directory / CHECKPOINT).read_text()


def left_by_a_broker(tmp_path: Path, mark: int) -> CaseBench:
    """Ten records, of which the broker has noted those below ``mark``."""
    bench = CaseBench(tmp_path / "log")
    bench.fill(10)
    bench.log.close()
    (bench.directory / "tiered-topics.json").unlink()
    (bench.directory / CHECKPOINT).write_text(f"0\n1\nt 0 {mark}\n")
    return bench


@pytest.mark.parametrize("mark", [0, 7, 10, 99])
def test_a_reader_of_a_brokers_directory_reads_to_the_end(tmp_path: Path, mark: int) -> None:
    bench = left_by_a_broker(tmp_path, mark)
    reader = LogView.open(bench.directory, clock=bench.clock).partition(TP)
    assert (reader.last_stable_offset(), reader.end_offset) == (10, 10)
    stream = PartitionStream.open(TP, local=reader, remote=None)
    assert [r.offset for r in stream.records(ReadRange())] == list(range(10))


def test_a_clean_close_writes_the_ends_for_the_brokers_next_start(tmp_path: Path) -> None:
    bench = left_by_a_broker(tmp_path, 7)
    bench.open()
    assert checkpoint(bench) == "0\n0\n"
    bench.fill(1)
    bench.log.close()
    assert checkpoint(bench) == "0\n1\nt 0 11\n"


def test_a_log_that_no_broker_had_notes_none(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.fill(3)
    bench.log.close()
    assert checkpoint(bench) == ""
