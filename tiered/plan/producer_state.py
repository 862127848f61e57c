"""Producers and transactions of one partition: which batches repeat, are out of order, or are stable.

An append calls these methods under the partition's lock::

    batches = [read_producer(header, data), ...]         those that have a producer
    duplicate = state.prepare(batches, Origin.CLIENT)   respond with its offsets, write nothing
    ... roll, write the bytes ...
    completed = state.apply(batches, base_offsets)
    ... append every completed.index_entry to the .txnindex of the active segment ...
    state.complete_append(completed, end_offset)

If writing the bytes fails, nothing has changed. If writing the ``.txnindex`` fails, the end has moved and the last
stable offset stays: the partition goes offline, and recovery writes the entry again. Recovery calls ``replay`` per
batch. Source: Kafka's ProducerStateManager and ProducerAppendInfo.

Kafka's rules: docs/kafka-semantics.md#producer-state, #markers, #last-stable-offset and #producer-snapshots.

The functions at the end decide which snapshots to load, to keep and to write. The offset of a snapshot is the
*exclusive* end of the state in it; that of a sealed segment is the base of the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tiered.errors import (
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from tiered.format.producer_snapshot import ProducerEntry
from tiered.plan.producer import (
    NO_EPOCH,
    NO_OFFSET,
    NO_SEQUENCE,
    SEQUENCES,
    BatchSpan,
    Origin,
    Producer,
    ProducerBatch,
    follows,
)
from tiered.plan.visibility import CompletedTxn, OpenTxn


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Earlier append of the same batches: ``first_offset`` to ``last_offset`` (inclusive).

    ``timestamp``: the largest of its first batch.
    """

    first_offset: int
    last_offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class ProducerSnapshot:
    """State up to ``offset`` (exclusive), by rising producer id: the content of a ``.snapshot`` file."""

    offset: int
    entries: tuple[ProducerEntry, ...] = ()


class ProducerState:
    """State of all producers of one partition. Not thread-safe: callers hold the partition's lock. No I/O, no clock."""

    def __init__(self, log_start: int = 0) -> None:
        self._producers: dict[int, Producer] = {}
        self._txns: dict[int, int] = {}  # open transactions: first offset, which rises with each, to producer id
        self._log_start = self._map_end = self._snapshot_offset = log_start

    # -- append ----------------------------------------------------------------------------------------------------

    def prepare(self, batches: Sequence[ProducerBatch], origin: Origin = Origin.CLIENT) -> Duplicate | None:
        """Check the batches of one append, in order, without changing the state.

        Return a Duplicate if each batch of a client's append was appended before, otherwise None. The ``index`` of an
        error counts records of the append.

        Raises:
            OutOfOrderSequenceError: for a gap, or if only some of the batches were appended before.
            ProducerFencedError: for an older epoch.
            InvalidTxnStateError: for a non-transactional batch in an open transaction.
            InvalidRecordError: for a batch without epoch.
        """
        if origin is Origin.CLIENT and batches:
            duplicate = self._duplicate(batches)
            if duplicate is not None:
                return duplicate
        drafts: dict[int, Draft] = {}
        index = 0
        for batch in batches:
            draft = drafts.get(batch.producer_id)
            if draft is None:
                draft = drafts[batch.producer_id] = Draft.from_producer(self._producers.get(batch.producer_id))
            if batch.producer_epoch < 0:
                raise InvalidRecordError(
                    f"producer {batch.producer_id} has no epoch", index=index, hint="set its epoch to 0 or above"
                )
            if batch.control:
                check_marker(draft, batch)
            else:
                check_data(draft, batch, origin, index)
            index += batch.offset_delta + 1
        return None

    def _duplicate(self, batches: Sequence[ProducerBatch]) -> Duplicate | None:
        found: list[BatchSpan] = []
        for batch in batches:
            producer = self._producers.get(batch.producer_id)
            span = None if producer is None else producer.find(batch)
            if span is None:
                return None
            found.append(span)
        return Duplicate(found[0].first_offset, found[-1].last_offset, found[0].timestamp)

    def apply(self, batches: Sequence[ProducerBatch], base_offsets: Sequence[int]) -> tuple[CompletedTxn, ...]:
        """Apply batches that passed :meth:`prepare` under the same lock, and whose bytes are at ``base_offsets``.

        Return the transactions that these batches end, for :meth:`complete_append` after the index has the aborted
        ones.
        """
        completed: list[CompletedTxn] = []
        ended: set[int] = set()
        for batch, base in zip(batches, base_offsets, strict=True):
            txn = self._put(batch, base, ended)
            if txn is not None:
                completed.append(txn)
        return tuple(completed)

    def complete_append(self, completed: Iterable[CompletedTxn], end_offset: int) -> None:
        """Complete an append after its index entries are written: the last stable offset may then rise.

        ``completed``: result of :meth:`apply`, empty for an append without producers. ``end_offset``: the new end of
        the log.
        """
        for txn in completed:
            self._txns.pop(txn.first_offset, None)
        self._map_end = end_offset

    def replay(self, batch: ProducerBatch) -> CompletedTxn | None:
        """Apply one batch that is already in the log, without any check. For recovery and rebuild.

        Return the transaction that the batch ends, None for none. The caller appends its ``index_entry`` to the index
        that it rebuilds, and calls ``advance`` for batches without producer (or once, at the end).
        """
        txn = self._put(batch, batch.base_offset, ())
        if txn is not None:
            self._txns.pop(txn.first_offset, None)
        self._map_end = batch.base_offset + batch.offset_delta + 1
        return txn

    def advance(self, end_offset: int) -> None:
        """Set the end of the log to ``end_offset``, for batches without producer that are not applied."""
        self._map_end = end_offset

    def _put(self, batch: ProducerBatch, base: int, ended: set[int] | tuple[()]) -> CompletedTxn | None:
        if batch.control and batch.marker is None:
            return None  # the whole transaction was cleaned away
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            producer = self._producers[batch.producer_id] = Producer()
        producer.enter_epoch(batch.producer_epoch)
        if batch.marker is None:
            last = base + batch.offset_delta
            producer.add(BatchSpan(batch.last_sequence, last, batch.offset_delta, batch.timestamp))
            if batch.transactional and producer.txn_first_offset == NO_OFFSET:
                producer.txn_first_offset = base
                self._txns[base] = batch.producer_id
            return None
        first = producer.txn_first_offset
        producer.txn_first_offset = NO_OFFSET
        producer.coordinator_epoch = batch.marker.coordinator_epoch
        producer.timestamp = batch.marker.timestamp
        if first == NO_OFFSET:
            return None
        over = {*ended, first}
        if isinstance(ended, set):
            ended.add(first)
        stable = next((other for other in self._txns if other not in over), base + 1)
        return CompletedTxn(batch.producer_id, first, base, batch.marker.abort, stable)

    # -- what is stable --------------------------------------------------------------------------------------------

    def last_stable_offset(self, end: int) -> int:
        """Return the last stable offset: below it every transaction has ended.

        ``end``: upper bound of the result, and the result if no transaction is open.
        """
        first = next(iter(self._txns), end)
        return min(max(first, self._log_start), end)

    def raise_log_start(self, log_start: int) -> None:
        """Raise the start of the log; a lower one changes nothing. Producers stay: they expire only by time."""
        self._log_start = max(self._log_start, log_start)
        self._map_end = max(self._map_end, self._log_start)
        self._snapshot_offset = max(self._snapshot_offset, self._log_start)

    def expire(self, now_ms: int) -> list[int]:
        """Remove producers that are idle for the expiration time and have no open transaction. Return their ids."""
        gone = [p for p, producer in self._producers.items() if producer.is_expired(now_ms)]
        for producer_id in gone:
            del self._producers[producer_id]
        return gone

    # -- snapshots -------------------------------------------------------------------------------------------------

    @property
    def map_end_offset(self) -> int:
        """Offset up to which (exclusive) this state covers the log."""
        return self._map_end

    def pending_snapshot(self) -> ProducerSnapshot | None:
        """Return the snapshot to write now, None if the newest snapshot file is current.

        Call :meth:`snapshot_taken` after the write.
        """
        if self._map_end <= self._snapshot_offset:
            return None
        return ProducerSnapshot(self._map_end, self.entries())

    def snapshot_taken(self, offset: int) -> None:
        """Record that a snapshot file with the state up to ``offset`` exists."""
        self._snapshot_offset = offset

    def entries(self) -> tuple[ProducerEntry, ...]:
        """Return the snapshot entries of all producers, by rising id."""
        return tuple(producer.to_entry(producer_id) for producer_id, producer in sorted(self._producers.items()))

    def load(self, snapshot: ProducerSnapshot | None, *, log_start: int, now_ms: int) -> None:
        """Replace the state by that of ``snapshot``, without expired producers. None: an empty state at the log's
        start.

        Afterwards only the newest batch of each producer is known.
        """
        loaded = () if snapshot is None else snapshot.entries
        producers = {e.producer_id: Producer.from_entry(e) for e in loaded}
        self._producers = {
            producer_id: producer for producer_id, producer in producers.items() if not producer.is_expired(now_ms)
        }
        opened = [(p.txn_first_offset, i) for i, p in self._producers.items() if p.txn_first_offset != NO_OFFSET]
        self._txns = dict(sorted(opened))
        self._log_start = log_start
        self._map_end = self._snapshot_offset = log_start if snapshot is None else snapshot.offset

    # -- what it holds ---------------------------------------------------------------------------------------------

    def producer(self, producer_id: int) -> Producer | None:
        """Return the state of one producer, None if it is unknown. The caller must not change the state."""
        return self._producers.get(producer_id)

    def open_txns(self) -> Iterator[tuple[int, int]]:
        """Iterate over (first offset, producer id) of the open transactions, in order."""
        return iter(self._txns.items())

    def describe_open_txns(self) -> list[OpenTxn]:
        """Return the open transactions with facts about their producers, by first offset."""
        found = ((first, producer_id, self._producers[producer_id]) for first, producer_id in self._txns.items())
        return [OpenTxn(i, p.epoch, first, p.timestamp, p.coordinator_epoch) for first, i, p in found]

    def __len__(self) -> int:
        return len(self._producers)


def stray(offsets: Iterable[int], bases: Iterable[int]) -> list[int]:
    """Return the ``offsets`` of snapshots to delete when a log is loaded: those that are no base in ``bases``.

    ``bases``: base offsets of the segments. The largest offset stays if it is above all bases: a clean shutdown wrote
    that snapshot, at the end of the log.
    """
    live = set(bases)
    strays = sorted(set(offsets) - live)
    if strays and strays[-1] > max(live, default=-1):
        strays.pop()
    return strays


def out_of_range(offsets: Iterable[int], log_start: int, log_end: int) -> list[int]:
    """Return the offsets of snapshots at or below ``log_start``, or above ``log_end``, in ascending order.

    The caller deletes these snapshots before it loads one.
    """
    return sorted(offset for offset in offsets if offset > log_end or offset <= log_start)


def loadable(offsets: Iterable[int], log_start: int, log_end: int) -> list[int]:
    """Return the offsets of snapshots above ``log_start`` and up to ``log_end`` (inclusive), newest first.

    The caller loads the first; it deletes a corrupt snapshot and tries the next.
    """
    return sorted((offset for offset in offsets if log_start < offset <= log_end), reverse=True)


def points_of_rebuild(bases: Sequence[int], log_end: int) -> list[int]:
    """Return the offsets at which a rebuild writes snapshots: the bases of the last two segments, and ``log_end``."""
    return sorted({*sorted(bases)[-2:], log_end})


class Draft:
    """State of one producer after the batches of an append that were checked so far, and are not written yet."""

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


def check_data(draft: Draft, batch: ProducerBatch, origin: Origin, index: int) -> None:
    """Check epoch, sequence and transaction flag of a data batch, and update ``draft``, the state of its producer.

    Only a client's sequence is checked. ``index``: number of the batch's first record in the append. Raises
    ProducerFencedError for an older epoch, and OutOfOrderSequenceError unless the sequence is the next. Raises
    InvalidTxnStateError for a non-transactional batch while a transaction of the producer is open.
    """
    who = f"producer {batch.producer_id}"
    _check_epoch(draft, batch)
    if origin is Origin.CLIENT:
        _check_sequence(draft, batch, index)
    if draft.in_txn and not batch.transactional:
        raise InvalidTxnStateError(
            f"{who}: the batch is not transactional, but a transaction of this producer is open",
            index=index,
            hint="commit or abort the transaction first",
        )
    draft.epoch = batch.producer_epoch
    draft.last_sequence = batch.last_sequence
    draft.in_txn = batch.transactional


def check_marker(draft: Draft, batch: ProducerBatch) -> None:
    """Check the epochs of a marker, and update ``draft``, the state of its producer.

    Raises ProducerFencedError for an older epoch of the producer or of the coordinator. An empty control batch, from
    which compaction removed the marker, is ignored.
    """
    if batch.marker is None:
        return
    _check_epoch(draft, batch)
    epoch = batch.marker.coordinator_epoch
    if epoch < draft.coordinator_epoch:
        raise ProducerFencedError(
            f"producer {batch.producer_id}: the marker has coordinator epoch {epoch}, but epoch "
            f"{draft.coordinator_epoch} was seen before",
            hint="a newer transaction coordinator has taken over: stop this one",
        )
    draft.epoch = batch.producer_epoch
    draft.coordinator_epoch = epoch
    draft.in_txn = False


def _check_epoch(draft: Draft, batch: ProducerBatch) -> None:
    if batch.producer_epoch < draft.epoch:
        raise ProducerFencedError(
            f"producer {batch.producer_id}: the batch has epoch {batch.producer_epoch}, the newest is {draft.epoch}",
            hint="another instance with this producer id is newer: stop this instance",
        )


def _check_sequence(draft: Draft, batch: ProducerBatch, index: int) -> None:
    if draft.epoch == NO_EPOCH:
        return  # an unknown producer: its records may have expired or been deleted, so any sequence is fine
    last = draft.last_sequence if batch.producer_epoch == draft.epoch else NO_SEQUENCE
    if follows(last, batch.base_sequence):
        return
    expected = (last + 1) % SEQUENCES
    raise OutOfOrderSequenceError(
        f"producer {batch.producer_id}, epoch {batch.producer_epoch}: got sequence "
        f"{batch.base_sequence}, expected {expected}",
        expected=expected,
        index=index,
        hint="append the missing batches first; a batch that was retried too late cannot be recognised",
    )
