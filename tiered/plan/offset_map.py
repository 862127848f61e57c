"""Newest offset of every key in the dirty part of a log, and the transactions of the cleaned range. Pure.

Memory is bounded: keys are stored as digests, and equal digests count as equal keys. Kafka's digest is MD5, for which
colliding keys can be made, so that a record would be lost. The digest here has 128 bits and depends on a secret of the
process, which makes such keys impossible to find.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from itertools import islice

from tiered.errors import ConfigError, CorruptionError
from tiered.format.batch import BatchHeader, decode_records, verify_batch
from tiered.format.batch_scanner import first_of
from tiered.format.control import ControlType, control_type
from tiered.format.header import Buffer
from tiered.format.kernel_values import BatchFilterResult, BatchKeysResult, RunFilterResult, RunKeysResult
from tiered.format.kernels import HASH_SECRET, KeyTable, Record
from tiered.model import AbortedTxn

DEDUPE_BUFFER_BYTES = 128 * 1024 * 1024
"""Default memory of a map (Kafka's ``log.cleaner.dedupe.buffer.size``)."""

ENTRY_BYTES = 200
"""Upper bound of one entry: a digest (64), an offset (32), and its share of the table, also while the table grows and
exists twice. Measured: 130 to 190; with the compiled table at most 89, and 96 for its notes of records.
"""

LOAD_FACTOR = 0.9
"""Share of the memory that is used (Kafka's ``log.cleaner.io.buffer.load.factor``)."""

DIGEST_BYTES = 16


class OffsetMap:
    """Map of key digests to newest offsets. ``latest_offset`` is the last offset that it covers.

    ``capacity``: number of keys for which ``memory_bytes``, used up to ``load_factor``, has room. Raises ConfigError if
    there is room for none.
    """

    def __init__(self, memory_bytes: int = DEDUPE_BUFFER_BYTES, *, load_factor: float = LOAD_FACTOR) -> None:
        if memory_bytes < ENTRY_BYTES or not 0 < load_factor <= 1:
            raise ConfigError(
                f"an offset map of {memory_bytes} bytes, filled to {load_factor}, has no room for a key",
                hint=f"give it at least {ENTRY_BYTES} bytes, and a load factor above 0 and at most 1",
            )
        self.capacity = max(int(memory_bytes // ENTRY_BYTES * load_factor), 1)
        self.latest_offset = -1
        self._keys = KeyTable(self.capacity, HASH_SECRET)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def end_offset(self) -> int:
        """Offset at which this round ends and the next one starts: the new checkpoint."""
        return self.latest_offset + 1

    def put(self, key: bytes, offset: int) -> None:
        """Set the newest offset of ``key``. The caller checks the capacity first, and passes rising offsets."""
        self._keys.put(key, offset)
        self.latest_offset = offset

    def get(self, key: bytes) -> int:
        """Return the newest offset of ``key``; -1 if the dirty part does not contain it."""
        return self._keys.get(key)

    def is_superseded(self, key: bytes, offset: int) -> bool:
        """Return True if the dirty part has a newer record of ``key`` than the one at ``offset``."""
        return self.get(key) > offset

    def put_batch(self, batch: Buffer, start: int) -> BatchKeysResult | None:
        """Add the keys of one verified batch for the records at offset ``start`` and above. None: nothing was added.

        The caller adds the records one by one with :meth:`put`: after None all, and if ``odd`` is True in the result,
        all after the first ``records``. ``full``: the map has no room for the next key. Raises CorruptionError for a
        damaged batch.
        """
        done = self._keys.put_batch(batch, start)
        if done is not None and done.newest >= 0:
            self.latest_offset = done.newest
        return done

    def put_run(self, batches: Buffer, start: int) -> RunKeysResult | None:
        """Add the keys of consecutive v2 batches for records from offset ``start`` on, until the map is full.

        It stops before a batch that the fast path does not take, such as a compressed or transactional one. The caller
        adds that batch with :meth:`put_batch`. None: nothing was added.
        """
        done = self._keys.put_run(batches, start)
        if done is not None:
            self.advance(done.newest)
        return done

    def start_at(self, start: int) -> None:
        """Start the map at offset ``start``: the caller will add no record below it."""
        self.advance(start - 1)
        self._keys.count_superseded_from(start)

    def filter_run(self, batches: Buffer, now_ms: int, horizon_ms: int, boundary: int) -> RunFilterResult | None:
        """Filter consecutive v2 batches as :class:`~tiered.plan.batch_filter.Newest`."""
        return self._keys.filter_run(batches, self.latest_offset, now_ms, horizon_ms, boundary)

    def filter_batch(self, batch: Buffer, keeps_tombstones: bool, horizon_ms: int) -> BatchFilterResult | None:
        """Filter one batch as :class:`~tiered.plan.batch_filter.Newest`. Raises CorruptionError for a damaged one."""
        return self._keys.filter_batch(batch, self.latest_offset, keeps_tombstones, horizon_ms)

    def advance(self, offset: int) -> None:
        """Count all offsets up to ``offset`` (inclusive) as covered by the map. A lower offset changes nothing."""
        self.latest_offset = max(self.latest_offset, offset)


class OffsetMapBuilder:
    """Builder of a map from the dirty part of a log, batch by batch, until the log ends or the map is full.

    Control records and records of aborted transactions are left out. A full map may end inside a batch: it is complete
    up to :attr:`OffsetMap.latest_offset`, after which the next round begins. ``start_offset``: first offset of the map.
    ``aborted``: entries of the transaction indexes of all segments up to the end of the log.
    """

    def __init__(self, offset_map: OffsetMap, *, start_offset: int, aborted: Iterable[AbortedTxn] = ()) -> None:
        self.offset_map = offset_map
        self.records_read = 0
        self.bytes_read = 0
        self._start = start_offset
        self._txns = CleanedTxns(aborted)
        offset_map.start_at(start_offset)

    def add(self, batch: Buffer, header: BatchHeader | None = None) -> bool:
        """Add the keys of one batch. Return True if the map is full: the caller stops reading.

        A full map may contain only the beginning of that batch. Records below the start of the map are left out.
        ``header``: the header of the batch; None: it is decoded here. Raises ``CorruptionError`` for a damaged batch.
        """
        return self._add(batch, verify_batch(batch, header))

    def add_run(self, batches: memoryview) -> bool:
        """Add the keys of consecutive verified v2 batches. Return True if the map is full.

        Raises ``CorruptionError``, with the position in ``batches``, for a damaged batch.
        """
        at = 0
        while at < len(batches):
            done = self.offset_map.put_run(batches[at:], self._start)
            if done is not None and done.used:
                self.bytes_read += done.used
                self.records_read += done.records
                self._txns.advance(done.newest)
                at += done.used
                if done.full:
                    return True
            if at < len(batches):
                header, batch = first_of(batches[at:])
                try:
                    if self._add(batch, header):
                        return True
                except CorruptionError as error:
                    raise CorruptionError(error.message, position=at, offset=header.base_offset) from error
                at += header.size_bytes
        return False

    def _add(self, batch: Buffer, header: BatchHeader) -> bool:
        self.bytes_read += header.size_bytes
        if header.is_control:
            self.records_read += header.records_count
            self._txns.marker_is_unneeded(header, next(decode_records(batch), None))
        elif self._txns.is_aborted(header):
            self.records_read += header.records_count
        elif self._put_records(batch):
            return True
        self.offset_map.advance(header.last_offset)
        return False

    def end_segment(self, next_base_offset: int) -> None:
        """Count all offsets of the segment that ends here as covered. The next one begins at ``next_base_offset``."""
        self.offset_map.advance(next_base_offset - 1)

    def _put_records(self, batch: Buffer) -> bool:
        offset_map, start = self.offset_map, self._start
        done = offset_map.put_batch(batch, start)
        if done is not None:
            self.records_read += done.records
            if not done.odd:
                return done.full
        put = offset_map.put
        room = offset_map.capacity - len(offset_map)
        read = 0
        for record in islice(decode_records(batch), 0 if done is None else done.records, None):
            key = record.key
            if key is not None and record.offset >= start:
                if room <= 0:
                    room = offset_map.capacity - len(offset_map)  # keys that were there already took none
                    if room <= 0:
                        self.records_read += read
                        return True
                put(key, record.offset)
                room -= 1
            read += 1
        self.records_read += read
        return False


@dataclass(slots=True)
class _Aborted:
    txn: AbortedTxn
    seen: bool = False


@dataclass(frozen=True, slots=True)
class TxnsBefore:
    """Transactions that began before ``offset`` and end later, for a cleaning that begins at ``offset``.

    ``committed``: producer ids of those that commit. ``aborted``: producer ids of those that abort. Each has a batch
    before ``offset``.
    """

    offset: int = 0
    committed: Container[int] = ()
    aborted: Container[int] = ()


NOTHING_BEFORE = TxnsBefore()


class CleanedTxns:
    """Tracker of transactions during one pass over a log. It finds aborted batches and markers that may be removed.

    The caller passes every batch, in offset order. A marker is needed if the pass has met any batch of its transaction,
    also an empty one: producer state is rebuilt from these batches.

    ``aborted``: entries of the transaction indexes of all segments up to the end of the log. Transactions
    without an entry count as committed. ``before``: transactions that are open at the start of the pass.
    """

    def __init__(self, aborted: Iterable[AbortedTxn] = (), before: TxnsBefore = NOTHING_BEFORE) -> None:
        self._before = before
        self._ended: set[int] = set()
        self._ahead = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()
        self._retained: list[AbortedTxn] = []

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return True if the records of this data batch were aborted. Record that its transaction has a batch."""
        self.advance(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = self._aborted.get(header.producer_id)
        if aborted is not None and aborted.txn.last_offset < header.base_offset:
            # Its marker never came. If it stayed, it would hide the producer's next, committed transaction.
            del self._aborted[header.producer_id]
            aborted = None
        if aborted is None:
            self._committed.add(header.producer_id)
            return False
        aborted.seen = True
        return True

    def marker_is_unneeded(self, header: BatchHeader, record: Record | None) -> bool:
        """Return True if this control batch is empty, or ends a transaction of which no batch remains.

        ``record``: the batch's only record, None if an earlier cleaning removed it. :meth:`drain_retained` returns the
        index entry of an ABORT marker that is still needed. Raises ``CorruptionError`` for a record without a type.
        """
        self.advance(header.last_offset)
        if record is None:
            return True
        kind = control_type(record)
        producer = header.producer_id
        if kind is ControlType.COMMIT:
            return not self._forget_committed(producer)
        if kind is not ControlType.ABORT:
            return False
        aborted = self._aborted.pop(producer, None)
        if aborted is not None and aborted.seen:
            self._retained.append(aborted.txn)
            return False
        # Data whose entry was lost was kept as committed: then the marker stays as well.
        return not self._forget_committed(producer)

    def drain_retained(self) -> tuple[AbortedTxn, ...]:
        """Return the index entries of needed ABORT markers since the last call, by rising marker offset."""
        retained, self._retained = tuple(self._retained), []
        return retained

    def seen_of(self, producer: int) -> tuple[bool, bool]:
        """Return (has one that commits, has one that aborts) for the unfinished transactions of a producer id.

        A transaction counts after a batch of it was passed to :meth:`is_aborted`, and until its marker.
        """
        aborted = self._aborted.get(producer)
        return self._is_committed(producer), aborted is not None and aborted.seen

    def _is_committed(self, producer: int) -> bool:
        return producer in self._committed or (producer in self._before.committed and producer not in self._ended)

    def _forget_committed(self, producer: int) -> bool:
        seen = self._is_committed(producer)
        self._committed.discard(producer)
        self._ended.add(producer)
        return seen

    def advance(self, offset: int) -> None:
        """Advance the pass to ``offset`` (inclusive). Call it for batches without a transaction that are not passed."""
        ahead = self._ahead
        while ahead and ahead[-1].first_offset <= offset:
            txn = ahead.pop()
            open_txn = self._aborted.get(txn.producer_id)
            if open_txn is None or open_txn.txn.last_offset < txn.first_offset:
                began = txn.first_offset < self._before.offset
                self._aborted[txn.producer_id] = _Aborted(txn, began and txn.producer_id in self._before.aborted)
