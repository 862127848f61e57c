"""Warnings of this library in a Python worker of Spark's: they go where Spark's own log goes.

A library leaves it to the program what becomes of its log, and a worker is a program that nobody configures: without
this, offsets that were skipped under ``failOnDataLoss=false`` would be told to nobody.
"""

from __future__ import annotations

import logging
import sys

from tiered.spark.worker_memory import is_worker

_FORMAT, _DATE = "%(asctime)s WARN %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"
"""As Spark's default log has it."""


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
