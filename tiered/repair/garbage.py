"""Trash of a root that replaces another: objects and pages that only the replaced root named.

They wait there for the grace time and for pins, with the trash of the replaced root.
"""

from __future__ import annotations

from dataclasses import replace

from tiered.format.keys import join_uid
from tiered.format.page import PageKind, Pointers
from tiered.format.root import Root
from tiered.format.rows import NO_TRASH, Rows, Trash
from tiered.model import TRASH_LIST, TRASH_MAINTAINER, TRASH_OBJECT, TRASH_PAGE, TRASH_ROWS, Row, TrashEntry
from tiered.plan.commit import Stamp
from tiered.plan.pages import Garbage
from tiered.remote.gc.garbage import page_key_of, trash_page
from tiered.remote.pages import PageCache, read_pages
from tiered.repair.copies import rows_of
from tiered.store.base import Steps


def left_behind(now: Root, root: Root, stamp: Stamp, named: set[str]) -> Steps[Trash]:
    """Return the trash of ``root``, which replaces ``now``: what ``now`` or its trash names, and ``root`` not.

    ``root`` names no page of ``now``: each goes alone, for rows that it holds live on.
    """
    garbage = Garbage(replace(now, version=root.version - 1, trash=NO_TRASH), stamp)
    cache = PageCache()
    garbage.objects(row for row in (yield from rows_of(now)) if not _is_named(row, named))
    for pointer in now.inner:
        (children,) = yield from read_pages(now, PageKind.INNER, (pointer,), cache)
        if isinstance(children, Pointers):
            garbage.pages(children)
    garbage.pages((*now.inner, *now.leaves))
    waiting: list[TrashEntry] = []
    for entry in now.trash:
        waiting += yield from _opened(now, entry, garbage, named)
    version, ts_ms = root.version, root.commit.ts_ms
    moved = [entry._replace(removed_version=version, removed_ms=ts_ms) for entry in waiting]
    # A leaf that a trim cut is there twice, and its rows, if a later trim took the rest of it.
    once = {(entry.id_hi, entry.id_lo): entry for entry in (*moved, *garbage.trash)}
    return Trash.from_entries(list(once.values()))


def _opened(now: Root, entry: TrashEntry, garbage: Garbage, named: set[str]) -> Steps[list[TrashEntry]]:
    """Return an entry as single pages and objects, without those that are ``named`` again.

    ``garbage`` gets the rows of pages. A page that is missing was collected after all that it names.
    """
    if entry.what == TRASH_OBJECT:
        return [] if _is_named(entry, named) else [entry]
    if entry.what == TRASH_PAGE:
        return [entry]
    kinds = [PageKind.TRASH] if entry.what == TRASH_LIST else [PageKind.LEAF, PageKind.INNER]
    content = yield from trash_page(page_key_of(now, entry), kinds)
    waiting: list[TrashEntry] = []
    if content is None:
        return waiting
    if isinstance(content, Trash):
        for one in content:
            waiting += yield from _opened(now, one, garbage, named)
    elif isinstance(content, Pointers):
        for pointer in content:
            rows = yield from trash_page(now.page_key(pointer), [PageKind.LEAF])
            if isinstance(rows, Rows):
                garbage.objects(row for row in rows if not _is_named(row, named))
                garbage.pages((pointer,))
    else:
        below = entry.what == TRASH_ROWS
        rows = content.where((content.next > entry.base) & (content.next <= entry.end)) if below else content
        garbage.objects(row for row in rows if not _is_named(row, named))
        if below:
            return waiting  # the page itself is another entry, or one of the catalog's
    return [*waiting, entry._replace(kind=TRASH_PAGE | entry.kind & TRASH_MAINTAINER, end=0)]


def _is_named(one: Row | TrashEntry, named: set[str]) -> bool:
    return join_uid(one.id_hi, one.id_lo) in named
