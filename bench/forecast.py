"""What ``tiered spark compact --plan --sample`` says that Spark will shuffle, beside what it shuffled.

``python -m bench.forecast --bytes 10GB`` asks it of a larger log than ``make bench`` does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tiered
from bench.measure import Figure
from tiered.config import parse_bytes

FORECAST_BYTES = 256_000_000
"""Values of the log in a bench; the one that a release is measured with is larger: ``--bytes``."""
VALUE_BYTES = 1024
RECORDS_A_KEY = 5
PARTS, SAMPLED = 16, 4
CHUNK_RECORDS = 65_536
MB = 1e6
TOPIC = "latest"
LIMIT_PERCENT = 10.0


def make_log(folder: Path, value_bytes: int) -> str:
    """A compacted topic of one partition whose keys come at random, five records each on average; the bucket's URL."""
    url = f"file://{folder / 'bucket'}"
    dice, count = np.random.default_rng(10), value_bytes // VALUE_BYTES
    data = pa.py_buffer(dice.bytes(CHUNK_RECORDS * VALUE_BYTES))
    with tiered.open(folder / "log", remote=url) as log:
        topic = log.topic(TOPIC, create=True, config={"cleanup.policy": "compact", "segment.bytes": 64 * 1024**2})
        for first in range(0, count, CHUNK_RECORDS):
            size = min(CHUNK_RECORDS, count - first)
            ends = pa.py_buffer(np.arange(size + 1, dtype=np.int32) * VALUE_BYTES)
            values = pa.Array.from_buffers(pa.binary(), size, [None, ends, data])
            keys = pa.array(dice.integers(0, max(1, count // RECORDS_A_KEY), size)).cast(pa.string()).cast(pa.binary())
            topic.append_arrow(pa.table({"key": keys, "value": values}))
        log.sync(timeout=3600)
    shutil.rmtree(folder / "log")
    return url


def job(*arguments: str) -> dict[str, Any]:
    """``tiered spark compact``, in a process of its own; what it prints as JSON."""
    command = [sys.executable, "-m", "tiered.spark", "compact", *arguments, "--json"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def shuffled_bytes(lines: Iterable[str]) -> int:
    """What the tasks in an event log of Spark's wrote into shuffles, all of them together."""
    ended = [event for line in lines if (event := json.loads(line))["Event"] == "SparkListenerTaskEnd"]
    metrics = [event.get("Task Metrics", {}).get("Shuffle Write Metrics", {}) for event in ended]
    return sum(each.get("Shuffle Bytes Written", 0) for each in metrics)


def forecast_and_shuffle(value_bytes: int, parent: str | None = None) -> tuple[int, int]:
    """Bytes of the forecast, of which a quarter of the parts was read, and of the shuffles of the same round."""
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name)
        events = folder / "events"
        events.mkdir()
        url = make_log(folder, value_bytes)
        shared = ["--remote", url, "--two-phase-above", "1", "--task-bytes", str(value_bytes // PARTS)]
        (plan,) = job("--plan", "--sample", str(SAMPLED), *shared)["plan"]["two_phase"]
        words = {"enabled": "true", "dir": f"file://{events}", "compress": "false", "rolling.enabled": "false"}
        settings = {**{f"spark.eventLog.{word}": value for word, value in words.items()}, "spark.driver.memory": "2g"}
        done = job(*shared, *[word for key, value in settings.items() for word in ("--conf", f"{key}={value}")])
        assert done["done"]["partitions"][0]["actions"][0]["groups"] > 0
        (path,) = events.iterdir()
        with path.open() as lines:
            return int(plan["shuffle_bytes"]), shuffled_bytes(lines)


def spark_forecast(rounds: int) -> list[Figure]:
    """One round of a compaction in two phases. Nothing where Java is missing."""
    del rounds  # one run: the log is the same each time
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return []
    return [figure(FORECAST_BYTES, *forecast_and_shuffle(FORECAST_BYTES))]


def figure(value_bytes: int, forecast: int, shuffled: int) -> Figure:
    """Its row."""
    what = f"shuffle of a compaction of {value_bytes / MB:,.0f} MB, as {SAMPLED} of {PARTS} parts forecast it"
    return Figure(what, "MB", forecast / MB, "what Spark shuffled", shuffled / MB, forecast / shuffled)


def main() -> int:
    """Prints both; 0 where the forecast is within 10 %."""
    parser = argparse.ArgumentParser(prog="python -m bench.forecast", description=__doc__)
    parser.add_argument("--bytes", type=parse_bytes, default=FORECAST_BYTES, help="of the log's values: 10GB")
    parser.add_argument("--folder", help="where there is room for three times as much")
    args = parser.parse_args()
    forecast, shuffled = forecast_and_shuffle(args.bytes, args.folder)
    off = 100 * (forecast / shuffled - 1)
    print(f"forecast {forecast / MB:,.1f} MB, shuffled {shuffled / MB:,.1f} MB: {off:+.1f} %")
    return 0 if abs(off) <= LIMIT_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
