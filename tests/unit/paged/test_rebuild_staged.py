"""A lost catalog of a partition that sinks wrote: made anew from its copy, or refused where nothing tells offsets."""

from __future__ import annotations

import pytest

from tests.sim.bucket.world import catalogs_of
from tests.unit.paged.model import TINY
from tests.unit.remote.building import TRUSTED, RemoteLog, batches, seal
from tests.unit.remote.staging import stage
from tiered.care.run import plan_rebuild, rebuild
from tiered.errors import CorruptionError
from tiered.format.crc import crc32c
from tiered.format.decision import COMMITTED, Decision
from tiered.format.keys import decision_key, hist_key, root_key
from tiered.format.root import encode_root
from tiered.model import TopicPartition
from tiered.remote.settle import Deadline
from tiered.remote.stage import put_decision, upload_staged
from tiered.remote.topics import register_topic
from tiered.store.base import ABSENT, Delete, Put, Time
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

TP = TopicPartition("flights", 0)


@pytest.fixture
def log() -> RemoteLog:
    log = RemoteLog(MemoryStore())
    drive(log.store, register_topic(log.topic, log.topic_id, 1, {}), clock=log.clock, ids=log.ids)
    stage(log, [seal(batches(0, 20)), seal(batches(0, 10))], 0)
    return log


def keep_copy(log: RemoteLog) -> None:
    root = log.root
    assert root is not None
    body = encode_root(root)
    log.store.execute(Put(hist_key(log.topic_id, 0, root.version), body, ABSENT, crc32c(body)))


def lose(log: RemoteLog) -> None:
    log.store.execute(Delete((root_key(log.topic_id, 0),)))


def test_it_goes_on_from_its_copy_and_what_was_never_committed_does_not_hinder(log: RemoteLog) -> None:
    before = log.root
    assert before is not None
    keep_copy(log)
    drive(log.store, upload_staged(seal(batches(0, 20)), "query", 0, TRUSTED), clock=log.clock, ids=log.ids)
    drive(log.store, upload_staged(seal(batches(0, 20)), "query", 1, TRUSTED), clock=log.clock, ids=log.ids)
    lose(log)
    rebuild(log.store, plan_rebuild(log.store, TP, "test"))
    root = log.root
    assert root is not None
    assert list(root.rows) == list(before.rows)
    assert (root.txns, root.txn_versions, root.writer.volume) == (before.txns, before.txn_versions, "spark")
    stage(log, [seal(batches(0, 5))], 1)
    assert log.root is not None
    assert (log.root.next_offset, log.root.txns) == (35, (("query", 1),))


def test_what_was_committed_since_the_copy_is_refused(log: RemoteLog) -> None:
    keep_copy(log)
    stage(log, [seal(batches(0, 20))], 1)
    lose(log)
    with pytest.raises(CorruptionError, match="1 segments that no kept copy names, the first of batch 1 of query"):
        plan_rebuild(log.store, TP, "test")
    with pytest.raises(CorruptionError, match="no object tells"):
        plan_rebuild(log.store, TP, "test", accept_loss=True)


def test_without_a_copy_it_is_refused(log: RemoteLog) -> None:
    lose(log)
    with pytest.raises(CorruptionError, match="2 segments that no kept copy names"):
        plan_rebuild(log.store, TP, "test")


def test_a_batch_whose_decision_was_swept_since_the_copy_is_not_forgotten(log: RemoteLog) -> None:
    keep_copy(log)
    stage(log, [seal(batches(0, 20))], 1)
    later = Decision("query", 2, COMMITTED, {}, {})  # of rows for other partitions
    deadline = Deadline.after(60_000, Time(log.clock.now_ms(), log.clock.monotonic()))
    assert drive(log.store, put_decision(later, deadline), clock=log.clock, ids=log.ids) == later
    log.store.execute(Delete((decision_key("query", 1, 0),)))  # as a sweep does, a day later
    lose(log)
    for accept_loss in (False, True):
        with pytest.raises(CorruptionError, match="1 segments of batch 1 of query, whose decision was swept") as told:
            plan_rebuild(log.store, TP, "test", accept_loss=accept_loss)
        assert "batch 2" in told.value.message


def test_what_the_newest_batch_left_undecided_does_not_hinder(log: RemoteLog) -> None:
    keep_copy(log)
    drive(log.store, upload_staged(seal(batches(0, 20)), "query", 1, TRUSTED), clock=log.clock, ids=log.ids)
    lose(log)
    rebuild(log.store, plan_rebuild(log.store, TP, "test"))
    assert log.root is not None
    assert log.root.next_offset == 30


@pytest.mark.parametrize("leaf", [0, 1])
def test_a_lost_page_of_what_sinks_wrote_gets_no_hole(log: RemoteLog, leaf: int) -> None:
    """What it named is there, and nothing tells at which offsets: a hole would make it garbage."""
    with catalogs_of(TINY):
        for batch in range(1, 16):
            stage(log, [seal(batches(0, 10))], batch)
    root = log.root
    assert root is not None
    keys = [root.page_key(pointer) for pointer in root.leaves]
    log.store.execute(Delete((keys[leaf],)))
    for accept_loss in (False, True):
        with pytest.raises(CorruptionError) as refused:
            plan_rebuild(log.store, TP, "test", accept_loss=accept_loss)
        assert "objects of sinks are there" in refused.value.message
        assert "--accept-loss" not in refused.value.hint
    assert log.root == root
