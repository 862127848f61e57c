"""Reads by offset and by time over the segments of one partition, as they stood when the read began.

If a cleaner replaces segments during a read, the read continues from the same offset, over a new view
(``retry_over_new_view``).

For ``read_committed`` (``plan.visibility`` decides) aborted transactions come from the ``.txnindex`` files, each
compared with its own log. The last stable offset is the first offset of the oldest open transaction. Open transactions
come from the newest producer snapshot at or below the end, and from the batches after it. A log without transactions
costs one listing and a walk over headers.

Kafka's rules: docs/kafka-semantics.md#read-committed and #last-stable-offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tiered.clock import Clock
from tiered.errors import CorruptionError, LogDestroyedError, NotFoundError, OffsetOutOfRangeError
from tiered.format.batch import decode_records
from tiered.format.batch_scanner import BatchPosition, BatchRun, Offsets, cut
from tiered.format.header import read_header
from tiered.format.local_names import snapshot_name
from tiered.format.producer_snapshot import decode_snapshot
from tiered.local.disk.files import Files
from tiered.local.disk.partition_files import newest_snapshot
from tiered.local.segment.read_view import Extent, View, out_of_range
from tiered.local.segment.scan import BUFFER_BYTES, FIRST_BYTES, LogFile
from tiered.model import AbortedTxn
from tiered.plan.producer import read_producer
from tiered.plan.producer_state import ProducerSnapshot, ProducerState
from tiered.plan.visibility import OpenTxn, aborted_within, open_firsts, stable_offset

T = TypeVar("T")
FRESH_VIEWS = 3
"""Number of restarts of a read that makes no progress. Then the error is raised."""

PATIENCE_TRIES = 100
"""Attempts at another process's directory while it swaps segments, which takes milliseconds."""

PATIENCE_SECONDS = 0.02
"""Pause between two attempts."""

_MOVED = (OffsetOutOfRangeError, CorruptionError, NotFoundError)
"""Errors of a moved segment. NotFoundError: a file was renamed, or is gone, between its lookup and its open."""


def read_runs(
    files: Files, view: View, start_offset: int, end_offset: int, *, buffer_bytes: int = BUFFER_BYTES
) -> Iterator[BatchRun]:
    """Yield verified batches in runs, from the batch with ``start_offset``, or the next one, to ``end_offset``.

    ``end_offset`` is exclusive, but the last batch may end above it. A run is as many v2 batches as the buffer holds,
    or one batch of another kind. Its bytes do not change while it is referenced.
    The first step raises OffsetOutOfRangeError if ``start_offset`` is not on this disk. A damaged batch raises
    CorruptionError, with path, position and offset, when the read reaches it.
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
    """Return the batches from byte ``position`` on, where an earlier read ended and offset ``wanted`` begins.

    ``position`` -1: no read ended there. Return None then, and if the batches exceed ``FIRST_BYTES`` or cannot be
    verified. The caller then searches with the index. ``end``: exclusive end of the wanted offsets.
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
    """Return the first offset of a whole batch. A compressed message of v0 or v1 has it only inside its data."""
    span, batch = one
    wrapped = read_header(batch).records_count < 0
    return log.verify(span, batch).base_offset if wrapped else span.base_offset


def offset_for_time(files: Files, view: View, timestamp: int) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record, by offset, that is at or after ``timestamp``. None without any.

    The algorithm is Kafka's, and exact with out-of-order timestamps. One difference: Kafka gives up if the chosen
    segment has no such record above the log start. This function then tries later segments.
    Raises CorruptionError for a damaged batch, OffsetOutOfRangeError if a segment was deleted since the view was made.

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
    """Open the extent's ``.log``. Raises OffsetOutOfRangeError if retention deleted it since the view was made.

    Raises CorruptionError if the file of a sealed segment does not have the extent's size. ``offset``: the offset that
    is read, for the errors.
    """
    path = extent.segment.path
    while True:
        try:
            log = LogFile(files, path)
            if extent.max_timestamp is None and log.size() != extent.size_bytes:
                log.close()
                raise log.damage(0, f"this is not the file of {extent.size_bytes} bytes that was listed before", offset)
            return log
        except NotFoundError:
            tried, path = path, extent.segment.path  # renamed on its way out, between the two
            if path == tried:
                raise out_of_range(view._replace(start_offset=extent.end_offset), offset) from None


def patient_view(view: Callable[[], View], clock: Clock) -> View:
    """Call ``view`` until it does not raise NotFoundError, and return its result. Another process writes the directory.

    Raises NotFoundError after ``PATIENCE_TRIES`` attempts, LogDestroyedError at once.
    """
    for _ in range(PATIENCE_TRIES):
        try:
            return view()
        except LogDestroyedError:
            raise
        except NotFoundError:
            clock.sleep(PATIENCE_SECONDS)
    return view()


def retry_over_new_view(view: Callable[[], View], work: Callable[[View], T]) -> T:
    """Call ``work`` with a view and return its result.

    If ``work`` raises because segments were moved or replaced meanwhile, repeat it with a new view, at most
    ``FRESH_VIEWS`` times. Then raise its error. An error from real damage is raised at once.
    """
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
    """Return True if segments were replaced or truncated between the two views.

    Otherwise a CorruptionError is real damage. A restart would then skip records that a damaged base offset hides.
    """
    if len(after.extents) < len(before.extents):
        return True
    pairs = zip(before.extents, after.extents, strict=False)
    return any(a.segment is not b.segment or a.size_bytes > b.size_bytes for a, b in pairs)


def read_steadily(
    files: Files, view: Callable[[], View], start_offset: int, end_offset: int | None, *, buffer_bytes: int
) -> Iterator[BatchRun]:
    """Return an iterator of runs of verified batches, from the one with ``start_offset`` to ``end_offset`` (exclusive).

    None or a higher ``end_offset``: the end of the first view. If segments are replaced meanwhile, the read continues
    over a new view. The first step raises OffsetOutOfRangeError if ``start_offset`` is not on this disk. A damaged
    batch raises CorruptionError when the read reaches it.
    """
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


def aborted_txns(files: Files, directory: Path, view: View, start_offset: int, end_offset: int) -> list[AbortedTxn]:
    """Return aborted transactions that overlap ``start_offset`` to ``end_offset`` (exclusive), ordered by first offset.

    They are collected from the segment of ``start_offset`` on, as in Kafka. The search ends when an entry or a snapshot
    proves that no transaction from before ``end_offset`` is open. Raises CorruptionError for an index that is lost or
    unreadable and cannot be rebuilt from the log: a guess would show aborted records.
    """
    found: set[AbortedTxn] = set()
    for extent in view.extents_from(start_offset):
        if extent.end_offset <= start_offset:
            continue
        try:
            more, complete = aborted_within(extent.segment.aborted_txns(), start_offset, end_offset)
        except NotFoundError:
            continue  # retention took the segment since the view was taken
        found.update(more)
        if complete or (extent.end_offset >= end_offset and _all_decided(files, directory, extent, end_offset)):
            break
    return sorted(found, key=lambda txn: txn.first_offset)


def _all_decided(files: Files, directory: Path, extent: Extent, offset: int) -> bool:
    """Return True if the snapshot after a segment has no open transaction from before ``offset``."""
    try:
        entries = decode_snapshot(files.read(directory / snapshot_name(extent.end_offset)))
    except (CorruptionError, NotFoundError):
        return False
    return min(open_firsts(entries).values(), default=offset) >= offset


def last_stable_offset(files: Files, directory: Path, view: View, log_start: int) -> int:
    """Return the first offset of the oldest open transaction, or the view's end; at least ``log_start``.

    It may be below the view: if a tiered log has only its newest segments on disk, the transaction may begin in the
    bucket.
    """
    firsts = (txn.first_offset for txn in open_txns(files, directory, view))
    return stable_offset(firsts, log_start, view.end_offset)


def open_txns(files: Files, directory: Path, view: View) -> list[OpenTxn]:
    """Return the open transactions at the end of ``view``, ordered by first offset.

    A transaction whose ABORT marker is in the newest segment but not in its index counts as open. The writer appends
    the marker before the index entry. A reader beyond the marker would show the aborted records.
    """
    producers = ProducerState()
    known = newest_snapshot(files, directory, view.start_offset, view.end_offset)
    known = known or ProducerSnapshot(view.start_offset)
    producers.load(known, log_start=0, now_ms=0)  # at time 0 no producer has expired
    tail = view.tail
    noted: set[tuple[int, int]] | None = None
    runs = read_runs(files, view, known.offset, view.end_offset)
    for data in (each for run in runs for each in cut(run.data)):
        batch = read_producer(read_header(data), data)
        if batch is None:
            continue
        marker = batch.marker
        is_open = any(producer == batch.producer_id for _, producer in producers.open_txns())
        if (
            marker is not None
            and marker.abort
            and is_open
            and tail is not None
            and batch.base_offset >= tail.base_offset
        ):
            if noted is None:
                aborted = tail.segment.aborted_txns()
                noted = {(txn.producer_id, txn.last_offset) for txn in aborted}
            if (batch.producer_id, batch.base_offset) not in noted:
                continue
        producers.replay(batch)
    return producers.describe_open_txns()
