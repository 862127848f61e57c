"""Reads by offset and by time over the segments of one partition, as they stood when the read began.

A read goes on while a cleaner replaces the segments under it: from the same offset, over a fresh view (``steadily``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from tiered.clock import Clock
from tiered.errors import CorruptionError, NotFoundError, OffsetOutOfRangeError
from tiered.format.batch import decode_records
from tiered.format.header import read_header
from tiered.format.walk import Offsets, Span
from tiered.local.disk.files import Files
from tiered.local.segment.indexes import SegmentIndexes
from tiered.local.segment.scan import BUFFER_BYTES, LogFile
from tiered.model import AbortedTxn, TopicPartition

_BASE = attrgetter("base_offset")

T = TypeVar("T")
FRESH_VIEWS = 3
"""How often a read that fails starts over without having read anything in between: then it is no cleaner's doing."""

PATIENCE_TRIES = 100
"""How often another process's directory is looked at while it exchanges segments, which takes milliseconds."""

PATIENCE_SECONDS = 0.02
"""Between two looks."""

_MOVED = (OffsetOutOfRangeError, CorruptionError, NotFoundError)
"""NotFoundError: a file was renamed, or is gone, between its name was asked for and it was opened."""


class Readable(Protocol):
    """What a read needs of a segment; sealed, active and foreign ones have it."""

    @property
    def base_offset(self) -> int: ...
    @property
    def path(self) -> Path: ...
    @property
    def lookup(self) -> SegmentIndexes: ...
    def aborted_txns(self) -> list[AbortedTxn]: ...


class Extent(NamedTuple):
    """One segment in a view: offsets below ``end_offset``, bytes below ``size_bytes``."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int | None  # None: ask the index
    segment: Readable
    reach: int = -1  # its batches are known to have reached this offset

    def walk(
        self, log: LogFile, position: int, *, dense: bool, buffer_bytes: int = BUFFER_BYTES
    ) -> Iterator[tuple[Span, memoryview]]:
        """Its batches from ``position`` on: all of them in their place, or CorruptionError (``LogFile.segment``)."""
        reach = self.end_offset if dense else self.reach
        offsets = self.offsets
        return log.segment(position, self.size_bytes, offsets, dense=dense, reach=reach, buffer_bytes=buffer_bytes)

    @property
    def offsets(self) -> Offsets:
        """Which offsets its batches may have."""
        return Offsets(self.base_offset, self.end_offset)

    def seek(self, log: LogFile, offset: int) -> int:
        """Where to scan from to find ``offset``."""
        return self.segment.lookup.seek(log, offset, self.size_bytes, self.offsets)

    def seek_time(self, log: LogFile, timestamp: int, start_offset: int) -> int:
        """Where to scan from to find the first record from ``timestamp`` and ``start_offset`` on."""
        lookup = self.segment.lookup
        if lookup.damaged:  # a batch that is not indexed may be the one: the scan meets it, or finds a record before
            return 0
        return lookup.seek_time(log, timestamp, start_offset, self.size_bytes, self.offsets)


class View(NamedTuple):
    """What a reader sees: extents ascending, offsets ``start_offset`` to ``end_offset`` (exclusive).

    ``dense``: every offset has a record, so that a missing one is damage and not the work of compaction.
    """

    tp: TopicPartition
    start_offset: int
    end_offset: int
    extents: tuple[Extent, ...]
    dense: bool


def read_batches(
    files: Files,
    view: View,
    start_offset: int,
    end_offset: int | None = None,
    *,
    max_bytes: int | None = None,
    verify: bool = True,
    buffer_bytes: int = BUFFER_BYTES,
) -> Iterator[memoryview]:
    """Whole raw batches from the one that holds ``start_offset`` (or the first after a gap) to below ``end_offset``.

    Each view is over bytes of its own and stays valid. At least one batch comes whatever ``max_bytes`` says. Raises
    OffsetOutOfRangeError at once; CorruptionError, with path, position and offset, when the damage is reached.
    """
    if not view.start_offset <= start_offset <= view.end_offset:
        raise out_of_range(view, start_offset)
    end = view.end_offset if end_offset is None else min(end_offset, view.end_offset)
    return _batches(files, view, start_offset, end, max_bytes, verify, buffer_bytes)


def out_of_range(view: View, offset: int) -> OffsetOutOfRangeError:
    """The error for an offset that this disk does not hold."""
    return OffsetOutOfRangeError(
        f"{view.tp}: offset {offset} is outside {view.start_offset} to {view.end_offset} on this disk",
        requested=offset,
        earliest=view.start_offset,
        latest=view.end_offset,
    )


def _batches(  # noqa: PLR0917 - the private half of read_batches, in its order
    files: Files, view: View, start: int, end: int, max_bytes: int | None, verify: bool, buffer_bytes: int
) -> Iterator[memoryview]:
    wanted = start
    given = 0
    first = max(bisect_right(view.extents, start, key=_BASE) - 1, 0)
    for extent in view.extents[first:]:
        if wanted >= end or extent.base_offset >= end:
            return
        if extent.end_offset <= wanted:
            continue
        with open_extent(files, view, extent, wanted) as log:
            position, beyond = extent.seek(log, wanted), False
            for span, batch in extent.walk(log, position, dense=view.dense, buffer_bytes=buffer_bytes):
                if beyond:
                    return
                if span.last_offset < wanted:
                    continue
                if view.dense and span.base_offset > wanted:
                    raise log.damage(span.position, f"offsets {wanted} to {span.base_offset} are missing", wanted)
                if span.base_offset >= end:
                    beyond = True  # offsets are left out up to the end, or this one rotted: the next batch tells
                    continue
                if verify:
                    log.verify(span, batch)
                if max_bytes is not None and given and given + span.size > max_bytes:
                    return
                yield memoryview(bytes(batch))
                given += span.size
                wanted = span.last_offset + 1
                if wanted >= end:
                    return
            if beyond:
                return
        wanted = max(wanted, extent.end_offset)


def offset_for_time(files: Files, view: View, timestamp: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record at or after ``timestamp``, by offset; None if there is none.

    Kafka's algorithm, exact with out-of-order timestamps; but where Kafka gives up when the chosen
    segment has nothing above the log start, later segments are tried.

    Kafka's rule: docs/kafka-semantics.md#offset-by-timestamp.
    """
    for extent in view.extents:
        if extent.end_offset <= max(view.start_offset, extent.base_offset):
            continue
        try:
            largest = extent.segment.lookup.last_time[0] if extent.max_timestamp is None else extent.max_timestamp
        except NotFoundError:
            raise out_of_range(view, extent.base_offset) from None
        if largest < timestamp and not extent.segment.lookup.damaged:
            continue
        with open_extent(files, view, extent, extent.base_offset) as log:
            position = extent.seek_time(log, timestamp, view.start_offset)
            for span, batch in extent.walk(log, position, dense=view.dense):
                if span.base_offset >= view.end_offset:
                    return None
                if span.last_offset < view.start_offset or log.verify(span, batch).max_timestamp < timestamp:
                    continue
                for record in decode_records(batch):
                    if record.timestamp >= timestamp and record.offset >= view.start_offset:
                        return record.offset, record.timestamp
    return None


def largest_timestamp(files: Files, view: View) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record with the largest timestamp of all (Kafka's -3); None without any."""
    best: tuple[int, Extent] | None = None
    for extent in view.extents:
        if extent.end_offset > max(view.start_offset, extent.base_offset):
            largest = extent.segment.lookup.last_time[0] if extent.max_timestamp is None else extent.max_timestamp
            if extent.segment.lookup.damaged:
                with open_extent(files, view, extent, extent.base_offset) as log:
                    for span, batch in extent.walk(log, 0, dense=view.dense):
                        log.verify(span, batch)  # says what is wrong: the largest of all is not known
            if largest >= 0 and (best is None or largest > best[0]):
                best = largest, extent
    if best is None:
        return None
    wanted, extent = best
    with open_extent(files, view, extent, extent.base_offset) as log:
        for span, batch in extent.walk(log, extent.seek_time(log, wanted - 1, 0), dense=view.dense):
            if log.verify(span, batch).max_timestamp == wanted:
                for record in decode_records(batch):
                    if record.timestamp == wanted:
                        return record.offset, wanted
    return None


def open_extent(files: Files, view: View, extent: Extent, offset: int) -> LogFile:
    """The file, or OffsetOutOfRangeError if retention took it since the view was taken."""
    path = extent.segment.path
    while True:
        try:
            log = LogFile(files, path)
            if extent.max_timestamp is None and log.size() != extent.size_bytes:
                log.close()
                raise log.damage(0, f"it is not the file of {extent.size_bytes} bytes that was here", offset)
            return log
        except NotFoundError:
            tried, path = path, extent.segment.path  # renamed on its way out, between the two
            if path == tried:
                raise out_of_range(view._replace(start_offset=extent.end_offset), offset) from None


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
