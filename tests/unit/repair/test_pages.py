"""A page that is missing or damaged comes back from a version, from a copy of the root, or from bundles."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.paged import Paged
from tiered.format.keys import hist_key, index_key, segment_key
from tiered.format.page import NO_POINTERS
from tiered.format.root import encode_root
from tiered.format.rows import NO_TALLY, NO_TRASH, Rows
from tiered.store.base import Delete


@pytest.fixture
def bucket() -> Paged:
    made = Paged()
    made.store.inner._bucket.versioned = True  # type: ignore[attr-defined]
    made.append(30)
    return made


def test_a_copy_of_the_root_tells_what_a_page_named(bucket: Paged) -> None:
    """The older root named the rows itself, before there was a page of them."""
    root = bucket.root
    pointer, before = root.leaves.pointer(-1), bucket.rows()
    inside = [row for row in before if pointer.base <= row.base < pointer.next]
    rows = Rows.from_rows(inside)
    kept = dataclasses.replace(
        root, version=root.version - 1, start_offset=pointer.base, next_offset=pointer.next, rows=rows,
        inner=NO_POINTERS, leaves=NO_POINTERS, added=rows.tally, removed=NO_TALLY, trash=NO_TRASH, dead=NO_TALLY,
    )  # fmt: skip
    bucket.put(hist_key(root.topic_id, 0, kept.version), encode_root(kept))
    bucket.store.inner._bucket.versions.clear()  # type: ignore[attr-defined]
    bucket.store.execute(Delete(tuple(index_key(root.topic_id, 0, row) for row in inside)))
    bucket.lose_pages(bucket.pages()[-1])
    bucket.repair()
    assert bucket.seen() == before


def test_what_nothing_proves_is_left(bucket: Paged) -> None:
    root, keys = bucket.root, bucket.pages()
    bucket.store.inner._bucket.versions.clear()  # type: ignore[attr-defined]
    row = next(row for row in bucket.rows() if row.base >= root.leaves.pointer(-1).base)
    bucket.store.execute(Delete((segment_key(root.topic_id, 0, row),)))
    bucket.lose_pages(keys[-1])
    (action,), pinned = bucket.plan_root()
    assert (action.act, action.where, pinned) == (None, keys[-1], None)


@pytest.mark.parametrize("below", [0, 5], ids=["whole pages", "in a page"])
def test_what_only_the_replaced_root_named_goes_after_the_grace(bucket: Paged, below: int) -> None:
    before, version = bucket.rows(), bucket.root.version
    bucket.replace(*before[20:23])
    bucket.trim(before[12].base)
    bucket.trim(before[16].base + below)
    held = bucket.keys
    bucket.wait(23 * 3_600_000)
    bucket.repair(to_version=version)
    assert bucket.seen() == before
    bucket.maintainer.maintain()
    bucket.wait(2 * 3_600_000)
    bucket.collect()
    assert held <= bucket.keys  # going back may be the mistake
    bucket.wait()
    bucket.collect()
    assert bucket.seen() == before
    assert {key for key in bucket.keys if "/aside/" not in key} == bucket.named
