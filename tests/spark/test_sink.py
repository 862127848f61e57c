"""The sink in a real session: what frames and streams write is read back, exactly once, by everybody."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import tiered
from tests.spark.restarts.verdict import judge
from tests.spark.staging import last_plan
from tiered.cli.main import run
from tiered.format.partitioner import Partitioner
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive
from tiered.store.steps import list_all

pytestmark = pytest.mark.spark

PARTITIONS = 3


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    return str(tmp_path / "bucket")


def writer(df: DataFrame, topic: str | None = "flights", **options: Any) -> DataFrameWriter:
    made = df.write.format("tiered").mode("append").option("createTopic", PARTITIONS)
    if topic is not None:
        made = made.option("topic", topic)
    for key, value in options.items():
        made = made.option(key, value)
    return made


def numbers(spark: SparkSession, count: int, tasks: int, start: int = 0) -> DataFrame:
    return spark.range(start, start + count, 1, tasks).selectExpr("concat('k', id) as key", "concat('v', id) as value")


def held(url: str, topic: str = "flights") -> dict[int, list[tuple[int, str, str]]]:
    """Offsets, keys and values of each partition, by the library's own reader."""
    found: dict[int, list[tuple[int, str, str]]] = {}
    with tiered.open_reader(url) as reader:
        for record in reader.topic(topic).read():
            row = (record.offset, (record.key or b"").decode(), (record.value or b"").decode())
            found.setdefault(record.partition, []).append(row)
    return found


def written(url: str, topic: str = "flights") -> Counter[str]:
    return Counter(value for rows in held(url, topic).values() for _, _, value in rows)


def error_of(call: Any) -> str:
    with pytest.raises(Exception) as error:
        call()
    return str(error.value)


def test_200_tasks_into_3_partitions_without_a_shuffle(spark: SparkSession, url: str) -> None:
    writer(numbers(spark, 1000, 200)).save(url)
    plan = last_plan(spark)
    assert "tiered" in plan.lower()
    assert "Exchange" not in plan
    chosen = Partitioner(PARTITIONS)
    expected: dict[int, list[str]] = {}
    for at in range(1000):
        expected.setdefault(chosen.partition_for(f"k{at}".encode()), []).append(f"v{at}")
    found = held(url)
    assert {number: [value for _, _, value in rows] for number, rows in found.items()} == expected
    assert all([offset for offset, _, _ in rows] == list(range(len(rows))) for rows in found.values())


def test_what_was_written_is_what_everybody_reads(
    spark: SparkSession, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    at = dt.datetime(2024, 5, 1, 12, 0, 0, 123000)
    rows = [
        ("flights", 2, b"k1", b"v1", at, [("trace", bytearray(b"1"))]),
        ("flights", 0, None, None, at, None),
        ("weather", 1, b"k2", b"v2", at, []),
    ]
    df = spark.createDataFrame(
        rows,
        "TOPIC string, Partition int, key binary, Value binary, timestamp timestamp,"
        " headers array<struct<key:string,value:binary>>",
    )
    writer(df, None).save(url)
    back = spark.read.format("tiered").option("subscribe", "flights,weather").option("includeHeaders", "true").load(url)
    columns = ("topic", "partition", "offset", "key", "value", "timestamp", "headers")
    assert [tuple(row) for row in back.orderBy("topic", "partition").select(*columns).collect()] == [
        ("flights", 0, 0, None, None, at, None),
        ("flights", 2, 0, b"k1", b"v1", at, [("trace", b"1")]),
        ("weather", 1, 0, b"k2", b"v2", at, None),
    ]
    copied = back.withColumn("topic", F.lit("copy"))
    writer(copied, None).save(url)
    again = spark.read.format("tiered").option("subscribe", "copy").load(url).select("key", "value", "timestamp")
    assert sorted(map(tuple, again.collect()), key=str) == sorted(((r[2], r[3], at) for r in rows), key=str)
    capfd.readouterr()
    assert run(["cat", "weather", "--remote", url, "--json"]) == 0
    assert '"value": "v2"' in capfd.readouterr().out


def test_the_same_id_adds_nothing_and_jobs_without_one_do(spark: SparkSession, url: str) -> None:
    random = spark.range(0, 100, 1, 4).selectExpr("concat(id, ':', rand()) as value", "cast(id as string) as key")
    writer(random, txnId="2024-05-01").save(url)
    first = written(url)
    assert first.total() == 100
    writer(random, txnId="2024-05-01").save(url)
    assert written(url) == first
    writer(random, txnId="2024-05-02").save(url)
    writer(numbers(spark, 10, 2)).save(url)
    writer(numbers(spark, 10, 2)).save(url)
    assert written(url).total() == 220


def stored(url: str) -> set[str]:
    keys = {entry.key for entry in drive(DirectoryStore(url), list_all(""))}
    return {key for key in keys if not key.startswith("probe/")}


def test_a_topic_of_a_local_log_is_refused_before_any_row_is_stored(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    with tiered.open(tmp_path / "log", remote=f"file://{url}") as log:
        log.topic("local", create=True).append(b"1")
        log.sync(timeout=60)
    before = stored(url)
    local = error_of(lambda: writer(numbers(spark, 3, 1), "local").save(url))
    assert "tiered topic transfer local spark" in local
    assert stored(url) == before


def test_what_is_refused_is_told_in_one_sentence(spark: SparkSession, url: str) -> None:
    df = numbers(spark, 3, 1)
    told = error_of(lambda: df.write.format("tiered").mode("append").option("topic", "nowhere").save(url))
    assert "there is no topic nowhere" in told
    assert "tiered topic create nowhere" in told
    assert "a log is only appended to" in error_of(lambda: writer(df).mode("overwrite").save(url))
    for mode in ("error", "ignore"):
        assert "UNSUPPORTED_DATA_SOURCE_SAVE_MODE" in error_of(lambda mode=mode: writer(df).mode(mode).save(url))
    assert "column id cannot be written" in error_of(lambda: writer(df.withColumn("id", F.lit(1))).save(url))
    assert "column value is int" in error_of(lambda: writer(df.withColumn("value", F.lit(1))).save(url))
    null_topic = df.withColumn("topic", F.lit(None).cast("string"))
    assert "a row has a null topic" in error_of(lambda: writer(null_topic, None).save(url))
    broker = writer(df).option("kafka.bootstrap.servers", "b:9092")
    assert "there is no broker" in error_of(lambda: broker.save(url))
    secret = error_of(lambda: writer(df).option("aws_secret_access_key", "hunter2").save(url))
    assert "options are part of the query plan" in secret
    assert "hunter2" not in secret
    assert not held_topics(url)


def held_topics(url: str) -> list[str]:
    """Topics with records."""
    with tiered.open_reader(url) as reader:
        return [name for name in reader.topics() if held(url, name)]


# -- streams ---------------------------------------------------------------------------------------------------------


def lines(folder: Path, name: str, count: int) -> list[str]:
    """One more file of a stream's input."""
    folder.mkdir(exist_ok=True)
    rows = [f"{name}.{at}" for at in range(count)]
    (folder.parent / name).write_text("\n".join(rows) + "\n")
    (folder.parent / name).rename(folder / f"{name}.txt")
    return rows


def stream(spark: SparkSession, base: Path, url: str, checkpoint: str = "checkpoint") -> StreamingQuery:
    """All input so far, one file a batch, with other values and partitions at each attempt."""
    text = spark.readStream.option("maxFilesPerTrigger", 1).text(str(base / "input"))
    rows = text.repartition(2).selectExpr(
        "value as key", "concat(value, ':', rand()) as value", "cast(floor(rand() * 3) as int) as partition"
    )
    query = (
        rows.writeStream.format("tiered")
        .option("topic", "flights")
        .option("createTopic", PARTITIONS)
        .option("checkpointLocation", str(base / checkpoint))
        .trigger(availableNow=True)
        .start(url)
    )
    query.awaitTermination(120)
    return query


def test_a_stream_writes_each_row_once_also_where_spark_repeats_a_batch(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    keys = [key for name in ("a", "b", "c") for key in lines(tmp_path / "input", name, 30)]
    stream(spark, tmp_path, url)
    before = held(url)
    last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert last.name == "2"
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink()
    stream(spark, tmp_path, url)
    assert held(url) == before
    keys += lines(tmp_path / "input", "d", 30)
    stream(spark, tmp_path, url)
    verdict = judge(DirectoryStore(Path(url)), keys)
    assert verdict.rows == 120
    assert verdict.holds(6), verdict
    assert verdict.orphans > 0  # of the batch that was repeated


def test_a_new_checkpoint_is_another_writer(spark: SparkSession, url: str, tmp_path: Path) -> None:
    keys = lines(tmp_path / "input", "a", 20)
    stream(spark, tmp_path, url)
    stream(spark, tmp_path, url, "second")
    writer(numbers(spark, 5, 1)).save(url)
    found = Counter(key for rows in held(url).values() for _, key, _ in rows)
    assert found == Counter(keys * 2 + [f"k{at}" for at in range(5)])


def test_complete_mode_is_refused(spark: SparkSession, url: str, tmp_path: Path) -> None:
    lines(tmp_path / "input", "a", 3)
    counted = spark.readStream.text(str(tmp_path / "input")).groupBy("value").count()
    query = (
        counted.select("value")
        .writeStream.format("tiered")
        .outputMode("complete")
        .option("topic", "flights")
        .option("createTopic", 1)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    assert "a log is only appended to" in error_of(lambda: query.start(url).awaitTermination(60))
