"""Time and threads that a simulation owns: an event loop on a fake clock, executors that run at once.

Nothing here waits and nothing runs beside anything else, so that a seed replays exactly.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import selectors
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from tiered.local.disk import files
from tiered.store.threads import ThreadPool
from tiered.testing.clock import FakeClock

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):  # not select(): a long session has descriptors above its limit
    """Instead of waiting for a time, the clock is moved by it."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("the loop waits for something that never comes")
        self.clock.advance(max(0.0, timeout))
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Timers follow the clock; what goes to a thread is done in place."""

    def __init__(self, clock: FakeClock) -> None:
        self._waiting = _Selector(clock)
        super().__init__(self._waiting)
        self._fake_clock = clock
        self.set_exception_handler(lambda *_: None)

    def leave(self) -> None:
        """From now on with a clock of its own: the order in which a dead process's tasks end is the interpreter's."""
        self._fake_clock = self._waiting.clock = FakeClock()

    def time(self) -> float:
        """The clock's."""
        return self._fake_clock.monotonic()

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # the base class declares a coroutine's type
        """At once, on this thread."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is the caller's, as from a thread
            future.set_exception(error)
        return future

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """As ``run_until_complete``, also below another loop that is running."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            return self.run_until_complete(work)
        finally:
            asyncio._set_running_loop(outer)


def _at_once(_: ThreadPool, work: Callable[..., T], *args: Any) -> Future[T]:
    """Runs it, as on a thread of its own: also an event loop, below another one that is running."""
    future: Future[T] = Future()
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        future.set_result(work(*args))
    except Exception as error:  # noqa: BLE001 - it is the caller's, as from a thread
        future.set_exception(error)
    finally:
        asyncio._set_running_loop(outer)
    return future


@contextlib.contextmanager
def without_threads() -> Iterator[None]:
    """The product's pools do their work on the thread that asks."""
    submit, turn = ThreadPool.submit, files._TURN
    files._TURN = itertools.count()  # temporary files are named as in the run before
    ThreadPool.submit = _at_once  # type: ignore[method-assign,assignment]  # what the product's pools have of it
    try:
        yield
    finally:
        files._TURN = turn
        ThreadPool.submit = submit  # type: ignore[method-assign]


class SimClock(FakeClock):
    """What sleeps lets the others of the world do what is due; the thread of an open log's timers sleeps for good."""

    def __init__(self, passed: Callable[[], None]) -> None:
        super().__init__()
        self._passed = passed

    def sleep(self, seconds: float) -> None:
        """Advances, then tells the world."""
        self.advance(max(0.0, seconds))
        self._passed()

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        """As a sleep, on the world's thread."""
        if threading.current_thread() is not threading.main_thread():
            return event.wait()
        if not event.is_set():
            self.sleep(seconds or 0.0)
        return event.is_set()


class StoreClock(FakeClock):
    """The store's own: it does not jump with the machine's."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._of = clock

    def now_ms(self) -> int:
        """Where it began, and the time since."""
        return int(self._wall_ms + self._of.monotonic() * 1000)
