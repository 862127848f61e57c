"""What an inline sync believes: the root that it reads back, and the claim that is on its disk. Nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered.config import TopicConfig
from tiered.errors import TieredError
from tiered.format.root import decode_root
from tiered.local.directory.manager import LocalLog
from tiered.model import NewRecord, TopicPartition
from tiered.store.base import Outcome, Put, PutResult, PutStatus, StoreRequest
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock, SeededIds
from tiered.tiering.inline import Tiering

TP = TopicPartition("t", 0)


class LyingStore(MemoryStore):
    """It acknowledges a root that names segments and keeps the one before."""

    lies = True

    def execute(self, request: StoreRequest) -> Outcome:
        """One request."""
        if self.lies and isinstance(request, Put) and request.key.endswith("/root"):
            assert isinstance(request.body, bytes)
            if decode_root(request.body, key=request.key).next_offset:
                return PutResult(PutStatus.LANDED, '"a lie"')
        return super().execute(request)


def opened(path: Path) -> tuple[LocalLog, FakeClock, SeededIds]:
    clock, ids = FakeClock(), SeededIds(1)
    log = LocalLog.open(path, clock=clock, ids=ids)
    log.create_topic("t", 1, TopicConfig(segment_bytes=2048))
    return log, clock, ids


def fill(log: LocalLog) -> int:
    for number in range(20):
        log.partition(TP).append([NewRecord(b"%05d" % number * 20, b"k", 1_000)])
    log.partition(TP).roll()
    return log.partition(TP).positions().end_offset


def test_a_commit_whose_root_does_not_show_it_permits_nothing(tmp_path: Path) -> None:
    log, clock, ids = opened(tmp_path)
    store = LyingStore()
    tiering = Tiering(log, store, clock=clock, ids=ids)
    end = fill(log)
    with pytest.raises(TieredError):
        tiering.sync({TP: end}, None)
    assert log.partition(TP).positions().uploaded_offset == 0
    upload = log.uploads.read().get(TP)
    assert upload is None or upload.end_offset == 0
    log.close()


def test_another_process_of_the_volume_that_has_claimed_since_is_no_stranger(tmp_path: Path) -> None:
    log, clock, ids = opened(tmp_path)
    store = MemoryStore()
    first, second = (Tiering(log, store, clock=clock, ids=ids) for _ in range(2))
    for tiering in (first, second, first, second):
        end = fill(log)
        tiering.sync({TP: end}, None)
        assert log.partition(TP).positions().uploaded_offset == end
    log.close()
