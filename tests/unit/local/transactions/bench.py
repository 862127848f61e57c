"""A log with two topics, a disk that fails on purpose, and a way to be gone without closing."""

from __future__ import annotations

from pathlib import Path

from tests.support.faulty_files import FaultyFiles
from tiered.config import LogConfig, TopicConfig
from tiered.format.batch import decode_records, read_header
from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, TopicPartition
from tiered.plan.producer import ProducerStamp
from tiered.testing.clock import FakeClock, SeededIds

A, B, C = (TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("ledger", 0))
STATE = TopicPartition("__transaction_state", 0)
SETTINGS = LogConfig(disk_reserve_bytes=0)


class TxnBench:
    """``directory`` is opened at once; topics are made at the first open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = FaultyFiles()
        self.clock = FakeClock()
        self.ids = SeededIds(7)
        self.open()
        if "orders" not in self.log.topics():
            self.log.create_topic("orders", 2, TopicConfig())
            self.log.create_topic("ledger", 1, TopicConfig())

    def open(self) -> None:
        self.log = LocalLog.open(self.directory, clock=self.clock, ids=self.ids, files=self.files, config=SETTINGS)

    def kill(self) -> None:
        """The process is gone: files as they are, no lock, no clean mark."""
        lock = self.log._directory_lock
        if lock._handle is not None:
            lock._release()
        for writer in self.log.awake():
            for segment in (*writer.segments.closing, writer.segments.active):
                segment.close()

    def transact(
        self, name: str, value: bytes, *, commit: bool = True, at: tuple[TopicPartition, ...] = (A, B)
    ) -> None:
        """One record of ``value`` into each partition, in one transaction that is ended."""
        producer = self.log.transactions.begin(name)
        for tp in at:
            self.log.transactions.join(producer, [tp])
            stamp = ProducerStamp(producer.producer_id, producer.producer_epoch, 0)
            self.log.partition(tp).append_as_producer([NewRecord(value)], stamp)
        self.log.transactions.end(producer, commit=commit)

    def committed(self, tp: TopicPartition) -> list[bytes]:
        """Values that ``read_committed`` gives."""
        partition = self.log.partition(tp)
        end = partition.last_stable_offset()
        aborted = partition.aborted_txns(0, end)
        found = []
        for batch in partition.read_batches(0, end):
            header = read_header(batch)
            gone = any(
                t.producer_id == header.producer_id and t.first_offset <= header.base_offset <= t.last_offset
                for t in aborted
            )
            if not header.is_control and not gone:
                found += [record.value or b"" for record in decode_records(batch) if record.offset < end]
        return found

    def stuck(self) -> list[TopicPartition]:
        """Partitions in which a transaction is open."""
        return [tp for tp in (A, B, C) if self.log.partition(tp).open_txns()]

    def states(self) -> dict[str, str]:
        """The newest state of each transactional id."""
        return {name: value.state.name for name, value in self.log.transactions.describe().items()}
