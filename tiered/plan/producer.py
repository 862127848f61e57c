"""State of one idempotent or transactional producer of one partition: its newest batches, its epoch, its sequence.

Sequences are 31 bits and wrap: after 2^31-1 comes 0. ``-1`` stands for "none" wherever Kafka uses it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tiered.format.batch import decode_records
from tiered.format.control import ControlType, control_type, coordinator_epoch
from tiered.format.header import BatchHeader
from tiered.format.producer_snapshot import ProducerEntry

WINDOW_BATCHES = 5
"""Newest batches of a producer that are known by their sequences: a client has at most five in flight."""

EXPIRATION_MS = 86_400_000
"""Kafka's ``producer.id.expiration.ms``: an idle producer is dropped after a day."""

SEQUENCES = 2**31
NO_EPOCH = NO_SEQUENCE = NO_OFFSET = -1


class Origin(enum.Enum):
    """Author of an append. The validation rules depend on it (docs/kafka-semantics.md#origins)."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class Marker(NamedTuple):
    """Marker that ends a transaction, from a control batch. ``timestamp`` is that of its record."""

    abort: bool
    coordinator_epoch: int
    timestamp: int


class ProducerStamp(NamedTuple):
    """Producer fields of a batch. ``base_sequence`` is the sequence of its first record."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class ProducerBatch(NamedTuple):
    """Producer fields and offsets of one batch. ``marker``: None for data, and for a marker that compaction removed.

    ``offset_delta``: last offset less the base offset. ``timestamp``: greatest timestamp of the batch, in ms.
    """

    base_offset: int
    offset_delta: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    timestamp: int
    transactional: bool = False
    control: bool = False
    marker: Marker | None = None


def read_producer(
    header: BatchHeader, data: bytes | memoryview, *, timestamp: int | None = None
) -> ProducerBatch | None:
    """Return the producer facts of the batch ``data``, header and records. None if it has no producer.

    ``timestamp``: the batch's greatest timestamp, if the log assigns it after ``header`` was read. Raises
    CorruptionError for a damaged marker.
    """
    if header.producer_id < 0:
        return None
    marker = None
    # compaction leaves a control batch without a record
    record = next(iter(decode_records(data)), None) if header.is_control else None
    if record is not None:
        kind = control_type(record)
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            marker = Marker(kind is ControlType.ABORT, coordinator_epoch(record), record.timestamp)
    return ProducerBatch(
        header.base_offset,
        header.last_offset_delta,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.last_sequence,
        header.max_timestamp if timestamp is None else timestamp,
        header.is_transactional,
        header.is_control,
        marker,
    )


class BatchSpan(NamedTuple):
    """Sequences, offsets and time of one stored batch of a producer. ``offset_delta``: last offset less the first."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        """Sequence of the first record. It is greater than the last one if the sequences of the batch wrap."""
        if self.last_sequence < 0:
            return NO_SEQUENCE
        return (self.last_sequence - self.offset_delta) % SEQUENCES


class Producer:
    """State of one producer. ``batches``: its newest batches. ``txn_first_offset`` -1: no transaction is open."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "timestamp", "txn_first_offset")

    def __init__(self, epoch: int = NO_EPOCH) -> None:
        self.epoch = epoch
        self.batches: tuple[BatchSpan, ...] = ()
        self.coordinator_epoch = NO_EPOCH
        self.timestamp = -1
        self.txn_first_offset = NO_OFFSET

    @classmethod
    def from_entry(cls, entry: ProducerEntry) -> Producer:
        """Return the state from a snapshot's entry, which has only the newest batch."""
        producer = cls(entry.producer_epoch)
        if entry.last_offset >= 0:
            span = BatchSpan(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp)
            producer.batches = (span,)
        producer.coordinator_epoch = entry.coordinator_epoch
        producer.timestamp = entry.timestamp
        producer.txn_first_offset = max(entry.txn_first_offset, NO_OFFSET)
        return producer

    def to_entry(self, producer_id: int) -> ProducerEntry:
        """Return the producer's entry for a snapshot file."""
        last = self.batches[-1] if self.batches else BatchSpan(NO_SEQUENCE, NO_OFFSET, 0, self.timestamp)
        return ProducerEntry(
            producer_id,
            self.epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            self.timestamp,
            self.coordinator_epoch,
            self.txn_first_offset,
        )

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find(self, batch: ProducerBatch) -> BatchSpan | None:
        """Return the known batch that ``batch`` duplicates: same epoch, same sequences. None: it is no duplicate.

        Kafka's rule: docs/kafka-semantics.md#producer-state.
        """
        if batch.producer_epoch != self.epoch:
            return None
        for span in self.batches:
            if span.last_sequence == batch.last_sequence and span.first_sequence == batch.base_sequence:
                return span
        return None

    def enter_epoch(self, epoch: int) -> None:
        """Set the epoch. If it is new, drop the known batches: its first sequence is 0."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches = ()

    def add(self, span: BatchSpan) -> None:
        """Add the newest batch. The oldest of more than five batches is dropped."""
        self.batches = (*self.batches[1 - WINDOW_BATCHES :], span)
        self.timestamp = span.timestamp

    def is_expired(self, now_ms: int) -> bool:
        """Return True if idle for ``EXPIRATION_MS`` (``>=``, as in Kafka) without an open transaction."""
        return self.txn_first_offset == NO_OFFSET and now_ms - self.timestamp >= EXPIRATION_MS


def follows(last_sequence: int, next_sequence: int) -> bool:
    """Return True if ``next_sequence`` comes right after ``last_sequence``. The first sequence, 0, follows -1."""
    return next_sequence == (last_sequence + 1) % SEQUENCES
