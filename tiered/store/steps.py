"""Steps of general use: listings to their end, deletions of many keys, and several steps at once by one driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tiered.errors import ConfigError, TieredError
from tiered.store.base import (
    LIST_KEYS,
    MAX_DELETE_KEYS,
    Backoff,
    Blocking,
    Delete,
    Deleted,
    List,
    ListEntry,
    ListPage,
    ListUploads,
    ListVersions,
    Now,
    ObjectVersion,
    Steps,
    StoreRequest,
    Together,
    UnfinishedUpload,
    UploadPage,
    Versions,
)

T = TypeVar("T")


def blocking(call: Callable[[], T]) -> Steps[T]:
    """Run ``call``, which may wait for this machine's disk, and return its result."""
    found: T = yield Blocking(call)
    return found


def list_unfinished(prefix: str) -> Steps[tuple[list[UnfinishedUpload], int]]:
    """Return all unfinished multipart uploads below ``prefix``, and the store's clock at the last page.

    The clock is in ms, 0 if unknown. Raises ConfigError if the store's pages do not advance.
    """
    found: list[UnfinishedUpload] = []
    after: tuple[str, str] | None = ("", "")
    page, everywhere = UploadPage(()), False
    while after is not None:
        page = yield ListUploads(prefix, after, everywhere)
        if page.by_key:
            if everywhere:
                raise _no_advance(prefix, after[0], "key-marker")
            everywhere = True
            continue
        # Ids of one key have no order of their own: the same marker again is what does not advance.
        if page.after is not None and (page.after == after or page.after[0] < after[0]):
            raise _no_advance(prefix, after[0], "key-marker")
        found += page.entries
        after = page.after
    return found, page.date_ms


def list_page(prefix: str, after: str = "", limit: int = LIST_KEYS) -> Steps[ListPage]:
    """Return one page: at most ``limit`` keys after ``after`` that begin with ``prefix``.

    Raises ConfigError if the store's pages do not advance.
    """
    request = List(prefix, start_after=after, limit=limit)
    return advanced(request, (yield request))


def advanced(request: List, page: ListPage) -> ListPage:
    """Return ``page`` without keys at or before ``request.start_after``.

    Raises ConfigError if more pages follow and no key is left: the listing would never end.
    """
    entries = tuple([entry for entry in page.entries if entry.key > request.start_after])
    if page.more and not entries:
        raise _no_advance(request.prefix, request.start_after, "start-after")
    return page if len(entries) == len(page.entries) else replace(page, entries=entries)


def _no_advance(prefix: str, after: str, parameter: str) -> ConfigError:
    return ConfigError(
        f"the listing of {prefix!r} does not advance: the store reports more keys after {after!r}, but returns none",
        hint=f"upgrade the store or its proxy, which ignores {parameter}, or use another store",
    )


def list_versions(key: str) -> Steps[list[ObjectVersion]]:
    """Return the versions of ``key`` that the store keeps, newest first. Empty for a store without versions.

    Raises ConfigError if the store's pages do not advance.
    """
    found: list[ObjectVersion] = []
    after: str | None = ""
    while after is not None:
        page: Versions = yield ListVersions(key, after)
        if page.after and page.after == after:
            raise _no_advance(key, after, "version-id-marker")
        found += page.entries
        after = page.after
    return found


class Listing:
    """Paged listing of the keys after ``after`` that begin with ``prefix``, in order.

    ``more``: there may be another page. ``date_ms``: the store's clock at the last page; this machine's if the store
    gives none.
    """

    def __init__(self, prefix: str, after: str = "") -> None:
        self.prefix, self.after = prefix, after
        self.more = True
        self.date_ms = 0

    def page(self) -> Steps[tuple[ListEntry, ...]]:
        """Return the next page. Raises ConfigError if the store's pages do not advance."""
        page = yield from list_page(self.prefix, self.after)
        self.date_ms = page.date_ms or (yield Now()).now_ms
        self.more = page.more and bool(page.entries)
        self.after = page.entries[-1].key if page.entries else self.after
        return page.entries

    def age_ms(self, entry: ListEntry) -> int:
        """Return the age of an entry of the last page, by the store's clock."""
        return self.date_ms - entry.last_modified_ms


def list_all(prefix: str, after: str = "") -> Steps[list[ListEntry]]:
    """Return every key after ``after`` that begins with ``prefix``, in order. For small listings only."""
    found: list[ListEntry] = []
    listing = Listing(prefix, after)
    while listing.more:
        found += yield from listing.page()
    return found


def delete_keys(keys: Sequence[str]) -> Steps[list[tuple[str, str]]]:
    """Delete keys, by as few requests as possible. Return the keys that the store refused to delete, with reasons."""
    failed: list[tuple[str, str]] = []
    for at in range(0, len(keys), MAX_DELETE_KEYS):
        outcome: Deleted = yield Delete(tuple(keys[at : at + MAX_DELETE_KEYS]))
        failed += outcome.failed
    return failed


AT_ONCE = 16
"""Steps of a long list that run at the same time."""


def in_turns(several: Sequence[Steps[T]]) -> Steps[list[T | TieredError]]:
    """Run any number of steps in groups of ``AT_ONCE``, one group after the other.

    Return for each, in order, its result or the error that it raised.
    """
    ends: list[T | TieredError] = []
    for first in range(0, len(several), AT_ONCE):
        ends += yield from side_by_side(several[first : first + AT_ONCE])
    return ends


def side_by_side(several: Sequence[Steps[T]]) -> Steps[list[T | TieredError]]:
    """Run several steps concurrently. Return for each, in order, its result or the error that it raised.

    Requests for which they wait at the same time are sent ``Together``. When only waits are left, the longest is waited
    once for all of them. The caller bounds the number of steps.
    """
    ends: dict[int, T | TieredError] = {}
    asked: dict[int, Any] = {}

    def resume(number: int, outcome: Any) -> None:
        steps = several[number]
        asked.pop(number, None)
        try:
            asked[number] = steps.throw(outcome) if isinstance(outcome, TieredError) else steps.send(outcome)
        except StopIteration as stop:
            ends[number] = stop.value
        except TieredError as error:
            ends[number] = error

    try:
        for number in range(len(several)):
            resume(number, None)
        while asked:
            stored = {number: each for number, each in asked.items() if isinstance(each, StoreRequest)}
            waits = {number: each for number, each in asked.items() if isinstance(each, Backoff)}
            own = [(number, each) for number, each in asked.items() if number not in stored and number not in waits]
            for number, request in own:  # a clock, an id, the disk, requests that are several already
                try:
                    outcome = yield request
                except TieredError as error:
                    outcome = error
                resume(number, outcome)
            if own:
                continue  # until each waits for the store or for time
            if stored:
                answers = yield Together(tuple(stored.values()), errors=True)
                for number, answer in zip(tuple(stored), answers, strict=True):
                    resume(number, answer)
            else:
                yield max(waits.values(), key=lambda wait: wait.attempt)
                for number in tuple(waits):
                    resume(number, None)
        return [ends[number] for number in range(len(several))]
    finally:
        for steps in several:
            steps.close()


def results_of(ends: Sequence[T | TieredError]) -> list[T]:
    """Return ``ends`` if there is no error among them. Otherwise raise the first error."""
    for end in ends:
        if isinstance(end, TieredError):
            raise end
    return [end for end in ends if not isinstance(end, TieredError)]
