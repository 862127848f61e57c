"""The internal data source of the jobs: a task's description in, one row with its receipt out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tiered.config import S3_WORDS, S3Keywords
from tiered.errors import TieredError
from tiered.spark.jobs.kinds import TASK_JOBS
from tiered.spark.jobs.plan import JobPlan, Task
from tiered.spark.jobs.receipts import JobFolder
from tiered.spark.jobs.status import CountedStore
from tiered.spark.schema import arrow_schema_of
from tiered.spark.stores import worker_store
from tiered.store.base import Store

NAME = "tiered_job"
WORDS = ("url", "job", "phase", "run")
"""The bucket, a job and one phase of it, and the run of the driver, whose tasks' progress counts."""
SCHEMA = "task int, receipt string, failed boolean"


@dataclass(frozen=True)
class TaskPartition(InputPartition):
    """One task, and the plan that it belongs to, without the other tasks."""

    number: int
    task: Task
    plan: JobPlan


class TaskSource(DataSource):
    """``format("tiered_job")``: options :data:`WORDS` and the words of S3. For the runner alone."""

    @classmethod
    def name(cls) -> str:
        """The word for ``format(...)``."""
        return NAME

    def schema(self) -> str:
        """One row a task."""
        return SCHEMA

    def reader(self, schema: StructType) -> TaskReader:
        """Runs what is left of a phase."""
        s3: S3Keywords = {word: self.options[word] for word in S3_WORDS if word in self.options}  # type: ignore[assignment]
        words = {word: self.options[word] for word in WORDS}
        return TaskReader(words, s3, schema)


class TaskReader(DataSourceReader):
    """Tasks without a receipt. An error of the tree is the task's result; any other ends the attempt, as in Spark."""

    def __init__(self, words: Mapping[str, str], s3: S3Keywords, schema: StructType) -> None:
        self._url, self._job_id, self._phase, self._run = (words[word] for word in WORDS)
        self._s3, self._schema = s3, schema

    def partitions(self) -> list[InputPartition]:
        """One for each task that is left."""
        folder = JobFolder(self._store(), self._job_id)
        plan = folder.plan()
        if plan is None:
            return []
        tasks, done = folder.tasks(self._phase, plan), folder.done(self._phase)
        alone = replace(plan, tasks=())
        return [TaskPartition(number, task, alone) for number, task in enumerate(tasks) if number not in done]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Does the task, and keeps its receipt before it is told."""
        if not isinstance(partition, TaskPartition):  # nothing is left: Spark calls once with an empty partition
            return
        store = self._store()
        folder = JobFolder(store, self._job_id)
        counted = CountedStore(store, folder.status_stem(self._phase, partition.number, self._run))
        try:
            receipt = TASK_JOBS[partition.plan.job].work(counted, partition.plan, partition.task)
            receipt = folder.keep_receipt(self._phase, partition.number, receipt)
        except TieredError as error:
            yield self._row(partition.number, json.dumps(error.as_json(), default=str), failed=True)
            return
        yield self._row(partition.number, json.dumps(receipt), failed=False)

    def _row(self, number: int, receipt: str, *, failed: bool) -> pa.RecordBatch:
        columns = [pa.array([number], pa.int32()), pa.array([receipt]), pa.array([failed])]
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema_of(self._schema))

    def _store(self) -> Store:
        return worker_store(self._url, **self._s3)
