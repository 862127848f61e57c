"""Several log directories, opened as one log."""

from __future__ import annotations

from pathlib import Path

from tiered.config import LogConfig, TopicConfig
from tiered.format.batch import decode_records
from tiered.local.directory.directories import LocalTier
from tiered.model import TopicPartition
from tiered.testing.clock import FakeClock, SeededIds
from tiered.testing.disk import FaultyFiles

TP = TopicPartition("t", 0)

SMALL = TopicConfig(segment_bytes=300, segment_index_bytes=240, index_interval_bytes=0)


def opened(tmp_path: Path, *names: str, files: FaultyFiles | None = None, clock: FakeClock | None = None) -> LocalTier:
    paths = [tmp_path / name for name in names or ("a", "b")]
    config = LogConfig(disk_reserve_bytes=0)
    return LocalTier.open(paths, clock=clock or FakeClock(), ids=SeededIds(3), files=files, config=config)


def values(logs: LocalTier, tp: TopicPartition = TP) -> list[bytes | None]:
    return [record.value for batch in logs.partition(tp).read_batches(0) for record in decode_records(batch)]
