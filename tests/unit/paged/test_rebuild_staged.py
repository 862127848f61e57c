"""A lost catalog of a partition that sinks wrote: made anew from its copy, or refused where nothing tells offsets.

What their decisions tell of one that has no copy: ``test_rebuild_decided.py``.
"""

from __future__ import annotations

import dataclasses

import pytest

from tests.sim.bucket.world import catalogs_of
from tests.unit.paged.model import TINY
from tests.unit.paged.sinks import TP, keep_copy, log_of_sinks, lose
from tests.unit.remote.building import TRUSTED, RemoteLog, batches, seal
from tests.unit.remote.staging import stage
from tiered.care.run import plan_rebuild, rebuild
from tiered.errors import CorruptionError
from tiered.format.crc import crc32c
from tiered.format.decision import COMMITTED, Decision
from tiered.format.keys import decision_key, index_key
from tiered.format.page import PageKind, Pointer, Pointers
from tiered.format.root import TXNS_LIMIT, Root, encode_root
from tiered.model import Row
from tiered.remote.pages import PageCache, read_pages
from tiered.remote.settle import Deadline
from tiered.remote.snapshot import Snapshot
from tiered.remote.stage import put_decision, upload_staged
from tiered.store.base import ABSENT, Delete, Get, Object, Put, Time, list_all
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore


@pytest.fixture
def log() -> RemoteLog:
    return log_of_sinks()


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


def with_pages(log: RemoteLog, *, forget: bool = True) -> list[str]:
    """Fifteen batches more, of which two streams write every other one, some in four segments; keys of pages."""
    with catalogs_of(TINY):
        for batch in range(1, 16):
            log.clock.advance(1)
            lengths = (10,) if batch % 4 else (10, 30, 20, 50)
            stage(log, [seal(batches(0, length)) for length in lengths], batch, "query" if batch % 2 else "other")
    if forget:  # as a sweep does, a day later
        decisions = [decision_key(txn, batch, 0) for batch in range(15) for txn in ("query", "other")]
        log.store.execute(Delete(tuple(decisions)))
    root = log.root
    assert root is not None
    assert len(root.leaves) > 1
    return [root.page_key(pointer) for pointer in root.leaves]


def all_rows(log: RemoteLog) -> list[Row]:
    root = log.root
    assert root is not None
    pinned, at, found = Snapshot.of(root), 0, list[Row]()
    while len(rows := drive(log.store, pinned.piece(at), clock=log.clock, ids=log.ids)):
        found += rows
        at = rows.end_offset
    return found


@pytest.mark.parametrize("lost", [[0], [1], [0, 1]])
def test_a_lost_page_of_what_sinks_wrote_is_put_together_again(log: RemoteLog, lost: list[int]) -> None:
    drive(log.store, upload_staged(seal(batches(0, 20)), "query", 99, TRUSTED), clock=log.clock, ids=log.ids)
    keys = with_pages(log, forget=False)
    before, root = all_rows(log), log.root
    assert root is not None
    log.store.execute(Delete(tuple(keys[leaf] for leaf in lost)))
    plan = plan_rebuild(log.store, TP, "test")
    assert (plan.torn_pages, plan.lost, plan.bare, plan.gone) == (len(lost), (), (), (0, 0))
    rebuild(log.store, plan)
    assert all_rows(log) == before
    assert log.root is not None
    assert (log.root.txns, log.root.writer.volume) == (root.txns, "spark")


def test_a_copied_bucket_has_lost_the_times_and_not_the_decisions(log: RemoteLog) -> None:
    keys = with_pages(log, forget=False)
    before = all_rows(log)
    copy = RemoteLog(MemoryStore(clock=log.clock), clock=log.clock, ids=log.ids)
    for entry in drive(log.store, list_all(""), clock=log.clock, ids=log.ids):
        got = log.store.execute(Get(entry.key))
        assert isinstance(got, Object)
        copy.store.execute(Put(entry.key, bytes(got.data), ABSENT))
    copy.store.execute(Delete((keys[1],)))
    rebuild(copy.store, plan_rebuild(copy.store, TP, "test"))
    assert all_rows(copy) == before


def test_what_the_root_has_forgotten_is_put_together_again_too(log: RemoteLog) -> None:
    with catalogs_of(TINY):
        for stream in range(TXNS_LIMIT + 6):
            log.clock.advance(1)
            stage(log, [seal(batches(0, 10))], 0, f"stream-{stream}")
    before, root = all_rows(log), log.root
    assert root is not None
    pointers = find_leaves(log, root)
    log.store.execute(Delete((root.page_key(pointers[0]),)))
    rebuild(log.store, plan_rebuild(log.store, TP, "test"))
    assert all_rows(log) == before


def find_leaves(log: RemoteLog, root: Root) -> list[Pointer]:
    cache, leaves = PageCache(), list[Pointer]()
    for children in drive(log.store, read_pages(root, PageKind.INNER, root.inner, cache), clock=log.clock, ids=log.ids):
        assert isinstance(children, Pointers)
        leaves += list(children)
    return [*leaves, *root.leaves]


def refused(log: RemoteLog) -> None:
    root = log.root
    for accept_loss in (False, True):
        with pytest.raises(CorruptionError) as told:
            plan_rebuild(log.store, TP, "test", accept_loss=accept_loss)
        assert "objects of sinks are there" in told.value.message
        assert "--accept-loss" not in told.value.hint
    assert log.root == root


@pytest.mark.parametrize("leaf", [0, 1])
def test_a_lost_page_gets_no_hole_where_a_bundle_is_lost_too(log: RemoteLog, leaf: int) -> None:
    """What it named is there, and nothing tells at which offsets: a hole would make it garbage."""
    keys, root = with_pages(log), log.root
    assert root is not None
    row = next(row for row in all_rows(log) if row.base == list(root.leaves)[leaf].base)
    log.store.execute(Delete((keys[leaf], index_key(log.topic_id, 0, row))))
    refused(log)


def test_another_attempt_that_nothing_tells_apart_is_refused(log: RemoteLog) -> None:
    keys = with_pages(log)
    drive(log.store, upload_staged(seal(batches(0, 10)), "query", 1, TRUSTED), clock=log.clock, ids=log.ids)
    log.store.execute(Delete((keys[0],)))
    refused(log)


def test_of_a_page_that_a_trim_has_cut_nothing_is_proven(log: RemoteLog) -> None:
    keys = with_pages(log, forget=False)
    root = log.root
    assert root is not None
    second = all_rows(log)[1]
    body = encode_root(dataclasses.replace(root, version=root.version + 1, start_offset=second.base))
    log.store.execute(Delete((root.key, keys[0])))
    log.store.execute(Put(root.key, body, ABSENT, crc32c(body)))
    refused(log)
