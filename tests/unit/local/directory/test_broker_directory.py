"""Directories that a real Kafka broker wrote: read as they are, recovered after its crash, carried on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tiered
from tests.golden import fixtures
from tests.unit.local.partition.reading import records_of
from tiered.config import LogConfig, TopicConfig
from tiered.errors import UnknownTopicError
from tiered.format.batch import decode_records
from tiered.format.checkpoint import decode_clean_shutdown, encode_partition_metadata
from tiered.format.local_names import parse_partition_dir
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.partition_files import LeaderEpochs
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock, SeededIds


def open_copy(source: Path, target: Path) -> LocalLog:
    """A writable copy of a golden directory, opened for writing."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    clock = FakeClock(1_800_000_000_000)
    return LocalLog.open(target, clock=clock, ids=SeededIds(1), config=LogConfig(disk_reserve_bytes=0))


def test_lookups_by_time_are_exact_over_every_segment(kafka_fixtures: Path) -> None:
    with LogView.open(kafka_fixtures / "main") as log:
        for name in fixtures.partitions(kafka_fixtures):
            if name.startswith("__cluster"):
                continue
            partition = log.partition(parse_partition_dir(name).tp)
            start = partition.positions().start_offset
            all_records = [
                record
                for batch in partition.read_batches(start)
                for record in decode_records(batch)
                if record.offset >= start
            ]
            for wanted in sorted({r.timestamp for r in all_records})[::7]:
                for timestamp in (wanted - 1, wanted, wanted + 1):
                    found = next(((r.offset, r.timestamp) for r in all_records if r.timestamp >= timestamp), None)
                    assert (name, timestamp, partition.offset_for_time(timestamp)) == (name, timestamp, found)


def test_sealed_segments_of_a_broker_describe_their_files(kafka_fixtures: Path) -> None:
    with LogView.open(kafka_fixtures / "main") as log:
        partition = log.partition(parse_partition_dir("txn-0").tp)
        segments = partition.sealed_segments()
        assert [s.base_offset for s in segments] == fixtures.log_bases(kafka_fixtures, "txn-0")[:-1]
        for segment in segments:
            descriptor, indexes = segment.descriptor, segment.indexes()
            assert descriptor.size_bytes == segment.path.stat().st_size
            assert descriptor.records == descriptor.end_offset - descriptor.base_offset
            assert indexes.offset_index == segment.path.with_suffix(".index").read_bytes()
            assert indexes.time_index == segment.path.with_suffix(".timeindex").read_bytes()
            assert indexes.txn_index == segment.path.with_suffix(".txnindex").read_bytes()
            assert indexes.producer_snapshot[:2] == b"\x00\x01"
            assert [e.epoch for e in indexes.leader_epochs] == [0]


def test_bytes_that_recovery_cuts_are_kept_beside_the_segment(kafka_fixtures: Path, tmp_path: Path) -> None:
    before = kafka_fixtures / "unclean-damaged" / "before"
    with open_copy(before, tmp_path / "log"):
        kept = b""
        for path in sorted((tmp_path / "log" / "u-flipped-bit-0").glob("*.torn-*")):
            kept += path.read_bytes()
        logs = sorted((before / "u-flipped-bit-0").glob("*.log"))
        original = b"".join(p.read_bytes() for p in logs)
        left = b"".join(p.read_bytes() for p in sorted((tmp_path / "log" / "u-flipped-bit-0").glob("*.log")))
    assert kept
    assert left + kept == original


def test_a_clean_close_carries_the_clean_shutdown_of_the_broker_on(kafka_fixtures: Path, tmp_path: Path) -> None:
    """Its controller compares the epoch; after a crash of ours it must not find it again."""
    mark = tmp_path / "log" / ".kafka_cleanshutdown"
    before = (kafka_fixtures / "main" / ".kafka_cleanshutdown").read_bytes()
    assert decode_clean_shutdown(before.decode()) >= 0
    open_copy(kafka_fixtures / "main", tmp_path / "log").close()
    assert mark.read_bytes() == before
    mark.unlink()
    LocalLog.open(tmp_path / "log", clock=FakeClock(1_800_000_000_000)).close()
    assert decode_clean_shutdown(mark.read_text()) == -1


def test_partitions_that_a_broker_keeps_elsewhere_are_not_made(kafka_fixtures: Path, tmp_path: Path) -> None:
    """Partitions 1 and 10 of 12 are in one log directory, 0 is in the other, the rest with other brokers."""
    one, two = tmp_path / "one", tmp_path / "two"
    for directory, numbers in ((one, (1, 10)), (two, (0,))):
        for number in numbers:
            source = kafka_fixtures / "main" / "orders-0"
            shutil.copytree(source, directory / f"orders-{number}", copy_function=shutil.copyfile)
        for path in directory.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
    held = [TopicPartition("orders", number) for number in (0, 1, 10)]
    clock, config = FakeClock(1_800_000_000_000), LogConfig(disk_reserve_bytes=0)
    with LocalTier.open([one, two], clock=clock, ids=SeededIds(1), config=config) as logs:
        assert logs.partitions() == held
        assert logs.topics()["orders"].partitions == 11
        logs.alter_topic("orders", {"segment.bytes": 5000})
        for tp in held:
            logs.partition(tp).append([NewRecord(b"ours")])
    with LocalLog.open(one, clock=clock, config=config) as log:
        assert log.partitions() == held[1:]
        assert log.topics()["orders"].here == [1, 10]
    assert sorted(path.name for path in tmp_path.rglob("orders-*")) == ["orders-0", "orders-1", "orders-10"]


def test_a_topic_whose_first_partition_another_broker_has_is_opened(kafka_fixtures: Path, tmp_path: Path) -> None:
    source = kafka_fixtures / "main" / "orders-1"
    shutil.copytree(source, tmp_path / "log" / "orders-1", copy_function=shutil.copyfile)
    (tmp_path / "log" / "orders-1").chmod(0o755)
    wanted = [(1, each.offset) for each in fixtures.expected_records(kafka_fixtures, "orders-1")]
    with tiered.open(tmp_path / "log") as log:
        orders = log.topic("orders")
        assert [(each.partition, each.offset) for each in orders.read()] == wanted
        assert orders.end_offsets() == {TopicPartition("orders", 0): 0, TopicPartition("orders", 1): len(wanted)}
        assert orders.append(b"ours", partition=1).offset == len(wanted)
        with pytest.raises(UnknownTopicError, match="holds no partition orders-0"):
            orders.append(b"ours", partition=0)
        assert log.metrics()
    assert not (tmp_path / "log" / "orders-0").exists()


def test_a_directory_whose_checkpoints_have_the_line_ends_of_windows_reads_the_same(
    kafka_fixtures: Path, tmp_path: Path
) -> None:
    """Kafka reads lines, however they end: the log start may not be passed over."""
    shutil.copytree(kafka_fixtures / "main", tmp_path / "log", copy_function=shutil.copyfile)
    for path in (tmp_path / "log").rglob("*-checkpoint"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    with LogView.open(tmp_path / "log") as log:
        for name in ("delete-records-0", "leader-epochs-0"):
            partition = log.partition(parse_partition_dir(name).tp)
            offsets = fixtures.expected_offsets(kafka_fixtures, name)
            positions = partition.positions()
            assert offsets is not None
            assert (positions.start_offset, positions.end_offset) == (offsets.earliest, offsets.latest)
            source = LeaderEpochs(kafka_fixtures / "main" / name, PosixFiles(), read_only=True)
            assert partition.leader_epochs() == source.entries


def test_what_a_broker_compacted_reads_without_complaint_once_it_is_ours_to_write(
    kafka_fixtures: Path, tmp_path: Path
) -> None:
    """Our settings say nothing of compaction: offsets that are missing are no damage nevertheless."""
    tps = [parse_partition_dir(name).tp for name in fixtures.partitions(kafka_fixtures, "compact-after1")]
    with LogView.open(kafka_fixtures / "compact-after1") as log:
        expected = {tp: records_of(log.partition(tp), log.partition(tp).positions().start_offset) for tp in tps}
    log = open_copy(kafka_fixtures / "compact-after1", tmp_path / "log")
    log.alter_topic("compact-drop", {"retention.ms": 5_000})
    assert {tp: records_of(log.partition(tp), log.partition(tp).positions().start_offset) for tp in tps} == expected
    log.close()
    (tmp_path / "log" / ".kafka_cleanshutdown").unlink()
    (tmp_path / "log" / "recovery-point-offset-checkpoint").unlink()
    clock = FakeClock(1_800_000_000_000)
    for opened in (LogView.open(tmp_path / "log", clock=clock), LocalLog.open(tmp_path / "log", clock=clock)):
        with opened as log:
            starts = {tp: log.partition(tp).positions().start_offset for tp in tps}
            assert {tp: records_of(log.partition(tp), starts[tp]) for tp in tps} == expected


def test_a_directory_that_is_not_seen_is_not_another_brokers(kafka_fixtures: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for directory, name in ((one, "orders-1"), (two, "orders-0")):
        shutil.copytree(kafka_fixtures / "main" / name, directory / name, copy_function=shutil.copyfile)
        (directory / name).chmod(0o755)
    with tiered.open([one, two]) as log:
        assert log.topic("orders").end_offsets()[TopicPartition("orders", 0)] == 10
    shutil.rmtree(two)
    two.write_bytes(b"no directory")
    with tiered.open([one, two]) as log, pytest.raises(UnknownTopicError, match="could not be opened"):
        log.topic("orders")


def test_a_topic_that_the_broker_deleted_or_made_again_is_what_the_directories_say(
    kafka_fixtures: Path, tmp_path: Path
) -> None:
    log = open_copy(kafka_fixtures / "main", tmp_path / "log")
    log.alter_topic("txn", {"segment.bytes": 5000})
    log.alter_topic("orders", {"segment.bytes": 5000})
    log.close()
    for path in (tmp_path / "log").glob("txn-*"):
        shutil.rmtree(path)
    new_id = SeededIds(9).uuid()
    for path in (tmp_path / "log").glob("orders-*/*"):
        path.unlink()
    for path in (tmp_path / "log").glob("orders-*"):
        (path / "partition.metadata").write_text(encode_partition_metadata(new_id))
    with LogView.open(tmp_path / "log") as log:
        assert "txn" not in log.topics()
    with LocalLog.open(tmp_path / "log", clock=FakeClock(1_800_000_000_000)) as log:
        assert "txn" not in log.topics()
        assert (log.topics()["orders"].topic_id, log.topics()["orders"].config) == (new_id, TopicConfig())
        assert log.partition(TopicPartition("orders", 0)).append([NewRecord(b"anew")]).offset == 0
    assert not list((tmp_path / "log").glob("txn-*"))


def test_a_partition_of_a_topic_made_again_is_refused_while_a_bucket_knows_the_old_one(
    kafka_fixtures: Path, tmp_path: Path
) -> None:
    log = open_copy(kafka_fixtures / "main", tmp_path / "log")
    log.alter_topic("orders", {"segment.bytes": 5000})
    log.claims.write(TopicPartition("orders", 0), token="0" * 32)
    log.close()
    (tmp_path / "log" / "orders-0" / "partition.metadata").write_text(encode_partition_metadata(SeededIds(9).uuid()))
    with LocalLog.open(tmp_path / "log") as log:
        assert list(log.out_of_service) == [TopicPartition("orders", 0)]
