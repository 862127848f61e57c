"""The export is Spark's own stream: each record once, and each run continues where the last one ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tiered
from tests.spark.jobs.building import Result, bucket, log, records, run

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def export(folder: Path, *more: str) -> Result:
    words = ("--format", "parquet", "--to", str(folder / "out"), "--checkpoint", f"file://{folder}/checkpoint")
    return run("export", "flights", *words, "--remote", bucket(folder), "--json", *more)


def test_it_continues_where_the_last_run_ended(spark: SparkSession, tmp_path: Path) -> None:
    with log(tmp_path, {"flights": {}}) as opened:
        for at in range(0, 100, 20):
            opened.topic("flights").append_many(records(at, 20))
    planned = export(tmp_path, "--dry-run")
    assert (planned.code, planned.summary["topics"]) == (0, ["flights"]), planned.err
    assert not (tmp_path / "out").exists()
    first = export(tmp_path)
    assert (first.code, first.summary["rows"]) == (0, 100), first.err
    again = export(tmp_path)
    assert (again.code, again.summary["rows"]) == (0, 0), again.err
    with tiered.open(tmp_path / "log", remote=bucket(tmp_path)) as opened:
        opened.topic("flights").append_many(records(100, 20))
        opened.sync(timeout=60)
    assert export(tmp_path).summary["rows"] == 20
    rows = spark.read.parquet(str(tmp_path / "out")).select("offset").collect()
    assert sorted(row["offset"] for row in rows) == list(range(120))


def test_what_is_wrong_is_said_without_java(tmp_path: Path) -> None:
    with log(tmp_path, {"flights": {}}) as opened:
        opened.topic("flights").append_many(records(0, 20))
    where = ("--checkpoint", str(tmp_path / "checkpoint"), "--remote", bucket(tmp_path))
    assert "pass --to URL, or --table NAME" in run("export", "flights", "--format", "parquet", *where).err
    assert "--option 'x' is not K=V" in run("export", "flights", "--format", "parquet", "--option", "x", *where).err
    unknown = run("export", "flights", "--format", "no_such_format", "--to", str(tmp_path / "out"), *where)
    assert (unknown.code, "no_such_format" in unknown.err, "\tat " in unknown.err) == (1, True, False), unknown.err
    absent = run("export", "nobody", "--format", "parquet", "--to", str(tmp_path / "out"), *where)
    assert absent.code == 10, absent.err
