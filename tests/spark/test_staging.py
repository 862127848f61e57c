"""Tasks of the sink: which rows go where, what they become, and what is refused."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.staging import NOW_MS, TEXT, Bucket, batch_of, schema_of, values
from tests.unit.format.twins import at_work, compiled, each_twin, needs_both  # noqa: F401 - the fixture
from tiered.errors import ConfigError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError, TieredError
from tiered.format import pure_kernels
from tiered.format.batch import read_header
from tiered.format.codecs import Codec
from tiered.format.keys import segment_key
from tiered.format.partitioner import Partitioner
from tiered.spark.schema import WriteSchema
from tiered.spark.staging import StagingLimits
from tiered.store.base import Get, Object
from tiered.store.memory import MemoryStore
from tiered.testing.faults import FaultStore

EVERYTHING = "value binary, key binary, headers headers, topic string, partition int, timestamp timestamp"


@pytest.fixture
def bucket() -> Bucket:
    return Bucket(MemoryStore())


def written(bucket: Bucket, *tasks: list[pa.RecordBatch], **options: Any) -> None:
    staged = bucket.stage("job", 0, tasks, **options)
    bucket.commit("job", 0, staged)


def test_every_column_reaches_the_log(bucket: Bucket) -> None:
    bucket.make("flights", 2)
    bucket.make("weather", 1)
    at = dt.datetime(2023, 11, 14, 22, 13, 20, 5999, dt.UTC)
    rows = [
        (b"v0", b"k", [("trace", b"1"), ("empty", None)], "flights", 1, at),
        (None, b"k", None, "weather", None, None),
        (b"v2", None, [], "flights", 0, at),
        (b"v3", None, None, "flights", 1, None),
    ]
    written(bucket, [batch_of(EVERYTHING, rows)], columns=EVERYTHING, topic=None)
    ms = int(at.timestamp() * 1000)
    assert ms == 1_700_000_000_005
    assert [(r.offset, r.key, r.value, r.timestamp, r.headers) for r in bucket.records("flights", 1)] == [
        (0, b"k", b"v0", ms, [("trace", b"1"), ("empty", None)]),
        (1, None, b"v3", NOW_MS, ()),
    ]
    assert [(r.key, r.value, r.timestamp) for r in bucket.records("flights", 0)] == [(None, b"v2", ms)]
    assert [(r.key, r.value, r.timestamp) for r in bucket.records("weather", 0)] == [(b"k", None, NOW_MS)]


def test_keys_go_where_kafkas_producer_puts_them_and_an_option_wins_over_the_column(bucket: Bucket) -> None:
    bucket.make("flights", 5)
    rows = [(f"key-{at}", f"value-{at}", "elsewhere") for at in range(300)]
    columns = f"{TEXT}, topic string"
    written(bucket, [batch_of(columns, rows[:200]), batch_of(columns, rows[200:])], columns=columns)
    chosen = Partitioner(5)
    expected: dict[int, list[str]] = {number: [] for number in range(5)}
    for key, value, _ in rows:
        expected[chosen.partition_for(key.encode())].append(value)
    assert {number: values(records) for number, records in bucket.everything().items()} == expected


def test_rows_without_keys_take_turns_by_record_batch_and_task(bucket: Bucket) -> None:
    bucket.make("flights", 3)
    tasks = [[batch_of(TEXT, [(None, f"{task}-{part}")] * 4) for part in range(2)] for task in range(3)]
    staged = bucket.stage("query", 7, tasks)
    bucket.commit("query", 7, staged)
    assert {number: values(records) for number, records in bucket.everything().items()} == {
        0: ["1-1"] * 4 + ["2-0"] * 4,
        1: ["0-0"] * 4 + ["2-1"] * 4,
        2: ["0-1"] * 4 + ["1-0"] * 4,
    }


def test_segments_and_batches_are_bounded_and_compressed_as_the_topic_says(bucket: Bucket) -> None:
    topic = bucket.make("flights", 1, **{"segment.bytes": 20_000, "compression.type": "lz4", "max.message.bytes": 5000})
    seed = 20261122
    rng = random.Random(seed)
    rows = [(f"k{at}", rng.randbytes(300).hex()) for at in range(200)]
    written(bucket, [batch_of(TEXT, rows[at : at + 40]) for at in range(0, 200, 40)])
    assert values(bucket.records()) == [value for _, value in rows]
    found = bucket.rows()
    assert all(row.size <= 20_000 for row in found), f"seed {seed}"
    assert 3 <= len(found) <= 8
    headers = []
    for row in found:
        got = bucket.store.execute(Get(segment_key(topic.topic_id, 0, row)))
        assert isinstance(got, Object)
        assert (row.size, row.records) == (got.size, row.next - row.base)
        at = 0
        while at < got.size:
            headers.append(read_header(got.data, at))
            at += headers[-1].size_bytes
    assert {header.codec for header in headers} == {Codec.LZ4}
    assert max(header.size_bytes for header in headers) <= 5000
    assert {header.producer_id for header in headers} == {-1}


def test_a_task_holds_to_its_memory_whatever_the_partitions(bucket: Bucket) -> None:
    bucket.make("flights", 50)
    rows = [(f"key-{at}", "x" * 500) for at in range(2000)]
    small = StagingLimits(batch_bytes=4000, segment_bytes=50_000, buffer_bytes=100_000, uploads_at_once=2)
    staged = bucket.stage("job", 0, [[batch_of(TEXT, rows[at : at + 100]) for at in range(0, 2000, 100)]], limits=small)
    ((_, segments),) = staged
    assert sum(each.row.records for each in segments) == 2000
    assert len(segments) > 50
    assert max(each.row.size for each in segments) <= 50_000
    bucket.commit("job", 0, staged)
    expected: dict[int, list[bytes]] = {}
    chosen = Partitioner(50)
    for key, _ in rows:
        expected.setdefault(chosen.partition_for(key.encode()), []).append(key.encode())
    assert {number: [r.key for r in records] for number, records in bucket.everything().items()} == expected


def test_a_staged_segment_costs_two_puts_and_a_partition_without_rows_nothing(bucket: Bucket) -> None:
    bucket.make("flights", 3)
    store = FaultStore(bucket.store)
    staged = bucket.stage("job", 0, [[batch_of(TEXT, [("a", "1"), ("a", "2")])], [], [batch_of(TEXT, [])]], store=store)
    assert [len(segments) for _, segments in staged] == [1, 0, 0]
    assert sorted((operation, key[-4:]) for operation, key in store.calls) == [("put", ".idx"), ("put", ".log")]


def test_log_append_time_is_that_of_the_write(bucket: Bucket) -> None:
    bucket.make("flights", 1, **{"message.timestamp.type": "LogAppendTime"})
    columns = f"{TEXT}, timestamp timestamp"
    rows = [("k", "v", dt.datetime(2001, 1, 1, tzinfo=dt.UTC))]
    written(bucket, [batch_of(columns, rows)], columns=columns)
    assert [record.timestamp for record in bucket.records()] == [NOW_MS]
    (row,) = bucket.rows()
    assert (row.min_ts, row.max_ts) == (NOW_MS, NOW_MS)


BAD_ROWS: list[tuple[str, tuple[Any, ...], type[TieredError], str]] = [
    ("value string, topic string", ("v", None), ConfigError, "a row has a null topic"),
    ("value string, partition int", ("v", 9), ConfigError, "topic flights has no partition 9"),
    ("value string, partition int", ("v", -1), ConfigError, "a row names the partition -1"),
    ("value string, partition int", ("v", -2), ConfigError, "topic flights has no partition -2"),
    ("value string", ("x" * 6000,), RecordTooLargeError, "max.message.bytes is 5000"),
    ("value string, key string", ("v", None), InvalidRecordError, "topic flights is compacted"),
    (
        "value string, key string, timestamp timestamp",
        ("v", "k", dt.datetime(1969, 1, 1, tzinfo=dt.UTC)),
        InvalidTimestampError,
        "before 1970",
    ),
    (
        "value string, key string, timestamp timestamp",
        ("v", "k", dt.datetime(2040, 1, 1, tzinfo=dt.UTC)),
        InvalidTimestampError,
        "the clock says",
    ),
    ("value string, key string, headers headers", ("v", "k", [(None, b"x")]), InvalidRecordError, "has no name"),
]


@pytest.mark.parametrize(("columns", "row", "error", "words"), BAD_ROWS)
def test_rows_that_no_log_takes(
    bucket: Bucket, columns: str, row: tuple[Any, ...], error: type[TieredError], words: str
) -> None:
    policy = "compact" if "key" in columns else "delete"
    bucket.make("flights", 3, **{"max.message.bytes": 5000, "cleanup.policy": policy})
    topic = None if "topic" in columns else "flights"
    with pytest.raises(error, match=words) as told:
        bucket.stage("job", 0, [[batch_of(columns, [row])]], columns=columns, topic=topic)
    assert "\n" not in str(told.value)


BAD_COLUMNS = [
    ("key string", "flights", "the DataFrame has no column `value`"),
    ("value string", None, "no topic was named"),
    ("Value string, VALUE string", "flights", "column VALUE appears twice"),
    ("value bigint", "flights", "column value is bigint, not binary or string"),
    ("value string, Partition bigint", "flights", "column Partition is bigint, not int"),
    ("value string, topic binary", None, "column topic is binary, not string"),
    ("value string, timestamp bigint", "flights", "column timestamp is bigint, not timestamp"),
    ("value string, headers string", "flights", "column headers is string, not array<struct"),
    ("valeu string", "flights", "did you mean value?"),
    ("value string, salary string", "flights", "column salary cannot be written"),
]


@pytest.mark.parametrize(("columns", "topic", "words"), BAD_COLUMNS)
def test_columns_that_cannot_be_written(columns: str, topic: str | None, words: str) -> None:
    with pytest.raises(ConfigError) as told:
        WriteSchema.from_spark(schema_of(columns), topic=topic)
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_columns_of_the_source_are_taken_back_in_any_letters() -> None:
    columns = (
        "KEY binary, Value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
    )
    assert set(WriteSchema.from_spark(schema_of(columns), topic=None).places) == {
        "key",
        "value",
        "topic",
        "partition",
        "timestamp",
    }
    assert "topic" not in WriteSchema.from_spark(schema_of(columns), topic="other").places


@needs_both
def test_both_twins_stage_the_same_segments() -> None:
    seed = 20261123
    rng = random.Random(seed)
    names = [None, [], [("trace", b"1"), ("none", None)]]
    rows = [
        (rng.choice((None, rng.randbytes(rng.randint(0, 900)))), rng.choice((None, b"k%d" % at)), rng.choice(names))
        for at in range(3000)
    ]
    columns = "value binary, key binary, headers headers"
    batches = [batch_of(columns, rows[at : at + 170]) for at in range(0, 3000, 170)]
    small = StagingLimits(batch_bytes=9000, segment_bytes=200_000, buffer_bytes=10**7, uploads_at_once=2)
    found = []
    for twin in (compiled, pure_kernels):
        with at_work(twin):
            bucket = Bucket(MemoryStore())
            bucket.make("flights", 3)
            ((_, staged),) = bucket.stage("job", 0, [batches], columns=columns, limits=small)
            logs = []
            for each in staged:
                got = bucket.store.execute(Get(segment_key(each.topic_id, each.partition, each.row)))
                assert isinstance(got, Object)
                logs.append((each.partition, each.row.records, bytes(got.data)))
            found.append(sorted(logs))
    assert found[0] == found[1], f"seed {seed}"
    assert len(found[0]) > 3
