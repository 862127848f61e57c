"""The Spark pipeline: mean departure delay by carrier and month, read with ``format("tiered")``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from pyspark.sql import functions as F

from demo.flights import TOPIC
from demo.session import spark_session


def delays(remote: str, endpoint_url: str | None) -> dict[str, Any]:
    """Sum and count of ``dep_delay`` by carrier and month, nulls left out, and what it cost."""
    started = time.perf_counter()
    spark = spark_session("delays")
    session_s = time.perf_counter() - started
    try:
        source = spark.read.format("tiered").option("path", remote).option("subscribe", TOPIC)
        if endpoint_url:
            source = source.option("endpoint_url", endpoint_url)
        flight = F.from_json(F.col("value").cast("string"), "carrier string, month int, dep_delay int")
        rows = (
            source.load()
            .select(flight.alias("f"))
            .select("f.*")
            .where(F.col("dep_delay").isNotNull())
            .groupBy("carrier", "month")
            .agg(F.sum("dep_delay").alias("total"), F.count("*").alias("count"), F.avg("dep_delay").alias("mean"))
            .collect()
        )
        groups = [[r["carrier"], r["month"], r["total"], r["count"], r["mean"]] for r in rows]
    finally:
        spark.stop()
    return {"groups": groups, "session_s": session_s, "seconds": time.perf_counter() - started}


def main() -> None:
    """Runs the pipeline in this process and prints its result as one JSON line."""
    parser = argparse.ArgumentParser(prog="demo.pipeline")
    parser.add_argument("--remote", required=True)
    parser.add_argument("--endpoint-url", default=None)
    args = parser.parse_args()
    sys.stdout.write(json.dumps({"result": delays(args.remote, args.endpoint_url)}) + "\n")


if __name__ == "__main__":
    main()
