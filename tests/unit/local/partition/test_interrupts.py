"""Ctrl-C in the middle of an append, and a close beside appends: nothing acknowledged is lost, nothing is doubled."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tiered.config import TopicConfig
from tiered.errors import ClosedError, TieredError
from tiered.format.batch import decode_records
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.files import PosixFiles
from tiered.local.partition.write_log import WriteLog
from tiered.model import NewRecord, TopicPartition
from tiered.plan.producer import ProducerStamp

TP = TopicPartition("t", 0)


def values(log: LocalLog) -> list[bytes | None]:
    return [r.value for batch in log.partition(TP).read_batches(0) for r in decode_records(batch)]


class InterruptedAt(PosixFiles):
    """Raises KeyboardInterrupt once, right after an effect on a file with this suffix."""

    def __init__(self, effect: str, suffix: str) -> None:
        super().__init__()
        self.effect, self.suffix = effect, suffix
        self.armed = False
        self.paths: dict[int, Path] = {}

    def open_write(self, path: Path) -> int:
        handle = super().open_write(path)
        self.paths[handle] = path
        self.strike("open", path)
        return handle

    def write_at(self, handle: int, data: bytes | bytearray | memoryview, position: int) -> None:
        super().write_at(handle, data, position)
        self.strike("write", self.paths[handle])

    def strike(self, effect: str, path: Path) -> None:
        if self.armed and effect == self.effect and path.suffix == self.suffix:
            self.armed = False
            raise KeyboardInterrupt


def test_an_interrupt_between_a_marker_and_its_index_entry_never_shows_what_was_aborted(tmp_path: Path) -> None:
    files = InterruptedAt("write", ".txnindex")
    log = LocalLog.open(tmp_path, files=files)
    log.create_topic("t", 1, TopicConfig())
    producer = log.transactions.begin("x")
    log.transactions.join(producer, [TP])
    log.partition(TP).append_as_producer([NewRecord(b"aborted")], ProducerStamp(*producer[1:], 0))
    files.armed = True
    with pytest.raises(KeyboardInterrupt):
        log.transactions.end(producer, commit=False)
    with LogView.open(tmp_path) as reader:  # another process meanwhile
        seen = reader.partition(TP)
        assert (seen.last_stable_offset() == 0) or seen.aborted_txns(0, 1)
    assert log.partition(TP).append([NewRecord(b"more")]).offset == 1
    log.close()
    with LocalLog.open(tmp_path) as again:
        assert again.partition(TP).open_txns() == []
        assert [txn.first_offset for txn in again.partition(TP).aborted_txns(0, 9)] == [0]


class Appender(threading.Thread):
    """Appends until it is refused."""

    def __init__(self, partition: WriteLog) -> None:
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


def test_a_topic_whose_making_was_interrupted_can_be_made_at_once(tmp_path: Path) -> None:
    files = InterruptedAt("open", ".log")
    log = LocalLog.open(tmp_path, files=files)
    files.armed = True
    with pytest.raises(KeyboardInterrupt):
        log.create_topic("t", 2, TopicConfig())
    assert "t" not in log.topics()
    topic = log.create_topic("t", 2, TopicConfig())
    log.partition(TP).append([NewRecord(b"v")])
    log.close()
    with LocalLog.open(tmp_path) as again:
        assert (again.topics(), values(again)) == ({"t": topic}, [b"v"])
        again.delete_topic("t")
        assert again.create_topic("t").topic_id != topic.topic_id
