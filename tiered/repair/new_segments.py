"""New segments that replace damaged ones, over the same offsets.

::

    .log of the row, which is whole ──────────────────────┐
    local segments over the offsets of a compacted row ───┼──> new .log and .idx
    ABORT markers of the transactions that are open here ─┘    without any batch: a hole

A lost segment may hold the end of a transaction. So each transaction that is open where it begins counts as aborted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

from tiered.check.judge import judge_index
from tiered.errors import CorruptionError
from tiered.format.batch import BatchHeader, encode_marker, read_header
from tiered.format.control import ControlType
from tiered.format.keys import FLAG_HOLE, FLAG_STAGED, Role, log_name
from tiered.format.producer_snapshot import decode_snapshot, encode_snapshot
from tiered.format.txn_index import decode_txns, encode_txns
from tiered.model import EpochEntry, Row, SealedSegment, TopicPartition
from tiered.plan.lineage import are_other_epochs, epoch_at
from tiered.plan.maintenance import READ_BYTES
from tiered.plan.producer import NO_OFFSET, read_producer
from tiered.plan.producer_state import ProducerSnapshot
from tiered.plan.side_files import NO_PRODUCERS, Follower
from tiered.remote.assembly import SegmentScan
from tiered.remote.catalog_view import CatalogView
from tiered.remote.segment_rewriter import SegmentOutput, Workshop, in_turn
from tiered.remote.upload import row_of
from tiered.store.base import NewId, Steps, blocking

NO_UID = "0" * 32
"""Id of a row that describes a local segment."""


def follower_at(pinned: CatalogView, tp: TopicPartition, row: Row) -> Steps[Follower]:
    """Return a follower that knows the producers where ``row`` begins, if the bundle before it has them."""
    at, before = row.base, None
    while at > pinned.start_offset and (before is None or before.flags & FLAG_HOLE):
        before = yield from pinned.at(at - 1)
        at = before.base if before is not None else pinned.start_offset
    if before is None or before.flags & FLAG_HOLE:
        return Follower(whole=row.base == 0)
    if before.flags & FLAG_STAGED:
        return Follower(whole=True)
    judged = yield from judge_index(pinned.root.topic_id, tp, before)
    if judged.bundle is None:
        return Follower(whole=False)
    entries = decode_snapshot(judged.bundle.indexes.producer_snapshot or NO_PRODUCERS)
    return Follower(ProducerSnapshot(row.base, tuple(entries)), whole=True)


def abort_open(follower: Follower, start: int, end: int, epoch: int, timestamp: int = 0) -> Iterator[bytes]:
    """Yield an ABORT marker for each open transaction, at offsets from ``start`` on.

    Raises CorruptionError if there are more than offsets below ``end``.
    """
    producers = [each for each in follower.producers() if each.txn_first_offset != NO_OFFSET]
    if len(producers) > end - start:
        raise CorruptionError(
            f"{len(producers)} transactions are open at offset {start}, and only {end - start} offsets are lost there",
            offset=start,
            hint="put the damaged object or file back from a backup",
        )
    for at, each in enumerate(sorted(producers, key=lambda one: one.txn_first_offset), start):
        marker = encode_marker(
            ControlType.ABORT, max(each.coordinator_epoch, 0), timestamp,
            producer_id=each.producer_id, producer_epoch=each.producer_epoch, base_offset=at, leader_epoch=epoch,
        )  # fmt: skip
        follower.see(read_producer(read_header(marker), marker))
        yield marker


def aborted_notes(follower: Follower) -> tuple[str, ...]:
    """Return a sentence for each open transaction."""
    opened = sorted((each.txn_first_offset, each.producer_id) for each in follower.producers())
    return tuple([
        f"the transaction of producer {producer} from offset {first} on counts as aborted"
        for first, producer in opened if first != NO_OFFSET
    ])  # fmt: skip


def local_batches(tp: TopicPartition, segment: SealedSegment) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches of a local segment. Raises CorruptionError for other bytes than it was sealed with."""
    row = row_of(segment.descriptor, uid=NO_UID, role=Role.WRITER, claim_epoch=0, idx_len=0, aborts=False)
    scan = SegmentScan(tp, log_name(row.base), row, position=0, start=row.base, end=row.next)
    with contextlib.closing(segment.open_log()) as log:
        for at in range(0, log.size, READ_BYTES):
            yield from scan.feed(log.read_at(at, min(READ_BYTES, log.size - at)))
    scan.finish()


def is_of_log(tp: TopicPartition, run: Sequence[SealedSegment], lineage: Sequence[EpochEntry]) -> bool:
    """Return True if local segments are whole, and each batch has the leader epoch of the catalog.

    The disk of a fenced writer has other records at the same offsets, under another leader epoch.
    """
    try:
        headers = [header for segment in run for header, _ in local_batches(tp, segment)]
    except CorruptionError:
        return False
    return not any(are_other_epochs(each.leader_epoch, epoch_at(lineage, each.base_offset)) for each in headers)


def write_from_log(shop: Workshop, pinned: CatalogView, row: Row) -> Steps[Row]:
    """Write a segment with the batches of a row. Raises CorruptionError, SegmentGone if they are not whole."""
    output, follower = SegmentOutput(shop, [row], (yield NewId())), (yield from follower_at(pinned, shop.tp, row))

    def add_batch(header: BatchHeader, batch: memoryview) -> Steps[bool]:
        follower.see(read_producer(header, batch))
        yield from output.keep(header, batch)
        return True

    yield from shop.read(in_turn([row]), add_batch)
    return (yield from _finish(shop, output, row, follower))


def write_hole(shop: Workshop, pinned: CatalogView, row: Row) -> Steps[Row]:
    """Write a segment that has only the markers of open transactions; a hole without any."""
    output, follower = SegmentOutput(shop, [row], (yield NewId())), (yield from follower_at(pinned, shop.tp, row))
    for marker in abort_open(follower, row.base, row.next, row.leader_epoch, max(row.max_ts, 0)):
        yield from output.keep(read_header(marker), marker)
    return (yield from _finish(shop, output, row, follower))


def _finish(shop: Workshop, output: SegmentOutput, row: Row, follower: Follower) -> Steps[Row]:
    followed = follower.end_segment()
    snapshot = encode_snapshot(followed.producers) if followed.producers else b""
    if row.flags & FLAG_STAGED and not followed.producers:
        snapshot = NO_PRODUCERS
    return (yield from output.finish(encode_txns(followed.aborted), snapshot, _epochs(shop, row)))


def _epochs(shop: Workshop, row: Row) -> tuple[EpochEntry, ...]:
    return tuple([each for each in shop.lineage if each.start_offset < row.next])


def write_run(shop: Workshop, row: Row, run: Sequence[SealedSegment]) -> Steps[Row]:
    """Write local segments over the offsets of a row as one segment."""
    output = SegmentOutput(shop, [row], (yield NewId()))
    for segment in run:
        batches = local_batches(shop.tp, segment)
        while (batch := (yield from blocking(partial(next, batches, None)))) is not None:
            yield from output.keep(*batch)
    indexes = yield from blocking(lambda: [each.indexes() for each in run])
    txns = [txn for each in indexes for txn in decode_txns(each.txn_index)]
    return (yield from output.finish(encode_txns(txns), indexes[-1].producer_snapshot, _epochs(shop, row)))
