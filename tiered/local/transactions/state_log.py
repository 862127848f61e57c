"""``__transaction_state``: the log of the transaction coordinator, a compacted topic of its directory, never tiered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from tiered.config import UNLIMITED, TopicConfig
from tiered.errors import ClosedError, ConfigError, LocalIOError, UnknownTopicError
from tiered.format.batch import decode_records
from tiered.format.coordinator_records import TRANSACTION_STATE_TOPIC, state_partition
from tiered.local.disk.topics import TopicInfo
from tiered.local.partition.read_log import ReadLog
from tiered.local.partition.write_log import WriteLog
from tiered.model import TopicPartition
from tiered.plan.transactions import TransactionChange, TransactionCoordinator

STATE_CONFIG = TopicConfig(cleanup_policy="compact", segment_bytes=104_857_600, seal_ms=UNLIMITED)
"""Kafka's ``transaction.state.log.segment.bytes``; no upload waits for a seal."""


class PartitionHost(Protocol):
    """The log whose partitions take part: one directory, or several."""

    def topics(self) -> dict[str, TopicInfo]:
        """Return the topics by name."""

    def partition(self, tp: TopicPartition) -> WriteLog:
        """Return a partition. Raises UnknownTopicError."""

    def awake(self) -> list[WriteLog]:
        """Return the partitions that are open: after an unclean stop, all."""

    def create_topic(self, name: str, partitions: int = 1, config: TopicConfig | None = None) -> TopicInfo: ...


class StateLog:
    """State log of a coordinator. A directory of ours has one partition of it, a broker's many (Kafka's choice)."""

    def __init__(self, host: PartitionHost) -> None:
        self._host = host

    @property
    def exists(self) -> bool:
        """Return True if there ever was a transaction."""
        return TRANSACTION_STATE_TOPIC in self._host.topics()

    @property
    def is_ours(self) -> bool:
        """Return True if this product created the state log. A broker settles the transactions of its own."""
        info = self._host.topics().get(TRANSACTION_STATE_TOPIC)
        return info is not None and not info.adopted

    def load(self, *, may_make: bool = True) -> TransactionCoordinator:
        """Return the coordinator from the log; create an empty log. ConfigError if another directory may have one.

        The coordinator's epoch is the newest of the log and does not rise with a process: the lock of the directory
        excludes an older one. A broker that takes the directory over refuses markers below an epoch that it has seen,
        its own included. Raises CorruptionError, LocalIOError.
        """
        info = self._host.topics().get(TRANSACTION_STATE_TOPIC)
        if info is None and not may_make:
            raise ConfigError(
                f"{TRANSACTION_STATE_TOPIC} of this log may be in a directory that is not open",
                hint="open all directories of the log together",
            )
        if info is None:
            self._host.create_topic(TRANSACTION_STATE_TOPIC, 1, STATE_CONFIG)
            return TransactionCoordinator()
        logs = [self._host.partition(TopicPartition(TRANSACTION_STATE_TOPIC, p)) for p in info.here]
        epoch = max((log.leader_epochs()[-1].epoch for log in logs if log.leader_epochs()), default=0)
        coordinator = TransactionCoordinator(epoch=epoch)
        replay_state(logs, coordinator.replay)
        return coordinator

    def append(self, step: TransactionChange, *, durable: bool = False) -> None:
        """Append the record of one step. Raises LocalIOError (it may be there), DiskFullError (it is not)."""
        info = self._host.topics().get(TRANSACTION_STATE_TOPIC)
        if info is None:
            raise UnknownTopicError(
                f"{TRANSACTION_STATE_TOPIC} was deleted under its coordinator", hint="open the log again"
            )
        number = state_partition(step.transactional_id, info.partitions)
        log = self._host.partition(TopicPartition(TRANSACTION_STATE_TOPIC, number))
        log.append((step.record,))
        if durable:
            try:
                log.flush()
            except ClosedError as error:  # the log moves to another directory, perhaps with this record
                raise LocalIOError(f"{log.tp} was closed while a decision was written to it") from error


def replay_state(logs: Iterable[ReadLog], replay: Callable[[bytes, bytes | None], None]) -> None:
    """Pass the newest record of each id to ``replay(key, value)``. Raises CorruptionError."""
    newest: dict[bytes, bytes | None] = {}  # undecoded: later records replace most of a long log
    for log in logs:
        for batch in log.read_batches(log.positions().local_start_offset):
            newest.update((record.key, record.value) for record in decode_records(batch) if record.key is not None)
    for key, value in newest.items():
        replay(key, value)
