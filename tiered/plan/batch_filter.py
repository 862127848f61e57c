"""Decide which records survive a cleaning, and rebuild their batches. Pure: batches in, batches out.

::

    a record above the map's latest offset     stays: this round does not know it
    no key                                     goes (written before the topic was compacted)
    a newer record of its key exists           goes
    tombstone, the newest of its key           stays until the batch's delete horizon has passed
    data of an aborted transaction             goes at once
    transaction marker                         stays until its transaction's data is gone and its horizon has passed

A batch that loses nothing is passed on byte for byte. One that keeps a tombstone, or a marker whose data is gone,
gets a delete horizon unless it has one: a round never removes a record that it is the first to find removable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tiered.config import MAX_LONG
from tiered.errors import CorruptionError
from tiered.format.batch import (
    BatchHeader,
    decode_records,
    rebuild_batch,
    rebuild_encoded,
    verify_batch,
)
from tiered.format.batch_scanner import first_of
from tiered.format.header import Buffer
from tiered.format.kernel_values import BatchFilterResult, RunFilterResult
from tiered.format.kernels import Record
from tiered.format.producer_snapshot import ProducerEntry
from tiered.model import AbortedTxn
from tiered.plan.offset_map import NOTHING_BEFORE, CleanedTxns, OffsetMap, TxnsBefore

_LEGACY_MAGICS = 2  # 0 and 1


@dataclass(slots=True)
class CleaningStats:
    """Counts of one cleaning round. ``bytes_written``: all batches that stay, also those of an unchanged segment."""

    records_read: int = 0
    bytes_read: int = 0
    records_written: int = 0
    bytes_written: int = 0


@dataclass(slots=True)
class CleaningReport:
    """Result of one cleaning round. ``end_offset``: the new first dirty offset, -1 before the round has ended.

    ``first_dirty``: the first dirty offset before the round. ``keys``: number of keys in the map of newest offsets.
    ``groups``: for each output segment, the base offsets of its input segments. ``utilization``: the share of the
    map's capacity that is used; 1 if the map is full.
    """

    first_dirty: int
    end_offset: int = -1
    keys: int = 0
    utilization: float = 0.0
    records_read: int = 0
    records_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    groups: list[tuple[int, ...]] = field(default_factory=list)

    def conclude(self, stats: CleaningStats, offset_map: OffsetMap) -> None:
        """Copy into this report the filter's counts, and the end offset and fill level of ``offset_map``.

        The filter's ``bytes_read`` are added to those of the report, which has the bytes read for the map.
        """
        self.keys, self.utilization = len(offset_map), len(offset_map) / offset_map.capacity
        self.records_read, self.records_written = stats.records_read, stats.records_written
        self.bytes_read, self.bytes_written = self.bytes_read + stats.bytes_read, stats.bytes_written
        self.end_offset = offset_map.end_offset


class Newest(Protocol):
    """Source that knows the newest record of each key: a map of keys, or a bitmap of survivors (``plan.survivors``)."""

    @property
    def latest_offset(self) -> int:
        """Return the last offset that this source covers."""

    def is_superseded(self, key: bytes, offset: int) -> bool:
        """Return True if a newer record of ``key`` exists than the one at ``offset``."""

    def filter_batch(self, batch: Buffer, keeps_tombstones: bool, horizon_ms: int) -> BatchFilterResult | None:
        """Return the records of a data batch that stay. None: the caller calls :meth:`is_superseded` for each record.

        ``keeps_tombstones``: False removes a tombstone even if it is the newest record of its key. ``horizon_ms``:
        delete horizon for a batch that keeps a tombstone and has none yet.
        """

    def filter_run(self, batches: Buffer, now_ms: int, horizon_ms: int, boundary: int) -> RunFilterResult | None:
        """Filter consecutive ``batches`` from the first on, and return those that stay.

        The result has ``used``, the number of bytes that were filtered. None, or ``used`` 0: the caller filters the
        first batch itself. ``now_ms``: a tombstone is removed if its batch's delete horizon is at or before this time.
        ``horizon_ms``: delete horizon for a batch that keeps a tombstone and has none yet. ``boundary``: a batch that
        ends at this offset is left to the caller if none of its records stays.
        """


class CleanedRun(NamedTuple):
    """Result for the next ``size`` bytes of consecutive batches. ``left``: the batches that stay, possibly none.

    ``same``: all batches stay unchanged.
    """

    size: int
    left: Buffer
    same: bool


class BatchFilter:
    """Filter for the batches of one cleaning round. The caller passes every batch, in offset order.

    A round begins at the start of the log, or at any segment with ``before``, the state of earlier transactions.
    ``newest``: source that knows superseded records. ``first_uncleanable``: exclusive end of the offsets that may be
    cleaned. ``delete_retention_ms``: time from now to a new delete horizon. ``producers``: producers of the log that
    have not expired; the newest batch of each stays. ``aborted``: all entries of the log's transaction indexes.
    ``legacy_horizon_ms``: a segment last written at or before this time loses its v0 and v1 tombstones.
    """

    def __init__(
        self,
        newest: Newest,
        *,
        first_uncleanable: int,
        now_ms: int,
        delete_retention_ms: int,
        producers: Iterable[ProducerEntry] = (),
        aborted: Iterable[AbortedTxn] = (),
        before: TxnsBefore = NOTHING_BEFORE,
        legacy_horizon_ms: int = 0,
    ) -> None:
        self.stats = CleaningStats()
        self._newest = newest
        self._first_uncleanable = first_uncleanable
        self._now_ms = now_ms
        # mutant delete-horizon-is-set
        self._horizon_ms = min(now_ms + delete_retention_ms, MAX_LONG)
        self._producers = {entry.producer_id: entry for entry in producers}
        self._txns = CleanedTxns(aborted, before)
        self._legacy_horizon_ms = legacy_horizon_ms
        self._keeps_legacy_tombstones = True
        self._end = 0

    def start_segment(self, modified_ms: int = MAX_LONG) -> None:
        """Start a segment of the input. ``modified_ms``: time of its last write.

        Only tombstones of v0 and v1 messages depend on this time. By default they stay.
        """
        self._keeps_legacy_tombstones = modified_ms > self._legacy_horizon_ms

    def drain_aborted(self) -> tuple[AbortedTxn, ...]:
        """Return the ``.txnindex`` entries of ABORT markers that stayed since the last call.

        Call it after each group of segments that become one.
        """
        return self._txns.drain_retained()

    def clean(self, batch: Buffer, header: BatchHeader | None = None) -> Buffer | None:
        """Return one batch without its removed records: the same buffer if nothing changes, None if nothing stays.

        ``header``: the header of the batch; None: it is decoded here.
        Raises ``CorruptionError`` for a batch that is damaged or does not follow the one before. The caller must then
        commit nothing of this round, and must not clean the partition again before an operator has examined it.
        """
        return self._clean(batch, verify_batch(batch, header))

    def clean_run(self, batches: memoryview) -> Iterator[CleanedRun]:
        """Filter consecutive verified v2 batches. Yield results in order, each for one or more batches.

        Raises ``CorruptionError``, with the position in ``batches``, for a damaged or overlapping batch.
        """
        at = 0
        while at < len(batches):
            rest = batches[at:]
            kept = self._newest.filter_run(rest, self._now_ms, self._horizon_ms, self._first_uncleanable)
            if kept is not None and kept.used:
                self._behind(first_of(rest)[0].base_offset, kept.next, at)
                left = self._written(rest[: kept.used] if kept.data is None else kept.data, kept.records)
                self._txns.advance(kept.next - 1)
                self._count(kept.used, kept.read)
                yield CleanedRun(kept.used, left, kept.data is None)
                at += kept.used
                rest = batches[at:]
            if rest:
                header, batch = first_of(rest)
                try:
                    cleaned = self._clean(batch, header)
                except CorruptionError as error:
                    raise CorruptionError(error.message, position=at, offset=header.base_offset) from error
                yield CleanedRun(len(batch), b"" if cleaned is None else cleaned, cleaned is batch)
                at += len(batch)

    def _behind(self, base_offset: int, end: int, position: int = 0) -> None:
        if base_offset < self._end:
            raise CorruptionError(
                f"the batch at offset {base_offset} overlaps the previous batch, which ends at {self._end}",
                position=position,
                offset=base_offset,
            )
        self._end = end

    def _clean(self, batch: Buffer, header: BatchHeader) -> Buffer | None:
        self._behind(header.base_offset, header.next_offset)
        self._count(header.size_bytes, header.records_count)
        if header.is_control:
            kept, wants_horizon = self._keep_marker(header, batch)
        elif self._txns.is_aborted(header):
            kept, wants_horizon = [], False
        else:
            keeps_tombstones = self._keeps_tombstones(header)
            at_once = self._newest.filter_batch(batch, keeps_tombstones, self._horizon_ms)
            if at_once is not None:
                return self._write_at_once(header, batch, at_once)
            kept, wants_horizon = self._keep_records(batch, keeps_tombstones)
        if not kept and not self._must_stay(header):
            return None
        return self._written(self._write(header, batch, kept, wants_horizon), len(kept))

    def _keep_marker(self, header: BatchHeader, batch: Buffer) -> tuple[list[Record], bool]:
        """Return (the marker if it stays, True if it needs a delete horizon as its transaction has no data left)."""
        records = list(decode_records(batch))
        idle = self._txns.marker_is_unneeded(header, records[0] if records else None)
        horizon = header.delete_horizon_ms
        if idle and horizon is not None and horizon <= self._now_ms:
            return [], False
        return records, idle and bool(records)

    def _keeps_tombstones(self, header: BatchHeader) -> bool:
        horizon = header.delete_horizon_ms
        if header.magic < _LEGACY_MAGICS:
            keeps_tombstones = self._keeps_legacy_tombstones
        else:
            # mutant tombstones-wait
            keeps_tombstones = horizon is None or self._now_ms < horizon
        return keeps_tombstones

    def _keep_records(self, batch: Buffer, keeps_tombstones: bool) -> tuple[list[Record], bool]:
        """Return the records that stay, and True if a tombstone is among them."""
        is_superseded, latest = self._newest.is_superseded, self._newest.latest_offset
        kept: list[Record] = []
        keep = kept.append
        has_tombstone = False
        for record in decode_records(batch):
            offset = record.offset
            if offset <= latest:
                key = record.key
                if key is None or is_superseded(key, offset) or (record.value is None and not keeps_tombstones):
                    continue
            if record.value is None:
                has_tombstone = True
            keep(record)
        return kept, has_tombstone

    def _count(self, size: int, records: int) -> None:
        self.stats.bytes_read += size
        self.stats.records_read += records

    def _written(self, cleaned: Buffer, records: int) -> Buffer:
        self.stats.records_written += records
        self.stats.bytes_written += len(cleaned)
        return cleaned

    def _write_at_once(self, header: BatchHeader, batch: Buffer, kept: BatchFilterResult) -> Buffer | None:
        """Return the batch with only the records in ``kept``, the filter's result. None if it is removed."""
        # mutant batch-with-records-stays
        if not kept.records and not self._must_stay(header):
            return None
        if kept.data is None:
            cleaned = batch if kept.records else self._write(header, batch, [], False)
        else:
            cleaned = rebuild_encoded(
                header,
                kept.data,
                kept.records,
                base_timestamp=kept.base_timestamp,
                max_timestamp=kept.max_timestamp,
                has_horizon=kept.sets_horizon or header.has_delete_horizon,
            )
        return self._written(cleaned, kept.records)

    def _write(self, header: BatchHeader, batch: Buffer, kept: list[Record], wants_horizon: bool) -> Buffer:
        """Return the batch with only the records ``kept``. ``wants_horizon``: set a delete horizon if it has none."""
        sets_horizon = wants_horizon and header.delete_horizon_ms is None
        if len(kept) == header.records_count and (not sets_horizon or header.magic < _LEGACY_MAGICS):
            return batch
        # A changed v0 or v1 message becomes a v2 batch: only that can be empty or carry a horizon.
        return rebuild_batch(header, kept, delete_horizon_ms=self._horizon_ms if sets_horizon else None)

    def _must_stay(self, header: BatchHeader) -> bool:
        """Return True if the batch stays even without records.

        Such a batch ends at ``first_uncleanable``, or is the newest batch of a producer. A marker also stays if its
        producer has the same epoch and no known data batch.
        """
        if header.next_offset == self._first_uncleanable:
            return True
        entry = self._producers.get(header.producer_id) if header.producer_id >= 0 else None
        if entry is None:
            return False
        if entry.last_offset >= 0:
            return header.last_offset == entry.last_offset
        return header.is_control and header.producer_epoch == entry.producer_epoch
