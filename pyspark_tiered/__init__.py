"""The name under which Spark finds the source by itself: ``spark.read.format("tiered")`` works without a call.

Spark imports every top-level module named ``pyspark_*`` and registers its ``DefaultSource``. It passes over a module
that cannot be imported: for a Spark that is too old there is a source whose every call says so.
"""

try:
    from tiered.spark.source import TieredDataSource as DefaultSource
except ImportError as error:
    from tiered.spark import lacking
    from tiered.spark.refused import refused_source

    DefaultSource = refused_source(lacking("the Spark source", error))  # type: ignore[misc,assignment]

__all__ = ["DefaultSource"]
