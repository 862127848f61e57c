"""Transaction coordinator of one log directory: the state of each transaction, and the record that stores it.

::

    (unknown) --init--> EMPTY --add--> ONGOING --prepare--> PREPARE_COMMIT --complete--> COMPLETE_COMMIT
                          ^              | ^                PREPARE_ABORT                COMPLETE_ABORT
                          |        fence | |                                                  |
                          +---- init ----|-+---------------- add ----------------------------+
                                         +--> PREPARE_ABORT, of a producer that is gone

Each step returns a :class:`TransactionChange` with a record for ``__transaction_state``. Call ``apply`` with the change
once the record is durable, and act on it only then. The markers, one for each partition of the transaction, are written
between prepare and complete. A marker that is written twice does no harm.

Source: Kafka's TransactionMetadata and TransactionStateManager, with transaction version 2: the end of a transaction
raises the producer's epoch, so that a late batch of it is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tiered.errors import ConfigError, InvalidTxnStateError, ProducerFencedError
from tiered.format.coordinator_records import (
    NO_ID,
    NO_TIME,
    TxnState,
    TxnValue,
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
    encode_transaction_key,
)
from tiered.model import NewRecord, TopicPartition

PREPARED = {
    TxnState.PREPARE_COMMIT: TxnState.COMPLETE_COMMIT,
    TxnState.PREPARE_ABORT: TxnState.COMPLETE_ABORT,
}
"""States of a transaction whose commit or abort is decided, each with the state after its markers are written."""

DEFAULT_TIMEOUT_MS = 60_000
"""Kafka's ``transaction.timeout.ms``: the coordinator may abort a transaction that is open longer."""

MAX_TIMEOUT_MS = 900_000
"""Kafka's ``transaction.max.timeout.ms``."""

ID_EXPIRATION_MS = 604_800_000
"""Kafka's ``transactional.id.expiration.ms``: an unused id is deleted after a week."""

MAX_PARTITIONS = 100_000
"""Limit of one transaction: its record must stay far below the largest batch."""

EPOCH_RAISING_VERSION = 2
_LAST_CLIENT_EPOCH = 2**15 - 2
_AT_REST = frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT})


@dataclass(frozen=True, slots=True)
class TransactionChange:
    """Change of one transactional id's state. ``before``: the old state, None for a new id.

    ``after``: the new state; None deletes the id.
    """

    transactional_id: str
    before: TxnValue | None
    after: TxnValue | None

    @property
    def record(self) -> NewRecord:
        """Record to append to ``__transaction_state`` before :meth:`TransactionCoordinator.apply`."""
        value = None if self.after is None else encode_transaction(self.after)
        timestamp = NO_TIME if self.after is None else self.after.last_update_ms
        return NewRecord(value, encode_transaction_key(self.transactional_id), timestamp)


class TxnMarker(NamedTuple):
    """Marker that a decided transaction must still write to one partition."""

    tp: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    abort: bool


def check_timeout(timeout_ms: int) -> None:
    """Raise ConfigError if ``timeout_ms`` is not positive or above ``MAX_TIMEOUT_MS``."""
    if not 0 < timeout_ms <= MAX_TIMEOUT_MS:
        raise ConfigError(
            f"transaction timeout of {timeout_ms} ms is not in 1..{MAX_TIMEOUT_MS}",
            hint=f"pass a timeout above 0 and of at most {MAX_TIMEOUT_MS // 1000} s",
        )


class TransactionCoordinator:
    """State of all transactions of one log directory, and the rules for their changes. Not thread-safe.

    ``epoch``: coordinator epoch for markers. It must not fall: a partition refuses markers of an older coordinator.
    """

    def __init__(self, *, epoch: int = 0) -> None:
        self.epoch = epoch
        self._txns: dict[str, TxnValue] = {}
        self._at_work: set[str] = set()  # ids whose transaction is open or being ended: few of many
        self._greatest_producer_id = NO_ID

    # -- what it holds ---------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of ``__transaction_state``, in log order. ``value`` None deletes the id of ``key``.

        Raises CorruptionError if the record cannot be decoded.
        """
        decoded = None if value is None else decode_transaction(value)
        self._put(decode_transaction_key(key), decoded)

    def apply(self, step: TransactionChange) -> None:
        """Apply a change whose record is durable. Raises InvalidTxnStateError if the id's state changed in between."""
        if self._txns.get(step.transactional_id) != step.before:
            raise InvalidTxnStateError(f"transactional id {step.transactional_id!r} was changed by another step")
        self._put(step.transactional_id, step.after)

    def _put(self, transactional_id: str, value: TxnValue | None) -> None:
        if value is None or value.state is TxnState.DEAD:
            self._txns.pop(transactional_id, None)
        else:
            self._txns[transactional_id] = value
        if value is None or value.state is TxnState.DEAD or value.state in _AT_REST:
            self._at_work.discard(transactional_id)
        else:
            self._at_work.add(transactional_id)
        if value is not None:
            seen = max(value.producer_id, value.next_producer_id)
            self._greatest_producer_id = max(self._greatest_producer_id, seen)

    @property
    def next_producer_id(self) -> int:
        """Lowest producer id above all in the transaction log. Producers without transactions are not in that log."""
        return self._greatest_producer_id + 1

    def find(self, transactional_id: str) -> TxnValue | None:
        return self._txns.get(transactional_id)

    def state(self, transactional_id: str) -> TxnState:
        """Return the state of a transactional id. DEAD if it is unknown or deleted."""
        txn = self._txns.get(transactional_id)
        return TxnState.DEAD if txn is None else txn.state

    def transactions(self) -> Iterator[tuple[str, TxnValue]]:
        return iter(self._txns.items())

    # -- a producer's calls ----------------------------------------------------------------------------------------

    def init(
        self, transactional_id: str, *, new_producer_id: int, now_ms: int, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> TransactionChange:
        """Return the change that starts an instance of a producer. Its epoch fences older instances.

        ``new_producer_id``: for an unknown transactional id, or if the epochs of the id's producer are used up. Raises
        ConfigError for a wrong timeout or id. Raises InvalidTxnStateError while a transaction of the id is open or is
        not complete.
        """
        check_timeout(timeout_ms)
        before = self._txns.get(transactional_id)
        if before is None:
            encode_transaction_key(transactional_id)  # refuses an impossible id now, not when its record is written
            after = TxnValue(new_producer_id, 0, timeout_ms, TxnState.EMPTY, None, now_ms)
            return TransactionChange(transactional_id, None, after)
        if before.state not in _AT_REST:
            raise self._wrong(transactional_id, before, "has an open transaction", "commit or abort it first")
        exhausted = before.producer_epoch >= _LAST_CLIENT_EPOCH
        after = TxnValue(
            new_producer_id if exhausted else before.producer_id,
            0 if exhausted else before.producer_epoch + 1,
            timeout_ms,
            TxnState.EMPTY,
            None,
            now_ms,
            previous_producer_id=before.producer_id if exhausted else NO_ID,
            client_version=before.client_version,
        )
        return TransactionChange(transactional_id, before, after)

    def add(
        self,
        transactional_id: str,
        partitions: Iterable[TopicPartition],
        *,
        producer_id: int,
        producer_epoch: int,
        now_ms: int,
        client_version: int = EPOCH_RAISING_VERSION,
    ) -> TransactionChange | None:
        """Return the change that adds partitions to the transaction. None: it has all of them already.

        Call it before data is written to them. The first call begins the transaction. ``client_version``: Kafka's
        transaction version of the client; from 2 on the end of a transaction raises the epoch. Raises
        ProducerFencedError for an outdated producer, and ConfigError for too many partitions. Raises
        InvalidTxnStateError for an unknown id, and while the last transaction is decided but not complete.
        """
        before = self.check_owner(transactional_id, producer_id, producer_epoch)
        known = set(before.partitions or ()) if before.state is TxnState.ONGOING else set()
        wanted = known.union(partitions)
        if before.state not in (*_AT_REST, TxnState.ONGOING):
            raise self._wrong(transactional_id, before, "cannot add partitions", "retry after its end is complete")
        if not wanted or wanted == known:
            return None
        if len(wanted) > MAX_PARTITIONS:
            raise ConfigError(
                f"{len(wanted)} partitions in one transaction exceed the limit of {MAX_PARTITIONS}",
                hint="commit before, and write the other partitions in the next transaction",
            )
        after = dataclasses.replace(
            before,
            state=TxnState.ONGOING,
            partitions=tuple(sorted(wanted)),
            last_update_ms=now_ms,
            start_ms=before.start_ms if before.state is TxnState.ONGOING else now_ms,
            client_version=client_version,
        )
        return TransactionChange(transactional_id, before, after)

    def found(
        self, transactional_id: str, tp: TopicPartition, *, producer_epoch: int, now_ms: int
    ) -> TransactionChange | None:
        """Return the change that adds ``tp``, where an open transaction of the id's producer was found in the log.

        :meth:`fence` then ends it there. None: nothing changes. A ``producer_epoch`` above the known one becomes the
        producer's epoch. Raises InvalidTxnStateError for an unknown id, and while a decided transaction is not
        complete.
        """
        before = self._known(transactional_id)
        is_open = before.state is TxnState.ONGOING
        if not is_open and before.state not in _AT_REST:
            raise self._wrong(transactional_id, before, "cannot add partitions", "complete its transaction first")
        after = dataclasses.replace(
            before,
            state=TxnState.ONGOING,
            producer_epoch=max(before.producer_epoch, producer_epoch),
            partitions=tuple(sorted({*((before.partitions or ()) if is_open else ()), tp})),
            last_update_ms=now_ms if not is_open else before.last_update_ms,
            start_ms=before.start_ms if is_open else now_ms,
            client_version=EPOCH_RAISING_VERSION,
        )
        return None if after == before else TransactionChange(transactional_id, before, after)

    def is_later(self, transactional_id: str, producer_id: int, producer_epoch: int) -> bool:
        """Return True if this producer id and epoch can only come after the end of the id's decided transaction.

        The record of that end may be lost.
        """
        txn = self._txns.get(transactional_id)
        if txn is None or txn.state not in PREPARED or txn.client_version < EPOCH_RAISING_VERSION:
            return False
        if producer_id == txn.producer_id:
            return producer_epoch >= txn.producer_epoch  # the end of a transaction raises it
        return producer_id == txn.next_producer_id != NO_ID

    def prepare(
        self,
        transactional_id: str,
        *,
        commit: bool,
        producer_id: int,
        producer_epoch: int,
        now_ms: int,
        new_producer_id: int = NO_ID,
    ) -> TransactionChange | None:
        """Return the change that decides to commit or abort the transaction. None: it has ended in this way already.

        ``new_producer_id`` is needed if :meth:`epochs_left` is 0, otherwise ConfigError is raised. Raises
        ProducerFencedError for an outdated producer. Raises InvalidTxnStateError for an unknown id, and without an open
        transaction.
        """
        before = self._txns.get(transactional_id)
        if before is not None and self._is_repetition(before, commit, producer_id, producer_epoch):
            return None
        before = self.check_owner(transactional_id, producer_id, producer_epoch)
        if before.state is not TxnState.ONGOING:
            raise self._wrong(transactional_id, before, "has no open transaction to end", "begin one first")
        raises_epoch = before.client_version >= EPOCH_RAISING_VERSION
        return self._decide(transactional_id, before, commit, raises_epoch, now_ms, new_producer_id)

    @staticmethod
    def _is_repetition(before: TxnValue, commit: bool, producer_id: int, producer_epoch: int) -> bool:
        if before.state is not (TxnState.COMPLETE_COMMIT if commit else TxnState.COMPLETE_ABORT):
            return False
        if before.client_version < EPOCH_RAISING_VERSION:
            return (before.producer_id, before.producer_epoch) == (producer_id, producer_epoch)
        if before.previous_producer_id == producer_id and before.producer_epoch == 0:
            return producer_epoch == _LAST_CLIENT_EPOCH
        return (before.producer_id, before.producer_epoch - 1) == (producer_id, producer_epoch)

    def epochs_left(self, transactional_id: str) -> int:
        """Return how often the producer epoch of an id can still be raised under the same producer id."""
        txn = self._txns.get(transactional_id)
        return _LAST_CLIENT_EPOCH if txn is None else max(_LAST_CLIENT_EPOCH - txn.producer_epoch, 0)

    # -- the coordinator's own -------------------------------------------------------------------------------------

    def fence(self, transactional_id: str, *, now_ms: int, new_producer_id: int = NO_ID) -> TransactionChange:
        """Return the change that aborts an open transaction and raises the producer's epoch.

        For a producer that is gone, over its timeout, or replaced. ``new_producer_id`` is needed if
        :meth:`epochs_left` is 0, otherwise ConfigError is raised. Raises InvalidTxnStateError for an unknown id, and
        without an open transaction.
        """
        before = self._known(transactional_id)
        if before.state not in (TxnState.ONGOING, TxnState.PREPARE_EPOCH_FENCE):
            raise self._wrong(transactional_id, before, "has no open transaction to abort", "")
        return self._decide(transactional_id, before, False, True, now_ms, new_producer_id)

    def _decide(  # noqa: PLR0917 - private, and each value has been named by the caller
        self,
        transactional_id: str,
        before: TxnValue,
        commit: bool,
        raises_epoch: bool,
        now_ms: int,
        new_producer_id: int,
    ) -> TransactionChange:
        exhausted = raises_epoch and before.producer_epoch >= _LAST_CLIENT_EPOCH
        if exhausted and new_producer_id == NO_ID:
            raise ConfigError(f"the epochs of producer {before.producer_id} are used up: pass new_producer_id")
        after = dataclasses.replace(
            before,
            state=TxnState.PREPARE_COMMIT if commit else TxnState.PREPARE_ABORT,
            producer_epoch=before.producer_epoch + raises_epoch,
            partitions=before.partitions or (),
            last_update_ms=now_ms,
            next_producer_id=new_producer_id if exhausted else NO_ID,
        )
        return TransactionChange(transactional_id, before, after)

    def markers(self, transactional_id: str) -> tuple[TxnMarker, ...]:
        """Return the markers of a decided transaction, one for each of its partitions.

        The caller writes them, and skips deleted partitions. Raises InvalidTxnStateError unless it is decided.
        """
        txn = self._known(transactional_id)
        if txn.state not in PREPARED:
            raise self._wrong(transactional_id, txn, "is not decided", "prepare it first")
        abort = txn.state is TxnState.PREPARE_ABORT
        return tuple(
            TxnMarker(tp, txn.producer_id, txn.producer_epoch, self.epoch, abort) for tp in txn.partitions or ()
        )

    def complete(self, transactional_id: str, *, now_ms: int) -> TransactionChange:
        """Return the change that completes a decided transaction. All of its markers must be durable.

        Raises InvalidTxnStateError unless it is decided.
        """
        before = self._known(transactional_id)
        if before.state not in PREPARED:
            raise self._wrong(transactional_id, before, "is not decided", "prepare it first")
        rotates = before.next_producer_id != NO_ID
        after = dataclasses.replace(
            before,
            state=PREPARED[before.state],
            partitions=(),
            last_update_ms=now_ms,
            producer_id=before.next_producer_id if rotates else before.producer_id,
            producer_epoch=0 if rotates else before.producer_epoch,
            previous_producer_id=before.producer_id if rotates else before.previous_producer_id,
            next_producer_id=NO_ID,
        )
        return TransactionChange(transactional_id, before, after)

    def unfinished(self) -> list[str]:
        """Return the ids of the unfinished transactions, sorted. Call this after ``replay`` of the whole log.

        The caller ends them after a crash. It completes a decided one, because some of its markers may be written. It
        aborts an open one, because its process is gone.
        """
        return sorted(self._at_work)

    def overdue(self, now_ms: int) -> list[str]:
        """Return the ids whose transaction has been open for longer than its timeout. The caller fences them."""
        return [name for name in sorted(self._at_work) if self.is_overdue(name, now_ms)]

    def is_overdue(self, transactional_id: str, now_ms: int) -> bool:
        """Return True if the transaction of an id is open for longer than its timeout."""
        txn = self._txns.get(transactional_id)
        return txn is not None and txn.state is TxnState.ONGOING and now_ms - txn.start_ms > txn.timeout_ms

    def forget(self, now_ms: int) -> list[TransactionChange]:
        """Return the changes that delete the ids that have had no transaction for the expiration time."""
        steps = (self.forget_id(transactional_id, now_ms) for transactional_id in self._txns)
        return [step for step in steps if step is not None]

    def forget_id(self, transactional_id: str, now_ms: int) -> TransactionChange | None:
        """Return the change that deletes one id; None if it is unknown, in a transaction, or not expired."""
        txn = self._txns.get(transactional_id)
        if txn is None or txn.state not in _AT_REST or now_ms - txn.last_update_ms < ID_EXPIRATION_MS:
            return None
        return TransactionChange(transactional_id, txn, None)

    # -- refusals --------------------------------------------------------------------------------------------------

    def _known(self, transactional_id: str) -> TxnValue:
        txn = self._txns.get(transactional_id)
        if txn is None:
            raise InvalidTxnStateError(
                f"transactional id {transactional_id!r} is not known", hint="begin a transaction with this id first"
            )
        return txn

    def check_owner(self, transactional_id: str, producer_id: int, producer_epoch: int) -> TxnValue:
        """Return the state of the transactional id.

        Raises ProducerFencedError unless this producer id and epoch are current for it, and InvalidTxnStateError for an
        unknown id.
        """
        txn = self._known(transactional_id)
        if (txn.producer_id, txn.producer_epoch) != (producer_id, producer_epoch):
            raise ProducerFencedError(
                f"transactional id {transactional_id!r}: it belongs to producer {txn.producer_id} epoch "
                f"{txn.producer_epoch} now, not to {producer_id} epoch {producer_epoch}",
                hint="begin a new transaction: another instance has taken this transactional id over, or the "
                "transaction exceeded its timeout",
            )
        return txn

    @staticmethod
    def _wrong(transactional_id: str, txn: TxnValue, what: str, hint: str) -> InvalidTxnStateError:
        return InvalidTxnStateError(
            f"transactional id {transactional_id!r} in state {txn.state.name} {what}", hint=hint
        )
