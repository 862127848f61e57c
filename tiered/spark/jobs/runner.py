"""Runs a job from its plan to its receipt, in a session of its own or in the one that is there.

A job that is started again under its id goes on: its plan is adopted, tasks with a receipt are not done again, and one
that has ended gives its receipt once more.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyspark.sql import SparkSession

import tiered
from tiered import errors
from tiered.config import S3Keywords
from tiered.errors import ConfigError, TieredError
from tiered.program.application import Application, confirm
from tiered.program.output import counted
from tiered.program.progress import Progress
from tiered.spark.jobs.job import Job
from tiered.spark.jobs.kinds import JOBS, SPECULATIVE
from tiered.spark.jobs.plan import JobPlan, Receipt, Task
from tiered.spark.jobs.receipts import TASKS, JobFolder
from tiered.spark.jobs.source import NAME, TaskSource
from tiered.spark.jobs.status import PhaseStatus
from tiered.store.base import Store

MASTER = "local[*,4]"
"""All cores of this machine; a task is tried four times."""

LOOK_SECONDS = 0.25
"""Between two looks at how far Spark is."""

_SETTINGS = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR", "spark.ui.enabled": "false"}


SPECULATION = "spark.speculation"
_ERRORS = "tiered.errors."
"""How a traceback of a worker names an error of ours."""


class JobFailedError(TieredError):
    """Tasks of a job failed, and the job can be started again under its id; the first error is told."""

    code = "job_failed"
    exit_code: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Where Spark runs. ``master`` None: where ``spark-submit`` says, else on this machine; ``sc://host``: Connect."""

    master: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


class Session:
    """A session that is begun at the first use, and ended with the block if it was begun here."""

    def __init__(self, options: SparkOptions, job: str, job_id: str) -> None:
        self._options = options
        self._job = job
        self._name = f"tieredlog {job_id}"
        self._session: SparkSession | None = None
        self._own = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None and self._own:
            self._session.stop()

    def get(self) -> SparkSession:
        """The session, with the jobs' source."""
        if self._session is None:
            active = SparkSession.getActiveSession()
            self._session, self._own = (active, False) if active is not None else (self._begin(), True)
            need_no_speculation(self._job, str(self._session.conf.get(SPECULATION, "false")))
            self._session.dataSource.register(TaskSource)
        return self._session

    def _begin(self) -> SparkSession:
        builder = SparkSession.builder.appName(self._name)
        master = self._options.master
        if master is not None and master.startswith("sc://"):
            return builder.remote(master).getOrCreate()
        submitted = "SPARK_ENV_LOADED" in os.environ  # spark-submit has said where
        if master is not None or not submitted:
            builder = builder.master(master or MASTER)
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take the first python3 on PATH
        alone = {} if self._job in SPECULATIVE else {SPECULATION: "false"}  # whatever the cluster's default is
        for key, value in {**({} if submitted else _SETTINGS), **alone, **self._options.settings}.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()


@dataclass(frozen=True, slots=True)
class Where:
    """The bucket, opened, and how workers open it."""

    store: Store
    url: str
    s3: S3Keywords


@dataclass(frozen=True, slots=True)
class Asks:
    """Of a job that asks before it acts: the answer is ``yes``; or only what it would do is wanted."""

    yes: bool = False
    dry_run: bool = False


class JobRun:
    """One run of a job on the driver."""

    def __init__(
        self, app: Application, where: Where, folder: JobFolder, plan: JobPlan, session: Session, *, asks: Asks
    ) -> None:
        self.store = where.store
        self.plan = plan
        self._asks = asks
        self.job_id = folder.job_id
        self._app = app
        self._where = where
        self.folder = folder
        self._session = session
        self._run = app.ids.uid()[:12]

    def kept_tasks(self, phase: str, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """``tasks``, or those that an earlier run planned for the phase."""
        return self.folder.keep_tasks(phase, tasks)

    def say(self, line: str) -> None:
        """For people."""
        self._app.out.say(line)

    def agreed(self, question: str) -> bool:
        """Whether it may go on. Raises ConfigError if the answer is no, or nobody can answer."""
        if self._asks.dry_run:
            return False
        if self.folder.read("agreed") is None:
            confirm(self._app, f"spark {self.plan.job}", question, yes=self._asks.yes)
            self.folder.keep("agreed", {"question": question})
        return True

    @property
    def words(self) -> dict[str, str]:
        """How a data source of the job finds the bucket and the job: its options."""
        s3 = {word: str(value) for word, value in self._where.s3.items()}
        return {"url": self._where.url, "job": self.job_id, **s3}

    def session(self) -> SparkSession:
        """The session, for a job that is a query of Spark's own."""
        return self._session.get()

    def spark(self, title: str, query: Callable[[], object]) -> None:
        """Runs such a query. Raises JobFailedError, and what ``query`` itself refuses.

        On this thread: Spark finds a sink by the session of its thread.
        """
        watched = _Watched(self.session(), self.job_id)
        over = threading.Event()

        def look() -> None:
            with contextlib.suppress(Exception):  # a session that ends tells nothing more
                while not self._app.clock.wait(over, LOOK_SECONDS):
                    progress.show(*watched.tasks())

        with Progress(self._app, title) as progress:
            looking = threading.Thread(target=look, name="tiered-progress", daemon=True)
            looking.start()
            try:
                with watched:
                    query()
            except TieredError:
                raise
            except Exception as error:
                raise _failed_query(error, self.job_id) from error
            except BaseException:
                watched.cancel()
                raise
            finally:
                over.set()
                looking.join()

    def once(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """What ``make`` gave when it was first asked, in this run or an earlier one."""
        kept = self.folder.read(name)
        return kept if kept is not None else self.folder.keep(name, make())

    def tasks(self, title: str, tasks: Sequence[Task] | None = None, *, phase: str = TASKS) -> list[Receipt]:
        """The receipts of all tasks, in their order, those of earlier runs included.

        Raises JobFailedError if any failed: what the others did is kept.
        """
        wanted = self.plan.tasks if tasks is None else self.folder.keep_tasks(phase, tasks)
        receipts = self.folder.task_receipts(phase, self.folder.done(phase))
        failed: list[dict[str, Any]] = []
        status = PhaseStatus(self.folder, phase, self._run, wanted, done=receipts, clock=self._app.clock)
        with Progress(self._app, title, is_bytes=bool(status.total_bytes)) as progress:
            progress.show(*status.shown(len(receipts)))
            if len(receipts) < len(wanted):
                before = len(receipts)
                rows = self._collect(phase, lambda done: progress.show(*status.shown(before + done)))
                for number, receipt, is_failed in rows:
                    if is_failed:
                        failed.append(json.loads(receipt))
                    else:
                        receipts[number] = json.loads(receipt)
        if failed:
            raise _failure(failed, len(wanted), self.job_id)
        if len(receipts) < len(wanted):
            raise JobFailedError(
                f"{len(wanted) - len(receipts)} of {len(wanted)} tasks gave no receipt", hint=_again(self.job_id)
            )
        return [receipts[number] for number in range(len(wanted))]

    def _collect(self, phase: str, show: Callable[[int], None]) -> list[tuple[int, str, bool]]:
        """Runs what is left of a phase."""
        reader = self.session().read.format(NAME).options(**self.words, phase=phase, run=self._run)
        rows: list[tuple[int, str, bool]] = []

        def collect() -> None:
            rows.extend((row[0], row[1], row[2]) for row in reader.load().collect())

        self._waited(collect, show)
        return rows

    def _waited(self, query: Callable[[], object], show: Callable[[int], None]) -> None:
        """Spark is waited for on a thread, so that a signal is heard on this one."""
        raised: list[Exception] = []
        over = threading.Event()
        watched = _Watched(self.session(), self.job_id)

        def call() -> None:
            try:
                with watched:
                    query()
            except Exception as error:  # noqa: BLE001 - raised again by who waits
                raised.append(error)
            finally:
                over.set()

        thread = threading.Thread(target=call, name="tiered-job", daemon=True)
        thread.start()
        try:
            while not self._app.clock.wait(over, LOOK_SECONDS):
                show(watched.tasks()[0])
        except BaseException:
            watched.cancel()
            raise
        thread.join()
        if raised:
            raise _failed_query(raised[0], self.job_id) from raised[0]


class _Watched:
    """The Spark jobs of one block, by their group: how many tasks have ended, and their end. Nothing over Connect."""

    def __init__(self, session: SparkSession, group: str) -> None:
        self._group = group
        self._context: Any
        try:
            self._context = session.sparkContext
        except Exception:  # noqa: BLE001 - Connect has none, and each release says so in its own way
            self._context = None

    def __enter__(self) -> None:
        if self._context is not None:
            self._context.setJobGroup(self._group, f"tieredlog {self._group}", interruptOnCancel=True)

    def __exit__(self, *_: object) -> None:
        return

    def tasks(self) -> tuple[int, int]:
        """Tasks that have ended, of how many that are known by now."""
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
        """Ends them."""
        if self._context is not None:
            self._context.cancelJobGroup(self._group)


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked: a job, its arguments, its id (None: a new one), and whether only to plan it."""

    job: str
    arguments: Mapping[str, Any]
    job_id: str | None = None
    only_plan: bool = False
    asks: Asks = Asks()


def run_job(app: Application, where: Where, order: Order, spark: SparkOptions = SparkOptions()) -> int:
    """Plans the job, or goes on with it, and prints what it came to. Gives the exit code."""
    job: Job = JOBS[order.job]
    name = f"spark {order.job}"
    if order.only_plan:
        plan = job.plan(where.store, order.arguments, app.clock.now_ms())
        return app.out.result(name, {"tasks": len(plan.tasks), "plan": plan.facts}, job.table(plan))
    folder = JobFolder(where.store, order.job_id or f"{order.job}-{app.ids.uid()[:12]}")
    app.out.say(f"job {folder.job_id}: --job {folder.job_id} goes on with it")
    kept = folder.plan()
    if kept is not None:
        _check_same(kept, order, folder.job_id)
    receipt = folder.receipt()
    if receipt is None:
        plan = kept or folder.keep_plan(job.plan(where.store, order.arguments, app.clock.now_ms()))
        _check_same(plan, order, folder.job_id)
        for line in job.table(plan):
            app.out.say(line)
        with Session(spark, order.job, folder.job_id) as session:
            outcome = job.carry_out(JobRun(app, where, folder, plan, session, asks=order.asks))
        if not outcome.is_end:
            fields = {"job": order.job, "job_id": folder.job_id, "done": outcome.fields}
            return app.out.result(name, fields, [*job.lines(outcome.fields), _again(folder.job_id)], outcome.exit_code)
        receipt = folder.conclude(
            {
                "job": order.job,
                "job_id": folder.job_id,
                "arguments": plan.arguments,
                "began_ms": plan.began_ms,
                "ended_ms": app.clock.now_ms(),
                "release": tiered.__version__,
                "tasks": len(plan.tasks),
                "exit_code": outcome.exit_code,
                "done": outcome.fields,
            }
        )
    else:
        app.out.say("it has ended: this is its receipt")
    fields = {key: value for key, value in receipt.items() if key != "exit_code"}
    text = [*job.lines(receipt["done"]), f"receipt: {folder.key('receipt.json')}"]
    return app.out.result(name, fields, text, int(receipt["exit_code"]))


def need_no_speculation(job: str, setting: str) -> None:
    """Raises ConfigError if Spark would run two attempts of a task side by side, and the job cannot have that."""
    if job not in SPECULATIVE and setting.strip().lower() == "true":
        raise ConfigError(
            f"{SPECULATION} is true: a second attempt of a task of {job} would take its partition from the first one, "
            "and neither may end; nothing was done",
            hint=f"--conf {SPECULATION}=false, or a session without it",
        )


def _again(job_id: str) -> str:
    return f"--job {job_id} goes on with what is left"


def _failure(failed: Sequence[Mapping[str, Any]], tasks: int, job_id: str) -> JobFailedError:
    """All of them as the first one, with its exit code."""
    first = failed[0]
    error = JobFailedError(
        f"{counted(len(failed), 'task')} of {tasks} failed: {first['message']}",
        hint="; ".join(part for part in (first.get("hint") or "", _again(job_id)) if part),
    )
    error.exit_code = int(first["exit_code"])  # type: ignore[misc]  # of this one
    return error


def _failed_query(error: Exception, job_id: str) -> JobFailedError:
    """What Spark says, without its Java: an error of ours, where one is in it, with its exit code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line.removeprefix(_ERRORS).partition(": ") for line in lines if line.startswith(_ERRORS)]
    if not ours:
        return JobFailedError(f"Spark: {lines[0] if lines else type(error).__name__}", hint=_again(job_id))
    name, _, words = ours[-1]
    failed = JobFailedError(f"Spark: {words}", hint=_again(job_id))
    failed.exit_code = getattr(getattr(errors, name, None), "exit_code", failed.exit_code)  # type: ignore[misc]
    return failed


def _check_same(plan: JobPlan, order: Order, job_id: str) -> None:
    if (plan.job, dict(plan.arguments)) != (order.job, dict(order.arguments)):
        raise ConfigError(
            f"the job {job_id} is another one: {plan.job} of {dict(plan.arguments)}",
            hint="--job takes another name, or the same arguments",
        )
