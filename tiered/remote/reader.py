"""The cold tier of one partition as one stream of batches, found through one pinned root.

::

    root (pinned) -> segment_ranges -> byte ranges -> fetch_ahead -> SegmentScan -> batches, verified
                     plan.read         index bundle   prefetch      assembly

A reader never lists the bucket. What it cannot read it reports; two things it settles by itself, once each:

* a batch that is not what its CRC says is read once more, past the cache, before it is an error;
* an object that is gone makes it load the root again and go on at the same offset: the segment was rewritten or
  trimmed meanwhile. Only if the offset itself is gone, or the new root still names the object, is it an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Iterator
from functools import partial
from typing import TypeVar
from uuid import UUID

from tiered.clock import Clock, IdSource
from tiered.errors import CorruptionError, OffsetOutOfRangeError
from tiered.format.batch import BatchHeader
from tiered.format.keys import FLAG_HOLE
from tiered.model import AbortedTxn, Row, TopicPartition
from tiered.plan.known import NOTHING_KNOWN, Known
from tiered.plan.read import ByteRange, RequestSizes, SegmentRange, segment_ranges
from tiered.remote.assembly import IndexDoubtedError, SegmentDiffers, SegmentScan
from tiered.remote.cache import ByteCache
from tiered.remote.fetch import Fetch, SegmentGone, fetches
from tiered.remote.index_cache import IndexCache
from tiered.remote.lookup import SegmentLookup
from tiered.remote.prefetch import BUFFER_BYTES, fetch_ahead
from tiered.remote.root_view import RootView
from tiered.remote.snapshot import Snapshot
from tiered.store.base import Steps, Store
from tiered.store.driver import drive

MAX_REFRESHES = 3
"""Times that a reader loads the root again without getting one batch further."""

T = TypeVar("T")
HeadedBatch = tuple[BatchHeader, memoryview]
"""A whole raw batch and its header."""


class SegmentReader:
    """Batches of segments that the caller already knows: no root is read. Thread-safe; keeps only a cache.

    ``indexes`` keeps index bundles on disk, over restarts. ``buffer_bytes`` bounds what one stream reads ahead. Raises
    SegmentGone where an object does not exist.
    """

    def __init__(
        self,
        store: Store,
        tp: TopicPartition,
        topic_id: UUID,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        cache: ByteCache | None = None,
        indexes: IndexCache | None = None,
        verify_crc: bool = True,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self.tp = tp
        self.cache = cache if cache is not None else ByteCache()
        self.lookup = SegmentLookup(tp, topic_id, self.cache, indexes)
        self._store = store
        self._clock = clock
        self._ids = ids
        self._verify_crc = verify_crc
        self._buffer_bytes = buffer_bytes

    def run(self, steps: Steps[T]) -> T:
        """Carries steps out on the store."""
        return drive(self._store, steps, clock=self._clock, ids=self._ids)

    def stream(
        self, segments: Iterator[SegmentRange], *, whole: Collection[int] = ()
    ) -> Generator[HeadedBatch, None, None]:
        """Verified batches that touch the offsets of ``segments``, in order, one attempt each.

        The first and the last batch of a segment may hold offsets outside its range. A segment that is read whole must
        have the CRC32C that the catalog says, which is known when its last piece comes (:class:`SegmentScan`); those
        whose bases are in ``whole`` are read so, whatever their range.
        """
        scan: SegmentScan | None = None
        current: SegmentRange | None = None
        ended: set[int] = set()
        requests = self._fetches(segments, ended, whole)
        for fetch, data in fetch_ahead(requests, self._fetch, max_bytes=self._buffer_bytes):
            if scan is None or current is None or fetch.segment is not current:
                if scan is not None:
                    scan.finish()
                current = fetch.segment
                scan = SegmentScan(
                    self.tp,
                    fetch.key,
                    current.row,
                    position=fetch.range.start,
                    start=current.start,
                    end=current.end,
                    verify_crc=self._verify_crc,
                )
            yield from scan.feed(data)
            if scan.done:
                ended.add(current.row.base)
        if scan is not None:
            scan.finish()

    def read(
        self, start: int, segments_from: Callable[[int], Iterator[SegmentRange]]
    ) -> Generator[HeadedBatch, None, None]:
        """As :meth:`stream` of ``segments_from(start)``, but what is damaged is read once more, past the cache.

        Where an offset index sent it to a wrong place, the segment is read from its start.
        """
        at, repeated_at = start, -1
        whole: set[int] = set()
        while True:
            try:
                for header, batch in self.stream(segments_from(at), whole=whole):
                    at = header.next_offset
                    yield header, batch
                return
            except CorruptionError as error:
                if isinstance(error, IndexDoubtedError) and self.lookup.doubt(error):
                    continue  # an index that is wrong costs a scan
                if repeated_at == at:
                    raise
                repeated_at = at
                if isinstance(error, SegmentDiffers):
                    whole.add(error.base_offset)  # from ``at`` on alone it would pass
                self.forget(error)

    def forget(self, error: CorruptionError) -> None:
        """Makes the next attempt read what was damaged from the store, data and indexes of that segment."""
        stem = error.path_or_key[: -len(".log")]
        self.cache.drop(stem + ".log")
        self.lookup.forget(stem + ".idx")

    def _fetches(self, segments: Iterator[SegmentRange], ended: set[int], whole: Collection[int]) -> Iterator[Fetch]:
        """Reads in order; of a segment whose base is in ``ended`` no more is wanted."""
        sizes = RequestSizes()
        seek = True
        for segment in segments:
            row = segment.row
            if row.flags & FLAG_HOLE:
                continue
            if row.base in whole:
                wanted = ByteRange(0, row.size)
            else:
                wanted = self.run(self.lookup.byte_range(row, segment.start, segment.end))
            for fetch in fetches(segment, self.lookup.log_key(row), wanted, sizes, seek=seek):
                if row.base in ended:
                    break
                yield fetch
            seek = False

    def _fetch(self, fetch: Fetch) -> memoryview:
        return self.run(fetch.steps(self.tp, self.cache))


class RemotePartition:
    """One partition's remote tier, read-only. Thread-safe: each stream has its own position.

    The root is loaded on first use and stays pinned until :meth:`refresh`. ``cache`` may be shared by readers of
    one store. ``verify_crc=False`` leaves out the CRCs of batches and of whole segments, nothing else. ``known``: what
    the registry entry and a disk say of the root.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        topic_id: UUID,
        partition: int,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        cache: ByteCache | None = None,
        indexes: IndexCache | None = None,
        verify_crc: bool = True,
        buffer_bytes: int = BUFFER_BYTES,
        known: Known = NOTHING_KNOWN,
    ) -> None:
        self.tp = TopicPartition(topic, partition)
        self.topic_id = topic_id
        self._view = RootView(topic_id, partition, topic, known)
        self._segments = SegmentReader(
            store,
            self.tp,
            topic_id,
            clock=clock,
            ids=ids,
            cache=cache,
            indexes=indexes,
            verify_crc=verify_crc,
            buffer_bytes=buffer_bytes,
        )
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._loaded = False

    def run(self, steps: Steps[T]) -> T:
        """Carries steps out on the store."""
        return self._segments.run(steps)

    # -- the root ------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot | None:
        """The pinned catalog; None if nothing was ever committed for this partition. Loads it on first use.

        Raises RemoteUnavailableError, RemotePermissionError, CorruptionError, LogDestroyedError: unknown is not empty.
        """
        return self._snapshot if self._loaded else self.refresh()

    def refresh(self) -> Snapshot | None:
        """Pins the newest root (one conditional GET). Raises as :meth:`snapshot`; also if it went back or is gone."""
        with self._lock:
            snapshot = self._segments.run(self._view.pin())
            self._snapshot, self._loaded = snapshot, True
            return snapshot

    @property
    def start_offset(self) -> int:
        """The log start in the pinned root, 0 without one."""
        snapshot = self.snapshot()
        return snapshot.start_offset if snapshot is not None else 0

    @property
    def next_offset(self) -> int:
        """The committed end in the pinned root, 0 without one."""
        snapshot = self.snapshot()
        return snapshot.next_offset if snapshot is not None else 0

    def rows(self) -> Iterator[Row]:
        """The live segments of the pinned root, in offset order."""
        snapshot, at = self.snapshot(), 0
        while snapshot is not None and len(rows := self._segments.run(snapshot.piece(at))):
            yield from rows
            at = rows.end_offset

    def segments(self) -> list[Row]:
        """All of them."""
        return list(self.rows())

    # -- records -------------------------------------------------------------------------------------------------

    def read_batches(self, start_offset: int, end_offset: int | None = None) -> Generator[memoryview, None, None]:
        """Whole raw batches, verified, from the one that holds ``start_offset`` up to ``end_offset`` (exclusive).

        None, or an end beyond the pinned root, means its end. The first and the last batch may hold records
        outside the range. Memory stays bounded whatever the range; a consumer that stops stops the reading.

        Raises OffsetOutOfRangeError outside ``start_offset..next_offset`` of the root, CorruptionError (topic,
        partition, offset, key, position), RemoteUnavailableError.
        """
        for _, batch in self.read_headed(start_offset, end_offset):
            yield batch

    def read_headed(self, start_offset: int, end_offset: int | None = None) -> Generator[HeadedBatch, None, None]:
        """As :meth:`read_batches`, each batch with its header, which was read anyway."""
        at = start_offset
        snapshot = self._check_range(at)
        end = self.next_offset if end_offset is None else min(end_offset, self.next_offset)
        refreshes = 0
        while snapshot is not None and at < end:
            segments_from = partial(self._ranges, snapshot, end)
            try:
                for header, batch in self._segments.read(at, segments_from):
                    at = header.next_offset
                    refreshes = 0
                    yield header, batch
                return
            except SegmentGone as gone:
                refreshes += 1
                snapshot = self._after_loss(gone, at, refreshes)

    def _ranges(self, snapshot: Snapshot, end: int, start: int) -> Iterator[SegmentRange]:
        while start < end and len(rows := self._segments.run(snapshot.piece(start))):
            yield from segment_ranges(rows, start, end)
            start = rows.end_offset

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record at or after ``timestamp`` (ms), None if the remote tier has none."""
        return self._settled(lambda pinned: self._segments.lookup.offset_for_time(pinned, timestamp), None)

    def aborted_txns(self, start: int, end: int) -> list[AbortedTxn]:
        """Aborted transactions with records in ``start`` to ``end`` (exclusive), as far as their markers are here."""
        return self._settled(lambda pinned: self._segments.lookup.aborted_txns(pinned, start, end), [])

    def last_stable_offset(self) -> int:
        """Where read_committed ends if this tier is all there is: the first record of the oldest open transaction."""
        return self._settled(self._segments.lookup.last_stable_offset, 0)

    def producer_snapshot(self) -> bytes:
        """The producers at the end of this tier, as a ``.snapshot`` file; empty if there are none."""
        return self._settled(self._segments.lookup.producer_snapshot, b"")

    # -- trouble -------------------------------------------------------------------------------------------------

    def _check_range(self, offset: int) -> Snapshot | None:
        snapshot = self.snapshot()
        earliest, latest = (snapshot.start_offset, snapshot.next_offset) if snapshot is not None else (0, 0)
        if not earliest <= offset <= latest:
            raise self._out_of_range(offset, earliest, latest)
        return snapshot

    def _after_loss(self, gone: SegmentGone, at: int, refreshes: int) -> Snapshot:
        """The snapshot to go on with at offset ``at`` after an object that the old one named was not there."""
        snapshot = self.refresh()
        if snapshot is not None and at < snapshot.start_offset:
            raise self._out_of_range(at, snapshot.start_offset, snapshot.next_offset)
        still_named = snapshot is not None and self._segments.run(snapshot.at(gone.row.base)) == gone.row
        if snapshot is None or still_named or refreshes > MAX_REFRESHES:
            raise CorruptionError(
                f"{self.tp}: {gone.key} is gone and version {snapshot.version if snapshot else 0} of the catalog still "
                f"names it (offsets {gone.row.base} to {gone.row.next})",
                path_or_key=gone.key,
                position=0,
                offset=max(at, gone.row.base),
                hint="look for a lifecycle rule or a person that deletes objects of this prefix; a disk that still "
                "has the segment can upload it again",
            )
        return snapshot

    def _settled(self, lookup: Callable[[Snapshot], Steps[T]], without_root: T) -> T:
        """Runs a lookup with the same two second chances that reading has."""
        snapshot = self.snapshot()
        repeated = False
        refreshes = 0
        while snapshot is not None:
            try:
                return self._segments.run(lookup(snapshot))
            except SegmentGone as gone:
                refreshes += 1
                snapshot = self._after_loss(gone, max(gone.row.base, snapshot.start_offset), refreshes)
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
