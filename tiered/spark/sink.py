"""Sink, batch and stream: the methods that Spark calls, on the driver and in the workers.

=====================================  ==================  ======================================================
call                                   process             does
=====================================  ==================  ======================================================
``writer``, ``streamWriter``           driver's planner    checks options, columns and the topic; probes the store
``write(rows)``                        worker of the task  stages segments (``staging``)
``commit(messages)``                   driver              decision, one CAS per touched partition
``abort(messages)``                    driver              nothing: Spark calls it also after a commit that landed
=====================================  ==================  ======================================================

Each batch belongs to a *transaction id*. That of a stream is its checkpoint's (Spark's query id, which tasks read from
their context and send with their segments, because ``commit`` gets only the batch). That of a batch job is the option
``txnId``, or random.

A commit may run again, after any crash, with other staged segments. A decision about a batch is made once and stands,
and a partition that has the batch is left alone (``remote.sink_commit``). So a write happens exactly once, whatever
rows the query gives next time.

A decision belongs to an id of the whole bucket, for all topics. A batch job with a used ``txnId`` would add nothing and
succeed. That is an error if the earlier use had no topic in common, and a warning otherwise.
"""

from __future__ import annotations

import functools
import logging
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tiered.clock import SystemClock, SystemIds
from tiered.errors import ConfigError, UnknownTopicError
from tiered.format.decision import COMMITTED, Decision
from tiered.format.keys import check_topic_name
from tiered.format.root import STATE_OPEN
from tiered.model import Row
from tiered.plan.sink_commit import once_id
from tiered.remote.committer import owner_of
from tiered.remote.sink_commit import PartitionCommit, Sink, need_partition
from tiered.remote.topics import load_topic, register_topic
from tiered.spark.schema import WriteSchema
from tiered.spark.staging import Job, SinkTopic, Staged, TaskStaging
from tiered.spark.worker import capabilities_of, keep_modules, start_task, store_of
from tiered.spark.write_options import WriteOptions
from tiered.store.base import Capabilities, Store
from tiered.store.driver import drive

Messages = list[WriterCommitMessage | None]

_paces: dict[tuple[int, str], TriggerPace] = {}
_logger = logging.getLogger("tiered.spark")

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a stream."""


@dataclass(frozen=True, slots=True)
class TaskStaged(WriterCommitMessage):
    """Message of one task to the commit: the segments that it staged."""

    job: Job
    staged: tuple[Staged, ...]


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Plan of a write. Both writers use it, and Spark pickles it to the tasks. It contains no credentials.

    ``named``: the topic of the option, which the planner looks up. None: only rows name topics, and tasks look them up.
    """

    options: WriteOptions
    schema: WriteSchema
    named: SinkTopic | None
    capabilities: Capabilities

    @classmethod
    def from_options(cls, options: WriteOptions, schema: StructType, *, overwrite: bool) -> WritePlan:
        """Return the plan of a write. ``overwrite``: Spark's flag for a mode that replaces rows; True is refused.

        Raises ConfigError (``overwrite``, a wrong column, a topic that is being deleted), UnknownTopicError,
        ConditionalWritesUnsupportedError, and the errors of the store. Without a ``txnId`` also raises FencedError if
        local logs own all partitions.
        """
        if overwrite:
            raise ConfigError(
                "rows cannot be overwritten: a log is only appended to",
                hint='use mode("append"), or outputMode("append") or outputMode("update") for a stream',
            )
        columns = WriteSchema.from_spark(schema, topic=options.topic)
        store = store_of(options.path, options)
        named = None if options.topic is None else find_topic(options, store, options.topic)
        if named is not None and options.txn_id is None:  # with an id the job may be committed: its commit checks this
            drive(store, need_partition(named.name, named.topic_id, named.partitions))
        return cls(options, columns, named, capabilities_of(store))

    def stage(self, rows: Iterator[pa.RecordBatch], job: Job) -> TaskStaged:
        """Upload all rows of one task as staged segments. Return the message that names them to the commit."""
        start_task()
        store = store_of(self.options.path, self.options)
        find = functools.cache(functools.partial(self._topic, store))
        staging = TaskStaging(store, self.schema, find, job, self.capabilities)
        return TaskStaged(job, staging.write(rows))

    def _topic(self, store: Store, name: str | None) -> SinkTopic:
        """Return the topic that a row names, or for None that of the option."""
        if name is not None:
            return find_topic(self.options, store, name)
        if self.named is None:
            raise ConfigError("no topic was named", hint='give option("topic", ...) or a column topic')
        return self.named

    def commit(self, txn: str, batch: int, messages: Messages) -> None:
        """Commit the rows of all tasks. If an earlier attempt already has a decision, commit its rows instead.

        ``txn``: transaction id. ``batch``: number of the micro-batch, 0 for a batch job. Raises FencedError,
        LogDestroyedError, ConfigError (``txn`` was used for other topics only), CommitUnknownError and the errors of
        the store.
        """
        staged = [(message.job.task, message.staged) for message in _task_messages(messages)]
        names = {each.topic_id: each.topic for _, of_task in staged for each in of_task}
        owner = owner_of(f"spark {txn}")
        store, topics = store_of(self.options.path, self.options), names if self.options.txn_id else None
        commit_batch(store, Sink(owner, names), txn, batch, staged, topics=topics)


class TieredWriter(DataSourceArrowWriter):
    """Writer of one batch job. It is pickled once, so that tasks and commit use the same transaction id."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._txn = plan.options.txn_id or once_id(SystemIds().uid())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskStaged:
        """Upload the rows of one task as staged segments. Return the message that names them to ``commit``."""
        return self._plan.stage(iterator, Job(self._txn, 0, _context().partitionId()))

    def commit(self, messages: Messages) -> None:
        """Commit all rows. If an earlier run of this ``txnId`` has a decision, commit the rows of that run.

        Raises FencedError if a local log owns a partition, LogDestroyedError for a deleted topic, ConfigError if the
        ``txnId`` was used for other topics only, and CommitUnknownError.
        """
        self._plan.commit(self._txn, 0, messages)

    def abort(self, messages: Messages) -> None:
        """Log the number of staged segments. Delete nothing: garbage collection deletes those that no commit names."""
        _say_left(messages)


class TieredStreamWriter(DataSourceStreamArrowWriter):
    """Writer of one micro-batch. Spark makes a new instance for the commit."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskStaged:
        """Upload the rows of one task as staged segments. Return the message that names them to ``commit``."""
        context = _context()
        txn, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if not txn or batch is None:
            raise ConfigError(f"Spark did not set {QUERY_ID} and {BATCH_ID}", hint="use pyspark 4.2 or newer")
        return self._plan.stage(iterator, Job(txn, int(batch), context.partitionId()))

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803  Spark's name
        """Commit all rows of the micro-batch. If an attempt before a crash has a decision, commit its rows instead.

        Raises FencedError if a local log owns a partition, LogDestroyedError for a deleted topic, ConfigError if the
        tasks belong to different queries, and CommitUnknownError.
        """
        queries = {message.job.txn for message in _task_messages(messages)}
        if len(queries) != 1:
            raise ConfigError(
                f"the tasks of micro-batch {batchId} belong to {len(queries)} queries",
                hint="start the query again from its checkpoint",
            )
        txn = queries.pop()
        self._plan.commit(txn, batchId, messages)
        _say_pace(txn, messages)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803  Spark's name
        """Log the number of staged segments. Delete nothing: garbage collection deletes those that no commit names."""
        _say_left(messages)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigError("rows can only be written in a Spark task, and this process runs none")
    return context


def _task_messages(messages: Messages) -> list[TaskStaged]:
    return [message for message in messages if isinstance(message, TaskStaged)]


def _say_pace(txn: str, messages: Messages) -> None:
    """Count the batch that ``messages`` staged. Warn, once per process and stream, if the trigger is too frequent."""
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


# -- topics ----------------------------------------------------------------------------------------------------------


def find_topic(options: WriteOptions, store: Store, name: str) -> SinkTopic:
    """Return the topic ``name``, by one GET. Create a missing topic if the option ``createTopic`` is set.

    Raises UnknownTopicError with the command that creates it, ConfigError for a topic that is being deleted.
    """
    entry = drive(store, load_topic(check_topic_name(name)))
    if entry is None and options.create_partitions is not None:
        entry = drive(store, register_topic(name, SystemIds().uuid(), options.create_partitions, MappingProxyType({})))
    if entry is None:
        raise UnknownTopicError(
            f"there is no topic {name} in {options.path}",
            hint=f'option("createTopic", "3") creates it with 3 partitions, as `tiered topic create {name} '
            f"--remote {options.path} --partitions 3` does",
        )
    if entry.state != STATE_OPEN:
        raise ConfigError(f"nothing can be written to topic {name}: it is {entry.state}", hint="write to another topic")
    return SinkTopic(entry.name, entry.topic_id, entry.partitions, entry.settings)


# -- commit on the driver --------------------------------------------------------------------------------------------

REQUESTS_TOGETHER = 16
"""Concurrent requests of one commit."""


StagedTasks = Iterable[tuple[int, Sequence[Staged]]]
"""Spark's number of each task, and its staged segments in the order of its rows."""


StagedRows = Mapping[tuple[UUID, int], tuple[Row, ...]]


def commit_batch(
    store: Store, sink: Sink, txn: str, batch: int, tasks: StagedTasks, *, topics: Mapping[UUID, str] | None = None
) -> tuple[PartitionCommit, ...]:
    """Commit batch ``batch`` of transaction id ``txn``. If an earlier attempt has a decision, commit its rows instead.

    Return the offsets of each partition, -1 if an earlier attempt has already committed there. An empty batch gets a
    decision, too: an earlier attempt may have had rows, or a suspended one may continue. ``topics``: names of the
    topics of a batch job with a user's ``txnId``; None for a stream or a random id.

    Raises FencedError if a local log owns a partition, or if garbage collection has aborted the batch. Raises
    LogDestroyedError for a deleted topic, ConfigError if ``txn`` was used for other topics only. After
    CommitUnknownError and RemoteUnavailableError call this again.
    """
    rows = rows_in_order(tasks)
    decision = drive(store, sink.decide(Decision(txn, batch, COMMITTED, rows)), together=REQUESTS_TOGETHER)
    adopted = _objects(decision.partitions) != _objects(rows)
    landed = drive(store, sink.commit_staged(decision), together=REQUESTS_TOGETHER)
    if adopted and topics is None:
        _logger.info("sink_replayed txn=%s batch=%d: what was decided before is committed", txn, batch)
    elif adopted and topics is not None:
        _warn_used_before(txn, rows, topics, landed)
    return landed


def _objects(rows: StagedRows) -> dict[tuple[UUID, int], list[tuple[int, int]]]:
    """Return the ids of the staged objects of each partition, to compare two attempts at a batch.

    Whole rows cannot be compared: the append times of a decision differ from those of the tasks.
    """
    return {target: [(row.id_hi, row.id_lo) for row in of_partition] for target, of_partition in rows.items()}


def rows_in_order(tasks: StagedTasks) -> dict[tuple[UUID, int], tuple[Row, ...]]:
    """Return the staged rows of each partition in the order of their tasks, so that a sorted frame stays sorted."""
    found: dict[tuple[UUID, int], list[Row]] = {}
    for _, staged in sorted(tasks, key=lambda task: task[0]):
        for segment in staged:
            found.setdefault((segment.topic_id, segment.partition), []).append(segment.row)
    return {target: tuple(rows) for target, rows in found.items()}


def _warn_used_before(
    txn: str, rows: StagedRows, topics: Mapping[UUID, str], landed: Sequence[PartitionCommit]
) -> None:
    """Warn that no row of this run was added, because an earlier run has used its ``txnId``.

    ``rows``: those of this run. ``topics``: their topic names. ``landed``: the commits of the earlier run. Raises
    ConfigError if the two runs share no topic.
    """
    decided = {each.topic_id: each.root.topic for each in landed}
    ours = {topic_id: topics[topic_id] for topic_id, _ in rows}
    left_out = sorted({name for topic_id, name in ours.items() if topic_id not in decided})
    if decided and ours and not ours.keys() & decided.keys():
        raise ConfigError(
            f"the {_count(rows)} rows for {_words(ours.values())} were not added: txnId {txn} was used "
            f"before for {_words(decided.values())}",
            hint="give each write a txnId of its own: it must be unique in the bucket, over all topics",
        )
    if not rows:
        return
    finished = any(each.base >= 0 for each in landed)
    state = "decided by a run that had not ended, whose rows were added now" if finished else "committed before"
    also = f"; that run wrote nothing to {_words(left_out)}" if left_out else ""
    _logger.warning("txnId %s was %s: none of the %d rows of this run were added%s", txn, state, _count(rows), also)


def _count(rows: StagedRows) -> int:
    return sum(row.records for of_partition in rows.values() for row in of_partition)


def _words(names: Iterable[str]) -> str:
    return f"topic {', '.join(sorted(set(names)))}"


# -- the pace of a stream's trigger ----------------------------------------------------------------------------------

WINDOW_BATCHES = 20
"""Batches with rows over which the pace is measured."""


SEGMENTS_A_DAY = 5_000
"""Most segments a day of one partition without a warning: four tasks with a trigger a minute make 5,760."""


TINY_BYTES = 1024 * 1024
"""Mean segment size below which requests and rows cost more than bytes."""


DAY_SECONDS = 86_400


class TriggerPace:
    """Last batches of one stream, for one warning if they come too often: many tiny segments are costly until merged.

    Each batch makes a segment for each task and partition. Until a maintainer merges them, each of them costs a row of
    the catalog, two objects, and requests of every reader.
    """

    def __init__(self) -> None:
        self._batches: deque[tuple[float, Counter[tuple[str, int]], int]] = deque(maxlen=WINDOW_BATCHES)
        self._is_said = False

    def add(self, now_seconds: float, segments: Iterable[tuple[str, int, int]]) -> str:
        """Add a committed batch: its monotonic time, and topic, partition and bytes of each of its segments.

        Return the warning, or ``""`` if there is none or it was returned before.
        """
        listed = list(segments)
        if self._is_said or not listed:
            return ""
        found = Counter((topic, partition) for topic, partition, _ in listed)
        self._batches.append((now_seconds, found, sum(size for _, _, size in listed)))
        if len(self._batches) < WINDOW_BATCHES:
            return ""
        seconds = now_seconds - self._batches[0][0]
        counts: Counter[tuple[str, int]] = Counter()
        for _, each, _ in list(self._batches)[1:]:  # the first batch ended where these seconds begin
            counts.update(each)
        mean_bytes = sum(size for _, _, size in self._batches) // sum(each.total() for _, each, _ in self._batches)
        (topic, partition), most = counts.most_common(1)[0]
        a_day = round(most * DAY_SECONDS / max(seconds, 1e-3))
        if mean_bytes >= TINY_BYTES or a_day <= SEGMENTS_A_DAY:
            return ""
        self._is_said = True
        return (
            f"the trigger is too frequent: the last {WINDOW_BATCHES - 1} batches wrote {most} segments into "
            f"{topic}-{partition} in {seconds:.0f} s, {mean_bytes:,} bytes each on average; that is {a_day:,} a day, "
            f"and {SEGMENTS_A_DAY:,} of less than {TINY_BYTES:,} bytes are many. Trigger once a minute or less often "
            f"(processingTime='1 minute'), write with fewer tasks (coalesce), and have them merged: "
            f"`tiered maintain {topic} --only merge --loop`, or `tiered spark maintain {topic} --only merge`"
        )


keep_modules()  # a sink's worker loads this module, but not ``source``
