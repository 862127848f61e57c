"""What the transaction coordinator decides: records to write, markers that are owed, what a start has to settle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tiered.format.coordinator_records import NO_TIME, TxnState, TxnValue, encode_transaction, encode_transaction_key
from tiered.model import NewRecord, TopicPartition

PREPARED = {
    TxnState.PREPARE_COMMIT: TxnState.COMPLETE_COMMIT,
    TxnState.PREPARE_ABORT: TxnState.COMPLETE_ABORT,
}
"""Decided states, and what follows each."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change of one transactional id; ``after`` None forgets it."""

    transactional_id: str
    before: TxnValue | None
    after: TxnValue | None

    @property
    def record(self) -> NewRecord:
        """What to append to ``__transaction_state`` before :meth:`TransactionCoordinator.apply`."""
        value = None if self.after is None else encode_transaction(self.after)
        timestamp = NO_TIME if self.after is None else self.after.last_update_ms
        return NewRecord(value, encode_transaction_key(self.transactional_id), timestamp)


class TxnMarker(NamedTuple):
    """A marker that a prepared transaction owes one partition."""

    tp: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    abort: bool


class Unfinished(NamedTuple):
    """What a start finds: ``fence`` it first unless it is decided, then write its markers, then ``complete`` it."""

    transactional_id: str
    state: TxnState

    @property
    def is_decided(self) -> bool:
        return self.state in PREPARED
