"""Data source that refuses each call with one error, for a Spark that lacks what the real one needs."""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSource

from tiered.errors import ConfigError


def refused_source(why: ConfigError) -> type[DataSource]:
    """Return a source named ``tiered`` whose every call raises ``why``."""
    message, hint = why.message, why.hint  # Spark pickles the class

    def refuse(*_: Any) -> NoReturn:
        raise ConfigError(message, hint=hint)

    calls = ("schema", "reader", "writer", "streamReader", "streamWriter", "simpleStreamReader")
    name = classmethod(lambda _: "tiered")
    return type("RefusedDataSource", (DataSource,), {"name": name, **dict.fromkeys(calls, refuse)})
