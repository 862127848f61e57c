"""Partitions that nobody has asked for since a clean shutdown: three numbers, until they are needed."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.faulty_files import FaultyFiles
from tests.unit.local.opening import opened
from tiered.config import TopicConfig
from tiered.errors import CorruptionError, LocalPermissionError, UnknownTopicError
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import PartitionUpload, SealRequest, UploadCheckpoint
from tiered.local.partition.open_partitions import WAKE_AT_ONCE
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock

COUNT = WAKE_AT_ONCE + 6


def made(path: Path, clock: FakeClock, **config: int) -> None:
    with opened(path, clock) as log:
        log.create_topic("t", COUNT, TopicConfig(**config))  # type: ignore[arg-type]  # numbers only
        for tp in log.partitions():
            log.partition(tp).append([NewRecord(b"x"), NewRecord(b"y")])


def test_a_clean_directory_opens_without_opening_its_partitions(tmp_path: Path) -> None:
    clock = FakeClock()
    made(tmp_path, clock)
    files = FaultyFiles()
    with opened(tmp_path, clock, files) as log:
        assert log.roster.sleeping_count() == COUNT
        assert len(log.partitions()) == COUNT
        log.flush()
        log.checkpoint()
        assert log.roster.sleeping_count() == COUNT
        assert not [path for operation, path in files.effects if path.suffix == ".log"]
        tp = TopicPartition("t", 3)
        assert log.partition(tp).append([NewRecord(b"z")]).offset == 2
        assert log.partition(tp) is log.partition(tp)
        assert log.roster.sleeping_count() == COUNT - 1
    with opened(tmp_path, clock) as log:
        assert log.roster.sleeping_count() == COUNT
        ends = {tp: log.partition(tp).positions().end_offset for tp in log.partitions()}
        assert ends == {tp: 3 if tp.partition == 3 else 2 for tp in ends}


def test_those_with_timers_are_woken_a_few_at_a_time_and_sealed(tmp_path: Path) -> None:
    clock = FakeClock()
    made(tmp_path, clock, seal_ms=1000)
    clock.advance(2)
    with opened(tmp_path, clock) as log:
        log.tick()
        assert log.roster.sleeping_count() == COUNT - WAKE_AT_ONCE
        log.tick()
        assert log.roster.sleeping_count() == 0
        assert all(len(log.partition(tp).sealed_segments()) == 1 for tp in log.partitions())


def test_those_without_timers_sleep_on(tmp_path: Path) -> None:
    clock = FakeClock()
    made(tmp_path, clock, seal_ms=-1)
    with opened(tmp_path, clock) as log:
        log.tick()
        assert log.roster.sleeping_count() == COUNT


def test_what_the_bucket_holds_is_known_when_one_wakes(tmp_path: Path) -> None:
    clock, tp = FakeClock(), TopicPartition("t", 1)
    made(tmp_path, clock)
    with opened(tmp_path, clock) as log:
        log.uploads.update({tp: PartitionUpload(1, 4)})
        log.claims.write(TopicPartition("t", 2), token="a" * 32)
        log.tick()
    with opened(tmp_path, clock) as log:
        assert log.partition(tp).positions().uploaded_offset == 1
        assert log.partition(TopicPartition("t", 2)).delete_local_before(2) == []


def test_a_request_to_seal_wakes_them(tmp_path: Path) -> None:
    clock = FakeClock()
    made(tmp_path, clock, seal_ms=-1)
    with opened(tmp_path, clock) as log:
        SealRequest(tmp_path, PosixFiles()).write()
        clock.advance(1)
        log.tick()
        assert all(len(log.partition(tp).sealed_segments()) == 1 for tp in log.partitions())


def test_without_the_clean_mark_none_sleeps(tmp_path: Path) -> None:
    clock = FakeClock()
    made(tmp_path, clock)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    with opened(tmp_path, clock) as log:
        assert log.roster.sleeping_count() == 0


@pytest.mark.parametrize("tiered", [False, True])
def test_a_directory_that_vanished_is_not_made_again(tmp_path: Path, tiered: bool) -> None:
    clock, tp = FakeClock(), TopicPartition("t", 4)
    made(tmp_path, clock)
    if tiered:
        UploadCheckpoint(tmp_path, PosixFiles()).write({tp: PartitionUpload(2, 1)})
    for path in (tmp_path / "t-4").iterdir():
        path.unlink()
    (tmp_path / "t-4").rmdir()
    with opened(tmp_path, clock) as log:
        assert log.roster.sleeping_count() == COUNT - 1
        assert not (tmp_path / "t-4").exists()
        with pytest.raises(CorruptionError, match="it held records up to offset 2"):
            log.partition(tp)


def test_one_that_cannot_be_opened_keeps_no_other_asleep(tmp_path: Path) -> None:
    clock, bad = FakeClock(), {f"t-{p}" for p in range(WAKE_AT_ONCE)}
    made(tmp_path, clock, seal_ms=1000)
    files = FaultyFiles(lambda name, path: errno.EACCES if name == "open" and path.parent.name in bad else 0)
    clock.advance(2)
    with opened(tmp_path, clock, files) as log:
        for _ in range(2):
            with pytest.raises(LocalPermissionError):
                log.tick()
        assert log.roster.sleeping_count() == WAKE_AT_ONCE
        status = {task.name: task for task in log.tasks.status()}["waking"]
        assert (status.partitions, status.failures) == (COUNT - WAKE_AT_ONCE, 2)
        files.fail = None
        log.tick()
        assert log.roster.sleeping_count() == 0


def test_an_open_partition_has_no_dict_of_many_attributes(tmp_path: Path) -> None:
    """One costs 1,500 bytes where Python cannot share its keys: with more than 30 attributes."""
    clock = FakeClock()
    made(tmp_path, clock)
    with opened(tmp_path, clock) as log:
        writer = log.roster.wake(TopicPartition("t", 0))
        parts = [writer, *vars(writer).values(), writer.segments.active, writer.segments.active.indexes]
        large = [type(part).__name__ for part in parts if len(getattr(part, "__dict__", ())) > 30]
        assert (large, hasattr(writer.segments.active, "__dict__")) == ([], False)


def test_a_partition_whose_topic_is_being_deleted_is_none(tmp_path: Path) -> None:
    """The topic leaves the registry before its partitions leave the roster: who wakes one in between finds none."""
    clock = FakeClock()
    made(tmp_path, clock, seal_ms=1000)
    with opened(tmp_path, clock) as log:
        tp, topics = TopicPartition("t", 3), log.registry.topics
        log.registry.topics = {}
        assert (log.roster.find(tp), log.roster.next_to_wake()) == (None, [])
        with pytest.raises(UnknownTopicError, match="holds no partition t-3"):
            log.partition(tp)
        log.registry.topics = topics
        assert log.partition(tp).positions().end_offset == 2
