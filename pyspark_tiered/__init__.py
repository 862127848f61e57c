"""The name under which Spark finds the source by itself: ``spark.read.format("tiered")`` works without a call.

Spark imports every top-level module named ``pyspark_*`` and registers its ``DefaultSource``.
"""

from tiered.spark.source import TieredDataSource as DefaultSource

__all__ = ["DefaultSource"]
