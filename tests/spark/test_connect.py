"""The source through Spark Connect, in a process of its own: a process has one kind of session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import REPOSITORY, need_java
from tests.unit.remote.building import TOPIC_ID, RemoteLog
from tiered.remote.topics import register_topic
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive

pytestmark = pytest.mark.spark

SCRIPT = """
import sys
from pyspark.sql import SparkSession
import tiered.spark

bucket, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
tiered.spark.register(spark)
df = spark.read.format("tiered").option("subscribe", "flights").load(bucket)
print("counts", df.count(), df.where("offset < 10").count(), df.where("offset < 10").union(df).count())
stream = spark.readStream.format("tiered").option("subscribe", "flights").option("startingOffsets", "earliest")
query = stream.load(bucket).writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
query = query.option("path", folder + "/out").trigger(availableNow=True).start()
assert query.awaitTermination(120)
rows = spark.read.parquet(folder + "/out").select("offset").collect()
print("stream", sorted(row["offset"] for row in rows) == list(range(300)))
spark.stop()
"""


def test_batch_and_stream_through_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs what the extra tieredlog[connect] installs")
    need_java()
    store = DirectoryStore(tmp_path / "bucket")
    drive(store, register_topic("flights", TOPIC_ID, 1, {}))
    RemoteLog(store).fill(300)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "bucket"), str(tmp_path)],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr[-3000:]
    assert "counts 300 10 310" in lines
    assert "stream True" in lines
