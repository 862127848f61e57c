"""One run of a driver: a stream from text files into the sink.

``rand``: values and partitions of rows are others at each attempt, with ``rand()``; ``steady``: they are the same.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.conftest import SETTINGS
from tests.spark.restarts.dying import RUN, DyingSource

FILES_OF_A_BATCH = 1
TASKS = 4
ROWS = {
    "rand": ("concat(value, ':', rand()) as value", "cast(floor(rand() * 3) as int) as partition"),
    "steady": ("concat(value, ':', length(value)) as value",),
}
JAVA = "spark.driver.extraJavaOptions"
CLASSES = "TIERED_RESTARTS_CLASSES"
"""An option of the JVM: where it leaves its loaded classes for the next one, or finds them. Saves a third of a run."""


def main() -> None:
    """Ends with 0 when all files are in the log, and the JVM has ended."""
    base, kind, run = Path(sys.argv[1]), sys.argv[2], Path(os.environ[RUN])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,8]").appName("restarts")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    builder = builder.config(JAVA, f"{SETTINGS[JAVA]} {os.environ.get(CLASSES, '')}")
    spark = builder.config("spark.sql.warehouse.dir", str(base / "warehouse")).getOrCreate()
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    (run / "pids").write_text(json.dumps([jvm, os.getpid()]))
    spark.dataSource.register(DyingSource)
    lines = spark.readStream.option("maxFilesPerTrigger", FILES_OF_A_BATCH).text(str(base / "input"))
    rows = lines.repartition(TASKS).selectExpr("value as key", *ROWS[kind])
    query = (
        rows.writeStream.format("dying")
        .option("topic", "flights")
        .option("checkpointLocation", str(base / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(base / "bucket"))
    )
    query.awaitTermination()
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()
