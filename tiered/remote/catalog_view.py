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

Pages are immutable and their names are never reused, so a cached page never gets stale. A damaged page is read a second
time, which helps if the transfer damaged it. A missing page was deleted since the root was read, or is lost: callers
that can read a newer root look there (``PageGone``).
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np

from tiered.errors import CommitUnknownError, CorruptionError, RemoteUnavailableError
from tiered.format.page import MAX_PAGE_BYTES, NO_POINTERS, Identity, PageKind, Pointer, Pointers, verified_page
from tiered.format.root import Root
from tiered.format.rows import NO_ROWS, Rows
from tiered.model import Row
from tiered.plan.commit import Reading
from tiered.plan.invariants import check_page
from tiered.remote.conditional_put import Deadline, conditional_put
from tiered.remote.fetch import Cache, SegmentGone
from tiered.store.base import ABSENT, Get, Missing, Object, Put, Steps, Together

PAGE_CACHE_BYTES = 8 * 1024 * 1024
"""Most bytes of a :class:`PageCache`: about 70 leaves."""
PAGES_TOGETHER = 16
"""Pages requested in one group."""

T = TypeVar("T")
Content = Rows | Pointers


class PageGone(SegmentGone, CorruptionError):
    """Error for a missing page that a root names. ``row`` stands for all rows of the page."""

    def __init__(self, root: Root, pointer: Pointer) -> None:
        key = root.page_key(pointer)
        CorruptionError.__init__(
            self,
            f"{root.where}: its page {key} (offsets {pointer.base} to {pointer.next}) is gone",
            path_or_key=key,
            offset=pointer.base,
            hint=f"`tiered repair {root.topic}:{root.partition} --dry-run` shows its repair; nothing was changed",
        )
        self.key = key
        self.row = Row(pointer.base, pointer.next, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1)


class PageCache(Cache[Identity, Content]):
    """Cache of decoded, verified pages. Keys are the identities in their pointers."""

    def __init__(self, max_bytes: int = PAGE_CACHE_BYTES) -> None:
        super().__init__(max_bytes, attrgetter("nbytes"))


def read_pages(root: Root, kind: PageKind, pointers: Sequence[Pointer], cache: PageCache) -> Steps[tuple[Content, ...]]:
    """Return the contents of the pages ``pointers`` of ``root``, in order, from ``cache`` or the bucket.

    ``kind``: level of the pages. Raises PageGone for a missing page, CorruptionError for one that is also damaged in a
    second read.
    """
    # A damaged root may name a page twice, as two kinds: reading it as the wanted kind reports the damage.
    held_as = Pointers if kind is PageKind.INNER else Rows
    found: dict[Pointer, Content] = {
        pointer: held for pointer in pointers if isinstance(held := cache.get(pointer.identity), held_as)
    }
    missing = [pointer for pointer in pointers if pointer not in found]
    for at in range(0, len(missing), PAGES_TOGETHER):
        group = missing[at : at + PAGES_TOGETHER]
        gets = [Get(root.page_key(pointer), max_bytes=MAX_PAGE_BYTES) for pointer in group]
        answers = (yield Together(tuple(gets))) if len(gets) > 1 else ((yield gets[0]),)
        for pointer, get, got in zip(group, gets, answers, strict=True):
            try:
                content = _verified(root, kind, pointer, got)
            except PageGone:
                raise
            except CorruptionError:
                content = _verified(root, kind, pointer, (yield get))
            found[pointer] = content
            cache.put(pointer.identity, content)
    return tuple([found[pointer] for pointer in pointers])


def _verified(root: Root, kind: PageKind, pointer: Pointer, got: object) -> Content:
    if isinstance(got, Missing):
        raise PageGone(root, pointer)
    if not isinstance(got, Object):
        raise TypeError(f"a GET gave {got!r}")
    key = root.page_key(pointer)
    content = verified_page(got.data, pointer, key=key, kind=kind)
    for violation in check_page(root, content):
        raise CorruptionError(f"{key}: {violation}", path_or_key=key, offset=pointer.base)
    return content


def with_pages(reading: Reading[T], root: Root, cache: PageCache) -> Steps[T]:
    """Run ``reading``, a pure function that asks for pages of ``root``, and return its result.

    ``cache``: cache of decoded pages. Raises PageGone for a missing page, CorruptionError for a damaged one.
    """
    try:
        wanted = next(reading)
        while True:
            wanted = reading.send((yield from read_pages(root, wanted.kind, wanted.pointers, cache)))
    except StopIteration as stop:
        value: T = stop.value
        return value


def store_pages(root: Root, deadline: Deadline) -> Steps[Root]:
    """Store the pages of ``root`` that are not stored yet. Return the root that may be put now.

    Names are never used twice, so an existing page was stored by an earlier attempt of this call. Raises
    RemoteUnavailableError if a page was not acknowledged: no root names it yet, so nothing was committed.
    """
    for page in root.unwritten:
        try:
            yield from conditional_put(
                Put(page.key, page.body, ABSENT, page.pointer.crc), deadline, f"{root.where}, a page"
            )
        except CommitUnknownError as error:
            raise RemoteUnavailableError(f"{error.message}; nothing was committed", hint="try again") from error
    return dataclasses.replace(root, unwritten=()) if root.unwritten else root


PIECE_ROWS = 1024
"""Most rows of one answer."""

Choose = Callable[[Pointers, int], int]
"""Returns the index of the first pointer, from a given index on, that may have a match.

Without such a pointer it returns their number. None in place of this function: each pointer may have a match.
"""


_NOTHING: Mapping[Identity, Content] = MappingProxyType({})


class _Unread(NamedTuple):
    """Page that an answer needs and that is not in memory."""

    kind: PageKind
    pointer: Pointer


class CatalogView:
    """One version of a partition's catalog, ``root``. Immutable. Only this class reads the rows of a root.

    ``cache``: cache of decoded pages, which the versions of one partition may share.
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
        """Number of segments in this version of the catalog."""
        return self.root.added.segments - self.root.removed.segments

    @property
    def size_bytes(self) -> int:
        """Bytes of the ``.log`` objects of the segments in this version of the catalog."""
        return self.root.added.size_bytes - self.root.removed.size_bytes

    @property
    def records(self) -> int:
        """Number of records in the segments of this version of the catalog."""
        return self.root.added.records - self.root.removed.records

    # -- rows ----------------------------------------------------------------------------------------------------

    def piece(self, offset: int) -> Steps[Rows]:
        """Return at most ``PIECE_ROWS`` rows in order, from the row that contains ``offset``, or the first above it.

        Return no rows only after the last one. The next piece begins at ``end_offset`` of the rows.
        """
        rows = yield from self._leaf(offset)
        return rows.slice(0, PIECE_ROWS)

    def flagged(self, flags: int, offset: int) -> Steps[Rows]:
        """Return at most ``PIECE_ROWS`` rows from ``offset`` on that have at least one bit of ``flags`` set, in order.

        No rows: there are no more of them. Otherwise continue at ``end_offset`` of the rows.
        """

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
        """Return the row whose range includes ``offset``, None if there is none."""
        start = max(offset, self.start_offset)
        rows = self._reached(start)
        if isinstance(rows, _Unread):
            rows = yield from self._held(start)
        index = bisect_right(rows.ends, start)
        row = rows.row(index) if index < len(rows.ends) else None
        return row if row is not None and row.base <= offset else None

    def first(self) -> Steps[Row | None]:
        """Return the row with the smallest offsets, None if there are no rows."""
        rows = yield from self._leaf(0)
        return rows.row(0) if len(rows) else None

    def last(self) -> Steps[Row | None]:
        """Return the row with the largest offsets, None if there are no rows."""
        rows = yield from self._leaf(self.next_offset - 1)
        return rows.row(-1) if len(rows) else None

    def reaching(self, timestamp: int, offset: int = 0) -> Steps[Row | None]:
        """Return the first row that ends above ``offset`` and has a timestamp of at least ``timestamp``.

        Return None without such a row. Timestamps need not be in order.
        """

        def choose(pointers: Pointers, index: int) -> int:
            return pointers.first_with_timestamp(timestamp, index)

        at = max(offset, self.start_offset)
        while True:
            rows = self._reached(at, choose)
            if isinstance(rows, _Unread):
                rows = yield from self._held(at, choose)
            index = rows.first_with_timestamp(timestamp, rows.first_above(at))
            if index < len(rows.ends):
                return rows.row(index)
            if rows is self.root.rows:
                return None
            at = rows.end_offset

    def times(self) -> Steps[tuple[int, int] | None]:
        """Return the least timestamp of the first segments, and the greatest of all; None if no segment has one."""
        at = self.start_offset
        while len(rows := (yield from self.piece(at))):
            known = rows.columns["min_ts"][rows.columns["min_ts"] >= 0]
            if len(known):
                tables = [table for table in (self.root.inner, self.root.leaves, self.root.rows) if len(table)]
                return int(known.min()), max(int(table.columns["max_ts"].max()) for table in tables)
            at = rows.end_offset
        return None

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
        """Return all rows of the first page that ends above ``at`` and may have a match.

        After the last page, return the root's rows. If such a page is neither in ``read`` nor in the cache, return the
        page to read next. ``choose``: selects pages that may have a match; None: each page may.
        """
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


def _first(pointers: Pointers, at: int, choose: Choose | None) -> int:
    index = bisect_right(pointers.ends, at)
    return index if choose is None else choose(pointers, index)


def rows_inside(root: Root) -> Rows:
    """Return the rows in the root object itself, without those in pages. For callers that show one object."""
    return root.rows
