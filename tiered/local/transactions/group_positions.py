"""Committed positions of consumer groups in ``__consumer_offsets``, in Kafka's own format. The topic is never tiered.

This product creates the topic with Kafka's 50 partitions; a broker may have chosen another number. Only the topic is
authoritative: each call reads the records appended since the last call. Positions committed inside a transaction count
once its COMMIT marker is written.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tiered.errors import ConfigError, CorruptionError, TieredError
from tiered.format.batch import decode_records, read_header
from tiered.format.control import ControlType, control_type
from tiered.format.coordinator_records import (
    OFFSETS_TOPIC,
    decode_group_key,
    decode_position,
    encode_position,
    encode_position_key,
    group_partition,
    group_protocol,
)
from tiered.format.kernels import Record
from tiered.local.disk.topics import TopicInfo
from tiered.local.partition.read_log import ReadLog
from tiered.local.partition.write_log import WriteLog
from tiered.local.transactions.state_log import STATE_CONFIG, PartitionHost
from tiered.model import NewRecord, Position, TopicPartition

LOGGER = logging.getLogger("tiered.local")

PARTITIONS = 50
"""Kafka's ``offsets.topic.num.partitions``."""

MAX_METADATA_CHARS = 4096
"""Kafka's ``offset.metadata.max.bytes``."""

_COMMON = frozenset({"", "consumer"})
"""Protocols of groups that a consumer may join."""


class _Key(NamedTuple):
    group: str
    tp: TopicPartition


@dataclass(slots=True)
class _Table:
    """Positions in one partition of the topic ``tp``, by its records below offset ``end``.

    ``positions``: offset of the newest record for a key, and its position: None if it deletes the position, the error
    of a damaged one. ``pending``: records of open transactions, by producer. ``protocols``: protocol type by group.
    """

    tp: TopicPartition
    end: int
    positions: dict[_Key, tuple[int, Position | TieredError | None]] = field(default_factory=dict)
    pending: dict[int, list[Record]] = field(default_factory=dict)
    protocols: dict[str, str] = field(default_factory=dict)

    def apply(self, batch: bytes | memoryview) -> None:
        """Apply the next batch of the partition. Positions of a transaction count from its COMMIT marker on."""
        header, records = read_header(batch), list(decode_records(batch))
        if header.is_control:
            pending = self.pending.get(header.producer_id, [])
            records = pending if records and control_type(records[0]) is ControlType.COMMIT else []
        elif header.is_transactional:
            self.pending.setdefault(header.producer_id, []).extend(records)
            records = []
        for record in records:
            self._apply_record(record)
        if header.is_control:  # only now: after an error the next read applies this batch again
            self.pending.pop(header.producer_id, None)
        self.end = header.next_offset

    def _apply_record(self, record: Record) -> None:
        """Apply one record. The error of a damaged value is stored in place of the position."""
        try:
            kind, group, tp = decode_group_key(record.key or b"")
        except CorruptionError as error:
            raise self._damaged(error, record) from error
        if tp is None:
            with suppress(CorruptionError):  # members of a broker's group, which no position depends on
                protocol = group_protocol(kind, record.value)
                if protocol is not None:
                    self.protocols[group] = protocol
            return
        key = _Key(group, tp)
        if self.positions.get(key, (-1, None))[0] > record.offset:
            return  # it was committed after the one of this transaction
        position: Position | TieredError | None
        try:
            position = None if record.value is None else decode_position(record.value)
        except CorruptionError as error:
            position = self._damaged(error, record, f" of group {group!r} in {tp}")
        self.positions[key] = record.offset, position

    def _damaged(self, error: CorruptionError, record: Record, whose: str = "") -> CorruptionError:
        return CorruptionError(
            f"{self.tp}: the position{whose} at offset {record.offset} cannot be read: {error.message}",
            path_or_key=str(self.tp),
            offset=record.offset,
            hint=f"`tiered inspect {self.tp} --records` shows it; `tiered group reset` writes another position",
        )


class ReadHost(Protocol):
    """Log whose groups are read."""

    def topics(self) -> Mapping[str, TopicInfo]:
        """Return the topics by name."""

    def partition(self, tp: TopicPartition) -> ReadLog:
        """Return a partition. Raises UnknownTopicError if the log does not have it."""


class GroupLag(NamedTuple):
    """Lag of a group in a partition. ``end_offset``: the end of the partition.

    ``seconds``: age of the batch with the next record, by its largest timestamp; 0 at the end.
    """

    group: str
    tp: TopicPartition
    position: Position
    end_offset: int
    seconds: float

    @property
    def records(self) -> int:
        """Return the number of offsets between the position and the end."""
        return max(0, self.end_offset - self.position.offset)


class GroupTable:
    """Committed positions of all groups of a log, read from ``__consumer_offsets``. Thread-safe."""

    def __init__(self, host: ReadHost) -> None:
        self._shown = host
        self._lock = threading.RLock()
        self._tables: dict[int, _Table] = {}

    @property
    def exists(self) -> bool:
        """Return True if the log has ``__consumer_offsets``, because a group committed at some time."""
        return OFFSETS_TOPIC in self._shown.topics()

    def groups(self, *, partial: bool = False) -> dict[str, dict[TopicPartition, Position]]:
        """Return the positions of all groups, by group and partition. A damaged position is logged and left out.

        ``partial``: also log and leave out unreadable partitions of ``__consumer_offsets``. Otherwise their error is
        raised.
        """
        found: dict[str, dict[TopicPartition, Position]] = {}
        info = self._shown.topics().get(OFFSETS_TOPIC)
        for number in () if info is None else info.here:
            try:
                positions = tuple(self._table(number).positions.items())
            except TieredError as error:
                if not partial:
                    raise
                LOGGER.warning("positions_unreadable partition=%s-%d error=%s", OFFSETS_TOPIC, number, error)
                continue
            for key, (_, position) in positions:
                if isinstance(position, TieredError):
                    LOGGER.warning("position_unreadable group=%s partition=%s error=%s", key.group, key.tp, position)
                elif position is not None:
                    found.setdefault(key.group, {})[key.tp] = position
        return dict(sorted(found.items()))

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return the positions of a group in these partitions. Those without one are left out.

        Raises CorruptionError for a damaged position, and the errors of :meth:`check`.
        """
        table, found = self.check(group), {}
        stored = {} if table is None else table.positions
        for tp in partitions:
            _, position = stored.get(_Key(group, tp), (-1, None))
            if isinstance(position, TieredError):
                raise position.with_traceback(None)
            if position is not None:
                found[tp] = position
        return found

    def check(self, group: str) -> _Table | None:
        """Return the table that has the group, None if no group has committed yet.

        Raises ConfigError if another protocol uses the group, or other brokers have parts of ``__consumer_offsets``.
        Raises CorruptionError for damage in the group's partition of that topic.
        """
        if not self.exists:
            return None
        table = self._table(self.place_of(group))
        protocol = table.protocols.get(group, "")
        if protocol not in _COMMON:
            hint = "give this consumer another group"
            raise ConfigError(
                f"group {group!r} of {OFFSETS_TOPIC} is not a consumer group: its protocol is {protocol!r}", hint=hint
            )
        return table

    def place_of(self, group: str) -> int:
        """Return the number of the group's partition of ``__consumer_offsets``, which must exist.

        Raises ConfigError if other brokers have some of its partitions.
        """
        info = self._shown.topics()[OFFSETS_TOPIC]
        if info.held is not None and info.adopted:
            raise ConfigError(
                f"positions cannot be stored in {OFFSETS_TOPIC}: other brokers have some of its partitions",
                hint="commit positions to the broker, or pass positions= to the consumer",
            )
        return group_partition(group, info.partitions)

    def lags(self, now_ms: int, *, partial: bool = True) -> list[GroupLag]:
        """Return the lag of each committed position. Partitions that cannot be read on this disk are left out.

        ``partial``: as in :meth:`groups`.
        """
        found = []
        for group, positions in self.groups(partial=partial).items():
            for tp, position in sorted(positions.items()):
                try:
                    log = self._shown.partition(tp)
                    at = log.positions()
                    first = max(position.offset, at.local_start_offset)
                    batch = next(log.read_batches(first), None) if first < at.end_offset else None
                except TieredError as error:  # deleted, elsewhere, or out of service
                    LOGGER.info("lag_unknown group=%s partition=%s error=%s", group, tp, error)
                    continue
                since_ms = now_ms if batch is None else read_header(batch).max_timestamp
                seconds = max(0, now_ms - since_ms) / 1000
                found.append(GroupLag(group, tp, position, at.end_offset, seconds))
        return found

    def _table(self, number: int) -> _Table:
        """Return the positions in partition ``number`` of the topic, read up to its present end."""
        with self._lock:
            log = self._shown.partition(TopicPartition(OFFSETS_TOPIC, number))
            table, end = self._tables.get(number), log.end_offset
            if table is None or end < table.end:
                table = self._tables[number] = _Table(log.tp, log.positions().local_start_offset)
            for batch in log.read_batches(table.end, end) if table.end < end else ():
                table.apply(batch)
            table.end = max(table.end, end)
            return table


class GroupPositions(GroupTable):
    """Positions of all groups of a log that is open for writing: read, commit, delete. Thread-safe."""

    name = OFFSETS_TOPIC

    def __init__(self, host: PartitionHost) -> None:
        super().__init__(host)
        self._host = host
        self._readers: dict[_Key, object] = {}

    def commit(self, group: str, positions: Mapping[TopicPartition, Position]) -> None:
        """Append the positions of a group as one batch. On return they are in the page cache.

        Raises the errors of :meth:`records`, and LocalIOError or DiskFullError if the append fails.
        """
        if positions:
            self.log(self.partition_of(group)).append(self.records(group, positions))

    def records(self, group: str, positions: Mapping[TopicPartition, Position]) -> list[NewRecord]:
        """Return the records of a commit. Raises ConfigError for too long metadata, and errors of :meth:`check`."""
        self.check(group)
        for tp, position in positions.items():
            if len(position.metadata) > MAX_METADATA_CHARS:
                raise ConfigError(
                    f"{tp}: the metadata of a position has {len(position.metadata)} characters, which is too long",
                    hint=f"shorten it to {MAX_METADATA_CHARS} characters",
                )
        return [
            NewRecord(encode_position(position), encode_position_key(group, tp), position.committed_ms)
            for tp, position in positions.items()
        ]

    def delete(self, group: str, partitions: Collection[TopicPartition], now_ms: int) -> None:
        """Delete the positions of a group in these partitions. ``now_ms``: timestamp of the deletions."""
        if partitions:
            log = self.log(self.partition_of(group))
            log.append([NewRecord(None, encode_position_key(group, tp), now_ms) for tp in partitions])

    def delete_topic(self, topic: str, now_ms: int) -> None:
        """Delete the positions of all groups in a topic: a later topic of the same name has other records."""
        for group, positions in self.groups().items():
            self.delete(group, [tp for tp in positions if tp.topic == topic], now_ms)

    def mark(self) -> int:
        """Return a number that changes with each append to ``__consumer_offsets``. The call opens no partition."""
        return sum(log.end_offset for log in self._host.awake() if log.tp.topic == OFFSETS_TOPIC)

    def by_partition(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, dict[str, Position]]:
        """Return the positions of all groups in each of these partitions, by partition and group."""
        found: dict[TopicPartition, dict[str, Position]] = {tp: {} for tp in tps}
        for group, positions in self.groups().items():
            for tp, position in positions.items():
                if tp in found:
                    found[tp][group] = position
        return found

    def partition_of(self, group: str) -> int:
        """Return the result of :meth:`place_of`. Creates the topic if it is missing."""
        with self._lock:
            if not self.exists:
                self._host.create_topic(OFFSETS_TOPIC, PARTITIONS, STATE_CONFIG)
        return self.place_of(group)

    def log(self, partition: int) -> WriteLog:
        """Return partition number ``partition`` of ``__consumer_offsets``, for writing."""
        return self._host.partition(TopicPartition(OFFSETS_TOPIC, partition))

    def hold(self, group: str, tps: Collection[TopicPartition], reader: object) -> None:
        """Register ``reader`` as the only reader of ``tps`` for ``group``.

        Raises ConfigError, and registers nothing, while another reader is registered for one of them.
        """
        with self._lock:
            for tp in tps:
                if self._readers.get(_Key(group, tp), reader) is not reader:
                    raise ConfigError(
                        f"{tp}: another consumer of this log reads it for group {group!r}",
                        hint="close the other consumer, or give this one another group",
                    )
            self._readers.update(dict.fromkeys((_Key(group, tp) for tp in tps), reader))

    def release(self, group: str, tps: Iterable[TopicPartition]) -> None:
        """Remove registrations of :meth:`hold`."""
        with self._lock:
            for tp in tps:
                self._readers.pop(_Key(group, tp), None)

    def rewind_lost(self, now_ms: int) -> None:
        """Set positions that are after the end of their partition back to that end.

        After a power cut new records get the offsets of lost ones, and the group must not skip them. Partitions of a
        broker's topic are left as they are.
        """
        for group, positions in self.groups(partial=True).items():
            lost: dict[TopicPartition, Position] = {}
            for tp, position in positions.items():
                info = self._host.topics().get(tp.topic)
                if info is None or info.adopted or tp.partition not in info.here:
                    continue
                end = self._host.partition(tp).end_offset
                if position.offset > end:
                    lost[tp] = Position(end, position.leader_epoch, position.metadata, now_ms)
                    LOGGER.warning(
                        "position_rewound group=%s partition=%s from=%d to=%d", group, tp, position.offset, end
                    )
            self.commit(group, lost)
