"""Figures of an open after a crash: what it reads, what it costs per GB, and that old bytes cost nothing."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bench.directories import CONFIG, QuickFiles
from bench.measure import Figure, compare
from tiered.config import TopicConfig
from tiered.format.batch import encode_batch
from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, TopicPartition

TP = TopicPartition("t", 0)
MIB = 1024 * 1024
RECOVERED_BYTES = 64 * MIB
PARTITIONS = 2000
SPARSE_BYTES = 100_000_000
SMALL_BYTES = 1_000_000
BEHIND_RECORDS = 4
RECORD = NewRecord(b"x" * 960, timestamp=1_700_000_000_000)


def recovery(rounds: int) -> list[Figure]:
    """A segment without any recovery point: every batch is read and its CRC checked, both indexes are made anew."""
    with tempfile.TemporaryDirectory() as folder:
        running = Path(folder) / "running"
        with LocalLog.open(running, files=QuickFiles(), config=CONFIG) as log:
            log.create_topic(TP.topic, 1, TopicConfig(segment_bytes=2 * RECOVERED_BYTES))
            batches = encode_batch([RECORD] * 16) * 64
            while log.partition(TP).positions().end_offset * 970 < RECOVERED_BYTES:
                log.partition(TP).append_batches(batches)
            names = itertools.count()
            copies = [shutil.copytree(running, Path(folder) / str(i)) for i in range(rounds + 1)]  # as a kill leaves it
        path = next((running / "t-0").glob("*.log"))
        size = path.stat().st_size

        def ours() -> None:
            LocalLog.open(copies[next(names)], files=QuickFiles(), config=CONFIG).close()

        def theirs() -> None:
            with path.open("rb") as file:
                while file.read(MIB):
                    pass

        speed = compare(
            "recover a segment without a recovery point",
            ours,
            units=size / 1e6,
            unit="MB/s",
            peer="read() of the file",
            theirs=theirs,
            rounds=rounds,
        )
        per_gigabyte = replace(
            speed, what="recover: seconds per GB", unit="s", ours=1000 / speed.ours, theirs=None, ratio=None
        )
        return [speed, per_gigabyte]


def cold_start(rounds: int) -> list[Figure]:
    """2,000 partitions after a crash, 200 GB of old segments as sparse files; then the same with 2 GB of them."""
    with tempfile.TemporaryDirectory() as folder:
        large, files = _cold_open(Path(folder) / "large", SPARSE_BYTES)
        small, _ = _cold_open(Path(folder) / "small", SMALL_BYTES)
        for at in range(min(rounds, 3) - 1):
            large = min(large, _cold_open(Path(folder) / f"large{at}", SPARSE_BYTES)[0])
            small = min(small, _cold_open(Path(folder) / f"small{at}", SMALL_BYTES)[0])
    gigabytes = PARTITIONS * SPARSE_BYTES / 1e9
    what = f"cold unclean open, {PARTITIONS:,} partitions, {gigabytes:.0f} GB sparse (wall)"
    peer = f"the same with {PARTITIONS * SMALL_BYTES / 1e9:.0f} GB"
    return [
        Figure(what, "s", large, peer, small, small / large),
        Figure("MB of .log that it read", "MB", files.read_bytes / 1e6, "", None, None),
    ]


def _cold_open(path: Path, old_bytes: int) -> tuple[float, QuickFiles]:
    """Seconds of an unclean open without page cache; each partition has an old segment and some records behind it."""
    with LocalLog.open(path, files=QuickFiles(), config=CONFIG) as log:
        log.create_topic(TP.topic, PARTITIONS)
        for tp in log.partitions():
            partition = log.partition(tp)
            partition.append([RECORD])
            partition.roll()
            for _ in range(BEHIND_RECORDS):
                partition.append([RECORD])
    points = path / "recovery-point-offset-checkpoint"
    head, lines = points.read_text().splitlines()[:2], points.read_text().splitlines()[2:]
    points.write_text("\n".join([*head, *(f"{line.rsplit(' ', 1)[0]} 1" for line in lines)]) + "\n")
    (path / ".kafka_cleanshutdown").unlink()
    for old in path.glob(f"*/{0:020d}.log"):
        os.truncate(old, old_bytes)
    _forget_pages(path)
    files = QuickFiles()
    began = time.perf_counter()
    log = LocalLog.open(path, files=files, config=CONFIG)
    seconds = time.perf_counter() - began
    log.close()
    shutil.rmtree(path)
    return seconds, files


def _forget_pages(path: Path) -> None:
    """The kernel drops what it holds of these files, so that the open begins cold."""
    os.sync()
    for file in path.rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)
