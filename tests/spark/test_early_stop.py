"""A task imports only what it needs, because Spark begins a new worker after each query that stops early."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.remote.building import TOPIC_ID, RemoteLog
from tiered.remote.topics import register_topic
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive

REPOSITORY = Path(__file__).resolve().parents[2]

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


def test_a_task_that_reads_a_bucket_imports_neither_pandas_nor_the_local_log(bucket: Path) -> None:
    assert run(READ, str(bucket)).stdout.strip() == "400 []"
