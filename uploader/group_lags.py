"""Lag of the groups whose positions are in the log directory. Another process commits them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from tiered.clock import Clock
from tiered.errors import TieredError
from tiered.local.directory.figures import group_metrics
from tiered.local.directory.read_only_log import LogView
from tiered.local.transactions.group_positions import GroupTable
from tiered.metrics import Metric
from uploader import logs


class GroupLags:
    """Figures of the last :meth:`read`. Each look reads only what was committed since the one before."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._busy = threading.Lock()
        self._table: GroupTable | None = None
        self._metrics: Sequence[Metric] = ()

    def metrics(self) -> Sequence[Metric]:
        """Return the figures under the names of ``/metrics``."""
        return self._metrics

    def read(self) -> None:
        """Read the positions that are new. May take long the first time: while one thread reads, others return."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            self._table = self._table or GroupTable(LogView.open(self._directory, clock=self._clock))
            self._metrics = group_metrics(self._table.lags(self._clock.now_ms()))
        except TieredError as error:
            self._metrics = ()  # an old lag would hide a growing one
            logs.emit(logging.WARNING, "group_lag_unknown", error.message, {})
        finally:
            self._busy.release()
