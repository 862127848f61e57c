"""Module from which Spark registers the source: ``spark.read.format("tiered")`` works without a call.

Spark imports every top-level module named ``pyspark_*`` and registers its ``DefaultSource``. It skips a module that
cannot be imported. So an unsupported Spark gets a source whose every call raises an error.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSource

from tiered.errors import ConfigError

__all__ = ["DefaultSource"]


def refused_source(why: ConfigError) -> type[DataSource]:
    """Return a source named ``tiered`` whose every call raises ``why``."""
    message, hint = why.message, why.hint  # Spark pickles the class

    def refuse(*_: Any) -> NoReturn:
        raise ConfigError(message, hint=hint)

    calls = ("schema", "reader", "writer", "streamReader", "streamWriter", "simpleStreamReader")
    name = classmethod(lambda _: "tiered")
    return type("RefusedDataSource", (DataSource,), {"name": name, **dict.fromkeys(calls, refuse)})


try:
    from tiered.spark.source import TieredDataSource as DefaultSource
except ImportError as error:
    from tiered.spark import lacking

    DefaultSource = refused_source(lacking("the Spark source", error))  # type: ignore[misc,assignment]
