"""A partition that sinks alone have written, and its catalog that is lost."""

from __future__ import annotations

from tests.unit.remote.building import TRUSTED, RemoteLog, batches, seal
from tests.unit.remote.staging import stage
from tiered.format.decision import COMMITTED, Decision
from tiered.format.keys import root_key
from tiered.model import TopicPartition
from tiered.remote.sink_commit import Sink, upload_staged
from tiered.remote.topics import register_topic
from tiered.store.base import Delete, Store
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock

TP = TopicPartition("flights", 0)


def log_of_sinks(store: Store | None = None) -> RemoteLog:
    """One batch of two segments, offsets 0 to 30."""
    clock = FakeClock()
    log = RemoteLog(store or MemoryStore(clock=clock), clock=clock)
    drive(log.store, register_topic(log.topic, log.topic_id, 1, {}), clock=log.clock, ids=log.ids)
    stage(log, [seal(batches(0, 20)), seal(batches(0, 10))], 0)
    return log


def decide(log: RemoteLog, lengths: list[int], batch: int, txn: str) -> Decision:
    """Of a sink that stands still then."""
    rows = [
        drive(log.store, upload_staged(seal(batches(0, length)), txn, batch, TRUSTED), clock=log.clock, ids=log.ids)
        for length in lengths
    ]
    sink = Sink("driver:1", {log.topic_id: log.topic})
    wanted = Decision(txn, batch, COMMITTED, {(log.topic_id, 0): tuple(rows)})
    return drive(log.store, sink.decide(wanted), clock=log.clock, ids=log.ids)


def commit(log: RemoteLog, decision: Decision) -> int:
    """By a driver that was begun anew. Gives the base, -1 of what was committed before."""
    sink = Sink("driver:2", {log.topic_id: log.topic})
    (landed,) = drive(log.store, sink.commit_staged(decision), clock=log.clock, ids=log.ids)
    return landed.base


def lose(log: RemoteLog) -> None:
    """Its root."""
    log.store.execute(Delete((root_key(log.topic_id, 0),)))
