"""A log that this process writes, for asyncio."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from tiered import log as sync_log
from tiered.aio.consumer import AsyncConsumer, open_consumer
from tiered.aio.topic import AsyncTopic
from tiered.aio.transaction import AsyncTransaction, begin
from tiered.aio.worker import Opening, ThreadPools, open_beside
from tiered.errors import NotFoundError
from tiered.metrics import Metric
from tiered.model import Positions, TopicPartition
from tiered.store.aio_driver import AioRunner
from tiered.transaction import DEFAULT_TIMEOUT_S

if TYPE_CHECKING:
    from tiered.clock import Clock, IdSource
    from tiered.config import LogConfig, S3Keywords, TopicConfig
    from tiered.consumer.log_assignment import CallersPositions
    from tiered.consumer.steps import ConsumerKeywords
    from tiered.engine.wait import UploaderComponent
    from tiered.local.disk.topics import TopicInfo


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
    """Run ``tiered.open``: ``async with aio.open(...) as log`` or ``log = await aio.open(...)``."""

    async def opening() -> AsyncLog:
        make = functools.partial(sync_log.open, path, create=create, uploader=uploader, config=config)
        log, worker, runner = await open_beside(
            "log", make, remote, deadline_seconds=deadline_seconds, clock=clock, ids=ids, s3=s3
        )
        return AsyncLog(log, worker, runner)

    return Opening(opening, _close)


_OPENED: weakref.WeakSet[AsyncLog] = weakref.WeakSet()


async def _close(log: AsyncLog, _: BaseException | None) -> None:
    await log.close()


class AsyncLog:
    """An open log (``tiered.log.Log`` for asyncio)."""

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
        """Return the log of ``Log.opened``. The log belongs to the event loop that opened it."""
        opened = sync_log.Log.opened(path)
        for log in list(_OPENED):
            if log._log is opened:
                return log
        raise NotFoundError(f"{path} is open, but not for asyncio", hint=f"tiered.Log.opened({str(path)!r}) returns it")

    @property
    def directory(self) -> Path:
        """Return ``Log.directory``."""
        return self._log.directory

    @property
    def remote(self) -> str | None:
        """Return ``Log.remote``."""
        return self._log.remote

    async def topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        create: bool = False,
        config: TopicConfig | Mapping[str, object] | None = None,
    ) -> AsyncTopic:
        """Run ``Log.topic``."""
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
        """Begin ``Log.transaction``."""
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
        """Open ``Log.consumer``: ``async with log.consumer("billing", "orders") as consumer``."""
        make = functools.partial(self._log._consumer_steps, group, topics, positions, options)
        return open_consumer(make, self._runner)

    def topics(self) -> dict[str, TopicInfo]:
        """Return the topics on this disk by name."""
        return self._log.topics()

    def positions(self) -> dict[TopicPartition, Positions]:
        """Return ``Log.positions()``."""
        return self._log.positions()

    async def delete_topic(self, name: str) -> None:
        """Run ``Log.delete_topic``."""
        await self._worker.call(self._log.delete_topic, name)

    def check_remote(self) -> None:
        """Run ``Log.check_remote``."""
        self._log.check_remote()

    async def wait_uploaded(self, ends: Mapping[TopicPartition, int], timeout_s: float | None) -> None:
        """Run ``Log.wait_uploaded``."""
        await self._worker.call_alone(self._log.wait_uploaded, ends, timeout_s)

    async def flush(self) -> None:
        """Run ``Log.flush``."""
        await self._worker.call(self._log.flush)

    async def metrics(self) -> list[Metric]:
        """Run ``Log.metrics``."""
        return await self._worker.call(self._log.metrics)

    async def sync(self, timeout: float | None = None) -> None:
        """Run ``Log.sync``."""
        await self._worker.call_alone(self._log.sync, timeout)

    async def close(self) -> None:
        """Run ``Log.close``."""
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
