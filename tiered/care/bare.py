"""A ``.log`` whose bundle is lost, and that no copy of a root names: what its batches prove of its row.

An upload that never ended looks the same: its ``.log`` comes first. So the batches have to tell that the log held them.
A leader epoch is of one volume, and a volume writes an offset once: batches with the leader epochs that the log had at
their offsets are the log's. What leader epochs it had, the bundle of the next segment tells. Nothing of that is outside
a check: the CRC of a batch leaves out its base offset, its length and its leader epoch, and these three have to meet
their neighbours and that bundle.

It has to be a writer's, and whole: dense batches from the offset in its key up to where the next segment begins. The
last segment of a log has none behind it, and its bundle alone tells the producers: nothing is proven of it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from tiered.care.inspection import BatchFeed
from tiered.care.segment_objects import bundle_of
from tiered.errors import CorruptionError
from tiered.format.batch import BatchHeader, decode_records, least_timestamp, verify_batch
from tiered.format.keys import FLAG_ABORTED_TXNS, Role, SegmentName, segment_key, split_uid
from tiered.format.root import Root
from tiered.format.segment_stats import SegmentStats
from tiered.model import EpochEntry, Row, TopicPartition
from tiered.plan.maintenance import READ_BYTES
from tiered.plan.producer import read_producer
from tiered.store.base import Get, Object, Steps


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets ``start`` to ``end`` of a log that nothing tells; ``after``: the row that begins there."""

    start: int
    end: int
    after: Row


def gaps_of(rows: Sequence[Row], copy: Root | None) -> list[Gap]:
    """Between ``rows``, which are in order, and before the first of them, from where ``copy`` begins, if there is one.

    What lies behind the last of them is no gap.
    """
    before = [copy.start_offset if copy is not None else 0, *(row.next for row in rows)]
    pairs = zip(before, rows, strict=False)
    return [Gap(at, row.base, row) for at, row in pairs if at < row.base]


def told_by_batches(
    tp: TopicPartition,
    topic_id: UUID,
    gaps: Sequence[Gap],
    untold: Mapping[str, SegmentName],
    sizes: Mapping[str, int],
) -> Steps[tuple[list[Row], dict[str, str]]]:
    """Rows in ``gaps`` of which the batches prove that the log held them, and, by key, why others are not proven.

    ``untold``: what is there without a bundle, by key of the ``.log``. Reads each of them that lies in a gap. A row has
    no length of a bundle: ``repair index`` makes that.
    """
    rows: list[Row] = []
    unproven: dict[str, str] = {}
    for gap in gaps:
        inside = {key: name for key, name in untold.items() if gap.start <= name.base < gap.end}
        if not inside:
            continue
        bundle = yield from bundle_of(tp, topic_id, gap.after)
        epochs = bundle.indexes.leader_epochs if bundle is not None else ()
        found: list[Row] = []
        for key, name in inside.items():
            reading = _Reading(key, name, sizes[key], epochs)
            if not epochs:
                why = f"{segment_key(topic_id, tp.partition, gap.after)}, the next one, does not tell leader epochs"
            else:
                why = yield from reading.read()
            if why:
                unproven[key] = why
            else:
                found.append(reading.row)
        chained = _chain(found, gap)
        rows += chained
        for row in found:
            if not any(taken.base <= row.base < taken.next for taken in chained):
                unproven[segment_key(topic_id, tp.partition, row)] = f"nothing begins where it ends, at {row.next}"
    return rows, unproven


def _chain(found: Sequence[Row], gap: Gap) -> list[Row]:
    """Rows side by side that end where the gap does. Two of the same end hold the same records, told twice."""
    chained: list[Row] = []
    end = gap.end
    while here := [row for row in found if row.next == end]:
        newest = max(here, key=lambda row: (row.claim_epoch, row.base))
        chained.append(newest)
        end = newest.base
    return chained[::-1]


class _Reading:
    """One ``.log``, read to its end; ``row`` is right once :meth:`read` has given no reason against it."""

    def __init__(self, key: str, name: SegmentName, size: int, epochs: Sequence[EpochEntry]) -> None:
        self._key, self._name, self._size, self._epochs = key, name, size, epochs
        self._stats = SegmentStats()
        self._next = name.base
        self._aborted = False
        self._stored_ms = -1  # its records were appended before, and no bundle says when

    @property
    def row(self) -> Row:
        """What its batches add up to."""
        stats, name = self._stats, self._name
        return Row(
            name.base,
            self._next,
            stats.min_timestamp,
            stats.max_timestamp,
            stats.size_bytes,
            stats.crc32c,
            *split_uid(name.uid),
            idx_len=0,
            claim_epoch=name.epoch,
            records=stats.records,
            flags=FLAG_ABORTED_TXNS if self._aborted else 0,
            leader_epoch=stats.leader_epoch,
            appended_ms=self._stored_ms,
        )

    def read(self) -> Steps[str]:
        """Why nothing is proven of it, ``""`` if its row is."""
        if self._name.role is not Role.WRITER:
            return "a rewrite may have been under way"
        try:
            yield from self._batches()
        except CorruptionError as damage:
            return damage.message
        if self._stats.size_bytes != self._size or self._next == self._name.base:
            return f"its batches end at byte {self._stats.size_bytes} of {self._size}"
        return ""

    def _batches(self) -> Steps[None]:
        feed, at = BatchFeed(self._size), 0
        while at < self._size and not feed.done:
            got = yield Get(self._key, at, min(at + READ_BYTES, self._size))
            if not isinstance(got, Object) or got.size != self._size or not got.data:
                raise CorruptionError(f"it has not its {self._size} bytes any more")
            at, self._stored_ms = at + len(got.data), got.last_modified_ms or -1
            for position, batch in feed.feed(got.data):
                self._see(position, batch)

    def _see(self, position: int, batch: memoryview) -> None:
        """Raises CorruptionError for a batch that the log did not hold there, as far as can be known."""
        header = verify_batch(batch)
        deque(decode_records(batch), maxlen=0)  # a right CRC only says that the bytes are those written
        if header.magic != 2 or header.base_offset != self._next:
            raise CorruptionError(f"byte {position}: a batch of offset {header.base_offset} follows {self._next}")
        flaw = _epoch_flaw(header, self._epochs)
        if flaw:
            raise CorruptionError(f"byte {position}: {flaw}")
        told = read_producer(header, batch)
        self._aborted |= told is not None and told.marker is not None and told.marker.abort
        least = least_timestamp(header, batch)
        self._stats.add(batch, header.records_count, least, header.max_timestamp, header.leader_epoch)
        self._next = header.next_offset


def _epoch_flaw(header: BatchHeader, epochs: Sequence[EpochEntry]) -> str:
    """Why a batch is not the log's, by the leader epochs that the log had; ``""`` if it is."""
    for entry, later in itertools.pairwise((*epochs, None)):
        if entry is None or header.base_offset < entry.start_offset:
            break
        if later is None or header.base_offset < later.start_offset:
            if header.leader_epoch == entry.epoch and (later is None or header.next_offset <= later.start_offset):
                return ""
            return f"offset {header.base_offset} has leader epoch {header.leader_epoch}, the log had {entry.epoch}"
    return f"nothing tells which leader epoch the log had at offset {header.base_offset}"
