"""Read-only access for asyncio."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from tiered import arguments
from tiered import reader as sync_reader
from tiered.aio.consumer import AsyncConsumer, open_consumer
from tiered.aio.topic import AsyncTopicReads, one_by_one
from tiered.aio.worker import Opening, ThreadPools, open_beside
from tiered.arrow.schema import arrow_table
from tiered.format.kernels import ConsumerRecord
from tiered.model import TopicPartition
from tiered.read.stream import TierStream
from tiered.read.topic import release_steps
from tiered.reader import FindReport
from tiered.store.aio_driver import AioRunner
from tiered.times import Time

if TYPE_CHECKING:
    import pyarrow

    from tiered.clock import Clock, IdSource
    from tiered.config import S3Keywords
    from tiered.consumer.steps import ConsumerKeywords
    from tiered.errors import TieredError
    from tiered.group.member import GroupSettings
    from tiered.local.disk.topics import TopicInfo
    from tiered.remote.snapshots import KeptRoot


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
    """Run ``tiered.open_reader``."""

    async def opening() -> AsyncReader:
        make = functools.partial(sync_reader.open_reader, log_dir=log_dir, as_of=as_of, pin=pin)
        reader, worker, runner = await open_beside(
            "reader", make, remote, deadline_seconds=deadline_seconds, clock=clock, ids=ids, s3=s3
        )
        return AsyncReader(reader, worker, runner)

    return Opening(opening, _close)


async def _close(reader: AsyncReader, _: BaseException | None) -> None:
    await reader.close()


class AsyncFindResult:
    """Asynchronous iterator of matching records (``tiered.reader.FindResult`` for asyncio)."""

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
        """Run ``Reader.topics``."""
        self._worker.check_open()
        return await self._runner.run(self._reader._topics_steps(unreadable))

    async def topic(self, name: str) -> AsyncTopicReads:
        """Run ``Reader.topic``."""
        self._worker.check_open()
        return AsyncTopicReads(await self._runner.run(self._reader._topic_steps(name)), self._worker, self._runner)

    async def taken(self, topic: str, *, partition: int | None = None) -> dict[TopicPartition, KeptRoot]:
        """Run ``Reader.taken``."""
        self._worker.check_open()
        return await self._runner.run(self._reader._taken_steps(topic, arguments.partition_or_none(partition)))

    async def beginning_offsets(self, topic: str) -> dict[TopicPartition, int]:
        """Run ``Reader.beginning_offsets``."""
        return await (await self.topic(topic)).beginning_offsets()

    async def end_offsets(self, topic: str) -> dict[TopicPartition, int]:
        """Run ``Reader.end_offsets``."""
        return await (await self.topic(topic)).end_offsets()

    async def offsets_for_times(self, topic: str, time: Time) -> dict[TopicPartition, tuple[int, int] | None]:
        """Run ``Reader.offsets_for_times``."""
        return await (await self.topic(topic)).offsets_for_times(time)

    async def find(
        self,
        topic: str,
        *,
        key: bytes,
        since: Time | None = None,
        until: Time | None = None,
        partition: int | None = None,
    ) -> AsyncFindResult:
        """Run ``Reader.find``: ``async for record in await reader.find(...)``. ``report`` is final at the end."""
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
        """Run ``Reader.to_arrow``."""
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
        """Open ``Reader.consumer``: ``async with reader.consumer("billing", "orders") as consumer``."""
        self._worker.check_open()
        make = functools.partial(self._reader._consumer_steps, group, topics, member, times, options)
        return open_consumer(make, self._runner)

    def requests(self) -> dict[str, int]:
        """Return ``Reader.requests()``."""
        return self._reader.requests()

    async def close(self) -> None:
        """Run ``Reader.close``."""
        if not self._worker.closed:
            try:
                await self._worker.finish_alone(self._reader.close)
            finally:
                self._worker.close()
                if self._runner.store is not None:
                    await self._runner.store.close()
