"""Ctrl-C in the middle of an append, and a close beside appends: nothing acknowledged is lost, nothing is doubled."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tiered.config import TopicConfig
from tiered.errors import ClosedError, LocalIOError, TieredError
from tiered.format.batch import decode_records
from tiered.local.directory.manager import LocalLog
from tiered.local.disk.files import PosixFiles
from tiered.local.partition.partition import PartitionLog
from tiered.model import NewRecord, TopicPartition

TP = TopicPartition("t", 0)


class InterruptedFiles(PosixFiles):
    """Raises KeyboardInterrupt right after the n-th write of a ``.log`` that was armed for."""

    armed = False

    def write_at(self, handle: int, data: bytes, position: int) -> None:
        super().write_at(handle, data, position)
        if self.armed and len(data) > 60:
            self.armed = False
            raise KeyboardInterrupt


def values(log: LocalLog) -> list[bytes | None]:
    return [r.value for batch in log.partition(TP).read_batches(0) for r in decode_records(batch)]


def test_an_interrupt_inside_the_write_takes_the_partition_offline_until_it_is_opened_again(tmp_path: Path) -> None:
    files = InterruptedFiles()
    log = LocalLog.open(tmp_path, files=files)
    log.create_topic("t", 1, TopicConfig())
    partition = log.partition(TP)
    partition.append([NewRecord(b"acknowledged")])
    files.armed = True
    with pytest.raises(KeyboardInterrupt):
        partition.append([NewRecord(b"long " * 50)])
    with pytest.raises(LocalIOError, match=r"t-0 is offline: .*interrupted"):
        partition.append([NewRecord(b"short")])
    with pytest.raises(LocalIOError):
        log.close()
    with LocalLog.open(tmp_path) as again:
        assert values(again)[0] == b"acknowledged"
        offset = again.partition(TP).append([NewRecord(b"after")]).offset
        assert values(again)[offset] == b"after"
        assert len(values(again)) == offset + 1


class Appender(threading.Thread):
    """Appends until it is refused."""

    def __init__(self, partition: PartitionLog) -> None:
        super().__init__()
        self.partition = partition
        self.acknowledged = 0
        self.begun = threading.Event()
        self.refused: TieredError | None = None

    def run(self) -> None:
        try:
            while True:
                self.partition.append([NewRecord(b"x" * 50)])
                self.acknowledged += 1
                self.begun.set()
        except TieredError as error:
            self.refused = error


@pytest.mark.parametrize("segment_bytes", [500, 3000, 100_000])
def test_close_beside_appends_ends_them_with_a_closed_error(tmp_path: Path, segment_bytes: int) -> None:
    log = LocalLog.open(tmp_path)
    log.create_topic("t", 1, TopicConfig(segment_bytes=segment_bytes))
    appender = Appender(log.partition(TP))
    appender.start()
    appender.begun.wait()
    log.close()
    appender.join()
    assert isinstance(appender.refused, ClosedError)
    with LocalLog.open(tmp_path) as again:
        assert len(values(again)) == appender.acknowledged
