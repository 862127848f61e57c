"""Markers: the control batches that end a transaction in each of its partitions."""

from __future__ import annotations

from collections.abc import Callable

from tiered.clock import Clock
from tiered.errors import UnknownTopicError
from tiered.format.batch import encode_batch
from tiered.format.control import ControlType, marker
from tiered.local.partition.partition import PartitionLog
from tiered.local.transactions.state_log import Host
from tiered.model import TopicPartition
from tiered.plan.open_txns import OpenTxn
from tiered.plan.transactions import TxnMarker


class Markers:
    """Thread-safe. ``sees_all``: whether a partition that cannot be found is gone, or may only be elsewhere now."""

    def __init__(self, host: Host, clock: Clock, sees_all: Callable[[], bool]) -> None:
        self._host = host
        self._clock = clock
        self.sees_all = sees_all

    def append(self, owed: TxnMarker) -> PartitionLog | None:
        """To be flushed by the caller; None if the topic is gone. UnknownTopicError: the partition is not here now.

        Raises FencedError, ProducerFencedError, LocalIOError, DiskFullError: it is not there, or may not be.
        """
        log = self._find(owed.tp)
        if log is not None:
            log.append_as_coordinator(self._encoded(owed))
        return log

    def abort(self, tp: TopicPartition, txn: OpenTxn, coordinator_epoch: int) -> None:
        """Ends what no coordinator will end, durably."""
        log = self.append(TxnMarker(tp, txn.producer_id, txn.producer_epoch, coordinator_epoch, abort=True))
        if log is not None:
            log.flush()

    def _find(self, tp: TopicPartition) -> PartitionLog | None:
        try:
            return self._host.partition(tp)
        except UnknownTopicError:
            if not self.sees_all():
                raise
        try:
            return self._host.partition(tp)  # it may just have arrived in another directory
        except UnknownTopicError:
            if tp.topic in self._host.topics():
                raise
            return None

    def _encoded(self, owed: TxnMarker) -> bytes:
        kind = ControlType.ABORT if owed.abort else ControlType.COMMIT
        return encode_batch(
            [marker(kind, owed.coordinator_epoch, self._clock.now_ms())],
            producer_id=owed.producer_id,
            producer_epoch=owed.producer_epoch,
            transactional=True,
            control=True,
        )
