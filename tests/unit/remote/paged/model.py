"""A catalog with tiny pages beside a list of rows that is always right, and pages kept in a dictionary."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from typing import TypeVar
from uuid import UUID

from tiered.format.keys import FLAG_HOLE, FLAG_MAINTAINER, Role, join_uid
from tiered.format.page import Page, PageKind, Pointer, Pointers, decode_page, verified_page
from tiered.format.root import CompactedRange, Root, decode_root, encode_root
from tiered.format.rows import Rows, Tally, Trash
from tiered.model import TRASH_LIST, TRASH_OBJECT, TRASH_PAGE, TRASH_ROWS, TRASH_TREE, Row
from tiered.model import TrashEntry as Entry
from tiered.plan.catalog_edit import ReplaceIntent, TrimIntent, spill
from tiered.plan.commit import (
    AppendIntent,
    ClaimIntent,
    Intent,
    Reading,
    Shape,
    Stamp,
    create_root,
)
from tiered.plan.invariants import check_page, check_root
from tiered.plan.ownership import Refusal, VolumeProof

TOPIC_ID = UUID(int=9)
TINY = Shape(leaf_rows=4, tail_rows=6, fan_out=3, root_leaves=5, small_leaf=2, trash_entries=9, trash_page=5)
T = TypeVar("T")


def uid_of(entry: Row | Pointer | Entry) -> str:
    """The id of an object or a page."""
    return join_uid(entry.id_hi, entry.id_lo)


class Catalog:
    """``root`` and its pages; ``live`` is the same as a list. ``gone``: uids of objects that left it."""

    def __init__(self, seed: int, shape: Shape = TINY) -> None:
        self.rng, self.shape = random.Random(seed), shape
        self.start = self.rng.choice([0, 17, 2**63 - 1_000_000])
        self.pages: dict[str, Page] = {}
        # A page never changes: it is decoded and held against each pointer once, not at every look at the catalog.
        self._verified: dict[tuple[Pointer, PageKind], Rows | Pointers] = {}
        self._decoded: dict[str, Rows | Pointers | Trash] = {}
        self._expanded: dict[Entry, set[str]] = {}
        self.live: list[Row] = []
        self.gone: set[str] = set()
        self.number = 0
        root = create_root(TOPIC_ID, 0, "t", self.stamp(Role.WRITER, 0))
        for role, volume in (
            (Role.WRITER, VolumeProof("v", False, self.start, start_offset=self.start)),
            (Role.MAINTAINER, None),
        ):
            claimed = ClaimIntent(role, "host:1", volume, "t").apply(root, self.stamp(role, 0))
            assert isinstance(claimed, Root)
            root = claimed
        self.root = root

    def stamp(self, role: Role, epoch: int = 1) -> Stamp:
        self.number += 1
        return Stamp(f"{self.number:032x}", self.rng.randrange(5_000), role, epoch, "host:1", self.shape)

    # -- doing ---------------------------------------------------------------------------------------------------------

    def plan(self, intent: Intent, role: Role) -> Root | Refusal:
        """The intent on ``root``, with what is too large for it in pages."""
        stamp = self.stamp(role)
        planned = intent.apply(self.root, stamp)
        planned = planned if isinstance(planned, Root | Refusal) else self.read(planned, self.root)
        return planned if isinstance(planned, Refusal) else spill(planned, stamp)

    def read(self, reading: Reading[T], root: Root) -> T:
        """A pure function, answered from what is stored."""
        try:
            wanted = next(reading)
            while True:
                wanted = reading.send(tuple([self.page(root, wanted.kind, pointer) for pointer in wanted.pointers]))
        except StopIteration as stop:
            value: T = stop.value
            return value

    def page(self, root: Root, kind: PageKind, pointer: Pointer) -> Rows | Pointers:
        content = self._verified.get((pointer, kind))
        if content is None:
            key = root.page_key(pointer)
            content = verified_page(self.pages[key].body, pointer, key=key, kind=kind)
            self._verified[pointer, kind] = content
        assert check_page(root, content) == []
        return content

    def commit(self, planned: Root) -> None:
        """Stores the pages, then the root; everything that must be true of it is looked at."""
        for page in planned.unwritten:
            self.store(page)
        before, root = self.root, dataclasses.replace(planned, unwritten=())
        assert check_root(root, before) == []
        assert decode_root(encode_root(root), key=root.key) == root
        self.root = root

    def store(self, page: Page) -> None:
        """Keep a page, of a commit or of an attempt at one."""
        uid = uid_of(page.pointer)
        assert uid not in self._decoded
        self.pages[page.key] = page
        self._decoded[uid] = decode_page(page.body, key=page.key, kind=page.kind)

    def do(self, intent: Intent, role: Role) -> Refusal | None:
        """Plans and commits one intent."""
        planned = self.plan(intent, role)
        if isinstance(planned, Refusal):
            return planned
        self.commit(planned)
        return None

    # -- intents -------------------------------------------------------------------------------------------------------

    def row(self, base: int, end: int, role: Role = Role.WRITER, **changes: int) -> Row:
        self.number += 1
        flags = FLAG_MAINTAINER if role is Role.MAINTAINER else 0
        size = self.rng.randrange(1, 1000)
        low = self.rng.randrange(100)
        row = Row(base, end, low, low + self.rng.randrange(50), size, 5, self.number, -self.number, 50, 1, 3, flags, 0)
        return row._replace(**changes)

    def append(self, most: int = 5) -> AppendIntent:
        rows, end = list[Row](), self.root.next_offset
        for _ in range(self.rng.randrange(1, most + 1)):
            rows.append(self.row(end, end + self.rng.randrange(1, 9)))
            end = rows[-1].next
        return AppendIntent(tuple(rows), f"a{self.number}")

    def replacement(self, most: int = 12) -> ReplaceIntent | None:
        """Some neighbours by fewer, as many, or more rows; sometimes by a hole."""
        if not self.live:
            return None
        at = self.rng.randrange(len(self.live))
        old = self.live[at : at + self.rng.randrange(1, most + 1)]
        low, high = old[0].base, old[-1].next
        cuts = sorted({low, high, *(self.rng.randrange(low, high) for _ in range(self.rng.choice([0, 0, 1, 3])))})
        rows = [self.row(a, b, Role.MAINTAINER) for a, b in itertools.pairwise(cuts)]
        if self.rng.random() < 0.2:
            rows[0] = rows[0]._replace(
                size=0, idx_len=0, records=0, crc=0, id_hi=0, id_lo=0, flags=FLAG_MAINTAINER | FLAG_HOLE
            )
        cleaned = CompactedRange(high, self.rng.randrange(100)) if self.rng.random() < 0.3 else None
        return ReplaceIntent(tuple(old), tuple(rows), cleaned)

    # -- the list ------------------------------------------------------------------------------------------------------

    def apply(self, intent: Intent) -> None:
        """What a commit of ``intent`` makes of the list."""
        match intent:
            case AppendIntent(rows=rows):
                self.live += rows
            case TrimIntent(offset=offset):
                self.start = max(self.start, offset)
                self._let_go([row for row in self.live if row.next <= self.start])
                self.live = [row for row in self.live if row.next > self.start]
            case ReplaceIntent(old=old, rows=rows):
                left = [row for row in old if row.next > self.start]
                at = self.live.index(left[0])
                self._let_go([*left, *(row for row in rows if row.next <= self.start)])
                self.live[at : at + len(left)] = [row for row in rows if row.next > self.start]

    def _let_go(self, rows: Sequence[Row]) -> None:
        self.gone |= {uid_of(row) for row in rows if row.size}

    # -- looking -------------------------------------------------------------------------------------------------------

    def leaves(self) -> list[tuple[str, Rows]]:
        """Every leaf that the root names, directly or by an inner page."""
        pointers = [*self.root.leaves]
        for top in reversed(list(self.root.inner)):
            children = self.page(self.root, PageKind.INNER, top)
            assert isinstance(children, Pointers)
            pointers = [*children.slice(children.first_above(self.root.start_offset)), *pointers]
        found = []
        for pointer in pointers:
            rows = self.page(self.root, PageKind.LEAF, pointer)
            assert isinstance(rows, Rows)
            found.append((uid_of(pointer), rows))
        return found

    def check(self) -> None:
        """The catalog is the list."""
        root, leaves = self.root, self.leaves()
        held = [row for _, rows in leaves for row in rows] + list(root.rows)
        assert [row for row in held if row.next > root.start_offset] == self.live
        assert root.start_offset == self.start
        assert root.added - root.removed == Rows.from_rows(self.live).tally
        dead = [row for _, rows in leaves for row in rows if row.next <= root.start_offset]
        assert root.dead.segments >= len(dead)  # and dead leaves of the inner page in which the log starts
        if not len(root.inner):
            assert root.dead == (Rows.from_rows(dead).tally if dead else Tally())
        assert self.expanded(root.trash) == self.gone
        self._check_sizes(leaves)

    def _check_sizes(self, leaves: list[tuple[str, Rows]]) -> None:
        shape, root = self.shape, self.root
        assert len(root.rows) < shape.tail_rows
        assert len(root.leaves) < shape.root_leaves
        assert all(len(rows) <= shape.leaf_rows for _, rows in leaves)
        # Whatever the life of it, nothing but the first page is nearly empty: the tree has the size of what lives.
        least = min(shape.small_leaf, (shape.leaf_rows + 1) // 2)
        assert all(len(rows) >= least for _, rows in leaves[1:])
        inner = [self.page(root, PageKind.INNER, pointer) for pointer in root.inner]
        assert all(shape.small_inner <= len(children) <= shape.fan_out for children in inner[1:])
        lists = int((root.trash.kinds == TRASH_LIST).sum())
        assert len(root.trash) - lists < shape.trash_entries

    def expanded(self, trash: Trash) -> set[str]:
        """Uids of the segments that trash entries stand for, as a collector expands them."""
        found: set[str] = set()
        for entry in trash:
            if entry not in self._expanded:
                self._expanded[entry] = self._expand(entry)
            found |= self._expanded[entry]
        return found

    def _expand(self, entry: Entry) -> set[str]:
        match entry.what:
            case k if k == TRASH_OBJECT:
                return {uid_of(entry)}
            case k if k == TRASH_TREE:
                return self._below(uid_of(entry))
            case k if k == TRASH_ROWS:
                rows = self._decoded[uid_of(entry)]
                assert isinstance(rows, Rows)
                return {uid_of(row) for row in rows if row.size and entry.base < row.next <= entry.end}
            case k if k == TRASH_LIST:
                more = self._decoded[uid_of(entry)]
                assert isinstance(more, Trash)
                assert all(one.removed_version <= entry.removed_version for one in more)
                return self.expanded(more)
            case k:
                assert k == TRASH_PAGE
                return set()

    def _below(self, uid: str) -> set[str]:
        content = self._decoded[uid]
        if isinstance(content, Rows):
            return {uid_of(row) for row in content if row.size}
        assert isinstance(content, Pointers)
        return {found for pointer in content for found in self._below(uid_of(pointer))}
