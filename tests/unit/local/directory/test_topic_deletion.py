"""Topics leave, directories of all names are met, and a crash anywhere in between is finished by the next open."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.faulty_files import FaultyFiles
from tests.unit.local.opening import opened
from tiered.config import TopicConfig
from tiered.errors import ClosedError, ConfigError, LocalPermissionError, LockedError, UnknownTopicError
from tiered.format.local_names import parse_partition_dir
from tiered.local.disk.uploader_files import PartitionUpload, uploader_lock
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock

UID = "0123456789abcdef0123456789abcdef"


def directories(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir())


@pytest.mark.parametrize("kind", ["delete", "future", "stray"])
def test_case_35_renamed_directories_are_parsed_and_are_no_partitions(tmp_path: Path, kind: str) -> None:
    name = f"topic.with.dot-0.{UID}-{kind}"
    parsed = parse_partition_dir(name)
    assert (parsed.tp, parsed.kind) == (TopicPartition("topic.with.dot", 0), kind)
    (tmp_path / name).mkdir()
    with opened(tmp_path) as log:
        assert log.partitions() == []
        assert directories(tmp_path) == ([] if kind == "delete" else [name])


@pytest.mark.parametrize("name", ["foo", "-0", "topic-", "topic-abc", f"topic.{UID}-delete", "topic-0.a b-stray"])
def test_case_35_unparsable_directories_are_an_error_that_names_them(tmp_path: Path, name: str) -> None:
    for path in (tmp_path / name, tmp_path / "bar"):
        path.mkdir()
        (path / "00000000000000000000.log").write_bytes(b"")
    with pytest.raises(ConfigError, match="not named topic-partition") as caught:
        opened(tmp_path)
    assert name in caught.value.message
    assert "bar" in caught.value.message
    assert str(tmp_path) in caught.value.message


@pytest.mark.parametrize("length", [240, 245, 249])
def test_case_36_long_names_are_cut_and_deletable(tmp_path: Path, length: int) -> None:
    topic, clock = "x" * length, FakeClock()
    with opened(tmp_path, clock) as log:
        log.create_topic(topic, 1, TopicConfig(file_delete_delay_ms=1000))
        (renamed,) = log.delete_topic(topic)
        assert len(renamed.name) <= 255
        assert parse_partition_dir(renamed.name).kind == "delete"
        clock.advance(1)
        log.tick()
        assert directories(tmp_path) == []


def test_a_linked_partition_leaves_nothing_on_its_disk(tmp_path: Path) -> None:
    clock, disk = FakeClock(), tmp_path / "disk"
    disk.mkdir()
    path = tmp_path / "log"
    with opened(path, clock) as log:
        log.create_topic("t", 1, TopicConfig(file_delete_delay_ms=1000))
    (path / "t-0").rename(disk / "t-0")
    (path / "t-0").symlink_to(disk / "t-0")
    with opened(path, clock) as log:
        log.partition(TopicPartition("t", 0)).append([NewRecord(b"x")])
        log.delete_topic("t")
        assert (disk / "t-0").is_dir()
        clock.advance(1)
        log.tick()
        assert (directories(path), list(disk.iterdir())) == ([], [])
        assert [each.name for each in path.iterdir() if each.is_symlink()] == []


def test_case_44_directories_exist_until_the_delay_is_over(tmp_path: Path) -> None:
    clock = FakeClock()
    with opened(tmp_path, clock) as log:
        log.create_topic("t", 2, TopicConfig(file_delete_delay_ms=1000))
        log.create_topic("u", 1)
        partition = log.partition(TopicPartition("t", 0))
        partition.append([NewRecord(b"x")])
        log.delete_topic("t")
        assert list(log.topics()) == ["u"]
        assert log.partitions() == [TopicPartition("u", 0)]
        with pytest.raises(ClosedError):
            partition.append([NewRecord(b"y")])
        with pytest.raises(UnknownTopicError):
            log.delete_topic("t")
        clock.advance(0.999)
        log.tick()
        assert [parse_partition_dir(name).kind for name in directories(tmp_path)] == ["delete", "delete", ""]
        assert any(path.suffix == ".log" for path in (tmp_path / directories(tmp_path)[0]).iterdir())
        clock.advance(0.001)
        log.tick()
        assert directories(tmp_path) == ["u-0"]


def test_a_removal_that_fails_is_tried_again(tmp_path: Path) -> None:
    clock, files = FakeClock(), FaultyFiles()
    with opened(tmp_path, clock, files) as log:
        log.create_topic("t", 2, TopicConfig(file_delete_delay_ms=0))
        first, second = log.delete_topic("t")
        files.fail = lambda operation, path: errno.EACCES if operation == "unlink" and path.parent == first else 0
        with pytest.raises(LocalPermissionError):
            log.tick()
        assert first.exists()
        assert not second.exists()
        status = {task.name: task for task in log.tasks.status()}["deletion"]
        assert (status.failures, bool(status.last_error)) == (1, True)
        files.fail = None
        log.tick()
        assert not first.exists()


def test_a_topic_of_the_same_name_starts_anew(tmp_path: Path) -> None:
    tp = TopicPartition("t", 0)
    with opened(tmp_path) as log:
        old = log.create_topic("t")
        log.partition(tp).append([NewRecord(b"x")] * 5)
        log.claims.write(tp, token="a" * 32)
        log.uploads.update({tp: PartitionUpload(5, 1), TopicPartition("u", 0): PartitionUpload(3, 1)})
        log.delete_topic("t")
        assert log.create_topic("t").topic_id != old.topic_id
        assert log.partition(tp).positions().uploaded_offset == 0
        assert log.partition(tp).append([NewRecord(b"y")]).offset == 0
        assert log.claims.read() == {}
        assert list(log.uploads.read()) == [TopicPartition("u", 0)]


def test_a_tiered_topic_is_not_deleted_under_an_uploader(tmp_path: Path) -> None:
    clock, tp = FakeClock(), TopicPartition("t", 0)
    with opened(tmp_path, clock) as log:
        log.create_topic("t")
        log.uploads.update({tp: PartitionUpload(0, 1)})
        with uploader_lock(tmp_path, log.files).held_while(clock), pytest.raises(LockedError):
            log.delete_topic("t")
        assert log.partition(tp).append([NewRecord(b"x")]).offset == 0
        log.delete_topic("t")
