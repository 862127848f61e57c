"""Figures of a daemon at rest: the memory of an idle partition, the CPU of thousands, and their requests."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import re
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from bench.daemon_cases import IN_MEMORY
from bench.directories import QuickFiles
from bench.gate import AT_MOST
from bench.measure import Figure
from tests.support.moto import CREDENTIALS, locked_moto, make_bucket
from tiered.config import LogConfig
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.uploader_files import OFFSET_CHECKPOINT_NAME
from tiered.store.aio_driver import DaemonLoop
from tiered.store.location import StoreLocation
from uploader.config import Settings
from uploader.service import Service, ServicePlace
from uploader.start import share_memory

TOPICS = 10
FEW, MANY, MANY_ON_S3 = 300, 10_000, 2_000
LIMIT_BYTES = 30 * 2**20 / 10_000
LIMIT_CPU_PERCENT = 0.5
REST_SECONDS, IDLE_SECONDS = 10.0, 30.0
"""Time from the last claim to the measurement, and its length: several scans."""


class _Rest(NamedTuple):
    mib: float
    cpu_percent: float
    requests: int


def daemon_idle(rounds: int) -> list[Figure]:
    """A daemon that has claimed many partitions and has nothing to do, beside one with a few."""
    del rounds  # one run each
    with (
        tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder,
        locked_moto() as endpoint,
    ):
        os.environ.update(CREDENTIALS)  # of the daemons, which are processes of their own
        os.environ["AWS_ENDPOINT_URL"] = endpoint
        make_bucket(endpoint, "idle")
        return [
            *_figures("file://", Path(folder), f"file://{folder}/bucket", MANY),
            *_figures("S3", Path(folder), "s3://idle", MANY_ON_S3),
        ]


def _figures(name: str, folder: Path, remote: str, partitions: int) -> list[Figure]:
    few, many = (_at_rest(folder / f"{name[:2]}-{count}", f"{remote}/{count}", count) for count in (FEW, partitions))
    each = (many.mib - few.mib) * 2**20 / (partitions - FEW)
    what = f"daemon with {partitions:,} idle partitions on {name}"
    if many.requests:
        raise RuntimeError(f"{what}: {many.requests} requests")
    return [
        Figure(f"{what}, memory of one", "bytes", each, AT_MOST, LIMIT_BYTES, LIMIT_BYTES / each),
        Figure(f"{what}, CPU", "%", many.cpu_percent, AT_MOST, LIMIT_CPU_PERCENT, LIMIT_CPU_PERCENT / many.cpu_percent),
    ]


def _at_rest(path: Path, remote: str, partitions: int) -> _Rest:
    """Measure a daemon in a process of its own."""
    with LocalLog.open(path, files=QuickFiles(), config=LogConfig(remote=True, disk_reserve_bytes=0)) as log:
        for topic in range(TOPICS):
            log.create_topic(f"t{topic}", partitions // TOPICS)
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=_daemon, args=(str(path), remote, partitions, theirs))
    process.start()
    theirs.close()  # an end of the process ends the wait
    rest = mine.recv()
    process.join()
    return _Rest(*rest)


def _daemon(path: str, remote: str, partitions: int, answer: Connection) -> None:
    share_memory()  # as the program does
    logging.disable(logging.WARNING)
    with asyncio.Runner(loop_factory=DaemonLoop) as runner:
        answer.send(runner.run(_measured(path, remote, partitions)))


async def _measured(path: str, remote: str, partitions: int) -> _Rest:
    service = Service(ServicePlace(Path(path), StoreLocation.parse(remote)), Settings(http=None))
    run = asyncio.create_task(service.run())
    checkpoint = Path(path) / OFFSET_CHECKPOINT_NAME
    while not run.done() and _named(checkpoint) < partitions:
        await asyncio.sleep(1)
    await asyncio.sleep(REST_SECONDS)
    requests, cpu, begun = _requests(service), time.process_time(), time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    percent = 100 * (time.process_time() - cpu) / (time.monotonic() - begun)
    gc.collect()
    resident = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if resident is None or run.done():
        raise RuntimeError("the daemon has ended, or this system does not report a process's memory")
    rest = _Rest(int(resident[1]) / 1024, percent, _requests(service) - requests)
    service.drain()
    service.drain()
    await run
    return rest


def _named(checkpoint: Path) -> int:
    """Return how many partitions are claimed and noted. The status would cost memory that belongs to the figure."""
    return checkpoint.read_bytes().count(b'"claim_epoch"') if checkpoint.exists() else 0


def _requests(service: Service) -> int:
    return sum(each.requests for each in service.store_metrics.snapshot())
