"""Figures of the disk: appends that wait for fsync, alone and by many threads; random reads; transactions."""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tiered
from bench.directories import CONFIG, QuickFiles
from bench.measure import Figure, compare
from tiered.config import TopicConfig
from tiered.format.batch import decode_records
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.files import PosixFiles
from tiered.local.partition.write_log import WriteLog
from tiered.model import NewRecord, TopicPartition

TP = TopicPartition("t", 0)
THREADS = 64
DURABLE_APPENDS = 640
RANDOM_READS = 3000
SEGMENTS = 32
SEGMENT_RECORDS = 4000
MANY_SEGMENTS = 4000
FEW_RECORDS = 80
BATCH_RECORDS = 40
START_MS = 1_700_000_000_000
TRANSACTIONS = 100
SEED = 11


class CountedFiles(PosixFiles):
    """The real disk; counts its fsyncs."""

    def __init__(self) -> None:
        self.syncs = 0

    def sync(self, handle: int) -> None:
        """Counted."""
        self.syncs += 1
        super().sync(handle)


def wall_seconds(function: Callable[[], object]) -> float:
    """Of one call. Who waits for a disk uses no CPU: here only the wall clock tells."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def _by_threads(count: int, each: int, work: Callable[[], object]) -> None:
    def run() -> None:
        for _ in range(each):
            work()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def group_commit(rounds: int) -> list[Figure]:
    """Appends that wait for ``disk``: one thread, then 64 that share fsyncs; the peer is write + fdatasync alone."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        files = CountedFiles()
        with LocalLog.open(Path(folder), files=files, config=CONFIG) as log:
            log.create_topic(TP.topic, 1)
            partition = log.partition(TP)
            record = [NewRecord(b"x" * 100, b"k")]
            plain = os.open(Path(folder) / "plain", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

            def append() -> None:
                partition.append(record)
                partition.flush()

            def write() -> None:
                os.write(plain, b"x" * 170)
                os.fdatasync(plain)

            alone = together = peer = fewest = float("inf")
            single = 0
            for _ in range(rounds):
                alone = min(alone, wall_seconds(lambda: _by_threads(1, DURABLE_APPENDS // 8, append)) * 8)
                peer = min(peer, wall_seconds(lambda: _by_threads(1, DURABLE_APPENDS // 8, write)) * 8)
                before = files.syncs
                append()
                single = files.syncs - before
                before = files.syncs
                together = min(together, wall_seconds(lambda: _by_threads(THREADS, DURABLE_APPENDS // THREADS, append)))
                fewest = min(fewest, (files.syncs - before) / DURABLE_APPENDS)
            os.close(plain)
    n = DURABLE_APPENDS
    return [
        Figure(
            "append and wait for disk, 1 thread (wall)", "records/s", n / alone, "write+sync", n / peer, peer / alone
        ),
        Figure(
            f"append and wait for disk, {THREADS} threads (wall)",
            "records/s",
            n / together,
            "1 thread",
            n / alone,
            alone / together,
        ),
        Figure(f"fsyncs per record, {THREADS} threads", "x", fewest, "1 thread", single, single / fewest),
    ]


@contextmanager
def _segments(count: int, records: int) -> Iterator[WriteLog]:
    """One partition of ``count`` segments of ``records`` each; timestamps rise by one per record."""
    with tempfile.TemporaryDirectory() as folder:
        with LocalLog.open(Path(folder), files=QuickFiles(), config=CONFIG) as log:
            log.create_topic(TP.topic, 1, TopicConfig())
            partition = log.partition(TP)
            for at in range(0, count * records, BATCH_RECORDS):
                partition.append([NewRecord(b"x" * 100, b"k", START_MS + i) for i in range(at, at + BATCH_RECORDS)])
                if (at + BATCH_RECORDS) % records == 0:
                    partition.roll()
        with LocalLog.open(Path(folder), files=QuickFiles(), config=CONFIG) as log:
            yield log.partition(TP)


class RandomReads:
    """Reads of one record each, at offsets and times drawn from a seed."""

    def __init__(self, partition: WriteLog) -> None:
        self._partition = partition
        dice = random.Random(SEED)
        self.offsets = [dice.randrange(partition.end_offset) for _ in range(RANDOM_READS)]

    def by_offset(self) -> None:
        for offset in self.offsets:
            found = next(self._partition.read_batches(offset, offset + 1))
            next(record for record in decode_records(found) if record.offset == offset)

    def by_time(self) -> None:
        for offset in self.offsets:
            self._partition.offset_for_time(START_MS + offset)


def random_reads(rounds: int) -> list[Figure]:
    """The first record at a random offset, and the offset of a random time; the peer decodes a batch in memory.

    Then with many segments; the peer is a log of as many records in few segments.
    """
    as_many = MANY_SEGMENTS * FEW_RECORDS // SEGMENTS
    with (
        _segments(SEGMENTS, SEGMENT_RECORDS) as partition,
        _segments(SEGMENTS, as_many) as large,
        _segments(MANY_SEGMENTS, FEW_RECORDS) as many,
    ):
        alone, in_large, in_many = RandomReads(partition), RandomReads(large), RandomReads(many)
        batch = bytes(next(partition.read_batches(0)))

        def decode() -> None:
            for offset in alone.offsets:
                next(itertools.islice(decode_records(batch), offset % BATCH_RECORDS, None))

        few, most = f"{SEGMENTS} segments", f"{MANY_SEGMENTS:,} segments"
        rows: list[tuple[str, Callable[[], None], str, Callable[[], None]]] = [
            (f"offset, {few}", alone.by_offset, "decoding one batch", decode),
            (f"time, {few}", alone.by_time, "decoding one batch", decode),
            (f"offset, {most}", in_many.by_offset, f"as much in {few}", in_large.by_offset),
            (f"time, {most}", in_many.by_time, f"as much in {few}", in_large.by_time),
        ]
        return [
            compare(
                f"random read by {what}",
                ours,
                units=RANDOM_READS,
                unit="reads/s",
                peer=peer,
                theirs=theirs,
                rounds=rounds,
            )
            for what, ours, peer, theirs in rows
        ]


def transactions(rounds: int) -> list[Figure]:
    """One record in each of two partitions, committed: five fsyncs in a row; the peer appends without one."""
    with tempfile.TemporaryDirectory(dir=".") as folder, tiered.open(folder) as log:
        topic = log.topic("t", partitions=2, create=True)

        def ours() -> None:
            for _ in range(TRANSACTIONS):
                with topic.transaction("bench") as txn:
                    txn.append(b"x" * 100, partition=0)
                    txn.append(b"x" * 100, partition=1)

        def theirs() -> None:
            for _ in range(TRANSACTIONS):
                topic.append(b"x" * 100, partition=0, durability="disk")
                topic.append(b"x" * 100, partition=1, durability="disk")

        ours()
        best, peer = float("inf"), float("inf")
        for _ in range(rounds):
            best = min(best, wall_seconds(ours))
            peer = min(peer, wall_seconds(theirs))
    what = "transaction over two partitions (wall)"
    return [Figure(what, "commits/s", TRANSACTIONS / best, "two durable appends", TRANSACTIONS / peer, peer / best)]
