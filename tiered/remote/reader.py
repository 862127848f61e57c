"""Cold tier of one partition as one stream of batches, found through one pinned snapshot.

::

    snapshot (pinned) -> rows -> byte ranges -> Prefetch -> SegmentScan -> batches, verified
                             index bundle   prefetch    assembly

Steps only, for both drivers. A read emits batches (``store.base.Emit``) in the shape that its caller wants. A reader
never lists the bucket. It reports what it cannot read, and handles two cases itself, once each:

* A batch whose CRC does not match is read again, without the cache, before that is an error.
* If an object, or a page of the catalog, is gone, a rewrite or a trim may have replaced it. The reader pins the catalog
  again and continues at the same offset. It raises if the offset is gone, or if the new catalog still names the object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from tiered.errors import CorruptionError, OffsetOutOfRangeError, TieredError
from tiered.format.batch import BatchHeader
from tiered.format.batch_scanner import BatchRun, walk_headers
from tiered.format.keys import FLAG_HOLE
from tiered.format.root import STATE_DELETING
from tiered.format.rows import NO_ROWS, Rows
from tiered.model import AbortedTxn, EpochEntry, TopicPartition
from tiered.plan.read import READ_LIMITS, ByteRange, CatalogRows, ReadLimits, RequestSizes, SegmentRange, segment_ranges
from tiered.plan.root_lower_bounds import NOTHING_KNOWN, RootLowerBounds
from tiered.remote.assembly import SegmentDiffers, SegmentScan
from tiered.remote.catalog_view import CatalogView
from tiered.remote.fetch import BUFFER_BYTES, ByteCache, Fetch, Prefetch, SegmentGone, fetches, still_named
from tiered.remote.lookup import SegmentLookup
from tiered.remote.pins import Pin
from tiered.remote.root_view import RootCache, RootView
from tiered.remote.snapshots import Past
from tiered.remote.topics import being_deleted
from tiered.store.base import Emit, Steps

MAX_REFRESHES = 3
"""Most times that a reader pins the catalog again without reading one more batch."""

T = TypeVar("T")
HeadedBatch = tuple[BatchHeader, memoryview]
"""Header of a batch, and the whole raw batch."""
Shape = Callable[[BatchHeader, memoryview], Any]
"""Returns the value to emit for a batch; None emits nothing."""


RunShape = Callable[[BatchRun], Iterator[Any]]
"""Returns the values to emit for a run of batches."""

Pieces = Callable[[int], Steps[CatalogRows]]
"""Returns at most ``PIECE_ROWS`` rows, from the one that contains the offset; none after the last row."""
Keep = Callable[[], Steps[None]]
"""Runs before each read, to keep the objects protected (``Pin.keep``)."""


def headed(header: BatchHeader, batch: memoryview) -> HeadedBatch:
    """Return (header, batch): the default shape of emitted batches."""
    return header, batch


def _one_by_one(shape: Shape, run: BatchRun) -> Iterator[Any]:
    for position, header in walk_headers(run.data):
        shaped = shape(header, run.data[position : position + header.size_bytes])
        if shaped is not None:
            yield shaped


class StreamPosition:
    """Mutable position of a stream. ``at``: the offset after the last emitted batch."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at


class _Reads:
    """Source of the fetches of one read attempt over offsets ``at`` to ``end`` (exclusive), in order.

    ``whole``: base offsets of segments to fetch whole for any range. ``keep``: runs before each fetch. ``ended``: base
    offsets of segments that need no more fetches.
    """

    def __init__(
        self, lookup: SegmentLookup, pieces: Pieces, at: int, end: int, whole: Collection[int], *, keep: Keep | None
    ) -> None:
        self._lookup = lookup
        self._keep = keep
        self._pieces = pieces
        self._at = at
        self._end = end
        self._whole = whole
        self._segments: Iterator[SegmentRange] = iter(())
        self._sizes = RequestSizes(lookup.limits)
        self._seek = True
        self._current: Iterator[Fetch] = iter(())
        self.ended: set[int] = set()

    def next(self) -> Steps[Fetch | None]:
        """Return the next fetch, None after the last."""
        if self._keep is not None:
            yield from self._keep()
        while True:
            for fetch in self._current:
                if fetch.segment.row.base in self.ended:
                    break
                return fetch
            segment = yield from self._next_segment()
            if segment is None:
                return None
            row = segment.row
            if row.flags & FLAG_HOLE:
                continue
            if row.base in self._whole:
                wanted = ByteRange(0, row.size)
            else:
                wanted = yield from self._lookup.byte_range(row, segment.start, segment.end)
            key = self._lookup.log_key(row)
            self._current = fetches(segment, key, wanted, self._sizes, seek=self._seek)
            self._seek = False

    def _next_segment(self) -> Steps[SegmentRange | None]:
        for segment in self._segments:
            self._at = segment.row.next
            return segment
        if self._at >= self._end:
            return None
        self._segments = segment_ranges((yield from self._pieces(self._at)), self._at, self._end)
        for segment in self._segments:
            self._at = segment.row.next
            return segment
        return None


class SegmentReader:
    """Reader of segments whose rows the caller has. It reads no root. Thread-safe: streams share only its caches.

    ``cache``: cache of segment bytes. ``indexes``: cache of index bundles, which readers of one store may share. Raises
    SegmentGone if an object does not exist.
    """

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: UUID,
        *,
        cache: ByteCache | None = None,
        indexes: ByteCache | None = None,
        limits: ReadLimits = READ_LIMITS,
    ) -> None:
        self.tp = tp
        self.cache = cache if cache is not None else ByteCache()
        self.lookup = SegmentLookup(tp, topic_id, self.cache, indexes, limits)

    def read(
        self,
        place: StreamPosition,
        pieces: Pieces,
        end: int,
        shape: Shape = headed,
        *,
        run_shape: RunShape | None = None,
        keep: Keep | None = None,
    ) -> Steps[None]:
        """Emit the verified batches that touch offsets ``place.at`` to ``end`` (exclusive), in order.

        ``place`` advances with them. ``pieces`` returns the rows from an offset on. ``shape`` makes the emitted value
        of a batch; None emits nothing. ``run_shape`` makes those of consecutive v2 batches; without it, ``shape`` does.
        ``keep`` runs before each fetch. A damaged batch is read once more, without the cache. Raises SegmentGone for a
        missing object, CorruptionError for damage that remains, RemoteUnavailableError.
        """
        repeated_at = -1
        whole: set[int] = set()
        while True:
            reads = _Reads(self.lookup, pieces, place.at, end, whole, keep=keep)
            ahead = Prefetch(reads.next, self.tp, self.cache, max_bytes=BUFFER_BYTES)
            try:
                yield from self._attempt(place, reads, ahead, shape, run_shape or partial(_one_by_one, shape))
                return
            except (TieredError, SegmentGone) as error:
                yield from ahead.abandon()  # the steps continue: here, with a newer root, or another partition
                if isinstance(error, SegmentGone) or not isinstance(error, CorruptionError):
                    raise  # includes a missing page, which is damage only if no newer root replaces it
                if repeated_at == place.at:
                    raise
                repeated_at = place.at
                if isinstance(error, SegmentDiffers):
                    whole.add(error.base_offset)  # a read from ``at`` alone would not compare the checksum
                self.forget(error)

    def _attempt(
        self, place: StreamPosition, reads: _Reads, ahead: Prefetch, shape: Shape, run_shape: RunShape
    ) -> Steps[None]:
        """Emit the batches of one attempt. The first and last batch may contain offsets outside the wanted range.

        A segment that is read whole must have the catalog's CRC32C, which is compared when its last piece arrives
        (:class:`SegmentScan`).
        """
        scan: SegmentScan | None = None
        current: SegmentRange | None = None
        while (read := (yield from ahead.next())) is not None:
            fetch, data = read
            if scan is None or current is None or fetch.segment is not current:
                if scan is not None:
                    scan.finish()
                current = fetch.segment
                position, start, end = fetch.range.start, current.start, current.end
                scan = SegmentScan(self.tp, fetch.key, current.row, position=position, start=start, end=end)
            for found in scan.runs(data):
                place.at = scan.next_offset
                if isinstance(found, BatchRun):
                    for taken in run_shape(found):
                        yield Emit(taken)
                else:
                    shaped = shape(*found)
                    if shaped is not None:
                        yield Emit(shaped)
            if scan.done:
                reads.ended.add(current.row.base)
            del read, data  # so that the consumer has the only reference
        if scan is not None:
            scan.finish()

    def forget(self, error: CorruptionError) -> None:
        """Remove data and indexes of the damaged segment in ``error`` from the caches, so that the next attempt reads
        them again.
        """
        stem = error.path_or_key[: -len(".log")]
        self.cache.drop(stem + ".log")
        self.lookup.forget(stem + ".idx")


class SharedCaches(NamedTuple):
    """Caches that the readers of one store share: index bundles and roots."""

    indexes: ByteCache | None = None
    roots: RootCache | None = None


class RemotePartition:
    """Reader of one partition's remote tier. Thread-safe: each stream has its own position.

    All calls use one version of the catalog, loaded on first use, until :meth:`refresh`. ``cache``: cache of segment
    bytes. ``shared``: caches of all readers of one store. ``limits``: sizes of requests. ``known``: lower bounds of the
    root, from the registry entry and a disk. ``past``: version to use instead of the newest root. ``pin``: lease that
    the first read stores in the bucket, until :meth:`release`; only for one stream.
    """

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: UUID,
        *,
        cache: ByteCache | None = None,
        shared: SharedCaches = SharedCaches(),  # noqa: B008 - it never changes
        limits: ReadLimits = READ_LIMITS,
        known: RootLowerBounds = NOTHING_KNOWN,
        past: Past | None = None,
        pin: Pin | None = None,
    ) -> None:
        self._past = past
        self._pin = pin
        self.tp = tp
        self.topic_id = topic_id
        self._view = RootView(topic_id, tp.partition, tp.topic, known, roots=shared.roots)
        self._segments = SegmentReader(tp, topic_id, cache=cache, indexes=shared.indexes, limits=limits)
        self._lock = threading.Lock()
        self._snapshot: CatalogView | None = None
        self._loaded = False

    # -- the catalog ---------------------------------------------------------------------------------------------

    def snapshot(self) -> Steps[CatalogView | None]:
        """Return the catalog in use, loaded by the first call; None if the partition never had a root.

        A catalog that cannot be read never counts as empty: RemoteUnavailableError, RemotePermissionError,
        CorruptionError or LogDestroyedError is raised.
        """
        return self._snapshot if self._loaded else (yield from self.refresh())

    def refresh(self) -> Steps[CatalogView | None]:
        """Use the newest root from now on, and return its catalog; None without a root. Sends one conditional GET.

        With ``past``, the version stays the same. Raises CorruptionError for a damaged or older root, LogDestroyedError
        if it is gone, RemoteUnavailableError, RemotePermissionError. With ``past`` also raises NotFoundError if that
        version is not stored, or if its objects were deleted.
        """
        if self._past is not None:
            self._snapshot = yield from self._past.pin()
            self._loaded = True
            return self._snapshot
        while True:
            with self._lock:
                before, request = self._view.root, self._view.request()
            got = yield request
            with self._lock:
                if self._view.root is not before:
                    continue  # another thread pinned a root meanwhile, and this answer may be older
                snapshot = self._view.pin_received(got)
                self._snapshot, self._loaded = snapshot, True
                return snapshot

    def hold(self) -> Steps[CatalogView | None]:
        """Return the catalog in use, None without a root. A ``pin`` is stored first, against garbage collection.

        If garbage collection has passed the version in use, a newer one is pinned, used and returned. Raises
        RemoteUnavailableError, RemotePermissionError (also if the role may not write pins), CorruptionError or
        LogDestroyedError.
        """
        snapshot = yield from self.snapshot()
        if snapshot is not None and self._pin is not None:
            snapshot = self._snapshot = yield from self._pin.hold(snapshot, self.refresh)
        return snapshot

    def release(self) -> Steps[None]:
        """Delete the pin, if there is one. Call this after the last read. Never raises."""
        if self._pin is not None:
            yield from self._pin.drop()

    # -- records -------------------------------------------------------------------------------------------------

    def read(
        self,
        start_offset: int,
        end_offset: int | None = None,
        shape: Shape = headed,
        *,
        run_shape: RunShape | None = None,
    ) -> Steps[None]:
        """Emit verified raw batches from the one with ``start_offset`` up to ``end_offset`` (exclusive).

        ``end_offset`` None, or beyond the end of the root: up to the end of the root. The first and the last batch may
        contain records outside the range. Memory is bounded for any range. ``shape`` makes the emitted value of a
        batch, ``run_shape`` those of consecutive v2 batches; without it, ``shape`` does.

        Raises OffsetOutOfRangeError if ``start_offset`` is below the log's start or above its end, CorruptionError for
        damage (with topic, partition, offset, key, position), RemoteUnavailableError.
        """
        snapshot = yield from self.hold()
        keep = self._pin.keep if snapshot is not None and self._pin is not None else None
        earliest, latest = (snapshot.start_offset, snapshot.next_offset) if snapshot is not None else (0, 0)
        if not earliest <= start_offset <= latest:
            raise self._out_of_range(start_offset, earliest, latest)
        end = latest if end_offset is None else min(end_offset, latest)
        place = StreamPosition(start_offset)
        refreshes, read_at = 0, start_offset
        while snapshot is not None and place.at < end:
            try:
                yield from self._segments.read(place, snapshot.piece, end, shape, run_shape=run_shape, keep=keep)
                return
            except SegmentGone as gone:
                refreshes = refreshes + 1 if place.at == read_at else 1
                read_at = place.at
                # mutant reader-refreshes-catalog
                snapshot = yield from self._after_loss(gone, place.at, refreshes)

    def piece(self, offset: int) -> Steps[Rows]:
        """Return at most ``PIECE_ROWS`` rows, from the one that contains ``offset``; none after the last row."""
        return (yield from self._settled(lambda pinned: pinned.piece(offset), NO_ROWS))

    def offset_for_time(self, timestamp: int, at: int = 0) -> Steps[tuple[int, int] | None]:
        """Return (offset, timestamp) of the first record with at least ``timestamp`` (ms), None without one.

        ``at``: segments that end at or below this offset are skipped.
        """
        lookup = self._segments.lookup
        return (yield from self._settled(lambda pinned: lookup.offset_for_time(pinned, timestamp, at), None))

    def aborted_txns(self, start: int, end: int) -> Steps[list[AbortedTxn]]:
        """Return aborted transactions that overlap ``start`` to ``end`` (exclusive) and have a marker in this tier."""
        none: list[AbortedTxn] = []
        return (yield from self._settled(lambda pinned: self._segments.lookup.aborted_txns(pinned, start, end), none))

    def last_stable_offset(self) -> Steps[int]:
        """Return the last stable offset of this tier alone, 0 without a root.

        It is the first offset of the oldest open transaction, otherwise the end of the tier.
        """
        return (yield from self._settled(self._segments.lookup.last_stable_offset, 0))

    def producer_snapshot(self) -> Steps[bytes]:
        """Return the producers at the end of this tier, as a ``.snapshot`` file; empty if there are none."""
        return (yield from self._settled(self._segments.lookup.producer_snapshot, b""))

    # -- trouble -------------------------------------------------------------------------------------------------

    def _after_loss(self, gone: SegmentGone, at: int | None, refreshes: int) -> Steps[CatalogView]:
        """Return the newest catalog, to continue with after the object ``gone`` of the old one was missing.

        ``at``: offset of the stream, None for a lookup. ``refreshes``: calls without progress, this one included.
        Raises CorruptionError if the newest root still names the object, OffsetOutOfRangeError if ``at`` was trimmed,
        LogDestroyedError if the topic is being deleted.
        """
        snapshot = yield from self.refresh()
        newest = snapshot.root if snapshot is not None else None
        if self._past is not None:
            newest = yield from self._view.load()  # a past version does not show that the topic was deleted
        if newest is not None and newest.state == STATE_DELETING:
            raise being_deleted(str(self.tp), self.topic_id)
        if snapshot is not None and at is not None and at < snapshot.start_offset:
            raise self._out_of_range(at, snapshot.start_offset, snapshot.next_offset)
        is_named = snapshot is not None and (yield from snapshot.at(gone.row.base)) == gone.row
        if snapshot is None or is_named or refreshes > MAX_REFRESHES:
            version = snapshot.version if snapshot else 0
            then = "a disk that still has the segment can upload it again"
            raise still_named(self.tp, gone, version, max(at or 0, gone.row.base), then)
        return snapshot

    def leader_epochs(self) -> Steps[tuple[EpochEntry, ...]]:
        """Return leader epochs with their first offsets, ascending, up to the end of this tier; empty if unknown."""
        unknown: tuple[EpochEntry, ...] = ()
        return (yield from self._settled(self._segments.lookup.leader_epochs, unknown))

    def _settled(self, lookup: Callable[[CatalogView], Steps[T]], without_root: T) -> Steps[T]:
        """Return the result of ``lookup`` on the catalog in use; ``without_root`` if there is no root.

        After damage the lookup runs once more. After a missing object it runs on a newer root.
        """
        snapshot = yield from self.snapshot()
        repeated = False
        refreshes = 0
        while snapshot is not None:
            try:
                return (yield from lookup(snapshot))
            except SegmentGone as gone:
                refreshes += 1
                snapshot = yield from self._after_loss(gone, None, refreshes)
            except CorruptionError as error:
                if repeated:
                    raise
                repeated = True
                self._segments.forget(error)
        return without_root

    def _out_of_range(self, offset: int, earliest: int, latest: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"{self.tp}: offset {offset} is outside the offsets in the bucket, {earliest} to {latest}",
            requested=offset,
            earliest=earliest,
            latest=latest,
            hint=f"start at {earliest} (earliest) or {latest} (latest)",
        )
