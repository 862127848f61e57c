"""The same names for asyncio: ``async with aio.open(...) as log``, ``await topic.append(...)``, ``async for record``.

::

    from tiered import aio

    async with aio.open("data/log", remote="s3://acme-logs/prod") as log:
        orders = await log.topic("orders", create=True)
        await orders.append(b"hello", key=b"C-88", durability="disk")
        async for record in orders.read(since="-1h"):
            ...

Files have no asynchronous interface, so the blocking parts run on a small pool of threads of each log
(``WORKER_THREADS``); calls that wait for a commit have threads of their own (``WAITING_THREADS``), and so have ``sync``
and ``close``, which end such waits. A stream decodes ``RECORDS_PER_STEP`` records per step. Cancelling an ``await``
leaves no task behind: the step under way ends on its thread, and its outcome is what it is (a cancelled append may have
landed).
The daemon and its uploads run on aiobotocore; this facade reads through the same plan and store as the sync one.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tiered import log as sync_log
from tiered import reader as sync_reader
from tiered.errors import ClosedError
from tiered.model import ConsumerRecord, Headers, Positions, RecordMetadata, TopicPartition
from tiered.times import Time
from tiered.topic import Topic as SyncTopic
from tiered.topic import TopicReads
from tiered.transaction import AppendRecord

if TYPE_CHECKING:
    import pyarrow

    from tiered.config import TopicConfig
    from tiered.local.disk.topics import TopicInfo

__all__ = ["Found", "Log", "Reader", "Reads", "Topic", "open", "open_reader"]

WORKER_THREADS = 4
"""Threads of one open log or reader: calls beyond these wait their turn."""
RECORDS_PER_STEP = 512
"""Records that one step of a stream decodes before it hands them to the event loop."""

WAITING_THREADS = 16
"""Calls of one log that wait for ``durability="remote"`` at once; those beyond wait their turn."""

T = TypeVar("T")
P = ParamSpec("P")


class _Worker:
    """Runs blocking calls on threads of its own."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix=f"tiered-aio-{name}")
        self._waiting = ThreadPoolExecutor(WAITING_THREADS, thread_name_prefix=f"tiered-aio-{name}-wait")
        self.closed = False

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(self._pool, functools.partial(function, *args, **kwargs))

    async def write(self, durability: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """An append: one that waits for a commit takes no thread from those calls that do not."""
        pool = self._waiting if durability == "remote" else self._pool
        return await self._run(pool, functools.partial(function, *args, **kwargs))

    async def call_alone(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """On a thread of its own, however many calls are waiting."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="tiered-aio-alone")
        try:
            return await self._run(pool, functools.partial(function, *args, **kwargs))
        finally:
            pool.shutdown(wait=False)

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self.closed:
            raise ClosedError("the log or reader was closed", hint="open it again")
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    async def iterate(self, make: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
        records = await self.call(make)
        try:
            while step := await self.call(_take, records):
                for record in step:
                    yield record
        finally:
            # A generator may be running on its thread when the caller is cancelled: it is closed after that step.
            if isinstance(records, Generator) and not self.closed:
                self._pool.submit(records.close)

    def close(self) -> None:
        self.closed = True
        self._pool.shutdown(wait=False)
        self._waiting.shutdown(wait=False)


def _take(records: Iterator[T]) -> list[T]:
    return list(itertools.islice(records, RECORDS_PER_STEP))


class _Opening(Awaitable[T]):
    """What ``open`` returns: await it, or use it with ``async with``."""

    def __init__(self, opening: Callable[[], Awaitable[T]], close: Callable[[T], Awaitable[None]]) -> None:
        self._opening = opening
        self._close = close
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._opening().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._opening()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._close(self._opened)


class Reads:
    """What can be read of a topic (``tiered.topic.TopicReads`` for asyncio)."""

    def __init__(self, topic: TopicReads, worker: _Worker) -> None:
        self._reads = topic
        self._worker = worker
        self.name = topic.name
        self.partitions = topic.partitions

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
    ) -> AsyncIterator[ConsumerRecord]:
        """As ``TopicReads.read``; errors are raised at the first step."""
        return self._worker.iterate(
            lambda: self._reads.read(
                partition, start=start, end=end, since=since, until=until, isolation=isolation, on_trimmed=on_trimmed
            )
        )

    async def beginning_offsets(self) -> dict[TopicPartition, int]:
        """Earliest offset of each partition, over both tiers."""
        return await self._worker.call(self._reads.beginning_offsets)

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """Latest offset (exclusive end) of each partition, over both tiers."""
        return await self._worker.call(self._reads.end_offsets)

    async def offsets_for_times(self, time: Time) -> dict[TopicPartition, tuple[int, int] | None]:
        """Per partition the first (offset, timestamp) at or after ``time``."""
        return await self._worker.call(self._reads.offsets_for_times, time)


class Topic(Reads):
    """A topic open for appending (``tiered.topic.Topic`` for asyncio)."""

    def __init__(self, topic: SyncTopic, worker: _Worker) -> None:
        super().__init__(topic, worker)
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
        """As ``Topic.append``."""
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
        """As ``Topic.append_many``."""
        append_many = functools.partial(self._topic.append_many, durability=durability)
        return await self._worker.write(durability, append_many, records, partition=partition)

    async def append_batches(self, data: bytes, *, partition: int = 0, durability: str = "memory") -> RecordMetadata:
        """As ``Topic.append_batches``."""
        append_batches = functools.partial(self._topic.append_batches, durability=durability)
        return await self._worker.write(durability, append_batches, data, partition=partition)

    async def flush(self) -> None:
        """As ``Topic.flush``."""
        await self._worker.call(self._topic.flush)

    def positions(self, partition: int) -> Positions:
        """As ``Topic.positions``; it makes no request and does not block."""
        return self._topic.positions(partition)


class Log:
    """An open log (``tiered.log.Log`` for asyncio)."""

    def __init__(self, log: sync_log.Log, worker: _Worker) -> None:
        self._log = log
        self._worker = worker

    async def topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        create: bool = False,
        config: TopicConfig | Mapping[str, object] | None = None,
    ) -> Topic:
        """As ``Log.topic``."""
        topic = await self._worker.call(self._log.topic, name, partitions=partitions, create=create, config=config)
        return Topic(topic, self._worker)

    def topics(self) -> dict[str, TopicInfo]:
        """The topics on this disk by name."""
        return self._log.topics()

    async def flush(self) -> None:
        """As ``Log.flush``."""
        await self._worker.call(self._log.flush)

    async def sync(self, timeout: float | None = None) -> None:
        """As ``Log.sync``."""
        await self._worker.call_alone(self._log.sync, timeout)

    async def close(self) -> None:
        """As ``Log.close``."""
        if not self._worker.closed:
            await self._worker.call_alone(self._log.close)
            self._worker.close()


class Found:
    """Records that match, as an asynchronous iterator (``tiered.reader.Found`` for asyncio)."""

    def __init__(self, found: sync_reader.Found, worker: _Worker) -> None:
        self.report = found.report
        self._records = worker.iterate(lambda: iter(found))

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self._records


class Reader:
    """Read-only view of one log (``tiered.reader.Reader`` for asyncio)."""

    def __init__(self, reader: sync_reader.Reader, worker: _Worker) -> None:
        self._reader = reader
        self._worker = worker

    async def topics(self) -> dict[str, TopicInfo]:
        """As ``Reader.topics``."""
        return await self._worker.call(self._reader.topics)

    async def topic(self, name: str) -> Reads:
        """As ``Reader.topic``."""
        return Reads(await self._worker.call(self._reader.topic, name), self._worker)

    async def find(self, topic: str, *, key: bytes, since: Time | None = None, until: Time | None = None) -> Found:
        """As ``Reader.find``: ``async for record in await reader.find(...)``; ``report`` is final at the end."""
        found = await self._worker.call(self._reader.find, topic, key=key, since=since, until=until)
        return Found(found, self._worker)

    async def to_arrow(self, topic: str, *, since: Time | None = None, until: Time | None = None) -> pyarrow.Table:
        """As ``Reader.to_arrow``."""
        return await self._worker.call(self._reader.to_arrow, topic, since=since, until=until)

    async def close(self) -> None:
        """As ``Reader.close``."""
        if not self._worker.closed:
            await self._worker.call(self._reader.close)
            self._worker.close()


def open(path: str | Path, remote: str | None = None, **options: Any) -> _Opening[Log]:  # noqa: A001
    """As ``tiered.open``: ``async with aio.open(...) as log`` or ``log = await aio.open(...)``."""

    async def begin() -> Log:
        worker = _Worker("log")
        try:
            return Log(await worker.call(sync_log.open, path, remote, **options), worker)
        except BaseException:
            worker.close()
            raise

    return _Opening(begin, Log.close)


def open_reader(remote: str | None = None, **options: Any) -> _Opening[Reader]:
    """As ``tiered.open_reader``."""

    async def begin() -> Reader:
        worker = _Worker("reader")
        try:
            return Reader(await worker.call(sync_reader.open_reader, remote, **options), worker)
        except BaseException:
            worker.close()
            raise

    return _Opening(begin, Reader.close)
