"""What a maintainer does to a bucket beside readers, writers and other maintainers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.remote.building import FIRST_MS, TRUSTED, batches, seal
from tests.unit.remote.maintaining import Bucket, offsets
from tiered.config import TopicConfig
from tiered.errors import CorruptionError, FencedError
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from tiered.plan.maintenance import MaintenanceKind
from tiered.remote.maintain import ALL_GOES
from tiered.store.base import Delete, Get, Head, List, Outcome, Put, StoreRequest
from tiered.store.driver import drive

pytestmark = pytest.mark.usefixtures("both_catalogs")
COMPACT = TopicConfig(cleanup_policy="compact", segment_bytes=20_000)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


# -- merging ---------------------------------------------------------------------------------------------------------


def test_a_merge_is_one_commit_and_costs_what_its_plan_says(bucket: Bucket) -> None:
    maintainer = bucket.maintainer()
    bucket.run(maintainer, bucket.plan(maintainer, begin_at=10).actions[0])  # its first commit: claims, prunes history
    (action,) = bucket.plan(maintainer).actions
    before = bucket.root.version
    bucket.store.forget()
    done = bucket.run(maintainer, action)
    made = [r for r in bucket.store.requests if getattr(r, "key", "") != bucket.log.root_key]
    roots = [r for r in bucket.store.requests if isinstance(r, Put) and r.key == bucket.log.root_key]
    assert len(roots) == 1
    assert len(made) + 1 == action.requests
    assert not [r for r in made if isinstance(r, List | Head | Delete)]
    assert (done.bytes_read, bucket.ranges, bucket.root.version) == (action.bytes_read, [(0, 500)], before + 1)
    assert (bucket.root.commit.op, bucket.root.commit.role, len(bucket.root.trash)) == ("replace", "m", 5)
    assert bucket.root.commit.owner == "m:1: merge, 5 neighbours below 16777216 bytes"
    assert offsets(bucket.face(), 10) == list(range(10, 500))
    assert bucket.plan(maintainer, MaintenanceKind.MERGE).actions == ()


def test_the_price_of_a_merge_that_is_sent_in_parts() -> None:
    bucket = Bucket(0)
    for at in range(0, 400, 100):
        bucket.log.add(seal(batches(at, at + 100, each=20, size=100_000)))
    maintainer = bucket.maintainer()
    (action,) = bucket.plan(maintainer, MaintenanceKind.MERGE).actions
    bucket.run(maintainer, bucket.plan(maintainer, begin_at=10).actions[0])
    bucket.store.forget()
    bucket.run(maintainer, action)
    made = [r for r in bucket.store.requests if not (isinstance(r, Get) and r.key == bucket.log.root_key)]
    assert len(made) == action.requests == 4 * 2 + 1 + (2 + 3) + 1 + 2


def test_rows_that_others_changed_are_left_as_they_are(bucket: Bucket) -> None:
    first, second = bucket.maintainer(), bucket.maintainer(owner="m:2")
    (action,) = bucket.plan(first).actions
    bucket.run(second, bucket.plan(second).actions[0])
    done = bucket.run(first, action)
    assert "changed these segments meanwhile" in done.note
    assert bucket.ranges == [(0, 500)]


@pytest.mark.parametrize("taken_over", [True, False])
def test_an_output_that_is_gone_before_it_is_looked_at(bucket: Bucket, taken_over: bool) -> None:
    """Who has the claim now may have swept it; else the store has lost it."""
    first, second = bucket.maintainer(), bucket.maintainer(owner="m:2")
    bucket.run(first, bucket.plan(first, begin_at=10).actions[0])
    (action,) = bucket.plan(first).actions

    def swept(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        if isinstance(request, Head) and "/s/m" in request.key:
            bucket.store.answer = None
            if taken_over:
                bucket.run(second, bucket.plan(second, begin_at=20).actions[0])
            bucket.store.execute(Delete((request.key,)))
        return carry_out()

    bucket.store.answer = swept
    untold = replace(TRUSTED, returns_crc32c=False)
    with pytest.raises(FencedError if taken_over else CorruptionError, match="m:2" if taken_over else "is absent"):
        drive(bucket.store, first.run(action, untold), clock=bucket.clock, ids=bucket.log.ids)
    assert len(bucket.ranges) == 5


def test_an_input_that_is_lost_is_named_and_nothing_is_replaced(bucket: Bucket) -> None:
    maintainer = bucket.maintainer()
    (action,) = bucket.plan(maintainer).actions
    lost = action.rows[2]
    bucket.log.delete(lost)
    with pytest.raises(CorruptionError) as raised:
        bucket.run(maintainer, action)
    assert (raised.value.path_or_key, raised.value.offset) == (bucket.log.log_key(lost), 200)
    assert len(bucket.ranges) == 5


# -- compaction ------------------------------------------------------------------------------------------------------


def test_a_plan_beside_a_maintainer_that_collects_leaves_it_to_a_later_plan(bucket: Bucket) -> None:
    """Its pinned objects are gone when it asks for the stable offset, and the newest root no longer names them."""
    other = bucket.maintainer()
    (merge,) = bucket.plan(other).actions

    def collected(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        if isinstance(request, Get) and request.key.endswith(".idx"):
            bucket.store.answer = None
            bucket.run(other, merge)
            for row in merge.rows:
                bucket.log.delete(row)
        return carry_out()

    bucket.store.answer = collected
    assert bucket.plan(bucket.maintainer(COMPACT), MaintenanceKind.COMPACT).actions == ()


# -- readers ---------------------------------------------------------------------------------------------------------


def test_the_newest_row_goes_by_a_start_offset_alone_and_that_is_said(bucket: Bucket) -> None:
    """Its bundle alone tells who wrote: without it a fresh volume takes a producer's retry twice."""
    for config in (TopicConfig(retention_ms=1000), TopicConfig(retention_bytes=0)):
        plan = bucket.plan(bucket.maintainer(config), MaintenanceKind.RETENTION)
        assert [(action.start, action.end, action.rows_in) for action in plan.actions] == [(0, 400, 4)]
        assert plan.notes == ()
    maintainer = bucket.maintainer(TopicConfig(retention_ms=1000))
    bucket.run(maintainer, plan.actions[0])
    assert bucket.ranges == [(400, 500)]
    assert bucket.plan(maintainer, MaintenanceKind.RETENTION).actions == ()
    plan = bucket.plan(maintainer, MaintenanceKind.RETENTION, begin_at=499)
    assert ([action.end for action in plan.actions], plan.notes) == ([499], ())
    plan = bucket.plan(maintainer, MaintenanceKind.RETENTION, begin_at=500)
    assert ([action.end for action in plan.actions], plan.notes) == ([500], (ALL_GOES,))


def test_of_a_log_that_was_trimmed_to_its_end_the_newest_segment_stays_until_the_next_append() -> None:
    bucket = Bucket(0)
    who = ProducerEntry(7, 0, 99, 499, 9, FIRST_MS)
    for at in range(0, 500, 100):
        snapshot = encode_snapshot([who._replace(last_offset=at + 99)])
        bucket.log.add(seal(batches(at, at + 100), snapshot=snapshot))
    bucket.clock.advance(86_400)
    rows, maintainer = list(bucket.root.rows), bucket.maintainer(TopicConfig(gc_grace_ms=0))
    bucket.run(maintainer, bucket.plan(maintainer, begin_at=500).actions[0])
    bucket.clock.advance(1)
    (collect,) = bucket.plan(maintainer, MaintenanceKind.COLLECT).actions
    collected = bucket.run(maintainer, collect).collected
    assert collected is not None
    assert (collected.objects, collected.entries, len(bucket.root.trash)) == (8, 4, 1)
    assert bucket.plan(maintainer, MaintenanceKind.COLLECT).actions == ()
    newest = {bucket.log.log_key(rows[-1]), bucket.log.idx_key(rows[-1])}
    assert bucket.objects("s/") == newest
    assert decode_snapshot(bucket.face().producer_snapshot()) == [who]
    bucket.log.add(seal(batches(500, 510), snapshot=encode_snapshot([who._replace(last_offset=509)])))
    bucket.clock.advance(1)
    (collect,) = bucket.plan(maintainer, MaintenanceKind.COLLECT).actions
    bucket.run(maintainer, collect)
    assert not newest & bucket.objects("s/")
    assert [one.last_offset for one in decode_snapshot(bucket.face().producer_snapshot())] == [509]


def test_producers_of_an_emptied_log_are_those_at_its_end_or_nobody(bucket: Bucket) -> None:
    """An object that an older release let go, or one that is of another end, tells nothing."""
    maintainer, last = bucket.maintainer(), bucket.root.rows.row(-1)
    bucket.run(maintainer, bucket.plan(maintainer, begin_at=500).actions[0])
    assert bucket.face().producer_snapshot() == b""  # nobody wrote idempotently
    bucket.store.execute(Delete((bucket.log.idx_key(last),)))
    assert bucket.face().producer_snapshot() == b""
