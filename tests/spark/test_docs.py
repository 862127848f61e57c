"""What the cookbook shows as run runs as it stands, and gives what it should."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tiered
from tiered.model import NewRecord
from tiered.testing.clock import START_MS

pytestmark = pytest.mark.spark

TEXT = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
BLOCKS = re.findall(r"^```python run\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
RECORDS = 40


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A bucket with the topic of the cookbook."""
    where = f"file://{tmp_path / 'bucket'}"
    with tiered.open(tmp_path / "log", remote=where) as log:
        topic = log.topic("flights", create=True, partitions=2)
        for partition in range(2):
            flights = [json.dumps({"carrier": "UA", "delay": at}).encode() for at in range(RECORDS)]
            topic.append_many(
                [NewRecord(flight, b"N%d" % at, START_MS + at) for at, flight in enumerate(flights)],
                partition=partition,
            )
        log.sync(timeout=60)
    return where


def test_the_blocks_run_one_after_the_other(spark: SparkSession, url: str, tmp_path: Path) -> None:
    assert len(BLOCKS) == 9
    names: dict[str, Any] = {"spark": spark}
    for block in BLOCKS:
        exec(block.replace("s3://acme-logs/prod", url).replace("/data/", f"{tmp_path}/data/"), names)
    assert names["flights"].count() == 2 * RECORDS
    sizes = names["sizes"].collect()
    assert {(row["records"], row["tombstones"]) for row in sizes} == {(RECORDS, 0)}
    assert all(abs(row["distinct_keys"] - RECORDS) < RECORDS // 5 for row in sizes)  # an estimate
    late = names["departures"].where("delay > 15").collect()
    assert sorted(row["delay"] for row in late) == sorted([*range(16, RECORDS)] * 2)
    assert names["framed"].count() == 2 * RECORDS
    stored = spark.read.parquet(f"{tmp_path}/data/flights.parquet").select("partition", "offset").collect()
    assert sorted((row["partition"], row["offset"]) for row in stored) == [
        (partition, at) for partition in range(2) for at in range(RECORDS)
    ]
    with tiered.open_reader(url) as reader:
        written = sorted(json.loads(record.value or b"")["delay"] for record in reader.topic("departures").read())
        assert written == sorted([*range(RECORDS)] * 2)
        assert len(list(reader.topic("copies").read())) == 2 * RECORDS
        assert len(list(reader.topic("imported").read())) == 2 * RECORDS
