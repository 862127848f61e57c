"""Reads of the pages that a root names: concurrent GETs, verification of each page, a bounded cache.

Pages are immutable and their names are never reused, so a cached page never gets stale. A damaged page is read a second
time, which helps if the transfer damaged it. A missing page was deleted since the root was read, or is lost: callers
that can read a newer root look there (``PageGone``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from operator import attrgetter
from typing import TypeVar

from tiered.errors import CommitUnknownError, CorruptionError, RemoteUnavailableError
from tiered.format.page import MAX_PAGE_BYTES, Identity, PageKind, Pointer, Pointers, verified_page
from tiered.format.root import Root
from tiered.format.rows import Rows
from tiered.model import Row
from tiered.plan.commit import Reading
from tiered.plan.invariants import check_page
from tiered.remote.cache import Cache
from tiered.remote.conditional_put import Deadline, conditional_put
from tiered.remote.fetch import SegmentGone
from tiered.store.base import ABSENT, Get, Missing, Object, Put, Steps, Together

PAGE_CACHE_BYTES = 8 * 1024 * 1024
"""Most bytes of a :class:`PageCache`: about 70 leaves."""
PAGES_TOGETHER = 16
"""Pages requested in one group."""

T = TypeVar("T")
Content = Rows | Pointers


class PageGone(SegmentGone, CorruptionError):
    """Missing page that a root names. Its rows count as one."""

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
    """Decoded, verified pages, by the identity in their pointers."""

    def __init__(self, max_bytes: int = PAGE_CACHE_BYTES) -> None:
        super().__init__(max_bytes, attrgetter("nbytes"))


def read_pages(root: Root, kind: PageKind, pointers: Sequence[Pointer], cache: PageCache) -> Steps[tuple[Content, ...]]:
    """Return the contents of pages that ``root`` names, in order. Raises PageGone, CorruptionError."""
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
    """Run a pure function that asks for pages of ``root``, and return its result. Raises as :func:`read_pages`."""
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
    RemoteUnavailableError: no root names a page before it is acknowledged, so nothing was committed.
    """
    for page in root.unwritten:
        try:
            yield from conditional_put(
                Put(page.key, page.body, ABSENT, page.pointer.crc), deadline, f"{root.where}, a page"
            )
        except CommitUnknownError as error:
            raise RemoteUnavailableError(f"{error.message}; nothing was committed", hint="try again") from error
    return dataclasses.replace(root, unwritten=()) if root.unwritten else root
