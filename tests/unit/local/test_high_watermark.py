"""The high watermark: the end of a log that is alone, told to one that follows; what it holds back, and its life."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.local.bench import RECORD_BYTES, CaseBench, batch
from tests.unit.local.cleaning_bench import CleaningBench
from tests.unit.local.producer_bench import ProducerBench, data, end
from tests.unit.local.several import TP, opened
from tiered.errors import OffsetOutOfRangeError
from tiered.local.directory.manager import LocalLog
from tiered.local.directory.upkeep import HIGH_WATERMARK_CHECKPOINT_MS
from tiered.local.partition.replica import LATEST, Isolation, Replica
from tiered.model import AbortedTxn, NewRecord
from tiered.read.stream import ReadRange
from tiered.read.topic import PartitionStream


def checkpoint(bench: CaseBench) -> str:
    return (bench.directory / "replication-offset-checkpoint").read_text()


def test_it_is_the_end_of_a_log_that_is_alone(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=5)
    for i in range(7):
        bench.fill(1)
        assert bench.partition.high_watermark() == i + 1
    bench.partition.truncate_to(3)
    assert bench.partition.high_watermark() == 3
    bench.partition.truncate_fully_and_start_at(20)
    assert bench.partition.high_watermark() == 20


def test_a_follower_is_told_by_its_leader(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    Replica(bench.partition).append_as_follower(batch(0), leader_high_watermark=0)
    assert (bench.partition.high_watermark(), bench.partition.positions().end_offset) == (0, 1)
    Replica(bench.partition).append_as_follower(batch(1), leader_high_watermark=1)
    assert bench.partition.high_watermark() == 1
    Replica(bench.partition).append_as_follower(batch(2), leader_high_watermark=9)
    assert bench.partition.high_watermark() == 3  # never above the end
    Replica(bench.partition).append_as_follower(batch(3))
    assert bench.partition.high_watermark() == 3  # the end takes it along no more
    assert Replica(bench.partition).append_as_follower(b"", leader_high_watermark=4) is None
    assert bench.partition.high_watermark() == 4
    Replica(bench.partition).append_as_follower(batch(4), leader_high_watermark=2)
    assert bench.partition.high_watermark() == 2  # as a leader's may after an election
    assert Replica(bench.partition).update_high_watermark(None) == 5
    bench.fill(1)
    assert bench.partition.high_watermark() == 6


def test_who_leads_leads_alone(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    Replica(bench.partition).append_as_follower(batch(0), leader_high_watermark=0)
    bench.partition.new_leader_epoch(3)
    assert bench.partition.high_watermark() == 1
    bench.reopen()
    assert bench.partition.high_watermark() == 1


def test_truncation_lowers_it_and_the_log_start_raises_it(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=5)
    bench.fill(12)
    Replica(bench.partition).update_high_watermark(8)
    bench.partition.truncate_to(10)
    assert bench.partition.high_watermark() == 8
    bench.partition.truncate_to(6)
    assert bench.partition.high_watermark() == 6
    bench.fill(4)
    assert bench.partition.high_watermark() == 6
    bench.partition.delete_records(6)
    assert Replica(bench.partition).update_high_watermark(2) == 6
    bench.partition.truncate_fully_and_start_at(40)
    assert bench.partition.high_watermark() == 40


def test_its_checkpoint_is_written_every_five_seconds_and_read_by_a_log_that_follows(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.fill(10)
    bench.clock.advance(HIGH_WATERMARK_CHECKPOINT_MS / 1000)
    bench.log.tick()
    assert checkpoint(bench) == "0\n1\nt 0 10\n"
    Replica(bench.partition).update_high_watermark(7)
    bench.clock.advance(HIGH_WATERMARK_CHECKPOINT_MS / 1000)
    bench.log.tick()
    assert checkpoint(bench) == "0\n1\nt 0 7\n"
    Replica(bench.partition).update_high_watermark(8)
    bench.kill()
    bench.open()
    assert bench.partition.high_watermark() == 7
    Replica(bench.partition).update_high_watermark(9)
    bench.reopen()
    assert checkpoint(bench) == "0\n1\nt 0 9\n"
    assert bench.log.roster.sleeping_count() == 1
    bench.log.tasks.run("high-watermark-checkpoint")
    assert checkpoint(bench) == "0\n1\nt 0 9\n"
    assert bench.partition.high_watermark() == 9
    Replica(bench.partition).update_high_watermark(None)
    bench.reopen()
    assert (checkpoint(bench), bench.partition.high_watermark()) == ("0\n1\nt 0 10\n", 10)


def test_a_stale_checkpoint_holds_a_log_that_is_alone_not_back(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.fill(10)
    bench.kill()
    (bench.directory / "replication-offset-checkpoint").write_text("0\n1\nt 0 4\n")
    bench.open()
    assert bench.partition.high_watermark() == 10


@pytest.mark.parametrize(("noted", "found"), [(None, 2), (1, 2), (5, 5), (99, 10)])
def test_a_checkpoint_is_bounded_by_log_start_and_end(tmp_path: Path, noted: int | None, found: int) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.fill(10)
    bench.partition.delete_records(2)
    Replica(bench.partition).update_high_watermark(6)
    bench.log.checkpoint()
    bench.kill()
    path = bench.directory / "replication-offset-checkpoint"
    path.unlink(missing_ok=True)
    if noted is not None:
        path.write_text(f"0\n1\nt 0 {noted}\n")
    bench.open()
    assert bench.partition.high_watermark() == found


def test_nothing_above_it_is_deleted(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=5, retention_ms=1000)
    bench.fill(15, timestamp=10)
    Replica(bench.partition).update_high_watermark(9)
    for offset in (10, 15):
        with pytest.raises(OffsetOutOfRangeError, match="high watermark"):
            bench.partition.delete_records(offset)
    bench.retain()
    assert bench.bases == [5, 10]
    assert bench.partition.delete_local_before(15) == []
    assert bench.partition.delete_records(-1) == 9
    bench.retain()
    assert (bench.bases, bench.partition.positions().start_offset) == ([5, 10], 9)
    Replica(bench.partition).update_high_watermark(15)
    bench.retain()
    assert bench.bases == [15]


def test_nothing_above_it_is_compacted(tmp_path: Path) -> None:
    bench = CleaningBench(tmp_path / "log")
    bench.put("a1", "a2", "a3")
    bench.seal()
    bench.put("a4", "a5", "a6")
    bench.seal()
    Replica(bench.partition).update_high_watermark(3)
    bench.clean()
    assert bench.pairs == ["a3", "a4", "a5", "a6"]
    Replica(bench.partition).update_high_watermark(None)
    bench.clean()
    assert bench.pairs == ["a6"]


def test_markers_count_once_it_has_passed_them(tmp_path: Path) -> None:
    bench = ProducerBench(tmp_path / "log")
    Replica(bench.partition).append_as_follower(data(0, txn=True), leader_high_watermark=0)
    Replica(bench.partition).append_as_follower(end(abort=True, base=1), leader_high_watermark=1)
    Replica(bench.partition).append_as_follower(batch(2), leader_high_watermark=1)
    assert bench.partition.aborted_txns(0, 3) == [AbortedTxn(7, 0, 1, 2)]
    assert bench.lso == 0  # the marker itself is not safe yet
    Replica(bench.partition).update_high_watermark(2)
    assert bench.lso == 2
    Replica(bench.partition).update_high_watermark(3)
    assert bench.lso == 3
    Replica(bench.partition).append_as_follower(data(0, epoch=1, txn=True, base=3), leader_high_watermark=3)
    Replica(bench.partition).append_as_follower(end(epoch=1, base=4), leader_high_watermark=4)
    assert (bench.partition.high_watermark(), bench.lso) == (4, 3)


def test_whoever_reads_a_topic_reads_up_to_it(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.fill(10)
    stream = PartitionStream.of(bench.partition.tp, local=bench.partition, remote=None)
    assert [r.offset for r in stream.records(ReadRange())] == list(range(10))
    Replica(bench.partition).update_high_watermark(6)
    assert [r.offset for r in stream.records(ReadRange())] == list(range(6))
    assert [r.offset for r in stream.records(ReadRange(start=2, end=8))] == [2, 3, 4, 5]
    assert [r.offset for r in stream.records(ReadRange(start=7))] == []


def test_it_moves_with_its_partition(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        logs.create_topic("t", 1)
        logs.partition(TP).append([NewRecord(b"1"), NewRecord(b"2"), NewRecord(b"3")])
        Replica(logs.partition(TP)).update_high_watermark(2)
        (target,) = [path for path, log in logs.logs().items() if TP not in log.partitions()]
        logs.move(TP, target)
        assert (logs.partition(TP).high_watermark(), logs.partition(TP).positions().end_offset) == (2, 3)
    with opened(tmp_path) as logs:
        assert logs.partition(TP).high_watermark() == 2


def test_a_reader_in_another_process_has_it_from_the_checkpoint(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.fill(10)
    reader = LocalLog.open(tmp_path / "log", clock=bench.clock, read_only=True).partition(TP)
    assert (reader.high_watermark(), reader.last_stable_offset()) == (10, 10)
    Replica(bench.partition).update_high_watermark(7)
    bench.log.tasks.run("high-watermark-checkpoint")
    assert (reader.high_watermark(), reader.last_stable_offset()) == (7, 7)
    for isolation, count in ((Isolation.LOG_END, 10), (Isolation.HIGH_WATERMARK, 7), (Isolation.COMMITTED, 7)):
        assert len(Replica(reader).fetch(0, 10_000, isolation=isolation).data) == count * RECORD_BYTES
    assert Replica(reader).list_offset(LATEST) == (10, -1, 0)
    Replica(bench.partition).update_high_watermark(None)
    assert reader.high_watermark() == 10
