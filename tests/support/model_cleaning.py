"""What a round of compaction leaves of a :class:`~tests.support.model_log.ModelLog`, by Kafka's rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tests.support.model_log import ModelBatch, ModelLog
from tiered.config import DAY_MS
from tiered.format.batch import BatchHeader
from tiered.format.control import ControlType
from tiered.format.kernels import Record
from tiered.format.producer_snapshot import ProducerEntry

PRODUCER_EXPIRATION_MS = DAY_MS
"""A producer that wrote nothing for so long, by its record timestamps, is forgotten (``producer.id.expiration.ms``)."""

_NO_OFFSET = -1


@dataclass(frozen=True)
class Cleaned:
    """How far a round came: the map knows ``first_dirty`` to ``map_end``, all below ``rewritten_end`` was rewritten.

    ``present``: bases of the batches that the log holds afterwards. It is asked only about empty batches of producers
    that may count as expired or not.
    """

    first_dirty: int
    map_end: int
    rewritten_end: int
    first_uncleanable: int
    now_ms: int
    present: Collection[int] = ()


def clean(log: ModelLog, round_: Cleaned) -> None:
    """Each batch below ``rewritten_end`` as the round leaves it."""
    newest: dict[bytes | None, int] = {
        record.key: record.offset
        for batch in log.batches
        if batch.kind is None and not log.is_aborted(batch)
        for record in batch.records
        if round_.first_dirty <= record.offset < round_.map_end and record.key is not None
    }
    kept: list[ModelBatch] = []
    seen: set[int] = set()
    needed: set[int] = set()
    for batch in log.batches:
        if batch.base >= round_.rewritten_end:
            kept.append(batch)
            continue
        producer = -1 if batch.stamp is None else batch.stamp.producer_id
        if batch.kind is not None:
            idle = batch.kind is ControlType.UNKNOWN or producer not in seen
            if batch.kind is not ControlType.UNKNOWN:
                seen.discard(producer)
            if not idle:
                needed.add(batch.base)
            left = _marker(log, batch, round_, idle=idle)
        else:
            if batch.transactional:
                seen.add(producer)
            left = _data(log, batch, round_, newest)
        if left.records or _stays(log, batch, round_):
            kept.append(left)
    log.batches = kept
    log.aborted = [t for t in log.aborted if t.last_offset >= round_.rewritten_end or t.last_offset in needed]


def _marker(log: ModelLog, batch: ModelBatch, round_: Cleaned, *, idle: bool) -> ModelBatch:
    """A marker goes when nothing is left of its transaction and its time is over, which begins to run now."""
    if not idle or not batch.records:
        return batch
    if batch.horizon_ms is None:
        return batch._replace(horizon_ms=round_.now_ms + log.config.delete_retention_ms)
    return _emptied(batch) if batch.horizon_ms <= round_.now_ms else batch


def _data(log: ModelLog, batch: ModelBatch, round_: Cleaned, newest: dict[bytes | None, int]) -> ModelBatch:
    if log.is_aborted(batch):
        return _emptied(batch) if batch.records else batch
    expired = batch.horizon_ms is not None and batch.horizon_ms <= round_.now_ms

    def keeps(record: Record) -> bool:
        if record.offset >= round_.map_end:
            return True
        superseded = newest.get(record.key, -1) > record.offset
        return record.key is not None and not superseded and not (record.value is None and expired)

    records = tuple(record for record in batch.records if keeps(record))
    if not records:
        return _emptied(batch) if batch.records else batch
    horizon = batch.horizon_ms
    if horizon is None and any(record.value is None for record in records):
        horizon = round_.now_ms + log.config.delete_retention_ms
    if (records, horizon) == (batch.records, batch.horizon_ms):
        return batch
    timestamp = max(record.timestamp for record in records)
    return batch._replace(records=records, horizon_ms=horizon, timestamp=timestamp)


def _emptied(batch: ModelBatch) -> ModelBatch:
    kind = None if batch.kind is None else ControlType.UNKNOWN
    return batch._replace(records=(), horizon_ms=None, kind=kind, coordinator=-1)


def _stays(log: ModelLog, batch: ModelBatch, round_: Cleaned) -> bool:
    """Whether a batch stays without records: it ends the range, or is the newest that a live producer wrote."""
    if batch.last + 1 == round_.first_uncleanable:
        return True
    if batch.stamp is None:
        return False
    producer = log.producers.get(batch.stamp.producer_id)
    if producer is None or (producer.txn_first_offset < 0 and round_.now_ms - producer.timestamp >= DAY_MS):
        return batch.base in round_.present
    if producer.window:
        return batch.last == producer.window[-1].last_offset
    return batch.kind is not None and batch.stamp.epoch == producer.epoch


class ProducerTails:
    """State of the producers of one partition after the batches shown so far: what a cleaning must leave a trace of.

    Whoever keeps no live producer state gets it by showing this the headers of the whole log, active segment included,
    or those behind a producer snapshot. Same rules as Kafka's load of a log, without the checks.

    Kafka's rules: docs/kafka-semantics.md#producer-state and #markers.
    """

    def __init__(self, snapshot: Iterable[ProducerEntry] = ()) -> None:
        self._entries = {entry.producer_id: entry for entry in snapshot}

    def observe(self, header: BatchHeader) -> None:
        """The next batch of the log. An emptied one counts, it was kept for this; an emptied marker says nothing."""
        producer = header.producer_id
        if producer < 0 or (header.is_control and header.records_count == 0):
            return
        before = self._entries.get(producer)
        if header.is_control:
            self._entries[producer] = _ended(before, header)
            return
        txn_first = before.txn_first_offset if before is not None else _NO_OFFSET
        if header.is_transactional and txn_first < 0:
            txn_first = header.base_offset
        self._entries[producer] = ProducerEntry(
            producer_id=producer,
            producer_epoch=header.producer_epoch,
            last_sequence=header.last_sequence,
            last_offset=header.last_offset,
            offset_delta=header.last_offset_delta,
            timestamp=header.max_timestamp,
            coordinator_epoch=before.coordinator_epoch if before is not None else -1,
            txn_first_offset=txn_first,
        )

    def live(self, now_ms: int, expiration_ms: int = PRODUCER_EXPIRATION_MS) -> tuple[ProducerEntry, ...]:
        """Those that wrote within ``expiration_ms`` or have a transaction open, by producer id."""
        entries = sorted(self._entries.values())
        return tuple(e for e in entries if e.txn_first_offset >= 0 or now_ms - e.timestamp < expiration_ms)


def _ended(before: ProducerEntry | None, header: BatchHeader) -> ProducerEntry:
    """After a marker: no open transaction; a new epoch forgets the batches of the old one."""
    if before is None or before.producer_epoch != header.producer_epoch:
        coordinator = before.coordinator_epoch if before is not None else -1
        return ProducerEntry(
            header.producer_id, header.producer_epoch, -1, _NO_OFFSET, 0, header.max_timestamp, coordinator
        )
    return before._replace(timestamp=header.max_timestamp, txn_first_offset=_NO_OFFSET)
