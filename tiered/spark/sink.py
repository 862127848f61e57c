"""Sink, batch and stream: the methods that Spark calls, on the driver and in the workers.

=====================================  ==================  ======================================================
call                                   process             does
=====================================  ==================  ======================================================
``writer``, ``streamWriter``           driver's planner    checks options, columns and the topic; probes the store
``write(rows)``                        worker of the task  stages segments (``staging``)
``commit(messages)``                   driver              decision, one CAS per touched partition (``sink_commit``)
``abort(messages)``                    driver              nothing: Spark calls it also after a commit that landed
=====================================  ==================  ======================================================

Each batch belongs to a *transaction id*. That of a stream is its checkpoint's (Spark's query id, which tasks read from
their context and send with their segments, because ``commit`` gets only the batch). That of a batch job is the option
``txnId``, or random. A decision about a batch stands. A replay adopts it, even if the query would give other rows now.
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
from tiered.plan.sink_commit import once_id
from tiered.remote.claim import owner_of
from tiered.remote.sink_commit import Sink
from tiered.spark.sink_commit import commit_batch
from tiered.spark.sink_topics import SinkTopics
from tiered.spark.staging import Job, Staged, TaskStaging
from tiered.spark.stores import capabilities_of, store_of
from tiered.spark.trigger_pace import TriggerPace
from tiered.spark.worker_setup import keep_modules, start_task
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
    """Segments that one task staged, for the commit."""

    job: Job
    staged: tuple[Staged, ...]


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Plan of a write, shared by both writers and pickled to the tasks. Contains no credentials."""

    options: WriteOptions
    schema: WriteSchema
    topics: SinkTopics
    capabilities: Capabilities

    @classmethod
    def from_options(cls, options: WriteOptions, schema: StructType, *, overwrite: bool) -> WritePlan:
        """Make a plan. Raises ConfigError for another mode or a wrong column, UnknownTopicError, store errors."""
        if overwrite:
            raise ConfigError(
                "a log is only appended to",
                hint='mode("append"); of a stream outputMode "append" or "update": "complete" is all rows each time',
            )
        columns = WriteSchema.from_spark(schema, topic=options.topic)
        store = store_of(options.path, options)
        return cls(options, columns, SinkTopics.plan(options, store), capabilities_of(store))

    def stage(self, rows: Iterator[pa.RecordBatch], job: Job) -> TaskStaged:
        """Store all rows of one task and return the acknowledged segments."""
        start_task()
        store = store_of(self.options.path, self.options)
        staging = TaskStaging(store, self.schema, self.topics.finder(store), job, self.capabilities)
        return TaskStaged(job, staging.write(rows))

    def commit(self, txn: str, batch: int, messages: Messages) -> None:
        """Commit all rows of the tasks, or the rows of an earlier decision."""
        staged = [(message.job.task, message.staged) for message in _task_messages(messages)]
        names = {each.topic_id: each.topic for _, of_task in staged for each in of_task}
        owner = owner_of(f"spark {txn}")
        store, topics = store_of(self.options.path, self.options), names if self.options.txn_id else None
        commit_batch(store, Sink(owner, names), txn, batch, staged, topics=topics)


class TieredWriter(DataSourceArrowWriter):
    """Writer of one batch job, pickled once, so that tasks and commit use the same id."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._txn = plan.options.txn_id or once_id(SystemIds().uid())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskStaged:
        """Stage the rows of one task."""
        return self._plan.stage(iterator, Job(self._txn, 0, _context().partitionId()))

    def commit(self, messages: Messages) -> None:
        """Commit all rows, or those that an earlier run of the same ``txnId`` decided."""
        self._plan.commit(self._txn, 0, messages)

    def abort(self, messages: Messages) -> None:
        """Log how many staged segments remain."""
        _say_left(messages)


class TieredStreamWriter(DataSourceStreamArrowWriter):
    """Writer of one micro-batch. Spark makes a new instance for the commit."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskStaged:
        """Stage the rows of one task."""
        context = _context()
        txn, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if not txn or batch is None:
            raise ConfigError(f"Spark did not set {QUERY_ID} and {BATCH_ID}", hint="use pyspark 4.2 or newer")
        return self._plan.stage(iterator, Job(txn, int(batch), context.partitionId()))

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803  Spark's name
        """Commit all rows of the micro-batch, or those that were decided before a crash."""
        queries = {message.job.txn for message in _task_messages(messages)}
        if len(queries) != 1:
            raise ConfigError(f"the tasks of micro-batch {batchId} belong to {len(queries)} queries")
        txn = queries.pop()
        self._plan.commit(txn, batchId, messages)
        _say_pace(txn, messages)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803  Spark's name
        """Log how many staged segments remain."""
        _say_left(messages)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigError("rows can only be written in a task of Spark")
    return context


def _task_messages(messages: Messages) -> list[TaskStaged]:
    return [message for message in messages if isinstance(message, TaskStaged)]


def _say_pace(txn: str, messages: Messages) -> None:
    """Warn, once per process and stream, if the trigger is too frequent."""
    segments = [
        (each.topic, each.partition, each.row.size) for task in _task_messages(messages) for each in task.staged
    ]
    pace = _paces.setdefault((os.getpid(), txn), TriggerPace())
    said = pace.add(SystemClock().monotonic(), segments)
    if said:
        _logger.warning("stream %s: %s", txn, said)


def _say_left(messages: Messages) -> None:
    left = sum(len(message.staged) for message in _task_messages(messages))
    if left:
        _logger.warning(
            "sink_aborted staged_segments=%d: they stay until a collection finds that no commit has them", left
        )


keep_modules()  # a sink's worker loads this module, but not ``source``
