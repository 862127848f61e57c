"""Staging of one task's rows as segments in the bucket. Runs in the workers.

::

    record batches ──> by partition ──> batches of 1 MiB ──> segments ──> PUT .log, PUT .idx ──> Staged, for the commit

A task holds no claim, reads no root and shuffles nothing. Each of its segments begins at offset 0, and the commit on
the driver assigns its offsets. A segment ends at ``segment.bytes`` of its topic, and earlier if the task holds
``BUFFER_BYTES`` in all. Both of its objects are sent straight from memory. Staged objects that no commit names are
garbage of a known batch: nothing is deleted here.

The compiled kernels reuse the memory of sent batches for later segments and tasks, because fresh pages of memory cost
as much as writing to them. A process keeps at most 64 MiB of unused memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import numpy as np
import pyarrow as pa

from tiered.clock import Clock, IdSource, SystemClock
from tiered.config import TopicConfig
from tiered.errors import ConfigError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from tiered.format import kernels
from tiered.format.columns import (
    Int64s,
    RecordColumns,
    encode_columns,
    encode_filled,
    join_columns,
    key_hashes,
    partitions_of,
    rows_by_partition,
    rows_of,
)
from tiered.format.header import HEADER_BYTES, Buffer
from tiered.format.kernel_values import BatchFiller, EncoderColumns
from tiered.format.segment_builder import LEADER_EPOCH, BuiltSegment, SegmentBuilder
from tiered.local.partition.validation import RecordRules
from tiered.model import Row
from tiered.remote.sink_commit import upload_staged
from tiered.spark.schema import WriteSchema, WrittenRows
from tiered.store.base import Capabilities, Store
from tiered.store.driver import drive
from tiered.store.threads import ThreadPool
from tiered.store.unique_upload import MULTIPART_FROM_BYTES

BATCH_BYTES = 1024 * 1024
"""Most uncompressed bytes of one batch, except for a single record that is larger."""

SEGMENT_BYTES = MULTIPART_FROM_BYTES
"""Largest staged segment, for any ``segment.bytes``: it is in memory, and each object is one PUT."""

BUFFER_BYTES = 128 * 1024 * 1024
"""Most bytes of segments in one task's memory, those being sent included, plus the one being built."""

INT64_BYTES = 8

UPLOADS_AT_ONCE = 4
"""Concurrent uploads of one task."""


@dataclass(frozen=True, slots=True)
class SinkTopic:
    """Facts about a topic that a sink's task needs."""

    name: str
    topic_id: UUID
    partitions: int
    config: TopicConfig


@dataclass(frozen=True, slots=True)
class Staged:
    """Segment that a task stored. ``row``: its staged catalog row, with offsets from 0."""

    topic: str
    topic_id: UUID
    partition: int
    row: Row


@dataclass(frozen=True, slots=True)
class Job:
    """Owner of the rows: batch ``batch`` of the transaction id ``txn``; ``task`` is Spark's partition id."""

    txn: str
    batch: int
    task: int


@dataclass(frozen=True, slots=True)
class StagingLimits:
    """Memory and size limits of one task."""

    batch_bytes: int = BATCH_BYTES
    segment_bytes: int = SEGMENT_BYTES
    buffer_bytes: int = BUFFER_BYTES
    uploads_at_once: int = UPLOADS_AT_ONCE


LIMITS = StagingLimits()


class TaskStaging:
    """Writer of one task's rows as staged segments. Not thread-safe; uploads run on threads of its own."""

    def __init__(
        self,
        store: Store,
        schema: WriteSchema,
        topics: Callable[[str | None], SinkTopic],
        job: Job,
        capabilities: Capabilities,
        *,
        limits: StagingLimits = LIMITS,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        """Begin a task. ``topics``: function from a name (None: the topic in the option) to its topic.

        It raises UnknownTopicError for a missing one.
        """
        self._store = store
        self._schema = schema
        self._topics = topics
        self._job = job
        self._capabilities = capabilities
        self._limits = limits
        self._clock = clock or SystemClock()
        self._ids = ids
        self._parts: dict[tuple[str, int], _StagedPart] = {}
        self._turns: dict[str, int] = {}
        self._pool = ThreadPool(limits.uploads_at_once, "tiered-sink")
        self._sending: deque[tuple[int, Future[Staged]]] = deque()
        self._sending_bytes = 0
        self._staged: list[Staged] = []

    def write(self, batches: Iterator[pa.RecordBatch]) -> tuple[Staged, ...]:
        """Store all ``batches`` and return the acknowledged segments, ordered by topic, partition and rows.

        Raises ConfigError, InvalidRecordError or a subclass for a row that its topic refuses, UnknownTopicError, and
        the errors of the store. Spark then retries the whole task, which stages segments under new names.
        """
        try:
            for batch in batches:
                self._add(batch)
            for part in self._parts.values():
                self._flush(part)
                self._close(part)
            while self._sending:
                self._acknowledge()
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)
        return tuple(sorted(self._staged, key=lambda staged: (staged.topic, staged.partition)))

    # -- rows to partitions ------------------------------------------------------------------------------------------

    def _add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        now_ms = self._clock.now_ms()
        rows = self._schema.rows(batch, now_ms)
        if rows.topics is None:
            self._add_of_topic(self._topics(None), rows, now_ms)
            return
        names = rows.topics.dictionary.to_pylist()
        codes = rows.topics.indices.to_numpy(zero_copy_only=False)
        for code, name in enumerate(names):
            at = np.flatnonzero(codes == code)
            topic = self._topics(name)
            if len(at) == len(codes):
                self._add_of_topic(topic, rows, now_ms)
            elif len(at):
                partitions = None if rows.partitions is None else rows.partitions[at]
                self._add_of_topic(topic, WrittenRows(rows.records.select(at), None, partitions), now_ms)

    def _add_of_topic(self, topic: SinkTopic, rows: WrittenRows, now_ms: int) -> None:
        records = rows.records
        _check_records(topic, records, now_ms)
        keyless, source = self._keyless(topic, records), rows_of(records)
        _check_partitions(topic, rows.partitions)
        if source is None:
            self._add_without_kernels(topic, rows, keyless)
        else:
            given = None if rows.partitions is None else rows.partitions.data
            for partition, at in source.by_partition(topic.partitions, keyless, given):
                part = self._part(topic, partition)
                self._encode(part, everything=True)  # first the rows from before, which are pending
                self._fill(part, source, at, len(records))
        self._make_room()

    def _add_without_kernels(self, topic: SinkTopic, rows: WrittenRows, keyless: int) -> None:
        """Add rows in Python, because the compiled kernels are missing or do not accept these columns.

        ``keyless``: partition of the rows without a key.
        """
        records, partitions = rows.records, _partitions(topic, rows, keyless)
        for at in rows_by_partition(partitions):
            part = self._part(topic, int(partitions[at[0]]))
            self._end_batch(part)
            part.pend(records if len(at) == len(records) else records.select(at))
            self._encode(part)

    def _keyless(self, topic: SinkTopic, records: RecordColumns) -> int:
        """Return the partition for the records of one batch that have no key. The next batch gets the next one."""
        turn = self._turns.get(topic.name, self._job.task + self._job.batch)
        if records.keys.null_count:
            self._turns[topic.name] = turn + 1
        return turn % topic.partitions

    def _part(self, topic: SinkTopic, partition: int) -> _StagedPart:
        part = self._parts.get((topic.name, partition))
        if part is None:
            part = self._parts[topic.name, partition] = _StagedPart(topic, partition)
            part.filler = kernels.batch_filler(self._room(part), lend=True)
        return part

    def _room(self, part: _StagedPart) -> int:
        """Return the limit in bytes of the records of one batch, without the batch header."""
        return min(self._limits.batch_bytes, part.rules.max_bytes) - HEADER_BYTES

    # -- batches and segments ----------------------------------------------------------------------------------------

    def _fill(self, part: _StagedPart, source: EncoderColumns, order: Buffer | None, rows: int) -> None:
        """Write rows of ``source`` into batches. The last batch stays open for more rows.

        ``order``: numbers of the rows, as 64-bit integers; None: all rows. ``rows``: their number in ``source``.
        """
        filler, at, end = part.filler, 0, rows if order is None else len(order) // INT64_BYTES
        if filler is None:
            raise ValueError("there are no compiled kernels")
        while (at := filler.add(source, order, at)) < end:
            self._end_batch(part)

    def _flush(self, part: _StagedPart) -> None:
        """Encode all rows that fill no batch yet as one batch."""
        self._end_batch(part)
        self._encode(part, everything=True)

    def _end_batch(self, part: _StagedPart) -> None:
        """Encode the rows that the compiled kernels have collected as one batch."""
        filler = part.filler
        if filler is None or not filler.count:
            return
        count, times = filler.count, (filler.least, filler.greatest)
        self._append(part, partial(encode_filled, filler), count, times)

    def _encode(self, part: _StagedPart, *, everything: bool = False) -> None:
        """Encode the pending rows as full batches. ``everything``: encode the remaining rows, too."""
        room = self._room(part)
        if part.pending_bytes < room and not (everything and part.pending):
            return
        records = part.drain()
        start = 0
        for end in records.run_ends(room):
            if end == len(records) and not everything:
                part.pend(records.slice(start, end))
                return
            piece = records.slice(start, end)
            times = int(piece.timestamps.min()), int(piece.timestamps.max())
            self._append(part, partial(encode_columns, piece), len(piece), times)
            start = end

    def _append(
        self, part: _StagedPart, encode: Callable[..., bytes | memoryview], records: int, times: tuple[int, int]
    ) -> None:
        """Append one batch to the segment that is being built, after starting a new one if the segment is full.

        ``encode`` returns the bytes of the batch. ``records``: number of its records. ``times``: least and greatest
        timestamp of the rows. Raises RecordTooLargeError.
        """
        rules = part.rules
        now_ms = self._clock.now_ms() if rules.timestamp_type else -1
        builder = part.builder = part.builder or part.begun()
        batch = encode(
            codec=rules.codec,
            level=rules.level,
            timestamp_type=rules.timestamp_type,
            append_time_ms=now_ms,
            base_offset=builder.next_offset,
            leader_epoch=LEADER_EPOCH,
        )
        if len(batch) > rules.max_bytes:
            raise RecordTooLargeError(
                f"topic {part.topic.name}: a batch of {records} records has {len(batch)} bytes, "
                f"{rules.limit_name} is {rules.max_bytes}",
                hint=f"run `tiered topic set {part.topic.name} {rules.limit_name}=BYTES`, or leave such rows out",
            )
        limit = min(part.topic.config.segment_bytes, self._limits.segment_bytes)
        if builder.size_bytes and builder.size_bytes + len(batch) > limit:
            self._close(part)
            builder = part.builder = part.begun()
        least, greatest = (now_ms, now_ms) if rules.timestamp_type else times
        builder.append(batch, records, least, greatest)

    def _make_room(self) -> None:
        """Wait for uploads, then end the largest segments early, until at most ``buffer_bytes`` are in memory."""
        while sum(part.held_bytes for part in self._parts.values()) + self._sending_bytes > self._limits.buffer_bytes:
            if self._sending:
                self._acknowledge()
                continue
            largest = max(self._parts.values(), key=lambda part: part.held_bytes)
            self._flush(largest)
            self._close(largest)

    def _close(self, part: _StagedPart) -> None:
        if part.builder is None:
            return
        built, part.builder = part.builder.build(), None
        while len(self._sending) >= self._limits.uploads_at_once:
            self._acknowledge()
        size = built.descriptor.size_bytes
        self._sending_bytes += size
        self._sending.append((size, self._pool.submit(self._send, part.topic, part.partition, built)))

    def _send(self, topic: SinkTopic, partition: int, built: BuiltSegment) -> Staged:
        steps = upload_staged(built, self._job.txn, self._job.batch, self._capabilities)
        return Staged(topic.name, topic.topic_id, partition, drive(self._store, steps, ids=self._ids))

    def _acknowledge(self) -> None:
        size, sent = self._sending.popleft()
        self._staged.append(sent.result())
        self._sending_bytes -= size


@dataclass(slots=True)
class _StagedPart:
    """A task's data of one partition: rows that fill no batch yet, and the segment that is being built."""

    topic: SinkTopic
    partition: int
    rules: RecordRules = field(init=False)
    pending: list[RecordColumns] = field(default_factory=list)
    pending_bytes: int = 0
    filler: BatchFiller[bytes | memoryview] | None = None
    builder: SegmentBuilder | None = None

    def __post_init__(self) -> None:
        self.rules = RecordRules(self.topic.config)

    def begun(self) -> SegmentBuilder:
        interval = self.topic.config.index_interval_bytes
        return SegmentBuilder(self.topic.topic_id, self.partition, index_interval_bytes=interval)

    @property
    def held_bytes(self) -> int:
        filled = self.filler.size_bytes if self.filler is not None else 0
        return self.pending_bytes + filled + (self.builder.size_bytes if self.builder is not None else 0)

    def pend(self, records: RecordColumns) -> None:
        self.pending.append(records)
        self.pending_bytes += int(records.sizes().sum())

    def drain(self) -> RecordColumns:
        records = join_columns(self.pending)
        self.pending, self.pending_bytes = [], 0
        return records


def _partitions(topic: SinkTopic, rows: WrittenRows, keyless: int) -> Int64s:
    """Return the partition of each record: the one that its row names, otherwise that of its key.

    ``keyless``: partition of a record with neither.
    """
    records, count = rows.records, topic.partitions
    chosen = np.full(len(records), keyless, np.int64)
    if records.keys.null_count < len(records) and count > 1:
        keyed = records.keys.is_valid().to_numpy(zero_copy_only=False)
        chosen = np.where(keyed, partitions_of(key_hashes(records.keys), count), chosen)
    return chosen if rows.partitions is None else np.where(rows.partitions < 0, chosen, rows.partitions)


def _check_partitions(topic: SinkTopic, given: Int64s | None) -> None:
    if given is None:
        return
    wrong = given[(given < -1) | (given >= topic.partitions)]
    if len(wrong):
        raise ConfigError(
            f"topic {topic.name} has no partition {wrong[0]}", hint=f"its partitions are 0 to {topic.partitions - 1}"
        )


def _check_records(topic: SinkTopic, records: RecordColumns, now_ms: int) -> None:
    """Raise InvalidRecordError or InvalidTimestampError for records that a local log would refuse."""
    config, times = topic.config, records.timestamps
    if config.compacted and records.keys.null_count:
        raise InvalidRecordError(
            f"topic {topic.name} is compacted, and {records.keys.null_count} of {len(records)} rows have no key",
            hint="give every row a key",
        )
    least, greatest = int(times.min()), int(times.max())
    early = now_ms - least > config.message_timestamp_before_max_ms
    if not config.timestamp_type and (early or greatest - now_ms > config.message_timestamp_after_max_ms):
        raise InvalidTimestampError(
            f"topic {topic.name}: a row has the timestamp {least if early else greatest}, the clock says {now_ms}",
            hint="correct the column timestamp, or raise message.timestamp.before.max.ms or "
            f"message.timestamp.after.max.ms with `tiered topic set {topic.name}`",
        )
