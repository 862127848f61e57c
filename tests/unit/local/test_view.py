"""What a look at a log directory sees, and that those who look agree on what is a partition of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered.care.check_local import LocalCheck
from tiered.clock import SystemClock
from tiered.findings import Finding
from tiered.local.directory.manager import LocalLog
from tiered.local.directory.view import DirectoryView
from tiered.local.disk.files import PosixFiles
from tiered.model import TopicPartition
from tiered.tiering.discover import Scanner

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
    return path


def test_what_lies_in_a_directory(directory: Path) -> None:
    seen = DirectoryView.look(directory, PosixFiles())
    assert seen.partitions == {TP: directory / "t-0"}
    found = {kind: [folder.tp for folder in seen.renamed(kind)] for kind in ("delete", "future", "stray")}
    assert found == {
        "delete": [TopicPartition("t", 1)],
        "future": [TopicPartition("t", 2)],
        "stray": [TopicPartition("t", 3)],
    }
    assert [(folder.name, folder.refusal.message) for folder in seen.strange] == [
        ("lost+found", "directory 'lost+found' is not named topic-partition")
    ]


def test_all_who_look_see_the_same_partitions(directory: Path) -> None:
    files = PosixFiles()
    with LocalLog.open(directory, read_only=True) as log:
        assert log.partitions() == [TP]
    scanner = Scanner(directory, files, SystemClock())
    scanner.scan()
    assert scanner.seen(TP).tp == TP
    assert list(scanner.topics()) == ["t"]  # the metadata log is of the broker, and never uploaded
    check = LocalCheck(directory, files, compacted=lambda _: False, topics=frozenset())
    seen = [one for together in check.look() for one in together if isinstance(one, Finding)]
    assert [finding.code for finding in seen if finding.code != "renamed_directory"] == []
    assert list(check.facts.partitions) == [TP]
