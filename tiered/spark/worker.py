"""What this library does in a Python worker of Spark's: little for the garbage collector to look at, warnings told.

A library leaves it to the program what becomes of its log, and a worker is a program that nobody configures: without
:func:`tell_warnings`, offsets that were skipped under ``failOnDataLoss=false`` would be told to nobody.
"""

from __future__ import annotations

import gc
import itertools
import logging
import sys

_WORKERS = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.")
"""Modules as which Spark starts its workers, of tasks and of the driver's planner."""

SECOND = 2

_FORMAT, _DATE = "%(asctime)s WARN %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"
"""As Spark's default log has it."""

_tasks = itertools.count(1)


def is_worker() -> bool:
    """Whether Spark started this process, for tasks or for the driver's planner."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith(_WORKERS)


def keep_modules() -> None:
    """Takes all that is in memory by now, which is modules, out of later collections; outside of a worker, nothing.

    Spark collects after every call of a worker, and most of what that walks over are the modules of pyspark, pyarrow,
    numpy and of this library: 50 ms a task, a third of a second for a scan of 256 MiB.
    """
    if is_worker():
        gc.freeze()


def begin_task() -> None:
    """To be called at the beginning of each task: at that of a worker's second one, modules are kept once more.

    The first one has loaded the rest by then, the SDK of a store and (in Spark's own code) pandas, which are 10 ms of
    each collection, and Spark has collected what it has left behind. What the second one holds by then is not collected
    if it becomes a cycle that nobody reaches: once in a worker's life.
    """
    if next(_tasks) == SECOND:
        keep_modules()


class WorkerHandler(logging.Handler):
    """Warnings and errors to standard error, which Spark passes on to the log of the driver or the executor.

    It is quiet where the root logger has a handler: Spark sets one where ``spark.sql.pyspark.worker.logging.enabled``.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(_FORMAT, _DATE))

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        if not logging.getLogger().handlers:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()


def tell_warnings() -> None:
    """Adds the handler, once; outside of a worker, nothing."""
    logger = logging.getLogger("tiered")
    if is_worker() and not any(isinstance(handler, WorkerHandler) for handler in logger.handlers):
        logger.addHandler(WorkerHandler())
