"""High watermarks that a broker noted: no reader ends at them, and they are right when the broker starts again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.local.bench import TP, CaseBench
from tiered.local.directory.read_only_log import LogView
from tiered.read.stream import ReadRange
from tiered.read.topic import PartitionStream


@pytest.mark.parametrize("mark", [7, 99])
def test_a_reader_of_a_brokers_directory_reads_to_the_end(
    tmp_path: Path, mark: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.fill(10)
    bench.log.close()
    (bench.directory / "tiered-topics.json").unlink()
    (bench.directory / "replication-offset-checkpoint").write_text(f"0\n1\nt 0 {mark}\n")
    reader = LogView.open(bench.directory, clock=bench.clock).partition(TP)
    assert (reader.last_stable_offset(), reader.end_offset) == (10, 10)
    stream = PartitionStream.open(TP, local=reader, remote=None)
    assert [r.offset for r in stream.records(ReadRange())] == list(range(10))
    marks = bench.directory / "replication-offset-checkpoint"
    for _ in range(2):
        bench.open()
        assert marks.read_text() == "0\n0\n"
        bench.log.close()
        assert marks.read_text() == "0\n1\nt 0 10\n"
    assert caplog.text.count("watermarks_dropped") == (mark < 10)  # once
    bench.open()
    bench.fill(1)
    assert bench.offsets(0) == list(range(11))
