"""What an inline sync refuses: it says so, uploads nothing of it, and does the other partitions all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered.config import TopicConfig
from tiered.engine.tiering import Tiering
from tiered.errors import ConfigError, OffsetGapError
from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, TopicPartition
from tiered.store.base import Store
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock, SeededIds
from tiered.testing.faults import FaultStore

GAPPED, WHOLE = TopicPartition("t", 0), TopicPartition("t", 1)


def opened(directory: Path, store: Store, *, seed: int = 1) -> tuple[LocalLog, Tiering]:
    clock, ids = FakeClock(), SeededIds(seed)
    log = LocalLog.open(directory, clock=clock, ids=ids)
    if "t" not in log.topics():
        log.create_topic("t", 2, TopicConfig(segment_bytes=2048))
    return log, Tiering(log, store, clock=clock, ids=ids)


def fill(log: LocalLog, tp: TopicPartition) -> int:
    for number in range(60):
        log.partition(tp).append([NewRecord(b"%05d" % number * 20, b"k", 1_000)])
    log.partition(tp).roll()
    return log.partition(tp).positions().end_offset


def gapped(directory: Path, store: FaultStore) -> tuple[LocalLog, Tiering]:
    """Both partitions have 60 records in the bucket and 60 more; one lost the first segment of these by hand."""
    log, tiering = opened(directory, store)
    tiering.sync({tp: fill(log, tp) for tp in (GAPPED, WHOLE)}, None)
    for tp in (GAPPED, WHOLE):
        fill(log, tp)
    log.close()
    for path in (directory / str(GAPPED)).glob(f"{60:020d}.*"):
        path.unlink()
    store.calls.clear()
    return opened(directory, store, seed=2)


def uploaded(store: FaultStore) -> list[str]:
    return [key for operation, key in store.calls if operation == "put" and key.endswith((".log", ".idx"))]


def test_a_gap_between_bucket_and_disk_is_told_before_anything_is_uploaded(tmp_path: Path) -> None:
    store = FaultStore(MemoryStore())
    log, tiering = gapped(tmp_path, store)
    with pytest.raises(OffsetGapError, match="the bucket ends at offset 60") as gap:
        tiering.sync({GAPPED: 120}, None)
    assert gap.value.start == 60 != gap.value.end
    assert uploaded(store) == []
    log.close()


def test_the_others_are_synced_before_a_refusal_is_told(tmp_path: Path) -> None:
    log, tiering = gapped(tmp_path, FaultStore(MemoryStore()))
    with pytest.raises(OffsetGapError):
        tiering.sync({GAPPED: 120, WHOLE: 120}, None)
    assert [log.partition(tp).positions().uploaded_offset for tp in (GAPPED, WHOLE)] == [60, 120]
    log.close()


def test_another_topic_of_that_name_is_not_uploaded_over(tmp_path: Path) -> None:
    store = FaultStore(MemoryStore())
    first, tiering = opened(tmp_path / "first", store)
    tiering.sync({WHOLE: fill(first, WHOLE)}, None)
    theirs = first.topics()["t"].topic_id
    first.close()
    other, tiering = opened(tmp_path / "other", store, seed=2)
    end = fill(other, WHOLE)
    store.calls.clear()
    with pytest.raises(ConfigError, match=str(theirs)):
        tiering.sync({WHOLE: end}, None)
    assert [operation for operation, _ in store.calls if operation not in ("get", "head")] == []
    other.close()
