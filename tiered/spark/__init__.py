"""PySpark: a tiered log as a source of batch queries and streams and as a sink, with options named as Kafka's.

::

    df = spark.read.format("tiered").option("subscribe", "flights").load("s3://acme-logs/prod")
    stream = spark.readStream.format("tiered").option("subscribe", "flights").load("s3://acme-logs/prod")

Spark finds the source through the package ``pyspark_tiered``. If it does not (an archive shipped by hand),
``tiered.spark.register(spark)`` does the same.

A DataFrame is a snapshot that is **pinned at its first action**, not at ``load``: then Spark plans, and every frame
derived from it shares the plan. To see later appends, load again. Records that retention or a rewrite has moved since
the plan are read from their new place. Missing offsets fail the query. With ``failOnDataLoss=false`` they are skipped
and counted in a warning of the task.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

from tiered.errors import ConfigError, install_command
from tiered.spark.worker import end_quietly, log_warnings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def lacking(what: str, error: ImportError) -> ConfigError:
    """Return the error for a feature whose import failed, because a module is missing or pyspark is too old.

    ``what``: the feature, as the subject of the message. ``error``: the failed import.
    """
    hint = install_command("spark")
    module = (error.name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and module and (module != "pyspark" or not find_spec(module)):
        return ConfigError(f"{what} needs {module}, which is not installed", hint=hint)
    if module == "pyspark":
        import pyspark  # noqa: PLC0415  it is installed, and lacks a part

        return ConfigError(
            f"{what} needs Spark 4.2 or later, and pyspark {pyspark.__version__} is installed",
            hint="use pyspark 4.2 or later on the driver, in the workers and on the cluster",
        )
    return ConfigError(f"{what} needs pyspark 4.2 and pyarrow: {error}", hint=hint)


def refused_calls(why: ConfigError, *names: str) -> dict[str, Callable[..., NoReturn]]:
    """Return methods ``names``, each of which raises ``why``. They make the stand-in for an object that was refused."""
    message, hint = why.message, why.hint  # Spark pickles the class

    def refuse(*_: object) -> NoReturn:
        raise ConfigError(message, hint=hint)

    return dict.fromkeys(names, refuse)


def register(spark: SparkSession) -> None:
    """Register ``format("tiered")`` with a Spark session. Raises ConfigError without pyspark's data source API (4.2).

    Warns if the session does not set the Python of its workers: Spark then takes ``python3`` from PATH, not this one.
    """
    try:
        from tiered.spark.source import TieredDataSource  # noqa: PLC0415  pyspark is an optional import
    except ImportError as error:
        raise lacking("the Spark source", error) from error
    if not os.environ.get("PYSPARK_PYTHON") and not spark.conf.get("spark.pyspark.python", ""):
        warnings.warn(
            f"workers use the python3 on PATH; set PYSPARK_PYTHON={sys.executable} before the session starts",
            stacklevel=2,
        )
    spark.dataSource.register(TieredDataSource)


log_warnings()  # here, because unpickling anything of this package imports this module first
end_quietly()
