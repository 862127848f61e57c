"""The log of the transaction coordinator, and the producer ids that a volume has assigned.

``__transaction_state`` is a compacted topic of its directory, never tiered. ``tiered-producer-ids.json`` has the
range of producer ids that this volume has assigned. A broker ignores the file::

    {"version": 1, "first": 5909874999533895680, "next": 5909874999533896680}

Ids are reserved in blocks, durably, before the first of a block is used: none is ever assigned twice. A volume begins
at a random id: ids of two volumes, or of a Kafka cluster (which counts from 0), do not collide when their logs meet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from tiered.clock import IdSource
from tiered.config import UNLIMITED, TopicConfig
from tiered.errors import ClosedError, ConfigError, LocalIOError, UnknownTopicError
from tiered.format.batch import decode_records
from tiered.format.coordinator_records import TRANSACTION_STATE_TOPIC, state_partition
from tiered.format.kernels import PlainLock
from tiered.local.disk.directory_files import VERSION, read_json
from tiered.local.disk.files import Files
from tiered.local.disk.topics import TopicInfo
from tiered.local.partition.read_log import ReadLog
from tiered.local.partition.write_log import WriteLog
from tiered.model import TopicPartition
from tiered.plan.transactions import TransactionChange, TransactionCoordinator

STATE_CONFIG = TopicConfig(cleanup_policy="compact", segment_bytes=104_857_600, seal_ms=UNLIMITED)
"""Kafka's ``transaction.state.log.segment.bytes``; no upload waits for a seal."""

PRODUCER_IDS_NAME = "tiered-producer-ids.json"
_WITHOUT_IDS = "remove that file: ids then begin elsewhere; `tiered transaction list` shows open transactions"
SEVERAL_NAME = "tiered-one-of-several"
"""Empty file in each directory of a log that had several: one directory alone does not know all topics."""

BLOCK_IDS = 1000
"""Ids reserved at once, as by Kafka's controller; ids of a block that a process leaves unused are never used."""

_VOLUME_BITS = 31
_COUNTER_BITS = 32
LEAST_ID = 1 << _COUNTER_BITS
"""Lower bound of the ids of any volume of ours; a Kafka cluster would have to give out four billion ids."""


class PartitionHost(Protocol):
    """Log whose partitions take part in transactions. It has one or several directories."""

    def topics(self) -> dict[str, TopicInfo]:
        """Return the topics by name."""

    def partition(self, tp: TopicPartition) -> WriteLog:
        """Return a partition. Raises UnknownTopicError if no open directory has it."""

    def awake(self) -> list[WriteLog]:
        """Return the partitions that are open for writing. A partition opens at its first use.

        After an unclean stop all partitions are open.
        """

    def create_topic(self, name: str, partitions: int = 1, config: TopicConfig | None = None) -> TopicInfo: ...


class StateLog:
    """Log of a transaction coordinator. This product creates it with one partition, a broker with many."""

    def __init__(self, host: PartitionHost) -> None:
        self._host = host

    @property
    def exists(self) -> bool:
        """Return True if ``__transaction_state`` exists, because there was a transaction at some time."""
        return TRANSACTION_STATE_TOPIC in self._host.topics()

    @property
    def is_ours(self) -> bool:
        """Return True if this product created the state log. In a broker's log, the broker ends the transactions."""
        info = self._host.topics().get(TRANSACTION_STATE_TOPIC)
        return info is not None and not info.adopted

    def load(self, *, may_make: bool) -> TransactionCoordinator:
        """Return the coordinator with the state in the log. A missing log is created.

        ``may_make`` False: raise ConfigError for a missing log, because a directory that is not open may have it. The
        coordinator's epoch is the newest leader epoch of the log.
        """
        info = self._host.topics().get(TRANSACTION_STATE_TOPIC)
        if info is None and not may_make:
            raise ConfigError(
                f"{TRANSACTION_STATE_TOPIC} was not found, and may be in a directory of this log that is not open",
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
        """Append the record of one change. ``durable``: fsync it.

        After LocalIOError the record may be in the log. After DiskFullError it is not. Raises UnknownTopicError if the
        log was deleted since it was opened.
        """
        info = self._host.topics().get(TRANSACTION_STATE_TOPIC)
        if info is None:
            raise UnknownTopicError(
                f"transaction {step.transactional_id!r} cannot be recorded: {TRANSACTION_STATE_TOPIC} was deleted "
                "while the log was open",
                hint="open the log again",
            )
        number = state_partition(step.transactional_id, info.partitions)
        log = self._host.partition(TopicPartition(TRANSACTION_STATE_TOPIC, number))
        log.append((step.record,))
        if durable:
            try:
                log.flush()
            except ClosedError as error:  # the log moves to another directory, perhaps with this record
                raise LocalIOError(f"{log.tp} was closed before a commit or abort was on its disk") from error


def replay_state(logs: Iterable[ReadLog], replay: Callable[[bytes, bytes | None], None]) -> None:
    """Call ``replay(key, value)`` with the newest record of each transactional id, encoded.

    The value is None if the id was deleted. ``logs``: partitions of the state log.
    """
    newest: dict[bytes, bytes | None] = {}  # undecoded: later records replace most of a long log
    for log in logs:
        for batch in log.read_batches(log.positions().local_start_offset):
            newest.update((record.key, record.value) for record in decode_records(batch) if record.key is not None)
    for key, value in newest.items():
        replay(key, value)


class ProducerIds:
    """Allocator of producer ids of a log. Thread-safe.

    ``directories``: the open directories of the log. Each directory that has assigned ids has its own file. ``ids``:
    source of random numbers; a directory begins at a random id.
    """

    def __init__(self, directories: Sequence[Path], files: Files, ids: IdSource) -> None:
        self._directories = list(directories)
        self._files = files
        self._ids = ids
        self._lock = PlainLock()
        self._left: list[int] = []

    def any_given(self) -> bool:
        """Return True if this log ever assigned a producer id. Raises CorruptionError for an unreadable file."""
        return bool(self._given())

    def is_ours(self, producer_id: int) -> bool:
        """Return True if this log assigned the id."""
        return any(first <= producer_id < end for _, (first, end) in self._given())

    def _given(self) -> list[tuple[Path, tuple[int, int]]]:
        found = ((directory, read_ids(directory, self._files)) for directory in self._directories)
        return [(directory, given) for directory, given in found if given is not None]

    @property
    def sees_all(self) -> bool:
        """Return True if no directory of the log is known to be missing.

        If False, a missing partition may be in a directory that is not open.
        """
        return len(self._directories) > 1 or self._files.state(self._directories[0] / SEVERAL_NAME) is None

    def next(self) -> int:
        """Return a new producer id."""
        with self._lock:
            if not self._left:
                self._left = list(reversed(self._reserve()))
            return self._left.pop()

    def _reserve(self) -> range:
        if len(self._directories) > 1:
            for directory in self._directories:
                if self._files.state(directory / SEVERAL_NAME) is None:
                    self._files.replace(directory / SEVERAL_NAME, b"")
        if known := self._given():
            directory, (first, start) = known[0]
        else:
            directory = self._directories[0]
            volume = 1 + int(self._ids.random() * (2**_VOLUME_BITS - 1))
            first = start = volume << _COUNTER_BITS
        value = {"version": VERSION, "first": first, "next": start + BLOCK_IDS}
        self._files.replace(directory / PRODUCER_IDS_NAME, json.dumps(value).encode() + b"\n")
        return range(start, start + BLOCK_IDS)


def read_ids(directory: Path, files: Files) -> tuple[int, int] | None:
    """Return the producer ids that a directory has assigned, as (first, exclusive end). None if it assigned none.

    Raises CorruptionError for an unreadable file.
    """
    return read_json(
        directory / PRODUCER_IDS_NAME, files, lambda value: (int(value["first"]), int(value["next"])), _WITHOUT_IDS
    )
