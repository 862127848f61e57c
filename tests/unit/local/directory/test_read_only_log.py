"""What a look at a log directory sees, and that those who look agree on what is a partition of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.local.counting import CountingFiles
from tiered.check.findings import Finding
from tiered.check.local import LocalCheck
from tiered.clock import SystemClock
from tiered.config import TopicConfig
from tiered.engine.scanner import Scanner
from tiered.errors import LogDestroyedError, NotFoundError
from tiered.format.batch import decode_records
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import DirectoryView, LogView
from tiered.local.disk.files import PosixFiles
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock

UID = "0123456789abcdef0123456789abcdef"
TP = TopicPartition("t", 0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """One topic, and beside it what is no partition of ours."""
    path = tmp_path / "log"
    with LocalLog.open(path) as log:
        log.create_topic("t", 1)
        log.partition(TP)
    source = path / "t-0"
    for name in ("__cluster_metadata-0", f"t-1.{UID}-delete", f"t-2.{UID}-future", f"t-3.{UID}-stray", "lost+found"):
        (path / name).mkdir()
    for file in source.iterdir():
        (path / "__cluster_metadata-0" / file.name).write_bytes(file.read_bytes())
    for name in (".Trash-1000", ".snapshot", "@eaDir", "backup-2024"):  # of a volume, or of a user: no partitions
        (path / name).mkdir()
        (path / name / "a file").write_bytes(b"x")
    return path


def test_what_lies_in_a_directory(directory: Path) -> None:
    seen = DirectoryView.read(directory, PosixFiles())
    assert seen.partitions == {TP: directory / "t-0"}
    found = {kind: [folder.tp for folder in seen.renamed(kind)] for kind in ("delete", "future", "stray")}
    assert found == {
        "delete": [TopicPartition("t", 1)],
        "future": [TopicPartition("t", 2)],
        "stray": [TopicPartition("t", 3)],
    }
    assert seen.strange == []


def test_a_directory_of_segments_under_another_name_is_strange(directory: Path) -> None:
    (directory / "lost+found" / "00000000000000000000.log").write_bytes(b"")
    seen = DirectoryView.read(directory, PosixFiles())
    assert [(folder.name, folder.refusal.message) for folder in seen.strange] == [
        ("lost+found", "directory 'lost+found' is not named topic-partition")
    ]


def test_all_who_look_see_the_same_partitions(directory: Path) -> None:
    files = PosixFiles()
    with LogView.open(directory) as log:
        assert log.partitions() == [TP]
        assert list(log.topics()) == ["t"]
    scanner = Scanner(directory, files, SystemClock())
    scanner.scan()
    assert scanner.seen(TP).tp == TP
    assert list(scanner.topics()) == ["t"]  # the metadata log is of the broker, and never uploaded
    check = LocalCheck(directory, files, compacted=lambda _: False, topics=frozenset())
    seen = [one for together in check.run() for one in together if isinstance(one, Finding)]
    assert [finding.code for finding in seen if finding.code != "renamed_directory"] == []
    assert list(check.facts.partitions) == [TP]


def test_an_open_for_writing_makes_no_partition_of_the_directories_of_a_volume(directory: Path) -> None:
    with LocalLog.open(directory) as log:
        assert (log.partitions(), list(log.topics())) == ([TP], ["t"])
    assert [path.name for path in (directory / ".Trash-1000").iterdir()] == ["a file"]


def test_one_partition_is_found_without_a_look_at_the_others(tmp_path: Path) -> None:
    files = CountingFiles()
    with LocalLog.open(tmp_path) as log:
        log.create_topic("t", 8)
    view = LogView(tmp_path, files, SystemClock())
    assert list(view.topics()) == ["t"]
    before = files.small_bytes
    held = [view.held(TopicPartition("t", number)) for number in range(9)]
    assert [partition is not None for partition in held] == [True] * 8 + [False]
    assert files.small_bytes == before
    (tmp_path / "t-3").rename(tmp_path / f"t-3.{UID}-delete")
    assert view.held(TopicPartition("t", 3)) is None


def test_what_a_broker_has_not_is_told_without_a_look_at_the_others(tmp_path: Path) -> None:
    files = CountingFiles()
    for number in range(8):
        folder = tmp_path / f"t-{number}"
        folder.mkdir()
        (folder / "00000000000000000000.log").touch()
        (folder / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    view = LogView(tmp_path, files, SystemClock())
    topic = view.topics()["t"]
    assert topic.adopted
    before = files.small_bytes
    for number in (8, 9):
        view.check_absent(TopicPartition("t", number), topic.topic_id)
    assert files.small_bytes == before
    for number in range(8):
        (tmp_path / f"t-{number}").rename(tmp_path / f"t-{number}.{UID}-delete")
    with pytest.raises(LogDestroyedError, match="any more: it was deleted"):
        view.check_absent(TopicPartition("t", 8), topic.topic_id)


def test_a_partition_that_has_left_the_disk_is_not_an_empty_one(tmp_path: Path) -> None:
    """Whoever holds its face reads on while a broker deletes the topic: that is no log without records."""
    with LocalLog.open(tmp_path) as log:
        log.create_topic("t", 1)
        log.partition(TP)
    view = LogView.open(tmp_path, clock=FakeClock())
    fresh, known = view.partition(TP), LogView.open(tmp_path, clock=FakeClock()).partition(TP)
    assert known.positions().end_offset == 0
    (tmp_path / "t-0").rename(tmp_path / f"t-0.{UID}-delete")
    for partition in (fresh, known):
        with pytest.raises(NotFoundError, match="is gone"):
            partition.positions()
        with pytest.raises(NotFoundError, match="is gone"):
            list(partition.read_batches(0))


def test_a_topic_that_was_made_again_between_two_looks_is_another(tmp_path: Path) -> None:
    clock = FakeClock()
    with LocalLog.open(tmp_path, clock=clock) as log:
        log.create_topic("t", 1, TopicConfig(cleanup_policy="compact"))
        log.partition(TP).append([NewRecord(b"old", b"key")])
        reader = LogView.open(tmp_path, clock=clock)
        assert reader.partition(TP).positions().end_offset == 1
        log.delete_topic("t")
        made = log.create_topic("t", 1, TopicConfig(retention_ms=5))
        log.partition(TP).append([NewRecord(b"new"), NewRecord(b"newer")])
        assert reader.topics()["t"].topic_id == made.topic_id
        found = reader.partition(TP)
        assert (found.topic_id, found.config.cleanup_policy, found.config.retention_ms) == (made.topic_id, "delete", 5)
        assert [r.value for data in found.read_batches(0) for r in decode_records(data)] == [b"new", b"newer"]
        reader.close()
