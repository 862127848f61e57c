"""The one thread of a log that writes what its appenders hold: it starts with the first record, and ends when idle."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tiered.clock import Clock
from tiered.errors import ForkedLogError, TieredError
from tiered.format.locks import SafeEvent
from tiered.local.directory.tasks import Workers
from tiered.local.disk.plain_lock import PlainLock
from tiered.metrics import Metric, metric

IDLE_SECONDS = 10.0
"""A thread that has had nothing to write for so long ends; the next record starts another one."""

_logger = logging.getLogger("tiered")


@dataclass(slots=True)
class Counts:
    """What the appenders of one topic did since the log was opened."""

    records: int = 0
    failed: int = 0
    batches: int = 0
    waits: int = 0


class Buffered(Protocol):
    """An appender."""

    @property
    def buffered_bytes(self) -> int:
        """What waits to be written."""

    @property
    def _failures(self) -> tuple[int, TieredError | None]:
        """Return how many records failed that no call of the appender has raised yet, and the first error."""

    def _write_due(self, now_s: float) -> float | None:
        """Writes what is due; when the next is, None if nothing waits."""

    def _drain(self) -> None:
        """Writes all that waits."""

    def _check_caller(self) -> None:
        """Raises ReentrantCallError in a thread that is inside a call of it."""

    def _spread(self, partitions: int) -> None:
        """Takes records for more partitions from now on."""

    def close(self) -> None:
        """Writes all, and takes nothing more."""


class AppenderThread:
    """Thread-safe. An appender that nobody holds any more is kept while something of it waits."""

    def __init__(self, clock: Clock, workers: Workers) -> None:
        self.clock = clock
        self._pid = os.getpid()
        self._workers = workers
        self._lock = PlainLock()
        self._event = SafeEvent()
        self._known: dict[str, weakref.WeakSet[Buffered]] = {}
        self._counts: dict[str, Counts] = {}
        self._pending: dict[Buffered, None] = {}
        self._running = False
        self._closed = False
        self._ends = False
        _OPEN.add(self)

    def add(self, topic: str, appender: Buffered) -> Counts:
        """One more; the counts of its topic."""
        if os.getpid() != self._pid:  # its lock may be the copy of one that is held
            hint = "open the log in the child, after the fork"
            raise ForkedLogError(
                f"the log was opened by process {self._pid}, this is its fork {os.getpid()}", hint=hint
            )
        _finish_with_multiprocessing()
        with self._lock:
            self._known.setdefault(topic, weakref.WeakSet()).add(appender)
            return self._counts.setdefault(topic, Counts())

    def remove(self, appender: Buffered) -> None:
        """It is closed."""
        with self._lock:
            for known in self._known.values():
                known.discard(appender)
            self._pending.pop(appender, None)

    def wake(self, appender: Buffered) -> None:
        """Something of it waits. Where no thread can write it any more (the interpreter ends) it is written here."""
        if self._ends:
            appender._drain()
            return
        with self._lock:
            self._pending[appender] = None
            starts, self._running = not self._running, True
        self._event.set()
        if starts:
            try:
                self._workers.start("appender", self._run)
            except RuntimeError:
                with self._lock:
                    self._running = False
                    self._pending.pop(appender, None)
                appender._drain()
            except BaseException:  # an interrupt: the thread may never have begun
                self._running = False
                raise

    def drain(self, topic: str | None = None) -> None:
        """Writes what all appenders (of a topic) hold now. What fails is told by them."""
        for each in self._appenders(topic):
            each._drain()

    def check_caller(self) -> None:
        """Raises ReentrantCallError in a thread that is inside a call of an appender."""
        self._lock.check_caller()
        for each in self._appenders(None):
            each._check_caller()

    def spread(self, topic: str, partitions: int) -> None:
        """Hands on to the appenders of a topic that it has more partitions now."""
        for each in self._appenders(topic):
            each._spread(partitions)

    def close(self) -> TieredError | None:
        """Closes all appenders and ends the thread. Returns the first error of what they still held."""
        first: TieredError | None = None
        for each in self._appenders(None):
            try:
                each.close()
            except TieredError as error:
                first = first or error
        self._closed = True
        self._event.set()
        return first

    def write_at_exit(self) -> Iterator[tuple[str, int, TieredError | None]]:
        """Write what all appenders hold, and at once what they get from now on.

        Yield by topic how many records of theirs failed, and why the first did.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._ends = True
        for topic in list(self._known):
            for each in self._appenders(topic):
                each._drain()
                count, error = each._failures
                if count:
                    yield topic, count, error

    def metrics(self) -> Iterator[Metric]:
        """By topic; nothing of a topic that never had an appender."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            counts = {topic: (known, list(self._known[topic])) for topic, known in self._counts.items()}
        for topic, (known, appenders) in counts.items():
            labels = {"topic": topic}
            yield metric("appender_buffered_bytes", sum(each.buffered_bytes for each in appenders), labels)
            yield metric("appender_records_total", known.records, labels)
            yield metric("appender_failed_records_total", known.failed, labels)
            yield metric("appender_batches_total", known.batches, labels)
            yield metric("appender_waits_total", known.waits, labels)

    def _appenders(self, topic: str | None) -> list[Buffered]:
        if os.getpid() != self._pid:
            return []
        with self._lock:
            return [each for name, known in self._known.items() if topic in (None, name) for each in known]

    def _run(self) -> None:
        while True:
            self._event.clear()
            nearest = self._round()
            if nearest is not None:
                self.clock.wait(self._event, max(nearest - self.clock.monotonic(), 0.0))
            elif self._closed or not self.clock.wait(self._event, IDLE_SECONDS):
                with self._lock:
                    if not self._pending:
                        self._running = False
                        return

    def _round(self) -> float | None:
        """Every appender writes what is due; when the next is (monotonic seconds), None if nothing waits."""
        with self._lock:
            pending, self._pending = list(self._pending), {}
        nearest: float | None = None
        for each in pending:
            try:
                due = each._write_due(self.clock.monotonic())
            except Exception:  # a fault of one must not end the thread of all
                _logger.exception("an appender failed")
                continue
            if due is not None:
                nearest = due if nearest is None else min(nearest, due)
                with self._lock:
                    self._pending[each] = None
        return nearest


_OPEN: weakref.WeakSet[AppenderThread] = weakref.WeakSet()


def write_at_exit() -> None:
    """Write what the appenders of this process hold. Warn with the number of records that cannot be written.

    The interpreter calls this as it ends, after ``threading`` has waited for other threads.
    """
    for thread in list(_OPEN):
        for topic, count, error in thread.write_at_exit():
            text = f"{count} records of an appender of {topic} were not written: {error}"
            _logger.error("%s", text)
            warnings.warn(text, RuntimeWarning, stacklevel=2)


atexit.register(write_at_exit)
_finishing: set[int] = set()


def _finish_with_multiprocessing() -> None:
    """Register :func:`write_at_exit`, once per process, with the module whose children end without ``atexit``."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None and os.getpid() not in _finishing:
        _finishing.add(os.getpid())
        util.Finalize(None, write_at_exit, exitpriority=0)
