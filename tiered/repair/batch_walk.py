"""Batches of one ``.log``, some of which may be damaged: those that are whole, and the losses between them.

::

    bytes of the object ── BatchFeed ── CRC, records, place, index ──> take(batch) or Loss
                                 ↑ after damage: the next place that the offset index names
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tiered.checking.inspection import BatchFeed
from tiered.errors import CorruptionError
from tiered.format.batch import BatchHeader, decode_records, verify_batch
from tiered.format.bundle import Bundle
from tiered.format.crc import crc32c
from tiered.format.offset_index import OffsetIndex
from tiered.model import Row, TopicPartition
from tiered.plan.maintenance import READ_BYTES
from tiered.store.base import Get, Object, Steps

Take = Callable[[BatchHeader, memoryview], Steps[None]]


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets ``start`` to ``end`` that are lost, and why."""

    start: int
    end: int
    why: str


class BatchWalk:
    """Batches of one ``.log``. Goes on after damage at the next place that the offset index names."""

    def __init__(self, tp: TopicPartition, key: str, row: Row, size: int, bundle: Bundle | None) -> None:
        self._tp, self._key, self._row, self._size = tp, key, row, size
        self._places: list[int] = []
        self._offsets: dict[int, int] = {}
        self.strange = False
        self._right = {(row.size, row.crc)}
        if bundle is not None:
            told = bundle.descriptor
            self._right.add((told.size_bytes, told.crc32c))  # object and bundle that agree are right, the row is not
            index = OffsetIndex.from_bytes(bundle.indexes.offset_index, row.base)
            self._places = [position for _, position in index.entries]
            self._offsets = {position: offset for offset, position in index.entries}

    def is_right(self) -> Steps[bool]:
        """Return whether the bytes are those of the catalog or of the bundle. Bytes after them are left out."""
        crc, at = 0, 0
        for end in sorted(size for size, _ in self._right if size <= self._size):
            while at < end:
                data = yield from self._bytes(at, end)
                crc, at = crc32c(data, crc), at + len(data)
            if (end, crc) in self._right:
                self._size = end
                return True
        return False

    def _bytes(self, at: int, end: int) -> Steps[bytes]:
        got = yield Get(self._key, at, min(at + READ_BYTES, end))
        if not isinstance(got, Object) or not got.data:
            raise CorruptionError(
                f"{self._tp}: {self._key} ends at byte {at} by now",
                path_or_key=self._key,
                position=at,
                hint="plan again",
            )
        return got.data

    def run(self, take: Take) -> Steps[list[Loss]]:
        """Hand each batch to ``take``; return what is lost between them."""
        self._lost: list[Loss] = []
        self.strange = False  # whether the offset index tells other things of batches that are whole
        self._expected, self._why, self._epoch = self._row.base, "", -1
        start = 0
        while start < self._size:
            try:
                yield from self._from(start, take)
                break
            except CorruptionError as damage:
                self._why = self._why or damage.message
                reached = start + max(damage.position, 0)
                start = next((place for place in self._places if place > reached), self._size)
        if self._expected < self._row.next and (self._why or self._size < self._row.size):
            why = self._why or f"the object ends at byte {self._size}"
            self._lost.append(Loss(self._expected, self._row.next, why))
        return self._lost

    def _from(self, start: int, take: Take) -> Steps[None]:
        feed, at, end = BatchFeed(self._size - start), start, start
        while at < self._size and not feed.done:
            data = yield from self._bytes(at, self._size)
            at += len(data)
            for position, batch in feed.feed(data):
                end = start + position + len(batch)
                yield from self._batch(start + position, batch, take)
        if end < self._size and not self._why and self._expected < self._row.next:
            self._why = "a batch is cut off"  # compaction takes the last offsets of a segment, too: that is no loss

    def _batch(self, position: int, batch: memoryview, take: Take) -> Steps[None]:
        try:
            header = verify_batch(batch)
            deque(decode_records(batch), maxlen=0)  # a right CRC only says that the bytes are those written
        except CorruptionError as damage:
            self._why = self._why or f"byte {position}: {damage.message}"
            return
        inside = self._expected <= header.base_offset and header.next_offset <= self._row.next
        if not inside or not self._epoch <= header.leader_epoch <= self._row.leader_epoch:
            self._why = self._why or f"byte {position}: a batch of offset {header.base_offset} cannot stand there"
            return
        if not self._is_indexed(position, len(batch), header):
            self.strange = True
        if self._why:
            self._lost.append(Loss(self._expected, header.base_offset, self._why))
            self._why = ""
        self._expected, self._epoch = header.next_offset, header.leader_epoch
        yield from take(header, batch)

    def _is_indexed(self, position: int, size_bytes: int, header: BatchHeader) -> bool:
        """Return whether the offset index can be of a log with this batch.

        An entry of a broker is of all batches that were appended together.
        """
        behind = bisect.bisect_right(self._places, position)
        if behind < len(self._places) and self._places[behind] < position + size_bytes:
            return False
        return self._offsets.get(position, header.last_offset) >= header.last_offset


def take_nothing(_: BatchHeader, __: memoryview) -> Steps[None]:
    """Ignore a batch: only the losses are asked for."""
    yield from ()
