"""Plans the repair of pages of a whole root that are missing or damaged.

::

    page ── a version of it that its pointer proves ──────────────────────────> put back under its key
         └─ rows of a copy of the root, or of bundles, that add up to its sums ─> a new root that names them itself
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tiered.errors import CorruptionError
from tiered.format.keys import SegmentName
from tiered.format.page import MAX_PAGE_BYTES, PageKind, Pointer, Pointers, verified_page
from tiered.format.root import Root
from tiered.format.rows import Rows
from tiered.model import Row
from tiered.plan.invariants import check_page
from tiered.remote.catalog_view import rows_inside
from tiered.remote.pages import Content, PageCache, read_pages
from tiered.remote.segment_rewriter import hole
from tiered.repair.copies import Copies, described, list_objects, rows_of
from tiered.repair.plan import RepairAction
from tiered.repair.segments import Ground
from tiered.repair.versions import Stored, restored
from tiered.store.base import Head, NewId, Object, Steps

CACHE_BYTES = 1 << 30
"""Limit of the pages of one catalog in memory while it is repaired."""
MAX_CHAINS = 10_000
"""Segments that are tried in one place of a lost page."""


class Pages(NamedTuple):
    """Pages of a root: ``cache`` holds those that were read, or will be put back by ``actions``.

    ``lost``: pointers of all other pages. ``rows``: rows above the start, of the pages that can be read.
    """

    actions: list[RepairAction]
    cache: PageCache
    lost: list[Pointer]
    rows: list[Row]


def read_all_pages(ground: Ground, root: Root) -> Steps[Pages]:
    """Read each page that holds anything above the start, from a version of it if it is damaged."""
    found = Pages([], PageCache(CACHE_BYTES), [], [])
    waiting = [(PageKind.INNER, each) for each in root.inner] + [(PageKind.LEAF, each) for each in root.leaves]
    while waiting:
        kind, pointer = waiting.pop(0)
        if pointer.next <= root.start_offset:
            continue
        try:
            content: Content | None = (yield from read_pages(root, kind, (pointer,), found.cache))[0]
        except CorruptionError as damage:
            content = yield from _from_version(ground, root, kind, pointer, damage, found)
        if content is None:
            found.lost.append(pointer)
        elif isinstance(content, Pointers):
            waiting = [*[(PageKind.LEAF, child) for child in content], *waiting]
        else:
            found.rows.extend(row for row in content if row.next > root.start_offset)
    return found


def _from_version(  # noqa: PLR0917 - a page, and its context
    ground: Ground, root: Root, kind: PageKind, pointer: Pointer, damage: CorruptionError, found: Pages
) -> Steps[Content | None]:
    """Return a page as a version of it holds it, and note the action that puts the version back."""
    key = root.page_key(pointer)

    def fits(data: bytes) -> bool:
        try:
            return not list(check_page(root, verified_page(data, pointer, key=key, kind=kind)))
        except CorruptionError:
            return False

    head = yield Head(key)
    stored = Stored(root.topic_id, root.partition, key, 0, 0, head.etag if isinstance(head, Object) else "")
    version = yield from restored(ground.tp, stored, damage.message, fits, MAX_PAGE_BYTES)
    if version is None:
        return None
    action, data = version
    found.actions.append(action)
    content = verified_page(data, pointer, key=key, kind=kind)
    found.cache.put(pointer.identity, content)
    return content


def fill(root: Root, pages: Pages, copies: Copies) -> Steps[list[Row] | None]:
    """Return all rows of a root, those of its lost pages included; None if nothing proves the rows of a page.

    Rows of a copy, or of bundles, are accepted only if their number, bytes, records and sum are those of the pointer.
    """
    listed = yield from list_objects(root.topic_id, root.partition)
    rows = [*pages.rows, *rows_inside(root)]
    for pointer in pages.lost:
        if not pointer.size:  # all of its rows were holes
            rows.append(hole(pointer.base, pointer.next, (yield NewId()), 1, pointer.leader_epoch))
            continue
        held = yield from _rows_from_copies(pointer, root, copies)
        if held is None:

            def inside(name: SegmentName, pointer: Pointer = pointer) -> bool:
                return pointer.base <= name.base < pointer.next

            held = _chain((yield from described(root, listed.sizes, inside)), pointer)
        if held is None:
            return None
        rows += [row for row in held if row.next > root.start_offset]
    return sorted(rows)


def _rows_from_copies(pointer: Pointer, root: Root, copies: Copies) -> Steps[list[Row] | None]:
    """Return the rows of a page as a copy of the root names them, one whose own pages are whole."""
    for copy, _ in copies.roots.values():
        if copy.version >= root.version or copy.next_offset < pointer.next:
            continue
        try:
            rows = [row for row in (yield from rows_of(copy, pointer.base)) if pointer.base <= row.base < pointer.next]
        except CorruptionError:
            continue
        if _adds_up(rows, pointer):
            return rows
    return None


def _chain(found: Sequence[Row], pointer: Pointer) -> list[Row] | None:
    """Return segments side by side over the range of a page that add up to its sums."""
    waiting: list[tuple[list[Row], int]] = [([], pointer.base)]
    for _ in range(MAX_CHAINS):
        if not waiting:
            return None
        rows, at = waiting.pop()
        if at == pointer.next and _adds_up(rows, pointer):
            return rows
        waiting += [([*rows, row], row.next) for row in found if row.base == at and row.next <= pointer.next]
    return None


def _adds_up(rows: Sequence[Row], pointer: Pointer) -> bool:
    return bool(rows) and Rows.from_rows(rows).tally == Pointers.from_pointers([pointer]).tally
