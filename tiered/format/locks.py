"""Locks that a signal handler cannot hang on and an exception cannot leave locked; the pure twins of the compiled ones.

A lock notes the thread and the frame that took it. A thread that asks for a lock that it holds gets ReentrantCallError
at once. A frame that has ended without releasing its lock (an exception arrived between the last instruction of a
``with`` block and the release) holds it no more: the next caller takes it over.
"""

from __future__ import annotations

import inspect
import sys
import threading
from types import FrameType

from tiered.errors import ReentrantCallError

_POLL_S = 0.05
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_RELEASED = threading.Condition()  # of any lock: its own lock is reentrant, so that no handler hangs on it
_TAKING_OVER = threading.RLock()


def has_ended(frame: FrameType | None) -> bool:
    """Return whether ``frame`` runs no more. A suspended generator's frame counts as running."""
    if frame is None or frame.f_code.co_flags & _GENERATORS:
        return False
    try:
        frame.clear()  # refused while the frame is executing; afterwards only its locals are dropped
    except RuntimeError:
        return False
    return True


def reentrant_call() -> ReentrantCallError:
    """Return the error for a thread that asks for a lock that it holds."""
    return ReentrantCallError(
        "this thread is inside another call of the same log: a signal handler, or a finalizer, interrupted it",
        hint="let the handler set a flag or raise SystemExit, and call the log when it has returned",
    )


class SafeEvent(threading.Event):
    """An event that a signal handler may set, clear or wait for while its thread is inside a call of it."""

    def __init__(self) -> None:
        super().__init__()
        self._cond = threading.Condition()  # its lock is reentrant


class PlainLock:
    """A lock like ``threading.Lock`` that knows its holder."""

    __slots__ = ("_holder",)

    def __init__(self) -> None:
        self._holder: dict[bool, tuple[FrameType | None, int]] = {}

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Takes the lock for a block that another function may end; False if it is not free in time.

        Raises ReentrantCallError where the holder asks for it without a timeout.
        """
        if timeout != -1 and not blocking:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if timeout < 0 and timeout != -1:
            raise ValueError("timeout value must be a non-negative number")
        if timeout > threading.TIMEOUT_MAX:
            raise OverflowError("timeout value is too large")
        return self._take(None, timeout if blocking else 0.0, raises=blocking and timeout == -1)

    def hold(self, seconds: float) -> bool:
        """Takes the lock until the caller's ``release``; False if it is not free in time (below 0: wait for ever).

        Raises ReentrantCallError in the thread that holds it.
        """
        return self._take(sys._getframe(1), seconds, raises=True)

    def release(self) -> None:
        """Frees the lock."""
        if self._holder.pop(True, None) is None:
            raise RuntimeError("release unlocked lock")
        with _RELEASED:
            _RELEASED.notify_all()

    def check_caller(self) -> None:
        """Raises ReentrantCallError in the thread that holds the lock."""
        if self.hold(0):
            self.release()

    def locked(self) -> bool:
        """Whether somebody holds it."""
        return bool(self._holder)

    def __enter__(self) -> bool:
        return self._take(sys._getframe(1), -1, raises=True)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.release()

    def _take(self, frame: FrameType | None, timeout: float, *, raises: bool) -> bool:
        mine = (frame, threading.get_ident())
        while (found := self._holder.setdefault(True, mine)) is not mine:  # one step: no exception comes in between
            if has_ended(found[0]):
                with _TAKING_OVER:
                    if self._holder.get(True) is found:
                        self._holder[True] = mine
                        return True
            elif raises and found[1] == mine[1]:
                raise reentrant_call()
            elif timeout == 0:
                return False
            else:
                left = _POLL_S if timeout < 0 else min(timeout, _POLL_S)
                with _RELEASED:
                    if self._holder:
                        _RELEASED.wait(left)
                timeout = timeout if timeout < 0 else max(timeout - left, 0.0)
        return True
