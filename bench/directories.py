"""Figures of a log directory with many partitions: opening it, keeping it, opening it after a crash."""

from __future__ import annotations

import gc
import itertools
import os
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Figure, compare
from tiered.config import LogConfig
from tiered.format.batch import encode_batch
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.files import PosixFiles
from tiered.model import NewRecord

PARTITIONS = 10_000
AWAKE = 2000
CRASHED = 2000
BELOW_BYTES = 64 * 1024
BEHIND_BYTES = 4 * 1024
CONFIG = LogConfig(disk_reserve_bytes=0)


class QuickFiles(PosixFiles):
    """The real disk without its fsyncs; counts the bytes of ``.log`` files that are read."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def sync(self, handle: int) -> None:
        """Nothing."""

    def sync_directory(self, path: Path) -> None:
        """Nothing."""

    def read_into(self, handle: int, buffer: bytearray | memoryview, position: int) -> int:
        count = super().read_into(handle, buffer, position)
        self.read_bytes += count
        return count


def _made(path: Path, count: int) -> None:
    """Partitions with one record each, closed cleanly."""
    with LocalLog.open(path, files=QuickFiles(), config=CONFIG) as log:
        log.create_topic("t", count)
        for tp in log.partitions():
            log.partition(tp).append([NewRecord(b"x" * 100)])


def many_partitions(rounds: int) -> list[Figure]:
    """Opening a clean directory, and what a partition costs in memory while nobody uses it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        _made(path, PARTITIONS)

        def ours() -> None:
            LocalLog.open(path, files=QuickFiles(), config=CONFIG).close()

        opening = compare(
            f"open and close a clean directory of {PARTITIONS:,} partitions",
            ours,
            units=PARTITIONS,
            unit="partitions/s",
            peer="listdir + stat",
            theirs=lambda: [os.stat(entry.path) for entry in os.scandir(path)],  # noqa: PTH116 - the cheapest there is
            rounds=min(rounds, 3),
        )
        tracemalloc.start()
        try:
            log = LocalLog.open(path, files=QuickFiles(), config=CONFIG)
            gc.collect()
            asleep = tracemalloc.get_traced_memory()[0]
            for tp in log.partitions()[:AWAKE]:
                log.partition(tp)
            gc.collect()
            awake = tracemalloc.get_traced_memory()[0]
            log.close()
        finally:
            tracemalloc.stop()
        return [
            opening,
            Figure("memory of a partition that nobody has asked for", "bytes", asleep / PARTITIONS, "", None, None),
            Figure("memory of an idle partition that was opened", "bytes", (awake - asleep) / AWAKE, "", None, None),
        ]


def _record(stamps: Iterator[int]) -> NewRecord:
    return NewRecord(b"x" * 960, timestamp=next(stamps))


def unclean_open(rounds: int) -> list[Figure]:
    """Bytes read by an open after a crash, per byte that follows the recovery points."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        stamps = itertools.count(1_700_000_000_000)  # times that stand still make a recovery read the segment
        size = len(encode_batch([_record(stamps)]))
        log = LocalLog.open(path, files=QuickFiles(), config=CONFIG)
        log.create_topic("t", CRASHED)
        for tp in log.partitions():
            for _ in range(BELOW_BYTES // size):
                log.partition(tp).append([_record(stamps)])
        log.flush()
        log.checkpoint()
        behind = 0
        for tp in log.partitions():
            for _ in range(BEHIND_BYTES // size):
                log.partition(tp).append([_record(stamps)])
                behind += size
        log.close()
        points = path / "recovery-point-offset-checkpoint"
        lines = points.read_text().splitlines()
        step = BEHIND_BYTES // size
        old = [f"{topic} {p} {int(offset) - step}" for topic, p, offset in (line.split() for line in lines[2:])]
        points.write_text("\n".join([*lines[:2], *old]) + "\n")
        (path / ".kafka_cleanshutdown").unlink()
        files = QuickFiles()
        LocalLog.open(path, files=files, config=CONFIG).close()
        del rounds
        return [
            Figure(
                f"unclean open of {CRASHED:,} partitions: bytes read per byte behind the recovery point",
                "x",
                files.read_bytes / behind,
                "whole segments",
                (BELOW_BYTES + BEHIND_BYTES) / BEHIND_BYTES,
                None,
            )
        ]
