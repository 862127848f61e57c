"""A planned query and a stream while the product's own maintainer merges, compacts, trims and collects under them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import tiered
from tiered.clock import SystemClock, SystemIds
from tiered.model import NewRecord, TopicPartition
from tiered.plan.maintenance import MaintenanceKind
from tiered.program.maintenance_loop import MaintenanceLoop, Scope
from tiered.remote.maintain import ActionResult
from tiered.spark.schema import kafka_schema
from tiered.spark.source import TieredDataSource
from tiered.store.driver import drive
from tiered.store.location import open_store
from tiered.store.steps import list_all
from tiered.testing.clock import START_MS

OLD_MS = START_MS
"""Years ago: merging leaves what is younger than an hour alone."""
TP = TopicPartition("t", 0)
SEGMENTS, EACH, KEYS = 8, 50, 20


@dataclass
class Desk:
    """A log of one partition, its bucket and a maintainer of one kind of work, which also collects."""

    folder: Path
    config: dict[str, Any]
    written: int = 0

    def __post_init__(self) -> None:
        self.url = f"file://{self.folder / 'bucket'}"
        self.store = open_store(self.url)
        self.log = tiered.open(self.folder / "log", remote=self.url)
        self.topic = self.log.topic("t", create=True, config={"gc.grace.ms": 0, **self.config})
        self.write(SEGMENTS)

    def write(self, segments: int) -> None:
        for _ in range(segments):
            numbers = range(self.written, self.written + EACH)
            self.topic.append_many(
                [NewRecord(b"value-%d" % at, b"key-%d" % (at % KEYS), OLD_MS + at) for at in numbers]
            )
            self.log._local.partition(TP).roll()
            self.written += EACH
        self.log.sync()

    def maintain(self, kind: MaintenanceKind) -> None:
        """Until there is nothing left to do, with the objects of before gone."""
        done: list[ActionResult] = []
        upkeep = MaintenanceLoop(
            self.store,
            owner="test",
            clock=SystemClock(),
            ids=SystemIds(),
            scope=Scope((kind, MaintenanceKind.COLLECT)),
            on_done=lambda _, one: done.append(one),
        )
        before = self.objects()
        for _ in range(4):
            upkeep.turn()
        assert kind in {one.action.kind for one in done}
        assert before - self.objects()

    def objects(self) -> set[str]:
        return {entry.key for entry in drive(self.store, list_all("")) if entry.key.endswith(".log")}

    def source(self, **options: str) -> TieredDataSource:
        return TieredDataSource({"path": self.url, "subscribe": "t", **options})


@pytest.fixture
def desks(tmp_path: Path) -> Iterator[Any]:
    made: list[Desk] = []

    def make(**config: Any) -> Desk:
        made.append(Desk(tmp_path / str(len(made)), {key.replace("__", "."): value for key, value in config.items()}))
        return made[-1]

    yield make
    for desk in made:
        desk.log.close()


def rows_of(reader: Any, slices: list[InputPartition]) -> list[tuple[int, bytes, bytes]]:
    batches = [piece for part in slices for piece in reader.read(part)]
    return [(row["offset"], row["key"], row["value"]) for piece in batches for row in piece.to_pylist()]


def written(numbers: range) -> list[tuple[int, bytes, bytes]]:
    return [(at, b"key-%d" % (at % KEYS), b"value-%d" % at) for at in numbers]


SCHEMA = kafka_schema(include_headers=False)


def test_merging_under_a_plan_changes_no_row(desks: Any) -> None:
    desk = desks()
    reader = desk.source(maxrecordsperpartition="70").reader(SCHEMA)
    stream = desk.source(startingoffsets="earliest").streamReader(SCHEMA)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(120))
    slices, batch = reader.partitions(), stream.partitions(start, end)
    desk.maintain(MaintenanceKind.MERGE)
    assert rows_of(reader, slices) == written(range(SEGMENTS * EACH))
    assert rows_of(stream, batch) == written(range(120))
    desk.write(2)
    after = stream.latestOffset(end, ReadAllAvailable())
    assert rows_of(stream, stream.partitions(end, after)) == written(range(120, (SEGMENTS + 2) * EACH))


def test_compaction_under_a_plan_loses_no_newest_record(desks: Any) -> None:
    desk = desks(cleanup__policy="compact", min__cleanable__dirty__ratio="0.01")
    reader = desk.source().reader(SCHEMA)
    stream = desk.source(startingoffsets="earliest", maxoffsetspertrigger="120").streamReader(SCHEMA)
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    slices, batch = reader.partitions(), stream.partitions(start, end)
    desk.maintain(MaintenanceKind.COMPACT)
    with tiered.open_reader(desk.url) as library:
        left = [(record.offset, record.key, record.value) for record in library.topic("t").read()]
    everything = written(range(SEGMENTS * EACH))
    newest = {key: (offset, key, value) for offset, key, value in everything}
    assert len(left) < len(everything)
    found = rows_of(reader, slices)
    assert set(left) <= set(found) <= set(everything)
    assert set(newest.values()) <= set(found)
    assert [row[0] for row in found] == sorted({row[0] for row in found})
    seen = rows_of(stream, batch)
    while (after := json.loads(json.dumps(stream.latestOffset(end, stream.getDefaultReadLimit())))) != end:
        seen += rows_of(stream, stream.partitions(end, after))
        end = after
    assert set(left) <= set(seen) <= set(everything)
    assert [row[0] for row in seen] == sorted({row[0] for row in seen})
    assert set(newest.values()) <= set(seen)
