"""A log over several directories, and topics that are deleted, through the facade."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tiered.errors import ConfigError, NotFoundError, UnknownTopicError


def test_several_paths_are_one_log(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(NotFoundError):
        tiered.open(paths, create=False)
    with tiered.open(paths) as log:
        topic = log.topic("t", partitions=4, create=True)
        for p in range(4):
            topic.append(b"%d" % p, partition=p)
        log.flush()
        assert [len(list(path.glob("t-*"))) for path in paths] == [2, 2]
    with tiered.open([str(path) for path in paths], create=False) as log:
        topic = log.topic("t", partitions=4)
        assert [record.value for p in range(4) for record in topic.read(p)] == [b"0", b"1", b"2", b"3"]
        assert len(log.positions()) == 4


def test_a_topic_is_deleted_and_made_again(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True).append(b"x")
        log.delete_topic("t")
        assert log.topics() == {}
        with pytest.raises(UnknownTopicError):
            log.delete_topic("t")
        assert log.topic("t", create=True).append(b"y").offset == 0
    with tiered.open(tmp_path / "tiered", remote=f"file://{tmp_path}/store") as log:
        log.topic("t", create=True)
        with pytest.raises(ConfigError, match="is tiered"):
            log.delete_topic("t")
