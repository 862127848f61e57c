"""Intents that change committed ranges: a trim raises the start of the log, a replacement exchanges rows.

Both are pure functions of the root that request the pages they must see (``plan.commit.WantedPages``). A trim
requests at most one inner page and one leaf, those with the new start or the newest row, and rewrites no page. A
replacement requests the leaves with the old rows and the pages above them, and rewrites them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiered.format.keys import FLAG_HOLE, FLAG_MAINTAINER, FLAG_STAGED, PageName, Role
from tiered.format.page import POINTER_MAINTAINER, Content, Page, PageKind, Pointer, Pointers, encode_page
from tiered.format.root import CLEANED_LIMIT, STATE_DELETING, CompactedRange, Root
from tiered.format.rows import NO_ROWS, NO_TALLY, Rows, Tally, Trash
from tiered.model import (
    TRASH_LIST,
    TRASH_MAINTAINER,
    TRASH_OBJECT,
    TRASH_PAGE,
    TRASH_ROWS,
    TRASH_STAGED,
    TRASH_TREE,
    EpochEntry,
    Row,
    TrashEntry,
)
from tiered.plan.commit import (
    MAX_APPEND_ROWS,
    Outcome,
    Reading,
    Stamp,
    WantedPages,
    fenced,
    holds_any,
    next_ts_ms,
    row_flaw,
    succeed,
)
from tiered.plan.ownership import Refusal, RefusalReason


@dataclass(frozen=True, slots=True)
class TrimIntent:
    """Rise of ``start_offset`` to ``offset``, for retention. Rows that end at or below ``offset`` become trash.

    No row is split.
    """

    offset: int

    op = "trim"

    def apply(self, root: Root, stamp: Stamp) -> Outcome | Reading[Outcome]:
        """Return the root that begins at ``offset``, or a generator that requests pages and returns that root.

        Refuse with FENCED for an outdated claim, and with NOTHING if the root begins at or above ``offset`` already.
        Refuse with OUT_OF_RANGE above ``next_offset``. Refuse with STATE while the log is being deleted: each trim
        would restart the grace period of its objects.
        """
        refusal = fenced(root, stamp)
        if refusal is not None:
            return refusal
        if root.state == STATE_DELETING:
            return Refusal(RefusalReason.STATE, f"{root.where} is {root.state}: it is deleted as a whole, not trimmed")
        if self.offset > root.next_offset:
            return Refusal(
                RefusalReason.OUT_OF_RANGE,
                f"{root.where} ends at offset {root.next_offset}: it cannot be trimmed to {self.offset}",
            )
        # mutant trim-is-clamped
        if self.offset <= root.start_offset:
            return Refusal(RefusalReason.NOTHING, f"{root.where} begins at {root.start_offset} already")
        return _now(_trim(root, stamp, self.offset), root)


def _now(reading: Reading[Outcome], root: Root) -> Outcome | Reading[Outcome]:
    """Return the outcome of ``reading`` if ``root`` has no pages to request, otherwise ``reading`` itself."""
    if len(root.inner) or len(root.leaves):
        return reading
    try:
        next(reading)
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome
    raise AssertionError("an edit of a root without pages needs a page")


def _trim(root: Root, stamp: Stamp, offset: int) -> Reading[Outcome]:
    """Return the root that begins at ``offset``. Whole pages below it become garbage; the page that contains it stays.

    Requests at most one inner page and one leaf.
    """
    garbage = Garbage(root, stamp)
    inner = root.inner.slice(root.inner.first_above(offset))
    leaves = root.leaves.slice(root.leaves.first_above(offset))
    rows = root.rows.slice(root.rows.first_above(offset))
    if offset == root.next_offset and not len(root.rows):
        yield from _all_pages(root, garbage)
    else:
        garbage.trees(root.inner.slice(0, len(root.inner) - len(inner)))
        garbage.trees(root.leaves.slice(0, len(root.leaves) - len(leaves)))
    dead = NO_TALLY
    edge = next(iter(inner or leaves), None)
    if len(inner) and edge is not None and edge.base < offset:
        (children,) = yield WantedPages(PageKind.INNER, (edge,))
        first = children.first_above(offset)
        garbage.trees(children.slice(children.first_above(root.start_offset), first))
        dead += children.slice(0, first).tally
        edge = children.pointer(first)
    if edge is not None and edge.base < offset:
        (held,) = yield WantedPages(PageKind.LEAF, (edge,))
        first = held.first_above(offset)
        if held.first_above(root.start_offset) < first:
            garbage.rows_of(edge, max(root.start_offset, edge.base), offset)
        dead += held.slice(0, first).tally
    # mutant trimmed-rows-become-garbage
    garbage.objects(root.rows.slice(0, len(root.rows) - len(rows)))
    left = inner.tally + leaves.tally + rows.tally - dead
    return succeed(
        root,
        stamp,
        TrimIntent.op,
        start_offset=offset,
        inner=inner,
        leaves=leaves,
        rows=rows,
        dead=dead,
        removed=root.removed + (root.held - root.dead - left),
        trash=garbage.trash,
        lineage=_lineage_from(root.lineage, offset),
        cleaned=tuple([entry for entry in root.cleaned if entry.end_offset > offset]),
    )


def _all_pages(root: Root, garbage: Garbage) -> Reading[None]:
    """Add every page to ``garbage``, and the objects of the newest row as the last entry of all.

    Only these objects record the producers, so garbage collection keeps them. It needs an entry of their own for that.
    So the leaf of that row is added without the objects that it names, and the leaf's other rows as a range. The inner
    page above the leaf is added alone, too.
    """
    leaves = root.leaves
    if len(leaves):
        garbage.trees(root.inner)
    else:
        garbage.trees(root.inner.slice(0, len(root.inner) - 1))
        top = root.inner.pointer(-1)
        (children,) = yield WantedPages(PageKind.INNER, (top,))
        leaves = children.slice(children.first_above(root.start_offset))
        garbage.pages([top])
    garbage.trees(leaves.slice(0, len(leaves) - 1))
    leaf = leaves.pointer(-1)
    (held,) = yield WantedPages(PageKind.LEAF, (leaf,))
    newest, low = held.row(-1), max(root.start_offset, leaf.base)
    if low < newest.base:
        garbage.rows_of(leaf, low, newest.base)
    garbage.pages([leaf])
    garbage.objects([newest])


def _lineage_from(lineage: tuple[EpochEntry, ...], offset: int) -> tuple[EpochEntry, ...]:
    """Return the lineage without the epochs that end at or below ``offset``; the newest always stays."""
    first = 0
    while first + 1 < len(lineage) and lineage[first + 1].start_offset <= offset:
        first += 1
    return lineage[first:]


@dataclass(frozen=True, slots=True)
class ReplaceIntent:
    """Replacement of ``old`` by ``rows`` over exactly the same offsets: merging, compaction, a new upload of a segment.

    The catalog must still have ``old``, adjacent and unchanged. If a trim came first, new rows that end at or below the
    start go to the trash in the same commit. ``cleaned``: the range to record as compacted, None for none.
    """

    old: tuple[Row, ...]
    rows: tuple[Row, ...]
    cleaned: CompactedRange | None = None

    op = "replace"

    def apply(self, root: Root, stamp: Stamp) -> Outcome | Reading[Outcome]:
        """Return the root with ``rows`` in place of ``old``, or a generator that requests pages and returns that root.

        Refuse with GONE if the catalog no longer has the rows ``old``. Refuse with FENCED for an outdated claim, and
        with INVALID for rows that cannot replace ``old``.
        """
        refusal = fenced(root, stamp)
        if refusal is not None:
            return refusal
        flaw = self._flaw(root, stamp)
        if flaw:
            return Refusal(RefusalReason.INVALID, f"{root.where}: {flaw}")
        # mutant replace-after-trim-aborts
        if self.old[-1].next <= root.start_offset:
            return self._gone(root, "all of it is below the start")
        return _now(self._swapped(root, stamp), root)

    def _flaw(self, root: Root, stamp: Stamp) -> str:
        """Return the first fault of this intent as text; ``""`` if it is valid."""
        if stamp.role is not Role.MAINTAINER:
            return "only a maintainer replaces rows"
        if not self.old or not self.rows or max(len(self.old), len(self.rows)) > MAX_APPEND_ROWS:
            return f"{len(self.rows)} rows for {len(self.old)}: 1 to {MAX_APPEND_ROWS} of each"
        if any(one.next != other.base for one, other in itertools.pairwise(self.old)):
            return "the rows to be replaced have a gap"
        expected = self.old[0].base
        for row in self.rows:
            flaw = row_flaw(row, expected, stamp)
            if flaw:
                return f"row {row.base}..{row.next}: {flaw}"
            if row.leader_epoch > root.leader_epoch:
                return f"row {row.base}..{row.next} has leader epoch {row.leader_epoch}, unknown here"
            expected = row.next
        if expected != self.old[-1].next:
            return f"rows up to {expected} cannot replace rows up to {self.old[-1].next}"
        named = [(row.id_hi, row.id_lo) for row in self.rows if not row.flags & FLAG_HOLE]
        taken = {(row.id_hi, row.id_lo) for row in self.old if row.size}
        if (
            len(set(named)) < len(named)
            or taken & set(named)
            or (named and (holds_any(root.rows, set(named)) or holds_any(root.trash, set(named))))
        ):
            return "an object id is used twice; every upload needs a new one"
        if self.cleaned is not None and self.cleaned.end_offset > root.next_offset:
            return f"compacted up to {self.cleaned.end_offset}, beyond the end"
        return ""

    def _gone(self, root: Root, why: str) -> Refusal:
        low, high = self.old[0].base, self.old[-1].next
        return Refusal(
            RefusalReason.GONE,
            f"{root.where}: {low}..{high} cannot be replaced: {why}",
            hint="run the same command again: it plans from the newest catalog",
        )

    def _swapped(self, root: Root, stamp: Stamp) -> Reading[Outcome]:
        start = root.start_offset
        old = [row for row in self.old if row.next > start]
        place = yield from _open_up(root, old, len(self.rows), stamp)
        at = int(np.searchsorted(place.rows.base, np.int64(old[0].base)))
        # mutant replace-is-validated
        if list(place.rows.slice(at, at + len(old))) != old:
            return self._gone(root, "the catalog holds other rows there")
        new = Rows.from_rows([row for row in self.rows if row.next > start])
        dropped = Rows.from_rows([row for row in self.rows if row.next <= start])
        whole = place.rows.slice(0, at).appended(new).appended(place.rows.slice(at + len(old)))
        garbage, pages = Garbage(root, stamp), NewPages(root, stamp)
        # mutant replaced-rows-become-garbage
        garbage.objects([*old, *dropped])
        garbage.pages([*place.old_leaves, *place.old_inner])
        changes = _close_up(root, stamp, place, whole, pages)
        return succeed(
            root,
            stamp,
            self.op,
            **changes,
            dead=root.dead - place.dead,
            added=root.added + new.tally + dropped.tally,
            removed=root.removed + Rows.from_rows(old).tally + dropped.tally,
            trash=garbage.trash,
            unwritten=pages.made,
            cleaned=_with_cleaned(root.cleaned, self.cleaned),
        )


@dataclass(frozen=True, slots=True)
class _Location:
    """Place of a replacement in the catalog. *Opened* pages and rows are those that the replacement rewrites.

    ``rows``: the rows of the opened leaves, then the opened rows of the root. ``before``, ``after``: leaves under the
    opened inner pages (and in the root, with ``in_root``) before and after the opened leaves. ``old_leaves``,
    ``old_inner``: the opened pages. ``inner_at``: their index range (end exclusive) in ``root.inner``. ``last``: no
    leaf follows the opened ones. ``tail``: number of opened rows of the root. ``dead``: total of the rows below the
    log's start, which are not in ``rows``. Without an opened leaf, ``rows`` are all rows of the root.
    """

    rows: Rows
    before: Pointers
    after: Pointers
    old_leaves: tuple[Pointer, ...]
    old_inner: tuple[Pointer, ...]
    inner_at: tuple[int, int]
    in_root: bool
    last: bool
    tail: int
    dead: Tally


def _open_up(root: Root, old: Sequence[Row], new_rows: int, stamp: Stamp) -> Reading[_Location]:
    """Read the pages with ``old``, and a neighbour if a page with the remaining rows would be too small.

    ``new_rows``: number of rows that replace ``old``.
    The neighbour of leaves is the leaf before, otherwise the next. The last leaf needs none: its rows go into the root.
    The neighbour of inner pages is the next; the root's leaves follow the last of them.
    """
    low, high, start, shape = old[0].base, old[-1].next, root.start_offset, stamp.shape
    from_inner, to_inner = root.inner.first_above(low), _first_from(root.inner, high)
    in_root = root.leaves.first_above(low) < _first_from(root.leaves, high)
    inner = tuple(root.inner.slice(from_inner, to_inner))
    children: tuple[Pointers, ...] = (yield WantedPages(PageKind.INNER, inner)) if inner else ()
    beside = _joined([*children, *([root.leaves] if in_root else [])])
    first, end = beside.first_above(low), _first_from(beside, high)
    if first == end:  # all of it in the tail
        return _Location(root.rows, _joined([]), _joined([]), (), (), (0, 0), False, True, 0, NO_TALLY)
    tail = _first_from(root.rows, high)
    count = int(beside.columns["rows"][first:end].sum()) + tail - len(old) + new_rows
    left = len(beside) - beside.first_above(start) - (end - first) + -(-count // shape.leaf_rows)
    if inner and not in_root and left - (count < shape.small_leaf) < shape.small_inner:
        if to_inner < len(root.inner):
            beyond = root.inner.pointer(to_inner)
            inner, to_inner = (*inner, beyond), to_inner + 1
            children += yield WantedPages(PageKind.INNER, (beyond,))
        else:
            in_root = True
        beside = _joined([*children, *([root.leaves] if in_root else [])])
    below = beside.first_above(start)
    dead, beside = beside.slice(0, below).tally, beside.slice(below)
    first, end = beside.first_above(low), _first_from(beside, high)
    last = end == len(beside) and to_inner == len(root.inner) and (in_root or not len(root.leaves))
    if count < shape.small_leaf and not last:
        first, end = (first - 1, end) if first else (first, min(end + 1, len(beside)))
    opened = tuple(beside.slice(first, end))
    held: tuple[Rows, ...] = yield WantedPages(PageKind.LEAF, opened)
    rows = NO_ROWS
    for one in held:
        rows = rows.appended(one)
    below = rows.first_above(start)
    dead, rows = dead + rows.slice(0, below).tally, rows.slice(below)
    return _Location(
        rows.appended(root.rows.slice(0, tail)) if tail else rows,
        beside.slice(0, first),
        beside.slice(end),
        opened,
        inner,
        (from_inner, to_inner),
        in_root,
        last,
        tail,
        dead,
    )


def _close_up(root: Root, stamp: Stamp, place: _Location, whole: Rows, pages: NewPages) -> dict[str, Any]:
    """Return the changed fields of the root, with ``whole`` in place of ``place.rows``. Add new pages to ``pages``.

    Every new leaf except the first has at least ``small_leaf`` rows, every inner page except the first
    ``small_inner`` pointers. So the root does not grow with the history of a catalog.
    """
    if not place.old_leaves:
        return {"rows": whole}
    shape, rest = stamp.shape, root.rows.slice(place.tail)
    if place.last and len(whole) < shape.small_leaf:
        below, rows = [*place.before, *place.after], whole.appended(rest)
    else:
        below, rows = [*place.before, *leaf_pages(whole, shape.leaf_rows, pages), *place.after], rest
    first, end = place.inner_at
    inner, leaves = list(root.inner.slice(0, first)), root.leaves
    if place.in_root:
        while len(below) >= shape.root_leaves:
            inner.append(pages.add(Pointers.from_pointers(below[: shape.fan_out])))
            below = below[shape.fan_out :]
        leaves = Pointers.from_pointers(below)
    else:
        inner += inner_pages(below, shape.fan_out, pages)
    return {"inner": Pointers.from_pointers([*inner, *root.inner.slice(end)]), "leaves": leaves, "rows": rows}


def _first_from(table: Pointers | Rows, offset: int) -> int:
    """Return the index of the first entry that begins at or above ``offset``."""
    return int(np.searchsorted(table.columns["base"], np.int64(offset)))


def _joined(tables: Sequence[Pointers]) -> Pointers:
    whole = Pointers.from_pointers([])
    for table in tables:
        whole = whole.appended(table)
    return whole


def _with_cleaned(ranges: tuple[CompactedRange, ...], entry: CompactedRange | None) -> tuple[CompactedRange, ...]:
    """Return ``ranges`` with ``entry``, by rising end offset.

    Beyond the limit the two lowest ranges become one, with the later horizon.
    """
    if entry is None:
        return ranges
    kept = [*(old for old in ranges if old.end_offset < entry.end_offset), entry]
    kept += [old for old in ranges if old.end_offset > entry.end_offset]
    while len(kept) > CLEANED_LIMIT:
        one, other = kept[:2]
        kept[:2] = [CompactedRange(other.end_offset, max(one.horizon_ms, other.horizon_ms))]
    return tuple(kept)


class NewPages:
    """Collector of the pages that one commit makes, in order."""

    def __init__(self, root: Root, stamp: Stamp) -> None:
        self._root, self._stamp = root, stamp
        self.made: tuple[Page, ...] = root.unwritten

    def add(self, content: Content) -> Pointer:
        """Add a page with ``content`` and return its pointer. Its name is a hash of commit id and page number."""
        number = f"{self._stamp.commit_id}/{len(self.made)}".encode()
        uid = hashlib.blake2b(number, digest_size=16).hexdigest()
        name = PageName(self._stamp.role, self._stamp.epoch, uid)
        page = encode_page(self._root.topic_id, self._root.partition, name, content)
        self.made = (*self.made, page)
        return page.pointer


def spill(root: Root, stamp: Stamp) -> Root:
    """Return ``root`` with rows, leaves and trash entries beyond ``stamp.shape`` moved into new pages.

    Call it for every commit except a claim: until a claim is known to be committed, nothing may be uploaded under its
    epoch.
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
    """Return ``trash`` with its oldest entries moved into a new page, and one entry for that page.

    The new entry has the latest removal version and time of the moved entries.
    """
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
    """Collector of the trash entries that one commit adds, in order of removal."""

    def __init__(self, root: Root, stamp: Stamp) -> None:
        self._version, self._ts_ms = root.version + 1, next_ts_ms(root, stamp)
        self._before = root.trash
        self._entries: list[TrashEntry] = []

    @property
    def trash(self) -> Trash:
        """Trash of the commit's root: that of the root before it, followed by the new entries."""
        return self._before.appended(Trash.from_entries(self._entries)) if self._entries else self._before

    def objects(self, rows: Iterable[Row]) -> None:
        """Add the ``.log`` and ``.idx`` objects of ``rows``. Rows without objects are skipped."""
        for row in rows:
            if row.size:
                kind = TRASH_OBJECT | (TRASH_MAINTAINER if row.flags & FLAG_MAINTAINER else 0)
                kind |= TRASH_STAGED if row.flags & FLAG_STAGED else 0
                self._add(row.id_hi, row.id_lo, row.base, row.claim_epoch, kind)

    def trees(self, pointers: Iterable[Pointer]) -> None:
        """Add the pages of ``pointers``, and all pages and objects that they name."""
        for pointer in pointers:
            self._page(pointer, TRASH_TREE)

    def pages(self, pointers: Iterable[Pointer]) -> None:
        """Add the pages of ``pointers``, but not the objects that they name: newer pages name those."""
        for pointer in pointers:
            self._page(pointer, TRASH_PAGE)

    def rows_of(self, pointer: Pointer, low: int, high: int) -> None:
        """Add the objects of a leaf page's rows that end above ``low`` and at or below ``high``. The page stays."""
        self._page(pointer, TRASH_ROWS, low, high)

    def _page(self, pointer: Pointer, kind: int, base: int | None = None, end: int = 0) -> None:
        letter = TRASH_MAINTAINER if pointer.flags & POINTER_MAINTAINER else 0
        self._add(
            pointer.id_hi, pointer.id_lo, pointer.base if base is None else base, pointer.epoch, kind | letter, end
        )

    def _add(self, high: int, low: int, base: int, epoch: int, kind: int, end: int = 0) -> None:  # noqa: PLR0917
        self._entries.append(TrashEntry(high, low, base, self._version, self._ts_ms, epoch, kind, end))


def leaf_pages(rows: Rows, shape_rows: int, pages: NewPages) -> list[Pointer]:
    """Add leaf pages of at most ``shape_rows`` rows, of about equal size, to ``pages``. Return their pointers."""
    return [pages.add(rows.slice(start, end)) for start, end in pieces(len(rows), shape_rows)]


def inner_pages(pointers: Sequence[Pointer], most: int, pages: NewPages) -> list[Pointer]:
    """Add inner pages of at most ``most`` leaf pointers, of about equal size, to ``pages``. Return their pointers."""
    table = Pointers.from_pointers(pointers)
    return [pages.add(table.slice(start, end)) for start, end in pieces(len(table), most)]


def pieces(count: int, most: int) -> list[tuple[int, int]]:
    """Return the fewest ranges (start, exclusive end) of at most ``most`` items that cover ``count`` items, in order.

    Their sizes differ by at most 1.
    """
    number = -(-count // most)
    edges = [count * at // number for at in range(number + 1)] if number else [0]
    return list(itertools.pairwise(edges))
