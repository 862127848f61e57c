"""A call that is refused leaves neither files nor objects, and says what is so of the name that it was given."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tiered.clock import SystemClock, SystemIds
from tiered.engine.disk import LogDirectory
from tiered.errors import ConfigError, NotFoundError, UnknownTopicError

STATE = "__transaction_state"


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/bucket"
    with tiered.open(tmp_path / "first", url) as log:
        log.topic("t", partitions=2, create=True).append(b"v")
        log.sync(timeout=60)
    return url


def test_a_topic_of_the_bucket_that_is_asked_for_otherwise_makes_no_partition(tmp_path: Path, bucket: str) -> None:
    with tiered.open(tmp_path / "second", bucket) as log:
        with pytest.raises(ConfigError, match="2 partitions, not 5"):
            log.topic("t", create=True, partitions=5)
        with pytest.raises(ConfigError, match=r"other settings: seal\.ms is 600000, not 5"):
            log.topic("t", create=True, config={"seal.ms": 5})
        assert log.topics() == {}
    assert not list((tmp_path / "second").glob("t-*"))


def test_the_state_of_transactions_is_never_a_topic_of_the_bucket(tmp_path: Path, bucket: str) -> None:
    with tiered.open(tmp_path / "first", bucket) as log:
        with pytest.raises(UnknownTopicError, match=f"there is no {STATE} in") as raised:
            log.topic(STATE, create=True)
        assert raised.value.hint == "the first transaction or the first commit of a consumer creates it"
        with log.topic("t").transaction("id") as txn:
            txn.append(b"w", partition=0)
        assert log.topic(STATE).partitions == 1  # of this disk, to be looked at
        log.sync(timeout=60)
    with tiered.open_reader(bucket) as reader:
        assert list(reader.topics()) == ["t"]


def test_what_is_no_topic_of_a_tiered_log_is_not_called_tiered(tmp_path: Path, bucket: str) -> None:
    with tiered.open(tmp_path / "first", bucket) as log:
        with pytest.raises(UnknownTopicError, match="there is no topic tt in") as raised:
            log.delete_topic("tt")
        assert raised.value.hint == "did you mean t?"
        with pytest.raises(ConfigError, match="topic t is not deleted: it is tiered"):
            log.delete_topic("t")


def test_an_uploader_locks_no_directory_that_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is not a log directory"):
        LogDirectory(tmp_path, clock=SystemClock(), ids=SystemIds()).acquire()
    assert names(tmp_path) == set()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file, not a log directory"):
        LogDirectory(tmp_path / "file", clock=SystemClock(), ids=SystemIds()).acquire()
