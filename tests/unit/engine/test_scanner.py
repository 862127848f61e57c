"""Looks at a log directory that cost little where nothing changes, and miss nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tiered.config import TopicConfig
from tiered.engine.scanner import COLD_LOOKS, Look, Scanner
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.files import PosixFiles
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock

PARTITIONS = 24


class Listed(PosixFiles):
    """Counts the folders that are listed."""

    def __init__(self) -> None:
        self.listed: list[str] = []

    def names(self, path: Path) -> list[str]:
        self.listed.append(path.name)
        return super().names(path)


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with LocalLog.open(tmp_path / "log") as log:
        log.create_topic("t", PARTITIONS, TopicConfig(seal_ms=-1))
        yield log


@pytest.fixture
def files() -> Listed:
    return Listed()


@pytest.fixture
def scanner(log: LocalLog, files: Listed) -> Scanner:
    scanner = Scanner(log.directory, files, FakeClock())
    scanner.scan()
    for _ in range(3):
        scanner.scan(whole=False)
    files.listed.clear()
    return scanner


def append(log: LocalLog, number: int) -> TopicPartition:
    tp = TopicPartition("t", number)
    log.partition(tp).append([NewRecord(b"value")])
    return tp


def test_a_partition_that_does_not_change_is_not_looked_into(scanner: Scanner, files: Listed) -> None:
    for _ in range(2 * COLD_LOOKS):
        assert scanner.scan(whole=False) == Look()
    assert set(files.listed) == {"log"}


def test_a_segment_that_was_sealed_is_found_by_the_next_look(scanner: Scanner, log: LocalLog) -> None:
    for number in (3, 17, 3):
        tp = append(log, number)
        log.partition(tp).roll()
        assert [(seen.tp, len(seen.sealed)) for seen in scanner.scan(whole=False).seen] == [(tp, 1)]


def test_a_record_of_a_partition_that_was_idle_is_found_within_a_dozen_looks(scanner: Scanner, log: LocalLog) -> None:
    tp = append(log, 5)
    looks = (scanner.scan(whole=False) for _ in range(COLD_LOOKS))
    assert [seen.tp for seen in next(look.seen for look in looks if look.seen)] == [tp]
    append(log, 5)  # while it grows each look sees it
    assert [seen.tp for seen in scanner.scan(whole=False).seen] == [tp]


def test_a_whole_look_finds_it_at_once(scanner: Scanner, log: LocalLog) -> None:
    tp = append(log, 5)
    assert [seen.tp for seen in scanner.scan().seen] == [tp]


def test_topics_that_come_and_go_are_found(scanner: Scanner, log: LocalLog) -> None:
    log.create_topic("u", 1, TopicConfig(seal_ms=-1))
    assert [seen.tp.topic for seen in scanner.scan(whole=False).seen] == ["u"]
    log.delete_topic("u")
    assert scanner.scan(whole=False).gone == [TopicPartition("u", 0)]
