"""Rows of tasks, staged and committed as the sink does it, without a Spark session; and what a bucket then holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import tiered
from tiered.config import TopicConfig
from tiered.format.batch import decode_records, read_header
from tiered.format.kernels import Record
from tiered.format.keys import FLAG_STAGED, segment_key
from tiered.model import Row
from tiered.remote.root_view import RootView
from tiered.remote.sink_commit import PartitionCommit, Sink
from tiered.remote.topics import load_topic, register_topic
from tiered.spark.schema import WriteSchema
from tiered.spark.sink import WritePlan, commit_batch
from tiered.spark.staging import LIMITS, Job, SinkTopic, Staged, StagingLimits, TaskStaging
from tiered.spark.write_options import WriteOptions
from tiered.store.base import Capabilities, Get, Object, Store
from tiered.store.driver import drive
from tiered.testing.clock import FakeClock, SeededIds

TRUSTED = Capabilities(conditional_writes=True, ranges=True, returns_crc32c=True, verifies_crc32c=True)
NOW_MS = 1_700_000_000_000
TEXT = "key string, value string"
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


def schema_of(columns: str) -> StructType:
    """``name type, name type`` as a schema, without a session; ``headers`` is the type of headers."""
    pairs = [column.split() for column in columns.split(",")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


def batch_of(columns: str, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """A record batch as Spark hands it to a writer."""
    arrow = to_arrow_schema(schema_of(columns), timezone="America/New_York")
    values = list(zip(*rows, strict=True)) if rows else [[] for _ in arrow]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(values, arrow, strict=True)], schema=arrow
    )


class Bucket:
    """A store with topics, written to as a sink does."""

    def __init__(self, store: Store, *, seed: int = 1) -> None:
        self.store = store
        self.ids = SeededIds(seed)
        self.clock = FakeClock(NOW_MS)
        self.topics: dict[str, SinkTopic] = {}

    def make(self, name: str, partitions: int, **config: Any) -> SinkTopic:
        """Registers a topic."""
        settings = TopicConfig.from_properties(config)
        text = settings.to_text(changed_only=True)
        drive(self.store, register_topic(name, self.ids.uuid(), partitions, text), clock=self.clock, ids=self.ids)
        entry = drive(self.store, load_topic(name))
        assert entry is not None
        topic = self.topics[name] = SinkTopic(name, entry.topic_id, partitions, settings)
        return topic

    def stage(
        self,
        txn: str,
        batch: int,
        tasks: Sequence[Iterable[pa.RecordBatch]],
        *,
        columns: str = TEXT,
        topic: str | None = "flights",
        limits: StagingLimits = LIMITS,
        store: Store | None = None,
    ) -> list[tuple[int, tuple[Staged, ...]]]:
        """What each of ``tasks`` stages."""
        schema = WriteSchema.from_spark(schema_of(columns), topic=topic)
        staged = []
        for number, batches in enumerate(tasks):
            staging = TaskStaging(
                store or self.store,
                schema,
                lambda name: self.topics[name or topic or ""],
                Job(txn, batch, number),
                TRUSTED,
                limits=limits,
                clock=self.clock,
                ids=self.ids,
            )
            staged.append((number, staging.write(iter(batches))))
        return staged

    def commit(
        self, txn: str, batch: int, staged: list[tuple[int, tuple[Staged, ...]]], store: Store | None = None
    ) -> tuple[PartitionCommit, ...]:
        """As the driver, in a process of its own, which knows the topics of what was staged."""
        names = {each.topic_id: each.topic for _, of_task in staged for each in of_task}
        return commit_batch(store or self.store, Sink("test", names), txn, batch, staged)

    def rows(self, topic: str = "flights", partition: int = 0) -> list[Row]:
        """The rows of a partition's catalog."""
        view = RootView(self.topics[topic].topic_id, partition, topic)
        pinned = drive(self.store, view.pin())
        assert pinned is not None
        rows: list[Row] = []
        at = pinned.root.start_offset
        while at < pinned.root.next_offset:
            rows += drive(self.store, pinned.piece(at))
            at = rows[-1].next
        return rows

    def records(self, topic: str = "flights", partition: int = 0) -> list[Record]:
        """What the partition holds, decoded here from the objects that its catalog names."""
        topic_id, found, end = self.topics[topic].topic_id, list[Record](), 0
        for row in self.rows(topic, partition):
            assert row.base == end
            assert row.flags & FLAG_STAGED
            end = row.next
            got = self.store.execute(Get(segment_key(topic_id, partition, row)))
            assert isinstance(got, Object)
            at = 0
            while at < len(got.data):
                header = read_header(got.data, at)
                piece = got.data[at : at + header.size_bytes]
                found += [record._replace(offset=row.base + record.offset) for record in decode_records(piece)]
                at += header.size_bytes
        assert [record.offset for record in found] == list(range(end))
        return found

    def everything(self, topic: str = "flights") -> Mapping[int, list[Record]]:
        """All partitions."""
        return {number: self.records(topic, number) for number in range(self.topics[topic].partitions)}


def values(records: Iterable[Record]) -> list[str]:
    """The values, as text."""
    return [(record.value or b"").decode() for record in records]


def targets(landed: Iterable[PartitionCommit]) -> list[tuple[UUID, int]]:
    """Which partitions a commit touched."""
    return [(each.topic_id, each.partition) for each in landed]


def job_and_its_repetition(place: str, endpoint: str) -> list[Record]:
    """What a topic of two partitions holds on an S3 server after two jobs of three tasks under one ``txnId``."""
    given = {"path": place, "endpoint_url": endpoint, "topic": "flights", "createTopic": "2"}
    plan = WritePlan.from_options(WriteOptions.parse(given, streaming=False), schema_of(TEXT), overwrite=False)
    for word in ("first", "second"):
        rows = [(f"{word}-{at}", word) for at in range(50)]
        staged = [plan.stage(iter([batch_of(TEXT, rows)]), Job("nightly", 0, task)) for task in range(3)]
        plan.commit("nightly", 0, staged)
    with tiered.open_reader(place, endpoint_url=endpoint) as reader:
        return list(reader.topic("flights").read())


def need_first_job_alone(records: Sequence[Record]) -> None:
    """The first of the two jobs is there, once, at offsets without a gap."""
    assert [record.value for record in records] == [b"first"] * 150
    for partition in range(2):
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(len(offsets)))


def last_plan(spark: SparkSession) -> str:
    """The physical plan of the newest query of the session."""
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    return str(executions.apply(executions.size() - 1).physicalPlanDescription())
