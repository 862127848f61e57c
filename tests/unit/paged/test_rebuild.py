"""A catalog that is lost is rebuilt as it was, from its history and its objects, or refused by name."""

from __future__ import annotations

import random

import pytest

from tests.unit.catalog.script import TOPIC_ID, Desk
from tests.unit.facade.on_the_loop import OnTheLoop
from tests.unit.paged.rebuilding import TP, Bucket, producers_of
from tiered import aio
from tiered.care.go_back import plan_return_steps
from tiered.care.rebuild import VERSION_STEP, rebuild_steps
from tiered.care.run import plan_rebuild, rebuild
from tiered.errors import ConfigError, CorruptionError, FencedError, NotFoundError
from tiered.format.keys import (
    FLAG_MAINTAINER,
    MAX_INT32,
    MAX_INT64,
    gc_audit_key,
    index_key,
    join_uid,
    parse_hist_key,
    partition_prefix,
    segment_key,
)
from tiered.model import Row
from tiered.plan.lifecycle import VolumeProof
from tiered.plan.rewrite import ReplaceIntent
from tiered.remote.past import create_snapshot
from tiered.remote.rewrite import hole
from tiered.remote.snapshot import Snapshot
from tiered.remote.sweep import drop_named, sweep
from tiered.store.base import Delete, Get, List, Object, Page


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.mark.parametrize("seed", range(25))
def test_it_is_what_was_lost(bucket: Bucket, seed: int) -> None:
    rng, trims, kept = random.Random(seed), 0, False
    bucket.append(3)
    for number in range(rng.randrange(4, 14)):
        rows = bucket.rows()
        match rng.choice(["append", "append", "replace", "replace", "trim", "claim", "collect"]):
            case "append":
                bucket.append(rng.randrange(1, 9))
            case "replace" if len(rows) > 3:
                at = rng.randrange(len(rows) - 2)
                if rows[at].base >= bucket.root.start_offset:
                    bucket.replace(*rows[at : at + rng.randrange(1, 3)])
                    kept = True
            case "trim":
                offset = rng.randrange(bucket.root.start_offset, bucket.end - 4)
                if offset > bucket.root.start_offset:
                    bucket.trim(offset)
                    trims, kept = trims + 1, False
            case "claim":
                bucket.take_over(f"volume-{number}")
                bucket.append(1)
            case "collect":
                bucket.wait()
                bucket.collect()
    rows = bucket.rows()
    lost = bucket.lose(rng.choice([None, b"garbage"]))
    plan = bucket.plan()
    bucket.world.run(rebuild_steps(plan))
    root, found = bucket.now()
    assert [row for row in found if row.next > lost.start_offset] == rows
    assert (root.next_offset, root.topic, root.state) == (lost.next_offset, lost.topic, lost.state)
    assert [e for e in root.lineage if e in lost.lineage] == list(lost.lineage)
    # A trim leaves the version before it in the history: what it took and nobody collected is there again.
    assert root.start_offset == lost.start_offset if kept or not trims else root.start_offset <= lost.start_offset
    assert (root.writer.epoch, root.roles["m"].epoch) > (lost.writer.epoch, lost.roles["m"].epoch)
    assert root.version > lost.version


@pytest.mark.parametrize(("rows", "first"), [(12, 3), (40, 20), (40, 37), (60, 10)])
@pytest.mark.parametrize("history", [True, False])
def test_who_wrote_is_known_after_a_trim_to_the_end_whatever_comes_then(
    bucket: Bucket, rows: int, first: int, history: bool
) -> None:
    """The newest row stood in a page: collection, a sweep and a catalog that is rebuilt leave what it tells."""
    bucket.append(rows)
    bucket.replace(*bucket.rows()[first:])
    assert len(bucket.root.rows) == 0 or rows == 40
    newest, told = bucket.rows()[-1], producers_of(bucket.end)
    bucket.trim(bucket.end)
    assert bucket.producers() == told
    bucket.wait()
    bucket.collect()
    bucket.wait()
    assert bucket.world.run(sweep(bucket.maintainer.catalog, delete=True)).count == 0
    assert bucket.producers() == told
    assert {key for key in bucket.keys if "/s/" in key} == {
        key(TOPIC_ID, 0, newest) for key in (segment_key, index_key)
    }
    if not history:
        bucket.without_history()
    bucket.lose()
    bucket.world.run(rebuild_steps(bucket.plan()))
    assert bucket.now()[0].next_offset == bucket.end
    assert bucket.producers() == told


def test_without_history_nothing_tells_whether_the_start_was_trimmed_or_is_lost(bucket: Bucket) -> None:
    bucket.append(10)
    first, second = bucket.rows()[:2]
    bucket.lose()
    bucket.without_history()
    assert bucket.plan().gone == (0, 0)
    bucket.store.execute(Delete((segment_key(TOPIC_ID, 0, first),)))
    plan = bucket.plan()
    assert (plan.gone, plan.root.start_offset) == ((0, second.base), second.base)


def test_without_history_the_objects_alone_tell(bucket: Bucket) -> None:
    bucket.append(30)
    bucket.take_over("v2")
    bucket.append(20)
    rows = bucket.rows()
    lost = bucket.lose()
    bucket.without_history()
    plan = bucket.plan()
    assert (plan.copy_version, plan.found, len(plan.unused)) == (0, 50, 2)
    bucket.world.run(rebuild_steps(plan))
    root, found = bucket.now()
    assert found == rows
    assert (root.start_offset, root.next_offset, root.lineage) == (0, 500, lost.lineage)
    assert root.version == 1 + VERSION_STEP


def test_who_held_a_claim_is_fenced_and_a_fresh_volume_goes_on(bucket: Bucket) -> None:
    bucket.append(5)
    held, again = bucket.writer, bucket.desk("w")
    again.token, again.last_append = held.token, held.last_append
    bucket.lose()
    bucket.world.run(rebuild_steps(bucket.plan()))
    with pytest.raises(FencedError, match="test"):
        again.claim()
    with pytest.raises((FencedError, CorruptionError)):
        bucket.world.run(held.catalog.append([bucket.objects(held.row(50, 60))]))
    fresh: Desk = bucket.desk("fresh")
    assert fresh.claim(VolumeProof("fresh", empty=True, end_offset=0)).next_offset == 50


def test_two_uploads_that_contradict_each_other_are_named(bucket: Bucket) -> None:
    bucket.append(5)
    one, other = (bucket.objects(bucket.writer.row(50, end)) for end in (60, 61))
    bucket.lose()
    with pytest.raises(CorruptionError, match="contradict") as error:
        bucket.plan()
    for row in (one, other):
        assert segment_key(TOPIC_ID, 0, row) in str(error.value)


def test_two_rewrites_that_contradict_each_other_are_named(bucket: Bucket) -> None:
    bucket.append(8)
    rows = bucket.rows()
    bucket.replace(*rows[:2])
    other = bucket.objects(bucket.maintainer.row(0, 30, flags=FLAG_MAINTAINER))
    bucket.lose()
    with pytest.raises(CorruptionError, match="contradict") as error:
        bucket.plan()
    assert segment_key(TOPIC_ID, 0, other) in str(error.value)


def test_a_rewrite_of_a_claim_that_had_ended_before_the_copy_was_never_committed(bucket: Bucket) -> None:
    bucket.append(8)
    bucket.objects(bucket.maintainer.row(0, 30, flags=FLAG_MAINTAINER))
    bucket.maintainer.maintain()
    bucket.trim(5)
    rows = bucket.rows()
    bucket.lose()
    plan = bucket.plan()
    assert (plan.found, len(plan.unused)) == (0, 2)
    bucket.world.run(rebuild_steps(plan))
    assert bucket.now()[1] == rows


def test_offsets_that_no_object_holds_are_refused(bucket: Bucket) -> None:
    bucket.append(8)
    row = bucket.rows()[3]
    bucket.lose()
    bucket.store.execute(Delete((segment_key(TOPIC_ID, 0, row),)))
    with pytest.raises(CorruptionError, match="offsets 30 to 40 are in no object"):
        bucket.plan()


def test_what_a_copy_names_is_named_although_it_was_cut(bucket: Bucket) -> None:
    bucket.append(8)
    bucket.trim(10)  # keeps a copy
    rows = bucket.rows()
    bucket.lose()
    key = segment_key(TOPIC_ID, 0, rows[3])
    bucket.store.execute(Delete((key,)))
    bucket.put(key, b"x" * (rows[3].size - 1))
    plan = bucket.plan()
    assert plan.bare == (key,)
    bucket.world.run(rebuild_steps(plan))
    assert bucket.now()[1][-6:] == rows[-6:]


def test_a_bundle_that_alone_tells_the_leader_epochs_is_needed(bucket: Bucket) -> None:
    bucket.append(3)
    bucket.take_over("v2")
    bucket.append(2)
    rows, lineage = bucket.rows(), bucket.root.lineage
    bucket.lose()
    bucket.without_history()
    for number in (-1, -2):  # of the last leader epoch there are two
        key = index_key(TOPIC_ID, 0, rows[number])
        whole = bucket.data(key)
        bucket.store.execute(Delete((key,)))
        bucket.put(key, whole[:-9])
        if number == -1:
            assert bucket.plan().root.lineage == lineage
    with pytest.raises(CorruptionError) as refused:
        bucket.plan()
    assert refused.value.hint.startswith("it alone tells the leader epochs at the end of the log")


def test_an_end_that_would_go_back_is_refused(bucket: Bucket) -> None:
    bucket.append(8)
    bucket.trim(10)
    row = bucket.rows()[-1]
    bucket.lose()
    bucket.store.execute(Delete((index_key(TOPIC_ID, 0, row),)))
    assert bucket.plan().bare == (segment_key(TOPIC_ID, 0, row),)  # `repair index` tells who wrote at the end
    bucket.store.execute(Delete((segment_key(TOPIC_ID, 0, row),)))
    with pytest.raises(CorruptionError, match="the objects end at offset 70"):
        bucket.plan()


def test_nothing_tells_where_an_empty_log_ended(bucket: Bucket) -> None:
    bucket.lose()
    with pytest.raises(CorruptionError, match="end at offset 0") as refused:
        bucket.plan()
    assert "(`tiered cat flights:0 --log-dir DIR`), other partitions are read as before" in refused.value.hint


def test_a_whole_root_stays(bucket: Bucket) -> None:
    bucket.append(5)
    with pytest.raises(ConfigError, match="nothing to rebuild"):
        bucket.plan()


@pytest.mark.parametrize("seed", range(25))
def test_a_root_whose_pages_are_lost_finds_what_they_held(bucket: Bucket, seed: int) -> None:
    """Rows and all that only a root tells stay, whoever rewrote, trimmed or took over. An upload behind the end was
    under way, or is all that is left of a newer root: it goes on from there, and none does where two contradict.
    """
    rng = random.Random(seed)
    bucket.append(rng.randrange(20, 50))
    uploads = list[Row]()
    for number in range(rng.randrange(6)):
        rows = bucket.rows()
        at = rng.randrange(len(rows) - 4)
        match rng.choice(["append", "replace", "trim", "claim", "orphan", "collect"]):
            case "append":
                bucket.append(rng.randrange(1, 9))
            case "replace":
                bucket.replace(*rows[at : at + rng.randrange(1, 4)])
            case "trim":
                bucket.trim(rows[at].base)
            case "claim":
                bucket.take_over(f"volume-{number}")
                bucket.append(1)
            case "orphan":
                uploads.append(bucket.objects(bucket.writer.row(bucket.end, bucket.end + 7)))
            case _:
                bucket.wait()
                bucket.collect()
    rows, before = bucket.rows(), bucket.root
    behind = [row for row in uploads if row.base == bucket.end and row.claim_epoch == before.writer.epoch]
    rows += behind if len(behind) == 1 else []
    pages = [before.page_key(pointer) for pointer in (*before.inner, *before.leaves)]
    assert pages
    others = [bucket.data(key) for key in pages]
    for key in rng.sample(pages, rng.randrange(1, min(3, len(pages)) + 1)):
        damage = rng.choice([None, b"", b"garbage", bucket.data(key)[:-3], rng.choice(others)])
        if damage == bucket.data(key):
            damage = None
        bucket.store.execute(Delete((key,)))
        if damage is not None:
            bucket.put(key, damage)
    plan = bucket.plan()
    assert (plan.copy_version, plan.torn_pages > 0) == (before.version, True)
    bucket.world.run(rebuild_steps(plan))
    root, found = bucket.now()
    assert found == rows
    assert (root.start_offset, root.next_offset, root.lineage) == (
        before.start_offset, rows[-1].next, before.lineage
    )  # fmt: skip
    with pytest.raises(ConfigError, match="nothing to rebuild"):
        bucket.plan()


def test_what_waits_in_the_trash_is_no_part_of_a_lost_page(bucket: Bucket) -> None:
    """Rewritten twice under one claim: the first rewrite waits for its grace, and is in the bucket, too."""
    bucket.append(20)
    bucket.replace(*bucket.rows()[1:3])
    bucket.replace(*bucket.rows()[1:2])
    rows, (pointer, *_) = bucket.rows(), [*bucket.root.leaves]
    assert pointer.base <= rows[1].base < pointer.next
    bucket.store.execute(Delete((bucket.root.page_key(pointer),)))
    bucket.world.run(rebuild_steps(bucket.plan()))
    assert bucket.now()[1] == rows


def test_what_a_lost_page_held_is_not_made_up(bucket: Bucket) -> None:
    """A segment of it is lost, too: a gap, or another upload of its offsets, which nobody committed."""
    bucket.append(20)
    rows, (pointer, *_) = bucket.rows(), [*bucket.root.leaves]
    bucket.store.execute(Delete((bucket.root.page_key(pointer),)))
    bucket.store.execute(Delete((segment_key(TOPIC_ID, 0, rows[1]), index_key(TOPIC_ID, 0, rows[1]))))
    with pytest.raises(CorruptionError, match="are in no object"):
        bucket.plan()
    bucket.objects(bucket.writer.row(rows[1].base, rows[1].next))
    with pytest.raises(CorruptionError, match="4 segments, and not the 4 that the lost page"):
        bucket.plan()


@pytest.mark.parametrize("collected", [False, True])
def test_a_lost_page_of_holes_loses_nothing_and_brings_nothing_back(bucket: Bucket, collected: bool) -> None:
    """What compaction has removed all of: the objects that it replaced are no part of the log, if they are there."""
    bucket.append(20)
    (pointer, *_) = bucket.root.leaves
    old = [row for row in bucket.rows() if pointer.base <= row.base < pointer.next]
    holes = [hole(row.base, row.next, f"{number:032x}", 1, row.leader_epoch) for number, row in enumerate(old)]
    bucket.world.run(bucket.maintainer.catalog.load())
    bucket.world.run(bucket.maintainer.catalog.commit(ReplaceIntent(tuple(old), tuple(holes))))
    (pointer, *_) = bucket.root.leaves
    assert (pointer.size, pointer.records) == (0, 0)
    if collected:
        bucket.wait()
        bucket.collect()
    for row in old[:2]:
        bucket.objects(row)  # as a snapshot keeps it, which names it still
    rows = bucket.rows()
    bucket.store.execute(Delete((bucket.root.page_key(pointer),)))
    plan = bucket.plan()
    assert (plan.lost, plan.gone, plan.torn_pages) == ((), (0, 0), 1)
    bucket.world.run(rebuild_steps(plan))
    root, found = bucket.now()
    assert [row for row in found if row.size] == [row for row in rows if row.size]
    assert [(row.base, row.next, row.records) for row in found if not row.size] == [(pointer.base, pointer.next, 0)]
    assert (root.start_offset, root.next_offset) == (rows[0].base, rows[-1].next)


@pytest.mark.parametrize("damage", [None, b"garbage"])
def test_a_root_that_came_meanwhile_stays(bucket: Bucket, damage: bytes | None) -> None:
    bucket.append(5)
    key = bucket.lose(damage).key
    plan = bucket.plan()
    bucket.store.execute(Delete((key,)))
    bucket.put(key, b"another")
    with pytest.raises(ConfigError, match="nothing was replaced"):
        bucket.world.run(rebuild_steps(plan))
    got = bucket.store.execute(Get(key))
    assert isinstance(got, Object)
    assert got.data == b"another"


def test_a_damaged_root_is_kept_aside(bucket: Bucket) -> None:
    bucket.append(5)
    bucket.lose(b"garbage")
    store = bucket.store
    rebuild(store, plan_rebuild(store, TP, "test"))
    page = store.execute(List(partition_prefix(TOPIC_ID, 0) + "aside/"))
    assert isinstance(page, Page)
    (entry,) = page.entries
    got = store.execute(Get(entry.key))
    assert isinstance(got, Object)
    assert got.data == b"garbage"
    assert len(bucket.now()[1]) == 5


async def test_the_asyncio_face_does_the_same(bucket: Bucket) -> None:
    bucket.append(5)
    rows = bucket.rows()
    bucket.lose(b"garbage")
    store = OnTheLoop(bucket.store)
    await aio.rebuild(store, await aio.plan_rebuild(store, TP, "test"))
    assert bucket.now()[1] == rows


def test_what_a_snapshot_holds_is_no_orphan_of_the_new_catalog(bucket: Bucket) -> None:
    bucket.append(30)
    bucket.world.run(create_snapshot(bucket.writer.catalog, "kept"))
    kept = bucket.keys
    bucket.replace(*bucket.rows()[:3])
    bucket.lose()
    bucket.world.run(rebuild_steps(bucket.plan()))
    bucket.now()
    bucket.wait()
    bucket.world.run(sweep(bucket.maintainer.catalog, delete=True))
    assert kept <= bucket.keys


def uids(bucket: Bucket) -> dict[str, str]:
    """Keys of segments and pages, by the id in them."""
    return {key.rpartition(".")[0][-32:]: key for key in bucket.keys if "/s/" in key or "/p/" in key}


def unnamed(bucket: Bucket) -> set[str]:
    """Objects that neither the root names nor its trash."""
    found = uids(bucket)
    bucket.world.run(drop_named(Snapshot.of(bucket.root), found))
    return set(found)


def versions(bucket: Bucket) -> list[int]:
    page = bucket.store.execute(List(partition_prefix(TOPIC_ID, 0) + "hist/"))
    assert isinstance(page, Page)
    return sorted(version for entry in page.entries if (version := parse_hist_key(entry.key)) is not None)


@pytest.mark.parametrize("seed", range(25))
def test_what_only_the_replaced_root_named_waits_in_the_trash_of_the_one_that_goes_back(
    bucket: Bucket, seed: int
) -> None:
    rng = random.Random(seed)
    kept: dict[int, list[Row]] = {}
    bucket.append(12)
    for _ in range(rng.randrange(3, 12)):
        rows = bucket.rows()
        live = [at for at, row in enumerate(rows[:-2]) if row.base >= bucket.root.start_offset]
        kept[bucket.root.version] = rows
        match rng.choice(["append", "replace", "replace", "trim", "collect"]):
            case "append":
                bucket.append(rng.randrange(1, 20))
            case "replace" if live:
                at = rng.choice(live)
                bucket.replace(*rows[at : at + rng.randrange(1, 3)])
            case "trim" if live:
                bucket.trim(rows[rng.choice(live)].next)
            case "collect":
                bucket.wait()
                bucket.collect()
    kept[bucket.root.version] = bucket.rows()
    bucket.replace(*bucket.rows()[-2:])
    old = bucket.root
    for version in versions(bucket):
        try:
            plan = bucket.world.run(plan_return_steps(TP, version, "test"))
        except (ConfigError, NotFoundError):  # what was appended since, or a collection, is in its way
            continue
        break
    else:
        raise AssertionError(f"seed {seed}: no version can be had again")
    before = unnamed(bucket)
    new = plan.root
    assert (new.gc_floor, set(new.trash.columns["removed_version"].tolist()) - {new.version}) == (old.gc_floor, set())
    assert set(new.trash.columns["removed_ms"].tolist()) <= {new.commit.ts_ms}
    revived = {join_uid(row.id_hi, row.id_lo) for row in new.rows}
    assert revived.isdisjoint(join_uid(entry.id_hi, entry.id_lo) for entry in new.trash)
    bucket.world.run(rebuild_steps(plan))
    bucket.maintainer = bucket.desk("other")
    rows = bucket.rows()
    assert [row for row in rows if row.base < kept[version][-1].next] == kept[version]
    assert unnamed(bucket) == before
    bucket.maintainer.maintain()
    held = set(uids(bucket))
    assert bucket.collect().objects == 0  # nothing has waited for its grace time
    assert set(uids(bucket)) == held
    bucket.wait()
    bucket.collect()
    assert set(uids(bucket).values()) - {uids(bucket)[uid] for uid in before} <= bucket.named
    assert bucket.named <= bucket.keys


@pytest.mark.parametrize("history", [True, False])
def test_of_two_names_with_one_id_the_one_counts_that_its_bundle_fits(bucket: Bucket, history: bool) -> None:
    """Somebody has copied a segment under a newer claim: that one would end what the older claims had uploaded."""
    bucket.append(20)
    bucket.take_over("v2")
    bucket.append(3)
    rows, copied = bucket.rows(), bucket.rows()[7]
    for key in (segment_key, index_key):
        again = key(TOPIC_ID, 0, copied._replace(claim_epoch=2))
        bucket.put(again, bucket.data(key(TOPIC_ID, 0, copied)))
    bucket.lose()
    if not history:
        bucket.without_history()
    bucket.world.run(rebuild_steps(bucket.plan()))
    assert bucket.now()[1] == rows


def test_no_root_is_written_that_nobody_could_read(bucket: Bucket) -> None:
    """A name that was put there by hand tells of the last claim, or of the last version, that there can be."""
    bucket.append(5)
    copied = bucket.rows()[1]
    key = segment_key(TOPIC_ID, 0, copied._replace(claim_epoch=MAX_INT32))
    bucket.put(key, bucket.data(segment_key(TOPIC_ID, 0, copied)))
    with pytest.raises(CorruptionError, match=f"claim {MAX_INT32} of role w is told of") as refused:
        bucket.plan()
    assert "move it elsewhere" in refused.value.hint
    bucket.store.execute(Delete((key,)))
    bucket.put(gc_audit_key(TOPIC_ID, 0, MAX_INT64 - 1, "0f" * 16), b"{}")
    with pytest.raises(CorruptionError, match=f"version {MAX_INT64 - 1} is told of"):
        bucket.plan()
