"""A lost root, and a ``.log`` whose ``.idx`` is lost, too: named where a copy tells its row, and never passed over."""

from __future__ import annotations

import pytest

from tests.unit.catalog.script import TOPIC_ID
from tests.unit.paged.rebuilding import TP, Bucket
from tiered.care.rebuild import plan_rebuild_steps, rebuild_steps
from tiered.errors import CorruptionError
from tiered.format.keys import index_key, segment_key
from tiered.remote.sweep import sweep
from tiered.store.base import Delete


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


@pytest.mark.parametrize("accept_loss", [False, True])
@pytest.mark.parametrize("at", [0, 3])
def test_what_nothing_tells_is_refused_by_name(bucket: Bucket, at: int, accept_loss: bool) -> None:
    key = without(bucket, at, copies=False)
    with pytest.raises(CorruptionError, match=r"its \.idx is gone or wrong") as refused:
        bucket.world.run(plan_rebuild_steps(TP, "test", accept_loss=accept_loss))
    assert (refused.value.path_or_key, refused.value.offset) == (key, at * 10)
    assert "--accept-loss" not in refused.value.hint


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
