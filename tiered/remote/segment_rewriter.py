"""Rewriting of segments batch by batch, for compaction and erasure. Merging and re-encoding, which keep all records.

::

    GETs of 8 MiB, some ahead ──> SegmentScan (every checksum) ──> batches ──> parts of 16 MiB ──> .log, .idx ──> Row

Peak memory is a piece and the read-ahead, two parts, a batch and the indexes of one segment, for any size of input and
output. Nothing touches a disk. Output lies under the claim of a maintainer. Until its row is committed it is an orphan,
and a later claim proves it dead.

Offset and time index are rebuilt. Transaction indexes, producers and leader epochs are copied or joined. Nothing is
committed here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from tiered.config import MAX_INT, TopicConfig
from tiered.errors import CorruptionError, TieredError
from tiered.format.batch import BatchHeader, decode_records, least_timestamp, read_header, rebuild_batch, recoded_batch
from tiered.format.bundle import SectionKind, decode_leader_epochs, encode_bundle
from tiered.format.codecs import Codec, configured
from tiered.format.header import Buffer
from tiered.format.kernels import crc32c
from tiered.format.keys import (
    FLAG_ABORTED_TXNS,
    FLAG_HOLE,
    FLAG_MAINTAINER,
    FLAG_STAGED,
    Role,
    SegmentName,
    index_key,
    segment_key,
    split_uid,
)
from tiered.format.segment_builder import SegmentStats
from tiered.format.segment_indexes import IndexPace, OffsetIndex, TimeIndex
from tiered.model import EpochEntry, Row, SealedIndexes, TopicPartition
from tiered.plan.maintenance import PART_BYTES, READ_AHEAD_BYTES, READ_BYTES
from tiered.plan.read import ByteRange, SegmentRange
from tiered.plan.side_files import NO_PRODUCERS
from tiered.remote.assembly import MAX_BATCH_BYTES, SegmentScan
from tiered.remote.fetch import ByteCache, Fetch, Prefetch, SegmentGone
from tiered.remote.lookup import SegmentLookup
from tiered.remote.upload import INDEX_TAGS, SEGMENT_TAGS, row_of, verify_sent
from tiered.store.base import Capabilities, NewId, Steps
from tiered.store.unique_upload import ObjectWriter, put_unique

Spend = Callable[[int], None]
"""Called with the number of bytes read; may raise."""
Rows = Callable[[], Steps[Row | None]]
"""Returns one row per call, None after the last."""
Take = Callable[[BatchHeader, memoryview], Steps[bool]]
"""Consumes one batch. Returns True to get more."""

_NO_CACHE = ByteCache(0)
"""Empty cache, because rewritten segments are read once."""


def spend_nothing(_: int) -> None:
    """Do nothing: default ``spend`` of callers that do not count bytes."""


@dataclass(frozen=True, slots=True)
class RewriteContext:
    """Inputs of a rewrite of one partition's segments. New segments belong to claim ``claim_epoch`` of role ``m``.

    ``lineage``: leader epochs in the catalog. The leader epochs of staged segments are stored only there.
    ``capabilities``: result of the store's probe. ``part_bytes``: size of multipart parts. ``ahead_bytes``: most bytes
    read ahead. ``spend``: called with the number of bytes of each read; it may raise.
    """

    tp: TopicPartition
    topic_id: UUID
    lookup: SegmentLookup
    capabilities: Capabilities
    claim_epoch: int
    index_interval_bytes: int
    lineage: tuple[EpochEntry, ...]
    part_bytes: int = PART_BYTES
    ahead_bytes: int = READ_AHEAD_BYTES
    spend: Spend = spend_nothing

    def read(self, rows: Rows, take: Take, ended: Callable[[Row], None] = lambda _: None) -> Steps[None]:
        """Pass every batch of ``rows`` to ``take``, in order, until it returns False. Reads ``ahead_bytes`` ahead.

        The memoryview of a batch is valid only during its call of ``take``. ``ended`` gets each row that was read to
        its end: all of its bytes were batches, and their checksum is the catalog's. Raises SegmentGone
        for a missing object, CorruptionError for a damaged one.
        """
        ahead = Prefetch(partial(_next_fetch, rows, self.lookup, []), self.tp, _NO_CACHE, max_bytes=self.ahead_bytes)
        try:
            while (row := (yield from self._segment(ahead, take))) is not None:
                ended(row)
        except (TieredError, SegmentGone):
            yield from ahead.abandon()
            raise
        yield from ahead.abandon()  # ``take`` may have stopped early

    def _segment(self, ahead: Prefetch, take: Take) -> Steps[Row | None]:
        """Pass the batches of the next row to ``take``, and return the row.

        None: there is no further row, or ``take`` returned False.
        """
        scan, taken = None, 0
        while (got := (yield from ahead.next())) is not None:
            fetch, data = got
            row, key = fetch.segment.row, fetch.key
            scan = scan or SegmentScan(self.tp, key, row, position=0, start=row.base, end=row.next)
            self.spend(len(data))
            for header, batch in scan.feed(data):
                taken += len(batch)
                try:
                    if not (yield from take(header, batch)):
                        return None
                except CorruptionError as error:
                    raise error if error.path_or_key else self._damage(key, taken, error) from error
                del batch
            del got, data  # free them before the next piece arrives
            if fetch.range.end == row.size:
                self._finish(scan, row, key, taken)
                return row
        return None

    def _finish(self, scan: SegmentScan, row: Row, key: str, taken: int) -> None:
        scan.finish()
        if taken != row.size:
            raise CorruptionError(
                f"{self.tp}: {key} has {row.size} bytes, but its batches up to offset {row.next} have only {taken}",
                path_or_key=key,
                position=taken,
                offset=row.base,
                hint=f"run `tiered check {self.tp.topic}`; nothing was replaced",
            )

    def _damage(self, key: str, end: int, error: CorruptionError) -> CorruptionError:
        return CorruptionError(
            f"{self.tp}: {error.message}, before byte {end} of {key}",
            path_or_key=key,
            position=end,
            offset=error.offset,
            hint=f"run `tiered check {self.tp.topic}`; nothing was replaced",
        )

    def state_at_end(self, rows: Sequence[Row]) -> Steps[tuple[bytes, tuple[EpochEntry, ...]]]:
        """Return the producer snapshot and the leader epochs at the end of ``rows``, for a new segment's bundle.

        Both come from the bundle of the last row with objects; without such a row both are empty. If that row is a
        staged segment, the snapshot has no producers, and the epochs come from ``lineage``.
        """
        held = [row for row in rows if row.size]
        if not held:
            return b"", ()
        if held[-1].flags & FLAG_STAGED:
            return NO_PRODUCERS, tuple([entry for entry in self.lineage if entry.start_offset < held[-1].next])
        snapshot = yield from self.lookup.section(held[-1], SectionKind.PRODUCER_SNAPSHOT)
        epochs = yield from self.lookup.section(held[-1], SectionKind.LEADER_EPOCHS)
        return snapshot, decode_leader_epochs(epochs, key=index_key(self.topic_id, self.tp.partition, held[-1]))


def in_turn(rows: Iterable[Row]) -> Rows:
    """Return a function whose steps return ``rows`` one by one, then None."""
    left = iter(rows)

    def following() -> Steps[Row | None]:
        yield from ()
        return next(left, None)

    return following


def _next_fetch(rows: Rows, lookup: SegmentLookup, pieces: list[Fetch]) -> Steps[Fetch | None]:
    """Return the next fetch, None after the last row. ``pieces``: remaining fetches of the current row, last first."""
    while not pieces:
        row = yield from rows()
        if row is None:
            return None
        segment, key = SegmentRange(row, row.base, row.next), lookup.log_key(row)
        bounds = [(at, min(at + READ_BYTES, row.size)) for at in range(0, row.size, READ_BYTES)]
        pieces += [Fetch(segment, key, ByteRange(start, end)) for start, end in reversed(bounds)]
    return pieces.pop()


class SegmentOutput:
    """Writer of one new segment over the offsets of adjacent ``rows``. Batches stay at their offsets.

    Offset and time index are built from the appended batches. ``stats``: record count and time range of the new
    segment, which the caller fills. ``uid``: 32 hex digits for the object names.
    """

    def __init__(self, context: RewriteContext, rows: Sequence[Row], uid: str) -> None:
        base, end = rows[0].base, rows[-1].next
        self.stats = SegmentStats(appended_ms=max(row.appended_ms for row in rows))
        self._context = context
        self._base, self._end, self._uid = base, end, uid
        self._leader_epoch = max(row.leader_epoch for row in rows)  # for a hole; ``append`` sets that of the last batch
        self._name = SegmentName(Role.MAINTAINER, context.claim_epoch, base, uid)
        self._log = ObjectWriter(
            segment_key(context.topic_id, context.tp.partition, self._name), SEGMENT_TAGS, part_bytes=context.part_bytes
        )
        self._offsets = OffsetIndex(base)
        self._times = TimeIndex(base)
        self._pace = IndexPace(context.index_interval_bytes, self._times.last_entry)
        self._next = base

    @property
    def written(self) -> tuple[int, int]:
        """Return size and CRC32C of the ``.log`` so far."""
        return self._log.size, self._log.crc32c

    def append(self, batch: Buffer, header: BatchHeader) -> Steps[None]:
        """Append one batch, byte for byte. The caller adds its records and times to ``stats``.

        Raises CorruptionError if the batch overlaps the previous one, or leaves the offsets of the segment. Raises the
        store's errors: a full part is sent here.
        """
        if header.base_offset < self._next or header.next_offset > self._end:
            raise CorruptionError(
                f"{self._context.tp}: the batch of offsets {header.base_offset} to {header.last_offset} is out "
                f"of order: {self._next} is next, and the segment ends at {self._end}",
                path_or_key=self._log.key,
                position=self._log.size,
                offset=header.base_offset,
                hint=f"run `tiered check {self._context.tp.topic}`; nothing was replaced",
            )
        if self._pace.count(len(batch), header.last_offset, header.max_timestamp):
            self._offsets.append(header.last_offset, self._log.size)
            self._add_time()
        self._next, self._leader_epoch = header.next_offset, header.leader_epoch
        yield from self._log.write(batch)

    def keep(self, header: BatchHeader, batch: Buffer) -> Steps[None]:
        """Append one batch, byte for byte, and add its records and times to ``stats``.

        Raises CorruptionError if the batch overlaps the previous one, or leaves the offsets of the segment. Raises the
        store's errors: a full part is sent here.
        """
        self.stats.count(header.records_count, least_timestamp(header, batch), header.max_timestamp)
        yield from self.append(bytes(batch), header)

    def finish(self, txn_index: bytes, snapshot: bytes, epochs: tuple[EpochEntry, ...]) -> Steps[Row]:
        """Store and verify ``.log`` and ``.idx``, and return the row of the new segment. Commits nothing.

        The arguments are the transaction index, producer snapshot and leader epochs for the bundle. Without batches
        nothing is stored, and the row covers the offsets without any object.
        """
        context, stats = self._context, self.stats
        if not self._log.size:
            made = hole(self._base, self._end, self._uid, context.claim_epoch, self._leader_epoch)
            return made._replace(appended_ms=stats.appended_ms)
        self._add_time()
        stats.size_bytes, stats.crc32c = self.written
        stats.leader_epoch = self._leader_epoch
        descriptor = stats.descriptor(context.topic_id, context.tp.partition, self._base, self._end)
        indexes = SealedIndexes(self._offsets.to_bytes(), self._times.to_bytes(), txn_index, snapshot, epochs)
        sent = yield from self._log.finish()
        yield from verify_sent(self._log.key, self._log.size, self._log.crc32c, sent, context.capabilities)
        bundle = encode_bundle(descriptor, indexes, context.claim_epoch)
        crc, key = crc32c(bundle), index_key(context.topic_id, context.tp.partition, self._name)
        sent = yield from put_unique(key, bundle, crc, INDEX_TAGS)
        yield from verify_sent(key, len(bundle), crc, sent, context.capabilities)
        return row_of(
            descriptor,
            uid=self._uid,
            role=Role.MAINTAINER,
            claim_epoch=context.claim_epoch,
            idx_len=len(bundle),
            aborts=bool(txn_index),
        )

    def abandon(self) -> Steps[None]:
        """Abort the output. Objects that are stored already become orphans."""
        with contextlib.suppress(TieredError):
            yield from self._log.abort()

    def _add_time(self) -> None:
        if self._pace.largest[0] >= 0:
            self._times.maybe_append(*self._pace.largest)


def hole(base: int, end: int, uid: str, claim_epoch: int, leader_epoch: int) -> Row:
    """Return a row that covers offsets ``base`` to ``end`` (exclusive) without any record or object.

    ``uid``: 32 hex digits that no other row has. No object is named by them.
    """
    id_hi, id_lo = split_uid(uid)
    return Row(
        base=base,
        next=end,
        min_ts=-1,
        max_ts=-1,
        size=0,
        crc=0,
        id_hi=id_hi,
        id_lo=id_lo,
        idx_len=0,
        claim_epoch=claim_epoch,
        records=0,
        flags=FLAG_HOLE | FLAG_MAINTAINER,
        leader_epoch=leader_epoch,
    )


def merge_rows(context: RewriteContext, rows: Sequence[Row]) -> Steps[Row]:
    """Store one new segment over exactly the offsets of adjacent ``rows``, and return its row. Commits nothing.

    Batches are read, verified and concatenated, never decoded. Producers and leader epochs are those of the last input.
    Raises SegmentGone, CorruptionError if an input contradicts the catalog.
    """
    output = SegmentOutput(context, rows, (yield NewId()))

    def add_batch(header: BatchHeader, batch: memoryview) -> Steps[bool]:
        # mutant merge-copies-batches
        yield from output.append(batch, header)
        return True

    for row in rows:
        output.stats.count(row.records, row.min_ts, row.max_ts)
    merged = yield from _copied(context, rows, output, add_batch)
    expected = (rows[0].base, rows[-1].next, sum(row.size for row in rows), sum(row.records for row in rows))
    if (merged.base, merged.next, merged.size, merged.records) != expected:
        raise CorruptionError(
            f"{context.tp}: the segment merged from {len(rows)} has other totals: "
            f"{(merged.base, merged.next, merged.size, merged.records)} instead of {expected} "
            "(first offset, next offset, bytes, records)",
            offset=rows[0].base,
            hint=f"run `tiered check {context.tp.topic}`; nothing was replaced",
        )
    return merged


def _copied(context: RewriteContext, rows: Sequence[Row], output: SegmentOutput, take: Take) -> Steps[Row]:
    """Pass the batches of ``rows`` to ``take``, which appends them to ``output``. Return the row of ``output``.

    Transaction indexes, producers and leader epochs come from ``rows``. After an error ``output`` is aborted.
    """
    try:
        yield from context.read(in_turn(rows), take)
        txn_index = b""
        for row in rows:
            if row.flags & FLAG_ABORTED_TXNS:
                txn_index += yield from context.lookup.section(row, SectionKind.TXN_INDEX)
        snapshot, epochs = yield from context.state_at_end(rows)
        return (yield from output.finish(txn_index, snapshot, epochs))
    except (TieredError, SegmentGone, TooLarge):
        yield from output.abandon()
        raise


_LEGACY_MAGICS = 2  # 0 and 1


@dataclass(frozen=True, slots=True)
class Encoding:
    """Wanted encoding of batches. ``codec`` None: each batch keeps its codec.

    ::

        message formats 0 and 1      become format 2: offsets, keys, values, timestamps and their type stay
        format 2, another codec      the same records, byte for byte, recompressed: header, producer and sequence stay
        markers, empty batches       stay as they are: they have no codec
    """

    codec: Codec | None
    level: int | None = None

    @classmethod
    def from_config(cls, config: TopicConfig) -> Encoding:
        """Return the encoding of a topic's ``compression.type``; ``producer`` keeps each batch's codec."""
        return cls(None) if config.compression_type == "producer" else cls(*configured(config))

    def holds(self, header: BatchHeader) -> bool:
        """Return True if a batch has this encoding, or needs none (a control batch, or one without records)."""
        if header.magic < _LEGACY_MAGICS:
            return False
        return self.codec in (None, header.codec) or header.is_control or not header.records_count

    def encode(self, header: BatchHeader, batch: Buffer) -> bytes:
        """Return a verified batch in this encoding. Raises CorruptionError if its records cannot be read."""
        codec = header.codec if self.codec is None else self.codec
        if header.magic < _LEGACY_MAGICS:
            batch = rebuild_batch(header, list(decode_records(batch)), codec=Codec.NONE)
            header = read_header(batch)
            if codec is Codec.NONE:
                return batch
        return recoded_batch(header, batch, codec, self.level)


class TooLarge(Exception):
    """Error: a rewritten segment or batch would exceed its size limit."""


def reencode_row(context: RewriteContext, row: Row, encoding: Encoding) -> Steps[Row | None]:
    """Store the segment of ``row`` again, in ``encoding``, and return the new row. Commits nothing.

    None, and nothing is stored: all batches have the encoding already. Reads up to the first batch in another encoding,
    then the whole segment. Raises TooLarge, SegmentGone, CorruptionError if the segment is not the one in the catalog.
    """
    if not (yield from _needs_it(context, row, encoding)):
        return None
    output = SegmentOutput(context, [row], (yield NewId()))

    def add_batch(header: BatchHeader, batch: memoryview) -> Steps[bool]:
        data: Buffer = batch
        if not encoding.holds(header):
            data = encoding.encode(header, batch)
            header = read_header(data)
        if len(data) > MAX_BATCH_BYTES or output.written[0] + len(data) > MAX_INT:
            raise TooLarge
        output.stats.count(header.records_count, -1, header.max_timestamp)
        # mutant reencode-copies-batches
        yield from output.append(data, header)
        return True

    output.stats.count(0, row.min_ts, -1)  # no record has another timestamp than before
    made = yield from _copied(context, [row], output, add_batch)
    kept = [(each.base, each.next, each.records, each.min_ts, each.max_ts) for each in (row, made)]
    if kept[0] != kept[1]:
        raise CorruptionError(
            f"{context.tp}: the re-encoded segment has other totals: {kept[1]} instead of {kept[0]} "
            "(first offset, next offset, records, least timestamp, greatest timestamp)",
            path_or_key=context.lookup.log_key(row),
            offset=row.base,
            hint=f"run `tiered check {context.tp.topic}`; nothing was replaced",
        )
    return made


def _needs_it(context: RewriteContext, row: Row, encoding: Encoding) -> Steps[bool]:
    """Return True if a batch lacks the encoding. Reads nothing ahead, because the first batch usually decides."""
    found = False

    def add_batch(header: BatchHeader, _batch: memoryview) -> Steps[bool]:
        nonlocal found
        yield from ()
        found = not encoding.holds(header)
        return not found

    yield from replace(context, ahead_bytes=0).read(in_turn([row]), add_batch)
    return found
