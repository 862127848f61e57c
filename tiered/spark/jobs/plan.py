"""What a job is to do, as it stands in the bucket, and what each kind of job has to say."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tiered.errors import ConfigError, CorruptionError
from tiered.store.base import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiered.spark.jobs.receipts import JobFolder

FORMAT = 1
MAX_TASKS = 100_000
"""Tasks of one phase: the driver holds a description and a receipt of each."""

Task = Mapping[str, Any]
"""What a worker is told; a JSON object."""
Receipt = Mapping[str, Any]
"""What it did; a JSON object."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job as it was planned at ``began_ms``. ``facts``: what the driver has to remember of that moment."""

    job: str
    arguments: Mapping[str, Any]
    began_ms: int
    tasks: tuple[Task, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """JSON. Raises ConfigError for more than :data:`MAX_TASKS` tasks."""
        if len(self.tasks) > MAX_TASKS:
            raise ConfigError(
                f"the job {self.job} is cut into {len(self.tasks)} tasks, {MAX_TASKS} are the most",
                hint="a larger --task-bytes, or fewer topics in one job",
            )
        return encoded({"format": FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes, *, key: str) -> JobPlan:
        """Raises CorruptionError, and ConfigError for one that a newer release wrote."""
        fields = decoded(data, key=key)
        if fields.pop("format", FORMAT) != FORMAT:
            raise ConfigError(f"{key} was written by a newer release", hint="go on with that release")
        return cls(**{**fields, "tasks": tuple(fields["tasks"])})


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


def encoded(fields: Mapping[str, Any]) -> bytes:
    """One JSON object, in one line."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def decoded(data: bytes, *, key: str) -> dict[str, Any]:
    """The inverse. Raises CorruptionError."""
    try:
        fields = json.loads(data)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise CorruptionError(
            f"{key} is no JSON object of a job",
            path_or_key=key,
            position=0,
            hint="begin the job under another id: --job NAME",
        )
    return fields
