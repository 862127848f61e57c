"""Writer thread of a log's appenders. It starts with the first buffered record and ends when idle."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiered.clock import Clock
from tiered.errors import ForkedLogError, TieredError
from tiered.format.kernels import PlainLock
from tiered.format.locks import SafeEvent
from tiered.local.directory.tasks import Workers
from tiered.metrics import Metric, metric

if TYPE_CHECKING:
    from tiered.appending.appender import Appender

IDLE_SECONDS = 10.0
"""Time without records after which the thread ends. The next record starts another one."""

_logger = logging.getLogger("tiered")


@dataclass(slots=True)
class Counts:
    """Total counts of one topic's appenders since the log was opened. ``waits``: appends that waited for room."""

    records: int = 0
    failed: int = 0
    batches: int = 0
    waits: int = 0


class AppenderThread:
    """Writer thread of a log's appenders. Thread-safe.

    It has a reference to each appender with unwritten records, so that they are written even if no caller has one.
    """

    def __init__(self, clock: Clock, workers: Workers) -> None:
        self.clock = clock
        self._pid = os.getpid()
        self._workers = workers
        self._lock = PlainLock()
        self._event = SafeEvent()
        self._known: dict[str, weakref.WeakSet[Appender]] = {}
        self._counts: dict[str, Counts] = {}
        self._pending: dict[Appender, None] = {}
        self._running = False
        self._closed = False
        self._ends = False
        _OPEN.add(self)

    def add(self, topic: str, appender: Appender) -> Counts:
        """Register an appender, and return the counters of its topic. Raises ForkedLogError in a forked child."""
        if os.getpid() != self._pid:  # after a fork the lock may be a copy of a held one
            hint = "open the log in the child, after the fork"
            raise ForkedLogError(
                f"the log was opened by process {self._pid}; the forked process {os.getpid()} cannot use it", hint=hint
            )
        _finish_with_multiprocessing()
        with self._lock:
            self._known.setdefault(topic, weakref.WeakSet()).add(appender)
            return self._counts.setdefault(topic, Counts())

    def remove(self, appender: Appender) -> None:
        """Remove a closed appender."""
        with self._lock:
            for known in self._known.values():
                known.discard(appender)
            self._pending.pop(appender, None)

    def wake(self, appender: Appender) -> None:
        """Schedule the write of an appender's records. At exit, or if no thread can start: write them in this call."""
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
            except BaseException:  # an interrupt, after which the thread may never start
                self._running = False
                raise

    def drain(self, topic: str | None = None) -> None:
        """Write all buffered records of a topic, or of all topics (None).

        A failure is not raised here, but by the record's receipt and the next flush of its appender.
        """
        for each in self._appenders(topic):
            each._drain()

    def check_caller(self) -> None:
        """Raise ReentrantCallError if this thread is inside a call of an appender."""
        self._lock.check_caller()
        for each in self._appenders(None):
            each._check_caller()

    def spread(self, topic: str, partitions: int) -> None:
        """Set the new number of a topic's partitions in its appenders."""
        for each in self._appenders(topic):
            each._spread(partitions)

    def close(self) -> TieredError | None:
        """Close all appenders and end the thread. Return their records' first error, None without one."""
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
        """Write all buffered records, and from now on write each record at once.

        Yield (topic, number of failed records, error or None) for each appender with records that failed since its
        last flush.
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
        """Yield the metrics of each topic that has had an appender."""
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

    def _appenders(self, topic: str | None) -> list[Appender]:
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
        """Write the due batches of each appender. Return when the next is due (monotonic seconds), None without one."""
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
    """Write the buffered records of this process. Warn with the number of records that cannot be written.

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
    """Register :func:`write_at_exit` with multiprocessing, once per process: its children end without ``atexit``."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None and os.getpid() not in _finishing:
        _finishing.add(os.getpid())
        util.Finalize(None, write_at_exit, exitpriority=0)
