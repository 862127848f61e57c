"""Processes in which tasks run: their stores, modules hidden from the garbage collector, warnings in the log.

A library leaves the handling of its log to the program, but a worker's program has no configuration. Without
:func:`log_warnings`, warnings about offsets skipped under ``failOnDataLoss=false`` would be lost.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import sys
import threading
import traceback
import types
from typing import Unpack
from weakref import WeakKeyDictionary

from tiered.config import S3Keywords
from tiered.spark.options import ReadOptions
from tiered.spark.write_options import WriteOptions
from tiered.store.base import Capabilities, Store
from tiered.store.capabilities import check_capabilities, probe
from tiered.store.driver import drive
from tiered.store.location import open_store
from tiered.store.options import StoreOptions

_stores: dict[tuple[object, ...], Store] = {}
_probed: WeakKeyDictionary[Store, Capabilities] = WeakKeyDictionary()
_lock = threading.Lock()


def store_of(path: str, options: ReadOptions | WriteOptions) -> Store:
    """Return this process's store for ``path`` and ``options``, opened at the first call.

    Raises ConfigError for a wrong URL or setting of S3.
    """
    return worker_store(
        path,
        endpoint_url=options.endpoint_url,
        region=options.region,
        expected_bucket_owner=options.expected_bucket_owner,
    )


def worker_store(url: str, **s3: Unpack[S3Keywords]) -> Store:
    """Return this process's store for ``url``. Credentials come from the environment.

    Raises ConfigError for a wrong URL or setting of S3.

    ``s3``: settings of the S3 server, such as its region. A store is opened once per process, because an SDK client
    costs 0.1 s and a pool of connections. A forked child does not use its parent's connections. The store stays open
    until the process ends.
    """
    key = (os.getpid(), url, *sorted(s3.items()))
    with _lock:
        store = _stores.get(key)
        if store is None:
            store = _stores[key] = open_store(url, StoreOptions(create=False), **s3)
        return store


def capabilities_of(store: Store) -> Capabilities:
    """Return the capabilities of a store of this process, probed once, because a probe costs some ten requests.

    Raises ConditionalWritesUnsupportedError if the store lacks conditional writes, and the errors of the store.
    """
    found = _probed.get(store)
    if found is None:
        found = _probed[store] = drive(store, probe())
    check_capabilities(found, store.url)
    return found


_WORKERS = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.", "tiered.spark.daemon")
"""Modules as which Spark starts its workers, of tasks and of the driver's planner."""

SECOND = 2

_FORMAT, _DATE = "%(asctime)s WARN %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"
"""Format of Spark's default log."""

_tasks = itertools.count(1)


def is_worker() -> bool:
    """Return True if Spark started this process, for tasks or for the driver's planner."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith(_WORKERS)


def keep_modules() -> None:
    """Exclude all existing objects, mostly modules, from later garbage collections. Do nothing outside of a worker.

    Spark collects after every call of a worker, and mostly walks over the modules of pyspark, pyarrow, numpy and of
    this library. That takes 50 ms a task, a third of a second for a scan of 256 MiB.
    """
    if is_worker():
        gc.freeze()


def start_task() -> None:
    """Exclude all existing objects from garbage collections again, at the start of a worker's second task.

    Call this in each task; in all other tasks it does nothing.

    By then the first task has loaded the SDK of a store and (in Spark's own code) pandas, which cost 10 ms of each
    collection, and Spark has collected its garbage. Objects alive at that moment are never collected if they become
    garbage cycles later: once in a worker's life.
    """
    if next(_tasks) == SECOND:
        keep_modules()


def _print_unless_closed() -> None:
    """Print the current exception, unless it is a closed connection to the executor."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        traceback.print_exc()


QUIET = types.SimpleNamespace(**{**vars(traceback), "print_exc": _print_unless_closed})
"""Replacement for the module ``traceback`` in Spark's daemon. It prints nothing if an executor closed the
    connection.
    """


def end_quietly() -> None:
    """Stop Spark's daemon from printing tracebacks about closed connections. Do nothing outside of a worker.

    An executor closes the connection of a task that needs no more rows, for instance after ``limit``. Spark's daemon
    then prints a traceback for each such task. Other modules keep the real ``traceback``.
    """
    for name in ("__main__", "pyspark.daemon"):  # the second one where another module runs the daemon
        daemon = sys.modules.get(name)
        if is_worker() and hasattr(daemon, "compute_real_exit_code"):
            vars(daemon)["traceback"] = QUIET


class WorkerHandler(logging.Handler):
    """Log handler that writes warnings and errors to standard error, which Spark passes on to its log.

    It writes nothing if the root logger has a handler: Spark sets one for ``spark.sql.pyspark.worker.logging.enabled``.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(_FORMAT, _DATE))

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()


def log_warnings() -> None:
    """Add a :class:`WorkerHandler` to this library's logger, once. Do nothing outside of a worker."""
    logger = logging.getLogger("tiered")
    if is_worker() and not any(isinstance(handler, WorkerHandler) for handler in logger.handlers):
        logger.addHandler(WorkerHandler())
