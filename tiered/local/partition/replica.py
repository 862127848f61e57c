"""What only followers and brokers need of a partition: a leader's batches, the high watermark, fetches, ListOffsets.

A fetch is answered as a Kafka broker does: raw bytes from a batch's start, up to a number. Unlike the reads of
``local.segment.reading``, which give whole verified batches, it tells where in which file the bytes lie (for
``sendfile``) and may cut the last batch: whoever asked drops what is cut.

Kafka's rules: docs/kafka-semantics.md#fetch and #offset-by-timestamp.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import NamedTuple

from tiered.errors import ConfigError, OffsetOutOfRangeError, RecordTooLargeError
from tiered.format.header import read_header
from tiered.local.disk.files import Files
from tiered.local.partition.incoming import GivenBatches, given_batches
from tiered.local.partition.partition import PartitionLog
from tiered.local.partition.writer import PartitionWriter
from tiered.local.segment.extents import Extent, View, out_of_range
from tiered.local.segment.isolation import aborted_txns
from tiered.local.segment.reading import open_extent, steadily
from tiered.model import AbortedTxn, EpochEntry, RecordMetadata
from tiered.plan.producer import Origin, ProducerBatch, read_producer
from tiered.plan.producer_state import Prepared
from tiered.plan.roll import MAX_RELATIVE_OFFSET

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
"""What a timestamp below 0 asks for."""

NO_EPOCH = -1


class Isolation(enum.Enum):
    """How far a fetch reads: a follower to the end, ``read_uncommitted``, ``read_committed``."""

    LOG_END = "log_end"
    HIGH_WATERMARK = "read_uncommitted"
    COMMITTED = "read_committed"


class FetchPlace(NamedTuple):
    """Where a fetch begins: the offset, its segment's base and the byte in that segment's ``.log``."""

    offset: int
    segment_base: int
    position: int


class Fetched(NamedTuple):
    """``data`` begins with the batch that holds ``place.offset``, or the first one after a gap.

    ``first_entry_incomplete``: fewer bytes were asked for than the first batch has. ``aborted`` None unless
    ``read_committed`` was asked for.
    """

    place: FetchPlace
    data: bytes = b""
    first_entry_incomplete: bool = False
    aborted: tuple[AbortedTxn, ...] | None = None


def fetch(
    files: Files,
    directory: Path,
    view: View,
    start_offset: int,
    *,
    bound: int,
    max_bytes: int,
    isolation: Isolation,
    min_one_message: bool,
) -> Fetched:
    """Bytes from ``start_offset`` to below ``bound`` (the end, the high watermark or the stable offset).

    Raises OffsetOutOfRangeError below the view's start and above its end; ConfigError for negative ``max_bytes``.
    """
    if max_bytes < 0:
        raise ConfigError(f"a fetch of {max_bytes} bytes cannot be")
    if not view.start_offset <= start_offset <= view.end_offset:
        raise out_of_range(view, start_offset)
    none: tuple[AbortedTxn, ...] | None = () if isolation is Isolation.COMMITTED else None
    limit = locate(files, view, bound)
    if start_offset >= bound:
        return Fetched(limit if start_offset == bound else locate(files, view, start_offset), aborted=none)
    for extent in view.extents_from(start_offset):
        found = fetch_segment(
            files,
            view,
            extent,
            start_offset,
            max_bytes=max_bytes,
            max_position=max_position(extent, limit),
            min_one_message=min_one_message,
        )
        if found is None:
            continue
        if none is not None:
            upper = _upper_offset(files, view, extent, found.place.position, len(found.data))
            found = found._replace(aborted=tuple(aborted_txns(files, directory, view, start_offset, upper)))
        return found
    return Fetched(_end_of(view), aborted=none)


def fetch_segment(
    files: Files,
    view: View,
    extent: Extent,
    start_offset: int,
    *,
    max_bytes: int,
    max_position: int | None,
    min_one_message: bool,
) -> Fetched | None:
    """From one segment; None if it holds nothing at or above ``start_offset``.

    ``max_position`` None: nothing of this segment may be read yet; the answer then has its place and no bytes.
    """
    with open_extent(files, view, extent, start_offset) as log:
        walk = extent.walk(log, extent.seek(log, start_offset), dense=view.dense)
        span = next((s for s, _ in walk if s.last_offset >= start_offset), None)
        wanted_offset = max(start_offset, extent.base_offset)
        if view.dense and wanted_offset < (extent.end_offset if span is None else span.base_offset):
            position = extent.size_bytes if span is None else span.position
            raise log.damage(position, f"offset {wanted_offset} is missing", wanted_offset)
        if span is None:
            return None
        place = FetchPlace(start_offset, extent.base_offset, span.position)
        wanted = max(max_bytes, span.size) if min_one_message else max_bytes
        if wanted == 0 or max_position is None:
            return Fetched(place)
        length = max(min(max_position - span.position, wanted), 0)
        end = span.position + span.size
        while end < span.position + length:  # what is given stands in order: CRCs are for whoever asked
            after, _ = next(walk)
            end = after.position + after.size
        return Fetched(place, log.read_at(span.position, length), wanted < span.size)


def max_position(extent: Extent, limit: FetchPlace) -> int | None:
    """Up to which byte of a segment a fetch may read that ends at ``limit``; None: none of it."""
    if extent.base_offset < limit.segment_base:
        return extent.size_bytes
    return limit.position if extent.base_offset == limit.segment_base else None


def locate(files: Files, view: View, offset: int) -> FetchPlace:
    """Where ``offset`` lies, or the next one that there is; the end of the log above all of them."""
    if offset < view.end_offset:
        for extent in view.extents_from(offset):
            found = fetch_segment(files, view, extent, offset, max_bytes=0, max_position=None, min_one_message=False)
            if found is not None:
                return found.place
    return _end_of(view)


def _end_of(view: View) -> FetchPlace:
    if view.tail is None:
        return FetchPlace(view.end_offset, view.start_offset, 0)
    return FetchPlace(view.end_offset, view.tail.base_offset, view.tail.size_bytes)


def _upper_offset(files: Files, view: View, extent: Extent, position: int, size: int) -> int:
    """Above every offset in the bytes that were read, as far as the index tells."""
    with open_extent(files, view, extent, extent.base_offset) as log:
        bound = extent.segment.lookup.seek_upper(log, position, size, extent.size_bytes, extent.offsets)
    if bound is not None:
        return bound
    following = (other.base_offset for other in view.extents_from(extent.end_offset))
    return next((base for base in following if base > extent.base_offset), view.end_offset)


class ListedOffset(NamedTuple):
    """``timestamp`` -1 where an end of the log was asked for; ``leader_epoch`` -1 if it is not known."""

    offset: int
    timestamp: int
    leader_epoch: int


class Replica:
    """A partition as a follower, or the broker above it, sees it.

    Errors as for the partition: ConfigError from writing where it was opened read-only, ForkedLogError in a fork.
    """

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def append_as_follower(self, data: bytes, *, leader_high_watermark: int | None = None) -> RecordMetadata | None:
        """Batches as a leader stored them, bytes, offsets and epochs kept; None if ``data`` holds no whole batch.

        ``leader_high_watermark`` came with them (:meth:`update_high_watermark`); it counts without any batch, too.

        Offsets may leave gaps; where they go back it is InvalidRecordError, below the end OffsetOutOfRangeError.
        CorruptionError for a damaged batch. Nothing is appended then. Only ``segment.bytes`` limits the size.
        """
        writer = self._log.to_write()
        written = _store_as_leader_did(writer, data)
        if leader_high_watermark is not None:
            self.update_high_watermark(leader_high_watermark)
        return written

    def update_high_watermark(self, offset: int | None) -> int:
        """Records below ``offset`` are on every replica: takes it over, between log start and end, and returns it.

        It may go back, as a leader's may. Afterwards the end alone moves it no more; None: there are no replicas, the
        end is the high watermark again. Nothing at or above it is deleted, compacted, or read by those who fetch with
        ``Isolation.HIGH_WATERMARK``.
        """
        return self._log.to_write().tell_high_watermark(offset)

    def fetch(
        self,
        start_offset: int,
        max_bytes: int,
        *,
        isolation: Isolation = Isolation.LOG_END,
        min_one_message: bool = True,
    ) -> Fetched:
        """Raw bytes as a broker answers a fetch: from a batch's start, the last batch perhaps cut; and where they lie.

        ``min_one_message``: the first batch comes whole, whatever ``max_bytes`` says. Raises OffsetOutOfRangeError
        outside of the log; above the bound of ``isolation`` it is an empty answer.
        """

        log = self._log

        def once(view: View) -> Fetched:
            return fetch(
                log.files,
                log.source.directory,
                view,
                start_offset,
                bound=min(bound, view.end_offset),
                max_bytes=max_bytes,
                isolation=isolation,
                min_one_message=min_one_message,
            )

        bound = log.positions().end_offset
        if isolation is not Isolation.LOG_END:
            bound = log.high_watermark() if isolation is Isolation.HIGH_WATERMARK else log.last_stable_offset()
        return steadily(log.view, once)

    def list_offset(self, timestamp: int) -> ListedOffset | None:
        """Kafka's ListOffsets: the first record at or after ``timestamp`` ms, or what a negative one asks for.

        Those are ``LATEST`` (-1), ``EARLIEST`` (-2), ``MAX_TIMESTAMP`` (-3: its first record), ``EARLIEST_LOCAL`` (-4)
        and ``LATEST_TIERED`` (-5: offset -1 if the bucket holds nothing). None: there is no such record, or no bucket.
        """
        positions, epochs = self._log.positions(), self._log.source.epochs
        if timestamp == LATEST:
            return ListedOffset(positions.end_offset, -1, epochs.latest)
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            start = positions.start_offset if timestamp == EARLIEST else positions.local_start_offset
            return ListedOffset(start, -1, epochs.epoch_at(start))
        if timestamp == LATEST_TIERED:
            if self._log.upload is None:
                return None
            last = positions.uploaded_offset - 1
            return ListedOffset(last, -1, epochs.epoch_at(last))
        log = self._log
        found = log.largest_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_time(timestamp)
        if found is None:
            return None
        batch = next(log.read_batches(found[0], max_bytes=0), None)
        return ListedOffset(*found, NO_EPOCH if batch is None else read_header(batch).leader_epoch)

    def truncate_by_epoch(self, epoch: int, end_offset: int, *, below_uploaded: bool = False) -> EpochEntry:
        """Cuts what a leader does not have whose records of ``epoch`` end at ``end_offset``; returns our latest epoch
        and end. If that epoch is not ``epoch``, ask the leader again for the one returned.
        """
        return self._log.to_write().truncation.truncate_by_epoch(epoch, end_offset, below_uploaded=below_uploaded)

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """(epoch, its exclusive end) of the greatest epoch at or below ``epoch``; (-1, -1) if that is not known."""
        return self._log.source.epochs.end_offset_for(epoch, self._log.end_offset)


def _store_as_leader_did(writer: PartitionWriter, data: bytes) -> RecordMetadata | None:
    shared, segments, tp = writer.shared, writer.segments, writer.tp
    now_ms = shared.around.clock.now_ms()
    given = given_batches(data)
    if given is None:
        return None
    first, last = given.headers[0].base_offset, given.headers[-1]
    if len(given.data) > segments.active.segment_bytes:
        raise RecordTooLargeError(
            f"{len(given.data)} bytes in one append, segment.bytes is {segments.active.segment_bytes}"
        )
    batches = _producers_in(given)
    with shared.lock:
        shared.condition.check_writable()
        end = segments.end
        if first < end:
            raise OffsetOutOfRangeError(
                f"{tp} ends at offset {end}: batches {first} to {last.last_offset} cannot follow",
                requested=first,
                earliest=segments.log_start,
                latest=end,
                hint="ask the leader from the end on, or truncate first",
            )
        answer = writer.producers.prepare(batches, Origin.REPLICATION)
        if first > end or not given.contiguous:
            segments.mark_sparse()
        with shared.leadership.or_none():
            shared.leadership.follow(given.headers)
            greatest = max(fact.max_timestamp for fact in given.facts)
            base = last.last_offset - MAX_RELATIVE_OFFSET if given.first_offset is None else given.first_offset
            rolled = writer.appender.store(
                given.data,
                given.facts,
                greatest,
                last.next_offset,
                now_ms,
                base=base,
                epoch=last.leader_epoch,
                answer=answer if isinstance(answer, Prepared) else None,
            )
    writer.appender.settle_append(rolled)
    return RecordMetadata(tp.topic, tp.partition, first, greatest, last.next_offset)


def _producers_in(given: GivenBatches) -> list[ProducerBatch]:
    """Of a leader's batches those that have a producer."""
    found = []
    position = 0
    for header, fact in zip(given.headers, given.facts, strict=True):
        batch = read_producer(header, memoryview(given.data)[position : position + fact.size])
        if batch is not None:
            found.append(batch)
        position += fact.size
    return found
