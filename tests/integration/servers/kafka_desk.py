"""One partition, open for writing in a broker's directory, and short ways to say what clients do to it.

What was appended is noted apart from the log, so that reading can be checked against it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.integration.servers.kafka import Seen
from tests.support.given import append_given
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.codecs import Codec
from tiered.format.control import ControlType, marker
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.partition.write_log import WriteLog
from tiered.model import NewRecord, RecordMetadata, TopicPartition
from tiered.testing.clock import FakeClock

LAST_SEQUENCE = 2**31 - 1


class Desk:
    """One partition, and what was appended to it: ``wrote`` by offset."""

    def __init__(self, log: LocalTier, tp: TopicPartition, clock: FakeClock) -> None:
        self.log, self.tp, self.clock = log, tp, clock
        self.dice = random.Random(str(tp))
        self.wrote: dict[int, Seen] = {}
        self.batches: list[range] = []

    @property
    def partition(self) -> WriteLog:
        return self.log.partition(self.tp)

    @property
    def end(self) -> int:
        return self.partition.positions().end_offset

    def records(self, count: int, keys: int = 9) -> list[NewRecord]:
        """Random records of now, a little out of order: null and empty values, headers."""
        found = []
        for _ in range(count):
            self.clock.advance(0.01)
            value = self.dice.choice([b"", b"v" * self.dice.randrange(200), self.dice.randbytes(60)])
            headers: list[tuple[str, bytes | None]] = self.dice.choice([[], [("h", b"1"), ("h", None), ("ü", b"")]])
            at = self.clock.now_ms() - self.dice.randrange(500)
            found.append(NewRecord(value, b"key-%d" % self.dice.randrange(keys), at, headers))
        return found

    def note(self, records: Sequence[NewRecord], told: RecordMetadata) -> None:
        """What an append of ``records`` must have done."""
        append_time = self.partition.config.message_timestamp_type == "LogAppendTime"
        assert told.end_offset - told.offset == len(records)
        self.batches.append(range(told.offset, told.end_offset))
        for offset, record in enumerate(records, told.offset):
            at = self.clock.now_ms() if append_time else record.timestamp
            self.wrote[offset] = Seen(
                offset, at, int(append_time), record.key, record.value, list(record.headers or [])
            )

    def append(self, batches: int = 1, most: int = 8) -> None:
        """Batches of nobody."""
        for _ in range(batches):
            records = self.records(self.dice.randint(1, most))
            self.note(records, self.partition.append(records))

    def send(
        self,
        pid: int,
        sequence: int,
        count: int = 1,
        *,
        epoch: int = 0,
        txn: bool = False,
        codec: Codec = Codec.NONE,
        keys: int = 9,
    ) -> int:
        """A producer's batch; returns its next sequence."""
        records = self.records(count, keys)
        data = encode_batch(records, codec=codec, producer=BatchProducer(pid, epoch, sequence, transactional=txn))
        self.note(records, self.partition.append_batches(data))
        return (sequence + count) % (LAST_SEQUENCE + 1)

    def end_txn(self, pid: int, *, abort: bool = False, epoch: int = 0, coordinator: int = 0) -> None:
        """The coordinator's marker."""
        record = marker(ControlType.ABORT if abort else ControlType.COMMIT, coordinator, self.clock.now_ms())
        self.partition.append_as_coordinator(
            encode_batch([record], producer=BatchProducer(pid, epoch, transactional=True, control=True))
        )

    def follow(self, base: int, count: int = 1, *, epoch: int = 0) -> None:
        """A batch with an offset of its own, as a broker gave it."""
        records = self.records(count)
        self.note(records, append_given(self.partition, encode_batch(records, base_offset=base, leader_epoch=epoch)))

    def clean(self) -> None:
        """Seals what there is and cleans it once."""
        self.partition.roll()
        for log in self.log.logs().values():
            if self.tp in log.partitions():
                assert log.cleaner.clean(self.tp) is not None

    def truncate(self, offset: int) -> None:
        """A batch that reaches beyond goes whole."""
        self.partition.truncate_to(offset)
        for batch in self.batches:
            if batch[-1] >= offset:
                for gone in batch:
                    self.wrote.pop(gone, None)
