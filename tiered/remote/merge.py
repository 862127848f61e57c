"""Merge of small adjacent segments of the bucket into one, over exactly the same offsets.

Batches are read, verified and concatenated, never decoded. Offset and time index are rebuilt. Transaction indexes are
joined. Producers and leader epochs are those of the last input. Nothing is committed here.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.errors import CorruptionError, TieredError
from tiered.format.batch import BatchHeader
from tiered.format.bundle import SectionKind
from tiered.format.keys import FLAG_ABORTED_TXNS
from tiered.model import Row
from tiered.remote.fetch import SegmentGone
from tiered.remote.segment_rewriter import SegmentOutput, Workshop, in_turn
from tiered.store.base import NewId, Steps


def merge_rows(shop: Workshop, rows: Sequence[Row]) -> Steps[Row]:
    """Return the row of the new segment. Raises SegmentGone, CorruptionError if an input contradicts the catalog."""
    output = SegmentOutput(shop, rows, (yield NewId()))

    def add_batch(header: BatchHeader, batch: memoryview) -> Steps[bool]:
        # mutant merge-copies-batches
        yield from output.append(batch, header)
        return True

    try:
        txn_index = b""
        yield from shop.read(in_turn(rows), add_batch)
        for row in rows:
            output.stats.count(row.records, row.min_ts, row.max_ts)
            if row.flags & FLAG_ABORTED_TXNS:
                txn_index += yield from shop.lookup.section(row, SectionKind.TXN_INDEX)
        snapshot, epochs = yield from shop.beside(rows)
        row = yield from output.finish(txn_index, snapshot, epochs)
        _check(shop, rows, row)
    except (TieredError, SegmentGone):
        yield from output.abandon()
        raise
    return row


def _check(shop: Workshop, rows: Sequence[Row], merged: Row) -> None:
    """Raise CorruptionError unless the new segment has the offsets, bytes and records of its inputs."""
    expected = (rows[0].base, rows[-1].next, sum(row.size for row in rows), sum(row.records for row in rows))
    if (merged.base, merged.next, merged.size, merged.records) != expected:
        raise CorruptionError(
            f"{shop.tp}: {len(rows)} rows of {expected} became {merged}: nothing was replaced", offset=rows[0].base
        )
