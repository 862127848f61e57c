"""What this library does in a Python worker of Spark's: little for the garbage collector to look at, warnings told.

A library leaves it to the program what becomes of its log, and a worker is a program that nobody configures: without
:func:`tell_warnings`, offsets that were skipped under ``failOnDataLoss=false`` would be told to nobody.
"""

from __future__ import annotations

import gc
import itertools
import logging
import sys
import traceback
import types

_WORKERS = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.", "tiered.spark.daemon")
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


class ForkTraceback(types.ModuleType):
    """Stand-in for the module ``traceback`` in Spark's daemon: the end of a reader that left is no error."""

    def __getattr__(self, name: str) -> object:
        """Return the quiet ``print_exc``, and everything else from the real module."""
        return _print_unless_closed if name == "print_exc" else getattr(traceback, name)


def _print_unless_closed() -> None:
    """Print the exception at hand, unless it is a closed connection to the executor."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        traceback.print_exc()


def end_quietly() -> None:
    """Replace the daemon's own reference to ``traceback`` in this worker, once. Do nothing outside of a worker.

    An executor closes the connection of a task that needs no more rows, for instance after ``limit``. Spark's daemon
    then prints a traceback for each such task. Other modules keep the real ``traceback``.
    """
    for name in ("__main__", "pyspark.daemon"):  # the second one where another module runs the daemon
        daemon = sys.modules.get(name)
        if is_worker() and hasattr(daemon, "compute_real_exit_code") and not _is_quiet(daemon):
            vars(daemon)["traceback"] = ForkTraceback("traceback")


def _is_quiet(daemon: object) -> bool:
    return isinstance(getattr(daemon, "traceback", None), ForkTraceback)


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
