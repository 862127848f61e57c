"""Rewrite of a segment in another codec, or in the current batch format, over exactly the same offsets.

::

    message formats 0 and 1      become format 2: offsets, keys, values, timestamps and their type stay
    format 2, another codec      the same records, byte for byte, recompressed: header, producer and sequence stay
    markers, empty batches       stay as they are: they have no codec

A segment with neither of the first two is read once and left alone. Transaction index, producers and leader epochs are
copied. Nothing is committed here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tiered.config import MAX_INT, TopicConfig
from tiered.errors import CorruptionError, TieredError
from tiered.format.batch import BatchHeader, decode_records, read_header, rebuild_batch, recoded_batch
from tiered.format.bundle import SectionKind
from tiered.format.codecs import Codec, configured
from tiered.format.header import Buffer
from tiered.format.keys import FLAG_ABORTED_TXNS
from tiered.model import Row
from tiered.remote.assembly import MAX_BATCH_BYTES
from tiered.remote.fetch import SegmentGone
from tiered.remote.segment_rewriter import SegmentOutput, Workshop, in_turn
from tiered.store.base import NewId, Steps

_LEGACY_MAGICS = 2  # 0 and 1


@dataclass(frozen=True, slots=True)
class Encoding:
    """Wanted encoding of batches. ``codec`` None: each batch keeps its codec."""

    codec: Codec | None
    level: int | None = None

    @classmethod
    def from_config(cls, config: TopicConfig) -> Encoding:
        """Return the encoding of a topic's ``compression.type``; ``producer`` keeps each batch's codec."""
        return cls(None) if config.compression_type == "producer" else cls(*configured(config))

    def holds(self, header: BatchHeader) -> bool:
        """Return True if a batch has this encoding already."""
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
    """Rewritten segment or batch that would exceed its size limit."""


def reencode_row(shop: Workshop, row: Row, encoding: Encoding) -> Steps[Row | None]:
    """Return the row of the new segment; None if all batches have the encoding already.

    Reads to the first batch that has not, then all. Raises TooLarge, SegmentGone, CorruptionError if the segment is not
    the one in the catalog.
    """
    if not (yield from _needs_it(shop, row, encoding)):
        return None
    output = SegmentOutput(shop, [row], (yield NewId()))

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

    try:
        yield from shop.read(in_turn([row]), add_batch)
        output.stats.count(0, row.min_ts, -1)  # no record has another timestamp than before
        has_txns = row.flags & FLAG_ABORTED_TXNS
        txn_index = (yield from shop.lookup.section(row, SectionKind.TXN_INDEX)) if has_txns else b""
        snapshot, epochs = yield from shop.beside([row])
        made = yield from output.finish(txn_index, snapshot, epochs)
        _check(shop, row, made)
    except (TieredError, SegmentGone, TooLarge):
        yield from output.abandon()
        raise
    return made


def _needs_it(shop: Workshop, row: Row, encoding: Encoding) -> Steps[bool]:
    """Return True if a batch lacks the encoding. Reads nothing ahead, because the first batch usually decides."""
    found = False

    def add_batch(header: BatchHeader, _batch: memoryview) -> Steps[bool]:
        nonlocal found
        yield from ()
        found = not encoding.holds(header)
        return not found

    yield from replace(shop, ahead_bytes=0).read(in_turn([row]), add_batch)
    return found


def _check(shop: Workshop, row: Row, made: Row) -> None:
    """Raise CorruptionError unless offsets, records and times stay the same."""
    kept = [(each.base, each.next, each.records, each.min_ts, each.max_ts) for each in (row, made)]
    if kept[0] != kept[1]:
        raise CorruptionError(
            f"{shop.tp}: a segment of {kept[0]} (first and next offset, records, least and greatest timestamp) became "
            f"one of {kept[1]}: nothing was replaced",
            path_or_key=shop.lookup.log_key(row),
            offset=row.base,
            hint="run check",
        )
