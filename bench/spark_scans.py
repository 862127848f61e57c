"""Figures of the Spark source and sink in a session: CPU seconds of driver, JVM and Python workers together."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import tiered
from bench.measure import Figure, compare, seconds
from tiered.format.batch import encode_batch
from tiered.model import NewRecord

SCANNED_BYTES = 256 * 1024 * 1024
"""Values of one scan."""
WRITTEN_BYTES = 128 * 1024 * 1024
"""Values of one write."""
STREAMED_BYTES = 1024 * 1024 * 1024
"""Values of one stream."""
BATCH_BYTES = 16 * 1024
MB = 1_000_000
_TICKS = os.sysconf("SC_CLK_TCK")


def tree_seconds() -> float:
    """CPU seconds of this process and all below it, those that have ended included: a parent has the times of children
    that it waited for, and ``worker_times`` makes Spark's daemons wait."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended since
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    ours, ahead = 0, [os.getpid()]
    while ahead:
        pid = ahead.pop()
        ours += ticks.get(pid, 0)
        ahead += [child for child, parent in parents.items() if parent == pid]
    return ours / _TICKS


def _session(folder: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    folders = [str(Path(__file__).with_name("worker_times")), str(Path(__file__).parents[1])]
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    builder = SparkSession.builder.master("local[2]").appName("tiered-bench").config("spark.driver.memory", "2g")
    for key in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(key, "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.driver.host", "127.0.0.1")
    return builder.config("spark.sql.warehouse.dir", folder).getOrCreate()


def _written(folder: Path, value_bytes: int, total_bytes: int) -> str:
    """A bucket with the topic ``bench`` of one partition; its URL. Values differ: parquet writes equal ones once."""
    url = f"file://{folder / 'bucket'}"
    each, count = max(1, BATCH_BYTES // value_bytes), total_bytes // value_bytes
    with tiered.open(folder / "log", remote=url) as log:
        topic = log.topic("bench", create=True, config={"segment.bytes": 64 * 1024 * 1024})
        for first in range(0, count, each * 256):
            ends = range(first, min(first + each * 256, count), each)
            topic.append_batches(b"".join(_batch(at, min(each, count - at), value_bytes) for at in ends))
        log.sync(timeout=600)
    shutil.rmtree(folder / "log")
    return url


def _batch(first: int, count: int, value_bytes: int) -> bytes:
    values = os.urandom(value_bytes * count)
    return encode_batch(
        [
            NewRecord(values[at * value_bytes : (at + 1) * value_bytes], b"%08d" % (first + at), first + at)
            for at in range(count)
        ]
    )


def _read(spark: SparkSession, url: str) -> DataFrame:
    return spark.read.format("tiered").option("subscribe", "bench").load(url)


def _consume(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def _scan(spark: SparkSession, value_bytes: int, rounds: int) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        url, parquet = _written(Path(folder), value_bytes, SCANNED_BYTES), f"{folder}/parquet"
        _read(spark, url).write.parquet(parquet)
        return compare(
            f"Spark: scan of {value_bytes} B records, all columns (CPU of all processes)",
            lambda: _consume(_read(spark, url)),
            units=SCANNED_BYTES / MB,
            unit="MB/s",
            peer="Spark's own scan of parquet",
            theirs=lambda: _consume(spark.read.parquet(parquet)),
            rounds=rounds,
            clock=tree_seconds,
        )


def _write(spark: SparkSession, value_bytes: int, rounds: int) -> Figure:
    """The same rows, from parquet, into a topic of three partitions and into parquet, neither compressed."""
    with tempfile.TemporaryDirectory() as folder:
        url = _written(Path(folder), value_bytes, WRITTEN_BYTES)
        _read(spark, url).select("key", "value").write.parquet(f"{folder}/rows")
        rows = spark.read.parquet(f"{folder}/rows")

        def ours() -> None:
            with tempfile.TemporaryDirectory(dir=folder) as bucket:
                made = rows.write.format("tiered").mode("append").option("topic", "copy").option("createTopic", "3")
                made.save(f"file://{bucket}")

        def theirs() -> None:
            with tempfile.TemporaryDirectory(dir=folder) as out:
                rows.write.option("compression", "none").mode("overwrite").parquet(out)

        return compare(
            f"Spark: write of {value_bytes} B records into three partitions (CPU of all processes)",
            ours,
            units=WRITTEN_BYTES / MB,
            unit="MB/s",
            peer="Spark's own write of parquet",
            theirs=theirs,
            rounds=rounds,
            clock=tree_seconds,
        )


def _streamed(spark: SparkSession, url: str, folder: str) -> None:
    """One query that reads all there is, with a checkpoint of its own."""
    stream = spark.readStream.format("tiered").option("subscribe", "bench").option("startingOffsets", "earliest")
    with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
        query = stream.load(url).writeStream.format("noop").option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()


def _stream(spark: SparkSession, rounds: int) -> Figure:
    """Beside a batch query over the same bytes, without what a stream costs that finds nothing: Spark starts Python
    processes for it, and writes a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        full, empty = Path(folder) / "full", Path(folder) / "empty"
        url, nothing = _written(full, 1024, STREAMED_BYTES), _written(empty, 1024, 0)
        best = dict.fromkeys(("stream", "nothing", "batch"), float("inf"))
        for _ in range(rounds + 1):
            for name, call in (
                ("stream", lambda: _streamed(spark, url, folder)),
                ("nothing", lambda: _streamed(spark, nothing, folder)),
                ("batch", lambda: _consume(_read(spark, url))),
            ):
                best[name] = min(best[name], seconds(call, tree_seconds))
        size, ours = STREAMED_BYTES / MB, best["stream"] - best["nothing"]
        return Figure(
            f"Spark: stream of 1 GiB of 1024 B records, beyond the {best['nothing']:.1f} s of an empty one (CPU)",
            "MB/s",
            size / ours,
            "the same as a batch query",
            size / best["batch"],
            best["batch"] / ours,
        )


def spark_scans(rounds: int) -> list[Figure]:
    """Batch and sink beside parquet, stream beside batch. Nothing where Java is missing."""
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return []
    with tempfile.TemporaryDirectory() as folder:
        spark = _session(folder)
        try:
            scans = [_scan(spark, size, rounds) for size in (1024, 100)]
            return [*scans, *[_write(spark, size, rounds) for size in (1024, 100)], _stream(spark, rounds)]
        finally:
            spark.stop()
