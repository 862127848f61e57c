"""The high watermark: the end of a log that is written here, a broker's checkpoint where a broker writes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.unit.local.bench import TP, CaseBench
from tiered.local.directory.manager import LocalLog
from tiered.read.stream import ReadRange
from tiered.read.topic import PartitionStream

CHECKPOINT = "replication-offset-checkpoint"


def checkpoint(bench: CaseBench) -> str:
    return (bench.directory / CHECKPOINT).read_text()


def left_by_a_broker(tmp_path: Path, mark: int) -> CaseBench:
    """Ten records, of which the broker has replicated those below ``mark``."""
    bench = CaseBench(tmp_path / "log")
    bench.fill(10)
    bench.log.close()
    (bench.directory / "tiered-topics.json").unlink()
    (bench.directory / CHECKPOINT).write_text(f"0\n1\nt 0 {mark}\n")
    return bench


def test_it_is_the_end_of_a_log_that_is_written_here(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=5)
    for i in range(7):
        bench.fill(1)
        assert bench.partition.high_watermark() == i + 1
    bench.partition.truncate_to(3)
    assert bench.partition.high_watermark() == 3


@pytest.mark.parametrize(("mark", "seen"), [(0, 0), (7, 7), (10, 10), (99, 10)])
def test_case_27_a_reader_of_a_brokers_directory_reads_up_to_it(tmp_path: Path, mark: int, seen: int) -> None:
    bench = left_by_a_broker(tmp_path, mark)
    reader = LocalLog.open(bench.directory, clock=bench.clock, read_only=True).partition(TP)
    assert (reader.high_watermark(), reader.last_stable_offset(), reader.end_offset) == (seen, seen, 10)
    stream = PartitionStream.of(TP, local=reader, remote=None)
    assert [r.offset for r in stream.records(ReadRange())] == list(range(seen))
    (bench.directory / CHECKPOINT).write_text("0\n1\nt 0 10\n")
    assert reader.high_watermark() == 10
    (bench.directory / CHECKPOINT).unlink()
    assert reader.high_watermark() == 10


def test_opening_a_brokers_directory_logs_that_all_becomes_readable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = left_by_a_broker(tmp_path, 7)
    with caplog.at_level(logging.WARNING, "tiered.local"):
        bench.open()
    (line,) = [each.getMessage() for each in caplog.records if "records_above_high_watermark" in each.getMessage()]
    assert "partitions=1 first=t-0" in line
    reader = LocalLog.open(bench.directory, clock=bench.clock, read_only=True).partition(TP)
    bench.fill(1)
    assert (bench.partition.high_watermark(), reader.high_watermark()) == (11, 11)
    bench.log.close()
    assert checkpoint(bench) == "0\n1\nt 0 11\n"  # for the broker's next start
    caplog.clear()
    bench.open()
    assert "records_above_high_watermark" not in caplog.text


def test_a_log_that_no_broker_had_notes_none(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.fill(3)
    bench.log.close()
    assert checkpoint(bench) == ""
