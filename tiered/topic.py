"""A topic of an open log: append to it, read it over both tiers, ask where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from tiered import arguments
from tiered.errors import ConfigError, InvalidRecordError, TieredError, UnknownTopicError
from tiered.format.coordinator_records import is_state_log
from tiered.model import NO_TIMESTAMP, ConsumerRecord, Headers, NewRecord, Positions, RecordMetadata, TopicPartition
from tiered.partitioner import Partitioner
from tiered.plan.read import LocalSpan, RemoteSpan
from tiered.read.stream import ISOLATION_LEVELS, ON_TRIMMED, LocalPartition, ReadRange, TierBatch, TierStream, Window
from tiered.remote.reader import RemotePartition
from tiered.store.base import Steps
from tiered.store.runner import Runner
from tiered.times import Time, parse_time
from tiered.transaction import DEFAULT_TIMEOUT_S, AppendRecord, Transaction

if TYPE_CHECKING:
    from tiered.config import TopicConfig
    from tiered.local.partition.partition import PartitionLog

DURABILITIES = ("memory", "disk", "remote")
DEFAULT_REMOTE_TIMEOUT_S = 900.0
"""How long ``durability="remote"`` waits for the next seal and its commit before it raises DataLocalError."""


class PartitionStream:
    """Both tiers of one partition (``read.stream``), read on the calling thread. Not thread-safe: one per reader."""

    def __init__(self, steps: TierStream, runner: Runner) -> None:
        self.tp = steps.tp
        self.steps = steps
        self._runner = runner

    @classmethod
    def of(
        cls,
        tp: TopicPartition,
        *,
        local: LocalPartition | None,
        remote: RemotePartition | None,
        runner: Runner | None = None,
    ) -> PartitionStream:
        """Over these tiers; ``runner`` is needed where one of them is remote."""
        return cls(TierStream(tp, local=local, remote=remote), runner or Runner())

    def refresh(self) -> None:
        """As ``TierStream.refresh``."""
        self._runner.run(self.steps.refresh())

    def spans(self) -> tuple[LocalSpan | None, RemoteSpan | None]:
        """As ``TierStream.spans``."""
        return self._runner.run(self.steps.spans())

    def earliest(self) -> int:
        """As ``TierStream.earliest``."""
        return self._runner.run(self.steps.earliest())

    def latest(self) -> int:
        """As ``TierStream.latest``."""
        return self._runner.run(self.steps.latest())

    def positions(self) -> Positions:
        """As ``TierStream.positions``."""
        return self._runner.run(self.steps.positions())

    def last_stable_offset(self) -> int:
        """As ``TierStream.last_stable_offset``."""
        return self._runner.run(self.steps.last_stable_offset())

    def offset(self, wanted: int | str) -> int:
        """As ``TierStream.offset``."""
        return self._runner.run(self.steps.offset(wanted))

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """As ``TierStream.offset_for_time``."""
        return self._runner.run(self.steps.offset_for_time(timestamp))

    def windows(self, wanted: ReadRange) -> list[Window]:
        """As ``TierStream.windows``."""
        return self._runner.run(self.steps.windows(wanted))

    def pruned_segments(self, wanted: ReadRange) -> int:
        """As ``TierStream.pruned_segments``."""
        return self._runner.run(self.steps.pruned_segments(wanted))

    def batches(self, start: int, end: int | None = None, *, on_trimmed: str = "raise") -> Iterator[TierBatch]:
        """As ``TierStream.batches``."""
        return self._runner.stream(self.steps.batches(start, end, on_trimmed=on_trimmed))

    def records(
        self, wanted: ReadRange, *, isolation: str = "read_uncommitted", on_trimmed: str = "raise"
    ) -> Iterator[ConsumerRecord]:
        """As ``TierStream.records``, one by one."""
        for records in self._runner.stream(self.steps.records(wanted, isolation=isolation, on_trimmed=on_trimmed)):
            yield from records


class TopicReads:
    """What can be read of a topic, whether this process writes it or not. Thread-safe: each read is its own stream."""

    def __init__(
        self,
        name: str,
        partitions: int,
        *,
        open_stream: Callable[[TopicPartition], Steps[TierStream]],
        now_ms: Callable[[], int],
        runner: Runner,
    ) -> None:
        self.name = name
        self.partitions = partitions
        self._open_stream = open_stream
        self._now_ms = now_ms
        self._runner = runner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} partitions={self.partitions}>"

    def stream(self, partition: int) -> PartitionStream:
        """Both tiers of one partition, looked at anew."""
        return PartitionStream(self._runner.run(self._open_steps(partition)), self._runner)

    def _open_steps(self, partition: int) -> Steps[TierStream]:
        """As :meth:`stream`, for whoever runs steps."""
        partition = self.check_partition(partition)
        stream = yield from self._open_stream(TopicPartition(self.name, partition))
        yield from stream.refresh()
        return stream

    def read(
        self,
        partition: int | None = None,
        *,
        start: int | str | None = None,
        end: int | str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        isolation: str = "read_uncommitted",
        on_trimmed: str = "raise",
    ) -> Iterator[ConsumerRecord]:
        """Records from the bucket, then from disk; ends at what was the latest offset when it began.

        ``start`` and ``end`` are offsets (int, "earliest", "latest"), ``since`` and ``until`` times; both pairs are
        half-open, both on one side are a ConfigError. ``partition=None`` reads partition after partition; offsets
        then need one partition. Raises OffsetOutOfRangeError, OffsetGapError, CorruptionError, RemoteUnavailableError.
        """
        chosen, wanted = self._wanted(
            partition, start=start, end=end, since=since, until=until, isolation=isolation, on_trimmed=on_trimmed
        )
        return self._read(chosen, wanted, isolation, on_trimmed)

    def _wanted(
        self,
        partition: int | None,
        *,
        start: int | str | None,
        end: int | str | None,
        since: Time | None,
        until: Time | None,
        isolation: str,
        on_trimmed: str,
    ) -> tuple[Sequence[int], ReadRange]:
        """The arguments of :meth:`read`, checked."""
        arguments.one_of("isolation", isolation, ISOLATION_LEVELS)
        arguments.one_of("on_trimmed", on_trimmed, ON_TRIMMED)
        wanted = ReadRange.of_times(since, until, now_ms=self._now_ms(), start=start, end=end)
        chosen = self.chosen(partition)
        if partition is None and self.partitions > 1 and (isinstance(wanted.start, int) or isinstance(wanted.end, int)):
            raise ConfigError(
                f"{self.name}: offsets differ by partition", hint="name one: read(partition=0, start=...)"
            )
        return chosen, wanted

    def _read(
        self, chosen: Iterable[int], wanted: ReadRange, isolation: str, on_trimmed: str
    ) -> Iterator[ConsumerRecord]:
        for records in self._runner.stream(self._reading(chosen, wanted, isolation, on_trimmed)):
            yield from records

    def _reading(self, chosen: Iterable[int], wanted: ReadRange, isolation: str, on_trimmed: str) -> Steps[None]:
        """Emits the records of :meth:`read`, for whoever runs steps."""
        for partition in chosen:
            stream = yield from self._open_steps(partition)
            yield from stream.records(wanted, isolation=isolation, on_trimmed=on_trimmed)
            yield from stream.release()

    def beginning_offsets(self) -> dict[TopicPartition, int]:
        """Earliest offset of each partition, over both tiers."""
        return {TopicPartition(self.name, p): self.stream(p).earliest() for p in range(self.partitions)}

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Latest offset (exclusive end) of each partition, over both tiers."""
        return {TopicPartition(self.name, p): self.stream(p).latest() for p in range(self.partitions)}

    def offsets_for_times(self, time: Time) -> dict[TopicPartition, tuple[int, int] | None]:
        """Per partition the first (offset, timestamp) at or after ``time``; None where there is none."""
        at = self._timestamp(time)
        return {TopicPartition(self.name, p): self.stream(p).offset_for_time(at) for p in range(self.partitions)}

    def _timestamp(self, time: Time) -> int:
        """A time as users write it, in ms."""
        return parse_time(time, now_ms=self._now_ms())

    def positions(self, partition: int) -> Positions:
        """Where the partition stands over both tiers, looked at anew; without a local tier all are remote."""
        return self.stream(partition).positions()

    def chosen(self, partition: int | None) -> Sequence[int]:
        """All partitions, or the one that is named. Raises ConfigError, UnknownTopicError."""
        return range(self.partitions) if partition is None else (self.check_partition(partition),)

    def check_partition(self, partition: int) -> int:
        """The number itself. Raises ConfigError for what is none, UnknownTopicError if the topic does not have it."""
        partition = arguments.whole("partition", partition)
        if not 0 <= partition < self.partitions:
            raise UnknownTopicError(
                f"topic {self.name} has no partition {partition}", hint=f"it has 0 to {self.partitions - 1}"
            )
        return partition


class _Waiter(Protocol):
    """What a topic asks of its log: waiting for a position."""

    def wait_uploaded(self, ends: dict[TopicPartition, int], timeout_s: float) -> None:
        """Waits until the committed ends reach ``ends``; raises DataLocalError, FencedError."""

    def check_remote(self) -> None:
        """Raises ConfigError if there is no bucket to wait for."""

    def transaction(
        self, transactional_id: str, *, topic: Topic | None, timeout: float, durability: str
    ) -> Transaction:
        """Begins one."""


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
    ) -> None:
        super().__init__(name, len(logs), open_stream=open_stream, now_ms=now_ms, runner=runner)
        self.config = config
        self._logs = logs
        self._waiter = waiter
        self._partitioner = Partitioner(len(logs))
        self._is_internal = is_state_log(name)

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
        self._check_durability(durability)
        chosen, record = self._route(value, key, partition, timestamp, headers)
        written = self._log(chosen).append((record,))
        self._wait({chosen: written.end_offset}, durability)
        return written

    def append_many(
        self, records: Iterable[AppendRecord], *, partition: int | None = None, durability: str = "memory"
    ) -> list[RecordMetadata]:
        """Appends ``records``: one atomic batch per partition that they fall into, in partition order.

        A record is a ``NewRecord``, a (value, key) pair, or a value. Returns one RecordMetadata per partition.
        Raises as :meth:`append`; ``InvalidRecordError.index`` is the place in the call.
        """
        self._check_durability(durability)
        groups, places = self._group(records, partition)
        written: list[RecordMetadata] = []
        for chosen in sorted(groups):
            try:
                written.append(self._log(chosen).append(groups[chosen]))
            except InvalidRecordError as error:
                error.index = places[chosen][error.index] if error.index < len(places[chosen]) else error.index
                raise
        self._wait({md.partition: md.end_offset for md in written}, durability)
        return written

    def append_batches(self, data: bytes, *, partition: int = 0, durability: str = "memory") -> RecordMetadata:
        """Appends batches that are already encoded (v2), without decoding them; offsets are assigned anew."""
        self._check_durability(durability)
        partition = self.check_partition(partition)
        written = self._log(partition).append_batches(arguments.batches(data))
        self._wait({partition: written.end_offset}, durability)
        return written

    def flush(self) -> None:
        """Fsyncs every partition of this topic that is in service."""
        for log in self._logs:
            if not isinstance(log, TieredError):
                log.flush()

    def positions(self, partition: int) -> Positions:
        """Where the partition stands, as this disk knows it (no request is made)."""
        return self._usable(partition).positions()

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
        chosen = self._partitioner.partition_for(key) if partition is None else self.check_partition(partition)
        return chosen, record

    def _group(
        self, records: Iterable[AppendRecord], partition: int | None
    ) -> tuple[dict[int, list[NewRecord]], dict[int, list[int]]]:
        """Records by the partition that they fall into, and their places in the call."""
        groups: dict[int, list[NewRecord]] = {}
        places: dict[int, list[int]] = {}
        keyless = self._partitioner.partition_for(None)  # the records of one call that have no key stay together
        if partition is not None:
            partition = self.check_partition(partition)
        for index, given in enumerate(arguments.records(records)):
            record = arguments.record(_new_record(given, index), index)
            if partition is not None:
                chosen = partition
            else:
                chosen = keyless if record.key is None else self._partitioner.partition_for(record.key)
            groups.setdefault(chosen, []).append(record)
            places.setdefault(chosen, []).append(index)
        return groups, places

    def _log(self, partition: int) -> PartitionLog:
        """One partition, to append to. ConfigError for the coordinator's own topic."""
        if self._is_internal:
            raise ConfigError(
                f"{self.name} is internal: only the transaction coordinator appends to it",
                hint="`tiered dump-segment` shows what it holds",
            )
        return self._usable(partition)

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

    def _wait(self, ends: dict[int, int], durability: str) -> None:
        if durability == "memory":
            return
        for partition in ends:
            self._usable(partition).flush()
        if durability == "remote":
            wanted = {TopicPartition(self.name, p): end for p, end in ends.items()}
            self._waiter.wait_uploaded(wanted, DEFAULT_REMOTE_TIMEOUT_S)


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
