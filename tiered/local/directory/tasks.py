"""The background work of a log directory as named tasks, each with its own period: run when due, or by name now.

No thread is started here: whoever owns the log calls :meth:`Tasks.tick` about once a second. A task that fails keeps no
other from its turn, and one partition that fails keeps no other from its task.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tiered.clock import Clock, IdSource
from tiered.config import unknown_key
from tiered.errors import NotFoundError, TieredError
from tiered.local.disk.files import Files

LOGGER = logging.getLogger("tiered.local")

TASKS_NAME = "tiered-tasks.json"
"""How each task did when somebody last looked at the clock for a checkpoint; for people, never read by the log."""

VERSION = 1

EVERY_TICK = 0
"""Period of a task that looks at its own timers."""

JITTER = 0.1
"""A period is shortened by up to this part of it, so that the tasks of many logs do not meet."""

MAX_ERROR_CHARS = 500


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task: ``period_ms`` 0 means at every tick; ``last_run_ms`` -1: never; ``last_error`` empty: it went well."""

    name: str
    period_ms: int
    last_run_ms: int = -1
    last_error: str = ""
    last_duration_ms: int = 0
    runs: int = 0
    failures: int = 0


@dataclass(slots=True)
class Task:
    """``run`` gets the wall clock in ms and raises the first error after all its work was tried."""

    name: str
    period_ms: int
    run: Callable[[int], None]


class Tasks:
    """All tasks of one log directory, run in the order in which they were given. Thread-safe: one run at a time."""

    def __init__(self, clock: Clock, ids: IdSource, tasks: Iterable[Task]) -> None:
        self._clock = clock
        self._ids = ids
        self._tasks = {task.name: task for task in tasks}
        self._status = {name: TaskStatus(name, task.period_ms) for name, task in self._tasks.items()}
        self._lock = threading.RLock()
        self._since_ms = dict.fromkeys(self._tasks, clock.now_ms())
        self._wait_ms = {name: self._period(task) for name, task in self._tasks.items()}

    def tick(self) -> None:
        """Runs what is due; the first error is raised at the end. A clock that jumps back makes every task due."""
        failures = []
        now_ms = self._clock.now_ms()
        for task in self._tasks.values():
            if 0 <= now_ms - self._since_ms[task.name] < self._wait_ms[task.name]:
                continue
            try:
                self._run(task, now_ms)
            except TieredError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def run(self, name: str) -> TaskStatus:
        """Runs one task now, whatever its timer says. Raises its error; ConfigError for a name that does not exist."""
        task = self._tasks.get(name)
        if task is None:
            raise unknown_key(name, self._tasks, "task")
        self._run(task, self._clock.now_ms())
        return self._status[name]

    def status(self) -> list[TaskStatus]:
        """How each task did, in their order."""
        return [self._status[name] for name in self._tasks]

    def _run(self, task: Task, now_ms: int) -> None:
        with self._lock:
            self._since_ms[task.name] = now_ms
            self._wait_ms[task.name] = self._period(task)
            began = self._clock.monotonic()
            problem = ""
            try:
                task.run(now_ms)
            except TieredError as error:
                problem = error.message[:MAX_ERROR_CHARS] or type(error).__name__
                LOGGER.warning("task_failed task=%s error=%s", task.name, error)
                raise
            finally:
                before = self._status[task.name]
                self._status[task.name] = replace(
                    before,
                    last_run_ms=now_ms,
                    last_error=problem,
                    last_duration_ms=int((self._clock.monotonic() - began) * 1000),
                    runs=before.runs + 1,
                    failures=before.failures + bool(problem),
                )

    def _period(self, task: Task) -> float:
        return task.period_ms * (1 - JITTER * self._ids.random()) if task.period_ms else 0


def run_all(work: Iterable[Callable[[], object]]) -> None:
    """Runs every piece of work; the first error is raised after the last piece."""
    first: TieredError | None = None
    for one in work:
        try:
            one()
        except TieredError as error:
            LOGGER.warning("tick_failed error=%s", error)
            first = first or error
    if first is not None:
        raise first


def store_status(directory: Path, files: Files, status: Iterable[TaskStatus]) -> None:
    """Leaves the figures for other processes to look at."""
    value = {"version": VERSION, "tasks": [asdict(task) for task in status]}
    files.replace(directory / TASKS_NAME, json.dumps(value, indent=1).encode() + b"\n")


def read_status(directory: Path, files: Files) -> list[TaskStatus]:
    """What :func:`store_status` left; empty if there is nothing, or nothing that can be read."""
    try:
        value: Mapping[str, Any] = json.loads(files.read(directory / TASKS_NAME))
        return [TaskStatus(**entry) for entry in value["tasks"]]
    except (NotFoundError, ValueError, KeyError, TypeError):
        return []
