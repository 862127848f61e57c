"""Module from which Spark registers the source: ``spark.read.format("tiered")`` works without a call.

Spark imports every top-level module named ``pyspark_*`` and registers its ``DefaultSource``. It skips a module that
cannot be imported. So an unsupported Spark gets a source whose every call raises an error.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

from tiered.errors import ConfigError
from tiered.spark import lacking, refused_calls

__all__ = ["DefaultSource"]


def refused_source(why: ConfigError) -> type[DataSource]:
    """Return a data source class named ``tiered`` that raises ``why`` at each call."""
    calls = refused_calls(why, "schema", "reader", "writer", "streamReader", "streamWriter", "simpleStreamReader")
    return type("RefusedDataSource", (DataSource,), {"name": classmethod(lambda _: "tiered"), **calls})


try:
    from tiered.spark.source import TieredDataSource as DefaultSource
except ImportError as error:
    DefaultSource = refused_source(lacking("the Spark source", error))  # type: ignore[misc,assignment]
