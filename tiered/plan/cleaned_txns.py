"""Which transactions does a cleaning meet, and which of their markers are still needed? Pure.

Batches come in offset order. Aborted transactions are known from the transaction indexes; everything else that is
transactional counts as committed. A marker is needed as long as any batch of its transaction was seen before it in
this pass, empty ones included: producer state is rebuilt from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiered.format.batch import BatchHeader
from tiered.format.control import ControlType, control_type
from tiered.model import AbortedTxn, Record


@dataclass(slots=True)
class _Aborted:
    txn: AbortedTxn
    seen: bool = False


class CleanedTxns:
    """Follows the transactions of one pass (of the map or of the filter) over a log.

    ``aborted`` are the entries of the transaction indexes of *all* segments that can touch the range: data may lie
    segments before its marker, and the entry lies with the marker.
    """

    def __init__(self, aborted: Iterable[AbortedTxn] = ()) -> None:
        self._ahead = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()
        self._retained: list[AbortedTxn] = []

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the records of this data batch were aborted; remembers that its transaction was seen."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = self._aborted.get(header.producer_id)
        if aborted is not None and aborted.txn.last_offset < header.base_offset:
            # Its marker never came by. Left standing, it would swallow the producer's next, committed transaction.
            del self._aborted[header.producer_id]
            aborted = None
        if aborted is None:
            self._committed.add(header.producer_id)
            return False
        aborted.seen = True
        return True

    def marker_is_idle(self, header: BatchHeader, record: Record | None) -> bool:
        """Whether no batch is left of the transaction that this control batch ends.

        ``record`` is its only record, None if a cleaning emptied it. An ABORT marker that is still needed keeps its
        entry in the index: see :meth:`take_retained`. Raises ``CorruptionError`` for a record without a type.
        """
        self._advance(header.last_offset)
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

    def take_retained(self) -> tuple[AbortedTxn, ...]:
        """Entries for the transaction index of the output since the last call, by rising marker offset."""
        retained, self._retained = tuple(self._retained), []
        return retained

    def _forget_committed(self, producer: int) -> bool:
        seen = producer in self._committed
        self._committed.discard(producer)
        return seen

    def _advance(self, offset: int) -> None:
        ahead = self._ahead
        while ahead and ahead[-1].first_offset <= offset:
            txn = ahead.pop()
            open_txn = self._aborted.get(txn.producer_id)
            if open_txn is None or open_txn.txn.last_offset < txn.first_offset:
                self._aborted[txn.producer_id] = _Aborted(txn)
