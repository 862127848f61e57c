"""Streams in a real session: each row once, over restarts, crashes and whatever Spark asks twice."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.racing import MORE, RacingSource
from tests.spark.seeing import SeeingSink, Seen, seen_in
from tests.unit.remote.building import TOPIC_ID, RemoteLog, records
from tiered.remote.topics import register_topic
from tiered.spark.schema import kafka_schema
from tiered.spark.source import TieredDataSource
from tiered.spark.stream import TieredStreamReader
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive

pytestmark = pytest.mark.spark

WAIT_SECONDS = 120


@dataclass
class Stream:
    """A bucket with the topic ``flights``, a checkpoint, and what a sink was given."""

    spark: SparkSession
    folder: Path

    def __post_init__(self) -> None:
        self.spark.dataSource.register(SeeingSink)
        self.store = DirectoryStore(self.folder / "bucket")
        drive(self.store, register_topic("flights", TOPIC_ID, 1, {}))
        self.log = RemoteLog(self.store)

    def start(self, source: str = "tiered", *, crash: bool = False, now: bool = True, **options: Any) -> StreamingQuery:
        """A query into a sink that fails if it shall ``crash``; with ``now`` it ends at what there is."""
        reader = self.spark.readStream.format(source).option("subscribe", "flights").schema("offset long")
        for key, value in options.items():
            reader = reader.option(key, value)
        writer = reader.load(str(self.folder / "bucket")).writeStream.format("tiered-seeing").option("crash", crash)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        return (writer.trigger(availableNow=True) if now else writer).start(str(self.folder / "seen"))

    @property
    def seen(self) -> Seen:
        return seen_in(self.folder / "seen")

    def run(self, **options: Any) -> Seen:
        """To its end; what the sink was given."""
        (self.folder / "seen").unlink(missing_ok=True)
        query = self.start(**options)
        try:
            assert query.awaitTermination(WAIT_SECONDS)
        finally:
            query.stop()
        return self.seen


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


def test_a_query_reads_all_there_is_and_a_restart_what_came_since(stream: Stream) -> None:
    stream.log.fill(100)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 40}
    first = stream.run(**options)
    assert first == [(0, list(range(40))), (1, list(range(40, 80))), (2, list(range(80, 100)))]
    assert stream.run(**options) == []
    stream.log.fill(130, start=100)
    assert stream.run(**options) == [(3, list(range(100, 130)))]


def test_a_batch_that_was_not_committed_is_repeated_as_it_was(stream: Stream) -> None:
    stream.log.fill(100)
    with pytest.raises(Exception, match="CrashError"):
        stream.run(crash=True, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    assert stream.seen == [(0, list(range(40)))]
    stream.log.fill(130, start=100)
    found = stream.run(startingOffsets="earliest")
    assert found == [(0, list(range(40))), (1, list(range(40, 130)))]


def test_from_the_latest_offset_a_crash_in_the_first_batch_loses_and_adds_nothing(stream: Stream) -> None:
    """The log grows between the two questions for the initial offset, and again before the restart."""
    stream.spark.dataSource.register(RacingSource)
    stream.log.fill(20)
    query = stream.start("tiered-racing", crash=True, now=False, startingOffsets="latest")
    with pytest.raises(Exception, match="CrashError"):
        query.awaitTermination(WAIT_SECONDS)
    assert stream.seen == [(0, list(range(20, 20 + MORE)))]
    stream.log.fill(60, start=20 + MORE)
    found = stream.run(startingOffsets="latest")
    assert found == [(0, list(range(20, 20 + MORE))), (1, list(range(20 + MORE, 60)))]


def test_progress_shows_kafkas_offsets_and_an_idle_query_makes_no_batches(stream: Stream) -> None:
    stream.log.fill(30)
    query = stream.start(now=False, startingOffsets="earliest")
    try:
        query.processAllAvailable()
        progress = query.lastProgress
        assert progress is not None
        shown = json.loads(progress["sources"][0]["endOffset"])
        assert shown["flights"] == {"0": 30}
        query.processAllAvailable()
        assert stream.seen == [(0, list(range(30)))]
        stream.log.fill(40, start=30)
        query.processAllAvailable()
        assert stream.seen == [(0, list(range(30))), (1, list(range(30, 40)))]
    finally:
        query.stop()


def test_what_a_sink_staged_is_streamed_within_limits(stream: Stream) -> None:
    """From a topic into another and on: two queries, the second one over segments whose own offsets begin at 0."""
    stream.log.fill(300)
    url = str(stream.folder / "bucket")
    source = stream.spark.readStream.format("tiered").option("subscribe", "flights")
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 110)
    copying = source.load(url).select("key", "value").writeStream.format("tiered").option("topic", "copies")
    copying = copying.option("createTopic", 2).option("checkpointLocation", str(stream.folder / "copying"))
    assert copying.trigger(availableNow=True).start(url).awaitTermination(WAIT_SECONDS)
    options = {"path": url, "subscribe": "copies", "startingoffsets": "earliest", "maxbytespertrigger": "2000"}
    reader = TieredDataSource(options).streamReader(kafka_schema(include_headers=False))
    assert isinstance(reader, TieredStreamReader)
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    sizes, found = [], []
    while (end := json.loads(json.dumps(reader.latestOffset(start, limit)))) != start:
        rows = [
            row for part in reader.partitions(start, end) for piece in reader.read(part) for row in piece.to_pylist()
        ]
        sizes.append(len(rows))
        found += rows
        start = end
    assert sorted(row["value"] for row in found) == sorted(record.value or b"" for record in records(0, 300))
    for partition in range(2):
        offsets = [row["offset"] for row in found if row["partition"] == partition]
        assert offsets == list(range(len(offsets)))
    assert len(sizes) > 5
    assert max(sizes) <= 2000 // 24


def test_options_copied_from_a_query_on_kafka_say_what_replaces_them(stream: Stream) -> None:
    with pytest.raises(Exception, match="there is no broker"):
        stream.run(**{"kafka.bootstrap.servers": "broker:9092"})
    with pytest.raises(Exception, match="availableNow=True"):
        stream.run(endingOffsets="latest")
    with pytest.raises(Exception, match="Error") as error:
        stream.run(maxOffsetPerTrigger=3)
    assert "did you mean maxOffsetsPerTrigger?" in str(error.value)
    assert "UnboundLocalError" not in str(error.value)  # Spark's own, which hid what was wrong
