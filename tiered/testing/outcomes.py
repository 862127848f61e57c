"""Outcomes of a store as the values that a test compares, with errors that show both sides."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tiered.store.base import (
    List,
    Object,
    Outcome,
    Page,
    PartStored,
    PutResult,
    PutStatus,
    Store,
    UploadStarted,
)


def same(actual: Any, expected: Any) -> None:
    """``actual == expected``, told as values."""
    if actual != expected:
        raise AssertionError(f"{actual!r} is not {expected!r}")


def true(condition: bool, what: str) -> None:
    """``condition``, told in words."""
    if not condition:
        raise AssertionError(f"not so: {what}")


def landed(outcome: Outcome) -> PutResult:
    """A PUT that landed."""
    if isinstance(outcome, PutResult) and outcome.status is PutStatus.LANDED:
        return outcome
    raise AssertionError(f"{outcome!r} did not land")


def status(outcome: Outcome) -> PutStatus:
    """What became of a PUT."""
    if isinstance(outcome, PutResult):
        return outcome.status
    raise AssertionError(f"{outcome!r} is not the result of a PUT")


def found(outcome: Outcome) -> Object:
    """An object."""
    if isinstance(outcome, Object):
        return outcome
    raise AssertionError(f"{outcome!r} is not an object")


def paged(outcome: Outcome) -> Page:
    """A page of a listing."""
    if isinstance(outcome, Page):
        return outcome
    raise AssertionError(f"{outcome!r} is not a page")


def started(outcome: Outcome) -> str:
    """The id of a multipart upload."""
    if isinstance(outcome, UploadStarted):
        return outcome.upload_id
    raise AssertionError(f"{outcome!r} is not the start of an upload")


def part(outcome: Outcome) -> PartStored:
    """A stored part."""
    if isinstance(outcome, PartStored):
        return outcome
    raise AssertionError(f"{outcome!r} is not a part")


def listed(store: Store, prefix: str = "", limit: int = 1000) -> list[str]:
    """All keys, page by page, in the order of the store."""
    keys: list[str] = []
    while True:
        page = paged(store.execute(List(prefix, keys[-1] if keys else "", limit)))
        keys.extend(entry.key for entry in page.entries)
        if not page.more:
            return keys
        true(bool(page.entries), "a page that is not the last has entries")


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """Runs all calls on threads that start together; returns their results in order."""
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        gate.wait()
        return call()

    with ThreadPoolExecutor(max_workers=len(calls)) as pool:
        return [future.result() for future in [pool.submit(run, call) for call in calls]]
