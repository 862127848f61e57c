"""The sink, in processes that can be told where to die.

The points of one micro-batch, in order:

============  ==================================================================================================
offset log    the batch is in the offset log, nothing has begun
tasks         a task has its first rows
staged        one staged segment is in the bucket, others are not
all staged    all tasks have ended, the commit has not begun
decision      the decision is made
first swap    one partition's root is swapped
middle swap   two of three are
last swap     all of them are
commit log    the sink has committed, Spark has not noted it
============  ==================================================================================================

``worker`` is no point of the driver: the worker of a task dies there, and Spark tries the task again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from tiered.spark import worker
from tiered.spark.sink import TaskStaged, TieredStreamWriter
from tiered.spark.source import TieredDataSource
from tiered.store.base import Outcome, Put, PutResult, PutStatus, Store, StoreAround, StoreRequest

POINTS = (
    "offset log",
    "tasks",
    "staged",
    "all staged",
    "decision",
    "first swap",
    "middle swap",
    "last swap",
    "commit log",
)
WORKER = "worker"
SWAPS = ("first swap", "middle swap", "last swap")
RUN = "TIERED_RESTARTS_RUN"
"""Folder of this run: ``pids`` of the driver, ``order`` (where to die, and the how manieth time)."""

_swaps: list[str] = []
"""Roots that the commit at hand has swapped."""


def reach(point: str) -> None:
    """A process is at ``point``: it may have to die here, and the driver with it."""
    run = Path(os.environ[RUN])
    wanted, turn = json.loads((run / "order").read_text())
    if point != wanted or _turn(run) != turn:
        return
    (run / "died").write_text(point)
    if point != WORKER:
        for pid in json.loads((run / "pids").read_text()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _turn(run: Path) -> int:
    """How often the point was reached in this run, by whatever process."""
    for number in itertools.count(1):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(run / f"turn-{number}", os.O_CREAT | os.O_EXCL))
            return number
    raise AssertionError


class WatchedStore(StoreAround):
    """Says which of the sink's requests have landed."""

    def execute(self, request: StoreRequest) -> Outcome:
        outcome = self.inner.execute(request)
        if isinstance(request, Put) and isinstance(outcome, PutResult) and outcome.status is PutStatus.LANDED:
            if request.key.endswith(".log"):
                reach("staged")
            elif request.key.startswith("txn/"):
                reach("decision")
            elif request.key.endswith("/root"):
                _swaps.append(request.key)
                reach(SWAPS[len(_swaps) - 1])
        return outcome


_open_store = worker.open_store


def _open_watched(*args: Any, **words: Any) -> Store:
    return WatchedStore(_open_store(*args, **words))


worker.open_store = _open_watched


class DyingWriter(TieredStreamWriter):
    """The sink's writer, which says where it is."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskStaged:
        def watched() -> Iterator[pa.RecordBatch]:
            for batch in iterator:
                reach("tasks")
                if not TaskContext.get().attemptNumber():
                    reach(WORKER)
                yield batch

        return super().write(watched())

    def commit(self, messages: Sequence[TaskStaged | None], batchId: int) -> None:
        _swaps.clear()
        reach("all staged")
        super().commit(messages, batchId)
        reach("commit log")


class DyingSource(TieredDataSource):
    """``format("dying")``."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingWriter:
        writer = super().streamWriter(schema, overwrite)
        reach("offset log")
        return DyingWriter(writer._plan)
