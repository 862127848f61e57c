"""The stream: every flight that landed becomes a record of where its aircraft is, under the tail number as its key.

``readStream`` of the flights -> ``writeStream`` into the topic of positions, both ``format("tiered")``, in batches. A
run that follows one that was killed goes on from the checkpoint. Prints JSON lines: ``{"pids": [...]}`` of the driver
(the JVM, then this process), ``{"result": {...}}`` when all that there was is read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from demo.flights import POSITIONS, TOPIC
from demo.session import spark_session

BATCH_RECORDS = 60_000
"""Flights of one micro-batch, at most."""
FIELDS = "carrier string, flight int, dest string, arr_time int"


def positions(spark: SparkSession, args: argparse.Namespace) -> DataFrame:
    """Key, value and timestamp of each flight that landed with a known aircraft, as they are read from the log."""
    source = (
        spark.readStream.format("tiered")
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH_RECORDS)
    )
    if args.endpoint_url:
        source = source.option("endpoint_url", args.endpoint_url)
    flight = F.from_json(F.col("value").cast("string"), FIELDS)
    landed = source.load(args.remote).withColumn("f", flight).where("key is not null and f.arr_time is not null")
    position = F.to_json(F.struct(F.col("f.dest").alias("airport"), "f.carrier", "f.flight"))
    return landed.select("key", position.alias("value"), "timestamp")


def start(rows: DataFrame, args: argparse.Namespace) -> StreamingQuery:
    """The query; it ends by itself at what there was when it began."""
    sink = (
        rows.writeStream.format("tiered")
        .option("topic", POSITIONS)
        .option("checkpointLocation", args.checkpoint)
        .trigger(availableNow=True)
    )
    if args.endpoint_url:
        sink = sink.option("endpoint_url", args.endpoint_url)
    return sink.start(args.remote)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """One run of the stream, from where the one before it ended."""
    started = time.perf_counter()
    spark = spark_session("positions")
    try:
        jvm = spark._jvm
        if jvm is None:
            raise SystemExit("demo: Spark has no JVM in this session")
        _say(pids=[jvm.java.lang.ProcessHandle.current().pid(), os.getpid()])
        query = start(positions(spark, args), args)
        query.awaitTermination()
        done = [progress for progress in query.recentProgress if progress["numInputRows"]]
    finally:
        spark.stop()
    return {
        "records": sum(progress["numInputRows"] for progress in done),
        "batches": [progress["batchId"] for progress in done],
        "seconds": time.perf_counter() - started,
    }


def _say(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Runs the stream in this process."""
    parser = argparse.ArgumentParser(prog="demo.stream")
    parser.add_argument("--remote", required=True)
    parser.add_argument("--endpoint-url", default=None)
    parser.add_argument("--checkpoint", required=True)
    _say(result=run(parser.parse_args()))


if __name__ == "__main__":
    main()
