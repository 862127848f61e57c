"""A closed log directory for a command line."""

from __future__ import annotations

from pathlib import Path

from tiered.clock import SystemClock, SystemIds
from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, TopicPartition

TP = TopicPartition("t", 0)


def made(path: Path) -> Path:
    with LocalLog.open(path, clock=SystemClock(), ids=SystemIds()) as log:
        log.create_topic("t", 2)
        for i in range(5):
            log.partition(TP).append([NewRecord(b"%d" % i)])
    return path
