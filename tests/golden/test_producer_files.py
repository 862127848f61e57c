"""A log that is fed a broker's batches ends with the broker's own producer snapshots and transaction indexes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.fixtures import MAIN, base_offset, expected_offsets, partition_dir, partitions
from tests.golden.producers import LEFT_ALONE, MADE_MS, is_cleaned, snapshots_of
from tests.support.given import append_given
from tiered.config import LogConfig, TopicConfig
from tiered.format.batch_scanner import walk_headers
from tiered.format.producer_snapshot import decode_snapshot
from tiered.local.directory.log_directory import LocalLog
from tiered.local.partition.write_log import WriteLog
from tiered.model import TopicPartition
from tiered.testing.clock import FakeClock, SeededIds

TP = TopicPartition("t", 0)


class Fed:
    """A log directory whose segments begin where the broker's began, and which is restarted when the broker was."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.open()
        self.log.create_topic(TP.topic, 1, TopicConfig(segment_ms=2**62, seal_ms=-1))

    def open(self) -> None:
        config = LogConfig(disk_reserve_bytes=0)
        self.log = LocalLog.open(self.directory, clock=FakeClock(MADE_MS), ids=SeededIds(1), config=config)

    @property
    def partition(self) -> WriteLog:
        return self.log.partition(TP)

    @property
    def folder(self) -> Path:
        return self.directory / str(TP)

    def feed(self, source: Path) -> dict[int, bytes]:
        """Every snapshot that was there at any time."""
        seen: dict[int, bytes] = {}
        epoch = -1
        for log in sorted(source.glob("*.log")):
            if base_offset(log) == self.partition.positions().end_offset:
                self.partition.roll()
            data = log.read_bytes()
            for position, header in walk_headers(data):
                if epoch not in (-1, header.leader_epoch):
                    self.log.close()
                    seen |= snapshots_of(self.folder)
                    self.open()
                epoch = header.leader_epoch
                append_given(self.partition, data[position : position + header.size_bytes])
            seen |= snapshots_of(self.folder)
        self.log.close()
        return seen | snapshots_of(self.folder)


def with_producers(fixtures: Path) -> list[str]:
    names = []
    for name in partitions(fixtures, MAIN):
        logs = sorted(partition_dir(fixtures, name).glob("*.log"))
        if name in LEFT_ALONE or is_cleaned(MAIN, name) or base_offset(logs[0]) != 0:
            continue
        if any(header.producer_id >= 0 for log in logs for _, header in walk_headers(log.read_bytes())):
            names.append(name)
    return names


def entries(path: Path) -> bytes:
    """A transaction index; there need not be an empty one."""
    return path.read_bytes() if path.exists() else b""


def test_a_log_that_is_fed_writes_the_brokers_files(kafka_fixtures: Path, tmp_path: Path) -> None:
    compared = aborted = 0
    for name in with_producers(kafka_fixtures):
        source = partition_dir(kafka_fixtures, name)
        fed = Fed(tmp_path / name)
        seen = fed.feed(source)
        for offset, expected in snapshots_of(source).items():
            if offset not in seen:
                assert decode_snapshot(expected) == [], (name, offset)
                continue
            assert seen[offset] == expected, (name, offset)
            compared += bool(decode_snapshot(expected))
        for log in sorted(source.glob("*.log")):
            name_there = log.with_suffix(".txnindex").name
            theirs, ours = entries(source / name_there), entries(fed.folder / name_there)
            assert ours == theirs, log
            aborted += bool(ours)
        answer = expected_offsets(kafka_fixtures, name)
        fed.open()
        if answer is not None and answer.latest == fed.partition.positions().end_offset:
            assert fed.partition.last_stable_offset() == answer.lso, name
        fed.log.close()
    assert compared >= 5
    assert aborted >= 2


@pytest.mark.parametrize("name", ["txn-0", "idempotent-0"])
def test_a_broker_directory_without_snapshots_after_a_kill(kafka_fixtures: Path, tmp_path: Path, name: str) -> None:
    """Read again from its first batch, it has the last snapshot that the broker wrote."""
    source = partition_dir(kafka_fixtures, name)
    fed = Fed(tmp_path / "log")
    fed.feed(source)
    ends = snapshots_of(fed.folder)
    (fed.directory / ".kafka_cleanshutdown").unlink()
    (fed.directory / "recovery-point-offset-checkpoint").unlink()
    for path in (*fed.folder.glob("*.snapshot"), *fed.folder.glob("*.txnindex")):
        path.unlink()
    fed.open()
    fed.partition.positions()
    fed.log.close()
    assert snapshots_of(fed.folder)[max(ends)] == ends[max(ends)]
    for path in source.glob("*.txnindex"):
        assert entries(fed.folder / path.name) == path.read_bytes()
