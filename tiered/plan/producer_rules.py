"""Rules for a producer's next batch. They raise, or change the draft.

Kafka's rules: docs/kafka-semantics.md#append-validation, #producer-state and #markers.
"""

from __future__ import annotations

from tiered.errors import InvalidRecordError, InvalidTxnStateError, OutOfOrderSequenceError, ProducerFencedError
from tiered.plan.producer import (
    NO_EPOCH,
    NO_OFFSET,
    NO_SEQUENCE,
    SEQUENCES,
    Origin,
    Producer,
    ProducerBatch,
    follows,
)


class Draft:
    """Producer as it would be after the batches of this append that were checked so far."""

    __slots__ = ("coordinator_epoch", "epoch", "in_txn", "last_sequence")

    def __init__(self, epoch: int, last_sequence: int, coordinator_epoch: int, in_txn: bool) -> None:
        self.epoch = epoch
        self.last_sequence = last_sequence
        self.coordinator_epoch = coordinator_epoch
        self.in_txn = in_txn

    @classmethod
    def from_producer(cls, producer: Producer | None) -> Draft:
        if producer is None:
            return cls(NO_EPOCH, NO_SEQUENCE, NO_EPOCH, False)
        in_txn = producer.txn_first_offset != NO_OFFSET
        return cls(producer.epoch, producer.last_sequence, producer.coordinator_epoch, in_txn)


def check_form(batch: ProducerBatch, origin: Origin, index: int) -> None:
    """Check that a client writes data with epoch and sequence; only the coordinator writes markers."""
    if batch.producer_epoch < 0:
        raise InvalidRecordError(f"producer {batch.producer_id} has no epoch", index=index)
    if origin is not Origin.CLIENT:
        return
    if batch.control:
        raise InvalidRecordError("control batches are not appended from outside", index=index)
    if batch.base_sequence < 0:
        raise InvalidRecordError(f"producer {batch.producer_id} has an epoch but no sequence", index=index)


def check_data(draft: Draft, batch: ProducerBatch, origin: Origin, index: int) -> None:
    """Check epoch, sequence and transaction of a data batch."""
    who = f"producer {batch.producer_id}"
    _check_epoch(draft, batch)
    if origin is Origin.CLIENT:
        _check_sequence(draft, batch, index)
    if draft.in_txn and not batch.transactional:
        raise InvalidTxnStateError(
            f"{who}: a batch outside of the transaction while it is open",
            index=index,
            hint="commit or abort the transaction first",
        )
    draft.epoch = batch.producer_epoch
    draft.last_sequence = batch.last_sequence
    draft.in_txn = batch.transactional


def check_marker(draft: Draft, batch: ProducerBatch) -> None:
    """Check the epochs of a marker, and note them in ``draft``. Raises ProducerFencedError.

    An empty control batch is the rest of a cleaned transaction, and means nothing.
    """
    if batch.marker is None:
        return
    _check_epoch(draft, batch)
    epoch = batch.marker.coordinator_epoch
    if epoch < draft.coordinator_epoch:
        raise ProducerFencedError(
            f"producer {batch.producer_id}: marker of coordinator epoch {epoch}, {draft.coordinator_epoch} was seen",
            hint="a newer transaction coordinator has taken over: stop this one",
        )
    draft.epoch = batch.producer_epoch
    draft.coordinator_epoch = epoch
    draft.in_txn = False


def _check_epoch(draft: Draft, batch: ProducerBatch) -> None:
    if batch.producer_epoch < draft.epoch:
        raise ProducerFencedError(
            f"producer {batch.producer_id}: epoch {batch.producer_epoch} is below {draft.epoch}",
            hint="another instance has taken this producer over: stop this one",
        )


def _check_sequence(draft: Draft, batch: ProducerBatch, index: int) -> None:
    if draft.epoch == NO_EPOCH:
        return  # an unknown producer: its records may have expired or been deleted, so any sequence is fine
    last = draft.last_sequence if batch.producer_epoch == draft.epoch else NO_SEQUENCE
    if follows(last, batch.base_sequence):
        return
    expected = (last + 1) % SEQUENCES
    raise OutOfOrderSequenceError(
        f"producer {batch.producer_id}, epoch {batch.producer_epoch}: sequence {batch.base_sequence}"
        f" where {expected} was due",
        expected=expected,
        index=index,
        hint="an earlier batch is missing, or this one was repeated too late to be recognised",
    )
