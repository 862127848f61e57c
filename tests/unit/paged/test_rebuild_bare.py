"""A lost root, and a ``.log`` whose ``.idx`` is lost, too: named where a copy tells its row, and never passed over."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import tiered
from tests.unit.catalog.script import TOPIC_ID
from tests.unit.paged.rebuilding import TP, Bucket, producers_of
from tests.unit.remote.building import batches, seal
from tiered.care.rebuild import plan_rebuild_steps, rebuild_steps
from tiered.errors import CorruptionError
from tiered.format.bundle import encode_bundle
from tiered.format.keys import Role, SegmentName, index_key, segment_key
from tiered.model import EpochEntry, Row
from tiered.remote.sweep import sweep
from tiered.store.base import ABSENT, Delete, Get, Object, Put
from tiered.testing.clock import START_MS


@pytest.fixture
def bucket() -> Bucket:
    """Segments of ten offsets up to 80; the root is lost."""
    bucket = Bucket()
    bucket.append(8)
    return bucket


def without(bucket: Bucket, at: int, *, log: bool = False, copies: bool = True) -> str:
    """The key of the ``.log`` of a row that has lost its ``.idx``, or both; then the root goes, and its copies."""
    row = bucket.rows()[at]
    if copies:
        bucket.replace(*bucket.rows()[-3:-1])  # a copy of before that, which names every row
    bucket.lose()
    if not copies:
        bucket.without_history()
    key = segment_key(TOPIC_ID, 0, row)
    bucket.store.execute(Delete((index_key(TOPIC_ID, 0, row), *([key] if log else []))))
    return key


@pytest.mark.parametrize("at", [0, 3])
def test_what_a_copy_names_is_named_and_told(bucket: Bucket, at: int) -> None:
    key = without(bucket, at)
    plan = bucket.plan()
    assert (plan.bare, plan.lost, plan.gone, plan.root.start_offset) == ((key,), (), (0, 0), 0)
    bucket.world.run(rebuild_steps(plan))
    root, rows = bucket.now()
    assert (root.start_offset, root.next_offset, rows[at].base) == (0, 80, at * 10)
    bucket.wait()
    bucket.world.run(sweep(bucket.maintainer.catalog, delete=True))
    assert bucket.data(key) == b"x" * rows[at].size


def test_of_the_last_segment_the_copy_tells_row_and_epochs(bucket: Bucket) -> None:
    bucket.take_over("second")
    bucket.append(2)
    before = bucket.root.lineage
    key = without(bucket, -1)
    plan = bucket.plan()
    assert (plan.bare, plan.lost, plan.root.next_offset, plan.root.lineage) == ((key,), (), 100, before)
    assert len(before) == 2
    bucket.world.run(rebuild_steps(plan))
    assert segment_key(TOPIC_ID, 0, bucket.now()[1][-1]) == key


class Told(Bucket):
    """Its segments hold records."""

    def objects(self, row: Row) -> Row:
        parts = batches(row.base, row.next)
        sealed = seal(parts, snapshot=producers_of(row.next), topic_id=TOPIC_ID)
        told, indexes = sealed.descriptor, replace(sealed.sealed_indexes, leader_epochs=(EpochEntry(0, 0),))
        bundle = encode_bundle(told, indexes, row.claim_epoch)
        row = row._replace(
            min_ts=told.min_timestamp, max_ts=told.max_timestamp, size=told.size_bytes, crc=told.crc32c,
            records=told.records, leader_epoch=0, idx_len=len(bundle),
        )  # fmt: skip
        self.put(segment_key(TOPIC_ID, 0, row), sealed.data)
        self.put(index_key(TOPIC_ID, 0, row), bundle)
        return row


@pytest.mark.parametrize("at", [0, 3])
def test_what_its_batches_prove_is_named_and_told(at: int) -> None:
    bucket = Told()
    bucket.append(8)
    before = bucket.rows()
    key = without(bucket, at, copies=False)
    plan = bucket.plan()
    assert (plan.bare, plan.lost, plan.root.start_offset, plan.root.next_offset) == ((key,), (), 0, 80)
    bucket.world.run(rebuild_steps(plan))
    assert bucket.now()[1] == [
        row._replace(idx_len=0, appended_ms=START_MS) if row == before[at] else row for row in before
    ]


def test_what_its_batches_prove_fills_a_lost_page() -> None:
    bucket = Told()
    bucket.append(14)
    before, (pointer, *_) = bucket.rows(), [*bucket.root.leaves]
    row = before[1]
    bucket.store.execute(Delete((bucket.root.page_key(pointer), index_key(TOPIC_ID, 0, row))))
    plan = bucket.plan()
    assert (plan.bare, plan.torn_pages) == ((segment_key(TOPIC_ID, 0, row),), 1)
    bucket.world.run(rebuild_steps(plan))
    assert bucket.now()[1] == [old._replace(idx_len=0, appended_ms=START_MS) if old == row else old for old in before]


def test_more_records_than_a_lost_page_held_do_not_fill_it() -> None:
    """A segment of the page is an older, smaller upload: what the page says of sizes does not fit."""
    bucket = Told()
    bucket.append(14)
    before, (pointer, *_) = bucket.rows(), [*bucket.root.leaves]
    gone, row = before[1], before[2]
    bucket.store.execute(Delete((bucket.root.page_key(pointer), index_key(TOPIC_ID, 0, row))))
    for key in (segment_key(TOPIC_ID, 0, gone), index_key(TOPIC_ID, 0, gone)):
        bucket.store.execute(Delete((key,)))
    smaller = seal(batches(10, 20, size=8), snapshot=producers_of(20)).data
    name = SegmentName(Role.WRITER, gone.claim_epoch, 10, "0f" * 16)
    bucket.put(segment_key(TOPIC_ID, 0, name), smaller)
    with pytest.raises(CorruptionError, match="4 segments, and not the 4 that the lost page"):
        bucket.plan()


@pytest.mark.parametrize("accept_loss", [False, True])
@pytest.mark.parametrize("at", [0, 3])
def test_what_nothing_tells_is_refused_by_name(bucket: Bucket, at: int, accept_loss: bool) -> None:
    key = without(bucket, at, copies=False)
    with pytest.raises(CorruptionError, match=r"its \.idx is gone or wrong") as refused:
        bucket.world.run(plan_rebuild_steps(TP, "test", accept_loss=accept_loss))
    assert (refused.value.path_or_key, refused.value.offset) == (key, at * 10)
    assert "--accept-loss" not in refused.value.hint


def test_what_is_refused_can_be_read_as_the_hint_says(tmp_path: Path) -> None:
    bucket = Told()
    bucket.append(3)
    rows = bucket.rows()
    key = without(bucket, 2, copies=False)
    bucket.store.execute(Delete(tuple(index_key(TOPIC_ID, 0, row) for row in rows)))
    with pytest.raises(CorruptionError, match="no segment follows it") as refused:
        bucket.plan()
    hint, first = refused.value.hint, segment_key(TOPIC_ID, 0, rows[0])
    found = re.search(r"copy it to (\S+)/(\S+) in an empty folder DIR, and `tiered cat (\S+) ", hint)
    assert found is not None
    assert found.groups() == ("flights-0", f"{0:020d}.log", "flights:0")
    assert (refused.value.path_or_key, key.endswith(".log")) == (first, True)
    got = bucket.store.execute(Get(first))
    assert isinstance(got, Object)
    (tmp_path / found[1]).mkdir()
    (tmp_path / found[1] / found[2]).write_bytes(got.data)
    with tiered.open_reader(log_dir=tmp_path) as reader:
        assert [record.offset for record in reader.topic(TP.topic).read()] == list(range(10))


def test_behind_the_end_it_is_told(bucket: Bucket) -> None:
    """An upload that never ended looks the same: it is no reason to refuse."""
    key = without(bucket, 7, copies=False)
    plan = bucket.plan()
    assert (plan.bare, plan.root.next_offset) == ((key,), 70)
    assert key in plan.unused


def test_a_start_that_goes_up_is_told(bucket: Bucket) -> None:
    without(bucket, 0, log=True)
    plan = bucket.plan()
    assert (plan.gone, plan.root.start_offset, plan.bare) == ((0, 10), 10, ())


def test_what_was_uploaded_below_the_start_hinders_nobody(bucket: Bucket) -> None:
    """An upload that never ended, of offsets that are trimmed by now."""
    bucket.trim(30)
    bucket.replace(*bucket.rows()[-3:-1])  # a copy that begins there
    bucket.append(1)
    left = bucket.objects(bucket.writer.row(10, 15))
    bucket.store.execute(Delete((index_key(TOPIC_ID, 0, left),)))
    bucket.lose()
    plan = bucket.plan()
    assert (plan.bare, plan.root.next_offset) == ((), 90)


def half_of(bucket: Bucket, row: Row, half: str) -> str:
    """Deletes or cuts a half of a rewrite; the key of the other one."""
    log, index = segment_key(TOPIC_ID, 0, row), index_key(TOPIC_ID, 0, row)
    gone, left = (log, index) if half.startswith(".log") else (index, log)
    got = bucket.store.execute(Get(gone))
    assert isinstance(got, Object)
    bucket.store.execute(Delete((gone,)))
    if half.endswith("cut"):
        bucket.store.execute(Put(gone, bytes(got.data[:-1]), ABSENT))
    return left


@pytest.mark.parametrize("accept_loss", [False, True])
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("half", [".idx", ".log", ".idx, cut", ".log, cut"])
def test_a_rewrite_that_lost_a_half_is_not_undone(bucket: Bucket, half: str, copies: bool, accept_loss: bool) -> None:
    """What it was made of is still there, and holds what an erasure has taken out."""
    older = bucket.rows()[2]
    bucket.replace(older)
    left = half_of(bucket, bucket.rows()[2], half)
    bucket.lose()
    if not copies:
        bucket.without_history()
    with pytest.raises(CorruptionError, match=f"its {half[:4]} is gone or wrong") as refused:
        bucket.world.run(plan_rebuild_steps(TP, "test", accept_loss=accept_loss))
    assert (refused.value.path_or_key, refused.value.offset) == (left, 20)
    assert segment_key(TOPIC_ID, 0, older) in refused.value.message
    rest = left.rpartition(".")[0]
    bucket.store.execute(Delete((f"{rest}.log", f"{rest}.idx")))  # as the hint says
    bucket.world.run(rebuild_steps(bucket.plan()))
    assert bucket.now()[1][2] == older


@pytest.mark.parametrize("half", [".idx", ".log", ".idx, cut", ".log, cut"])
def test_half_a_rewrite_of_which_a_newer_claim_has_made_another_hinders_nobody(bucket: Bucket, half: str) -> None:
    bucket.replace(bucket.rows()[2])
    first = bucket.rows()[2]
    bucket.maintainer = bucket.desk("another")
    bucket.maintainer.maintain()
    bucket.replace(first)
    rows = bucket.rows()
    half_of(bucket, first, half)
    bucket.lose()
    bucket.without_history()
    bucket.world.run(rebuild_steps(bucket.plan()))
    assert bucket.now()[1] == rows
    assert rows[2].claim_epoch > first.claim_epoch
