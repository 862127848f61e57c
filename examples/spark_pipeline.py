"""Spark pipeline: copy large orders into a topic of their own, exactly once, and total them in a batch query.

    $ pip install '.[spark]'                                         # in a checkout; needs Java 17
    $ PYSPARK_PYTHON=$(which python) python examples/spark_pipeline.py

Start it again whenever you like, from cron or Airflow: it reads what is new, then ends. The checkpoint says where it
goes on. On a cluster `CHECKPOINT` is a directory that all machines share.
"""

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

REMOTE = os.environ.get("TIERED_REMOTE", "file:///tmp/tieredlog-bucket")
CHECKPOINT = os.environ.get("CHECKPOINT", "data/checkpoints/large-orders")
LARGE_CENTS = 10_000


def parsed(records: DataFrame) -> DataFrame:
    """Return the records with the columns `customer` and `cents`. Keys and values of a topic are binary."""
    order = F.from_json(F.col("value").cast("string"), "customer string, cents long")
    return records.withColumn("order", order).select("key", "value", "timestamp", "order.*")


def copy_large_orders(spark: SparkSession) -> None:
    """Copy what came since the last run. A batch that is repeated after a crash adds nothing."""
    orders = (
        spark.readStream.format("tiered")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1_000_000)
        .load(REMOTE)
    )
    query = (
        parsed(orders)
        .where(F.col("cents") >= LARGE_CENTS)
        .select("key", "value")
        .writeStream.format("tiered")
        .option("topic", "large-orders")
        .option("createTopic", 3)
        .option("checkpointLocation", CHECKPOINT)
        .trigger(availableNow=True)
        .start(REMOTE)
    )
    query.awaitTermination()


def totals(spark: SparkSession) -> DataFrame:
    """Return the number and the sum of the large orders of each customer."""
    large = parsed(spark.read.format("tiered").option("subscribe", "large-orders").load(REMOTE))
    return large.groupBy("customer").agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))


def main() -> None:
    spark = SparkSession.builder.appName("large-orders").getOrCreate()
    copy_large_orders(spark)
    totals(spark).orderBy(F.desc("cents")).show()


if __name__ == "__main__":
    main()
