"""Looks at a log directory that cost little where nothing changes, and miss nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.engine import sealed_in
from tests.unit.engine.world import topic_id, tp
from tiered.config import TopicConfig
from tiered.engine.partition import SegmentRef
from tiered.engine.scanner import COLD_LOOKS, Look, Scanner
from tiered.errors import CorruptionError, NotFoundError
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.files import PosixFiles
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock

FILES = PosixFiles()

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


def test_a_partition_whose_folder_is_gone_is_out_of_service_until_it_is_back(scanner: Scanner, log: LocalLog) -> None:
    gone = append(log, 3)
    log.flush()
    log.checkpoint()
    folder = log.directory / "t-3"
    folder.rename(log.directory.parent / "aside")
    assert scanner.scan(whole=False).gone == [gone]
    error = scanner.broken[gone]
    assert isinstance(error, CorruptionError)
    assert (list(scanner.broken), error.offset) == ([gone], 1)
    (log.directory.parent / "aside").rename(folder)
    assert [seen.tp for seen in scanner.scan(whole=False).seen] == [gone]
    assert scanner.broken == {}


def test_the_scanner_tells_sealed_segments_once_and_never_reads_the_active_one(tmp_path: Path) -> None:
    clock = FakeClock()
    config = TopicConfig.from_properties({"segment.bytes": 2048, "segment.index.bytes": 1024})
    with LocalLog.open(tmp_path, clock=clock) as log:
        log.create_topic("t", 1, config, topic_id(1000))
        partition = log.partition(tp(0))
        for _ in range(30):
            partition.append([NewRecord(b"v" * 100)])
        scanner = Scanner(tmp_path, FILES, clock)
        look = scanner.scan()
        found = sealed_in(look)
        local = [segment.descriptor for segment in partition.sealed_segments()]
        assert [(s.base, s.end, s.size_bytes) for s in found] == [
            (d.base_offset, d.end_offset, d.size_bytes) for d in local
        ]
        (seen,) = look.seen
        assert (seen.local_start_offset, seen.end_offset) == (0, found[-1].end + 1)
        assert seen.active_bytes > 0
        assert look.writer
        assert scanner.scan() == Look()
        active = tmp_path / "t-0" / f"{found[-1].end:020d}.log"
        active.chmod(0)  # a look into it would fail, at least for those who are not root
        assert scanner.scan() == Look()
        active.chmod(0o644)
        partition.roll()
        assert [segment.base for segment in sealed_in(scanner.scan())] == [found[-1].end]
        segment = scanner.segment(tp(0), found[0])
        assert segment.descriptor == local[0]
    for path in sorted((tmp_path / "t-0").iterdir()):
        path.unlink()
    (tmp_path / "t-0").rmdir()
    assert scanner.scan().gone == [tp(0)]


def test_the_scanner_tells_a_topic_anew_that_was_made_again_since_the_last_scan(tmp_path: Path) -> None:
    """Its directory is there at both looks, with segments that begin where those of the deleted one did."""
    with LocalLog.open(tmp_path, clock=FakeClock()) as log:
        for name, number in (("t", 1000), ("u", 2000)):
            log.create_topic(name, 2, topic_id=topic_id(number))
            log.partition(TopicPartition(name, 0)).append([NewRecord(b"old")])
            log.partition(TopicPartition(name, 0)).roll()
        scanner = Scanner(tmp_path, FILES, FakeClock())
        scanner.scan()
        log.delete_topic("t")
        log.create_topic("t", 1, topic_id=topic_id(3000))
        log.partition(tp(0)).append([NewRecord(b"new")])
        log.partition(tp(0)).roll()
        with pytest.raises(NotFoundError, match="t-5 is not in"):
            scanner.segment(tp(5), SegmentRef(0, 1, 1, 0))
        look = scanner.scan()
        assert look.gone == [tp(0), tp(1)]
        (seen,), (again,) = look.seen, sealed_in(look)
        assert (seen.tp, seen.topic_id, again.base) == (tp(0), topic_id(3000), 0)
        segment = scanner.segment(tp(0), again)
        assert (segment.topic_id, scanner.topic_id(tp(0))) == (topic_id(3000), topic_id(3000))
        assert scanner.scan() == Look()


def test_the_scanner_names_a_directory_that_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"has no meta\.properties"):
        _ = Scanner(tmp_path, FILES, FakeClock()).volume_id
