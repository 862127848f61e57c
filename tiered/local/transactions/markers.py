"""Markers: the control batches that end a transaction in each of its partitions.

:func:`find_leftovers` searches transactions that an unclean stop left open, and groups them by how they end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tiered.clock import Clock
from tiered.errors import TieredError, UnknownTopicError
from tiered.format.batch import encode_marker
from tiered.format.control import ControlType
from tiered.format.coordinator_records import NO_ID
from tiered.local.partition.write_log import WriteLog
from tiered.local.transactions.state_log import PartitionHost
from tiered.model import TopicPartition
from tiered.plan.transactions import TransactionCoordinator, TxnMarker
from tiered.plan.visibility import OpenTxn

LOGGER = logging.getLogger("tiered.local")


class Markers:
    """Writer of markers. Thread-safe. ``sees_all``: returns True if a partition that cannot be found is gone."""

    def __init__(self, host: PartitionHost, clock: Clock, sees_all: Callable[[], bool]) -> None:
        self._host = host
        self._clock = clock
        self.sees_all = sees_all

    def append(self, owed: TxnMarker) -> WriteLog | None:
        """Append a marker, to be flushed by the caller; None if the topic is gone.

        Raises UnknownTopicError if the partition is not here now, FencedError, ProducerFencedError, LocalIOError,
        DiskFullError. After an error the marker may be written or not.
        """
        log = self._find(owed.tp)
        if log is not None:
            log.append_as_coordinator(self._encoded(owed))
        return log

    def abort(self, tp: TopicPartition, txn: OpenTxn, coordinator_epoch: int) -> None:
        """Abort a transaction that no coordinator will end, durably."""
        log = self.append(TxnMarker(tp, txn.producer_id, txn.producer_epoch, coordinator_epoch, abort=True))
        if log is not None:
            log.flush()

    def _find(self, tp: TopicPartition) -> WriteLog | None:
        try:
            return self._host.partition(tp)
        except UnknownTopicError:
            if not self.sees_all():
                raise
        try:
            return self._host.partition(tp)  # the partition may just have arrived in another directory
        except UnknownTopicError:
            if tp.topic in self._host.topics():
                raise
            return None

    def _encoded(self, owed: TxnMarker) -> bytes:
        kind = ControlType.ABORT if owed.abort else ControlType.COMMIT
        return encode_marker(
            kind,
            owed.coordinator_epoch,
            self._clock.now_ms(),
            producer_id=owed.producer_id,
            producer_epoch=owed.producer_epoch,
        )


class OrphanTxn(NamedTuple):
    """A transaction that is open in ``tp``. ``name`` is its transactional id, "" if its records are lost."""

    tp: TopicPartition
    txn: OpenTxn
    name: str


class OrphanTxns(NamedTuple):
    """Open transactions after an unclean stop. ``nameless``: their transactional id is lost; they are aborted at once.

    ``known``: the coordinator's log has their id. They end as decided there, or are aborted. ``later``: they were begun
    after the last transaction in the coordinator's log, whose outcome does not apply to them.
    """

    nameless: list[OrphanTxn]
    known: list[OrphanTxn]
    later: list[OrphanTxn]


def find_leftovers(
    writers: Iterable[WriteLog], coordinator: TransactionCoordinator, is_ours: Callable[[int], bool]
) -> OrphanTxns:
    """Return open transactions of producers that ``is_ours`` or the coordinator's log knows; skip those of others."""
    owners: dict[int, str] = {}
    for name, value in coordinator.transactions():
        owners[value.producer_id] = name
        if value.next_producer_id != NO_ID:
            owners[value.next_producer_id] = name
    found = OrphanTxns([], [], [])
    for writer in writers:
        try:
            open_txns = writer.open_txns()
        except TieredError as error:
            LOGGER.error("open_transactions_unknown partition=%s error=%s", writer.tp, error)
            continue
        for txn in open_txns:
            owner = owners.get(txn.producer_id)
            if owner is None:
                if is_ours(txn.producer_id):
                    found.nameless.append(OrphanTxn(writer.tp, txn, ""))
            elif coordinator.is_later(owner, txn.producer_id, txn.producer_epoch):
                found.later.append(OrphanTxn(writer.tp, txn, owner))
            else:
                found.known.append(OrphanTxn(writer.tp, txn, owner))
    return found
