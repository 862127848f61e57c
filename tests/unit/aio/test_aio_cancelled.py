"""Calls of the asyncio facade that are cancelled: nothing stays open that nobody holds, and endings still come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import tiered
from tiered import aio
from tiered.aio import log as aio_log
from tiered.store.threads import ThreadPool

PATIENCE_S = 30.0


@asynccontextmanager
async def busy(pool: ThreadPool) -> AsyncIterator[None]:
    """All threads of a pool have something to do until the end of the block; what was given to it is done then."""
    free = threading.Event()
    for _ in range(pool._max_workers):
        pool.submit(free.wait)
    try:
        yield
    finally:
        free.set()
        await asyncio.to_thread(pool.shutdown)


async def cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Held:
    """What is opened, and held back, until ``go`` is set; ``closed`` is set once it is closed."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self.begun, self.go, self.closed = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = self._make(*args, **kwargs)
        close = made.close

        def closing() -> None:
            close()
            self.closed.set()

        made.close = closing
        self.begun.set()
        assert self.go.wait(PATIENCE_S)
        return made


async def test_a_log_that_opens_after_its_caller_was_cancelled_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(tiered.open)
    monkeypatch.setattr(aio_log.sync_log, "open", held)
    opening = asyncio.ensure_future(aio.open(tmp_path / "log", remote=f"file://{tmp_path / 'store'}"))
    assert await asyncio.to_thread(held.begun.wait, PATIENCE_S)
    await cancelled(opening)
    held.go.set()
    assert await asyncio.to_thread(held.closed.wait, PATIENCE_S)
    monkeypatch.undo()
    async with aio.open(tmp_path / "log") as log:  # nobody holds the directory
        assert (await (await log.topic("t", create=True)).append(b"v")).offset == 0


async def test_an_open_that_fails_after_its_caller_was_cancelled_is_nobodys_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()

    def refuse(*_: object, **__: object) -> None:
        begun.set()
        assert go.wait(PATIENCE_S)
        raise tiered.errors.ConfigError("no")

    monkeypatch.setattr(aio_log.sync_log, "open", refuse)
    opening = asyncio.ensure_future(aio.open(tmp_path / "log"))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    await cancelled(opening)
    go.set()


async def test_a_block_that_is_cancelled_before_its_commit_began_aborts(tmp_path: Path) -> None:
    """Not only when ``timeout`` is over: until then nobody who reads committed records sees what comes behind."""
    async with aio.open(tmp_path / "log") as log:
        topic = await log.topic("t", create=True)
        appended, leave = asyncio.Event(), asyncio.Event()

        async def block() -> None:
            async with topic.transaction("x", timeout=900) as txn:
                await txn.append(b"v")
                appended.set()
                await leave.wait()

        task = asyncio.create_task(block())
        await appended.wait()
        async with busy(log._worker._pool):
            leave.set()
            await turns(3)  # the commit waits for a thread
            await cancelled(task)
        partition = topic.log(0)
        assert partition.last_stable_offset() == partition.positions().end_offset == 2  # the record and its marker
        assert [r async for r in topic.read(isolation="read_committed")] == []


@pytest.mark.parametrize("by_hand", [False, True])
async def test_an_appender_whose_end_is_cancelled_is_closed_all_the_same(tmp_path: Path, *, by_hand: bool) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.topic("t", create=True)
        appended, leave = asyncio.Event(), asyncio.Event()
        taken: list[tuple[aio.Appender, aio.Receipt]] = []

        async def append(appender: aio.Appender) -> None:
            taken.append((appender, await appender.append(b"v")))
            appended.set()
            await leave.wait()

        async def block() -> None:
            if by_hand:
                appender = await topic.appender(linger_ms=3_600_000)
                await append(appender)
                await appender.close()
            else:
                async with topic.appender(linger_ms=3_600_000) as appender:
                    await append(appender)

        task = asyncio.create_task(block())
        await appended.wait()
        async with busy(log._worker._waiting):
            leave.set()
            await turns(3)
            await cancelled(task)
        assert taken[0][1].offset == 0
        assert repr(taken[0][0]._appender) == "<Appender 't' closed>"


async def test_a_log_whose_close_is_cancelled_before_a_thread_began_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await aio.open(tmp_path / "log")
    pool = ThreadPool(1, "closing")
    monkeypatch.setattr("tiered.aio.worker.ThreadPool", lambda *_, **__: pool)
    monkeypatch.setattr(pool, "shutdown", lambda **_: None)
    free = threading.Event()
    pool.submit(free.wait)
    closing = asyncio.create_task(log.close())
    await turns(2)
    await cancelled(closing)
    free.set()
    await asyncio.wrap_future(pool.submit(lambda: None))  # behind it
    monkeypatch.undo()
    pool.shutdown()
    tiered.open(tmp_path / "log").close()
