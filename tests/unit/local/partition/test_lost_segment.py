"""A segment whose ``.log`` is gone when its log is opened: what is left of it tells of it, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, TopicPartition

TP = TopicPartition("t", 0)
FIRST = "00000000000000000000"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a partition of three segments with a record each, closed cleanly."""
    with LocalLog.open(tmp_path) as log:
        log.create_topic("t", 1)
        partition = log.partition(TP)
        for part in range(3):
            partition.append([NewRecord(b"%d" % part, None, 1_700_000_000_000 + part)])
            partition.roll()
    return tmp_path / "t-0"


def opened(folder: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What an open says of segments that are gone; the log begins behind the first one."""
    caplog.clear()
    with LocalLog.open(folder.parent) as log:
        assert log.partition(TP).positions().start_offset == 1
    return [text for record in caplog.records if (text := record.getMessage()).startswith("segment_log_gone")]


def test_the_open_that_removes_what_is_left_of_a_segment_tells(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / f"{FIRST}.log").unlink()
    assert opened(folder, caplog) == [
        f"segment_log_gone path={folder / FIRST}.timeindex reason=it names records that were not deleted"
    ]
    assert not list(folder.glob(f"{FIRST}.*"))
    assert opened(folder, caplog) == []


def test_a_deletion_that_was_killed_is_no_loss(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / f"{FIRST}.log").rename(folder / f"{FIRST}.log.deleted")
    assert opened(folder, caplog) == []
    assert not list(folder.glob(f"{FIRST}.*"))
