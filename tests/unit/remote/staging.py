"""A partition's remote tier as sinks write it, and the same records as a local log uploads them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from tests.unit.remote.building import FIRST_MS, TRUSTED, MemorySegment, RemoteLog, seal
from tiered.format.batch import encode_batch
from tiered.format.decision import COMMITTED, Decision
from tiered.model import NewRecord, Row
from tiered.remote.roots import TopicIds, make_roots
from tiered.remote.sink_commit import Sink, upload_staged
from tiered.store.base import Store
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock

LEADER_EPOCH = 0
"""The first one of a partition."""


def two_partitions() -> RemoteLog:
    """Partition 0 of two whose roots were made, in memory, on a clock of their own."""
    clock = FakeClock()
    log = RemoteLog(MemoryStore(clock=clock), clock=clock)
    drive(log.store, make_roots(TopicIds(log.topic, log.topic_id), [0, 1], "test"), clock=clock, ids=log.ids)
    return log


def stage(log: RemoteLog, segments: Sequence[MemorySegment], batch: int, txn: str = "query") -> list[Row]:
    """One batch of a sink; gives the rows that its segments have in the catalog."""
    ids = TopicIds(log.topic, log.topic_id)
    if log.root is None:
        drive(log.store, make_roots(ids, [log.partition], "test"), clock=log.clock, ids=log.ids)
    rows = [
        drive(log.store, upload_staged(segment, txn, batch, TRUSTED), clock=log.clock, ids=log.ids)
        for segment in segments
    ]
    sink = Sink("driver:1", {log.topic_id: log.topic})
    wanted = Decision(txn, batch, COMMITTED, {(log.topic_id, log.partition): tuple(rows)})
    decision = drive(log.store, sink.decide(wanted), clock=log.clock, ids=log.ids)
    (landed,) = drive(log.store, sink.commit_staged(decision), clock=log.clock, ids=log.ids)
    return list(landed.root.rows)[-len(rows) :]


def twins(staged_store: Store, plain_store: Store, seed: int, segments: int = 8) -> tuple[RemoteLog, RemoteLog]:
    """The same random records as two remote tiers: staged by a sink, and uploaded by a log."""
    rng = random.Random(seed)
    staged, plain = RemoteLog(staged_store), RemoteLog(plain_store)
    base, pending, batch = 0, list[MemorySegment](), 0
    for number in range(segments):
        lengths = [rng.randrange(1, 12) for _ in range(rng.randrange(1, 15))]
        starts = [0, *itertools.accumulate(lengths)]
        times = [FIRST_MS + (base + at) * 10 + rng.randrange(-300, 300) for at in range(starts[-1])]
        made = [
            [
                NewRecord(f"v{base + at}".encode() * rng.randrange(1, 6), f"k{at % 5}".encode(), times[at])
                for at in range(start, start + length)
            ]
            for start, length in zip(starts, lengths, strict=False)
        ]
        for log_base, epoch, log in ((0, -1, staged), (base, LEADER_EPOCH, plain)):
            parts = [
                encode_batch(records, base_offset=log_base + start, leader_epoch=epoch)
                for records, start in zip(made, starts, strict=False)
            ]
            segment = seal(parts)
            if log is plain:
                plain.add(segment)
            else:
                pending.append(segment)
        base += starts[-1]
        if rng.random() < 0.5 or number == segments - 1:
            stage(staged, pending, batch)
            pending, batch = [], batch + 1
    return staged, plain
