"""A log that this process writes, and read-only access, for asyncio."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from tiered import arguments
from tiered import log as sync_log
from tiered import reader as sync_reader
from tiered.aio.appending import AsyncTransaction, begin
from tiered.aio.consumer import AsyncConsumer, open_consumer
from tiered.aio.topic import AsyncTopic, AsyncTopicReads, one_by_one
from tiered.aio.worker import Opening, ThreadPools, open_with_store
from tiered.arrow.schema import arrow_table
from tiered.errors import NotFoundError
from tiered.format.kernels import ConsumerRecord
from tiered.metrics import Metric
from tiered.model import Positions, TopicPartition
from tiered.read.stream import TierStream
from tiered.read.topic import release_steps
from tiered.reader import FindReport
from tiered.store.aio_driver import AioRunner
from tiered.times import Time
from tiered.transaction import DEFAULT_TIMEOUT_S

if TYPE_CHECKING:
    import pyarrow

    from tiered.clock import Clock, IdSource
    from tiered.config import LogConfig, S3Keywords, TopicConfig
    from tiered.consumer.assignment import CallersPositions
    from tiered.consumer.steps import ConsumerKeywords
    from tiered.engine.wait import UploaderComponent
    from tiered.errors import TieredError
    from tiered.group.member import GroupSettings
    from tiered.local.disk.topics import TopicInfo
    from tiered.remote.snapshots import KeptRoot


def open(  # noqa: A001  (the word that users expect: aio.open)
    path: str | Path | Sequence[str | Path],
    remote: str | None = None,
    *,
    create: bool = True,
    uploader: UploaderComponent | None = None,
    deadline_seconds: float | None = None,
    config: LogConfig | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    **s3: Unpack[S3Keywords],
) -> Opening[AsyncLog]:
    """Open the log directory ``path`` for writing: ``async with aio.open(...) as log``, or ``await aio.open(...)``.

    ``remote``: URL of the bucket. ``create``: create a missing directory. ``uploader``: uploader to run in-process.
    ``deadline_seconds`` (30): longest time for the retries of a request. ``config``: settings of the log directory.
    ``s3``: settings of S3, such as ``endpoint_url``. Raises LockedError if the directory is open for writing already,
    NotFoundError if it or the bucket is missing, and the other errors of ``tiered.open``.
    """

    async def opening() -> AsyncLog:
        make = functools.partial(sync_log.open, path, create=create, uploader=uploader, config=config)
        log, worker, runner = await open_with_store(
            "log", make, remote, deadline_seconds=deadline_seconds, clock=clock, ids=ids, s3=s3
        )
        return AsyncLog(log, worker, runner)

    return Opening(opening, _close)


_OPENED: weakref.WeakSet[AsyncLog] = weakref.WeakSet()


async def _close(log: AsyncLog, error: BaseException | None) -> None:
    with sync_log.closing_after(error, log.directory):
        await log.close()


class AsyncLog:
    """Open log: topics, transactions, consumers, flush and sync (``tiered.log.Log`` for asyncio)."""

    def __init__(self, log: sync_log.Log, worker: ThreadPools, runner: AioRunner) -> None:
        self._log = log
        self._worker = worker
        self._runner = runner

        _OPENED.add(self)

    def __dir__(self) -> list[str]:
        return dir(self._log)

    def __repr__(self) -> str:
        return repr(self._log)

    @classmethod
    def opened(cls, path: str | Path) -> AsyncLog:
        """Return the log that this process has open at ``path``. Use it only on the event loop that opened it.

        Raises NotFoundError if this process has not opened it, or opened it without asyncio.
        """
        opened = sync_log.Log.opened(path)
        for log in list(_OPENED):
            if log._log is opened:
                return log
        raise NotFoundError(f"{path} is open, but not for asyncio", hint=f"tiered.Log.opened({str(path)!r}) returns it")

    @property
    def directory(self) -> Path:
        """Return the path of the log directory, the first one if there are several."""
        return self._log.directory

    @property
    def remote(self) -> str | None:
        """Return the store's URL; None for a log that is only local."""
        return self._log.remote

    async def topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        create: bool = False,
        config: TopicConfig | Mapping[str, object] | None = None,
    ) -> AsyncTopic:
        """Open the topic ``name``. ``create``: create it if it does not exist (``partitions`` defaults to 1).

        For an existing topic ``partitions`` is a minimum. ``config``: settings that it must have, or is created with.
        Raises UnknownTopicError for a missing topic without ``create``, and the other errors of ``Log.topic``.
        """
        find = functools.partial(self._log.topic, name, partitions=partitions, create=create, config=config)
        topic = await self._worker.call_alone(find)  # it may wait for the bucket, and appends need their threads
        return AsyncTopic(topic, self._worker, self._runner)

    def transaction(
        self,
        transactional_id: str,
        *,
        topic: AsyncTopic | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        durability: str = "disk",
    ) -> Opening[AsyncTransaction]:
        """Return a transaction over topics of this log. It begins at its ``await`` or ``async with``.

        ``topic``: topic of the appends that name none. ``timeout``: seconds after which an open transaction is aborted.
        ``durability``: "disk" or "remote", which ``commit`` waits for. Asynchronous form of ``Log.transaction``.
        """
        sync_topic = topic._topic if isinstance(topic, AsyncTopic) else topic
        make = functools.partial(self._log.transaction, topic=sync_topic, timeout=timeout, durability=durability)
        return begin(functools.partial(make, transactional_id), self._worker, durability)

    def consumer(
        self,
        group: str,
        topics: str | Iterable[str] = (),
        *,
        positions: CallersPositions | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> Opening[AsyncConsumer]:
        """Return a consumer of ``topics`` that begins at the positions of ``group``. Use ``async with``.

        ``positions``: a mapping or a pair of functions that stores the positions instead of the log. ``options``: such
        as ``start`` and ``isolation`` (:class:`tiered.consumer.steps.ConsumerKeywords`). Raises UnknownTopicError,
        ConfigError for a wrong option, and the other errors of ``Log.consumer``.
        """
        make = functools.partial(self._log._consumer_steps, group, topics, positions, options)
        return open_consumer(make, self._runner)

    def topics(self) -> dict[str, TopicInfo]:
        """Return the topics on this disk by name."""
        return self._log.topics()

    def positions(self) -> dict[TopicPartition, Positions]:
        """Return start and ends (:class:`tiered.model.Positions`) of each partition on this disk that is in service."""
        return self._log.positions()

    async def delete_topic(self, name: str) -> None:
        """Delete a topic of a log without a bucket. Its files are unlinked after ``file.delete.delay.ms``.

        Raises UnknownTopicError, and ConfigError for a log with a bucket or an internal topic.
        """
        await self._worker.call(self._log.delete_topic, name)

    async def flush(self) -> None:
        """Fsync every partition: records appended before the call survive a power cut of this machine.

        Buffered records of appenders are written first. If that fails, their ``flush`` raises the error, not this call.
        """
        await self._worker.call(self._log.flush)

    async def metrics(self) -> list[Metric]:
        """Return current metrics of the disk, partitions, background tasks, compaction and requests to the store."""
        return await self._worker.call(self._log.metrics)

    async def sync(self, timeout: float | None = None) -> None:
        """Seal and upload all records appended so far, and wait for their commit (``Log.sync`` for asyncio).

        Requests to an unreachable store are retried for ``timeout`` seconds. None: ``deadline_seconds`` of ``open``.
        Raises DataLocalError if some records are still only local after ``timeout``, and the other errors of
        ``Log.sync``.
        """
        await self._worker.call_alone(self._log.sync, timeout)

    async def close(self) -> None:
        """Write buffered records, flush, stop the uploader and release the lock, without an upload. Safe to call again.

        The first error of an appender is raised after all is closed.
        """
        if self._worker.closed:
            return
        ended = True
        try:
            await self._worker.finish_alone(self._log.close)
        except asyncio.CancelledError:
            raise  # the thread continues to the end
        except BaseException:
            ended = self._log._ended  # an interrupted close is completed by the next call
            raise
        finally:
            if ended:
                self._worker.close()
                if self._runner.store is not None:
                    await self._runner.store.close()


def open_reader(
    remote: str | None = None,
    *,
    log_dir: str | Path | None = None,
    as_of: Time | None = None,
    pin: bool = False,
    deadline_seconds: float | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    **s3: Unpack[S3Keywords],
) -> Opening[AsyncReader]:
    """Open ``remote`` (a URL), ``log_dir`` (a directory on this machine) or both for reading, with ``async with``.

    ``as_of``: a snapshot's name, a version or a time. ``pin``: protect each read from garbage collection.
    ``deadline_seconds``: longest time for the retries of a request. ``s3``: settings such as ``endpoint_url``.
    Raises ConfigError for wrong arguments, NotFoundError for a missing directory, and RemotePermissionError. The first
    read finds a missing bucket.
    """

    async def opening() -> AsyncReader:
        make = functools.partial(sync_reader.open_reader, log_dir=log_dir, as_of=as_of, pin=pin)
        reader, worker, runner = await open_with_store(
            "reader", make, remote, deadline_seconds=deadline_seconds, clock=clock, ids=ids, s3=s3
        )
        return AsyncReader(reader, worker, runner)

    return Opening(opening, _close_reader)


async def _close_reader(reader: AsyncReader, _: BaseException | None) -> None:
    await reader.close()


class AsyncFindResult:
    """Records with a key, for one ``async for`` (``tiered.reader.FindResult`` for asyncio)."""

    def __init__(self, report: FindReport, records: AsyncGenerator[ConsumerRecord, None]) -> None:
        self.report = report
        self._records = records

    def __repr__(self) -> str:
        return f"FindResult(report={self.report!r})"

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self._records


class AsyncReader:
    """Read-only view of one log (``tiered.reader.Reader`` for asyncio)."""

    def __init__(self, reader: sync_reader.Reader, worker: ThreadPools, runner: AioRunner) -> None:
        self._reader = reader
        self._worker = worker
        self._runner = runner

    def __dir__(self) -> list[str]:
        return dir(self._reader)

    def __repr__(self) -> str:
        return repr(self._reader)

    def _repr_html_(self) -> str:
        return self._reader._repr_html_()

    async def topics(self, unreadable: dict[str, TieredError] | None = None) -> dict[str, TopicInfo]:
        """Return the topics of both tiers by name.

        ``unreadable``: a dictionary that gets the errors of damaged registry entries by name. Without it such an
        error is raised: CorruptionError, or ConfigError for the entry of a newer release.
        """
        self._worker.check_open()
        return await self._runner.run(self._reader._topics_steps(unreadable))

    async def topic(self, name: str) -> AsyncTopicReads:
        """Return the topic ``name``, to read from. Raises UnknownTopicError if neither the bucket nor the disk has it.

        Asynchronous form of ``Reader.topic``, with its other errors.
        """
        self._worker.check_open()
        return AsyncTopicReads(await self._runner.run(self._reader._topic_steps(name)), self._worker, self._runner)

    async def taken(self, topic: str, *, partition: int | None = None) -> dict[TopicPartition, KeptRoot]:
        """Return the past version that a reader with ``as_of`` reads, of each partition or of ``partition`` alone.

        Raises NotFoundError if no stored version matches or its objects were deleted, ConfigError without ``as_of``.
        """
        self._worker.check_open()
        return await self._runner.run(self._reader._taken_steps(topic, arguments.partition_or_none(partition)))

    async def find(
        self,
        topic: str,
        *,
        key: bytes,
        since: Time | None = None,
        until: Time | None = None,
        partition: int | None = None,
    ) -> AsyncFindResult:
        """Return the records with this key: ``async for record in await reader.find(...)``.

        ``since``, ``until``: half-open range of times; None: no bound. ``partition`` None: all. The result's ``report``
        is final when the loop has ended. Asynchronous form of ``Reader.find``.
        """
        self._worker.check_open()
        report = FindReport(topic)
        opened: list[TierStream] = []
        steps = await self._runner.run(
            self._reader._find_steps(opened, topic, report, key=key, since=since, until=until, partition=partition)
        )
        return AsyncFindResult(report, one_by_one(self._runner.stream(steps, functools.partial(release_steps, opened))))

    async def to_arrow(
        self,
        topic: str,
        *,
        partition: int | None = None,
        since: Time | None = None,
        until: Time | None = None,
        columns: list[str] | None = None,
    ) -> pyarrow.Table:
        """Return the records as a ``pyarrow.Table``. ``columns``: columns to decode; None: all.

        ``since``, ``until``: half-open range of times; None: no bound. ``partition`` None: all.
        Needs the extra ``arrow``. The whole table is in memory.
        """
        self._worker.check_open()
        opened: list[TierStream] = []
        names, steps = self._reader._arrow_steps(
            opened, topic, partition=partition, since=since, until=until, columns=columns
        )
        async with aclosing(self._runner.stream(steps, functools.partial(release_steps, opened))) as pieces:
            found = [batch async for piece in pieces for batch in piece]
        return arrow_table(found, names)

    def consumer(
        self,
        group: str,
        topics: str | Iterable[str] = (),
        *,
        member: str | None = None,
        times: GroupSettings | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> Opening[AsyncConsumer]:
        """Return a consumer that shares the partitions of ``topics`` with all members of ``group``. Use ``async with``.

        Positions are stored in the bucket. ``member``: readable name of this member; None: host and process.
        ``times``: intervals of heartbeats and leases, equal for all members. ``options``: such as ``start``
        (:class:`tiered.consumer.steps.ConsumerKeywords`). Raises UnknownTopicError, ConfigError for a wrong option and
        for a reader of a disk or of a past version.
        """
        self._worker.check_open()
        make = functools.partial(self._reader._consumer_steps, group, topics, member, times, options)
        return open_consumer(make, self._runner)

    def requests(self) -> dict[str, int]:
        """Return the number of requests to the store so far, by operation."""
        return self._reader.requests()

    async def close(self) -> None:
        """Release files and connections, leave groups, and delete the pins of unfinished reads. Safe to call again."""
        if not self._worker.closed:
            try:
                await self._worker.finish_alone(self._reader.close)
            finally:
                self._worker.close()
                if self._runner.store is not None:
                    await self._runner.store.close()
