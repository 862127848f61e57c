"""A log directory of a test, opened."""

from __future__ import annotations

from pathlib import Path

from tests.support.faulty_files import FaultyFiles
from tiered.config import LogConfig
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.tasks import Tasks, TaskStatus
from tiered.testing.clock import FakeClock, SeededIds


def opened(path: Path, clock: FakeClock | None = None, files: FaultyFiles | None = None) -> LocalLog:
    config = LogConfig(disk_reserve_bytes=0)
    return LocalLog.open(path, clock=clock or FakeClock(), ids=SeededIds(1), files=files, config=config)


def run_task(tasks: Tasks, name: str) -> TaskStatus:
    """Run the task now, whatever its timer says."""
    tasks._run(tasks._tasks[name], tasks._clock.now_ms())
    return tasks._status[name]
