"""What the garbage collector need not look at in a Python worker of Spark's."""

from __future__ import annotations

import gc
import itertools
import sys

_WORKERS = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.")
"""Modules as which Spark starts its workers, of tasks and of the driver's planner."""

SECOND = 2

_tasks = itertools.count(1)


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


def is_worker() -> bool:
    """Whether Spark started this process, for tasks or for the driver's planner."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith(_WORKERS)
