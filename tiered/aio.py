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

import functools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiered import log as sync_log
from tiered import reader as sync_reader
from tiered.aio_worker import Opening, Worker
from tiered.metrics import Metric
from tiered.model import ConsumerRecord, Headers, Positions, RecordMetadata, TopicPartition
from tiered.times import Time
from tiered.topic import Topic as SyncTopic
from tiered.topic import TopicReads
from tiered.transaction import DEFAULT_TIMEOUT_S, AppendRecord
from tiered.transaction import Transaction as SyncTransaction

if TYPE_CHECKING:
    import pyarrow

    from tiered.config import TopicConfig
    from tiered.local.disk.topics import TopicInfo

__all__ = ["Found", "Log", "Reader", "Reads", "Topic", "Transaction", "open", "open_reader"]


class Reads:
    """What can be read of a topic (``tiered.topic.TopicReads`` for asyncio)."""

    def __init__(self, topic: TopicReads, worker: Worker) -> None:
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

    def __init__(self, topic: SyncTopic, worker: Worker) -> None:
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

    def transaction(
        self, transactional_id: str, *, timeout: float = DEFAULT_TIMEOUT_S, durability: str = "disk"
    ) -> Opening[Transaction]:
        """As ``Topic.transaction``: ``async with topic.transaction("billing-7") as txn``."""
        begin = functools.partial(self._topic.transaction, timeout=timeout, durability=durability)
        return _transaction(functools.partial(begin, transactional_id), self._worker, durability)

    async def flush(self) -> None:
        """As ``Topic.flush``."""
        await self._worker.call(self._topic.flush)

    def positions(self, partition: int) -> Positions:
        """As ``Topic.positions``; it makes no request and does not block."""
        return self._topic.positions(partition)


class Transaction:
    """A transaction (``tiered.transaction.Transaction`` for asyncio): committed where its block ends, or aborted."""

    def __init__(self, txn: SyncTransaction, worker: Worker, durability: str) -> None:
        self._txn = txn
        self._worker = worker
        self._durability = durability
        self.transactional_id = txn.transactional_id

    @property
    def state(self) -> str:
        """As ``Transaction.state``."""
        return self._txn.state

    async def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: Time | None = None,
        headers: Headers | None = None,
        topic: str | None = None,
    ) -> RecordMetadata:
        """As ``Transaction.append``."""
        return await self._worker.call(
            self._txn.append,
            value,
            key=key,
            partition=partition,
            timestamp=timestamp,
            headers=headers,
            topic=topic,
        )

    async def append_many(
        self, records: Iterable[AppendRecord], *, partition: int | None = None, topic: str | None = None
    ) -> list[RecordMetadata]:
        """As ``Transaction.append_many``."""
        return await self._worker.call(self._txn.append_many, records, partition=partition, topic=topic)

    async def commit(self) -> None:
        """As ``Transaction.commit``."""
        await self._worker.write(self._durability, self._txn.commit)

    async def abort(self) -> None:
        """As ``Transaction.abort``."""
        await self._worker.call(self._txn.abort)

    async def _leave(self, error: BaseException | None) -> None:
        await self._worker.write(self._durability, self._txn.__exit__, type(error) if error else None, error, None)


def _transaction(begin: Callable[[], SyncTransaction], worker: Worker, durability: str) -> Opening[Transaction]:
    async def opening() -> Transaction:
        return Transaction(await worker.call(begin), worker, durability)

    return Opening(opening, Transaction._leave)


class Log:
    """An open log (``tiered.log.Log`` for asyncio)."""

    def __init__(self, log: sync_log.Log, worker: Worker) -> None:
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

    def transaction(
        self, transactional_id: str, *, timeout: float = DEFAULT_TIMEOUT_S, durability: str = "disk"
    ) -> Opening[Transaction]:
        """As ``Log.transaction``; its appends name their topics."""
        begin = functools.partial(self._log.transaction, timeout=timeout, durability=durability)
        return _transaction(functools.partial(begin, transactional_id), self._worker, durability)

    def topics(self) -> dict[str, TopicInfo]:
        """The topics on this disk by name."""
        return self._log.topics()

    def positions(self) -> dict[TopicPartition, Positions]:
        """As ``Log.positions``."""
        return self._log.positions()

    async def delete_topic(self, name: str) -> None:
        """As ``Log.delete_topic``."""
        await self._worker.call(self._log.delete_topic, name)

    async def wait_uploaded(self, ends: Mapping[TopicPartition, int], timeout_s: float | None) -> None:
        """As ``Log.wait_uploaded``."""
        await self._worker.call_alone(self._log.wait_uploaded, ends, timeout_s)

    async def flush(self) -> None:
        """As ``Log.flush``."""
        await self._worker.call(self._log.flush)

    async def metrics(self) -> list[Metric]:
        """As ``Log.metrics``."""
        return await self._worker.call(self._log.metrics)

    async def sync(self, timeout: float | None = None) -> None:
        """As ``Log.sync``."""
        await self._worker.call_alone(self._log.sync, timeout)

    async def close(self, _: BaseException | None = None) -> None:
        """As ``Log.close``."""
        if not self._worker.closed:
            await self._worker.call_alone(self._log.close)
            self._worker.close()


class Found:
    """Records that match, as an asynchronous iterator (``tiered.reader.Found`` for asyncio)."""

    def __init__(self, found: sync_reader.Found, worker: Worker) -> None:
        self.report = found.report
        self._records = worker.iterate(lambda: iter(found))

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self._records


class Reader:
    """Read-only view of one log (``tiered.reader.Reader`` for asyncio)."""

    def __init__(self, reader: sync_reader.Reader, worker: Worker) -> None:
        self._reader = reader
        self._worker = worker

    async def topics(self) -> dict[str, TopicInfo]:
        """As ``Reader.topics``."""
        return await self._worker.call(self._reader.topics)

    async def topic(self, name: str) -> Reads:
        """As ``Reader.topic``."""
        return Reads(await self._worker.call(self._reader.topic, name), self._worker)

    async def find(
        self,
        topic: str,
        *,
        key: bytes,
        since: Time | None = None,
        until: Time | None = None,
        partition: int | None = None,
    ) -> Found:
        """As ``Reader.find``: ``async for record in await reader.find(...)``; ``report`` is final at the end."""
        find = functools.partial(self._reader.find, key=key, since=since, until=until, partition=partition)
        return Found(await self._worker.call(find, topic), self._worker)

    async def to_arrow(
        self,
        topic: str,
        *,
        partition: int | None = None,
        since: Time | None = None,
        until: Time | None = None,
        columns: list[str] | None = None,
    ) -> pyarrow.Table:
        """As ``Reader.to_arrow``."""
        to_arrow = functools.partial(
            self._reader.to_arrow, partition=partition, since=since, until=until, columns=columns
        )
        return await self._worker.call(to_arrow, topic)

    async def close(self, _: BaseException | None = None) -> None:
        """As ``Reader.close``."""
        if not self._worker.closed:
            await self._worker.call(self._reader.close)
            self._worker.close()


def open(path: str | Path | Sequence[str | Path], remote: str | None = None, **options: Any) -> Opening[Log]:  # noqa: A001
    """As ``tiered.open``: ``async with aio.open(...) as log`` or ``log = await aio.open(...)``."""

    async def begin() -> Log:
        worker = Worker("log")
        try:
            return Log(await worker.call(sync_log.open, path, remote, **options), worker)
        except BaseException:
            worker.close()
            raise

    return Opening(begin, Log.close)


def open_reader(remote: str | None = None, **options: Any) -> Opening[Reader]:
    """As ``tiered.open_reader``."""

    async def begin() -> Reader:
        worker = Worker("reader")
        try:
            return Reader(await worker.call(sync_reader.open_reader, remote, **options), worker)
        except BaseException:
            worker.close()
            raise

    return Opening(begin, Reader.close)
