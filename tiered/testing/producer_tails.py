"""The newest thing that each producer wrote: what a cleaning must leave a trace of. Pure.

Whoever keeps no live producer state gets it by showing this the headers of the whole log, active segment included, or
those behind a producer snapshot. Same rules as Kafka's load of a log, without the checks.

Kafka's rules: docs/kafka-semantics.md#producer-state and #markers.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiered.config import DAY_MS
from tiered.format.batch import BatchHeader
from tiered.format.producer_snapshot import ProducerEntry

PRODUCER_EXPIRATION_MS = DAY_MS
"""A producer that wrote nothing for so long, by its record timestamps, is forgotten (``producer.id.expiration.ms``)."""

_NO_OFFSET = -1


class ProducerTails:
    """State of the producers of one partition after the batches shown so far."""

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
