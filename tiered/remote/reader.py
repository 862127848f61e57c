"""The cold tier of one partition as one stream of batches, found through one pinned snapshot.

::

    snapshot (pinned) -> rows -> byte ranges -> Prefetch -> SegmentScan -> batches, verified
                             index bundle   prefetch    assembly

Steps only, for both drivers: what reads emits batches (``store.base.Emit``) in the shape that its caller wants. A
reader never lists the bucket. What it cannot read it reports; two things it settles by itself, once each:

* a batch that is not what its CRC says is read once more, past the cache, before it is an error;
* an object, or a page of the catalog, that is gone makes it pin the catalog anew and go on at the same offset: it was
  rewritten or trimmed meanwhile. Only if the offset itself is gone, or the new one still names it, is it an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from tiered.errors import CorruptionError, OffsetOutOfRangeError, TieredError
from tiered.format.batch import BatchHeader
from tiered.format.keys import FLAG_HOLE
from tiered.format.root import STATE_DELETING
from tiered.format.rows import NO_ROWS, Rows
from tiered.format.walk import Run, walk_headers
from tiered.model import AbortedTxn, TopicPartition
from tiered.plan.known import NOTHING_KNOWN, Known
from tiered.plan.read import READ_LIMITS, ByteRange, CatalogRows, ReadLimits, RequestSizes, SegmentRange, segment_ranges
from tiered.remote.assembly import IndexDoubtedError, SegmentDiffers, SegmentScan
from tiered.remote.cache import ByteCache
from tiered.remote.fetch import Fetch, SegmentGone, fetches
from tiered.remote.lookup import SegmentLookup
from tiered.remote.past import Past
from tiered.remote.pins import Pin
from tiered.remote.prefetch import BUFFER_BYTES, Prefetch
from tiered.remote.root_view import RootCache, RootView
from tiered.remote.snapshot import Snapshot
from tiered.remote.topics import being_deleted
from tiered.store.base import Emit, Steps

MAX_REFRESHES = 3
"""Times that a reader pins the catalog anew without getting one batch further."""

T = TypeVar("T")
HeadedBatch = tuple[BatchHeader, memoryview]
"""A whole raw batch and its header."""
Shape = Callable[[BatchHeader, memoryview], Any]
"""Makes of a batch what is emitted; None: nothing is."""


RunShape = Callable[[Run], Iterator[Any]]
"""Makes of a run of batches what is emitted; None: each batch of it is shaped by itself."""

Pieces = Callable[[int], Steps[CatalogRows]]
"""Rows from the one that holds an offset on, some of them; none behind the last (``Snapshot.piece``)."""
Keep = Callable[[], Steps[None]]
"""What is done before each read, so that what is read stays where it is (``Pin.keep``)."""


def headed(header: BatchHeader, batch: memoryview) -> HeadedBatch:
    """The shape that is both."""
    return header, batch


def _one_by_one(shape: Shape, run: Run) -> Iterator[Any]:
    for position, header in walk_headers(run.data):
        shaped = shape(header, run.data[position : position + header.size_bytes])
        if shaped is not None:
            yield shaped


class Place:
    """Where a stream is: the offset behind the last batch that it emitted."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at


class _Reads:
    """The reads of one attempt, in order. Of a segment whose base is in ``ended`` no more is wanted."""

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
        """The next one; None behind the last."""
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
    """Batches of segments that the caller already knows: no root is read. Thread-safe; keeps only a cache.

    ``indexes`` keeps index bundles, for several readers of one store. ``buffer_bytes`` bounds what one stream reads
    ahead. Raises SegmentGone where an object does not exist.
    """

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: UUID,
        *,
        cache: ByteCache | None = None,
        indexes: ByteCache | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        limits: ReadLimits = READ_LIMITS,
    ) -> None:
        self.tp = tp
        self.cache = cache if cache is not None else ByteCache()
        self.lookup = SegmentLookup(tp, topic_id, self.cache, indexes, limits)
        self._buffer_bytes = buffer_bytes

    def read(
        self,
        place: Place,
        pieces: Pieces,
        end: int,
        shape: Shape = headed,
        *,
        run_shape: RunShape | None = None,
        keep: Keep | None = None,
    ) -> Steps[None]:
        """Emits the verified batches that touch ``place.at`` to ``end``, in order.

        What is damaged is read once more, past the cache. Where an offset index sent it to a wrong place, the segment
        is read from its start.
        """
        repeated_at = -1
        whole: set[int] = set()
        while True:
            reads = _Reads(self.lookup, pieces, place.at, end, whole, keep=keep)
            ahead = Prefetch(reads.next, self.tp, self.cache, max_bytes=self._buffer_bytes)
            try:
                yield from self._attempt(place, reads, ahead, shape, run_shape or partial(_one_by_one, shape))
                return
            except (TieredError, SegmentGone) as error:
                yield from ahead.abandon()  # these steps go on: here, from a newer root, or with another partition
                if isinstance(error, SegmentGone) or not isinstance(error, CorruptionError):
                    raise  # a page that is gone, too: it counts as damaged where there is no newer root to look at
                if isinstance(error, IndexDoubtedError) and self.lookup.doubt(error):
                    continue  # an index that is wrong costs a scan
                if repeated_at == place.at:
                    raise
                repeated_at = place.at
                if isinstance(error, SegmentDiffers):
                    whole.add(error.base_offset)  # from ``at`` on alone it would pass
                self.forget(error)

    def _attempt(self, place: Place, reads: _Reads, ahead: Prefetch, shape: Shape, run_shape: RunShape) -> Steps[None]:
        """One attempt. The first and the last batch of a segment may hold offsets outside its range.

        A segment that is read whole must have the CRC32C that the catalog says, which is known when its last piece
        comes (:class:`SegmentScan`); those whose bases are in ``whole`` are read so, whatever their range.
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
                if isinstance(found, Run):
                    for taken in run_shape(found):
                        yield Emit(taken)
                else:
                    shaped = shape(*found)
                    if shaped is not None:
                        yield Emit(shaped)
            if scan.done:
                reads.ended.add(current.row.base)
            del read, data  # the consumer's is to be the only reference to what was read
        if scan is not None:
            scan.finish()

    def forget(self, error: CorruptionError) -> None:
        """Makes the next attempt read what was damaged from the store, data and indexes of that segment."""
        stem = error.path_or_key[: -len(".log")]
        self.cache.drop(stem + ".log")
        self.lookup.forget(stem + ".idx")


class RemotePartition:
    """One partition's remote tier, read-only. Thread-safe: each stream has its own position.

    The catalog is pinned on first use and stays so until :meth:`refresh`. ``cache``, ``indexes`` for index bundles, and
    ``roots`` may be shared by readers of one store. ``known``: what the registry entry and a disk say of the root.
    ``past``: what is pinned instead of the newest root. ``pin``: made in the bucket by the first read and kept until
    :meth:`release`; only for one stream.
    """

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        partition: int,
        *,
        cache: ByteCache | None = None,
        indexes: ByteCache | None = None,
        roots: RootCache | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        limits: ReadLimits = READ_LIMITS,
        known: Known = NOTHING_KNOWN,
        past: Past | None = None,
        pin: Pin | None = None,
    ) -> None:
        self._past = past
        self._pin = pin
        self.tp = TopicPartition(topic, partition)
        self.topic_id = topic_id
        self._view = RootView(topic_id, partition, topic, known, roots=roots)
        self._segments = SegmentReader(
            self.tp,
            topic_id,
            cache=cache,
            indexes=indexes,
            buffer_bytes=buffer_bytes,
            limits=limits,
        )
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._loaded = False

    # -- the catalog ---------------------------------------------------------------------------------------------

    def snapshot(self) -> Steps[Snapshot | None]:
        """The pinned catalog; None if nothing was ever committed for this partition. Loads it on first use.

        Raises RemoteUnavailableError, RemotePermissionError, CorruptionError, LogDestroyedError: unknown is not empty.
        """
        return self._snapshot if self._loaded else (yield from self.refresh())

    def refresh(self) -> Steps[Snapshot | None]:
        """Pins the newest root (one conditional GET). Raises as :meth:`snapshot`; also if it went back or is gone."""
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
                    continue  # another thread pinned one meanwhile, and this answer may be older
                snapshot = self._view.pin_received(got)
                self._snapshot, self._loaded = snapshot, True
                return snapshot

    def hold(self) -> Steps[Snapshot | None]:
        """As :meth:`snapshot`, held in the bucket from here on where there is a ``pin``: raises as ``Pin.hold``."""
        snapshot = yield from self.snapshot()
        if snapshot is not None and self._pin is not None:
            snapshot = self._snapshot = yield from self._pin.hold(snapshot, self.refresh)
        return snapshot

    def release(self) -> Steps[None]:
        """Nothing more is read: the pin goes. Never raises."""
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
        """Emits whole raw batches, verified, from the one that holds ``start_offset`` up to ``end_offset`` (exclusive).

        None, or an end beyond the pinned root, means its end. The first and the last batch may hold records
        outside the range. Memory stays bounded whatever the range; a consumer that stops stops the reading.

        Raises OffsetOutOfRangeError outside ``start_offset..next_offset`` of the root, CorruptionError (topic,
        partition, offset, key, position), RemoteUnavailableError.
        """
        snapshot = yield from self.hold()
        keep = self._pin.keep if snapshot is not None and self._pin is not None else None
        earliest, latest = (snapshot.start_offset, snapshot.next_offset) if snapshot is not None else (0, 0)
        if not earliest <= start_offset <= latest:
            raise self._out_of_range(start_offset, earliest, latest)
        end = latest if end_offset is None else min(end_offset, latest)
        place = Place(start_offset)
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
        """Rows from the one that holds ``offset`` on, some of them; empty behind the last (``Snapshot.piece``)."""
        return (yield from self._settled(lambda pinned: pinned.piece(offset), NO_ROWS))

    def offset_for_time(self, timestamp: int, at: int = 0) -> Steps[tuple[int, int] | None]:
        """(offset, timestamp) of the first record at or after ``timestamp`` (ms), None if the remote tier has none.

        ``at``: segments that end at or below this offset are left out.
        """
        lookup = self._segments.lookup
        return (yield from self._settled(lambda pinned: lookup.offset_for_time(pinned, timestamp, at), None))

    def aborted_txns(self, start: int, end: int) -> Steps[list[AbortedTxn]]:
        """Aborted transactions with records in ``start`` to ``end`` (exclusive), as far as their markers are here."""
        none: list[AbortedTxn] = []
        return (yield from self._settled(lambda pinned: self._segments.lookup.aborted_txns(pinned, start, end), none))

    def last_stable_offset(self) -> Steps[int]:
        """Where read_committed ends if this tier is all there is: the first record of the oldest open transaction."""
        return (yield from self._settled(self._segments.lookup.last_stable_offset, 0))

    def producer_snapshot(self) -> Steps[bytes]:
        """The producers at the end of this tier, as a ``.snapshot`` file; empty if there are none."""
        return (yield from self._settled(self._segments.lookup.producer_snapshot, b""))

    # -- trouble -------------------------------------------------------------------------------------------------

    def _after_loss(self, gone: SegmentGone, at: int | None, refreshes: int) -> Steps[Snapshot]:
        """The snapshot to go on with after an object that the old one named was not there.

        A stream is at offset ``at``, which may have been trimmed; a lookup (None) begins anew. Raises PageGone if it
        is a page that the newest root still names, LogDestroyedError if the topic's objects are being deleted.
        """
        snapshot = yield from self.refresh()
        newest = snapshot.root if snapshot is not None else None
        if self._past is not None:
            newest = yield from self._view.load()  # a version of the past does not tell what became of the topic
        if newest is not None and newest.state == STATE_DELETING:
            raise being_deleted(str(self.tp), self.topic_id)
        if snapshot is not None and at is not None and at < snapshot.start_offset:
            raise self._out_of_range(at, snapshot.start_offset, snapshot.next_offset)
        still_named = snapshot is not None and (yield from snapshot.at(gone.row.base)) == gone.row
        if snapshot is None or still_named or refreshes > MAX_REFRESHES:
            raise CorruptionError(
                f"{self.tp}: {gone.key} is gone and version {snapshot.version if snapshot else 0} of the catalog still "
                f"names it (offsets {gone.row.base} to {gone.row.next})",
                path_or_key=gone.key,
                position=0,
                offset=max(at or 0, gone.row.base),
                hint="look for a lifecycle rule or a person that deletes objects of this prefix; a disk that still "
                "has the segment can upload it again",
            )
        return snapshot

    def _settled(self, lookup: Callable[[Snapshot], Steps[T]], without_root: T) -> Steps[T]:
        """Runs a lookup with the same two second chances that reading has."""
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
            f"{self.tp}: offset {offset} is outside {earliest} to {latest}, which the catalog covers",
            requested=offset,
            earliest=earliest,
            latest=latest,
            hint=f"start at {earliest} (earliest) or {latest} (latest)",
        )
