"""One idempotent or transactional producer of a :class:`~tiered.testing.model.ModelLog`, by Kafka's rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tiered.errors import InvalidTxnStateError, OutOfOrderSequenceError, ProducerFencedError
from tiered.format.producer_snapshot import ProducerEntry

SEQUENCES = 2**31
WINDOW = 5


class Stamp(NamedTuple):
    """What a producer writes into a batch; ``sequence`` of its first record, -1 in a marker."""

    producer_id: int
    epoch: int
    sequence: int = -1


class Written(NamedTuple):
    """One of a producer's newest batches."""

    sequence: int
    first_offset: int
    last_offset: int
    timestamp: int

    @property
    def last_sequence(self) -> int:
        return (self.sequence + self.last_offset - self.first_offset) % SEQUENCES


@dataclass
class ModelProducer:
    """-1 stands for none. ``window``: the newest batches of this epoch, at most five."""

    epoch: int = -1
    window: list[Written] = field(default_factory=list)
    coordinator: int = -1
    timestamp: int = -1
    txn_first_offset: int = -1

    def repeated(self, stamp: Stamp, count: int) -> Written | None:
        """The batch of which one of ``count`` records with ``stamp`` is the repetition."""
        for written in self.window:
            same_length = written.last_offset - written.first_offset + 1 == count
            if stamp.epoch == self.epoch and written.sequence == stamp.sequence and same_length:
                return written
        return None

    def check(self, stamp: Stamp, transactional: bool) -> None:
        """Raises what a client's next batch is refused with."""
        if stamp.epoch < self.epoch:
            raise ProducerFencedError("an old epoch")
        if self.epoch >= 0:
            known = self.window if stamp.epoch == self.epoch else []
            due = (known[-1].last_sequence + 1) % SEQUENCES if known else 0
            if stamp.sequence != due:
                raise OutOfOrderSequenceError("out of order", expected=due)
        if self.txn_first_offset >= 0 and not transactional:
            raise InvalidTxnStateError("its transaction is open")

    def append(self, stamp: Stamp, base: int, last: int, timestamp: int, transactional: bool) -> None:
        """A data batch was written."""
        self._enter(stamp.epoch)
        self.window = [*self.window, Written(stamp.sequence, base, last, timestamp)][-WINDOW:]
        self.timestamp = timestamp
        if transactional and self.txn_first_offset < 0:
            self.txn_first_offset = base

    def end(self, epoch: int, coordinator: int, timestamp: int) -> int:
        """A marker was written; the first offset of the transaction that it ends, -1 if none was open."""
        self._enter(epoch)
        first, self.txn_first_offset = self.txn_first_offset, -1
        self.coordinator, self.timestamp = coordinator, timestamp
        return first

    def _enter(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.window = epoch, []

    def entry(self, producer_id: int) -> ProducerEntry:
        """As a snapshot has it."""
        last = self.window[-1] if self.window else None
        return ProducerEntry(
            producer_id,
            self.epoch,
            last.last_sequence if last else -1,
            last.last_offset if last else -1,
            last.last_offset - last.first_offset if last else 0,
            self.timestamp,
            self.coordinator,
            self.txn_first_offset,
        )
