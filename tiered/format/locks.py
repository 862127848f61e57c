"""Locks that a signal handler cannot hang on and an exception cannot leave locked; the pure twins of the compiled ones.

A lock records the thread and the frame that acquired it. A thread that acquires a lock that it owns gets
ReentrantCallError at once. A frame that has ended without releasing its lock (an exception arrived between the last
instruction of a ``with`` block and the release) no longer owns it: the next caller gets the lock.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Callable
from types import FrameType

from tiered.clock import SystemClock
from tiered.errors import ReentrantCallError

_POLL_S = 0.05  # a waiting thread looks this often for a holder that has ended
_YIELD_S = 0.0001
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_TAKING_OVER = threading.RLock()


def has_ended(frame: FrameType | None) -> bool:
    """Return True if ``frame`` no longer runs. None, and the frame of a generator or coroutine, count as running."""
    if frame is None or frame.f_code.co_flags & _GENERATORS:
        return False
    try:
        frame.clear()  # refused while the frame is executing; afterwards only its locals are dropped
    except RuntimeError:
        return False
    return True


def reentrant_call() -> ReentrantCallError:
    """Return the error for a thread that acquires a lock that it owns already."""
    return ReentrantCallError(
        "a signal handler or finalizer called the log while this thread was inside another call of it",
        hint="let the handler set a flag or raise SystemExit, and call the log when it has returned",
    )


class _Waiters:
    """Threads that wait for a change. They share no lock that an exception could leave locked."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[threading.Lock] = []

    def wait(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Block until the next :meth:`wake`, or for ``seconds`` (-1: no limit). Return at once if ``is_over()``."""
        mine = threading.Lock()
        mine.acquire()
        self._waiting.append(mine)
        try:
            if not is_over():  # asked after the thread is on the list: no wake is missed
                mine.acquire(timeout=seconds)
        finally:
            self._waiting.remove(mine)

    def are_there(self) -> bool:
        """Return True if a thread waits."""
        return bool(self._waiting)

    def wake(self) -> None:
        """Wake every thread that waits."""
        for waiter in tuple(self._waiting):
            with contextlib.suppress(RuntimeError):  # another thread has woken it
                waiter.release()


class SafeEvent(threading.Event):
    """Event like ``threading.Event`` for signal handlers: an exception at any instruction cannot leave it locked."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiters = _Waiters()

    def is_set(self) -> bool:
        """Return True if the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event, and wake every thread that waits for it."""
        self._is_set = True
        self._waiters.wake()

    def clear(self) -> None:
        """Reset the event, so that the next :meth:`wait` blocks."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Return True once the event is set, False if it is not set within ``timeout`` seconds (None: no limit)."""
        if not self._is_set:
            left = -1.0 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
            self._waiters.wait(self.is_set, left)
        return self._is_set


class Signal(SafeEvent):
    """Wake-up of one waiter, a thread or a coroutine. It stays set until the waiter clears it.

    ``hook``: function that :meth:`set` calls, from any thread. The waiter installs it for the time of one wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hook: Callable[[], None] | None = None

    def set(self) -> None:
        """Set the signal: wakes the waiter, or ends its next wait at once."""
        if not self._is_set:
            super().set()
            hook = self.hook
            if hook is not None:
                hook()


class PlainLock:
    """Lock like ``threading.Lock`` that records its owner."""

    __slots__ = ("_holder", "_waiters")

    def __init__(self) -> None:
        self._waiters = _Waiters()
        self._holder: dict[bool, tuple[FrameType | None, int]] = {}

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock like ``threading.Lock.acquire``. Return False if the lock is not free in time.

        Another function may release the lock. Raises ReentrantCallError in the thread that owns the lock, if
        ``blocking`` without a timeout.
        """
        if timeout != -1 and not blocking:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if timeout < 0 and timeout != -1:
            raise ValueError("timeout value must be a non-negative number")
        if timeout > threading.TIMEOUT_MAX:
            raise OverflowError("timeout value is too large")
        return self._acquire(None, timeout if blocking else 0.0, raises=blocking and timeout == -1)

    def hold(self, seconds: float) -> bool:
        """Acquire the lock for the calling function, which must release it. Return False if it is not free within
        ``seconds``.

        ``seconds`` below 0: no limit. Raises ReentrantCallError in the thread that owns the lock.
        """
        return self._acquire(sys._getframe(1), seconds, raises=True)

    def release(self) -> None:
        if self._holder.pop(True, None) is None:
            raise RuntimeError("release unlocked lock")
        self._waiters.wake()

    def check_caller(self) -> None:
        """Raise ReentrantCallError if the calling thread owns the lock. Return at once in any other thread."""
        if self.hold(0):
            self.release()

    def _is_free(self) -> bool:
        return not self._holder

    def locked(self) -> bool:
        """Return True if a thread owns the lock."""
        return bool(self._holder)

    def __enter__(self) -> bool:
        return self._acquire(sys._getframe(1), -1, raises=True)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.release()

    def _acquire(self, frame: FrameType | None, timeout: float, *, raises: bool) -> bool:
        mine = (frame, threading.get_ident())
        deadline = None
        if timeout and self._waiters.are_there():
            self._waiters.wait(bool, _YIELD_S)  # a thread that retakes the lock at once would starve the others
        while (found := self._holder.setdefault(True, mine)) is not mine:  # one step: no exception comes in between
            if has_ended(found[0]):
                with _TAKING_OVER:
                    if self._holder.get(True) is found:
                        self._holder[True] = mine
                        return True
            elif raises and found[1] == mine[1]:
                raise reentrant_call()
            elif timeout < 0:
                self._waiters.wait(self._is_free, _POLL_S)
            else:
                now = SystemClock.monotonic()
                deadline = now + timeout if deadline is None else deadline
                if now >= deadline:
                    return False
                self._waiters.wait(self._is_free, min(deadline - now, _POLL_S))
        return True
