"""Daemon of Spark's Python workers that imports the modules of a reading task before the first fork.

Spark ends the worker of each task that stops reading early, and the next worker imports pyspark, pyarrow and this
library again. Set ``spark.python.daemon.module`` to ``tiered.spark.daemon`` to share the daemon's imports.
"""

from __future__ import annotations

import pyspark.sql.worker.plan_data_source_read
import pyspark.worker  # noqa: F401  each worker needs it
from pyspark.daemon import manager

import tiered.spark.source  # noqa: F401  the reader of each task
from tiered.spark.worker import end_quietly, keep_modules, log_warnings

if __name__ == "__main__":
    # ``-m`` imports the package before ``__main__`` is this module, so ``is_worker`` was False then.
    log_warnings()
    end_quietly()
    keep_modules()
    manager()
