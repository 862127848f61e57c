"""A pinned catalog, whatever its pages are: each answer is that of the rows in one list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.both_catalogs import PAGE_ROWS, Pages
from tests.unit.remote.building import TOPIC_ID
from tiered.errors import CorruptionError
from tiered.format.keys import PageName, Role
from tiered.format.page import Pointers, encode_page
from tiered.format.root import RoleState, Root
from tiered.format.rows import NO_ROWS, Rows
from tiered.model import Row
from tiered.plan.commit import Stamp, create_root
from tiered.remote import catalog_view
from tiered.remote.catalog_view import CatalogView, PageCache
from tiered.store.base import ABSENT, Put, Steps
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

T = TypeVar("T")
SHAPES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 50), st.integers(0, 3)), max_size=12)


def root_of(rows: list[Row]) -> Root:
    root = create_root(TOPIC_ID, 0, "flights", Stamp("0" * 32, 0, Role.WRITER, 1, "test"))
    made = Rows.from_rows(rows)
    return replace(root, rows=made, added=made.tally, next_offset=rows[-1].next if rows else 0)


def rows_of(shapes: list[tuple[int, int, int]], first: int = 3) -> list[Row]:
    rows, base = [], first
    for span, max_ts, flags in shapes:
        rows.append(Row(base, base + span, max_ts // 2, max_ts, 7, 0, 0, base, 0, 1, span, flags, 0))
        base += span
    return rows


def run(steps: Steps[T]) -> T:
    return drive(MemoryStore(), steps)


def everything(pinned: CatalogView, start: int = 0) -> list[Row]:
    found: list[Row] = []
    at = start
    while len(rows := run(pinned.piece(at))):
        found += rows
        at = rows.end_offset
    return found


def flagged(pinned: CatalogView, flags: int, start: int) -> list[Row]:
    found: list[Row] = []
    at = start
    while len(rows := run(pinned.flagged(flags, at))):
        found += rows
        at = rows.end_offset
    return found


@given(SHAPES, st.integers(0, 120), st.integers(-1, 60), st.booleans())
def test_answers_are_those_of_one_list(
    shapes: list[tuple[int, int, int]], offset: int, timestamp: int, paged: bool
) -> None:
    rows = rows_of(shapes)
    pages = Pages()
    pinned = pages.of(root_of(rows)) if paged else CatalogView.from_root(root_of(rows))
    with patch.object(catalog_view, "read_pages", pages.answer):
        compare(pinned, rows, offset, timestamp)


def compare(pinned: CatalogView, rows: list[Row], offset: int, timestamp: int) -> None:
    behind = [row for row in rows if row.next > offset]
    assert everything(pinned) == rows
    assert everything(pinned, offset) == behind
    assert flagged(pinned, 2, offset) == [row for row in behind if row.flags & 2]
    assert run(pinned.at(offset)) == next((row for row in rows if row.base <= offset < row.next), None)
    assert run(pinned.first()) == (rows[0] if rows else None)
    assert run(pinned.last()) == (rows[-1] if rows else None)
    assert run(pinned.reaching(timestamp, offset)) == next((row for row in behind if row.max_ts >= timestamp), None)
    found = run(pinned.times())
    assert (found is None) is (not rows)
    assert found is None or min(r.min_ts for r in rows) <= found[0] <= found[1] == max(r.max_ts for r in rows)
    assert (pinned.segments, pinned.size_bytes) == (len(rows), 7 * len(rows))
    assert pinned.records == sum(row.records for row in rows)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize(
    ("holes", "expected"),
    [((), (0, 250)), ((0,), (50, 250)), ((0, 1), (100, 250)), ((5,), (0, 200)), (range(6), None)],
)
def test_what_has_no_record_has_no_time(
    paged: bool, holes: Sequence[int], expected: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status` showed 1969 as the oldest time of every partition in which compaction had left a hole."""
    pages = Pages()
    monkeypatch.setattr(catalog_view, "read_pages", pages.answer)
    rows = rows_of([(10, 50 * at, 0) for at in range(6)], first=0)
    rows = [row._replace(min_ts=-1 if at in holes else row.max_ts) for at, row in enumerate(rows)]
    rows = [row._replace(max_ts=-1) if row.min_ts < 0 else row for row in rows]
    pinned = pages.of(root_of(rows)) if paged else CatalogView.from_root(root_of(rows))
    assert run(pinned.times()) == expected


def test_a_lookup_reads_the_pages_that_may_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of([(10, 100 * at, 1 if at == 7 else 0) for at in range(12)], first=0)
    pages = Pages()
    monkeypatch.setattr(catalog_view, "read_pages", pages.answer)
    pinned = pages.of(root_of(rows))
    assert run(pinned.at(55)) == rows[5]
    assert run(pinned.reaching(850)) == rows[9]
    assert flagged(pinned, 1, 0) == [rows[7]]
    span = 10 * PAGE_ROWS
    assert pages.bounds == [(40, 40 + span), (80, 80 + span), (60, 60 + span)]


def test_no_piece_is_larger_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_view, "PIECE_ROWS", 3)
    rows = rows_of([(10, 5, 1)] * 8)
    pinned = CatalogView.from_root(root_of(rows))
    assert len(run(pinned.piece(0))) == len(run(pinned.flagged(1, 0))) == 3
    assert everything(pinned) == flagged(pinned, 1, 0) == rows


def test_a_page_that_is_named_as_another_kind_is_refused_also_from_memory() -> None:
    rows = rows_of([(10, 5, 0)] * 4)
    root = root_of(rows)
    root = replace(root, roles={**root.roles, "w": RoleState(1)})
    page = encode_page(root.topic_id, root.partition, PageName(Role.WRITER, 1, "7" * 32), root.rows)
    store = MemoryStore()
    store.execute(Put(page.key, page.body, ABSENT))
    cache = PageCache()
    leaf = CatalogView.from_root(replace(root, rows=NO_ROWS, leaves=Pointers.from_pointers([page.pointer])), cache)
    assert drive(store, leaf.at(3)) == rows[0]
    twisted = CatalogView.from_root(replace(root, rows=NO_ROWS, inner=Pointers.from_pointers([page.pointer])), cache)
    with pytest.raises(CorruptionError, match=page.key):
        drive(store, twisted.at(3))


@given(st.lists(st.integers(-5, 5), max_size=9), st.integers(-(2**70), 2**70) | st.integers(-6, 6), st.integers(0, 9))
def test_the_first_that_reaches_a_time(times: list[int], timestamp: int, index: int) -> None:
    rows = Rows.from_rows([Row(at, at + 1, time, time, 7, 0, 0, at, 0, 1, 1, 0, 0) for at, time in enumerate(times)])
    wanted = (at for at in range(index, len(times)) if times[at] >= timestamp)
    assert rows.first_with_timestamp(timestamp, min(index, len(times))) == next(wanted, len(times))
