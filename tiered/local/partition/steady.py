"""Reads that go on while a cleaner replaces the segments under them: from the same offset, over a fresh view."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from tiered.clock import Clock
from tiered.errors import CorruptionError, NotFoundError, OffsetOutOfRangeError
from tiered.format.header import read_header
from tiered.local.disk.files import Files
from tiered.local.segment.reading import View, read_batches

T = TypeVar("T")

FRESH_VIEWS = 3
"""How often a read that fails starts over without having read anything in between: then it is no cleaner's doing."""

PATIENCE_TRIES = 100
"""How often another process's directory is looked at while it exchanges segments, which takes milliseconds."""

PATIENCE_SECONDS = 0.02
"""Between two looks."""

_MOVED = (OffsetOutOfRangeError, CorruptionError, NotFoundError)
"""NotFoundError: a file was renamed, or is gone, between its name was asked for and it was opened."""


def patient_view(view: Callable[[], View], clock: Clock) -> View:
    """The view of a directory that another process writes, once it holds still. NotFoundError if it never does."""
    for _ in range(PATIENCE_TRIES):
        try:
            return view()
        except NotFoundError:
            clock.sleep(PATIENCE_SECONDS)
    return view()


def steadily(view: Callable[[], View], work: Callable[[View], T]) -> T:
    """The result of ``work`` over a view, over a fresh one if segments were replaced meanwhile."""
    over = view()
    for _ in range(FRESH_VIEWS):
        try:
            return work(over)
        except _MOVED as error:
            before, over = over, view()
            if isinstance(error, CorruptionError) and not _moved(before, over):
                raise
    return work(over)


def _moved(before: View, after: View) -> bool:
    """Whether segments were replaced or cut in between; if not, damage is damage.

    To start over behind the last batch would pass by what a base offset that rotted hid.
    """
    if len(after.extents) < len(before.extents):
        return True
    pairs = zip(before.extents, after.extents, strict=False)
    return any(a.segment is not b.segment or a.size_bytes > b.size_bytes for a, b in pairs)


def read_steadily(
    files: Files,
    view: Callable[[], View],
    start_offset: int,
    end_offset: int | None,
    *,
    max_bytes: int | None,
    verify: bool,
    buffer_bytes: int,
) -> Iterator[memoryview]:
    """As :func:`~tiered.local.segment.reading.read_batches` to the first view's end; OffsetOutOfRangeError early."""
    first = view()
    end = first.end_offset if end_offset is None else min(end_offset, first.end_offset)

    def batches(over: View, start: int) -> Iterator[memoryview]:
        return read_batches(files, over, start, end, max_bytes=max_bytes, verify=verify, buffer_bytes=buffer_bytes)

    return _continued(batches, view, first, batches(first, start_offset), start_offset, max_bytes=max_bytes)


def _continued(
    batches: Callable[[View, int], Iterator[memoryview]],
    view: Callable[[], View],
    over: View,
    reading: Iterator[memoryview],
    wanted: int,
    *,
    max_bytes: int | None,
) -> Iterator[memoryview]:
    given = failures = 0
    while True:
        latest: memoryview | None = None
        try:
            for batch in reading:
                if max_bytes is not None and given and given + len(batch) > max_bytes:
                    return
                given += len(batch)
                latest, failures = batch, 0
                yield batch
            return
        except _MOVED as error:
            failures += 1
            before, over = over, view()
            if failures > FRESH_VIEWS or (isinstance(error, CorruptionError) and not _moved(before, over)):
                raise
        wanted = wanted if latest is None else _behind(latest)
        reading = batches(over, wanted)


def _behind(batch: memoryview) -> int:
    return read_header(batch).next_offset
