"""Reads by offset and by time over the segments of one partition, as they stood when the read began.

A read goes on while a cleaner replaces the segments under it: from the same offset, over a fresh view (``steadily``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from tiered.clock import Clock
from tiered.errors import CorruptionError, LogDestroyedError, NotFoundError, OffsetOutOfRangeError
from tiered.format.batch import decode_records
from tiered.format.batch_scanner import BatchPosition, BatchRun, Offsets
from tiered.format.header import read_header
from tiered.local.disk.files import Files
from tiered.local.segment.read_view import Extent, View, out_of_range
from tiered.local.segment.scan import BUFFER_BYTES, FIRST_BYTES, LogFile

T = TypeVar("T")
FRESH_VIEWS = 3
"""Restarts of a read that fails without progress: after them a cleaner is not the cause."""

PATIENCE_TRIES = 100
"""Attempts at another process's directory while it swaps segments, which takes milliseconds."""

PATIENCE_SECONDS = 0.02
"""Pause between two attempts."""

_MOVED = (OffsetOutOfRangeError, CorruptionError, NotFoundError)
"""Errors of a moved segment. NotFoundError: a file was renamed, or is gone, between its lookup and its open."""


def read_runs(
    files: Files, view: View, start_offset: int, end_offset: int, *, buffer_bytes: int = BUFFER_BYTES
) -> Iterator[BatchRun]:
    """Yield verified batches in runs, from the one with ``start_offset`` (or the first after a gap) to ``end_offset``.

    A run is as many batches as the buffer holds, or one unusual batch. Its bytes do not change while it is referenced.
    The first step raises OffsetOutOfRangeError. CorruptionError, with path, position and offset, comes where the damage
    is reached.
    """
    if not view.start_offset <= start_offset <= view.end_offset:
        raise out_of_range(view, start_offset)
    yield from _runs(files, view, start_offset, min(end_offset, view.end_offset), buffer_bytes)


def _runs(files: Files, view: View, start: int, end: int, buffer_bytes: int) -> Iterator[BatchRun]:
    wanted = start
    for extent in view.extents_from(start):
        if wanted >= end or extent.base_offset >= end:
            return
        if extent.end_offset <= wanted:
            continue
        with open_extent(files, view, extent, wanted) as log:
            for run in _runs_of(log, view, extent, wanted, end, buffer_bytes):
                yield run
                if run.next_offset >= end:
                    return
        wanted = max(wanted, extent.end_offset)


def _runs_of(  # noqa: PLR0917 - the state of one segment's read
    log: LogFile, view: View, extent: Extent, wanted: int, end: int, buffer_bytes: int
) -> Iterator[BatchRun]:
    lookup = extent.segment.lookup
    if (run := _next_run(log, extent, lookup.read_end(wanted), wanted, end)) is not None:
        yield run
        wanted = run.next_offset
        if wanted >= end:
            return
    walk = log.walk(extent.seek(log, wanted), extent.offset_range, dense=view.dense)
    beyond = False
    for piece in extent.pieces(log, walk, dense=view.dense, buffer_bytes=buffer_bytes):
        start = walk.position
        while rest := piece[walk.position - start :]:
            run = walk.verified(rest, end) if walk.can_verify_from(wanted) else None
            if run is None:
                one = next(walk.whole(rest), None)
                if one is None:
                    break
                if beyond:
                    return
                span, batch = one
                if span.last_offset < wanted:
                    continue
                first = _first_offset(log, one)
                if view.dense and first > wanted:
                    raise log.damage(span.position, f"offsets {wanted} to {first} are missing", wanted)
                if first >= end:
                    beyond = True  # offsets are left out up to the end, or this one rotted: the next batch decides
                    continue
                log.verify(span, batch)
                run = BatchRun(batch, first, span.last_offset + 1)
            lookup.note_read(run.next_offset, walk.position)
            yield run
            wanted = run.next_offset
            if wanted >= end:
                return


def _next_run(log: LogFile, extent: Extent, position: int, wanted: int, end: int) -> BatchRun | None:
    """Return the few batches after ``position``, where a read ended before offset ``wanted``.

    None: :func:`_runs_of` looks for them with the index, and reports their damage.
    """
    size_bytes = extent.size_bytes - position
    if position < 0 or not 0 < size_bytes <= FIRST_BYTES:
        return None
    data = bytearray(size_bytes)
    walk = log.walk(position, Offsets(wanted, extent.end_offset))
    run = walk.verified(memoryview(data)[: log.read_into(data, position)].toreadonly(), end)
    if run is not None:
        extent.segment.lookup.note_read(run.next_offset, walk.position)
    return run


def _first_offset(log: LogFile, one: tuple[BatchPosition, memoryview]) -> int:
    """Return that of a whole batch. A compressed message of v0 or v1 has it only inside."""
    span, batch = one
    wrapped = read_header(batch).records_count < 0
    return log.verify(span, batch).base_offset if wrapped else span.base_offset


def offset_for_time(files: Files, view: View, timestamp: int) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record at or after ``timestamp``, by offset; None if there is none.

    Kafka's algorithm, exact with out-of-order timestamps; but where Kafka gives up when the chosen segment has nothing
    above the log start, later segments are tried.

    Kafka's rule: docs/kafka-semantics.md#offset-by-timestamp.
    """
    for extent in view.extents_reaching(timestamp):
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


def open_extent(files: Files, view: View, extent: Extent, offset: int) -> LogFile:
    """Return the open file. Raise OffsetOutOfRangeError if retention took it since the view was taken."""
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
    """Return the view of a directory that another process writes, once it is stable. NotFoundError if it never is."""
    for _ in range(PATIENCE_TRIES):
        try:
            return view()
        except LogDestroyedError:
            raise
        except NotFoundError:
            clock.sleep(PATIENCE_SECONDS)
    return view()


def steadily(view: Callable[[], View], work: Callable[[View], T]) -> T:
    """Return the result of ``work`` over a view, over a fresh one if segments were replaced meanwhile."""
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
    """Return True if segments were replaced or cut in between; if not, damage is damage.

    A restart after the last batch would skip records that a rotted base offset hides.
    """
    if len(after.extents) < len(before.extents):
        return True
    pairs = zip(before.extents, after.extents, strict=False)
    return any(a.segment is not b.segment or a.size_bytes > b.size_bytes for a, b in pairs)


def read_steadily(
    files: Files, view: Callable[[], View], start_offset: int, end_offset: int | None, *, buffer_bytes: int
) -> Iterator[BatchRun]:
    """Read as :func:`read_runs` to the first view's end. Go on over a fresh view while segments are replaced."""
    over = view()
    end = over.end_offset if end_offset is None else min(end_offset, over.end_offset)
    return _steady_runs(files, view, over, start_offset, end, buffer_bytes)


def _steady_runs(  # noqa: PLR0917 - the lazy half of read_steadily, in its order
    files: Files, view: Callable[[], View], over: View, wanted: int, end: int, buffer_bytes: int
) -> Iterator[BatchRun]:
    failures = 0
    while True:
        try:
            for run in read_runs(files, over, wanted, end, buffer_bytes=buffer_bytes):
                wanted, failures = run.next_offset, 0
                yield run
            return
        except _MOVED as error:
            failures += 1
            before, over = over, view()
            if failures > FRESH_VIEWS or (isinstance(error, CorruptionError) and not _moved(before, over)):
                raise
