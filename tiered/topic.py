"""A topic of an open log: append to it, read it over both tiers (``read.topic``), ask where it stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from tiered import arguments
from tiered.appending.appender import BATCH_BYTES, BUFFER_BYTES, LINGER_MS, MAX_BLOCK_MS, Appender, Limits
from tiered.appending.thread import AppenderThread
from tiered.errors import ConfigError, InvalidRecordError, TieredError
from tiered.format import kernels
from tiered.format.batch import HEADER_BYTES
from tiered.format.coordinator_records import is_state_log
from tiered.local.partition.plain import PlainAppend, PlainAppends
from tiered.model import NO_TIMESTAMP, Headers, NewRecord, Positions, RecordMetadata, TopicPartition
from tiered.partitioner import Partitioner
from tiered.read.stream import TierStream
from tiered.read.topic import TopicReads
from tiered.store.base import Steps
from tiered.store.runner import Runner
from tiered.times import Time, parse_time
from tiered.transaction import DEFAULT_TIMEOUT_S, AppendRecord, Transaction

if TYPE_CHECKING:
    from tiered.config import TopicConfig
    from tiered.local.partition.partition import PartitionLog

MEMORY = "memory"
DURABILITIES = (MEMORY, "disk", "remote")
DEFAULT_REMOTE_TIMEOUT_S = 900.0
"""How long ``durability="remote"`` waits for the next seal and its commit before it raises DataLocalError."""


class _Waiter(Protocol):
    """What a topic asks of its log: waiting for a position."""

    def wait_uploaded(self, ends: dict[TopicPartition, int], timeout_s: float) -> None:
        """Waits until the committed ends reach ``ends``; raises DataLocalError, FencedError."""

    def check_remote(self) -> None:
        """Raises ConfigError if there is no bucket to wait for."""

    def _check_uploader(self) -> None:
        """Raises, once, why the uploader of this process ended by itself."""

    def _check_caller(self) -> None:
        """Raise ReentrantCallError in a thread that is inside another call of the log's disk."""

    @property
    def _uploader_error(self) -> str | None:
        """Return why the uploader of this process ended by itself."""

    def transaction(
        self, transactional_id: str, *, topic: Topic | None, timeout: float, durability: str
    ) -> Transaction:
        """Begins one."""

    def _add_partitions(self, topic: str, more: int) -> int:
        """Adds them; returns how many there are then."""


class Topic(TopicReads):
    """A topic open for appending. Thread-safe; order within a partition is the order of the calls."""

    def __init__(
        self,
        name: str,
        *,
        config: TopicConfig,
        logs: Sequence[PartitionLog | TieredError],
        open_stream: Callable[[TopicPartition], Steps[TierStream]],
        now_ms: Callable[[], int],
        runner: Runner,
        waiter: _Waiter,
        appenders: AppenderThread,
    ) -> None:
        super().__init__(name, len(logs), open_stream=open_stream, now_ms=now_ms, runner=runner)
        self.config = config
        self._waiter = waiter
        self._appenders = appenders
        self._is_internal = is_state_log(name)
        self._spread(logs)

    def _spread(self, logs: Sequence[PartitionLog | TieredError]) -> None:
        """Makes these the topic's partitions, while other threads append."""
        # In this order: who has chosen among the old partitions finds them also among the new ones.
        self._logs = logs
        self._partitions = len(logs)
        self._quick = PlainAppends([None if self._is_internal else _plain_of(log) for log in logs])
        self._plain = self._quick
        self._partitioner = Partitioner(len(logs), kernels.murmur2)

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: Time | None = None,
        headers: Headers | None = None,
        durability: str = "memory",
    ) -> RecordMetadata:
        """Appends one record; its offset is known when the call returns.

        ``timestamp`` None: now. ``durability`` says what the call waits for: "memory" (page cache), "disk" (fsync),
        "remote" (the next seal and its commit; it never forces one, so it may take ``seal.ms``: ``sync`` does). Raises
        InvalidRecordError, RecordTooLargeError, DiskFullError, FencedError, LocalIOError, ForkedLogError, ClosedError.
        """
        if timestamp is None and headers is None and durability == MEMORY:
            if partition is None and key is None:
                partition = self._partitioner.partition_for(None)
            written = self._plain.append(value, key, partition)
            if written is not None:
                return written
        self._check_append(durability)
        chosen, record = self._route(value, key, partition, timestamp, headers)
        written = self.log(chosen).append((record,))
        self._wait({chosen: written.end_offset}, durability)
        return written

    def append_many(
        self, records: Iterable[AppendRecord], *, partition: int | None = None, durability: str = "memory"
    ) -> list[RecordMetadata]:
        """Appends ``records``: one atomic batch per partition that they fall into, in partition order.

        A record is a ``NewRecord``, a (value, key) pair, or a value. Returns one RecordMetadata per partition.
        Raises as :meth:`append`; ``InvalidRecordError.index`` is the place in the call.
        """
        self._check_append(durability)
        partition = None if partition is None else self.check_partition(partition)
        keyless = self._partitioner.partition_for(None)  # the records of one call that have no key stay together
        taken = self._plain.append_many(records, partition, keyless)
        if taken is None:
            written: list[RecordMetadata] = []
            groups, places = self._group(records, partition, keyless)
            left = [(chosen, groups[chosen], places[chosen]) for chosen in sorted(groups)]
        else:
            written = taken[0]
            left = [(chosen, list(map(_new_record, given, at)), at) for chosen, given, at in taken[1]]
        for chosen, group, at in left:
            try:
                written.append(self.log(chosen).append(group))
            except InvalidRecordError as error:
                error.index = at[error.index] if error.index < len(at) else error.index
                raise
        self._wait({md.partition: md.end_offset for md in written}, durability)
        return written

    def append_batches(self, data: bytes, *, partition: int = 0, durability: str = "memory") -> RecordMetadata:
        """Appends batches that are already encoded (v2), without decoding them; offsets are assigned anew."""
        self._check_append(durability)
        partition = self.check_partition(partition)
        written = self.log(partition).append_batches(arguments.batches(data))
        self._wait({partition: written.end_offset}, durability)
        return written

    def append_arrow(
        self, data: object, *, partition: int | None = None, durability: str = "memory"
    ) -> list[RecordMetadata]:
        """Appends the rows of a ``pyarrow.Table``, a record batch, or what has ``__arrow_c_stream__`` (polars, duckdb).

        Columns as a read has them: ``value``, and perhaps ``key``, ``timestamp``, ``headers``, ``partition``
        (``tiered.arrow.rows`` has their types; ``topic``, ``offset`` and ``timestampType`` are left out). All
        rows are checked before the first is written: one that is refused refuses the call, ``index`` is its place. Then
        batches of at most 1 MiB are written, each atomic; their RecordMetadata are returned. After an error of the disk
        those before it are there. Needs the extra ``arrow``. Raises ConfigError, and as ``append``.
        """
        from tiered.arrow.rows import ArrowRows, pieces  # noqa: PLC0415  with numpy and pyarrow

        self._check_append(durability)
        partition = None if partition is None else self.check_partition(partition)
        found = ArrowRows(data, config=self.config, partitions=self.partitions, partition=partition)
        rows = found.checked(self._now_ms())
        keyless = self._partitioner.partition_for(None)  # the rows of one call that have no key stay together
        room = min(BATCH_BYTES, self.config.max_message_bytes, self.config.segment_bytes) - HEADER_BYTES
        written: list[RecordMetadata] = []
        for each in rows:
            for chosen, records in pieces(each, keyless, room):
                written += [self.log(chosen).append_columns(records)]
        self._wait({md.partition: md.end_offset for md in written}, durability)
        return written

    def appender(
        self,
        *,
        linger_ms: int = LINGER_MS,
        max_bytes: int = BATCH_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        max_block_ms: int = MAX_BLOCK_MS,
        durability: str = "memory",
    ) -> Appender:
        """Collects records and writes them as batches: one lock and one write for each; use it with ``with``.

        A batch of a partition leaves ``linger_ms`` after its first record, with ``max_bytes``, at ``flush`` and at the
        end. ``append`` waits while ``buffer_bytes`` wait to be written, ``max_block_ms`` at most. ``durability`` is
        what a receipt waits for: "memory" (page cache) or "disk" (fsync, one for all batches that are written
        together). Records whose receipts are not done are written when the program ends, and lost when it is killed.
        Raises ConfigError, ForkedLogError.
        """
        limits = Limits.of(linger_ms, max_bytes, buffer_bytes, max_block_ms, durability)
        most = min(limits.max_bytes, self.config.max_message_bytes, self.config.segment_bytes)
        return Appender(self, self._appenders, limits._replace(max_bytes=most))

    def add_partitions(self, n: int) -> int:
        """Adds ``n`` partitions, in the bucket and on this disk; returns how many there are then.

        Keys are spread over all of them from now on, as in Kafka: new records of a key may go to another partition than
        its older ones. Partitions are never taken away. Readers that are open see the new ones when they ask for the
        topic again. A call that failed may be repeated: it goes on. Raises ConfigError, RemoteUnavailableError,
        CommitUnknown, LocalIOError, DiskFullError.
        """
        return self._waiter._add_partitions(self.name, arguments.whole("n", n, least=1))

    def flush(self) -> None:
        """Fsyncs every partition of this topic that is in service, with what appenders held."""
        self._appenders.drain(self.name)
        for log in self._logs:
            if not isinstance(log, TieredError):
                log.flush()

    def log(self, partition: int) -> PartitionLog:
        """One partition of this disk with what a broker does to one: raw appends, fetches, truncation, its producers.

        Raises ConfigError for the coordinator's own topic, and why a partition is out of service.
        """
        if self._is_internal:
            raise ConfigError(
                f"{self.name} is internal: only the transaction coordinator appends to it",
                hint="`tiered dump-segment` shows what it holds",
            )
        return self._usable(partition)

    def positions(self, partition: int) -> Positions:
        """Where the partition stands, as this disk knows it (no request is made)."""
        at, why = self._usable(partition).positions(), self._waiter._uploader_error
        return at if why is None else dataclasses.replace(at, uploader_error=why)

    def transaction(
        self, transactional_id: str, *, timeout: float = DEFAULT_TIMEOUT_S, durability: str = "disk"
    ) -> Transaction:
        """A transaction that appends to this topic, and to others of this log by name; use it with ``with``.

        ``transactional_id`` names the writer: an open transaction of the same id is aborted and its writer fenced.
        ``timeout`` in seconds, at most 900: a transaction that is open longer is aborted. When ``commit`` returns it is
        on disk; ``durability="remote"`` also waits until the bucket holds it. Raises ConfigError, LocalIOError,
        DiskFullError, CorruptionError.
        """
        return self._waiter.transaction(transactional_id, topic=self, timeout=timeout, durability=durability)

    def _route(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp: Time | None,
        headers: Headers | None,
    ) -> tuple[int, NewRecord]:
        """The partition of one record, and the record as the log takes it."""
        ts = NO_TIMESTAMP if timestamp is None else parse_time(timestamp, now_ms=self._now_ms())
        record = arguments.record(NewRecord(value, key, ts, headers), 0)
        return self._place(key, partition), record

    def _place(self, key: bytes | None, partition: int | None) -> int:
        """The partition that a record names, or that of its key."""
        return self._partitioner.partition_for(key) if partition is None else self.check_partition(partition)

    def _group(
        self, records: Iterable[AppendRecord], partition: int | None, keyless: int | None = None
    ) -> tuple[dict[int, list[NewRecord]], dict[int, list[int]]]:
        """Records by the partition that they fall into, and their places in the call. ``keyless`` None: it is found."""
        partition = None if partition is None else self.check_partition(partition)
        if keyless is None:
            keyless = self._partitioner.partition_for(None)  # the records of one call that have no key stay together
        quickly = kernels.group(records, self._partitions, -1 if partition is None else partition, keyless)
        if quickly is not None:
            return quickly
        groups: dict[int, list[NewRecord]] = {}
        places: dict[int, list[int]] = {}
        for index, given in enumerate(arguments.records(records)):
            record = arguments.record(_new_record(given, index), index)
            if partition is not None:
                chosen = partition
            else:
                chosen = keyless if record.key is None else self._partitioner.partition_for(record.key)
            groups.setdefault(chosen, []).append(record)
            places.setdefault(chosen, []).append(index)
        return groups, places

    def _usable(self, partition: int) -> PartitionLog:
        """Raises why a partition is out of service."""
        found = self._logs[self.check_partition(partition)]
        if isinstance(found, TieredError):
            raise found.with_traceback(None)
        return found

    def _check_durability(self, durability: str) -> None:
        """Before anything is appended: a wait that could never end is refused."""
        arguments.one_of("durability", durability, DURABILITIES)
        if durability == "remote":
            self._waiter.check_remote()

    def _check_append(self, durability: str) -> None:
        self._check_durability(durability)
        self._check_uploader()

    def _check_uploader(self) -> None:
        """Raises, once, why the uploader of this process ended by itself."""
        self._waiter._check_uploader()

    def _check_caller(self) -> None:
        """Raise ReentrantCallError in a thread that is inside another call of the log's disk."""
        self._waiter._check_caller()

    def _go_slowly(self, slowly: bool) -> None:
        """Leave the quick way of an append, which asks nothing but the partition, or return to it."""
        self._plain = PlainAppends([None] * self.partitions) if slowly else self._quick

    def _wait(self, ends: dict[int, int], durability: str) -> None:
        if durability == "memory":
            return
        for partition in ends:
            self._usable(partition).flush()
        if durability == "remote":
            wanted = {TopicPartition(self.name, p): end for p, end in ends.items()}
            self._waiter.wait_uploaded(wanted, DEFAULT_REMOTE_TIMEOUT_S)


def _plain_of(log: PartitionLog | TieredError) -> PlainAppend | None:
    """None of a partition that is out of service, or not to be written."""
    return log.to_write().appender.plain if not isinstance(log, TieredError) and log.writable else None


def _new_record(given: object, index: int) -> NewRecord:
    if isinstance(given, NewRecord):
        return given
    if isinstance(given, bytes):
        return NewRecord(given)
    if isinstance(given, tuple) and len(given) == 2:
        return NewRecord(given[0], given[1])
    raise InvalidRecordError(
        f"record {index} is a {type(given).__name__}",
        index=index,
        hint="append_many takes NewRecord(value, key, timestamp, headers), (value, key) or bytes",
    )
