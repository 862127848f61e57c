"""A topic of an open log: appends to it, reads over both tiers (``read.topic``), and positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tiered import arguments
from tiered.appending.appender import BATCH_BYTES, BUFFER_BYTES, LINGER_MS, MAX_BLOCK_MS, Appender, AppenderLimits
from tiered.appending.thread import AppenderThread
from tiered.display import html_table, names_without
from tiered.errors import ConfigError, InvalidRecordError, TieredError
from tiered.format import kernels
from tiered.format.batch import HEADER_BYTES
from tiered.format.coordinator_records import is_state_log
from tiered.format.partitioner import Partitioner
from tiered.model import NO_TIMESTAMP, Headers, NewRecord, Positions, RecordMetadata, TopicPartition
from tiered.read.fetch import Followers
from tiered.read.follow import COUNT_HERE_S, PartitionCounter
from tiered.read.stream import TierStream
from tiered.read.topic import TopicReads
from tiered.store.base import Steps
from tiered.store.driver import Runner
from tiered.times import Time, parse_time
from tiered.transaction import DEFAULT_TIMEOUT_S, AppendRecord, Transaction

if TYPE_CHECKING:
    from tiered.local.disk.topics import TopicInfo
    from tiered.local.partition.write_log import WriteLog
    from tiered.log import Log

MEMORY = "memory"
DURABILITIES = (MEMORY, "disk", "remote")
DEFAULT_REMOTE_TIMEOUT_S = 900.0
"""Seconds that ``durability="remote"`` waits for the next seal and its commit. Then it raises DataLocalError."""


class Topic(TopicReads):
    """Topic open for appending. Thread-safe. Records of a partition are in the order of the calls."""

    def __init__(
        self,
        info: TopicInfo,
        *,
        logs: Sequence[WriteLog | TieredError],
        open_stream: Callable[[TopicPartition], Steps[TierStream]],
        now_ms: Callable[[], int],
        runner: Runner,
        followers: Followers,
        waiter: Log,
        appenders: AppenderThread,
    ) -> None:
        counter = PartitionCounter(self._count_steps, COUNT_HERE_S)
        super().__init__(
            info.name,
            len(logs),
            open_stream=open_stream,
            counter=counter,
            followers=followers,
            now_ms=now_ms,
            runner=runner,
        )
        self.config = info.config
        self._waiter = waiter
        self._appenders = appenders
        self._is_internal = is_state_log(info.name)
        self._is_slow = False  # each append has to ask why the uploader ended
        self._spread(logs)

    __dir__ = names_without("check_partition", "chosen", "log", "stream")

    def _repr_html_(self) -> str:
        """Return an HTML table with the positions of each partition. No request is made."""
        rows: list[tuple[object, ...]] = []
        for number, log in enumerate(self._logs):
            if isinstance(log, TieredError):
                rows.append((number, log.code, "", "", ""))
            else:
                at = log.positions()
                rows.append((number, at.start_offset, at.end_offset, at.flushed_offset, at.uploaded_offset))
        header = ("partition", "start", "end", "flushed", "uploaded")
        return html_table(f"Topic {self.name}, {self.partitions} partitions", header, rows)

    def _spread(self, logs: Sequence[WriteLog | TieredError]) -> None:
        """Replace the topic's partitions by ``logs``: a log, or the error with which a partition is out of service.

        Called when the topic is opened and after partitions were added. Other threads may append meanwhile.
        """
        # In this order: a partition that was checked or chosen, before or meanwhile, is in both lists.
        # None: an internal topic, or a partition out of service
        self._writers = [None if self._is_internal or isinstance(log, TieredError) else log for log in logs]
        self._logs = logs
        self._partitions = len(logs)
        self._partitioner = Partitioner(len(logs), kernels.murmur2)

    def _count_steps(self) -> Steps[int]:
        """Return the number of partitions, as steps. A read with ``follow=True`` runs them once in a while."""
        yield from ()
        return self.partitions

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
        """Append one record and return its place. Its offset is known when the call returns.

        Args:
            partition: None: the key decides (murmur2, as in Kafka). Records without a key go to each partition in turn.
            timestamp: None for now.
            durability: the call waits for "memory" (page cache), "disk" (fsync) or "remote" (seal and commit). "remote"
                does not force a seal, so it may take ``seal.ms``; ``sync`` forces one.

        Raises:
            InvalidRecordError, RecordTooLargeError, ConfigError: the record or the call is refused.
            UnknownTopicError: the topic has no such partition.
            DataLocalError: with durability "remote", no commit within ``DEFAULT_REMOTE_TIMEOUT_S``.
            DiskFullError, FencedError, LocalIOError, ForkedLogError, ClosedError.
        """
        if (
            timestamp is None
            and headers is None
            and durability == MEMORY
            and (key is None or type(key) is bytes)
            and (value is None or type(value) is bytes)
            and not self._is_slow
        ):
            if partition is None:
                partition = self._partitioner.partition_for(key)
            else:
                partition = self.check_partition(partition)
            writer = self._writers[partition]
            if writer is not None:
                return writer.append(((value, key, NO_TIMESTAMP, None),))  # type: ignore[arg-type]  # a tuple costs a third
        self._check_append(durability)
        chosen, record = self._route(value, key, partition, timestamp, headers)
        written = self.log(chosen).append((record,))
        self._wait({chosen: written.end_offset}, durability)
        return written

    def append_many(
        self, records: Iterable[AppendRecord], *, partition: int | None = None, durability: str = "memory"
    ) -> list[RecordMetadata]:
        """Append ``records``: one atomic batch for each partition, in the order of partitions.

        A record is a ``NewRecord``, a (value, key) pair, or a value. ``partition`` None: each record's key decides.
        ``durability``: wait for "memory" (page cache), "disk" (fsync) or "remote" (seal and commit). Returns one
        RecordMetadata for each partition. Raises the errors of :meth:`append`. ``InvalidRecordError.index`` is the
        record's place in the call. After an error the batches of lower partitions may be appended.
        """
        self._check_append(durability)
        partition = None if partition is None else self.check_partition(partition)
        written: list[RecordMetadata] = []
        if isinstance(records, list | tuple) and (partition is not None or self._partitions == 1):
            whole = self._append_given(partition or 0, records)  # nothing to choose: the records are looked at once
            written += [] if whole is None else [whole]
        if not written:
            given, groups = self._group(records, partition)
            for chosen, group in groups:
                try:
                    written.append(self._append_group(chosen, group))
                except InvalidRecordError as error:
                    error.index = arguments.place_in_call(given, group, error.index)
                    raise
        self._wait({md.partition: md.end_offset for md in written}, durability)
        return written

    def append_batches(self, data: bytes, *, partition: int = 0, durability: str = "memory") -> RecordMetadata:
        """Append encoded v2 batches, all or none. The log assigns new offsets. Return the place of all their records.

        ``durability``: wait for "memory" (page cache), "disk" (fsync) or "remote" (seal and commit). Raises
        InvalidRecordError for damaged or wrong batches, and the other errors of :meth:`append`.
        """
        self._check_append(durability)
        partition = self.check_partition(partition)
        written = self.log(partition).append_batches(arguments.batches(data))
        self._wait({partition: written.end_offset}, durability)
        return written

    def append_arrow(
        self, data: object, *, partition: int | None = None, durability: str = "memory"
    ) -> list[RecordMetadata]:
        """Append the rows of a ``pyarrow.Table``, a record batch, or any ``__arrow_c_stream__`` (polars, duckdb).

        The columns are those of a read: ``value`` and optionally ``key``, ``timestamp``, ``headers``, ``partition``.
        ``tiered.arrow.rows`` lists their types; ``topic``, ``offset`` and ``timestampType`` are ignored. The argument
        ``partition`` None: the column ``partition`` decides, or the key of a row without one. ``durability``: wait for
        "memory" (page cache), "disk" (fsync) or "remote" (seal and commit).

        All rows are checked first: one bad row refuses the call. Then atomic batches of at most 1 MiB are written.
        After an error of the disk the earlier batches stay. Returns one RecordMetadata for each batch. Needs the extra
        ``arrow``. Raises the errors of :meth:`append`, and ConfigError for wrong columns.
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
        """Return an appender, which collects records and writes each batch with one lock and one write. Use ``with``.

        A normal exit of the program writes buffered records. A killed program loses them.

        Args:
            linger_ms, max_bytes: a batch is written that long after its first record, at that size, and at ``flush``.
            buffer_bytes, max_block_ms: ``append`` waits while that many bytes are unwritten, at most that long. Then
                it raises AppendTimeoutError.
            durability: receipts wait for "memory" (page cache) or "disk" (one fsync for all batches written together).

        Raises ConfigError for a wrong argument, ForkedLogError in a forked child.
        """
        limits = AppenderLimits.checked(linger_ms, max_bytes, buffer_bytes, max_block_ms, durability)
        most = min(limits.max_bytes, self.config.max_message_bytes, self.config.segment_bytes)
        return Appender(self, self._appenders, limits._replace(max_bytes=most))

    def add_partitions(self, n: int) -> int:
        """Add ``n`` partitions in the bucket and on this disk. Return the new number of partitions.

        From then on keys are spread over all partitions: new records of a key may go to another partition, as in Kafka.
        Partitions are never removed. Open readers see new partitions after they call ``topic`` again. A failed call may
        be repeated. Raises ConfigError for too many partitions or an internal topic. If the bucket or the disk fails:
        RemoteUnavailableError, CommitUnknownError, LocalIOError, DiskFullError.
        """
        return self._waiter._add_partitions(self.name, arguments.whole("n", n, least=1))

    def flush(self) -> None:
        """Write buffered records of appenders, then fsync every partition of this topic that is in service."""
        self._appenders.drain(self.name)
        for log in self._logs:
            if not isinstance(log, TieredError):
                log.flush()

    def log(self, partition: int) -> WriteLog:
        """Return one partition on this disk, with a broker's operations: raw appends, fetches, truncation, producers.

        Raises ConfigError for an internal topic such as ``__transaction_state``, UnknownTopicError for a partition that
        does not exist, and the error of one that is out of service.
        """
        if self._is_internal:
            raise ConfigError(
                f"{self.name} is internal: only transactions and groups append to it",
                hint=f"`tiered inspect {self.name}-0 --log-dir DIR` shows its records",
            )
        return self._usable(partition)

    def positions(self, partition: int) -> Positions:
        """Return the partition's positions as known on this disk. No request is made.

        Raises UnknownTopicError for a partition that does not exist, and the error of one that is out of service.
        """
        at, why = self._usable(partition).positions(), self._waiter._uploader_error
        return at if why is None else dataclasses.replace(at, uploader_error=why)

    def transaction(
        self, transactional_id: str, *, timeout: float = DEFAULT_TIMEOUT_S, durability: str = "disk"
    ) -> Transaction:
        """Begin a transaction that appends to this topic, and to others of this log by name. Use ``with``.

        Args:
            transactional_id: names the writer. An open transaction of the same id is aborted and its writer fenced.
            timeout: seconds, at most 900, after which an open transaction is aborted.
            durability: ``commit`` returns when the transaction is on "disk", or when the bucket has it, too ("remote").

        Raises ConfigError for a wrong argument, and for "remote" without a bucket. Raises LocalIOError, DiskFullError
        or CorruptionError if the state log of transactions cannot be read or written.
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
        ts = NO_TIMESTAMP if timestamp is None else parse_time(timestamp, now_ms=self._now_ms())
        record = arguments.record(NewRecord(value, key, ts, headers), 0)
        return self._place(key, partition), record

    def _place(self, key: bytes | None, partition: int | None) -> int:
        return self._partitioner.partition_for(key) if partition is None else self.check_partition(partition)

    def _group(
        self, records: Iterable[AppendRecord], partition: int | None
    ) -> tuple[Sequence[object], list[tuple[int, Sequence[object]]]]:
        """Return all records of a call, and (partition, its records) in the order of partitions.

        Records are returned as they were given, or as NewRecords.
        """
        partition = None if partition is None else self.check_partition(partition)
        keyless = self._partitioner.partition_for(None)  # the records of one call that have no key stay together
        quickly = kernels.group(records, self._partitions, -1 if partition is None else partition, keyless)
        if quickly is not None:
            return quickly
        groups: dict[int, list[NewRecord]] = {}
        looked_at = []
        for index, given in enumerate(arguments.records(records)):
            record = arguments.record(_new_record(given, index), index)
            if partition is not None:
                chosen = partition
            else:
                chosen = keyless if record.key is None else self._partitioner.partition_for(record.key)
            groups.setdefault(chosen, []).append(record)
            looked_at.append(record)
        return looked_at, sorted(groups.items())

    def _append_group(self, partition: int, group: Sequence[object]) -> RecordMetadata:
        """Append the records of one partition: NewRecords, (value, key) pairs or values."""
        written = self._append_given(partition, group)
        if written is None:
            written = self.log(partition).append([_new_record(each, at) for at, each in enumerate(group)])
        return written

    def _append_given(self, partition: int, records: Sequence[object]) -> RecordMetadata | None:
        """Append records of any form that :meth:`append_many` accepts, by the fast path.

        Return None, and append nothing, if the fast path does not take one of them.
        """
        writer = self._writers[partition]
        return None if writer is None else writer.append(records, given=True)

    def _usable(self, partition: int) -> WriteLog:
        found = self._logs[self.check_partition(partition)]
        if isinstance(found, TieredError):
            raise found.with_traceback(None)
        return found

    def _check_durability(self, durability: str) -> None:
        """Raise ConfigError for an unknown durability, and for "remote" in a log without a bucket."""
        arguments.one_of("durability", durability, DURABILITIES)
        if durability == "remote":
            self._waiter._check_remote()

    def _check_append(self, durability: str) -> None:
        self._check_durability(durability)
        self._check_uploader()

    def _check_uploader(self) -> None:
        self._waiter._check_uploader()

    def _check_caller(self) -> None:
        """Raise ReentrantCallError in a thread that is inside another call of the log's disk."""
        self._waiter._check_caller()

    def _set_slow_path(self, slowly: bool) -> None:
        """Switch the fast path of :meth:`append` off (``slowly``) or on. The fast path checks only the partition."""
        self._is_slow = slowly

    def _wait(self, ends: dict[int, int], durability: str) -> None:
        if durability == "memory":
            return
        for partition in ends:
            self._usable(partition).flush()
        if durability == "remote":
            wanted = {TopicPartition(self.name, p): end for p, end in ends.items()}
            self._waiter._wait_uploaded(wanted, DEFAULT_REMOTE_TIMEOUT_S)


def _new_record(given: object, index: int) -> NewRecord:
    if isinstance(given, NewRecord):
        return given
    if isinstance(given, bytes):
        return NewRecord(given)
    if isinstance(given, tuple) and len(given) == 2:
        return NewRecord(given[0], given[1])
    raise InvalidRecordError(
        f"record {index} is a {type(given).__name__}, not a record",
        index=index,
        hint="append_many takes NewRecord(value, key, timestamp, headers), (value, key) or bytes",
    )
