"""An event loop on a daemon thread of the engine's, for callers without one.

The thread is no ``ThreadPoolExecutor``'s, and the loop's default executor is the product's own: the interpreter closes
neither of them when ``main`` ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from tiered.store.aio_driver import DaemonLoop
from tiered.store.threads import ThreadPool

LOOPS = 64
"""Limit of concurrent runs in one process."""

T = TypeVar("T")

_THREADS = ThreadPool(LOOPS, "tiered-engine")


def run_apart(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of the coroutine, run on a thread with an event loop of its own.

    An interrupt of the calling thread cancels it, and then waits for its end.
    """
    run = _Run(work)
    future: Future[T] | None = None
    try:
        future = _THREADS.submit(run.main)
        return future.result()
    except BaseException:
        if future is not None and not future.done():
            run.cancel()
            future.exception()
        raise


class _Run(Generic[T]):
    """One coroutine and its loop."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._runner = asyncio.Runner(loop_factory=DaemonLoop)
        self._loop = self._runner.get_loop()
        self._task: asyncio.Task[T] | None = None

    def main(self) -> T:
        """Run the coroutine on this thread."""
        with self._runner:
            self._task = self._loop.create_task(self._work())
            return self._loop.run_until_complete(self._task)

    def cancel(self) -> None:
        """Cancel it, from another thread."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            return  # the loop is closed: it has ended

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
