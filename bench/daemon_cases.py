"""Figures of the daemon: what a commit costs it when it holds many partitions, beside a fifth of them."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.directories import CONFIG, QuickFiles
from bench.measure import Figure
from tiered.engine.drain import DrainMode
from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord
from tiered.store.location import StoreLocation
from uploader.config import Settings
from uploader.service import Service, ServicePlace, serve

MANY = 5_000
FEW = 1_000
IN_MEMORY = Path("/dev/shm")
"""Where there is one, the disk's fsyncs are no part of the figure."""


class _Cost(NamedTuple):
    cpu_ms: float
    wall_ms: float


def daemon_partitions(rounds: int) -> list[Figure]:
    """``sync --wait`` of a fresh log: registers, claims, uploads and commits one segment of each partition."""
    del rounds  # one run each: the second figure is the yardstick of the first
    few, many = _per_commit(FEW), _per_commit(MANY)
    peer = f"the same with {FEW:,}"
    what = f"daemon, one commit beside {MANY:,} partitions"
    return [
        Figure(f"{what}, CPU", "ms", many.cpu_ms, peer, few.cpu_ms, few.cpu_ms / many.cpu_ms),
        Figure(f"{what} (wall)", "ms", many.wall_ms, peer, few.wall_ms, few.wall_ms / many.wall_ms),
    ]


def _per_commit(partitions: int) -> _Cost:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        path = Path(folder) / "log"
        with LocalLog.open(path, files=QuickFiles(), config=CONFIG) as log:
            log.create_topic("t", partitions)
            for tp in log.partitions():
                log.partition(tp).append([NewRecord(b"x" * 200)])
        gc.collect()
        remote = StoreLocation.parse(f"memory://bench-{partitions}-{os.getpid()}")
        service = Service(ServicePlace(path, remote), Settings(http=None))
        logging.disable(logging.WARNING)
        cpu, wall = time.process_time(), time.monotonic()
        try:
            ending = asyncio.run(serve(service, oneshot=DrainMode.ALL))
        finally:
            logging.disable(logging.NOTSET)
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        if ending.code or len(service.committed) != partitions:
            raise RuntimeError(f"the daemon ended with {ending}, {len(service.committed)} partitions committed")
        return _Cost(cpu * 1000 / partitions, wall * 1000 / partitions)
