"""Catalog pinned at one version. Callers read its rows by offset, by time or a piece at a time.

::

    root ── inner pointers ── leaf pointers ── rows         pages are read when an answer needs them
      ├──── leaf pointers ── rows
      └──── rows                                            of the newest segments, or all of them

All methods are steps. An answer by offset reads at most an inner page and a leaf, and none if they are cached. An
answer by time reads one leaf more for each leaf whose only matching rows are below the start. Other leaves are not
read. No answer has more than ``PIECE_ROWS`` rows, so a caller needs memory for a piece, not for a partition::

    at = 0
    while len(rows := (yield from snapshot.piece(at))):
        at = rows.end_offset
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from tiered.format.page import NO_POINTERS, Identity, PageKind, Pointer, Pointers
from tiered.format.root import Root
from tiered.format.rows import NO_ROWS, Rows
from tiered.model import Row
from tiered.remote.pages import Content, PageCache, read_pages
from tiered.store.base import Steps

PIECE_ROWS = 1024
"""Most rows of one answer."""

Choose = Callable[[Pointers, int], int]
"""Returns the first pointer, from an index on, that may have a match, otherwise their number. None: any may."""


_NOTHING: Mapping[Identity, Content] = MappingProxyType({})


class _Unread(NamedTuple):
    """Page that an answer needs and that is not in memory."""

    kind: PageKind
    pointer: Pointer


class CatalogView:
    """One version of a partition's catalog. Immutable. Only this class reads the rows of ``root``.

    ``cache``: decoded pages. The versions of one partition may share it.
    """

    def __init__(self, root: Root, cache: PageCache | None = None) -> None:
        self.root = root
        self._cache = cache if cache is not None else PageCache()
        self.version = root.version
        self.start_offset = root.start_offset
        self.next_offset = root.next_offset

    @classmethod
    def from_root(cls, root: Root, cache: PageCache | None = None) -> CatalogView:
        """Return the catalog that ``root`` describes."""
        return cls(root, cache)

    # -- totals: no row is read -----------------------------------------------------------------------------------

    @property
    def segments(self) -> int:
        """Return the number of live segments."""
        return self.root.added.segments - self.root.removed.segments

    @property
    def size_bytes(self) -> int:
        """Return the bytes of their ``.log`` objects."""
        return self.root.added.size_bytes - self.root.removed.size_bytes

    @property
    def records(self) -> int:
        """Return the number of records in live segments."""
        return self.root.added.records - self.root.removed.records

    # -- rows ----------------------------------------------------------------------------------------------------

    def piece(self, offset: int) -> Steps[Rows]:
        """Return rows in order from the one with ``offset``, or the first above it; empty after the last."""
        rows = yield from self._leaf(offset)
        return rows.slice(0, PIECE_ROWS)

    def flagged(self, flags: int, offset: int) -> Steps[Rows]:
        """Return rows that have one of ``flags``, in order, from ``offset`` on; empty after the last."""

        def choose(pointers: Pointers, index: int) -> int:
            found = np.flatnonzero(pointers.columns["row_flags"][index:] & flags)
            return index + int(found[0]) if len(found) else len(pointers)

        at = offset
        while len(rows := (yield from self._leaf(at, choose))):
            found = rows.where((rows.columns["flags"] & flags) != 0)
            if len(found):
                return found.slice(0, PIECE_ROWS)
            at = rows.end_offset
        return NO_ROWS

    def at(self, offset: int) -> Steps[Row | None]:
        """Return the row whose range includes ``offset``, None without one."""
        start = max(offset, self.start_offset)
        rows = self._reached(start)
        if isinstance(rows, _Unread):
            rows = yield from self._held(start)
        index = bisect_right(rows.ends, start)
        row = rows.row(index) if index < len(rows.ends) else None
        return row if row is not None and row.base <= offset else None

    def first(self) -> Steps[Row | None]:
        """Return the row with the smallest offsets."""
        rows = yield from self._leaf(0)
        return rows.row(0) if len(rows) else None

    def last(self) -> Steps[Row | None]:
        """Return the row with the largest offsets."""
        rows = yield from self._leaf(self.next_offset - 1)
        return rows.row(-1) if len(rows) else None

    def reaching(self, timestamp: int, offset: int = 0) -> Steps[Row | None]:
        """Return the first row that ends above ``offset`` and has a timestamp of at least ``timestamp``.

        Timestamps need not be in order.
        """

        def choose(pointers: Pointers, index: int) -> int:
            return pointers.first_reaching(timestamp, index)

        at = max(offset, self.start_offset)
        while True:
            rows = self._reached(at, choose)
            if isinstance(rows, _Unread):
                rows = yield from self._held(at, choose)
            index = rows.first_reaching(timestamp, rows.first_above(at))
            if index < len(rows.ends):
                return rows.row(index)
            if rows is self.root.rows:
                return None
            at = rows.end_offset

    def times(self) -> Steps[tuple[int, int] | None]:
        """Return the smallest and largest timestamp of all segments, None if none has any. Reads the first page only.

        A segment without records has no timestamp, and a page with such a segment has no smallest one. Such a page is
        read if it is the first one. Otherwise only its largest timestamp counts.
        """
        found: list[tuple[int, int]] = []
        at = self.start_offset
        for level, kind in ((self.root.inner, PageKind.INNER), (self.root.leaves, PageKind.LEAF)):
            for pointer in level:
                if pointer.base >= at and (found or pointer.min_ts >= 0):
                    found.append((pointer.min_ts, pointer.max_ts))
                else:
                    found += yield from self._times_from(pointer, kind)
        if len(self.root.rows):
            found.append(_times_of(self.root.rows))
        least = min((low for low, _ in found if low >= 0), default=-1)
        return (least, max(high for _, high in found)) if least >= 0 else None

    # -- down to the rows -----------------------------------------------------------------------------------------

    def _leaf(self, offset: int, choose: Choose | None = None) -> Steps[Rows]:
        """Return rows of one page, or of the root, that end above ``offset`` and the log's start; empty after the last.

        ``choose`` selects pages that may have a match.
        """
        at = max(offset, self.start_offset)
        rows = yield from self._held(at, choose)
        return rows.slice(rows.first_above(at))

    def _held(self, at: int, choose: Choose | None = None) -> Steps[Rows]:
        """Return all rows of the first page that ends above ``at`` and may have a match, or those of the root."""
        read: dict[Identity, Content] = {}  # the cache may be too small to hold them until the end
        while isinstance(rows := self._reached(at, choose, read), _Unread):
            (read[rows.pointer.identity],) = yield from read_pages(self.root, rows.kind, (rows.pointer,), self._cache)
        return rows

    def _reached(
        self, at: int, choose: Choose | None = None, read: Mapping[Identity, Content] = _NOTHING
    ) -> Rows | _Unread:
        """Return the rows of :meth:`_held` from pages in memory (cache or ``read``), or the page that is missing."""
        root = self.root
        if root.inner is not NO_POINTERS:
            inner, index = root.inner, _first(root.inner, at, choose)
            while index < len(inner.ends):
                children = self._in_memory(inner, index, read)
                if not isinstance(children, Pointers):
                    return _Unread(PageKind.INNER, inner.pointer(index))
                child = _first(children, at, choose)
                if child < len(children.ends):
                    return self._rows_of(children, child, read)
                index = index + 1 if choose is None else choose(inner, index + 1)
        if root.leaves is not NO_POINTERS:
            index = _first(root.leaves, at, choose)
            if index < len(root.leaves.ends):
                return self._rows_of(root.leaves, index, read)
        return root.rows

    def _rows_of(self, leaves: Pointers, index: int, read: Mapping[Identity, Content]) -> Rows | _Unread:
        held = self._in_memory(leaves, index, read)
        return held if isinstance(held, Rows) else _Unread(PageKind.LEAF, leaves.pointer(index))

    def _in_memory(self, pointers: Pointers, index: int, read: Mapping[Identity, Content]) -> Content | None:
        identity = pointers.identity(index)
        held = self._cache.get(identity)
        return held if held is not None else read.get(identity)

    def _children(self, pointer: Pointer) -> Steps[Pointers]:
        held = self._cache.get(pointer.identity)
        if held is None:
            (held,) = yield from read_pages(self.root, PageKind.INNER, (pointer,), self._cache)
        return held if isinstance(held, Pointers) else NO_POINTERS

    def _rows(self, pointer: Pointer) -> Steps[Rows]:
        held = self._cache.get(pointer.identity)
        if held is None:
            (held,) = yield from read_pages(self.root, PageKind.LEAF, (pointer,), self._cache)
        return held if isinstance(held, Rows) else NO_ROWS

    def _times_from(self, pointer: Pointer, kind: PageKind) -> Steps[list[tuple[int, int]]]:
        """Return the time ranges of the live part of the first page; -1 as the smallest where there is none."""
        if kind is PageKind.LEAF:
            rows = yield from self._rows(pointer)
            return [_times_of(rows.slice(rows.first_above(self.start_offset)))]
        children = yield from self._children(pointer)
        alive = list(children.slice(children.first_above(self.start_offset)))
        told = alive and alive[0].base >= self.start_offset and alive[0].min_ts >= 0
        found = [] if told or not alive else (yield from self._times_from(alive[0], PageKind.LEAF))
        return [*found, *((child.min_ts, child.max_ts) for child in (alive if told else alive[1:]))]


def _first(pointers: Pointers, at: int, choose: Choose | None) -> int:
    index = bisect_right(pointers.ends, at)
    return index if choose is None else choose(pointers, index)


def _times_of(rows: Rows) -> tuple[int, int]:
    least, known = rows.columns["min_ts"], rows.columns["min_ts"] >= 0
    return int(least[known].min()) if known.any() else -1, int(np.max(rows.columns["max_ts"]))


def rows_inside(root: Root) -> Rows:
    """Return the rows in the object ``root`` itself, for callers that show one object, not a partition."""
    return root.rows
