"""A partition that was opened and left as it was costs its close no fsync; one that was touched is made durable."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faulty_files import FaultyFiles
from tests.unit.local.opening import opened
from tiered.config import TopicConfig
from tiered.model import NewRecord, TopicPartition

TP = TopicPartition("t", 0)


def made(path: Path) -> None:
    with opened(path) as log:
        log.create_topic("t", 1, TopicConfig(seal_ms=-1))
        log.partition(TP).append([NewRecord(b"x"), NewRecord(b"y")])
        log.partition(TP).roll()
        log.partition(TP).append([NewRecord(b"z")])


def tree(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (path / "t-0").iterdir()}


def test_one_that_is_only_read_is_neither_written_nor_synced(tmp_path: Path) -> None:
    made(tmp_path)
    before = tree(tmp_path)
    files = FaultyFiles()
    with opened(tmp_path, files=files) as log:
        assert [batch.nbytes > 0 for batch in log.partition(TP).read_batches(0)] == [True, True]
        log.tick()
        files.effects.clear()
    assert [effect for effect in files.effects if effect[1].parent.name == "t-0"] == []
    assert tree(tmp_path) == before
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_one_that_got_a_record_is(tmp_path: Path) -> None:
    made(tmp_path)
    files = FaultyFiles()
    with opened(tmp_path, files=files) as log:
        log.partition(TP).append([NewRecord(b"w")])
        files.effects.clear()
    synced = {path.suffix for operation, path in files.effects if operation == "sync" and path.parent.name == "t-0"}
    assert synced >= {".log", ".index", ".timeindex"}


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_one_whose_indexes_are_not_those_of_a_clean_end_is(tmp_path: Path, suffix: str) -> None:
    made(tmp_path)
    before = tree(tmp_path)
    name = f"{2:020d}{suffix}"
    (tmp_path / "t-0" / name).write_bytes(before[name] + bytes(120))
    with opened(tmp_path) as log:
        log.partition(TP)
    assert tree(tmp_path)[name] == before[name]


def test_a_new_partition_is(tmp_path: Path) -> None:
    files = FaultyFiles()
    with opened(tmp_path, files=files) as log:
        log.create_topic("t")
        files.effects.clear()
    assert ("sync", tmp_path / "t-0" / f"{0:020d}.log") in files.effects
    assert {file.suffix for file in (tmp_path / "t-0").iterdir()} >= {".log", ".index", ".timeindex"}
