"""Queries that need a few rows of each task: quiet, and without imports that a new worker does not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import need_java
from tests.unit.remote.building import TOPIC_ID, RemoteLog
from tiered.remote.topics import register_topic
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive

REPOSITORY = Path(__file__).resolve().parents[2]

QUERIES = """
import os, sys
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from tests.spark.conftest import SETTINGS
builder = SparkSession.builder.master("local[2]").config("spark.python.daemon.module", sys.argv[2])
for key, value in SETTINGS.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
df = spark.read.format("tiered").option("subscribe", "flights").option("minPartitions", 8).load(sys.argv[1])
print(df.isEmpty(), df.limit(3).count(), len(df.head(2)), df.count(), df.rdd.getNumPartitions())
spark.stop()
"""

READ = """
import sys
import pyspark.sql.worker.plan_data_source_read, pyspark.worker
from tiered.spark.source import TieredDataSource
source = TieredDataSource({"path": sys.argv[1], "subscribe": "flights"})
reader = source.reader(source.schema())
rows = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
print(rows, [name for name in ("pandas", "tiered.local.directory.log_directory") if name in sys.modules])
"""


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    store = DirectoryStore(tmp_path / "bucket")
    drive(store, register_topic("flights", TOPIC_ID, 1, {}))
    RemoteLog(store, "flights", TOPIC_ID, 0).fill(400)
    return tmp_path / "bucket"


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )


@pytest.mark.spark
@pytest.mark.parametrize("daemon", ["pyspark.daemon", "tiered.spark.daemon"])
def test_a_query_that_stops_early_prints_no_traceback(bucket: Path, daemon: str) -> None:
    need_java()
    done = run(QUERIES, str(bucket), daemon)
    assert done.stdout.split() == ["False", "3", "2", "400", "8"]
    assert done.stderr.count("Traceback") == 0, done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_task_that_reads_a_bucket_imports_neither_pandas_nor_the_local_log(bucket: Path) -> None:
    assert run(READ, str(bucket)).stdout.strip() == "400 []"
