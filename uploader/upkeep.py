"""Work of the daemon beside its uploads: maintenance with its own thread and store, and the lag of groups."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tiered.clock import Clock, IdSource
from tiered.errors import TieredError
from tiered.local.directory.figures import group_metrics
from tiered.local.directory.read_only_log import LogView
from tiered.local.transactions.group_positions import GroupTable
from tiered.metrics import Metric
from tiered.model import TopicPartition
from tiered.program.maintenance_loop import MaintenanceLoop, Scope, UpkeepView
from tiered.remote.committer import owner_of
from tiered.remote.maintain import ActionResult
from tiered.store.aio_driver import in_thread
from tiered.store.base import Store
from tiered.store.limit import Slots
from uploader.telemetry import emit

PROGRAM = "tiered-uploader --maintain"
LAST_ACTION_SECONDS = 5.0
"""Seconds that the end waits for the current action. Its lost objects are orphans of a dead epoch."""


class MaintenanceThread:
    """Thread that maintains the bucket, from its construction to :meth:`close`.

    ``every_ms``: interval between rounds. ``is_paused``: returns True for a topic that must not be maintained now.
    ``memory``: limit of bytes in memory that it shares with the uploads.
    """

    def __init__(
        self,
        store: Store,
        *,
        every_ms: int,
        clock: Clock,
        ids: IdSource,
        is_paused: Callable[[str], bool],
        memory: Slots,
    ) -> None:
        self._store = store
        owner = owner_of(PROGRAM)
        self._upkeep = MaintenanceLoop(
            store,
            owner=owner,
            clock=clock,
            ids=ids,
            on_done=_done,
            on_failed=_failed,
            scope=Scope(is_paused=is_paused),
            memory=memory,
        )
        self._thread = threading.Thread(target=self._upkeep.run, args=(every_ms,), name="maintain", daemon=True)
        self._thread.start()

    def reconfigure(self, every_ms: int) -> None:
        """Set the interval between rounds, including the current one."""
        self._upkeep.reconfigure(every_ms)

    def end(self) -> None:
        """Request an end after the current action, without a wait."""
        self._upkeep.end()

    async def close(self) -> None:
        """Request an end, and wait up to ``LAST_ACTION_SECONDS`` for the current action. Then close the store.

        An action that takes longer is abandoned, and the store stays open.
        """
        self._upkeep.end()
        await in_thread(self._thread.join, LAST_ACTION_SECONDS)
        if self._thread.is_alive():
            emit(logging.WARNING, "maintenance_left", f"{self._upkeep.view.doing} was left in the middle", {})
        else:
            self._store.close()

    def metrics(self) -> list[Metric]:
        """Return the metrics of the maintenance for ``/metrics``."""
        return self._upkeep.view.metrics()

    def status(self) -> dict[str, Any]:
        """Return the ``maintenance`` object of the ``/status`` document."""
        return as_json(self._upkeep.view)


def as_json(view: UpkeepView) -> dict[str, Any]:
    """Return the ``maintenance`` object of the ``/status`` document, from ``view``."""
    trouble = [] if view.trouble is None else [{"reason": view.trouble.message, "unblocks": view.trouble.hint}]
    return {
        "rounds": view.rounds,
        "began_ms": view.began_ms,
        "ended_ms": view.ended_ms,
        "doing": view.doing,
        "paused": sorted(view.paused),
        "actions": {kind.value: count for kind, count in view.actions.items()},
        "bytes_read": view.bytes_read,
        "bytes_written": view.bytes_written,
        "failed": trouble
        + [
            {"topic": tp.topic, "partition": tp.partition, "reason": error.message, "unblocks": error.hint}
            for tp, error in sorted(view.failed.items())
        ],
    }


def _done(tp: TopicPartition, done: ActionResult) -> None:
    fields = {"topic": tp.topic, "partition": tp.partition, "action": done.action.kind.value}
    sizes = {"bytes_read": done.bytes_read, "bytes_written": done.bytes_written}
    text = f"{tp} {done.action.kind} {done.action.start} to {done.action.end}"
    emit(logging.INFO, "maintained", f"{text}: {done.note}" if done.note else text, {**fields, **sizes})


def _failed(tp: TopicPartition | None, error: TieredError) -> None:
    fields: dict[str, str | int] = {} if tp is None else {"topic": tp.topic, "partition": tp.partition}
    emit(logging.WARNING, "maintenance_failed", str(error), {**fields, "error": error.code})


class GroupLags:
    """Lags of the consumer groups, as of the last :meth:`read`. A read costs only the positions committed since."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._busy = threading.Lock()
        self._table: GroupTable | None = None
        self._metrics: Sequence[Metric] = ()

    def metrics(self) -> Sequence[Metric]:
        """Return the lags as metrics for ``/metrics``."""
        return self._metrics

    def read(self) -> None:
        """Read the positions that were committed since the last call. The first call may take long.

        While one thread reads, calls of other threads return at once.
        """
        if not self._busy.acquire(blocking=False):
            return
        try:
            self._table = self._table or GroupTable(LogView.open(self._directory, clock=self._clock))
            self._metrics = group_metrics(self._table.lags(self._clock.now_ms()))
        except TieredError as error:
            self._metrics = ()  # an old lag would hide a growing one
            emit(logging.WARNING, "group_lag_unknown", error.message, {})
        finally:
            self._busy.release()
