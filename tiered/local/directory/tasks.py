"""Background work of a log directory as named tasks, each with its own period: run when due, or by name now.

The owner of the log calls :meth:`Tasks.tick` about once a second. A task that fails does not stop the others, and one
partition that fails does not stop its task. A task that may take long (``Task.workers``) runs on workers, so that it
delays no timer. :class:`TaskStatus` has runs, durations, partitions and bytes.

=========================  =============================  =========================================================
task                       every                          does
=========================  =============================  =========================================================
space                      tick                           reads the free space: below the reserve appends are refused
uploads                    uploads_check_interval_ms      reads the uploader's checkpoint, seals what it requested
waking                     tick                           opens some of the unopened partitions that have timers
seal                       tick                           ``seal.ms`` of each partition
flush                      tick                           ``flush.ms`` of each partition
retention                  retention_check_interval_ms    retention rules of each partition
deletion                   tick                           files and directories whose ``file.delete.delay.ms`` is over
producer-expiry            producer_expiration_check_...  forgets producers that were idle for a day
cleaning (on workers)      cleaner_backoff_ms             compaction of partitions without a bucket (``local.cleaning``)
positions                  tick                           writes positions of groups for the uploader
transactions               tick                           aborts transactions after their timeout, forgets unused ids
recovery-point-checkpoint  checkpoint_interval_ms         writes the offsets below which recovery reads nothing
log-start-checkpoint       checkpoint_interval_ms         writes log starts that differ from the first segment
=========================  =============================  =========================================================

``tasks.add(Task(name, period_ms, run))`` adds another task.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from tiered.clock import Clock, IdSource, SystemClock
from tiered.errors import ConfigError, TieredError
from tiered.format.coordinator_records import is_state_log
from tiered.format.locks import SafeEvent
from tiered.local.cleaning.cleaner import LogCleaner
from tiered.local.directory.checkpoints import DirectoryCheckpoints
from tiered.local.directory.registry import LeavingDirectories
from tiered.local.disk.uploader_files import SealRequest
from tiered.local.partition.context import DirectoryContext
from tiered.local.partition.open_partitions import PassResult, Roster
from tiered.local.partition.write_log import WriteLog
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")

EVERY_TICK = 0
"""Period of a task that checks its own timers."""

JITTER = 0.1
"""Largest fraction by which a period is shortened, so that the tasks of many logs do not coincide."""

MAX_ERROR_CHARS = 500


class BackgroundTasks:
    """Periodic tasks of one directory, which the attribute ``tasks`` runs.

    ``note_status``: called to write the report on the tasks for other processes.
    """

    def __init__(
        self,
        around: DirectoryContext,
        roster: Roster,
        *,
        leaving: LeavingDirectories,
        notes: DirectoryCheckpoints,
        cleaner: LogCleaner,
        workers: Workers,
        note_status: Callable[[], None],
    ) -> None:
        self._notes, self._note_status = notes, note_status
        self._roster = roster
        self._uploads = around.uploads
        self.seal_requests = SealRequest(roster.directory, around.files)
        self._leaving = leaving
        config, reserve = around.config, around.reserve
        every = config.checkpoint_interval_ms
        self.tasks = Tasks(
            around.clock,
            around.ids,
            (
                Task("space", EVERY_TICK, lambda _: (reserve.check(), None)[1]),
                Task("uploads", config.uploads_check_interval_ms, self._check_uploads),
                Task("waking", EVERY_TICK, self._wake_some),
                Task("seal", EVERY_TICK, self._seal_idle),
                Task("flush", EVERY_TICK, self._each(lambda writer: writer.durability.flush_in_time)),
                Task(
                    "retention",
                    config.retention_check_interval_ms,
                    self._each(lambda writer: writer.maintenance.retain),
                ),
                Task("deletion", EVERY_TICK, self._delete),
                Task(
                    "producer-expiry",
                    config.producer_expiration_check_interval_ms,
                    self._each(lambda writer: writer.maintenance.expire_producers),
                ),
                Task("cleaning", config.cleaner_backoff_ms, cleaner.run, workers=config.cleaner_threads),
                Task("recovery-point-checkpoint", every, self._write_points),
                Task("log-start-checkpoint", every, lambda _: PassResult(partitions=notes.write_starts())),
            ),
            workers=workers,
            initial_ms=config.initial_task_delay_ms,
            failed=around.failed,
        )

    def _write_points(self, _: int) -> PassResult:
        written = self._notes.write_points()
        self._note_status()
        return PassResult(partitions=written)

    def refresh_uploads(self) -> None:
        """Pass each open partition its entry of ``tiered-offset-checkpoint``. An unchanged file costs one ``stat``."""
        known = self._uploads.read()
        if not known:
            return
        for writer in self._roster.awake():
            upload = known.get(writer.tp)
            if upload is not None and writer.upload != upload:
                writer.set_uploaded(upload.end_offset, upload.claim_epoch, upload.fenced, upload.start_offset)

    def _each(self, timer: Callable[[WriteLog], Callable[[int], int | None]]) -> Callable[[int], PassResult]:
        """Return a task that calls ``timer(partition)(now_ms)`` for each open partition."""

        def run(now_ms: int) -> PassResult:
            return run_all(partial(timer(writer), now_ms) for writer in self._roster.awake())

        return run

    def _seal_idle(self, now_ms: int) -> PassResult:
        with self._notes.deferring_points():
            return self._each(lambda writer: writer.maintenance.seal_idle)(now_ms)

    def _wake_some(self, _: int) -> PassResult:
        def wake(tp: TopicPartition) -> int | None:
            return None if self._roster.find(tp) is None else 0

        return run_all(partial(wake, tp) for tp in self._roster.next_to_wake())

    def _check_uploads(self, _: int) -> PassResult:
        done = run_all((self.refresh_uploads,))
        done.add(self._obey_seal_request())
        return done

    def _obey_seal_request(self) -> PassResult:
        if not self.seal_requests.take():
            return PassResult()
        broken = self._roster.broken  # reported at the open
        names = [tp for tp in self._roster.names() if not is_state_log(tp.topic) and tp not in broken]
        with self._notes.deferring_points():
            return run_all(partial(self._roll, tp) for tp in names)  # a requester that still waits asks again

    def _roll(self, tp: TopicPartition) -> int | None:
        try:
            writer = self._roster.wake(tp)
        except KeyError:  # its topic was deleted meanwhile
            return None
        return 0 if writer.maintenance.roll() else None

    def _delete(self, now_ms: int) -> PassResult:
        files = (partial(writer.maintenance.empty_trash, now_ms) for writer in self._roster.awake())
        return run_all((*files, partial(self._leaving.remove_due, now_ms)))


@dataclass(slots=True)
class Task:
    """Named task. ``period_ms``: time between two runs, 0 for a run at every tick.

    ``run`` gets the wall clock in ms. It may raise, or return its errors in :class:`PassResult`. ``workers``: 0 runs it
    in the thread that calls :meth:`Tasks.tick`. A higher number runs it on so many workers at the same time.
    """

    name: str
    period_ms: int
    run: Callable[[int], PassResult | None]
    workers: int = 0


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """Status of one task since the open. ``period_ms`` 0: it runs at every tick. ``failures``: runs with an error.

    ``last_run_ms``: start of the last run (wall clock), -1 without one.
    ``last_error`` is empty if the last run succeeded. ``partitions``: number of changed partitions, over all runs.
    ``bytes``: bytes that all runs sealed, flushed, deleted or cleaned.
    """

    name: str
    period_ms: int
    last_run_ms: int = -1
    last_error: str = ""
    last_duration_ms: int = 0
    runs: int = 0
    failures: int = 0
    partitions: int = 0
    bytes: int = 0
    running: bool = False


class Tasks:
    """All tasks of one log directory, run in the order in which they were added. Thread-safe.

    One task runs at a time, except for those on ``workers``. ``initial_ms``: longest delay of a task's first run after
    the open (Kafka's ``log.initial.task.delay.ms``). ``failed``: called with the error of each failed run.
    """

    def __init__(
        self,
        clock: Clock,
        ids: IdSource,
        tasks: Iterable[Task],
        *,
        workers: Workers | None = None,
        initial_ms: int | None = None,
        failed: Callable[[TieredError], None] | None = None,
    ) -> None:
        self._clock = clock
        self._ids = ids
        self._workers = workers or InlineWorkers()
        self._initial_ms = initial_ms
        self._failed = failed
        self._tasks: dict[str, Task] = {}
        self._status: dict[str, TaskStatus] = {}
        self._since_ms: dict[str, int] = {}
        self._wait_ms: dict[str, float] = {}
        self._lock = threading.RLock()  # one run at a time in the threads that tick
        self._noting = threading.Lock()
        for task in tasks:
            self.add(task)

    def add(self, task: Task) -> None:
        """Add a task at the end of the order. Raises ConfigError if a task has the same name."""
        if task.name in self._tasks:
            raise ConfigError(f"a task with the name {task.name} exists already")
        period = self._period(task)
        self._since_ms[task.name] = self._clock.now_ms()
        self._wait_ms[task.name] = period if self._initial_ms is None else min(period, self._initial_ms)
        self._status[task.name] = TaskStatus(task.name, task.period_ms)
        self._tasks[task.name] = task

    def tick(self) -> None:
        """Run due tasks, then raise the first error. Errors on workers appear only in the status.

        If the wall clock jumps back, every task is due.
        """
        failures = []
        now_ms = self._clock.now_ms()
        for task in list(self._tasks.values()):
            if 0 <= now_ms - self._since_ms[task.name] < self._wait_ms[task.name]:
                continue
            try:
                if task.workers:
                    self._start(task, now_ms, self._workers, task.workers)
                else:
                    self._run(task, now_ms)
            except TieredError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def status(self) -> list[TaskStatus]:
        """Return the status of each task, in the order of the tasks."""
        return list(self._status.values())

    def _run(self, task: Task, now_ms: int) -> None:
        with self._lock:
            self._start(task, now_ms, InlineWorkers(), 1)

    def _start(self, task: Task, now_ms: int, workers: Workers, count: int) -> None:
        """Start the task ``count`` times on ``workers``. Raise its error if it ended in this thread.

        A task that may take long is not started while it runs.
        """
        with self._noting:
            if task.workers and self._status[task.name].running:  # any other may have been interrupted
                return
            self._since_ms[task.name] = now_ms
            self._wait_ms[task.name] = self._period(task)
            self._status[task.name] = replace(self._status[task.name], running=True)
        began, total, left = self._clock.monotonic(), PassResult(), [count]

        def ended(done: PassResult) -> None:
            with self._noting:
                total.add(done)
                left[0] -= 1
                last = not left[0]
            if last:
                self._end(task, now_ms, began, total)

        for _ in range(count):
            try:
                workers.start(task.name, lambda: ended(self._outcome(task, now_ms)))
            except RuntimeError as error:  # no more threads can be made
                ended(PassResult(error=_wrapped(task.name, error)))
        if not left[0] and total.error is not None:  # the work ran in this thread
            raise total.error

    def _outcome(self, task: Task, now_ms: int) -> PassResult:
        """Run the task. Return any error in the result instead of raising it."""
        try:
            return task.run(now_ms) or PassResult()
        except TieredError as error:
            return PassResult(error=error)
        except Exception as error:  # noqa: BLE001 - a fault of one task must not end the thread of all
            return PassResult(error=_wrapped(task.name, error))

    def _end(self, task: Task, now_ms: int, began: float, done: PassResult) -> None:
        problem = ""
        if done.error is not None:
            problem = done.error.message[:MAX_ERROR_CHARS] or type(done.error).__name__
            LOGGER.warning("task_failed task=%s error=%s", task.name, done.error)
        with self._noting:
            before = self._status[task.name]
            self._status[task.name] = replace(
                before,
                last_run_ms=now_ms,
                last_error=problem,
                last_duration_ms=int((self._clock.monotonic() - began) * 1000),
                runs=before.runs + 1,
                failures=before.failures + bool(problem),
                partitions=before.partitions + done.partitions,
                bytes=before.bytes + done.bytes,
                running=False,
            )
        if done.error is not None and self._failed is not None:
            self._failed(done.error)

    def _period(self, task: Task) -> float:
        return task.period_ms * (1 - JITTER * self._ids.random()) if task.period_ms else 0


class Workers(Protocol):
    """Executor for tasks that may take long. It runs them in the caller's thread, or each on a thread of its own."""

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Start ``work``, which must not raise. ``name`` appears in the names of threads.

        Raises RuntimeError if the system allows no more threads.
        """

    def join(self, timeout_seconds: float) -> bool:
        """Wait until all started work has ended. Return False after ``timeout_seconds``. Never call it from work."""


class InlineWorkers:
    """Executor that runs work in the calling thread, for tools, tests, and programs that tick on a separate thread."""

    def start(self, name: str, work: Callable[[], None]) -> None:
        del name
        work()

    def join(self, timeout_seconds: float) -> bool:
        del timeout_seconds
        return True


class ThreadWorkers:
    """Executor that starts a daemon thread for each piece of work. The thread ends with the work."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._running: dict[SafeEvent, None] = {}  # set at the end of one piece of work each

    def start(self, name: str, work: Callable[[], None]) -> None:
        ended = SafeEvent()

        def run() -> None:
            try:
                work()
            finally:
                self._running.pop(ended, None)
                ended.set()

        thread = threading.Thread(target=run, name=f"tiered-{name}", daemon=True)
        self._running[ended] = None
        try:
            thread.start()
        except BaseException:
            if thread.ident is None:  # no thread can be made: nothing runs
                self._running.pop(ended, None)
            raise

    def join(self, timeout_seconds: float) -> bool:
        deadline = self._clock.monotonic() + timeout_seconds
        return all(ended.wait(deadline - self._clock.monotonic()) for ended in tuple(self._running))


def run_all(work: Iterable[Callable[[], int | None]]) -> PassResult:
    """Call every function in ``work``, usually one for each partition. An error does not stop the others.

    Each function returns the bytes that it processed, or None if there was nothing to do. Return the total bytes, the
    number of functions that did something, and the first error.
    """
    done = PassResult()
    for one in work:
        try:
            size = one()
        except TieredError as error:
            LOGGER.warning("tick_failed error=%s", error)
            done.add(PassResult(error=error))
            continue
        except Exception as error:  # noqa: BLE001 - nor does a fault of ours in one partition
            done.add(PassResult(error=_wrapped("upkeep", error)))
            continue
        if size is not None:
            done.add(PassResult(partitions=1, bytes=size))
    return done


def _wrapped(what: str, error: Exception) -> TieredError:
    """Return an unexpected error as a TieredError, and log its traceback. ``what``: name of the failed task."""
    LOGGER.error("task_broken task=%s", what, exc_info=error)
    wrapped = TieredError(f"{what}: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
