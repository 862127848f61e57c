"""Sealing many partitions writes the checkpoints, which name them all, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered.errors import TieredError
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.directory_files import RECOVERY_POINT_NAME, OffsetsFile
from tiered.local.disk.files import FileState, PosixFiles
from tiered.model import NewRecord, TopicPartition


class Counting(PosixFiles):
    def __init__(self) -> None:
        self.replaced: list[str] = []

    def replace(self, path: Path, data: bytes) -> FileState:
        self.replaced.append(path.name)
        return super().replace(path, data)


@pytest.mark.parametrize("partitions", [2, 15])
def test_once_at_the_end_however_many_are_sealed(tmp_path: Path, partitions: int) -> None:
    files = Counting()
    with LocalLog.open(tmp_path, files=files) as log:
        log.create_topic("t", partitions)
        for tp in log.partitions():
            log.partition(tp).append([NewRecord(b"x")])
        files.replaced.clear()
        with log.deferring_checkpoints(), log.deferring_checkpoints():
            for tp in log.partitions():
                log.partition(tp).roll()
            assert RECOVERY_POINT_NAME not in files.replaced
        assert files.replaced.count(RECOVERY_POINT_NAME) == 1
        assert OffsetsFile(tmp_path, RECOVERY_POINT_NAME, files).read() == dict.fromkeys(log.partitions(), 1)
        log.partition(TopicPartition("t", 0)).append([NewRecord(b"x")])
        log.partition(TopicPartition("t", 0)).roll()
        assert files.replaced.count(RECOVERY_POINT_NAME) == 2  # a seal by itself writes them at once


def test_also_when_one_of_them_fails(tmp_path: Path) -> None:
    with LocalLog.open(tmp_path) as log:
        log.create_topic("t", 2)
        log.partition(TopicPartition("t", 0)).append([NewRecord(b"x")])

        def seal_some() -> None:
            with log.deferring_checkpoints():
                log.partition(TopicPartition("t", 0)).roll()
                raise TieredError("in between")

        with pytest.raises(TieredError, match="in between"):
            seal_some()
        assert OffsetsFile(tmp_path, RECOVERY_POINT_NAME, PosixFiles()).read()[TopicPartition("t", 0)] == 1
