"""Buffered appenders and transactions for asyncio: their calls run on the threads of the log."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Generator, Iterable
from typing import Any

from tiered import arguments
from tiered.aio.consumer import AsyncConsumer
from tiered.aio.worker import Opening, ThreadPools
from tiered.appending.appender import Appender
from tiered.appending.receipt import Receipt
from tiered.errors import TieredError
from tiered.model import Headers, RecordMetadata
from tiered.times import Time
from tiered.transaction import AppendRecord, Transaction


class AsyncTransaction:
    """A transaction (``tiered.transaction.Transaction`` for asyncio).

    The end of its ``async with`` block commits. An exception in the block aborts.
    """

    def __init__(self, txn: Transaction, worker: ThreadPools, durability: str) -> None:
        self._txn = txn
        self._worker = worker
        self._durability = durability
        self.transactional_id = txn.transactional_id

    def __repr__(self) -> str:
        return repr(self._txn)

    @property
    def state(self) -> str:
        """Return "open", "committed", "aborted", or "unknown" (a commit was interrupted or not confirmed)."""
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
        """Append one record to ``topic`` (None: the topic that the transaction was made from) and return its position.

        Asynchronous form of ``Transaction.append``, with its errors.
        """
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
        """Append ``records``, one batch for each partition. Return one position for each batch, in order of partitions.

        A record is a ``NewRecord``, a (value, key) pair, or a value. ``partition`` None: each record's key decides.
        ``topic`` None: the topic that the transaction was made from. Asynchronous form of ``Transaction.append_many``,
        with its errors.
        """
        return await self._worker.call(self._txn.append_many, records, partition=partition, topic=topic)

    async def commit_positions(self, consumer: AsyncConsumer) -> None:
        """Commit the positions of ``consumer`` with this transaction: all of it is committed, or nothing.

        Raises ConfigError if the positions of ``consumer`` are not stored in this log, and the errors of
        :meth:`append`.
        """
        await self._worker.call(self._txn.commit_positions, consumer)

    async def commit(self) -> None:
        """Commit the transaction: all of it is then visible and on disk; with durability "remote" also in the bucket.

        Asynchronous form of ``Transaction.commit``, with its errors. After a cancelled call it may be committed.
        """
        await self._worker.write(self._durability, self._txn.commit)

    async def abort(self) -> None:
        """Abort the transaction: ``read_committed`` never sees any of it. Do nothing if the transaction has ended."""
        await self._worker.call(self._txn.abort)

    async def _leave(self, error: BaseException | None) -> None:
        """Commit at the end of the block, or abort if it ends with ``error``."""
        leave = functools.partial(self._txn.__exit__, type(error) if error else None, error, None)
        waits = self._durability == "remote"
        await self._worker.finish(leave, waits=waits, instead=self._txn._abort_after_error)


def begin(begin: Callable[[], Transaction], worker: ThreadPools, durability: str) -> Opening[AsyncTransaction]:
    """Return a transaction for ``await`` or ``async with``, at which the function ``begin`` runs on a thread.

    ``durability`` "remote": ``commit`` runs on a thread for long waits.
    """

    async def opening() -> AsyncTransaction:
        return AsyncTransaction(await worker.call(begin), worker, durability)

    return Opening(opening, AsyncTransaction._leave)


class AsyncReceipt:
    """Result of a buffered append (``tiered.appending.receipt.Receipt`` for asyncio). ``await receipt`` works, too."""

    __slots__ = ("_receipt",)

    def __init__(self, receipt: Receipt) -> None:
        self._receipt = receipt

    def __repr__(self) -> str:
        return repr(self._receipt)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return self.result().__await__()

    @property
    def partition(self) -> int:
        """Return the record's partition, which is known before the record is written."""
        return self._receipt.partition

    @property
    def offset(self) -> int | None:
        """Return the offset, None until the record is in the log. It stays None if the record failed."""
        return self._receipt.offset

    @property
    def timestamp(self) -> int | None:
        """Return the timestamp in ms, None until the record is in the log. It stays None if the record failed."""
        return self._receipt.timestamp

    def done(self) -> bool:
        """Return True once the record is in the log (``durability="disk"``: and fsynced) or has failed."""
        return self._receipt.done()

    async def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is in the log, at most ``timeout`` seconds (None: no limit), and return its position.

        Raises the error of the record, and AppendTimeoutError after ``timeout``: the record may still be written.
        """
        await self._wait(timeout)
        return self._receipt.result()

    async def exception(self, timeout: float | None = None) -> TieredError | None:
        """Wait until the record is in the log or has failed. Return its error, None if it is in the log.

        Raises AppendTimeoutError after ``timeout`` seconds (None: no limit).
        """
        await self._wait(timeout)
        return self._receipt.exception()

    async def _wait(self, timeout_s: float | None) -> None:
        """Wait until the record is in the log or has failed."""
        timeout_s = arguments.seconds_or_none("timeout", timeout_s)
        if self._receipt.done():
            return
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and its tasks with it
                loop.call_soon_threadsafe(done.set)

        if self._receipt._when_done(wake):
            try:
                async with asyncio.timeout(timeout_s):
                    await done.wait()
            except TimeoutError:
                if not self._receipt.done():
                    raise self._receipt._late(timeout_s) from None


class AsyncAppender:
    """Buffered appender (``tiered.appending.appender.Appender`` for asyncio). Records of one task keep their order."""

    def __init__(self, appender: Appender, worker: ThreadPools) -> None:
        self._appender = appender
        self._worker = worker

    def __repr__(self) -> str:
        return repr(self._appender)

    @property
    def buffered_bytes(self) -> int:
        """Return the bytes of records that are not in the log yet: at most ``buffer_bytes``, or one larger record."""
        return self._appender.buffered_bytes

    async def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: Time | None = None,
        headers: Headers | None = None,
    ) -> AsyncReceipt:
        """Buffer one record and return its receipt. Waits only while the buffer is full.

        The record of a cancelled call may be written. Raises AppendTimeoutError after ``max_block_ms`` without room,
        and the errors of ``Appender.append``.
        """
        self._worker.check_open()
        taken = self._appender._buffer(value, key, partition, timestamp, headers)
        if taken is None:
            taken = await self._worker.call_waiting(
                self._appender.append, value, key=key, partition=partition, timestamp=timestamp, headers=headers
            )
        return AsyncReceipt(taken)

    async def flush(self, *, durability: str | None = None) -> None:
        """Write all buffered records, and wait until they have ``durability`` (None: that of the appender).

        Raises the first error of a record since the last flush.
        """
        await self._worker.call_waiting(self._appender.flush, durability=durability)

    async def close(self) -> None:
        """Write all buffered records and close the appender. Raises the errors of :meth:`flush`. Safe to call again."""
        await self._worker.finish(self._appender.close, waits=True)

    async def _leave(self, error: BaseException | None) -> None:
        leave = functools.partial(self._appender.__exit__, type(error) if error else None, error, None)
        await self._worker.finish(leave, waits=True)


def open_appender(make: Callable[[], Appender], worker: ThreadPools) -> Opening[AsyncAppender]:
    """Return an appender for ``await`` or ``async with``, at which the function ``make`` creates it."""

    async def opening() -> AsyncAppender:
        worker.check_open()
        return AsyncAppender(make(), worker)

    return Opening(opening, AsyncAppender._leave)
