"""Threads for the blocking calls of an asyncio log, and the awaitable result of ``aio.open``."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from tiered.errors import ClosedError
from tiered.store.aio_driver import AioRunner
from tiered.store.base import AioStore
from tiered.store.location import StoreLocation
from tiered.store.threads import ThreadPool

if TYPE_CHECKING:
    from tiered.clock import Clock, IdSource
    from tiered.config import S3Keywords
    from tiered.store.options import StoreOptions

WORKER_THREADS = 4
"""Threads of one open log or reader. Further calls wait for one."""
WAITING_THREADS = 16
"""Threads of one log for calls that wait for ``durability="remote"`` or appenders. Further calls wait for one."""

T = TypeVar("T")
P = ParamSpec("P")


class SyncFace(Protocol):
    """Synchronous log or reader that an asyncio object wraps."""

    @property
    def store_options(self) -> StoreOptions: ...
    def close(self) -> None: ...


F = TypeVar("F", bound=SyncFace)


class ThreadPools:
    """Pools of threads for the blocking calls of one asyncio log or reader."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPool(WORKER_THREADS, f"tiered-aio-{name}")
        self._waiting = ThreadPool(WAITING_THREADS, f"tiered-aio-{name}-wait")
        self.closed = False

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(self._pool, functools.partial(function, *args, **kwargs))

    async def write(self, durability: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an append on a thread. If its durability waits for a commit, use a thread for long waits."""
        pool = self._waiting if durability == "remote" else self._pool
        return await self._run(pool, functools.partial(function, *args, **kwargs))

    async def call_waiting(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that may wait long, on a thread for long waits."""
        return await self._run(self._waiting, functools.partial(function, *args, **kwargs))

    async def call_alone(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call on a new thread, so that it does not queue after waiting calls."""
        with _alone() as pool:
            return await self._run(pool, functools.partial(function, *args, **kwargs))

    async def make(self, function: Callable[[], T], dispose: Callable[[T], None]) -> T:
        """Make a resource on a thread and return it.

        If the caller is cancelled meanwhile, pass the resource to ``dispose``.
        """
        self.check_open()
        making = self._pool.submit(function)
        try:
            return await asyncio.wrap_future(making)
        except asyncio.CancelledError:
            if not making.cancel():
                self._pool.submit(_close_resource, making, dispose)
            raise

    async def finish(
        self, function: Callable[[], None], *, waits: bool, instead: Callable[[], None] | None = None
    ) -> None:
        """Run a closing call on a thread. ``waits``: it may wait long.

        If the caller is cancelled before a thread has begun it, ``instead`` still runs (None: the call itself).
        """
        self.check_open()
        await _to_its_end(self._waiting if waits else self._pool, function, instead or function)

    async def finish_alone(self, function: Callable[[], None]) -> None:
        """Run a closing call on a new thread, so that it does not queue after waiting calls.

        A cancellation does not stop it.
        """
        self.check_open()
        with _alone() as pool:
            await _to_its_end(pool, function, function)

    async def _run(self, pool: ThreadPool, work: Callable[[], T]) -> T:
        self.check_open()
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def check_open(self) -> None:
        """Raise ClosedError if the log or reader is closed."""
        if self.closed:
            raise ClosedError("the call was not made: its log or reader was closed", hint="open it again")

    def close(self) -> None:
        self.closed = True
        self._pool.shutdown(wait=False)
        self._waiting.shutdown(wait=False)


@contextlib.contextmanager
def _alone() -> Iterator[ThreadPool]:
    """Yield a pool with one new thread, for one call. The thread ends after the call, even if no caller waits."""
    pool = ThreadPool(1, "tiered-aio-alone")
    try:
        yield pool
    finally:
        pool.shutdown(wait=False)


def _close_resource(making: Future[T], dispose: Callable[[T], None]) -> None:
    """Pass the result of ``making`` to ``dispose``, unless it failed."""
    if making.exception() is None:
        dispose(making.result())


async def _to_its_end(pool: ThreadPool, function: Callable[[], None], instead: Callable[[], None]) -> None:
    ending = pool.submit(function)
    try:
        await asyncio.wrap_future(ending)
    except asyncio.CancelledError:
        if ending.cancel():  # no thread has begun it
            with contextlib.suppress(RuntimeError):  # the log was closed meanwhile, and everything of it
                pool.submit(instead)
        raise


class Opening(Awaitable[T]):
    """Result of ``aio.open`` and similar functions.

    ``await`` it, or use it in ``async with``, which closes the object.
    """

    def __init__(
        self, opening: Callable[[], Awaitable[T]], close: Callable[[T, BaseException | None], Awaitable[None]]
    ) -> None:
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
            await self._close(self._opened, error)


async def open_with_store(
    name: str,
    make: Callable[..., F],
    remote: str | None,
    *,
    deadline_seconds: float | None,
    clock: Clock | None,
    ids: IdSource | None,
    s3: S3Keywords,
) -> tuple[F, ThreadPools, AioRunner]:
    """Open a log or reader with ``make`` on a thread, and the bucket ``remote`` (None: none) for the event loop.

    Return the log or reader, its thread pools, and the runner of steps on the bucket. If the bucket cannot be opened,
    the log or reader is closed. ``name``: "log" or "reader", for the names of the threads. ``make`` gets all other
    arguments by name.
    """
    worker = ThreadPools(name)
    try:
        begin = functools.partial(make, remote=remote, deadline_seconds=deadline_seconds, clock=clock, ids=ids, **s3)
        face = await worker.make(begin, lambda made: made.close())
        try:
            store: AioStore | None = None
            if remote is not None:
                options = dataclasses.replace(face.store_options, create=False)
                store = StoreLocation.parse(remote, **s3).open_aio(options)
        except BaseException:
            await worker.call(face.close)
            raise
    except BaseException:
        worker.close()
        raise
    return face, worker, AioRunner(store, clock, ids)
