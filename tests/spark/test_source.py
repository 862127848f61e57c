"""The batch source in a real session: rows equal what was written, once each, however the query is shaped."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tiered
import tiered.spark
from tests.unit.remote.building import FIRST_MS, TOPIC_ID, RemoteLog, batches, records, seal
from tiered.config import TopicConfig
from tiered.format.batch import encode_batch
from tiered.format.codecs import Codec
from tiered.format.keys import root_key
from tiered.format.rows import Rows
from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, TopicPartition
from tiered.remote.topics import register_topic
from tiered.store.base import Delete
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive

pytestmark = pytest.mark.spark

P0_END, P1_END = 400, 150


@dataclass(frozen=True)
class Bucket:
    """A directory store with the topic ``flights`` (partition 0: 0..400 in four segments, 1: 50..150 in one)."""

    path: str
    store: DirectoryStore

    def log(self, topic: str = "flights", partition: int = 0, topic_id: UUID = TOPIC_ID) -> RemoteLog:
        return RemoteLog(self.store, topic, topic_id, partition)

    def register(self, topic: str, partitions: int, topic_id: UUID) -> None:
        drive(self.store, register_topic(topic, topic_id, partitions, {}))


def make_bucket(path: Path) -> Bucket:
    return Bucket(str(path), DirectoryStore(path))


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    made = make_bucket(tmp_path_factory.mktemp("bucket"))
    made.register("flights", 2, TOPIC_ID)
    made.log(partition=0).fill(P0_END)
    made.log(partition=1).add(seal(batches(50, P1_END, codec=Codec.LZ4), partition=1))
    return made


def load(spark: SparkSession, bucket: Bucket, schema: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("tiered").option("subscribe", "flights")
    for key, value in options.items():
        reader = reader.option(key.replace("__", "."), value)
    return (reader.schema(schema) if schema else reader).load(bucket.path)


def offsets(df: DataFrame) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in df.select("partition", "offset").collect():
        found.setdefault(row["partition"], []).append(row["offset"])
    return {partition: sorted(values) for partition, values in sorted(found.items())}


def error_of(df_or_load: Any) -> str:
    with pytest.raises(Exception) as error:  # Spark wraps what its planner raised in several types
        df_or_load()
    return str(error.value)


def test_rows_and_types_are_those_of_kafkas_source(spark: SparkSession, bucket: Bucket) -> None:
    df = load(spark, bucket)
    assert df.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    rows = df.where("partition = 0").orderBy("offset").collect()
    expected = records(0, P0_END)
    assert [(bytes(r["key"]), bytes(r["value"]), r["offset"]) for r in rows] == [
        (record.key, record.value, at) for at, record in enumerate(expected)
    ]
    assert {(r["topic"], r["timestampType"]) for r in rows} == {("flights", 0)}
    times = df.selectExpr("partition", "offset", "unix_millis(timestamp) ms").where("partition = 0").collect()
    assert all(row["ms"] == FIRST_MS + row["offset"] * 10 for row in times)


def test_ranges_by_offset_and_by_time(spark: SparkSession, bucket: Bucket) -> None:
    everything = {0: list(range(P0_END)), 1: list(range(50, P1_END))}
    assert offsets(load(spark, bucket)) == everything
    some = load(
        spark,
        bucket,
        startingOffsets=json.dumps({"flights": {"0": 95, "1": -2}}),
        endingOffsets=json.dumps({"flights": {"0": 205, "1": 51}}),
    )
    assert offsets(some) == {0: list(range(95, 205)), 1: [50]}
    timed = load(spark, bucket, startingTimestamp=FIRST_MS + 1001, endingTimestamp=FIRST_MS + 1100)
    assert offsets(timed) == {0: list(range(101, 110)), 1: list(range(101, 110))}
    by_partition = load(
        spark,
        bucket,
        startingOffsetsByTimestamp=json.dumps({"flights": {"0": FIRST_MS + 3900, "1": FIRST_MS + 999_999}}),
        startingOffsetsByTimestampStrategy="latest",
    )
    assert offsets(by_partition) == {0: list(range(390, 400))}
    assigned = spark.read.format("tiered").option("assign", '{"flights": [1]}').load(bucket.path)
    assert offsets(assigned) == {1: list(range(50, P1_END))}


def test_a_dataframe_used_twice_keeps_its_rows(spark: SparkSession, bucket: Bucket) -> None:
    df = load(spark, bucket).where("partition = 0")
    low, high = df.where("offset < 10"), df.where("offset >= 390")
    assert low.count() == 10
    assert df.count() == P0_END
    assert low.union(high).agg(F.min("offset"), F.max("offset"), F.count("*")).first() == (0, 399, 20)
    assert low.union(df).count() == P0_END + 10
    assert df.union(low).count() == P0_END + 10
    assert low.alias("a").join(df.where("offset < 5").alias("b"), "offset").count() == 5
    df.createOrReplaceTempView("flights_view")
    assert spark.sql("SELECT count(*) FROM flights_view WHERE offset < 30").first() == (30,)
    assert spark.sql("SELECT count(*) FROM flights_view").first() == (P0_END,)
    newest = "SELECT count(*) FROM flights_view WHERE offset = (SELECT max(offset) FROM flights_view)"
    assert spark.sql(newest).first() == (1,)


def test_a_schema_chooses_columns_and_their_order(spark: SparkSession, bucket: Bucket) -> None:
    df = load(spark, bucket, "offset long, topic string")
    assert df.agg(F.sum("offset"), F.min("topic")).first() == (
        sum(range(P0_END)) + sum(range(50, P1_END)),
        "flights",
    )
    assert load(spark, bucket, "value binary").where("length(value) = 24").count() == P0_END + P1_END - 50
    assert "column key is binary, not string" in error_of(lambda: load(spark, bucket, "key string").count())
    assert "there is no column salary" in error_of(lambda: load(spark, bucket, "salary long").count())
    given = load(spark, bucket, "OFFSET bigint NOT NULL, Value binary, timestamptype int", maxRecordsPerPartition=100)
    assert given.schema.simpleString() == "struct<OFFSET:bigint,Value:binary,timestamptype:int>"
    assert not given.schema["OFFSET"].nullable
    assert given.rdd.getNumPartitions() == 5
    summed = given.where("length(value) = 24").agg(F.sum("offset"), F.sum("timestampType")).first()
    assert summed == (sum(range(P0_END)) + sum(range(50, P1_END)), 0)
    assert "OFFSET" in error_of(lambda: load(spark, bucket, "offset long, OFFSET long").count())
    assert "there is no broker" in error_of(lambda: load(spark, bucket, kafka__bootstrap__servers="b:9092").count())


def test_headers_tombstones_and_times_before_1970_are_not_lost(spark: SparkSession, tmp_path: Path) -> None:
    bucket = make_bucket(tmp_path)
    bucket.register("flights", 1, TOPIC_ID)
    headers: list[tuple[str, bytes | None]] = [("trace", b"\x00\xff"), ("trace", None), ("país", b"")]
    batch = encode_batch(
        [
            NewRecord(b"v", b"k", 5, headers),
            NewRecord(None, b"tombstone", 0, None),
            NewRecord(b"", None, -1, []),
        ]
    )
    bucket.log().add(seal([batch]))
    rows = load(spark, bucket, includeHeaders="true").orderBy("offset").collect()
    assert [(h["key"], h["value"]) for h in rows[0]["headers"]] == headers
    assert [row["headers"] for row in rows[1:]] == [None, None]
    assert [(row["key"], row["value"]) for row in rows] == [(b"k", b"v"), (b"tombstone", None), (None, b"")]
    assert rows[1]["timestamp"] == dt.datetime(1970, 1, 1)  # naive, in the session's zone: UTC


def test_a_load_is_a_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    bucket = make_bucket(tmp_path)
    bucket.register("flights", 1, TOPIC_ID)
    log = bucket.log()
    rows = log.fill(100)
    df = load(spark, bucket, "offset long")
    assert df.count() == 100
    newer = log.fill(200, start=100)
    assert df.count() == 100
    fresh = load(spark, bucket, "offset long, key binary")
    assert fresh.count() == 200
    loose = load(spark, bucket, "offset long", failOnDataLoss="false")
    assert loose.count() == 200
    log.put_root(Rows.from_rows(newer), start_offset=100)
    log.delete(rows[0])
    message = error_of(fresh.collect)
    assert "flights-0: offsets 0 to 100 are gone since this DataFrame was planned: the log holds 100 to 200" in message
    assert "load again" in message
    assert offsets(loose.withColumn("partition", F.lit(0))) == {0: list(range(100, 200))}


def test_lost_offsets_are_an_error_unless_told(spark: SparkSession, bucket: Bucket) -> None:
    asked = {"startingOffsets": json.dumps({"flights": {"0": 0, "1": 20}})}
    message = error_of(lambda: load(spark, bucket, **asked).count())
    assert "flights-1: offsets 20 to 150 were asked for, the log holds 50 to 150" in message
    assert offsets(load(spark, bucket, failOnDataLoss="false", **asked))[1] == list(range(50, P1_END))


@pytest.mark.parametrize("end", ["", '{"flights": {"0": 420, "1": 70}}', '{"flights": {"0": 10, "1": 70}}'])
def test_a_start_behind_the_end_is_skipped_where_loss_is_accepted(
    spark: SparkSession, bucket: Bucket, end: str
) -> None:
    asked = {"startingOffsets": json.dumps({"flights": {"0": P0_END + 50, "1": 60}})}
    asked |= {"endingOffsets": end} if end else {}
    until = 70 if end else P1_END
    assert offsets(load(spark, bucket, failOnDataLoss="false", **asked)) == {1: list(range(60, until))}
    assert f"flights-0: the query starts at offset {P0_END + 50}" in error_of(
        lambda: load(spark, bucket, **asked).count()
    )


def test_a_table_of_the_catalog_names_the_temporary_view(spark: SparkSession, bucket: Bucket) -> None:
    spark.sql(f"CREATE TABLE flights_table USING tiered OPTIONS (path '{bucket.path}', subscribe 'flights')")
    try:
        message = error_of(lambda: spark.sql("SELECT count(*) FROM flights_table").collect())
    finally:
        spark.sql("DROP TABLE flights_table")
    assert "in SQL CREATE TEMPORARY VIEW name USING tiered OPTIONS (path" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "earliest"}, "unknown option startingoffset (did you mean startingOffsets?)"),
        ({"startingOffsets": '{"flights": {"0": 5}}'}, "option startingOffsets does not name flights-1"),
        ({"endingOffsets": '{"flights": {"0": 5, "1": 60, "2": 7}}'}, "option endingOffsets names flights-2"),
        ({"startingTimestamp": FIRST_MS + 10**9}, "no record has a timestamp of"),
        (
            {"startingOffsets": '{"flights": {"0": 50, "1": 60}}', "endingOffsets": '{"flights": {"0": 20, "1": 70}}'},
            "flights-0: the query starts at offset 50, after its end 20",
        ),
    ],
)
def test_a_wrong_option_is_told_on_the_driver(
    spark: SparkSession, bucket: Bucket, options: dict[str, Any], message: str
) -> None:
    assert message in error_of(lambda: load(spark, bucket, **options).count())


def test_topics_by_pattern_and_unknown_ones(spark: SparkSession, tmp_path: Path) -> None:
    bucket = make_bucket(tmp_path)
    for at, name in enumerate(("flights-2013", "flights-2014", "weather", "__consumer_offsets")):
        bucket.register(name, 1, UUID(int=at + 1))
        bucket.log(name, topic_id=UUID(int=at + 1)).add(seal(batches(0, 10), topic_id=UUID(int=at + 1)))
    reader = spark.read.format("tiered")
    found = reader.option("subscribePattern", "flights-.*").load(bucket.path)
    assert sorted(row["topic"] for row in found.select("topic").distinct().collect()) == [
        "flights-2013",
        "flights-2014",
    ]
    assert spark.read.format("tiered").option("subscribePattern", "none.*").load(bucket.path).count() == 0
    internal = spark.read.format("tiered").option("subscribePattern", ".*offsets").load(bucket.path)
    assert internal.count() == 0
    assert "there is no topic flights in" in error_of(lambda: load(spark, bucket).count())


def test_both_tiers_are_one_table(spark: SparkSession, tmp_path: Path) -> None:
    bucket, directory = make_bucket(tmp_path / "bucket"), tmp_path / "log"
    bucket.register("flights", 1, TOPIC_ID)
    bucket.log().fill(60)
    with LocalLog.open(directory) as local:
        local.create_topic("flights", 1, TopicConfig(), TOPIC_ID)
        partition = local.partition(TopicPartition("flights", 0))
        partition.start_at(60, 1)
        partition.append(records(60, 40))
    both = load(spark, bucket, local_dir=str(directory))
    assert offsets(both) == {0: list(range(100))}
    assert [row["key"] for row in both.where("offset = 77").collect()] == [b"key-0"]
    alone = spark.read.format("tiered").option("subscribe", "flights").option("local_dir", str(directory)).load()
    assert offsets(alone) == {0: list(range(60, 100))}


def test_registering_names_the_workers_python_if_nobody_did(
    spark: SparkSession, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiered.spark.register(spark)
    assert load(spark, bucket).count() == P0_END + P1_END - 50
    monkeypatch.delenv("PYSPARK_PYTHON")
    with pytest.warns(UserWarning, match="set PYSPARK_PYTHON="):
        tiered.spark.register(spark)


def test_a_lost_root_is_no_empty_partition(spark: SparkSession, tmp_path: Path) -> None:
    made = make_bucket(tmp_path)
    made.register("flights", 2, TOPIC_ID)
    made.log(partition=0).fill(P0_END)
    assert offsets(load(spark, made)) == {0: list(range(P0_END))}
    made.store.execute(Delete((root_key(TOPIC_ID, 0),)))
    assert "the registry entry says that it was made with its topic" in error_of(lambda: load(spark, made).count())
