"""The figure of compaction: a round over a local log, beside decoding the records that it looks at."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from bench.directories import CONFIG, QuickFiles
from bench.measure import Figure, compare
from tiered.config import TopicConfig
from tiered.format.batch import decode_records
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import LogView
from tiered.model import NewRecord, TopicPartition

TP = TopicPartition("t", 0)
RECORDS = 150_000
KEYS = 15_000
BATCH_RECORDS = 150
MIB = 1024 * 1024
COMPACTED = TopicConfig(cleanup_policy="compact", segment_bytes=8 * MIB, file_delete_delay_ms=0)


def _made(path: Path) -> int:
    """A dirty log of 100 B records, each key ten times; returns its bytes."""
    value = b"v" * 84
    with LocalLog.open(path, files=QuickFiles(), config=CONFIG) as log:
        log.create_topic(TP.topic, 1, COMPACTED)
        partition = log.partition(TP)
        for at in range(0, RECORDS, BATCH_RECORDS):
            partition.append([NewRecord(value, b"C-%013d" % (i * 7919 % KEYS)) for i in range(at, at + BATCH_RECORDS)])
        partition.roll()
        return sum(segment.size_bytes for segment in partition.sealed_segments())


def compaction(rounds: int) -> list[Figure]:
    """Both passes: the map of the newest offsets, then every batch filtered and written. Nine of ten records go."""
    with tempfile.TemporaryDirectory() as folder:
        dirty = Path(folder) / "dirty"
        size = _made(dirty)
        names = itertools.count()
        copies = [shutil.copytree(dirty, Path(folder) / str(i)) for i in range(rounds + 1)]

        def ours() -> None:
            with LocalLog.open(copies[next(names)], files=QuickFiles(), config=CONFIG) as log:
                log.cleaner.clean(TP)

        def theirs() -> None:
            with LogView.open(dirty, files=QuickFiles()) as log:
                for batch in log.partition(TP).read_batches(0):
                    for _ in decode_records(batch):
                        pass

        records = compare(
            "compact, 1 of 10 records stays",
            ours,
            units=RECORDS,
            unit="records/s",
            peer="reading and decoding it once",
            theirs=theirs,
            rounds=rounds,
        )
        per_gigabyte = replace(
            records,
            what="compact: seconds per GB",
            unit="s",
            ours=1e9 / size * RECORDS / records.ours,
            theirs=None,
            ratio=None,
        )
        return [records, per_gigabyte]
