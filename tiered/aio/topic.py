"""Topic for asyncio. Reads run on the event loop, appends on the log's threads."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from tiered import arguments
from tiered.aio.appending import AsyncAppender, AsyncTransaction, begin, open_appender
from tiered.aio.worker import Opening, ThreadPools
from tiered.appending.appender import BATCH_BYTES, BUFFER_BYTES, LINGER_MS, MAX_BLOCK_MS
from tiered.arrow.schema import COLUMNS
from tiered.format.kernels import ConsumerRecord
from tiered.model import Headers, Positions, RecordMetadata, TopicPartition
from tiered.plan.read import LocalSpan, RemoteSpan
from tiered.read.stream import ReadRange, ReadRequest, TierBatch, TierStream
from tiered.read.topic import TopicReads, arrow_of, records_of, release_steps
from tiered.store.aio_driver import AioRunner
from tiered.times import Time
from tiered.topic import Topic
from tiered.transaction import DEFAULT_TIMEOUT_S, AppendRecord

if TYPE_CHECKING:
    import pyarrow

    from tiered.local.partition.write_log import WriteLog

RECORDS_PER_TURN = 512
"""Most records that a stream decodes before the event loop has a turn."""


class AsyncPartitionStream:
    """Ordered stream over both tiers of a partition (``tiered.read.topic.PartitionStream`` for asyncio)."""

    def __init__(self, steps: TierStream, runner: AioRunner) -> None:
        self.tp = steps.tp
        self.steps = steps
        self._runner = runner

    def __repr__(self) -> str:
        return f"<PartitionStream {self.tp}>"

    async def refresh(self) -> None:
        """Read the newest catalog. An unreadable catalog raises an error, and never counts as "no remote tier"."""
        await self._runner.run(self.steps.refresh())

    async def spans(self) -> tuple[LocalSpan | None, RemoteSpan | None]:
        """Return the offset ranges (local, remote), None for a missing tier. Remote: as of the last refresh."""
        return await self._runner.run(self.steps.spans())

    async def earliest(self) -> int:
        """Return the smallest offset over both tiers."""
        return await self._runner.run(self.steps.earliest())

    async def latest(self) -> int:
        """Return the exclusive end over both tiers."""
        return await self._runner.run(self.steps.latest())

    async def positions(self) -> Positions:
        """Return the partition's positions over both tiers. Without a local tier all records count as uploaded."""
        return await self._runner.run(self.steps.positions())

    async def last_stable_offset(self) -> int:
        """Return the end of ``read_committed``: the oldest open transaction's first offset, otherwise the latest."""
        return await self._runner.run(self.steps.last_stable_offset())

    async def offset(self, wanted: int | str) -> int:
        """Return ``wanted`` as an offset. ``"earliest"`` (``"beginning"``) and ``"latest"`` (``"end"``) are looked up.

        Decimal text is an offset, too. Raises ConfigError for other texts and negative numbers.
        """
        return await self._runner.run(self.steps.offset(wanted))

    async def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after ``timestamp`` (ms), None without one."""
        return await self._runner.run(self.steps.offset_for_time(timestamp))

    def batches(self, start: int, end: int | None = None, *, on_trimmed: str = "raise") -> AsyncIterator[TierBatch]:
        """Yield the encoded batches that hold offsets ``start`` to ``end`` (exclusive; None: the latest), in order.

        ``on_trimmed="jump"`` continues at the earliest offset if retention deleted the wanted one; "raise" raises
        OffsetOutOfRangeError. Also raises OffsetGapError, CorruptionError and the store's errors.
        """
        return self._runner.stream(self.steps.batches(start, end, on_trimmed=on_trimmed), self.steps.release)

    def records(
        self, wanted: ReadRange, *, isolation: str = "read_uncommitted", on_trimmed: str = "raise"
    ) -> AsyncGenerator[ConsumerRecord, None]:
        """Yield the decoded records of ``wanted`` one by one, without control records.

        ``isolation="read_committed"`` leaves out aborted records, and ends before the first open transaction.
        ``on_trimmed="jump"`` continues at the earliest offset if retention deleted the wanted one; "raise" raises
        OffsetOutOfRangeError. Also raises OffsetGapError, CorruptionError and the store's errors.
        """
        steps = self.steps.records(wanted, isolation=isolation, on_trimmed=on_trimmed)
        return one_by_one(self._runner.stream(steps, self.steps.release))


async def one_by_one(
    pieces: AsyncGenerator[Iterable[ConsumerRecord], None],
) -> AsyncGenerator[ConsumerRecord, None]:
    """Yield the records of each item of ``pieces`` one by one. Other tasks of the event loop run in between."""
    given = 0
    async with aclosing(pieces):
        async for piece in pieces:
            for record in piece:
                yield record
                given += 1
                if not given % RECORDS_PER_TURN:
                    await asyncio.sleep(0)


class AsyncTopicReads:
    """Read methods of a topic (``tiered.read.topic.TopicReads`` for asyncio)."""

    def __init__(self, topic: TopicReads, worker: ThreadPools, runner: AioRunner) -> None:
        self._reads = topic
        self._worker = worker
        self._runner = runner
        self.name = topic.name

    def __dir__(self) -> list[str]:
        return dir(self._reads)

    def __repr__(self) -> str:
        return repr(self._reads)

    def _repr_html_(self) -> str:
        return self._reads._repr_html_()

    @property
    def partitions(self) -> int:
        """Return the number of partitions."""
        return self._reads.partitions

    async def stream(self, partition: int) -> AsyncPartitionStream:
        """Return a refreshed stream over both tiers of one partition. Raises UnknownTopicError if there is none."""
        self._worker.check_open()
        return AsyncPartitionStream(await self._runner.run(self._reads._open_steps(partition)), self._runner)

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
        follow: bool = False,
        idle_timeout: float | str | None = None,
    ) -> AsyncIterator[ConsumerRecord]:
        """Yield records, first from the bucket, then from disk, up to the latest offset at the start of the read.

        ``start``, ``end``: offsets; ``since``, ``until``: times; both ranges are half-open. ``partition`` None: all.
        ``isolation="read_committed"`` hides records of open and aborted transactions. ``on_trimmed="jump"`` continues
        at the earliest offset if retention deleted the wanted one. ``follow=True`` continues with new records, until
        ``idle_timeout`` without one. All errors, those of ``TopicReads.read``, are raised while iterating.
        """

        def check() -> ReadRequest:
            span = self._reads._range(partition, start=start, end=end, since=since, until=until)
            return self._reads._wanted(partition, span, isolation, on_trimmed, follow=follow, idle_timeout=idle_timeout)

        return self._read(check)

    async def _read(self, check: Callable[[], ReadRequest]) -> AsyncGenerator[ConsumerRecord, None]:
        wanted = check()
        self._worker.check_open()
        opened: list[TierStream] = []
        steps = self._reads._reading(wanted, records_of(wanted), opened=opened)
        pieces = self._runner.stream(steps, functools.partial(release_steps, opened))
        async with aclosing(one_by_one(pieces)) as records:
            async for record in records:
                yield record

    def read_batches(
        self,
        partition: int | None = None,
        *,
        start: int | str | None = None,
        end: int | str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        isolation: str = "read_uncommitted",
        on_trimmed: str = "raise",
        columns: list[str] | None = None,
        follow: bool = False,
        idle_timeout: float | str | None = None,
    ) -> AsyncIterator[pyarrow.RecordBatch]:
        """Yield the records as Arrow record batches of about 1 MiB, with all columns or ``columns``.

        ``start``, ``end``: offsets; ``since``, ``until``: times; both ranges are half-open. ``partition`` None: all.
        ``isolation="read_committed"`` hides records of open and aborted transactions. ``on_trimmed="jump"`` continues
        at the earliest offset if retention deleted the wanted one. ``follow=True`` continues with new records, until
        ``idle_timeout`` without one. All errors, those of :meth:`read`, are raised while iterating.
        """

        def check() -> ReadRequest:
            span = self._reads._range(partition, start=start, end=end, since=since, until=until)
            return self._reads._wanted(partition, span, isolation, on_trimmed, follow=follow, idle_timeout=idle_timeout)

        return self._read_batches(check, columns)

    async def _read_batches(
        self, check: Callable[[], ReadRequest], columns: list[str] | None
    ) -> AsyncGenerator[pyarrow.RecordBatch, None]:
        wanted = check()
        names = arguments.columns_or_none(columns, COLUMNS) or COLUMNS
        self._worker.check_open()
        opened: list[TierStream] = []
        steps = self._reads._reading(wanted, arrow_of(wanted, names), opened=opened)
        async with aclosing(self._runner.stream(steps, functools.partial(release_steps, opened))) as pieces:
            async for piece in pieces:
                for batch in piece:
                    yield batch

    async def beginning_offsets(self) -> dict[TopicPartition, int]:
        """Return the earliest offset of each partition, over both tiers."""
        return {TopicPartition(self.name, p): await (await self.stream(p)).earliest() for p in range(self.partitions)}

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the latest offset (exclusive end) of each partition, over both tiers."""
        return {TopicPartition(self.name, p): await (await self.stream(p)).latest() for p in range(self.partitions)}

    async def offsets_for_times(self, time: Time) -> dict[TopicPartition, tuple[int, int] | None]:
        """Return each partition's first (offset, timestamp) at or after ``time``, None if there is none."""
        at = self._reads._timestamp(time)
        numbers = range(self.partitions)
        return {TopicPartition(self.name, p): await (await self.stream(p)).offset_for_time(at) for p in numbers}

    async def positions(self, partition: int) -> Positions:
        """Return the partition's positions over both tiers, refreshed. Without a disk all records count as uploaded."""
        return await (await self.stream(partition)).positions()

    def chosen(self, partition: int | None) -> Sequence[int]:
        """Return the numbers of the partitions to read: ``partition``, or all if it is None.

        Raises ConfigError if ``partition`` is no whole number, UnknownTopicError if the topic lacks it.
        """
        return self._reads.chosen(partition)

    def check_partition(self, partition: int) -> int:
        """Return ``partition`` if the topic has it. Raises UnknownTopicError, or ConfigError for another type."""
        return self._reads.check_partition(partition)


class AsyncTopic(AsyncTopicReads):
    """Topic of a log that is open for writing (``tiered.topic.Topic`` for asyncio)."""

    def __init__(self, topic: Topic, worker: ThreadPools, runner: AioRunner) -> None:
        super().__init__(topic, worker, runner)
        self._topic = topic
        self.config = topic.config

    async def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: Time | None = None,
        headers: Headers | None = None,
        durability: str = "memory",
    ) -> RecordMetadata:
        """Append one record and return its position. ``partition`` None: the key decides. ``timestamp`` None: now.

        ``durability``: wait for "memory" (page cache), "disk" (fsync) or "remote" (seal and commit). The record of a
        cancelled call may be appended. Asynchronous form of ``Topic.append``, with its errors.
        """
        return await self._worker.write(
            durability,
            functools.partial(self._topic.append, durability=durability),
            value,
            key=key,
            partition=partition,
            timestamp=timestamp,
            headers=headers,
        )

    async def append_many(
        self, records: Iterable[AppendRecord], *, partition: int | None = None, durability: str = "memory"
    ) -> list[RecordMetadata]:
        """Append ``records``: one atomic batch and one result for each partition, in the order of partitions.

        ``partition`` None: each record's key decides. ``durability``: wait for "memory", "disk" or "remote".
        Asynchronous form of ``Topic.append_many``, with its errors.
        """
        append_many = functools.partial(self._topic.append_many, durability=durability)
        return await self._worker.write(durability, append_many, records, partition=partition)

    async def append_batches(self, data: bytes, *, partition: int = 0, durability: str = "memory") -> RecordMetadata:
        """Append encoded v2 batches, all or none. The log assigns new offsets. Return the place of all their records.

        ``durability``: wait for "memory" (page cache), "disk" (fsync) or "remote" (seal and commit). Raises
        InvalidRecordError for damaged or wrong batches, and the other errors of ``Topic.append``.
        """
        append_batches = functools.partial(self._topic.append_batches, durability=durability)
        return await self._worker.write(durability, append_batches, data, partition=partition)

    async def append_arrow(
        self, data: object, *, partition: int | None = None, durability: str = "memory"
    ) -> list[RecordMetadata]:
        """Append the rows of a ``pyarrow.Table``, a record batch or any ``__arrow_c_stream__``.

        Returns one RecordMetadata for each written batch. ``partition`` None: the column ``partition`` or the key
        decides. Asynchronous form of ``Topic.append_arrow``, with its errors.
        """
        append_arrow = functools.partial(self._topic.append_arrow, durability=durability)
        return await self._worker.write(durability, append_arrow, data, partition=partition)

    def transaction(
        self, transactional_id: str, *, timeout: float = DEFAULT_TIMEOUT_S, durability: str = "disk"
    ) -> Opening[AsyncTransaction]:
        """Return a transaction that begins at ``async with topic.transaction("billing-7") as txn``.

        ``timeout``: seconds after which an open transaction is aborted. ``durability``: "disk" or "remote", which
        ``commit`` waits for. Asynchronous form of ``Topic.transaction``, with its errors.
        """
        make = functools.partial(self._topic.transaction, timeout=timeout, durability=durability)
        return begin(functools.partial(make, transactional_id), self._worker, durability)

    def appender(
        self,
        *,
        linger_ms: int = LINGER_MS,
        max_bytes: int = BATCH_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        max_block_ms: int = MAX_BLOCK_MS,
        durability: str = "memory",
    ) -> Opening[AsyncAppender]:
        """Return an appender, which buffers records: ``async with topic.appender() as appender``.

        A batch is written ``linger_ms`` after its first record or at ``max_bytes``. ``append`` waits for room in
        ``buffer_bytes``, at most ``max_block_ms``. ``durability``: receipts wait for "memory" or "disk".
        """
        make = functools.partial(
            self._topic.appender,
            linger_ms=linger_ms,
            max_bytes=max_bytes,
            buffer_bytes=buffer_bytes,
            max_block_ms=max_block_ms,
            durability=durability,
        )
        return open_appender(make, self._worker)

    async def add_partitions(self, n: int) -> int:
        """Add ``n`` partitions in the bucket and on this disk. Return the new number of partitions.

        New records of a key may then go to another partition. Asynchronous form of ``Topic.add_partitions``.
        """
        return await self._worker.call(self._topic.add_partitions, n)

    async def flush(self) -> None:
        """Write buffered records of appenders, then fsync every partition of this topic that is in service."""
        await self._worker.call(self._topic.flush)

    def log(self, partition: int) -> WriteLog:
        """Return one partition on this disk, with a broker's operations. Its calls block on the disk: use a thread.

        Raises ConfigError for an internal topic, and the error of a partition that is out of service.
        """
        return self._topic.log(partition)

    def positions(self, partition: int) -> Positions:  # type: ignore[override]  # of this disk: it does not wait
        """Return the partition's positions as known on this disk. Makes no request and does not block."""
        return self._topic.positions(partition)
