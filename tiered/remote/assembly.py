"""Bytes of one segment, as they arrive -> whole, verified batches. Opens nothing; both drivers use it.

A piece may end anywhere inside a batch. Batches that lie inside one piece are handed on as views of it; one that
spans pieces is joined once, when its last byte is there.

The CRC of a batch leaves out its first 21 bytes (base offset, length, leader epoch, magic and the CRC itself), so
damage there is found by order instead: offsets never go back inside a segment and never leave the range that the
catalog gives it, and lengths never reach beyond the object.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiered.errors import CorruptionError
from tiered.format.batch import BatchHeader, read_header, verify_batch
from tiered.model import Row, TopicPartition

MAX_BATCH_BYTES = 256 * 1024 * 1024
"""Largest batch that a reader accepts; the whole of one has to be in memory."""

_PREFIX_BYTES = 12  # base offset and length: enough to know the size of any batch


class SegmentScan:
    """Batches of the segment ``row`` from byte ``position`` on that touch offsets ``start`` to ``end`` (exclusive).

    ``feed`` pieces in order, then ``finish``. Batches wholly below ``start`` are skipped unverified. ``done`` says
    that ``end`` was reached, ``next_offset`` is the offset behind the last batch that was handed on or skipped.
    """

    def __init__(
        self, tp: TopicPartition, key: str, row: Row, *, position: int, start: int, end: int, verify_crc: bool = True
    ) -> None:
        self._tp = tp
        self._key = key
        self._row = row
        self._start = start
        self._end = end
        self._verify_crc = verify_crc
        self._position = position
        self._held: list[memoryview] = []
        self._held_bytes = 0
        self._held_size = _PREFIX_BYTES
        self.next_offset = row.base
        self.done = False

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The batches that ``data`` completes. Raises CorruptionError naming key, position and offset."""
        view = memoryview(data)
        at = 0
        if self._held_bytes:
            at = self._hold(view)
            if self._held_bytes < self._held_size:
                return
            batch = memoryview(b"".join(self._held))
            self._held, self._held_bytes, self._held_size = [], 0, _PREFIX_BYTES
            header = self._accept(batch)
            if header is not None:
                yield header, batch
        while not self.done and len(view) - at >= _PREFIX_BYTES:
            size = self._size_of(view[at : at + _PREFIX_BYTES])
            if at + size > len(view):
                break
            batch = view[at : at + size]
            at += size
            header = self._accept(batch)
            if header is not None:
                yield header, batch
        if not self.done and at < len(view):
            self._hold(view[at:])

    def finish(self) -> None:
        """Call when the last wanted byte was fed. Raises CorruptionError if the bytes end before the offsets do."""
        if not self.done and (self._held_bytes or self._position != self._row.size):
            raise self._corrupt(f"the bytes end before offset {self._end}")

    def _hold(self, view: memoryview) -> int:
        """Keeps what the batch in hand still lacks; returns how many bytes of ``view`` that took."""
        at = 0
        while at < len(view) and self._held_bytes < self._held_size:
            piece = view[at : at + self._held_size - self._held_bytes]
            self._held.append(piece)
            self._held_bytes += len(piece)
            at += len(piece)
            if self._held_bytes == self._held_size == _PREFIX_BYTES:
                self._held_size = self._size_of(memoryview(b"".join(self._held)))
        return at

    def _size_of(self, prefix: memoryview) -> int:
        size = _PREFIX_BYTES + int.from_bytes(prefix[8:12], "big", signed=True)
        if size <= _PREFIX_BYTES or self._position + size > self._row.size:
            raise self._corrupt(f"a batch of {size} bytes does not fit into the object's {self._row.size} bytes")
        if size > MAX_BATCH_BYTES:
            raise self._corrupt(f"a batch of {size} bytes is larger than a reader accepts ({MAX_BATCH_BYTES})")
        return size

    def _accept(self, batch: memoryview) -> BatchHeader | None:
        """The header of a batch that is wanted, None for one to be left out."""
        try:
            header = read_header(batch)
            if header.records_count < 0:  # a compressed v0/v1 message: only its inside tells the first offset
                header = verify_batch(batch, header)
            if not self.next_offset <= header.base_offset <= header.last_offset < self._row.next:
                raise self._corrupt(
                    f"a batch of offsets {header.base_offset} to {header.last_offset} stands where "
                    f"{self.next_offset} to {self._row.next - 1} are expected"
                )
            if header.base_offset >= self._end:
                self.done = True
                return None
            wanted = header.last_offset >= self._start
            if wanted and self._verify_crc:
                verify_batch(batch, header)
        except CorruptionError as error:
            raise error if error.path_or_key else self._corrupt(error.message) from error
        self._position += len(batch)
        self.next_offset = header.next_offset
        self.done = header.next_offset >= self._end
        return header if wanted else None

    def _corrupt(self, reason: str) -> CorruptionError:
        return CorruptionError(
            f"{self._tp}: {reason}, at byte {self._position} of {self._key} (offset {self.next_offset} or later)",
            path_or_key=self._key,
            position=self._position,
            offset=self.next_offset,
            hint="compare the object with its checksum in the catalog (check), and upload the segment again if a "
            "disk still has it",
        )
