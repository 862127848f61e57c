"""What each kind of job has to say, and what the run of one offers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tiered.spark.jobs.plan import JobPlan, Receipt, Task
from tiered.spark.jobs.receipts import JobFolder
from tiered.store.base import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job came to: ``fields`` of its receipt, the exit code. Not ``is_end``: it only said what it would do."""

    fields: Mapping[str, Any]
    exit_code: int = 0
    is_end: bool = True


class Run(Protocol):
    """One run of a job on the driver, as the job sees it."""

    @property
    def store(self) -> Store:
        """The bucket."""

    @property
    def folder(self) -> JobFolder:
        """What the job keeps in the bucket, under the name by which it goes on after a crash."""

    @property
    def words(self) -> Mapping[str, str]:
        """How a data source of the job finds the bucket and the job: its options."""

    @property
    def job_id(self) -> str:
        """The name under which it goes on after a crash."""

    @property
    def plan(self) -> JobPlan:
        """What is to be done."""

    def tasks(self, title: str, tasks: Sequence[Task] | None = None, *, phase: str = "tasks") -> list[Receipt]:
        """The receipts of all tasks, in their order, those of earlier runs included. None: the plan's tasks."""

    def kept_tasks(self, phase: str, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """``tasks``, or those that an earlier run planned for the phase."""

    def say(self, line: str) -> None:
        """For people."""

    def agreed(self, question: str) -> bool:
        """Whether it may go on: with ``--yes``, by an answer, or because it did before. False of a dry run."""

    def session(self) -> SparkSession:
        """The session, for a job that is a query of Spark's own."""

    def spark(self, title: str, query: Callable[[], object]) -> None:
        """Runs such a query. Raises what Spark says as an error of the tree."""

    def once(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """What ``make`` gave when it was first asked, in this run or an earlier one."""


class Job(Protocol):
    """One kind of job. Has no state: what it must remember is in the bucket."""

    @property
    def name(self) -> str:
        """The word for it."""

    def plan(self, store: Store, arguments: Mapping[str, Any], now_ms: int) -> JobPlan:
        """Looks at the bucket; changes nothing."""

    def table(self, plan: JobPlan) -> list[str]:
        """The plan, for people."""

    def carry_out(self, run: Run) -> Outcome:
        """All of it, on the driver."""

    def lines(self, fields: Mapping[str, Any]) -> list[str]:
        """What it came to, for people."""


class TaskJob(Job, Protocol):
    """A job with tasks of its own. One that is a query of Spark's has none."""

    def work(self, store: Store, plan: JobPlan, task: Task) -> Receipt:
        """One task, in a worker; ``plan`` without its tasks. Done again, it gives the same."""
