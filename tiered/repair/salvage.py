"""A new segment from whole batches: an index made from the log, a local run, or a hole for the lost offsets.

::

    .log ── whole_batches ── what is left ───────────┐
    bundle of the segment before ── Follower ────────┼──> new .log and .idx, which replace the row
    transactions open where a loss begins ── markers ┘

Where lengths lead from batch to batch and each CRC holds, only offsets and leader epochs can be wrong: the CRC does not
cover them. Otherwise whole batches are searched at every byte.

A loss may swallow the end of a transaction. Where the row's own bundle is whole, it names the transactions that ended
here, and markers with these outcomes take lost offsets. Without it each transaction that is open where the loss begins
gets an ABORT marker.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tiered.check.segment_check import judge_index, own_row
from tiered.errors import CorruptionError
from tiered.format.batch import BatchHeader, empty_batch, encode_marker, read_header, rebased, verify_batch
from tiered.format.batch_scanner import BatchPosition, Offsets
from tiered.format.bundle import Bundle
from tiered.format.control import ControlType
from tiered.format.keys import FLAG_HOLE, FLAG_STAGED
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from tiered.format.segment_indexes import decode_txns, encode_txns
from tiered.local.disk.files import PosixFiles
from tiered.local.recovery.segment_recovery import salvage
from tiered.local.segment.scan import LogFile
from tiered.model import Row, TopicPartition
from tiered.plan.producer import read_producer
from tiered.plan.producer_state import ProducerSnapshot as Producers
from tiered.plan.side_files import NO_PRODUCERS, Follower
from tiered.plan.visibility import open_firsts
from tiered.remote.catalog_view import CatalogView
from tiered.remote.segment_rewriter import RewriteContext, SegmentOutput
from tiered.repair.versions import RepairSource
from tiered.store.base import NewId, Steps
from tiered.store.steps import blocking

Ranges = tuple[tuple[int, int], ...]
"""Ranges of offsets that are lost."""
Batch = tuple[BatchHeader, bytes]
EpochAt = Callable[[int, int, int], int]


def whole_batches(
    log: LogFile, offsets: Offsets, epoch_at: Callable[[int], int], *, dense: bool, sealed: int
) -> tuple[tuple[BatchPosition, ...], Ranges]:
    """Return the undamaged batches of a ``.log`` within ``offsets``, and the ranges of offsets that are lost.

    ``epoch_at``: returns the leader epoch of an offset, -1 if unknown. ``dense``: each offset had a record. ``sealed``:
    size of the undamaged ``.log``, -1 if unknown.
    """
    size = log.size()
    found = _intact(log, size)
    if not found:
        found = list(salvage(log, 0, size, offsets))
    elif dense:
        found = _in_their_place(found, offsets)
    spans, lost, at, position = list[BatchPosition](), list[tuple[int, int]](), offsets.base, 0
    for span in found:
        epoch = epoch_at(span.base_offset)
        if not at <= span.base_offset <= span.last_offset < offsets.next:
            continue
        if epoch >= 0 and log.header_at(span.position, size).leader_epoch != epoch:
            continue
        if span.base_offset > at and (dense or span.position > position):
            lost.append((at, span.base_offset))
        spans.append(span)
        at, position = span.last_offset + 1, span.position + span.size
    if at < offsets.next and (dense or position < size or sealed > size):
        lost.append((at, offsets.next))
    return tuple(spans), tuple(lost)


def _intact(log: LogFile, size: int) -> list[BatchPosition]:
    """Return all batches if each CRC is right and they fill the file, otherwise an empty list."""
    spans: list[BatchPosition] = []
    try:
        for span, view in log.batches(0, size):
            if not log.is_intact(view):
                return []
            spans.append(span)
    except CorruptionError:
        return []
    return spans if spans and spans[-1].position + spans[-1].size == size else []


def _in_their_place(spans: Sequence[BatchPosition], offsets: Offsets) -> list[BatchPosition]:
    """Return the batches without a gap from the start of ``offsets``, and those without a gap up to its end.

    A batch with a damaged base offset lies between these two runs, and is left out.
    """
    first, at, after = 0, offsets.base, offsets.next
    while first < len(spans) and spans[first].base_offset == at:
        at, first = spans[first].last_offset + 1, first + 1
    last = len(spans)
    while last > first and spans[last - 1].last_offset + 1 == after and spans[last - 1].base_offset >= at:
        after, last = spans[last - 1].base_offset, last - 1
    return [*spans[:first], *spans[last:]]


class DamagedRow(NamedTuple):
    """Row with damaged objects. ``source``: bytes for its new ``.log``. ``bundle``: its own, None if damaged."""

    topic_id: UUID
    tp: TopicPartition
    row: Row
    source: RepairSource
    bundle: Bundle | None = None

    @property
    def staged(self) -> bool:
        """Return True if a sink wrote the segment: its batches begin at offset 0 and name no producers."""
        return bool(self.row.flags & FLAG_STAGED)


def _fetched(one: DamagedRow, pinned: CatalogView, path: Path) -> Steps[tuple[tuple[BatchPosition, ...], Ranges]]:
    """Copy the bytes of ``source`` into a file. Return the undamaged batches, and the ranges of lost offsets.

    An object of another size, or with right batches but another checksum, holds another segment: all offsets are lost.
    If one batch of the local segments is damaged, all offsets count as lost.
    """
    row, own, source = one.row, own_row(one.row), one.source
    with path.open("wb") as file:
        crc = yield from source._replace(size=min(source.size, row.size)).copy(file.write)

    def epoch_at(offset: int) -> int:
        below = [each.epoch for each in pinned.root.lineage if each.start_offset <= offset]
        return below[-1] if below and not one.staged else -1

    def find() -> tuple[tuple[BatchPosition, ...], Ranges]:
        with LogFile(PosixFiles(), path) as log:
            offsets, dense = Offsets(own.base, own.next), row.records == row.next - row.base
            return whole_batches(log, offsets, epoch_at, dense=dense, sealed=log.size())

    spans, lost = yield from blocking(find)
    right = crc == row.crc and source.size > 0
    if bool(lost) if source.run else not right and (source.size != row.size or not lost):
        return (), ((row.base, row.next),)
    moved = row.base - own.base
    return spans, tuple([(start + moved, end + moved) for start, end in lost])


def row_before(pinned: CatalogView, row: Row) -> Steps[Row | None]:
    """Return the row before ``row`` that has objects; None at the start of the log."""
    at = row.base
    while at > pinned.start_offset:
        before = yield from pinned.at(at - 1)
        if before is None or not before.flags & FLAG_HOLE:
            return before
        at = before.base
    return None


def follower_at(one: DamagedRow, pinned: CatalogView) -> Steps[Follower]:
    """Return a replay of producers (a Follower) at the start of the row of ``one``, to be fed the row's batches.

    Its producers come from the bundle of the row before. If that bundle is missing or damaged, it has no producers and
    counts its state as incomplete.
    """
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


class Rewrite:
    """Writer of a new ``.log``: undamaged batches, and markers that end each transaction whose end may be lost.

    ``lost``: ranges of offsets. ``follower``: has seen all earlier batches. ``epoch_at``: leader epoch of a lost range,
    given its bounds and the epoch of the batch before it. ``bundle``: that of the segment, if it is whole; it names the
    transactions that ended. ``filled``: an empty batch takes the lost offsets that no marker takes. ``where``: path or
    key, for errors. ``timestamp``: least timestamp of a marker. ``notes``: a sentence for each transaction that counts
    as aborted without a proof.
    """

    def __init__(
        self, where: str, lost: Ranges, follower: Follower, epoch_at: EpochAt, timestamp: int = 0, *,
        bundle: Bundle | None = None, filled: bool = False,
    ) -> None:  # fmt: skip
        self.follower, self.notes = follower, list[str]()
        self._where, self._lost, self._epoch_at, self._filled = where, list(lost), epoch_at, filled
        self._epoch, self._timestamp = -1, timestamp
        known = bundle.indexes if bundle is not None else None
        self._ended = decode_txns(known.txn_index) if known is not None else None
        self._open = open_firsts(decode_snapshot(known.producer_snapshot or NO_PRODUCERS)) if known is not None else {}

    def batches(
        self, log: LogFile, spans: Sequence[BatchPosition], end: int, staged: Row | None = None
    ) -> Iterator[Batch]:
        """Yield each batch of the new ``.log`` up to offset ``end``, with its header. ``spans``: undamaged batches in
        ``log``.

        ``staged``: the row of a sink, whose batches begin at offset 0. Raises CorruptionError if a lost range is too
        small for the markers, unless the rewrite is ``filled``.
        """
        for span in spans:
            data = log.read_at(span.position, span.size)
            header = verify_batch(data)
            if staged is not None:
                header, moved = rebased(memoryview(data), header, staged.base, staged.leader_epoch)
                data = bytes(moved)
            yield from self._before(header.base_offset)
            self._epoch, self._timestamp = header.leader_epoch, max(self._timestamp, header.max_timestamp)
            yield self._seen(header, data)
        yield from self._before(end)

    def _seen(self, header: BatchHeader, data: bytes) -> Batch:
        self.follower.see(read_producer(header, data))
        return header, data

    def _before(self, offset: int) -> Iterator[Batch]:
        while self._lost and self._lost[0][0] < offset:
            yield from self._markers(*self._lost.pop(0))

    def _markers(self, start: int, end: int) -> Iterator[Batch]:
        epoch, at = self._epoch_at(start, end, self._epoch), start
        for producer in sorted(self.follower.producers(), key=lambda each: each.txn_first_offset):
            first = producer.txn_first_offset
            if first < 0 or self._open.get(producer.producer_id) == first:
                continue
            if at == end:
                if self._filled:
                    break
                raise CorruptionError(
                    f"{self._where}: {end - start} offsets are lost from offset {start} on, too few for abort "
                    "markers of all open transactions",
                    path_or_key=self._where,
                    offset=start,
                    hint="put the object back from a backup of the bucket",
                )
            marker = self._marker(producer, at, epoch)
            yield self._seen(read_header(marker), marker)
            at += 1
        if self._filled and at < end:
            empty = empty_batch(at, end, epoch)
            yield read_header(empty), empty

    def _marker(self, producer: ProducerEntry, at: int, epoch: int) -> bytes:
        kind, txn = ControlType.ABORT, (producer.producer_id, producer.txn_first_offset)
        if self._ended is None:
            self.notes.append(f"the transaction of producer {txn[0]} from offset {txn[1]} on counts as aborted")
        elif not any((each.producer_id, each.first_offset) == txn for each in self._ended):
            kind = ControlType.COMMIT
        return encode_marker(
            kind,
            max(producer.coordinator_epoch, 0),
            self._timestamp,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_offset=at,
            leader_epoch=epoch,
        )


def plan_remains(one: DamagedRow, pinned: CatalogView, *, accepted: bool) -> Steps[tuple[Ranges, tuple[str, ...]]]:
    """Return the ranges of offsets that can no longer be read from the bytes for ``one``.

    If the loss is ``accepted``, also return a sentence for each transaction that will count as aborted.
    """
    if accepted:
        made, lost = yield from _rewritten(one, pinned, None)
        return lost, tuple(made.notes)
    with tempfile.TemporaryDirectory() as folder:
        _, lost = yield from _fetched(one, pinned, Path(folder) / "log")
    return lost, ()


def _rewritten(one: DamagedRow, pinned: CatalogView, output: SegmentOutput | None) -> Steps[tuple[Rewrite, Ranges]]:
    """Write the batches of the new segment for ``one`` to ``output``, if any. Return the rewrite and lost ranges."""
    row, bundle = one.row, None if one.staged else one.bundle

    def epoch_at(_: int, end: int, before: int) -> int:
        return row.leader_epoch if end == row.next or before < 0 else before

    follower = yield from follower_at(one, pinned)
    with tempfile.TemporaryDirectory() as folder:
        spans, lost = yield from _fetched(one, pinned, Path(folder) / "log")
        left = () if one.staged else lost
        made = Rewrite(one.source.key, left, follower, epoch_at, max(row.max_ts, 0), bundle=bundle)
        with LogFile(PosixFiles(), Path(folder) / "log") as log:
            batches = made.batches(log, spans, row.next, row if one.staged else None)
            while (batch := (yield from blocking(partial(next, batches, None)))) is not None:
                if output is not None:
                    yield from output.keep(*batch)
    return made, lost


def write_remains(one: DamagedRow, context: RewriteContext, pinned: CatalogView, lost: Ranges) -> Steps[Row]:
    """Write the new segment for ``one`` and return its row. ``lost``: the planned ranges of lost offsets.

    Raises CorruptionError if other offsets are lost now.
    """
    row = one.row
    output = SegmentOutput(context, [row], (yield NewId()))
    made, found = yield from _rewritten(one, pinned, output)
    if found != lost:
        yield from output.abandon()
        raise CorruptionError(
            f"{one.tp}: {one.source.key} has changed since the repair was planned",
            path_or_key=one.source.key,
            offset=row.base,
            hint="run `tiered repair` again",
        )
    epochs = tuple([each for each in context.lineage if each.start_offset < row.next])
    if one.staged:
        return (yield from output.finish(b"", NO_PRODUCERS, epochs))
    if one.source.run:
        indexes = yield from blocking(lambda: [each.indexes() for each in one.source.run])
        txns = [txn for each in indexes for txn in decode_txns(each.txn_index)]
        return (yield from output.finish(encode_txns(txns), indexes[-1].producer_snapshot, epochs))
    followed = made.follower.end_segment()
    snapshot = encode_snapshot(followed.producers) if followed.producers else b""
    if one.bundle is not None:  # the bundle has the sequences of the lost batches
        snapshot = one.bundle.indexes.producer_snapshot
    if not output.written[0] and snapshot not in (b"", NO_PRODUCERS):  # a hole has no place for a snapshot
        empty = empty_batch(row.base, row.next, row.leader_epoch)
        yield from output.keep(read_header(empty), empty)
    return (yield from output.finish(encode_txns(followed.aborted), snapshot, epochs))
