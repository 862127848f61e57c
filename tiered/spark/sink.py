"""The sink, batch and stream: what Spark calls, on the driver and in the workers.

=====================================  ==================  ======================================================
call                                   process             does
=====================================  ==================  ======================================================
``writer``, ``streamWriter``           driver's planner    checks options, columns and the topic; probes the store
``write(rows)``                        worker of the task  stages segments (``staging``)
``commit(messages)``                   driver              decision, one CAS per touched partition (``sink_commit``)
``abort(messages)``                    driver              nothing: Spark calls it also after a commit that landed
=====================================  ==================  ======================================================

Each batch belongs to a *transaction id*: of a stream that of its checkpoint (Spark's query id, which the tasks read
from their context and send with what they staged: ``commit`` is told the batch alone), of a batch job option ``txnId``,
or a random one. What was decided for a batch stands; a replay adopts it, also if the query would give other rows now.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tiered.clock import SystemClock, SystemIds
from tiered.errors import ConfigError
from tiered.plan.stage import once_id
from tiered.remote.fence import owner_of
from tiered.remote.stage import Sink
from tiered.spark.sink_commit import commit_batch
from tiered.spark.sink_topics import SinkTopics
from tiered.spark.staging import Job, Staged, TaskStaging
from tiered.spark.stores import capabilities_of, store_of
from tiered.spark.trigger_pace import TriggerPace
from tiered.spark.worker import begin_task, keep_modules
from tiered.spark.write_options import WriteOptions
from tiered.spark.write_schema import WriteSchema
from tiered.store.base import Capabilities

Messages = list[WriterCommitMessage | None]

_paces: dict[tuple[int, str], TriggerPace] = {}
_logger = logging.getLogger("tiered.spark")

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a stream."""


@dataclass(frozen=True, slots=True)
class TaskStaged(WriterCommitMessage):
    """What one task staged, for the commit."""

    job: Job
    staged: tuple[Staged, ...]


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What both writers are made of, pickled to the tasks. It holds no credentials."""

    options: WriteOptions
    schema: WriteSchema
    topics: SinkTopics
    capabilities: Capabilities

    @classmethod
    def of(cls, options: WriteOptions, schema: StructType, *, overwrite: bool) -> WritePlan:
        """Raises ConfigError for another mode or a wrong column, UnknownTopicError, and what the store raises."""
        if overwrite:
            raise ConfigError(
                "a log is only appended to",
                hint='mode("append"); of a stream outputMode "append" or "update": "complete" is all rows each time',
            )
        columns = WriteSchema.of(schema, topic=options.topic)
        store = store_of(options.path, options)
        return cls(options, columns, SinkTopics.plan(options, store), capabilities_of(store))

    def stage(self, rows: Iterator[pa.RecordBatch], job: Job) -> TaskStaged:
        """All rows of one task, stored and acknowledged."""
        begin_task()
        store = store_of(self.options.path, self.options)
        staging = TaskStaging(store, self.schema, self.topics.finder(store), job, self.capabilities)
        return TaskStaged(job, staging.write(rows))

    def commit(self, txn: str, batch: int, messages: Messages) -> None:
        """All rows of the tasks, or those that were decided before."""
        staged = [(message.job.task, message.staged) for message in _of_tasks(messages)]
        names = {each.topic_id: each.topic for _, of_task in staged for each in of_task}
        owner = owner_of(f"spark {txn}")
        store, topics = store_of(self.options.path, self.options), names if self.options.txn_id else None
        commit_batch(store, Sink(owner, names), txn, batch, staged, topics=topics)


class TieredWriter(DataSourceArrowWriter):
    """Of one batch job: pickled once, so that tasks and commit know the same id."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._txn = plan.options.txn_id or once_id(SystemIds().uid())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskStaged:
        """The rows of one task."""
        return self._plan.stage(iterator, Job(self._txn, 0, _context().partitionId()))

    def commit(self, messages: Messages) -> None:
        """All rows, or those that an earlier run of the same ``txnId`` decided."""
        self._plan.commit(self._txn, 0, messages)

    def abort(self, messages: Messages) -> None:
        """Says what stays behind."""
        _say_left(messages)


class TieredStreamWriter(DataSourceStreamArrowWriter):
    """Of one micro-batch; the commit has an instance of its own."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskStaged:
        """The rows of one task."""
        context = _context()
        txn, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if not txn or batch is None:
            raise ConfigError(f"Spark told no {QUERY_ID} and {BATCH_ID}", hint="use pyspark 4.2 or newer")
        return self._plan.stage(iterator, Job(txn, int(batch), context.partitionId()))

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803  Spark's name
        """All rows of the micro-batch, or those that were decided before a crash."""
        queries = {message.job.txn for message in _of_tasks(messages)}
        if len(queries) != 1:
            raise ConfigError(f"the tasks of micro-batch {batchId} belong to {len(queries)} queries")
        txn = queries.pop()
        self._plan.commit(txn, batchId, messages)
        _say_pace(txn, messages)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803  Spark's name
        """Says what stays behind."""
        _say_left(messages)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigError("rows are written in a task of Spark, and this is none")
    return context


def _of_tasks(messages: Messages) -> list[TaskStaged]:
    """Those of tasks that have ended well."""
    return [message for message in messages if isinstance(message, TaskStaged)]


def _say_pace(txn: str, messages: Messages) -> None:
    """Once in the life of this process, which commits batch after batch of a stream."""
    segments = [(each.topic, each.partition, each.row.size) for task in _of_tasks(messages) for each in task.staged]
    pace = _paces.setdefault((os.getpid(), txn), TriggerPace())
    said = pace.add(SystemClock().monotonic(), segments)
    if said:
        _logger.warning("stream %s: %s", txn, said)


def _say_left(messages: Messages) -> None:
    left = sum(len(message.staged) for message in _of_tasks(messages))
    if left:
        _logger.warning(
            "sink_aborted staged_segments=%d: they stay until a collection finds that no commit has them", left
        )


keep_modules()  # a worker of a sink loads this, and not ``source``
