"""An event loop on a daemon thread of the engine's, for callers without one.

The thread is no ``ThreadPoolExecutor``'s, and the loop's default executor is the product's own: the interpreter closes
neither of them when ``main`` ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from tiered.format.locks import SafeEvent
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
    try:
        _THREADS.submit(run.main)
        return run.result()
    except BaseException:
        run.cancel()
        raise


class _Run(Generic[T]):
    """One coroutine and its loop, which its thread makes: an interrupted caller leaves no loop open.

    The caller waits for a :class:`SafeEvent`: an interrupt would leave the condition of a ``Future`` unlocked.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._begun = False
        self._ended = SafeEvent()
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False

    def main(self) -> None:
        """Run the coroutine on this thread, unless it is cancelled already."""
        self._begun = True
        try:
            if not self._cancelled:  # looked at after ``_begun`` is set: a cancel waits, or nothing runs
                self._results.append(self._run())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            self._error = error
        finally:
            self._ended.set()

    def result(self) -> T:
        """Wait for the end. Return the coroutine's result, or raise its error."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> T:
        with asyncio.Runner(loop_factory=DaemonLoop) as runner:
            loop = runner.get_loop()
            self._task = loop.create_task(self._work())
            self._loop = loop
            if self._cancelled:  # looked at after the loop is known: no cancel falls between the two
                self._task.cancel()
            return loop.run_until_complete(self._task)

    def cancel(self) -> None:
        """Cancel the coroutine, from another thread, and wait for its end."""
        self._cancelled = True
        if not self._begun or self._ended.is_set():
            return
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the coroutine has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._ended.wait()
