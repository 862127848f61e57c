"""Transactions for asyncio: appends and the commit run on the log's threads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from tiered.aio.consumer import AsyncConsumer
from tiered.aio.worker import Opening, ThreadPools
from tiered.model import Headers, RecordMetadata
from tiered.times import Time
from tiered.transaction import AppendRecord, Transaction


class AsyncTransaction:
    """A transaction (``tiered.transaction.Transaction`` for asyncio). The end of its block commits or aborts."""

    def __init__(self, txn: Transaction, worker: ThreadPools, durability: str) -> None:
        self._txn = txn
        self._worker = worker
        self._durability = durability
        self.transactional_id = txn.transactional_id

    def __repr__(self) -> str:
        return repr(self._txn)

    @property
    def state(self) -> str:
        """Return ``Transaction.state``."""
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
        """Run ``Transaction.append``."""
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
        """Run ``Transaction.append_many``."""
        return await self._worker.call(self._txn.append_many, records, partition=partition, topic=topic)

    async def commit_positions(self, consumer: AsyncConsumer) -> None:
        """Run ``Transaction.commit_positions``."""
        await self._worker.call(self._txn.commit_positions, consumer)

    async def commit(self) -> None:
        """Run ``Transaction.commit``."""
        await self._worker.write(self._durability, self._txn.commit)

    async def abort(self) -> None:
        """Run ``Transaction.abort``."""
        await self._worker.call(self._txn.abort)

    async def _leave(self, error: BaseException | None) -> None:
        """End the block. Cancelled before a thread has begun to commit, it aborts."""
        leave = functools.partial(self._txn.__exit__, type(error) if error else None, error, None)
        waits = self._durability == "remote"
        await self._worker.finish(leave, waits=waits, instead=self._txn._abort_after_error)


def begin(begin: Callable[[], Transaction], worker: ThreadPools, durability: str) -> Opening[AsyncTransaction]:
    """Return a transaction that begins with its block."""

    async def opening() -> AsyncTransaction:
        return AsyncTransaction(await worker.call(begin), worker, durability)

    return Opening(opening, AsyncTransaction._leave)
