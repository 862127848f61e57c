"""A new segment of the batches of a ``.log`` that are whole: an index made from the log, or a hole for what is lost.

::

    .log ── BatchWalk ── whole batches ──────────────┐
    bundle of the segment before ── Follower ────────┼──> new .log and .idx, which replace the row
    transactions open where a loss begins ── markers ┘

A loss may swallow the end of a transaction. Where the row's own bundle is whole, it names the transactions that ended
here, and markers with these outcomes take lost offsets. Without it each transaction that is open where the loss begins
gets an ABORT marker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from tiered.errors import CorruptionError
from tiered.format.batch import BatchHeader, empty_batch, encode_marker, least_timestamp, read_header, rebased
from tiered.format.bundle import Bundle
from tiered.format.control import ControlType
from tiered.format.keys import FLAG_HOLE, FLAG_STAGED
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from tiered.format.txn_index import decode_txns, encode_txns
from tiered.model import Row, TopicPartition
from tiered.plan.producer import read_producer
from tiered.plan.producer_state import Snapshot as Producers
from tiered.plan.side_files import NO_PRODUCERS, Follower
from tiered.plan.visibility import open_firsts
from tiered.remote.rewrite import SegmentOutput, Workshop
from tiered.remote.snapshot import Snapshot
from tiered.repair.batch_walk import BatchWalk, Loss, Take, take_nothing
from tiered.repair.judge import judge_index, own_row
from tiered.store.base import NewId, Steps


class Remains(NamedTuple):
    """A row whose objects are not right. ``size``: of its ``.log``, 0 without one. ``bundle``: its own, if whole."""

    topic_id: UUID
    tp: TopicPartition
    row: Row
    log_key: str
    size: int
    bundle: Bundle | None

    @property
    def staged(self) -> bool:
        """Return whether a sink wrote it: its batches begin at offset 0 and name no producers."""
        return bool(self.row.flags & FLAG_STAGED)


def walk(one: Remains, take: Take = take_nothing) -> Steps[list[Loss]]:
    """Hand the batches that are whole to ``take``, in order; return the ranges of offsets between them that are lost.

    An object of right batches whose checksum is another one holds another segment: all offsets are lost. Batches of a
    sink do not show their place: they count only in an object of their full size.
    """
    row = one.row
    if not one.size:
        return [Loss(row.base, row.next, "the .log is missing")]
    batches = BatchWalk(one.tp, one.log_key, own_row(row), one.size, one.bundle)
    if not (yield from batches.is_right()):
        lost = yield from batches.run(take_nothing)
        cut = one.size < row.size and (one.staged or batches.strange)
        if not lost or one.size > row.size or cut:
            return [Loss(row.base, row.next, "the .log holds another segment")]
    if not one.staged:
        return (yield from batches.run(take))

    def moved(header: BatchHeader, batch: memoryview) -> Steps[None]:
        yield from take(*rebased(batch, header, row.base, row.leader_epoch))

    lost = yield from batches.run(moved)
    return [Loss(row.base + loss.start, row.base + loss.end, loss.why) for loss in lost]


def row_before(pinned: Snapshot, row: Row) -> Steps[Row | None]:
    """Return the row before ``row`` that has objects; None at the start of the log."""
    at = row.base
    while at > pinned.start_offset:
        before = yield from pinned.at(at - 1)
        if before is None or not before.flags & FLAG_HOLE:
            return before
        at = before.base
    return None


def follower_at(one: Remains, pinned: Snapshot) -> Steps[Follower]:
    """Return a follower that knows the producers where the row begins, as far as the bundle before it has them."""
    before = yield from row_before(pinned, one.row)
    if before is None:
        return Follower(whole=one.row.base == 0)
    if before.flags & FLAG_STAGED:
        return Follower(whole=True)
    judged = yield from judge_index(one.topic_id, one.tp, before)
    if judged.bundle is None:
        return Follower(whole=False)
    entries = decode_snapshot(judged.bundle.indexes.producer_snapshot or NO_PRODUCERS)
    return Follower(Producers(one.row.base, tuple(entries)), whole=True)


class Markers:
    """Markers that take lost offsets, so that no transaction stays open whose end may be lost."""

    def __init__(self, one: Remains, lost: Sequence[Loss]) -> None:
        self._one, self._lost = one, list(lost)
        self._epoch = -1
        self.aborted: list[tuple[int, int]] = []
        """Producer id and first offset of each transaction that counts as aborted without a proof."""
        told = one.bundle.indexes if one.bundle is not None and not one.staged else None
        self._ended = decode_txns(told.txn_index) if told is not None else None
        self._open = open_firsts(decode_snapshot(told.producer_snapshot or NO_PRODUCERS)) if told is not None else {}

    def before(self, offset: int, follower: Follower) -> list[bytes]:
        """Return the markers for each loss that begins before the batch at ``offset``."""
        made: list[bytes] = []
        while self._lost and self._lost[0].start < offset:
            made += self._of(self._lost.pop(0), follower)
        return made

    def seen(self, header: BatchHeader) -> None:
        """Note the leader epoch of a batch that is written."""
        self._epoch = header.leader_epoch

    def _of(self, loss: Loss, follower: Follower) -> list[bytes]:
        row = self._one.row
        epoch = row.leader_epoch if loss.end == row.next or self._epoch < 0 else self._epoch
        made: list[bytes] = []
        for producer in sorted(follower.producers(), key=lambda each: each.txn_first_offset):
            first = producer.txn_first_offset
            if first < 0 or self._open.get(producer.producer_id) == first:
                continue
            at = loss.start + len(made)
            if at >= loss.end:
                raise CorruptionError(
                    f"{self._one.tp}: {len(made) + 1} transactions are open at offset {loss.start}, and only "
                    f"{loss.end - loss.start} offsets are lost there",
                    path_or_key=self._one.log_key,
                    offset=loss.start,
                    hint="put the object back from a backup of the bucket",
                )
            made.append(self._marker(producer, at, epoch))
        return made

    def _marker(self, producer: ProducerEntry, at: int, epoch: int) -> bytes:
        kind = ControlType.ABORT
        if self._ended is None:
            self.aborted.append((producer.producer_id, producer.txn_first_offset))
        elif not any(
            txn.producer_id == producer.producer_id and txn.first_offset == producer.txn_first_offset
            for txn in self._ended
        ):
            kind = ControlType.COMMIT
        return encode_marker(
            kind,
            max(producer.coordinator_epoch, 0),
            max(self._one.row.max_ts, 0),
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_offset=at,
            leader_epoch=epoch,
        )


def plan_markers(one: Remains, pinned: Snapshot, lost: Sequence[Loss]) -> Steps[list[tuple[int, int]]]:
    """Return producer id and first offset of each transaction that would count as aborted without a proof."""
    follower, markers = (yield from follower_at(one, pinned)), Markers(one, lost)

    def take(header: BatchHeader, batch: memoryview) -> Steps[None]:
        yield from ()
        for made in markers.before(header.base_offset, follower):
            follower.see(read_producer(read_header(made), made))
        follower.see(read_producer(header, batch))

    if not one.staged:
        yield from walk(one, take)
        markers.before(one.row.next, follower)
    return markers.aborted


def write_remains(one: Remains, shop: Workshop, pinned: Snapshot, lost: Sequence[Loss]) -> Steps[Row]:
    """Write the new segment. Raises CorruptionError if the ``.log`` does not read as it was planned."""
    row = one.row
    follower, markers = (yield from follower_at(one, pinned)), Markers(one, lost)
    output = SegmentOutput(shop, [row], (yield NewId()))

    def write(batch: memoryview | bytes, header: BatchHeader) -> Steps[None]:
        follower.see(read_producer(header, batch))
        markers.seen(header)
        output.stats.count(header.records_count, least_timestamp(header, batch), header.max_timestamp)
        yield from output.append(bytes(batch), header)

    def take(header: BatchHeader, batch: memoryview) -> Steps[None]:
        for made in markers.before(header.base_offset, follower):
            yield from write(made, read_header(made))
        yield from write(batch, header)

    found = yield from walk(one, take)
    if tuple(found) != tuple(lost):
        yield from output.abandon()
        raise CorruptionError(
            f"{one.tp}: {one.log_key} does not read as it was planned",
            path_or_key=one.log_key,
            offset=row.base,
            hint="plan the repair again",
        )
    for made in markers.before(row.next, follower) if not one.staged else ():
        yield from write(made, read_header(made))
    epochs = tuple([each for each in shop.lineage if each.start_offset < row.next])
    if one.staged:
        return (yield from output.finish(b"", NO_PRODUCERS, epochs))
    followed = follower.end_segment()
    snapshot = encode_snapshot(followed.producers) if followed.producers else b""
    if one.bundle is not None:  # it knows the sequences of the batches that are lost
        snapshot = one.bundle.indexes.producer_snapshot
    if not output.written[0] and snapshot not in (b"", NO_PRODUCERS):  # a hole has no place for a snapshot
        empty = empty_batch(row.base, row.next, row.leader_epoch)
        yield from write(empty, read_header(empty))
    return (yield from output.finish(encode_txns(followed.aborted), snapshot, epochs))
