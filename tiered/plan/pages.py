"""Overflow of a root: when rows, pointers and trash move into pages, and what becomes garbage.

Everything here is copy-on-write. A page is named once, by a random name under the committer's claim epoch; a root
names a page only after the store has acknowledged it (``Root.unwritten`` are those still to be stored).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Sequence

from tiered.format.keys import FLAG_MAINTAINER, FLAG_STAGED, PageName, Role
from tiered.format.page import POINTER_MAINTAINER, Content, Page, Pointer, Pointers, encode_page
from tiered.format.root import Root
from tiered.format.rows import Rows, Trash
from tiered.model import (
    TRASH_LIST,
    TRASH_MAINTAINER,
    TRASH_OBJECT,
    TRASH_PAGE,
    TRASH_ROWS,
    TRASH_STAGED,
    TRASH_TREE,
    Row,
    TrashEntry,
)
from tiered.plan.commit import Stamp, next_ts_ms, next_version


class NewPages:
    """Pages that one commit makes, in order."""

    def __init__(self, root: Root, stamp: Stamp) -> None:
        self._root, self._stamp = root, stamp
        self.made: tuple[Page, ...] = root.unwritten

    def add(self, content: Content) -> Pointer:
        """Add a page, whose name follows from the commit's id and the page's number. Return its pointer."""
        number = f"{self._stamp.commit_id}/{len(self.made)}".encode()
        uid = hashlib.blake2b(number, digest_size=16).hexdigest()
        name = PageName(self._stamp.role, self._stamp.epoch, uid)
        page = encode_page(self._root.topic_id, self._root.partition, name, content)
        self.made = (*self.made, page)
        return page.pointer


def spill(root: Root, stamp: Stamp) -> Root:
    """Move the overflow of ``root`` into pages. For every commit except a claim.

    Until a claim is known to be committed, nothing may be uploaded under its epoch.
    """
    shape, pages = stamp.shape, NewPages(root, stamp)
    rows, leaves, inner = root.rows, root.leaves, root.inner
    while len(rows) >= shape.tail_rows:
        leaves = leaves.appended(Pointers.from_pointers([pages.add(rows.slice(0, shape.leaf_rows))]))
        rows = rows.slice(shape.leaf_rows)
        if len(leaves) >= shape.root_leaves:
            inner = inner.appended(Pointers.from_pointers([pages.add(leaves.slice(0, shape.fan_out))]))
            leaves = leaves.slice(shape.fan_out)
    trash = root.trash
    while int((trash.kinds != TRASH_LIST).sum()) >= shape.trash_entries:
        trash = _listed(trash, stamp, pages)
    if pages.made is root.unwritten:
        return root
    return dataclasses.replace(root, rows=rows, leaves=leaves, inner=inner, trash=trash, unwritten=pages.made)


def _listed(trash: Trash, stamp: Stamp, pages: NewPages) -> Trash:
    """Move the oldest entries into a page. Its entry counts as removed when the youngest of them was."""
    lists = trash.kinds == TRASH_LIST
    single = trash.where(~lists)
    oldest = single.slice(0, stamp.shape.trash_page)
    pointer = pages.add(oldest)
    entry = TrashEntry(
        pointer.id_hi,
        pointer.id_lo,
        0,
        int(oldest.columns["removed_version"].max()),
        int(oldest.columns["removed_ms"].max()),
        pointer.epoch,
        TRASH_LIST | (TRASH_MAINTAINER if stamp.role is Role.MAINTAINER else 0),
    )
    return trash.where(lists).appended(Trash.from_entries([entry])).appended(single.slice(stamp.shape.trash_page))


class Garbage:
    """Trash entries of one commit, in order of removal."""

    def __init__(self, root: Root, stamp: Stamp) -> None:
        self._version, self._ts_ms = next_version(root, stamp), next_ts_ms(root, stamp)
        self._before = root.trash
        self._entries: list[TrashEntry] = []

    @property
    def trash(self) -> Trash:
        """Trash of the root before, followed by the new entries."""
        return self._before.appended(Trash.from_entries(self._entries)) if self._entries else self._before

    def objects(self, rows: Iterable[Row]) -> None:
        """Add the objects of rows; holes have none."""
        for row in rows:
            if row.size:
                kind = TRASH_OBJECT | (TRASH_MAINTAINER if row.flags & FLAG_MAINTAINER else 0)
                kind |= TRASH_STAGED if row.flags & FLAG_STAGED else 0
                self._add(row.id_hi, row.id_lo, row.base, row.claim_epoch, kind)

    def trees(self, pointers: Iterable[Pointer]) -> None:
        """Add pages and everything that they name."""
        for pointer in pointers:
            self._page(pointer, TRASH_TREE)

    def pages(self, pointers: Iterable[Pointer]) -> None:
        """Add pages alone: newer pages name their live entries."""
        for pointer in pointers:
            self._page(pointer, TRASH_PAGE)

    def rows_of(self, pointer: Pointer, low: int, high: int) -> None:
        """Add the rows with ``low < next <= high`` of a leaf that stays."""
        self._page(pointer, TRASH_ROWS, low, high)

    def _page(self, pointer: Pointer, kind: int, base: int | None = None, end: int = 0) -> None:
        letter = TRASH_MAINTAINER if pointer.flags & POINTER_MAINTAINER else 0
        self._add(
            pointer.id_hi, pointer.id_lo, pointer.base if base is None else base, pointer.epoch, kind | letter, end
        )

    def _add(self, high: int, low: int, base: int, epoch: int, kind: int, end: int = 0) -> None:  # noqa: PLR0917
        self._entries.append(TrashEntry(high, low, base, self._version, self._ts_ms, epoch, kind, end))


def leaf_pages(rows: Rows, shape_rows: int, pages: NewPages) -> list[Pointer]:
    """Return new leaves of ``rows`` of about the same size, none larger than ``shape_rows``."""
    return [pages.add(rows.slice(start, end)) for start, end in pieces(len(rows), shape_rows)]


def inner_pages(pointers: Sequence[Pointer], most: int, pages: NewPages) -> list[Pointer]:
    """Return new inner pages of leaf pointers, of about the same size, none with more than ``most``."""
    table = Pointers.from_pointers(pointers)
    return [pages.add(table.slice(start, end)) for start, end in pieces(len(table), most)]


def pieces(count: int, most: int) -> list[tuple[int, int]]:
    """Split ``count`` items into as few ranges of at most ``most`` as possible; their sizes differ by at most one."""
    number = -(-count // most)
    edges = [count * at // number for at in range(number + 1)] if number else [0]
    return list(itertools.pairwise(edges))
