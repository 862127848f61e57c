"""Roots and pages of made-up rows."""

from __future__ import annotations

import dataclasses
import random
from uuid import UUID

from tiered.format.keys import PageName, Role, root_key
from tiered.format.page import Content, Page, Pointers, encode_page
from tiered.format.root import Commit, CompactedRange, RoleState, Root, Sealed
from tiered.format.rows import Rows, Trash
from tiered.model import TRASH_ROWS, EpochEntry, Row, TrashEntry

TOPIC_ID = UUID(int=0xFEDCBA98765432100123456789ABCDEF)
KEY = root_key(TOPIC_ID, 3)


def make_rows(count: int, first: int = 0, seed: int = 1, step: int = 100) -> Rows:
    rng = random.Random(seed)
    rows = []
    for index in range(count):
        base = first + index * step
        half = [rng.getrandbits(63) - 2**62 for _ in range(2)]
        rows.append(
            Row(base, base + step, 1_700_000_000_000 + base, 1_700_000_000_000 + base + step, 1000 + index,
                rng.getrandbits(32), half[0], half[1], 700, 1, step, 0, 0)
        )  # fmt: skip
    return Rows.from_rows(rows)


def make_root(rows: Rows) -> Root:
    start = int(rows.base[0]) if len(rows) else 0
    return Root(
        topic_id=TOPIC_ID,
        partition=3,
        topic="flights",
        created_ms=1_700_000_000_000,
        version=9,
        commit=Commit("c9", "w", 1, 5, "append", 1_700_000_000_009, "host:1"),
        prev_commit_id="c8",
        roles={
            "w": RoleState(1, "host:1", 1_700_000_000_001, 5, "c9", "vol", "token", "a9"),
            "m": RoleState(2, "gc:1", 5, 0, "c4"),
        },
        sealed=(Sealed("m", 1, "c3", 2),),
        lineage=(EpochEntry(0, start),),
        txns=(("query", 7),),
        start_offset=start,
        next_offset=int(rows.next[-1]) if len(rows) else 0,
        gc_floor=2,
        added=rows.tally,
        rows=rows,
        trash=Trash.from_entries([TrashEntry(-1, 2**62, 0, 8, 5, 1, 0)]) if len(rows) else Trash.from_entries([]),
    )


def name(number: int, role: Role = Role.WRITER) -> PageName:
    return PageName(role, 1, f"{number:032x}")


def page_of(content: Content, number: int = 7, role: Role = Role.WRITER) -> Page:
    return encode_page(TOPIC_ID, 3, name(number, role), content)


def leaf_pages(count: int, rows: int = 4) -> list[Page]:
    made = make_rows(count * rows)
    return [page_of(made.slice(at, at + rows), 100 + at) for at in range(0, count * rows, rows)]


def paged_root() -> Root:
    made = make_rows(30)
    whole = make_root(made)
    pages = [page_of(made.slice(at, at + 4), 100 + at) for at in range(0, 24, 4)]
    top = page_of(Pointers.from_pointers([page.pointer for page in pages[:4]]), 99)
    return dataclasses.replace(
        whole,
        inner=Pointers.from_pointers([top.pointer]),
        leaves=Pointers.from_pointers([page.pointer for page in pages[4:]]),
        rows=made.slice(24),
        start_offset=250,
        added=made.tally,
        removed=made.slice(0, 2).tally,
        dead=made.slice(0, 2).tally,
        trash=Trash.from_entries([TrashEntry(0, 100, 0, 9, 5, 1, TRASH_ROWS, 250)]),
        cleaned=(CompactedRange(100, 5), CompactedRange(300, -1)),
    )
