"""A store that acknowledges a root and keeps the one before, and a log to upload to it."""

from __future__ import annotations

from pathlib import Path

from tiered.config import TopicConfig
from tiered.format.root import decode_root
from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, TopicPartition
from tiered.store.base import Outcome, Put, PutResult, PutStatus, StoreRequest
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock, SeededIds

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
