"""Plain daemon threads for work that blocks.

The interpreter closes every ``ThreadPoolExecutor``, and with them the default executor of every event loop, when the
main thread ends. Other threads of the program go on, and so does a log that they use. A :class:`ThreadPool` works until
the process ends.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

with contextlib.suppress(RuntimeError):  # what libraries import late can be imported only while the main thread lives
    import concurrent.futures.thread  # noqa: F401

IDLE_SECONDS = 10.0
"""Time without work after which a thread ends."""
BLOCKING_THREADS = 32
"""Simultaneous calls of one process that wait for its disk on behalf of event loops."""

P = ParamSpec("P")
T = TypeVar("T")
Job = tuple[Future[Any], Callable[[], Any]]


class ThreadPool(Executor):
    """Executor of at most ``threads`` daemon threads, which start when there is work.

    If no thread can be started (since Python 3.12: once the main thread has ended) ``submit`` does the work itself. A
    forked child begins without threads and without work.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._max_workers = threads
        self._name = name
        self._start_thread()
        _POOLS.add(self)

    def _start_thread(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may submit work, too
        self._work: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._unfinished = 0  # jobs that wait or are at work
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Return the future of ``fn(*args, **kwargs)``. Raises RuntimeError after :meth:`shutdown`."""
        future: Future[T] = Future()
        job: Job = (future, lambda: fn(*args, **kwargs))
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the thread pool {self._name} is closed")
            self._unfinished += 1
            if len(self._threads) < min(self._max_workers, self._unfinished):
                self._start()
            here = not self._threads
            if not here:
                self._work.put(job)
        if here:
            self._do(job)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further work. ``wait``: return only when current work is done. ``cancel_futures``: drop work that has
        not begun.
        """
        dropped: list[Job] = []
        with self._lock:
            self._closed = True
            while cancel_futures and (job := self._next()) is not None:
                dropped.append(job)
            self._unfinished -= len(dropped)
            threads = list(self._threads)
            for _ in threads:
                self._work.put(None)
        for future, _ in dropped:
            future.cancel()
        for thread in threads if wait else ():
            thread.join()

    def _next(self) -> Job | None:
        try:
            return self._work.get_nowait()
        except Empty:
            return None

    def _start(self) -> None:
        number = len(self._threads)
        thread = threading.Thread(target=self._serve, name=f"{self._name}_{number}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends, or the machine has no thread left: those that run do it
            return
        self._threads.add(thread)

    def _serve(self) -> None:
        while True:
            try:
                job = self._work.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._unfinished < len(self._threads):  # each job still has a thread
                        self._threads.discard(threading.current_thread())
                        return
                continue
            if job is None:
                with self._lock:
                    self._threads.discard(threading.current_thread())
                return
            self._do(job)
            del job  # it refers to the result, which only its reader may keep

    def _do(self, job: Job) -> None:
        future, work = job
        if not future.set_running_or_notify_cancel():
            self._finished()
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            self._finished()
            future.set_exception(error)
            del future, job  # the traceback holds this frame
        else:
            self._finished()
            future.set_result(result)

    def _finished(self) -> None:
        """Count a finished job before its result is known, so that a waiting caller's next job finds a free thread."""
        with self._lock:
            self._unfinished -= 1


_POOLS: weakref.WeakSet[ThreadPool] = weakref.WeakSet()


def _forget_threads() -> None:
    for pool in list(_POOLS):
        pool._start_thread()


os.register_at_fork(after_in_child=_forget_threads)

BLOCKING = ThreadPool(BLOCKING_THREADS, "tiered-blocking")
"""Pool for calls of an event loop that wait for this machine's disk."""


def main_has_ended() -> bool:
    """Return True after the main thread has ended: the default executors of all event loops are closed by then."""
    return not threading.main_thread().is_alive()
