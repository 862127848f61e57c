"""What the cookbook shows as run runs as it stands, and gives what it should."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import tiered
from tests.support.pages import ROOT, blocks, python_blocks
from tiered.model import NewRecord
from tiered.testing.clock import START_MS

DeltaTable = pytest.importorskip("deltalake").DeltaTable
pytest.importorskip("pyiceberg")
pytestmark = pytest.mark.spark

DOCS = ROOT / "docs"
BLOCKS = [block.text for block in blocks(DOCS / "spark.md") if block.kind == "python" and block.runs]
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
    assert len(BLOCKS) == 11
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
    for held in (DeltaTable(tmp_path / "data" / "flights.delta").to_pyarrow_table(), iceberg_rows(names)):
        places = zip(held["partition"].to_pylist(), held["offset"].to_pylist(), strict=True)
        assert sorted(places) == [(partition, at) for partition in range(2) for at in range(RECORDS)]
    with tiered.open_reader(url) as reader:
        written = sorted(json.loads(record.value or b"")["delay"] for record in reader.topic("departures").read())
        assert written == sorted([*range(RECORDS)] * 2)
        assert len(list(reader.topic("copies").read())) == 2 * RECORDS
        assert len(list(reader.topic("imported").read())) == 2 * RECORDS


@pytest.mark.parametrize(("page", "printed"), [("README.md", "|    1|\n"), ("docs/tutorial/5-spark.md", "\n1000\n")])
def test_the_first_steps_print_what_they_should(
    page: str,
    printed: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"spark": spark}
    for block in python_blocks(ROOT / page):
        placed = block.replace("file:///tmp/tieredlog-bucket", f"file://{tmp_path / 'bucket'}")
        exec(placed.replace("data/checkpoint", f"{tmp_path / 'checkpoint'}"), names)
    assert printed in capsys.readouterr().out


def iceberg_rows(names: dict[str, Any]) -> Any:
    return names["catalog"].load_table("raw.flights").scan().to_arrow()


@pytest.mark.parametrize("name", ["to_delta", "to_iceberg"])
def test_a_batch_whose_commit_was_not_noted_adds_nothing_when_it_is_repeated(
    name: str, spark: SparkSession, url: str, tmp_path: Path
) -> None:
    """The query dies 10 times: in turn before the table's commit, and after it but before the checkpoint's."""
    block = next(block for block in BLOCKS if f"def {name}(" in block)
    text = block.replace("s3://acme-logs/prod", url).replace("/data/", f"{tmp_path}/data/")
    (tmp_path / "data").mkdir()
    names: dict[str, Any] = {}
    exec(text[: text.index("query = (")], names)
    write, deaths = names[name], list[int]()

    def dying(batch: DataFrame, batch_id: int) -> None:
        is_first = len(deaths) % 2 == 0
        if not is_first:
            write(batch, batch_id)
        if deaths.count(batch_id) < 2:
            deaths.append(batch_id)
            raise RuntimeError("killed")
        write(batch, batch_id)

    source = spark.readStream.format("tiered").option("subscribe", "flights").option("maxOffsetsPerTrigger", 16)
    stream = source.option("startingOffsets", "earliest").load(url)
    while True:
        started = stream.writeStream.foreachBatch(dying).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = started.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except StreamingQueryException:
            continue
        break
    assert len(deaths) == 10
    is_delta = name == "to_delta"
    held = DeltaTable(tmp_path / "data" / "flights.delta").to_pyarrow_table() if is_delta else iceberg_rows(names)
    places = zip(held["partition"].to_pylist(), held["offset"].to_pylist(), strict=True)
    assert sorted(places) == [(partition, at) for partition in range(2) for at in range(RECORDS)]


def test_the_example_copies_each_large_order_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path / 'bucket'}"
    monkeypatch.setenv("TIERED_REMOTE", url)
    monkeypatch.setenv("CHECKPOINT", str(tmp_path / "checkpoint"))
    cents = [9_999, 10_000, 30_000, 5]
    for round_ in range(1, 3):
        with tiered.open(tmp_path / "log", remote=url) as log:
            topic = log.topic("orders", create=True, partitions=2)
            topic.append_many(
                [(b'{"customer": "C-%d", "cents": %d}' % (at % 2, c), b"%d" % at) for at, c in enumerate(cents)]
            )
            log.sync(timeout=60)
        for _ in range(2):  # the second run has nothing to copy
            runpy.run_path(str(ROOT / "examples" / "spark_pipeline.py"), run_name="__main__")
            rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if "C-" in line]
            assert [[cell.strip() for cell in row] for row in rows] == [
                ["C-0", f"{round_}", f"{round_ * 30_000}"],
                ["C-1", f"{round_}", f"{round_ * 10_000}"],
            ]
