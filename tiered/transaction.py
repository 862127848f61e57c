"""A transaction over several partitions of one log: ``read_committed`` sees all of it or nothing.

::

    with log.topic("orders").transaction("billing-7") as txn:
        txn.append(b"paid", key=b"C-88")
        txn.append(b"+12.50", key=b"C-88", topic="ledger")
    # committed here; an exception in the block aborts

The id names the writer. A second transaction of the same id aborts the first and fences its writer, in this process
or after a crash. ``read_uncommitted`` sees records at once, ``read_committed`` after the end of the transaction.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tiered import arguments
from tiered.display import names_without
from tiered.errors import (
    CommitUnknownError,
    ConfigError,
    InvalidRecordError,
    InvalidTxnStateError,
    MarkersPendingError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    TieredError,
)
from tiered.local.partition.write_log import WriteLog
from tiered.local.transactions.coordinator import Transactions, TxnProducer
from tiered.model import Headers, NewRecord, Position, RecordMetadata, TopicPartition
from tiered.plan.producer import SEQUENCES, ProducerStamp
from tiered.plan.transactions import check_timeout
from tiered.times import Time

if TYPE_CHECKING:
    from tiered.consumer.steps import ConsumerFace, ConsumerSteps
    from tiered.local.transactions.group_positions import GroupPositions
    from tiered.topic import Topic

DEFAULT_TIMEOUT_S = 60.0
"""Seconds after which an open transaction is aborted (Kafka's ``transaction.timeout.ms``)."""

AppendRecord = NewRecord | tuple[bytes | None, bytes | None] | bytes

_INTERRUPTED = InvalidTxnStateError("an append was interrupted: it is unknown whether its records were written")

_logger = logging.getLogger("tiered")


MAX_TRANSACTIONAL_ID_BYTES = 32_767
"""Largest size of an id: Kafka's state records store the length of a text in 16 bits, signed."""


def checked_timeout_ms(transactional_id: object, timeout_s: object) -> int:
    """Return ``timeout_s`` in milliseconds. Raises ConfigError for an id that is empty, too long or no text.

    Raises ConfigError also for a timeout that is not positive or too long.
    """
    arguments.text_of("transactional_id", transactional_id, most_bytes=MAX_TRANSACTIONAL_ID_BYTES)
    timeout_ms = int(arguments.seconds("timeout", timeout_s) * 1000)
    check_timeout(timeout_ms)
    return timeout_ms


class Transaction:
    """A transaction, made by ``Topic.transaction`` or ``Log.transaction``; a context manager. Thread-safe.

    Leaving the block commits; leaving it with an exception aborts.
    """

    def __init__(
        self,
        coordinator: Transactions,
        producer: TxnProducer,
        *,
        default: Topic | None,
        find: Callable[[str], Topic],
        wait: Callable[[Mapping[TopicPartition, WriteLog]], None],
        now_ms: Callable[[], int],
    ) -> None:
        self.transactional_id = producer.transactional_id
        self._state = "open"
        self._coordinator = coordinator
        self._producer = producer
        self._default = default
        self._find = find
        self._wait = wait
        self._now_ms = now_ms
        self._read: list[tuple[ConsumerSteps, dict[TopicPartition, Position]]] = []
        self._lock = threading.RLock()
        self._sequences: dict[TopicPartition, int] = {}
        self._logs: dict[TopicPartition, WriteLog] = {}
        self._broken: TieredError | None = None

    @property
    def state(self) -> str:
        """Return "open", "committed", "aborted", or "unknown" (a commit was interrupted or not confirmed)."""
        return self._state

    __dir__ = names_without()

    def __repr__(self) -> str:
        return f"<Transaction {self.transactional_id!r} {self._state} partitions={len(self._logs)}>"

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: Time | None = None,
        headers: Headers | None = None,
        topic: str | None = None,
    ) -> RecordMetadata:
        """Append one record to ``topic`` (None: the topic that the transaction was made from).

        A refused record does not change the transaction.

        Raises:
            ProducerFencedError: another transaction of this id has begun, or the timeout has passed.
            InvalidTxnStateError: the transaction has ended, or one of its appends failed.
            All errors of ``Topic.append``.
        """
        target = self._target(topic)
        chosen, record = target._route(value, key, partition, timestamp, headers)
        return self._append(target, chosen, [record])

    def append_many(
        self, records: Iterable[AppendRecord], *, partition: int | None = None, topic: str | None = None
    ) -> list[RecordMetadata]:
        """Append ``records``, one batch for each partition. Return the place of each batch, in order of partitions.

        A record is a ``NewRecord``, a (value, key) pair, or a value. ``partition`` None: each record's key decides.
        ``topic`` None: the topic that the transaction was made from. Raises the errors of :meth:`append`.
        """
        target = self._target(topic)
        given, groups = target._group(records, partition)
        written = []
        with self._locked():
            self._check_usable()
            self._join([target.log(chosen).tp for chosen, _ in groups])
        for chosen, group in groups:
            try:
                written.append(self._append(target, chosen, group))
            except InvalidRecordError as error:
                error.index = arguments.place_in_call(given, group, error.index)
                raise
        return written

    def commit_positions(self, consumer: ConsumerFace) -> None:
        """Commit the positions of a consumer of the same log with this transaction: Kafka's ``TxnOffsetCommit``.

        Appends and positions are committed together or not at all. After an abort the consumer continues at its current
        position. To read the records again, call its ``seek`` or open another consumer. Raises ConfigError for a
        consumer whose positions are not stored in this log, and the errors of :meth:`append`.
        """
        logged, core = self._coordinator.positions, consumer.core
        if core.assignment.kept_in is not logged:
            hint = "make the consumer with log.consumer(), without positions="
            raise ConfigError(
                f"positions of group {core.group!r} cannot join this transaction: they are stored outside of its log",
                hint=hint,
            )
        positions = core.stamped(core.handed_out(), self._now_ms())
        if positions:
            self._append(logged, logged.partition_of(core.group), logged.records(core.group, positions))
            self._read.append((core, positions))

    def commit(self) -> None:
        """Commit the transaction. When the call returns, all of it is visible and on disk.

        An interrupt (KeyboardInterrupt) leaves ``state`` "unknown". The next transaction of the id resolves it.

        Raises:
            InvalidTxnStateError: the transaction has ended, or one of its appends failed.
            LocalIOError, DiskFullError: the commit could not be written, and the transaction is aborted.
            ProducerFencedError: the transaction was aborted before, by its timeout or by a newer one of the same id.
            CommitUnknownError: the commit may or may not be on disk. The next open of the log resolves it.
            MarkersPendingError: the transaction is committed. A partition whose disk failed shows it only after the
                next open.
            DataLocalError: with durability "remote", committed on disk, but not in the bucket in time.
        """
        with self._locked():
            self._check_usable()
            try:
                self._coordinator.end(self._producer, commit=True)
            except CommitUnknownError:
                self._state = "unknown"
                raise
            except MarkersPendingError:
                self._state = "committed"
                raise
            except TieredError:
                self._abort_after_error()
                raise
            except BaseException:
                self._state = "unknown"
                raise
            self._state = "committed"
        for core, positions in self._read:
            core.note_committed(positions)
        self._wait(self._logs)

    def abort(self) -> None:
        """Abort the transaction: ``read_committed`` never sees any of it. Does nothing if the transaction has ended."""
        with self._locked():
            if self._state != "open":
                return
            self._state = "aborted"
            self._coordinator.end(self._producer, commit=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state != "open":
            return
        if error is None:
            try:
                self.commit()
            except InvalidTxnStateError:
                self._abort_after_error()
                raise
        else:
            self._abort_after_error()

    def _abort_after_error(self) -> None:
        """Abort the transaction. A failure is only logged, so that it does not hide the first error."""
        try:
            self.abort()
        except TieredError as error:
            _logger.warning("transaction %r could not be aborted now: %s", self.transactional_id, error)

    def _append(self, target: Topic | GroupPositions, partition: int, records: Sequence[object]) -> RecordMetadata:
        tp, log = TopicPartition(target.name, partition), target.log(partition)
        with self._locked():
            self._check_usable()
            self._join([tp])
            sequence = self._sequences[tp]
            stamp = ProducerStamp(self._producer.producer_id, self._producer.producer_epoch, sequence)
            self._broken = _INTERRUPTED  # until the outcome is known: a reused sequence counts as a duplicate
            try:
                written = log.append_as_producer(records, stamp)
            except (OutOfOrderSequenceError, InvalidTxnStateError) as error:
                self._broken = error  # the partition no longer holds what this transaction wrote
                raise
            except ConfigError:  # the record was refused, nothing was written
                self._broken = None
                raise
            except TieredError as error:
                self._broken = error
                raise
            self._sequences[tp] = (sequence + len(records)) % SEQUENCES
            self._logs[tp] = log
            self._broken = None
            return written

    def _join(self, tps: Sequence[TopicPartition]) -> None:
        """Add partitions that are not in the transaction yet, with one record of the state log."""
        new = [tp for tp in tps if tp not in self._sequences]
        try:
            if new:
                self._coordinator.join(self._producer, new)
            else:
                self._coordinator.check_owner(self._producer)
        except ProducerFencedError as error:
            self._broken = error
            raise
        self._sequences.update(dict.fromkeys(new, 0))

    def _locked(self) -> threading.RLock:
        self._coordinator.check_process()  # a fork may have copied the lock while another thread held it
        return self._lock

    def _target(self, topic: str | None) -> Topic:
        topic = arguments.text_or_none("topic", topic)
        if topic is not None and (self._default is None or topic != self._default.name):
            return self._find(topic)
        if self._default is None:
            raise ConfigError(
                "the append names no topic, and the transaction has no default topic",
                hint='txn.append(value, topic="orders")',
            )
        return self._default

    def _check_usable(self) -> None:
        if self._state != "open":
            raise InvalidTxnStateError(
                f"transaction {self.transactional_id!r} has ended: its state is {self._state!r}",
                hint="begin another one",
            )
        if self._broken is not None:
            raise InvalidTxnStateError(
                f"transaction {self.transactional_id!r} can only be aborted, because an append failed: "
                f"{self._broken.message}",
                hint="leave the block with the error, then try the whole transaction again",
            ) from self._broken
