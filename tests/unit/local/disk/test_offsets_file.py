"""A checkpoint of a log directory is read once, however many partitions ask it; what replaces it is seen at once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import tiered
from tiered.errors import CorruptionError, NewerFormatError
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.directory_files import LOG_START_NAME, RECOVERY_POINT_NAME, REPLICATION_NAME, OffsetsFile
from tiered.local.disk.files import PosixFiles
from tiered.model import TopicPartition

NAME = RECOVERY_POINT_NAME
ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


class Reading(PosixFiles):
    """Counts how often each small file is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_names: list[str] = []

    def read(self, path: Path) -> bytes:
        self.read_names.append(path.name)
        return super().read(path)


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    return [record.getMessage().split()[0] for record in caplog.records].count("checkpoint_damaged")


def test_it_is_read_again_only_after_somebody_replaced_it(tmp_path: Path) -> None:
    files, theirs = Reading(), OffsetsFile(tmp_path, NAME, PosixFiles())
    mine = OffsetsFile(tmp_path, NAME, files)
    assert mine.read() == {}
    for offsets in ({ONE: 5}, {ONE: 6}, {ONE: 6, TWO: 1}):
        theirs.write(offsets)
        assert [mine.read(), mine.read_whole("all"), mine.read()] == [offsets] * 3
    assert files.read_names == [NAME] * 3
    mine.write({TWO: 9})
    assert (mine.read(), theirs.read(), files.read_names) == ({TWO: 9}, {TWO: 9}, [NAME] * 3)
    mine.path.unlink()
    assert (mine.read(), mine.read_whole("all")) == ({}, {})


def test_damage_is_told_once_for_each_file_and_is_never_an_empty_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = OffsetsFile(tmp_path, NAME, PosixFiles())
    for number, wrong in enumerate((b"0\n1\nt 0 ?\n", b"\xff")):
        PosixFiles().replace(mine.path, wrong)
        for _ in range(3):
            assert (mine.read(), mine.damaged) == ({}, True)
            with pytest.raises(CorruptionError, match="cannot be read") as refused:
                mine.read_whole("what is lost")
            assert refused.value.hint == "what is lost"
        assert warnings(caplog) == number + 1
    PosixFiles().replace(mine.path, b"1\n0\n")
    for _ in range(2):
        with pytest.raises(NewerFormatError) as newer:
            mine.read_whole("all")
        assert newer.value.hint == "upgrade tieredlog; nothing was changed"
    mine.write({ONE: 2})
    assert (mine.read(), mine.damaged) == ({ONE: 2}, False)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_look_at_many_partitions_reads_each_checkpoint_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: bool
) -> None:
    caplog.set_level(logging.WARNING)
    with tiered.open(tmp_path) as log:
        topic = log.topic("t", create=True, partitions=20)
        for partition in range(20):
            topic.append(b"x", partition=partition)
    if damaged:
        PosixFiles().replace(tmp_path / NAME, b"0\n1\nt 0 ?\n")
    files = Reading()
    view = LogView.open(tmp_path, files=files)
    logs = [view.partition(TopicPartition("t", partition)) for partition in range(20)]
    flushed = [log.positions().flushed_offset for log in logs]
    assert flushed == [0 if damaged else 1] * 20
    told = [files.read_names.count(name) for name in (RECOVERY_POINT_NAME, LOG_START_NAME, REPLICATION_NAME)]
    assert told == [1, int((tmp_path / LOG_START_NAME).exists()), 0]
    assert warnings(caplog) == damaged
