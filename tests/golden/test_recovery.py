"""Directories of a killed broker, also damaged by hand: we recover what the broker itself recovered, file by file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.golden import fixtures
from tiered.config import LogConfig, TopicConfig
from tiered.format.batch import decode_records, read_header
from tiered.format.batch_scanner import walk_headers
from tiered.format.checkpoint import decode_epochs, decode_partition_metadata
from tiered.format.local_names import parse_partition_dir
from tiered.format.segment_indexes import OffsetIndex, TimeIndex
from tiered.local.directory.log_directory import LocalLog
from tiered.local.partition.write_log import WriteLog
from tiered.testing.clock import FakeClock, SeededIds

INTERVAL_BYTES = 256
NEVER_REBUILT_BY_KAFKA = ("u-old-index-ragged-0", "u-old-index-zeroed-0", "u-old-timeindex-missing-0")
"""Damaged index files below the recovery point: a broker leaves them as they are, we rebuild them."""

UNCLEAN = ("unclean-kill", "unclean-damaged")


def recovered(kafka_fixtures: Path, root: str, target: Path) -> LocalLog:
    """A writable copy of ``root/before``, its topics known with the broker's settings, opened."""
    before = kafka_fixtures / root / "before"
    config = LogConfig(disk_reserve_bytes=0)
    with LocalLog.open(target, clock=FakeClock(), ids=SeededIds(1), config=config) as log:
        for name in fixtures.partitions(kafka_fixtures, f"{root}/before"):
            tp = parse_partition_dir(name).tp
            if tp.topic not in log.topics() and tp.partition == 0:
                topic_id = decode_partition_metadata((before / name / "partition.metadata").read_text())
                settings = TopicConfig(index_interval_bytes=INTERVAL_BYTES, segment_index_bytes=8192)
                log.create_topic(tp.topic, 1, settings, topic_id)
    (target / ".kafka_cleanshutdown").unlink()
    for path in target.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    shutil.copytree(before, target, copy_function=shutil.copyfile, dirs_exist_ok=True)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return LocalLog.open(target, clock=FakeClock(1_800_000_000_000), ids=SeededIds(1), config=config)


def partition(log: LocalLog, name: str) -> WriteLog:
    return log.partition(parse_partition_dir(name).tp)


@pytest.mark.parametrize("root", UNCLEAN)
def test_records_offsets_and_epochs_are_the_brokers(kafka_fixtures: Path, tmp_path: Path, root: str) -> None:
    compared = 0
    with recovered(kafka_fixtures, root, tmp_path / "log") as log:
        for name in fixtures.partitions(kafka_fixtures, f"{root}/after"):
            ours = partition(log, name)
            offsets = fixtures.expected_offsets(kafka_fixtures, name, f"{root}/after")
            assert offsets is not None
            positions = ours.positions()
            assert (name, positions.start_offset, positions.end_offset) == (name, offsets.earliest, offsets.latest)
            assert (name, ours.last_stable_offset()) == (name, offsets.lso)
            data = [b for b in ours.read_batches(positions.start_offset) if not read_header(b).is_control]
            found = [(read_header(b).leader_epoch, r) for b in data for r in decode_records(b)]
            expected = list(fixtures.expected_records(kafka_fixtures, name, f"{root}/after"))
            assert [r.offset for _, r in found] == [e.offset for e in expected], name
            for (epoch, record), want in zip(found, expected, strict=True):
                assert (epoch, record.timestamp, record.key, record.headers) == (
                    want.leader_epoch,
                    want.timestamp,
                    want.key,
                    want.headers,
                )
                assert want.matches_value(record.value)
            after = fixtures.partition_dir(kafka_fixtures, name, f"{root}/after")
            theirs = decode_epochs((after / "leader-epoch-checkpoint").read_text())
            # The broker also notes the epoch of its own next election, which begins at the end.
            assert list(ours.leader_epochs()) == [e for e in theirs if e.start_offset < offsets.latest], name
            compared += len(found)
    assert compared > 200


@pytest.mark.parametrize("root", UNCLEAN)
def test_files_are_the_brokers_byte_for_byte(kafka_fixtures: Path, tmp_path: Path, root: str) -> None:
    log = recovered(kafka_fixtures, root, tmp_path / "log")
    names = fixtures.partitions(kafka_fixtures, f"{root}/after")
    for name in names:
        partition(log, name).positions()
    log.close()
    compared = 0
    for name in names:
        after = fixtures.partition_dir(kafka_fixtures, name, f"{root}/after")
        ours = tmp_path / "log" / name
        suffixes = (".log", ".txnindex") if name in NEVER_REBUILT_BY_KAFKA else (".log", "index")
        theirs = sorted(p for p in after.iterdir() if p.name.endswith(suffixes))
        assert [p.name for p in theirs if p.suffix == ".log"] == sorted(p.name for p in ours.glob("*.log")), name
        for path in theirs:
            if name == "u-old-index-missing-0" and path.name.startswith("0" * 20):
                continue  # ours is made at the first lookup: see below
            assert (ours / path.name).read_bytes() == path.read_bytes(), (name, path.name)
            compared += 1
    assert compared > 20


@pytest.mark.parametrize("lost", [(".index", ".txnindex"), (".txnindex",)])
@pytest.mark.parametrize("damage", ["missing", "junk"])
def test_case_67_lost_indexes_of_aborted_transactions_are_made_again(
    kafka_fixtures: Path, tmp_path: Path, damage: str, lost: tuple[str, ...]
) -> None:
    root, name = "unclean-kill", "u-txn-0"
    log = recovered(kafka_fixtures, root, tmp_path / "log")
    end = partition(log, name).positions().end_offset
    aborted = partition(log, name).aborted_txns(0, end)
    log.close()
    (tmp_path / "log" / ".kafka_cleanshutdown").unlink()
    tail = max((tmp_path / "log" / name).glob("*.log"))
    for suffix in lost:
        tail.with_suffix(suffix).unlink()
        if damage == "junk":
            tail.with_suffix(suffix).write_bytes(b"junk" * 30)
    checkpoint = (tmp_path / "log" / "recovery-point-offset-checkpoint").read_text()
    assert f"u-txn 0 {end}\n" in checkpoint
    with LocalLog.open(tmp_path / "log", config=LogConfig(disk_reserve_bytes=0)) as again:
        assert partition(again, name).positions().end_offset == end
        assert partition(again, name).aborted_txns(0, end) == aborted
    after = fixtures.partition_dir(kafka_fixtures, name, f"{root}/after")
    assert tail.with_suffix(".txnindex").read_bytes() == (after / f"{tail.stem}.txnindex").read_bytes()
    assert len(aborted) >= 6


def test_damaged_indexes_below_the_recovery_point_are_rebuilt_valid(kafka_fixtures: Path, tmp_path: Path) -> None:
    log = recovered(kafka_fixtures, "unclean-damaged", tmp_path / "log")
    for name in (*NEVER_REBUILT_BY_KAFKA, "u-old-index-missing-0"):
        ours = partition(log, name)
        first = next(ours.read_batches(ours.positions().start_offset))
        assert ours.offset_for_time(read_header(first).base_timestamp) is not None
    log.close()
    for name in (*NEVER_REBUILT_BY_KAFKA, "u-old-index-missing-0"):
        folder = tmp_path / "log" / name
        data = (folder / f"{0:020d}.log").read_bytes()
        batches = dict(walk_headers(data))
        index = OffsetIndex.from_bytes((folder / f"{0:020d}.index").read_bytes(), 0)
        times = TimeIndex.from_bytes((folder / f"{0:020d}.timeindex").read_bytes(), 0)
        assert index.is_sane(len(data))
        assert len(index) > 3
        assert all(batches[position].last_offset == offset for offset, position in index)
        assert times.is_sane()
        assert times.last_entry[0] == max(header.max_timestamp for header in batches.values())
        after = fixtures.partition_dir(kafka_fixtures, name, "unclean-damaged/after")
        if name == "u-old-index-missing-0":
            assert (folder / f"{0:020d}.index").read_bytes() == (after / f"{0:020d}.index").read_bytes()
