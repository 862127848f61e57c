"""An older root that was put back: nothing that came after it is lost, whatever is wrong with it besides."""

from __future__ import annotations

import random
import sys

import pytest

from tests.unit.catalog.script import TOPIC_ID
from tests.unit.paged.rebuilding import TP, Bucket
from tiered.care.rebuild import plan_rebuild_steps, rebuild_steps
from tiered.config import DAY_MS
from tiered.errors import ConfigError, CorruptionError
from tiered.format.keys import Role, hist_prefix, index_key, segment_key
from tiered.format.root import Root, encode_root
from tiered.model import Row
from tiered.plan.lifecycle import VolumeProof
from tiered.remote.past import create_snapshot
from tiered.remote.sweep import sweep
from tiered.remote.traces import find_traces
from tiered.store.base import Delete, list_all


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def put_back(bucket: Bucket, older: Root, *, torn: bool = False) -> None:
    """``older`` in the place of the newest root; ``torn``: without its first page."""
    bucket.store.execute(Delete((older.key,)))
    bucket.put(older.key, encode_root(older))
    if torn:
        pointer = next(iter([*older.leaves, *older.inner]))
        bucket.store.execute(Delete((older.page_key(pointer),)))


def rebuild(bucket: Bucket) -> tuple[Root, list[Row]]:
    bucket.world.run(rebuild_steps(bucket.plan()))
    return bucket.now()


def sweep_later(bucket: Bucket) -> None:
    """Days later, what nothing names goes: the pages of the lost catalog at least."""
    bucket.wait(3 * DAY_MS)
    assert bucket.world.run(sweep(bucket.maintainer.catalog, delete=True)).count > 0


def segments(rows: list[Row]) -> set[str]:
    """The keys of their objects."""
    return {key(TOPIC_ID, 0, row) for row in rows for key in (segment_key, index_key)}


def follow(bucket: Bucket, rng: random.Random, kinds: list[str]) -> int:
    """Let one thing more happen. Return the version that is proven by it: a copy's, any number for a claim, else 0."""
    rows = bucket.rows()
    match rng.choice(kinds):
        case "replace" if len(rows) > 3:
            at = rng.randrange(len(rows) - 2)
            if rows[at].base >= bucket.root.start_offset:
                before = bucket.root.version
                bucket.replace(*rows[at : at + rng.randrange(1, 3)])
                return before
        case "claim":
            bucket.take_over(f"volume-{rng.random()}")
            bucket.append(1)
            return sys.maxsize
        case "collect":
            bucket.wait()
            bucket.collect()
        case _:
            bucket.append(rng.randrange(1, 5))
    return 0


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_what_came_after_it_is_there_again(bucket: Bucket, seed: int, torn: bool) -> None:
    """Rewrites, claims and collections, before it and after: all that only the newest root named is found."""
    rng = random.Random(seed)
    bucket.append(20)
    for _ in range(rng.randrange(4)):
        follow(bucket, rng, ["append", "replace", "claim", "collect"])
    older, proven = bucket.root, 0
    for _ in range(rng.randrange(1, 6)):
        proven = max(proven, follow(bucket, rng, ["append", "replace", "claim", "collect"]))
    rows, newest = bucket.rows(), bucket.root
    put_back(bucket, older, torn=torn)
    traces = bucket.world.run(find_traces(older))
    assert bool(traces.older(older)) == (proven > older.version or traces.audited > 0)
    if not traces.older(older) and not torn:
        with pytest.raises(ConfigError, match="nothing to rebuild"):
            bucket.plan()
        return
    if not traces.older(older) and proven:  # rewritten since, and nothing proves it: what the lost page held is gone
        with pytest.raises(CorruptionError, match="not the"):
            bucket.plan()
        return
    root, found = rebuild(bucket)
    assert found == rows
    assert (root.start_offset, root.next_offset) == (newest.start_offset, newest.next_offset)
    assert root.version > newest.version
    sweep_later(bucket)
    assert segments(rows) <= bucket.keys


@pytest.mark.parametrize("torn", [False, True])
def test_a_newer_snapshot_proves_it_and_is_gone_on_from(bucket: Bucket, torn: bool) -> None:
    """But not where both have lost the same page: then what is left of the root, and the objects."""
    bucket.append(20)
    older = bucket.root
    bucket.append(20)
    bucket.world.run(create_snapshot(bucket.writer.catalog, "kept"))
    kept = bucket.root
    bucket.append(2)
    rows = bucket.rows()
    put_back(bucket, older, torn=torn)
    plan = bucket.plan()
    assert (plan.copy_version, plan.torn_pages) == ((older.version, 1) if torn else (kept.version, 0))
    assert plan.older == f"a snapshot tells of version {kept.version}, the root has version {older.version}"
    assert rebuild(bucket)[1] == rows


def test_what_was_uploaded_behind_a_root_without_a_page_is_no_orphan(bucket: Bucket) -> None:
    """Nothing proves that the root is an older one: a sweep would take what only the newest named."""
    bucket.append(20)
    older = bucket.root
    bucket.append(20)
    rows = bucket.rows()
    put_back(bucket, older, torn=True)
    plan = bucket.plan()
    assert (plan.copy_version, plan.older, plan.root.next_offset) == (older.version, "", 400)
    assert rebuild(bucket)[1] == rows
    sweep_later(bucket)
    assert segments(rows) <= bucket.keys


def test_behind_a_gap_it_is_named_and_not_taken(bucket: Bucket) -> None:
    bucket.append(20)
    older = bucket.root
    bucket.append(3)
    rows = bucket.rows()
    bucket.store.execute(Delete((segment_key(TOPIC_ID, 0, rows[21]),)))
    put_back(bucket, older, torn=True)
    plan = bucket.plan()
    assert plan.root.next_offset == 210
    assert segment_key(TOPIC_ID, 0, rows[22]) in plan.unused


def test_an_older_root_is_kept_aside(bucket: Bucket) -> None:
    bucket.append(4)
    older = bucket.root
    bucket.append(1)
    bucket.replace(*bucket.rows()[:2])
    put_back(bucket, older)
    plan = bucket.plan()
    assert plan.damaged == encode_root(older)
    assert plan.older == f"`hist/` tells of version {older.version + 1}, the root has version {older.version}"


def test_what_was_appended_under_it_is_not_let_go(bucket: Bucket) -> None:
    """A fresh volume has gone on from the older root: the log has two ends, and somebody must choose."""
    bucket.append(4)
    older = bucket.root
    bucket.append(8)
    bucket.replace(*bucket.rows()[:2])
    rows = bucket.rows()
    put_back(bucket, older)
    bucket.writer = bucket.desk("fresh")
    bucket.writer.claim(VolumeProof("fresh", empty=True, end_offset=0))
    bucket.maintainer = bucket.desk("another")
    bucket.end = older.next_offset
    bucket.append(1)
    mine = bucket.rows()[-1]
    with pytest.raises(CorruptionError, match="was appended since the root was put back") as refused:
        bucket.plan()
    assert refused.value.path_or_key == segment_key(TOPIC_ID, 0, mine)
    bucket.world.run(rebuild_steps(bucket.world.run(plan_rebuild_steps(TP, "test", accept_loss=True))))
    assert bucket.now()[1] == rows


@pytest.mark.parametrize("role", list(Role))
def test_a_claim_alone_proves_it(bucket: Bucket, role: Role) -> None:
    bucket.append(4)
    older = bucket.root
    if role is Role.WRITER:
        bucket.take_over("v2")
        bucket.append(1)
    else:
        bucket.maintainer = bucket.desk("m2")
        bucket.maintainer.maintain()
        bucket.replace(*bucket.rows()[:2])
        bucket.without_history()
    rows = bucket.rows()
    put_back(bucket, older)
    assert f"is of claim 2 of the {role.word}" in bucket.plan().older
    assert rebuild(bucket)[1] == rows


def test_a_copy_of_another_version_than_its_key_tells_is_passed_over(bucket: Bucket) -> None:
    """Two copies below ``hist/`` have changed places."""
    bucket.append(4)
    bucket.replace(*bucket.rows()[:2])
    bucket.append(1)
    bucket.replace(*bucket.rows()[1:3])
    rows = bucket.rows()
    listed = bucket.world.run(list_all(hist_prefix(TOPIC_ID, 0)))
    one, other = [entry.key for entry in listed]
    first, second = bucket.data(one), bucket.data(other)
    bucket.lose()
    bucket.store.execute(Delete((one, other)))
    bucket.put(one, second)
    bucket.put(other, first)
    plan = bucket.plan()
    assert plan.copy_version == 0
    assert rebuild(bucket)[1] == rows


def test_it_is_refused_again_once_it_is_mended(bucket: Bucket) -> None:
    bucket.append(20)
    older = bucket.root
    bucket.append(1)
    bucket.replace(*bucket.rows()[:2])
    put_back(bucket, older)
    rebuild(bucket)
    with pytest.raises(ConfigError, match="nothing to rebuild"):
        bucket.world.run(plan_rebuild_steps(TP, "test"))
