"""Runner of a job's tasks on Spark. Each task runs the library's own steps in a worker, and returns a receipt.

::

    driver   tasks ──> createDataFrame, one partition a task ──> receipts, in the order of the tasks
    workers  task  ──> worker_store(url) ──> work(store, task) ──> receipt

A task and its receipt are small JSON objects. Workers read and write the bucket themselves. Nothing of a run is stored:
every task determines itself what remains to be done, so the same command again completes an interrupted job.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from tiered import errors
from tiered.config import S3Keywords
from tiered.errors import ConfigError, JobFailedError, TieredError
from tiered.program.application import Application
from tiered.program.output import Progress, counted
from tiered.spark.worker import start_task, worker_store
from tiered.store.base import Store

MASTER = "local[*,4]"
"""All cores of this machine; a task is tried four times."""

POLL_SECONDS = 0.25
"""Interval of looking for ended tasks."""

MAX_TASKS = 100_000
"""Most tasks of one run: the driver holds a description and a receipt of each."""

SPECULATION = "spark.speculation"
AGAIN = "run the same command again: it does the rest"

_SETTINGS = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR", "spark.ui.enabled": "false"}
_ERRORS = "tiered.errors."
"""Prefix of the library's errors in a worker's traceback."""
_PY4J = "An error occurred while calling "
"""First line of a JVM error that PySpark does not know."""

T = TypeVar("T")
Task = Mapping[str, Any]
Receipt = dict[str, Any]
Work = Callable[[Store, Task], Receipt]
"""Function of a module, so that workers can import it."""


@dataclass(frozen=True)
class TaskCall:
    """Function that Spark calls in a worker. It takes a task as JSON and returns its result, the receipt, as JSON.

    ``work``: function of the store at ``url`` and the task. ``s3``: settings of the S3 server.
    """

    work: Callable[..., Receipt]
    url: str
    s3: S3Keywords

    def __call__(self, task: str, *more: Any) -> str:
        """Run one task and return its receipt. ``more``: other arguments of the function, after the task.

        An error of the library becomes a receipt. Other errors fail the attempt.
        """
        start_task()
        try:
            receipt = self.work(worker_store(self.url, **self.s3), json.loads(task), *more)
        except TieredError as error:
            return json.dumps({"failed": error.as_json()}, default=str)
        return json.dumps(receipt)


class JobRunner:
    """Runner of one command's tasks. Its Spark session begins at the first use.

    Args:
        master: place where Spark runs; None: the one of ``spark-submit``, otherwise this machine.
        conf: settings of the session.
        speculative: two attempts of a task may run concurrently. Where a task claims a partition they may not: one
            attempt would take the partition from the other, and neither would end.
    """

    def __init__(
        self,
        app: Application,
        store: Store,
        url: str,
        s3: S3Keywords,
        *,
        master: str | None,
        conf: Mapping[str, str],
        speculative: bool,
    ) -> None:
        self.app, self.store, self.url, self.s3 = app, store, url, s3
        self._master, self._conf = master, conf
        self._speculative = speculative
        self._session: SparkSession | None = None
        self._own = False
        self._group = f"tieredlog-{app.ids.uid()[:12]}"

    def __enter__(self) -> JobRunner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None and self._own:
            self._session.stop()

    @property
    def session(self) -> SparkSession:
        """Return the calling program's Spark session. Without one, start a session that ends with this runner's block.

        Raises ConfigError if the session has speculative execution on, and ``speculative`` is False.
        """
        if self._session is None:
            active = SparkSession.getActiveSession()
            self._session, self._own = (active, False) if active is not None else (self._start_session(), True)
            if not self._speculative:
                need_no_speculation(str(self._session.conf.get(SPECULATION, "false")))
        return self._session

    def _start_session(self) -> SparkSession:
        builder = SparkSession.builder.appName(self._group)
        master = self._master
        if master is not None and master.startswith("sc://"):
            return builder.remote(master).getOrCreate()
        submitted = "SPARK_ENV_LOADED" in os.environ  # spark-submit has chosen the master
        if master is not None or not submitted:
            builder = builder.master(master or MASTER)
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers take the python3 on PATH
        alone = {} if self._speculative else {SPECULATION: "false"}  # a cluster may have it on by default
        for key, value in {**({} if submitted else _SETTINGS), **alone, **self._conf}.items():
            builder = builder.config(key, value)
        try:
            return builder.getOrCreate()
        except PySparkRuntimeError as error:  # its Java process ended; Java has printed why
            raise ConfigError(
                f"Spark did not start with master {master or MASTER}: {error}",
                hint="correct --master, or install Java 17 or newer; Spark's own message is above",
            ) from error

    def run(self, title: str, work: Work, tasks: Sequence[Task]) -> list[Receipt]:
        """Run ``work`` with each task on Spark. Return the results, called receipts, in the order of ``tasks``.

        ``title``: the work, for the progress. Raises JobFailedError after all tasks have ended, if any of them failed.
        Raises ConfigError for more than ``MAX_TASKS`` tasks.
        """
        if not tasks:
            return []
        if len(tasks) > MAX_TASKS:
            raise ConfigError(
                f"the job would have {len(tasks)} tasks, and the limit is {MAX_TASKS}",
                hint="pass a larger --task-bytes, or fewer topics at once",
            )
        return receipts_of(self._collect(title, work, tasks), len(tasks))

    def _collect(self, title: str, work: Work, tasks: Sequence[Task]) -> list[tuple[int, str]]:
        """Run tasks. Return (number, receipt as JSON) of each, in any order. ``title``: name of the work."""

        def query() -> list[tuple[int, str]]:
            frame = self.numbered(tasks)
            found = frame.select("number", self.call(work)("task").alias("receipt")).collect()
            return [(row["number"], row["receipt"]) for row in found]

        return self.waited(title, query, total=len(tasks))

    def numbered(self, tasks: Sequence[Task], numbers: Sequence[int] | None = None) -> DataFrame:
        """Return a data frame with the columns ``number`` and ``task``. ``numbers``: those of the tasks.

        Without ``numbers`` tasks are counted from 0, and each task is one Spark partition.
        """
        rows = list(zip(numbers or range(len(tasks)), map(json.dumps, tasks), strict=True))
        frame = self.session.createDataFrame(rows, "number int, task string")
        return frame if numbers is not None else frame.repartitionById(len(rows), "number")

    def call(self, work: Callable[..., Receipt]) -> Callable[..., Column]:
        """Return ``work`` as a Spark function of columns, which Spark's optimizer neither repeats nor moves."""
        made = fn.udf(TaskCall(work, self.url, self.s3), "string", useArrow=False)
        return made.asNondeterministic()

    def waited(self, title: str, query: Callable[[], T], *, total: int = 0) -> T:
        """Run ``query`` on another thread, so that this one receives signals. Show progress. Return the result.

        ``total``: number of tasks for the progress, 0 if unknown. Raises JobFailedError for Spark's errors, and errors
        of the library as they are.
        """
        done: list[T] = []
        raised: list[Exception] = []
        over = threading.Event()
        watch = _Watch(self.session, self._group)

        def call() -> None:
            try:
                watch.start(self.session)
                done.append(query())
            except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
                raised.append(error)
            finally:
                over.set()

        thread = threading.Thread(target=call, name="tiered-spark", daemon=True)
        with Progress(self.app, title) as progress:
            progress.show(0, total)
            thread.start()
            try:
                while not self.app.clock.wait(over, POLL_SECONDS):
                    ended, known = watch.tasks()
                    progress.show(min(ended, total or ended), total or known)
            except BaseException:
                watch.cancel()
                raise
            thread.join()
        if raised:
            raise raised[0] if isinstance(raised[0], TieredError) else _failed_query(raised[0]) from raised[0]
        return done[0]


class _Watch:
    """Job group of one query: counts its tasks, and cancels its jobs. With Spark Connect it does nothing."""

    def __init__(self, session: SparkSession, group: str) -> None:
        self._group = group
        self._context: Any = None
        with contextlib.suppress(Exception):  # Connect has no context; the error differs from release to release
            self._context = session.sparkContext

    def start(self, session: SparkSession) -> None:
        """Put the jobs of this thread into the group, and make ``session`` the thread's own."""
        if self._context is not None:
            session.createDataFrame([(0,)], "x int")  # Spark finds Python data sources by the session of its thread
            self._context.setJobGroup(self._group, self._group, interruptOnCancel=True)

    def tasks(self) -> tuple[int, int]:
        """Return the number of ended tasks, and of tasks known by now."""
        if self._context is None:
            return 0, 0
        tracker = self._context.statusTracker()
        stages = {
            stage
            for number in tracker.getJobIdsForGroup(self._group)
            if (info := tracker.getJobInfo(number)) is not None and info.status == "RUNNING"
            for stage in info.stageIds
        }
        infos = [info for stage in stages if (info := tracker.getStageInfo(stage)) is not None]
        return sum(info.numCompletedTasks for info in infos), sum(info.numTasks for info in infos)

    def cancel(self) -> None:
        """Cancel the jobs of the group."""
        if self._context is not None:
            self._context.cancelJobGroup(self._group)


def receipts_of(rows: Sequence[tuple[int, str]], count: int) -> list[Receipt]:
    """Return the receipts of ``count`` tasks in their order. Raises JobFailedError if one failed or is missing.

    ``rows``: number of each task, and its receipt as JSON.
    """
    found: dict[int, Receipt] = {number: json.loads(text) for number, text in rows}
    failed = [receipt["failed"] for _, receipt in sorted(found.items()) if "failed" in receipt]
    if failed:
        first = failed[0]
        hint = "; ".join(part for part in (first.get("hint") or "", AGAIN) if part)
        error = JobFailedError(f"{counted(len(failed), 'task')} of {count} failed: {first['message']}", hint=hint)
        error.exit_code = int(first["exit_code"])  # type: ignore[misc]  # that of the first error
        raise error
    if len(found) < count:
        raise JobFailedError(f"{count - len(found)} of {count} tasks returned no result", hint=AGAIN)
    return [found[number] for number in sorted(found)]


def need_no_speculation(setting: str) -> None:
    """Raise ConfigError if ``setting``, the value of ``spark.speculation``, is true.

    Spark would then run two attempts of a task concurrently.
    """
    if setting.strip().lower() == "true":
        raise ConfigError(
            f"{SPECULATION} is true: two attempts of a task would take the partition from each other; nothing was done",
            hint=f"pass --conf {SPECULATION}=false, or use a session without it",
        )


def _failed_query(error: Exception) -> JobFailedError:
    """Return a JobFailedError with Spark's message, without Java, or with the library's error that caused it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line.removeprefix(_ERRORS).partition(": ") for line in lines if line.startswith(_ERRORS)]
    if not ours:
        said = [line for line in lines if not line.startswith(_PY4J)] or [type(error).__name__]
        return JobFailedError(f"the Spark job failed: {said[0].removeprefix(': ')}", hint=AGAIN)
    name, _, words = ours[-1]
    failed = JobFailedError(f"the Spark job failed: {words}", hint=AGAIN)
    failed.exit_code = getattr(getattr(errors, name, None), "exit_code", failed.exit_code)  # type: ignore[misc]
    return failed
