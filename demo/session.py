"""The Spark session of the demo's programs: two cores of this machine, loopback only."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    # A run of seconds ends before the second compiler of the JVM has paid for itself.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


def spark_session(name: str) -> SparkSession:
    """A session whose workers run this interpreter."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName(f"tieredlog-{name}")
    for setting, value in SETTINGS.items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()
