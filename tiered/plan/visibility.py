"""Rules of ``read_committed``, for every reader: which transactions are open, and which records are hidden. Pure.

::

    batches, in order ─> ProducerState ─> the last stable offset: nothing at or above it is shown
    transaction indexes ─> aborted_within ─> Hidden ─> below it, aborted records are not

Kafka's rules: docs/kafka-semantics.md#read-committed and #last-stable-offset.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tiered.format.header import BatchHeader
from tiered.format.producer_snapshot import ProducerEntry
from tiered.model import AbortedTxn

_NO_TXN = -1


def aborted_within(txns: Sequence[AbortedTxn], start: int, end: int) -> tuple[list[AbortedTxn], bool]:
    """Return the aborted transactions of one segment's index that overlap offsets ``start`` to ``end`` (exclusive).

    The second value is True if the list is complete. False: indexes of later segments may have more of them.
    """
    found: list[AbortedTxn] = []
    for txn in txns:
        if txn.last_offset >= start and txn.first_offset < end:
            found.append(txn)
        if txn.last_stable_offset >= end:
            return found, True
    return found, False


class Hidden:
    """Filter that hides the batches of aborted transactions.

    A producer has one transaction at a time, so every batch of it between the first offset and the ABORT marker is in
    that transaction.
    """

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._firsts: dict[int, list[int]] = {}
        self._ends: dict[int, list[int]] = {}
        for txn in sorted(aborted, key=lambda txn: txn.first_offset):
            ends = self._ends.setdefault(txn.producer_id, [])
            self._firsts.setdefault(txn.producer_id, []).append(txn.first_offset)
            ends.append(max(txn.last_offset, ends[-1] if ends else 0))

    @property
    def hides_any(self) -> bool:
        """True if the filter has any aborted transaction."""
        return bool(self._firsts)

    def hides(self, header: BatchHeader) -> bool:
        """Return True if the records of this batch were aborted."""
        firsts = self._firsts.get(header.producer_id) if header.is_transactional else None
        if not firsts:
            return False
        begun = bisect.bisect_right(firsts, header.base_offset)
        return begun > 0 and header.base_offset < self._ends[header.producer_id][begun - 1]


def open_firsts(producers: Iterable[ProducerEntry]) -> dict[int, int]:
    """Return the first offset of each open transaction, by producer id."""
    return {entry.producer_id: entry.txn_first_offset for entry in producers if entry.txn_first_offset != _NO_TXN}


def stable_offset(firsts: Iterable[int], start: int, end: int) -> int:
    """Return the last stable offset: the smallest of ``firsts``, or ``end`` without any, but at least ``start``.

    ``firsts``: first offsets of the open transactions. ``start`` and ``end``: those of the log.
    """
    return max(min(firsts, default=end), start)


class CompletedTxn(NamedTuple):
    """Transaction whose marker was just appended. ``last_offset`` is the marker's.

    ``last_stable_offset``: last stable offset of the log after this marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    last_stable_offset: int

    @property
    def index_entry(self) -> AbortedTxn | None:
        """Entry for the ``.txnindex`` of the marker's segment; None for a commit."""
        if not self.is_aborted:
            return None
        return AbortedTxn(self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset)


class OpenTxn(NamedTuple):
    """Open transaction of one partition. ``last_timestamp``: that of its newest batch, in ms; -1: unknown."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp: int
    coordinator_epoch: int
