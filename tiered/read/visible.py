"""What ``read_committed`` shows of a stream: everything but the batches of aborted transactions."""

from __future__ import annotations

from tiered.format.batch import BatchHeader, ControlType, control_type, decode_records
from tiered.model import AbortedTxn


class Aborted:
    """The client's rule: hide a producer from its transaction's first offset to the ABORT marker."""

    def __init__(self, txns: list[AbortedTxn]) -> None:
        self._coming = txns
        self._hidden: set[int] = set()

    def hides(self, header: BatchHeader) -> bool:
        """Whether this data batch belongs to an aborted transaction."""
        while self._coming and self._coming[0].first_offset <= header.last_offset:
            self._hidden.add(self._coming.pop(0).producer_id)
        return header.is_transactional and header.producer_id in self._hidden

    def marker(self, header: BatchHeader, data: bytes | memoryview) -> None:
        """Takes note of a control batch: ABORT ends the hiding of its producer."""
        self.hides(header)
        for record in decode_records(data):
            if control_type(record) is ControlType.ABORT:
                self._hidden.discard(header.producer_id)
