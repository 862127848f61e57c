"""Two attempts of a task side by side: verbs whose tasks claim partitions refuse that before they begin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import REPOSITORY, SETTINGS
from tests.spark.jobs.building import bucket, log, records, rows


def fill(folder: Path) -> Path:
    with log(folder, {"flights": {"merge.min.bytes": "10000", "merge.target.bytes": "100000"}}) as opened:
        for at in range(0, 100, 20):
            opened.topic("flights").append_many(records(at, 20))
    return folder


SCRIPT = f"""
import sys
from pyspark.sql import SparkSession
from tiered.program.command_line import run_command
from tiered.spark.commands import PROGRAM, jobs
builder = SparkSession.builder.master("local[2]").config("spark.speculation", "true")
for key, value in {SETTINGS!r}.items():
    builder = builder.config(key, value)
spark = builder.config("spark.sql.warehouse.dir", sys.argv[2]).getOrCreate()
LINES = [["maintain", "--yes"], ["erase", "flights", "--key", "key-3", "--yes"], ["check"]]
print([run_command(jobs, PROGRAM, [*line, "--remote", sys.argv[1]]) for line in LINES])
spark.stop()
"""


@pytest.mark.spark
def test_a_session_with_speculation(tmp_path: Path, spark: SparkSession) -> None:
    del spark  # without Java nothing of this runs
    fill(tmp_path)
    before = rows(bucket(tmp_path), "flights", 0)
    script = tmp_path / "all.py"
    script.write_text(SCRIPT)
    line = [sys.executable, str(script), bucket(tmp_path), f"{tmp_path}/warehouse"]
    environment = {"PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(line, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.stdout.splitlines()[-1] == "[2, 2, 0]", done.stderr
    assert done.stderr.count("spark.speculation is true") == 2
    assert rows(bucket(tmp_path), "flights", 0) == before
