"""Index lookups in a remote partition for offsets, times and aborted transactions: root rows, then one index bundle.

Steps only, for both drivers. A bundle up to ``bundle_bytes`` is fetched whole, since a request costs more than its
bytes. Of a larger one the head is fetched, then single sections by range. All of them are cached by key.
"""

from __future__ import annotations

import logging
from uuid import UUID

from tiered.errors import CorruptionError
from tiered.format.batch import decode_records
from tiered.format.bundle import (
    HEAD_BYTES,
    MAX_BUNDLE_BYTES,
    BundleHead,
    SectionKind,
    decode_bundle,
    decode_bundle_head,
    decode_leader_epochs,
    verify_section,
)
from tiered.format.keys import FLAG_ABORTED_TXNS, FLAG_HOLE, FLAG_STAGED, index_key, segment_key, trashed_segment
from tiered.format.producer_snapshot import decode_snapshot
from tiered.format.root import Root
from tiered.format.segment_indexes import OffsetIndex, TimeIndex, decode_txns
from tiered.model import AbortedTxn, EpochEntry, Row, SealedIndexes, SegmentDescriptor, TopicPartition
from tiered.plan.maintenance import newest_trimmed
from tiered.plan.read import READ_LIMITS, ByteRange, ReadLimits, RequestSizes, SegmentRange, byte_range
from tiered.plan.visibility import aborted_within, open_firsts, stable_offset
from tiered.remote.assembly import SegmentScan
from tiered.remote.catalog_view import CatalogView
from tiered.remote.fetch import ByteCache, fetches, read_range
from tiered.store.base import Get, Object, Steps

LOGGER = logging.getLogger("tiered.remote")


def describes(descriptor: SegmentDescriptor, row: Row) -> bool:
    """Return True if a bundle's descriptor belongs to ``row``. Timestamps are not compared.

    The descriptor of a staged segment has neither base offset nor leader epoch of the row.
    """
    offsets, epoch = (row.base, row.next), row.leader_epoch
    if row.flags & FLAG_STAGED:
        offsets, epoch = (0, row.next - row.base), descriptor.leader_epoch
    fields = (descriptor.base_offset, descriptor.end_offset, descriptor.size_bytes, descriptor.crc32c)
    return (*fields, descriptor.records, descriptor.leader_epoch) == (*offsets, row.size, row.crc, row.records, epoch)


class SegmentLookup:
    """Reader of the indexes of one partition's remote segments. Streams may share it.

    ``cache``: cache of segment bytes. ``indexes``: cache of index bundles, which several lookups may share; None: they
    go into ``cache``. ``limits``: sizes of requests.
    """

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: UUID,
        cache: ByteCache,
        indexes: ByteCache | None = None,
        limits: ReadLimits = READ_LIMITS,
    ) -> None:
        self.limits = limits
        self._tp = tp
        self._topic_id = topic_id
        self._cache = cache
        self._indexes = cache if indexes is None else indexes

    def log_key(self, row: Row) -> str:
        """Return the key of the ``.log`` of a row."""
        return segment_key(self._topic_id, self._tp.partition, row)

    def section(self, row: Row, kind: SectionKind) -> Steps[bytes]:
        """Return one verified section of a row's bundle; empty if the bundle has none of this kind.

        A row without records has no bundle: its indexes are empty. If a segment with records has no bundle, only offset
        and time index are empty; other sections raise CorruptionError. Raises SegmentGone for a missing bundle,
        CorruptionError for a damaged one.
        """
        key = index_key(self._topic_id, self._tp.partition, row)
        if not row.idx_len:
            if row.size and kind not in (SectionKind.OFFSET_INDEX, SectionKind.TIME_INDEX):
                raise CorruptionError(
                    f"{self._tp}: the catalog has no index bundle for offsets {row.base} to {row.next}",
                    path_or_key=key,
                    offset=row.base,
                    hint=f"`tiered repair {self._tp.topic}:{self._tp.partition}` makes it from the .log",
                )
            return b""
        prefix_bytes = row.idx_len if row.idx_len <= self.limits.bundle_bytes else HEAD_BYTES
        prefix = yield from self._cached(key, row, 0, prefix_bytes)
        head = decode_bundle_head(prefix, key=key)
        self._check_head(head, row, key)
        section = head.section(kind)
        if section is None:
            return b""
        end = section.position + section.length
        if end <= len(prefix):
            return verify_section(section, prefix[section.position : end], key=key)
        data = yield from self._cached(key, row, section.position, end)
        return verify_section(section, data, key=key)

    def byte_range(self, row: Row, start: int, end: int) -> Steps[ByteRange]:
        """Return the range of bytes of a row's ``.log`` that contains offsets ``start`` to ``end`` (exclusive).

        Sends no request for the whole ``.log``, which is returned if all its offsets are wanted or if it is small.
        Raises CorruptionError if the offset index has no bytes for these offsets.
        """
        if start <= row.base and end >= row.next:
            return ByteRange(0, row.size)
        if row.size <= self.limits.unindexed_bytes:
            return ByteRange(0, row.size)
        data = yield from self.section(row, SectionKind.OFFSET_INDEX)
        wanted = byte_range(OffsetIndex.from_bytes(data, row.base).entries, row.size, start, end)
        if not wanted.size_bytes:  # an empty range would hide the wanted records
            raise self._wrong_index(row, f"its offset index has no bytes for offsets {start} to {end}")
        return wanted

    def offset_for_time(self, snapshot: CatalogView, timestamp: int, at: int = 0) -> Steps[tuple[int, int] | None]:
        """Return (offset, timestamp) of the first record with a timestamp of at least ``timestamp``, None without one.

        Kafka's rule (``ListOffsets``): the first in offset order, even if timestamps are out of order, control records
        included. Records below the snapshot's ``start_offset`` do not count. Kafka gives up after the first segment
        that could match; here later ones are tried. ``at``: segments that end at or below this offset are skipped.
        """
        at = max(at, snapshot.start_offset)
        while (row := (yield from snapshot.reaching(timestamp, at))) is not None:
            if not row.flags & FLAG_HOLE:
                found = yield from self._search(row, timestamp, max(row.base, snapshot.start_offset))
                if found is not None:
                    return found
            at = row.next
        return None

    def aborted_txns(self, snapshot: CatalogView, start: int, end: int) -> Steps[list[AbortedTxn]]:
        """Return aborted transactions that overlap ``start`` to ``end`` (exclusive), in the order of their markers.

        Reads transaction indexes as Kafka does: from the segment of ``start`` on, until an entry shows that no
        transaction before ``end`` was still open. Segments without aborted transactions cost nothing.
        """
        found: list[AbortedTxn] = []
        at = max(start, snapshot.start_offset)
        while len(rows := (yield from snapshot.flagged(FLAG_ABORTED_TXNS, at))):
            for row in rows:
                data = yield from self.section(row, SectionKind.TXN_INDEX)
                more, complete = aborted_within(decode_txns(data, row.base), start, end)
                found += more
                if complete:
                    return found
            at = rows.end_offset
        return found

    def last_stable_offset(self, snapshot: CatalogView) -> Steps[int]:
        """Return the last stable offset of the remote tier: the first offset of the oldest open transaction, otherwise
        the end.
        """
        data = yield from self.producer_snapshot(snapshot)
        if not data:
            return snapshot.next_offset
        firsts = open_firsts(decode_snapshot(data)).values()
        return stable_offset(firsts, snapshot.start_offset, snapshot.next_offset)

    def producer_snapshot(self, snapshot: CatalogView) -> Steps[bytes]:
        """Return the producers at the end of the remote tier, as a ``.snapshot`` file; empty if none are known.

        For a log that was trimmed to its end, they come from the last trimmed segment, which garbage collection spares.
        After a staged segment of a sink none are known: the producers of a local log cannot continue there.
        """
        last = yield from snapshot.last()
        if last is None:
            indexes = yield from self._trimmed(snapshot.root)
            return b"" if indexes is None else indexes.producer_snapshot
        if last.flags & FLAG_STAGED:
            return b""
        return (yield from self.section(last, SectionKind.PRODUCER_SNAPSHOT))

    def leader_epochs(self, snapshot: CatalogView) -> Steps[tuple[EpochEntry, ...]]:
        """Return the log's leader epochs up to the end of the remote tier, as its writer knew them; empty if unknown.

        They are in the last segment's bundle. For a staged segment, the root's lineage is used. It also has the
        epochs that claims of empty volumes began.
        """
        last, root = (yield from snapshot.last()), snapshot.root
        if last is None:
            indexes = yield from self._trimmed(root)
            return () if indexes is None else indexes.leader_epochs
        if last.flags & FLAG_STAGED:
            return tuple([entry for entry in root.lineage if entry.start_offset < last.next])
        data = yield from self.section(last, SectionKind.LEADER_EPOCHS)
        return decode_leader_epochs(data, key=index_key(self._topic_id, self._tp.partition, last))

    def _trimmed(self, root: Root) -> Steps[SealedIndexes | None]:
        """Return the indexes of the last segment of a log that was trimmed to its end; None if they are unknown."""
        entry = newest_trimmed(root)
        if entry is None:
            return None
        key = index_key(self._topic_id, self._tp.partition, trashed_segment(entry))
        got = yield Get(key, max_bytes=MAX_BUNDLE_BYTES)
        if not isinstance(got, Object):  # deleted by a maintainer of a release that did not keep it
            LOGGER.warning("producers_unknown partition=%s key=%s offset=%d", self._tp, key, root.next_offset)
            return None
        bundle = decode_bundle(got.data, key=key)
        described = bundle.descriptor
        if (described.topic_id, described.partition, described.end_offset) != (
            self._topic_id,
            self._tp.partition,
            root.next_offset,
        ):
            return None  # the entry is of a replaced segment: the last one that was trimmed lay in a page
        return bundle.indexes

    def _search(self, row: Row, timestamp: int, start: int) -> Steps[tuple[int, int] | None]:
        data = yield from self.section(row, SectionKind.TIME_INDEX)
        index = TimeIndex.from_bytes(data, row.base)
        reached, below = index.lookup(timestamp)
        above = next((offset for ts, offset in index.entries if ts > timestamp), row.next - 1)
        begin, middle = max(below, start), above + 1
        proof = reached if reached >= 0 and below > start else None
        if begin < middle < row.next:
            found = yield from self._scan_times(row, timestamp, start, begin, middle, proof)
            if found is not None:
                return found
            begin, proof = middle, None  # all matches are below the log's start: search the rest
        return (yield from self._scan_times(row, timestamp, start, begin, row.next, proof))

    def _scan_times(  # noqa: PLR0917 - private, in the order of a range
        self, row: Row, timestamp: int, start: int, begin: int, end: int, proof: int | None
    ) -> Steps[tuple[int, int] | None]:
        """Return (offset, timestamp) of the first record with at least ``timestamp``, not below offset ``start``.

        Only batches that touch offsets ``begin`` to ``end`` (exclusive) are read.

        ``proof``: greatest timestamp of the first of these batches according to the time index; None: not checked.
        Raises CorruptionError if the batch has another one.
        """
        wanted = yield from self.byte_range(row, begin, end)
        key = self.log_key(row)
        scan = SegmentScan(self._tp, key, row, position=wanted.start, start=begin, end=end)
        for fetch in fetches(SegmentRange(row, begin, end), key, wanted, RequestSizes(self.limits)):
            data = yield from fetch.steps(self._tp, self._cache)
            for header, batch in scan.feed(data):
                if proof not in (None, header.max_timestamp):
                    raise self._wrong_index(
                        row, f"its time index has {proof} for the batch at {header.base_offset}: {header.max_timestamp}"
                    )
                proof = None
                if header.max_timestamp < timestamp:
                    continue
                for record in decode_records(batch):
                    if record.timestamp >= timestamp and record.offset >= start:
                        return record.offset, record.timestamp
            if scan.done:
                return None
        scan.finish()
        return None

    def _wrong_index(self, row: Row, what: str) -> CorruptionError:
        key = index_key(self._topic_id, self._tp.partition, row)
        return CorruptionError(
            f"{self._tp}: {key} is wrong: {what}",
            path_or_key=key,
            offset=row.base,
            hint=f"`tiered repair {self._tp.topic}:{self._tp.partition}` makes another from the .log",
        )

    def forget(self, key: str) -> None:
        """Drop the bundle ``key`` from the cache, so that the next lookup reads it again."""
        self._indexes.drop(key)

    def _cached(self, key: str, row: Row, start: int, end: int) -> Steps[bytes]:
        held = self._indexes.get((key, start))
        if held is None:
            held = yield from read_range(self._tp, key, row, start, end, row.idx_len)
            self._indexes.put((key, start), held)
        return held

    def _check_head(self, head: BundleHead, row: Row, key: str) -> None:
        descriptor = head.descriptor
        whose = (descriptor.topic_id, descriptor.partition)
        times = (descriptor.min_timestamp, descriptor.max_timestamp)
        if (
            whose != (self._topic_id, self._tp.partition)
            or not describes(descriptor, row)
            or times != (row.min_ts, row.max_ts)
        ):
            raise CorruptionError(
                f"{self._tp}: {key} describes offsets {descriptor.base_offset} to {descriptor.end_offset} of "
                f"{descriptor.topic_id}-{descriptor.partition}, but the catalog names {row.base} to {row.next}"
                + ("" if times == (row.min_ts, row.max_ts) else f"; times {times}, not {(row.min_ts, row.max_ts)}"),
                path_or_key=key,
                position=0,
                offset=row.base,
                hint="this is not the committed bundle: "
                f"`tiered repair {self._tp.topic}:{self._tp.partition}` rebuilds it from the .log",
            )
