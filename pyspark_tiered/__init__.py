"""Module from which Spark registers the source: ``spark.read.format("tiered")`` works without a call.

Spark imports every top-level module named ``pyspark_*`` and registers its ``DefaultSource``. It skips a module that
cannot be imported. So an unsupported Spark gets a source whose every call raises an error.
"""

try:
    from tiered.spark.source import TieredDataSource as DefaultSource
except ImportError as error:
    from tiered.spark import lacking
    from tiered.spark.refused import refused_source

    DefaultSource = refused_source(lacking("the Spark source", error))  # type: ignore[misc,assignment]

__all__ = ["DefaultSource"]
