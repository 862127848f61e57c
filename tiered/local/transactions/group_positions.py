"""Committed positions of consumer groups in ``__consumer_offsets``, in Kafka's own format. The topic is never tiered.

This product creates the topic with Kafka's 50 partitions; a broker may have chosen another number. Only the topic is
authoritative: each call reads the records appended since the last call. Positions committed inside a transaction count
once its COMMIT marker is written.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tiered.errors import ConfigError, CorruptionError, TieredError
from tiered.format.batch import decode_records, read_header
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
from tiered.plan.visibility import Hidden

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
    """Positions read from one partition of the topic, from its records below offset ``end``.

    ``at``: records below this offset are not read again. A damaged position has its error in its place.
    ``protocols``: protocol type by group, ``""`` or "consumer" for consumers. ``damage``: the error of a record with a
    damaged key, None without one.
    """

    at: int = 0
    end: int = 0
    positions: dict[_Key, Position | TieredError] = field(default_factory=dict)
    protocols: dict[str, str] = field(default_factory=dict)
    damage: TieredError | None = None

    def copy(self) -> _Table:
        return _Table(self.at, self.end, dict(self.positions), dict(self.protocols), self.damage)


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
        self._stable: dict[int, _Table] = {}
        self._now: dict[int, _Table] = {}

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
        for number in self._numbers():
            try:
                positions = self._table(number).positions
            except TieredError as error:
                if not partial:
                    raise
                LOGGER.warning("positions_unreadable partition=%s-%d error=%s", OFFSETS_TOPIC, number, error)
                continue
            for key, position in positions.items():
                if isinstance(position, TieredError):
                    LOGGER.warning("position_unreadable group=%s partition=%s error=%s", key.group, key.tp, position)
                else:
                    found.setdefault(key.group, {})[key.tp] = position
        return dict(sorted(found.items()))

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, Position]:
        """Return the positions of a group in these partitions, or in all (None).

        Partitions without a position are left out. Raises CorruptionError if one of the positions, or a key in the
        group's partition of ``__consumer_offsets``, is damaged. Raises ConfigError if another protocol uses the group,
        or if other brokers have some partitions of that topic.
        """
        if not self.exists:
            return {}
        self.check(group)
        found = {}
        for key, position in self._table(self.place_of(group)).positions.items():
            if key.group == group and (partitions is None or key.tp in partitions):
                if isinstance(position, TieredError):
                    raise position.with_traceback(None)
                found[key.tp] = position
        return found

    def check(self, group: str) -> None:
        """Raise ConfigError if another protocol uses the group, or other brokers have parts of ``__consumer_offsets``.

        Raises CorruptionError for a damaged key in the group's partition of that topic.
        """
        if not self.exists:
            return
        table = self._table(self.place_of(group))
        if table.damage is not None:
            raise table.damage.with_traceback(None)
        protocol = table.protocols.get(group, "")
        if protocol not in _COMMON:
            hint = "give this consumer another group"
            raise ConfigError(
                f"group {group!r} of {OFFSETS_TOPIC} is not a consumer group: its protocol is {protocol!r}", hint=hint
            )

    def place_of(self, group: str) -> int:
        """Return the number of the partition of ``__consumer_offsets`` that has the group. The topic must exist.

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

    def _numbers(self) -> Iterable[int]:
        info = self._shown.topics().get(OFFSETS_TOPIC)
        return () if info is None else info.here

    def _table(self, number: int) -> _Table:
        """Return the positions in partition ``number`` of the topic, read up to its present end.

        Positions committed in open transactions are left out.
        """
        with self._lock:
            log = self._shown.partition(TopicPartition(OFFSETS_TOPIC, number))
            stable, end = self._stable.get(number), log.end_offset
            if stable is None or end < stable.end:
                stable = _Table(log.positions().local_start_offset)
                self._stable[number] = self._now[number] = stable
            if end > stable.at:
                self._read_on(number, log, stable, end)
            return self._now[number]

    def _read_on(self, number: int, log: ReadLog, stable: _Table, end: int) -> None:
        # In this order: a transaction that ends meanwhile counts as open, and is looked at again.
        firsts = {txn.producer_id: txn.first_offset for txn in log.open_txns() if txn.first_offset < end}
        hidden = Hidden(log.aborted_txns(stable.at, end))
        bound = min(firsts.values(), default=end)
        table = stable
        for batch in log.read_batches(stable.at, end):
            header = read_header(batch)
            if header.base_offset >= bound and table is stable:
                stable.at = stable.end = bound
                table = stable.copy()
            is_open = header.is_transactional and header.base_offset >= firsts.get(header.producer_id, end)
            if not (header.is_control or is_open or hidden.hides(header)):
                for record in decode_records(batch):
                    _apply(table, record, log.tp)
        if table is stable:
            stable.at = end
        stable.end = table.end = end
        self._now[number] = table


class GroupPositions(GroupTable):
    """Positions of all groups of a log that is open for writing: read, commit, delete. Thread-safe."""

    name = OFFSETS_TOPIC

    def __init__(self, host: PartitionHost) -> None:
        super().__init__(host)
        self._host = host
        self._readers: dict[_Key, object] = {}

    def commit(self, group: str, positions: Mapping[TopicPartition, Position]) -> None:
        """Append the positions of a group as one batch. On return they are in the page cache.

        Raises ConfigError for too long metadata, if another protocol uses the group, or other brokers have some
        partitions of ``__consumer_offsets``. Raises CorruptionError for a damaged key in the group's partition of that
        topic, LocalIOError or DiskFullError if the append fails.
        """
        if positions:
            self.log(self.partition_of(group)).append(self.records(group, positions))

    def records(self, group: str, positions: Mapping[TopicPartition, Position]) -> list[NewRecord]:
        """Return the encoded records of a commit.

        Raises ConfigError for too long metadata, if another protocol uses the group, or other brokers have some
        partitions of ``__consumer_offsets``. Raises CorruptionError for a damaged key in the group's partition of it.
        """
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
        """Delete the positions of a group in these partitions. ``now_ms``: timestamp of the records that delete them.

        Raises ConfigError if other brokers have some partitions of ``__consumer_offsets``.
        """
        if partitions:
            log = self.log(self.partition_of(group))
            log.append([NewRecord(None, encode_position_key(group, tp), now_ms) for tp in partitions])

    def delete_topic(self, topic: str, now_ms: int) -> None:
        """Delete the positions of all groups in a deleted topic, as a broker does.

        A later topic of the same name has other records.
        """
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
        """Return the number of the partition of ``__consumer_offsets`` that has the group.

        The topic is created if it is missing. Raises ConfigError if other brokers have some of its partitions.
        """
        with self._lock:
            if not self.exists:
                self._host.create_topic(OFFSETS_TOPIC, PARTITIONS, STATE_CONFIG)
        return self.place_of(group)

    def log(self, partition: int) -> WriteLog:
        """Return partition number ``partition`` of ``__consumer_offsets``, for writing."""
        return self._host.partition(TopicPartition(OFFSETS_TOPIC, partition))

    def hold(self, group: str, tp: TopicPartition, reader: object) -> None:
        """Register ``reader`` as the only reader of ``tp`` for ``group``.

        Raises ConfigError while another reader is registered.
        """
        with self._lock:
            if self._readers.setdefault(_Key(group, tp), reader) is not reader:
                raise ConfigError(
                    f"{tp}: another consumer of this log reads it for group {group!r}",
                    hint="close the other consumer, or give this one another group",
                )

    def release(self, group: str, tps: Iterable[TopicPartition], reader: object) -> None:
        """Remove the registrations that :meth:`hold` made for ``reader``."""
        with self._lock:
            for tp in tps:
                if self._readers.get(_Key(group, tp)) is reader:
                    del self._readers[_Key(group, tp)]

    def rewind_lost(self, now_ms: int) -> None:
        """Set positions that are after the end of their partition back to that end.

        A power cut lost records that a group had read. New records get the same offsets, and the group must not skip
        them. Partitions of a broker's topic are left as they are.
        """
        for group, positions in self.groups().items() if self.exists else ():
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


def _apply(table: _Table, record: Record, place: TopicPartition) -> None:
    """Apply one record of the topic to ``table``.

    For a damaged value its error is stored in place of the position. For a damaged key the error becomes
    ``table.damage``. ``place``: the partition of the topic, for these errors.
    """
    try:
        kind, group, tp = decode_group_key(record.key or b"")
    except CorruptionError as error:
        table.damage = _damaged(error, record, place)
        return
    if tp is None:
        try:
            protocol = group_protocol(kind, record.value)
        except CorruptionError:
            return  # members of a broker's group, which no position depends on
        if protocol is not None:
            table.protocols[group] = protocol
        return
    key = _Key(group, tp)
    if record.value is None:
        table.positions.pop(key, None)
        return
    try:
        table.positions[key] = decode_position(record.value)
    except CorruptionError as error:
        table.positions[key] = _damaged(error, record, place, f" of group {group!r} in {tp}")


def _damaged(error: CorruptionError, record: Record, place: TopicPartition, whose: str = "") -> CorruptionError:
    return CorruptionError(
        f"{place}: the position{whose} at offset {record.offset} cannot be read: {error.message}",
        path_or_key=str(place),
        offset=record.offset,
        hint=f"`tiered inspect {place} --records` shows it; `tiered group reset` writes another position",
    )
