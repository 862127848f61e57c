"""Assembly of arriving bytes of one segment into whole, verified batches. Opens nothing; both drivers use it.

A piece may end anywhere inside a batch. Batches inside one piece are returned as views of it. A batch that spans pieces
is joined once, when its last byte has arrived.

The CRC of a batch leaves out its first 21 bytes (base offset, length, leader epoch, magic and the CRC itself). Damage
there is found by order: offsets never go back inside a segment and never leave the catalog's range, and lengths never
exceed the object. If the catalog counts a record for every offset, none may be missing.

A staged segment holds offsets from 0 on (``FLAG_STAGED``). It is checked against its own range. Its batches are
returned with the row's base added, under the row's leader epoch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from tiered.errors import CorruptionError
from tiered.format.batch import BatchHeader, read_header, rebased, verify_batch
from tiered.format.batch_scanner import (
    MAX_IGNORED_TAIL_BYTES,
    BatchPosition,
    BatchRun,
    BatchWalk,
    Offsets,
    walk_headers,
)
from tiered.format.kernels import crc32c
from tiered.format.keys import FLAG_STAGED
from tiered.model import Row, TopicPartition

MAX_BATCH_BYTES = 256 * 1024 * 1024
"""Largest batch that a reader accepts, because a whole batch must fit into memory."""

_PREFIX_BYTES = MAX_IGNORED_TAIL_BYTES  # enough to know the size of any batch, and too little to be one


class SegmentDiffers(CorruptionError):
    """Error after all bytes of a segment were read: their checksum is not that in the catalog.

    ``base_offset``: first offset of the segment.
    """

    def __init__(self, message: str, *, key: str, row: Row) -> None:
        super().__init__(
            message,
            path_or_key=key,
            position=0,
            offset=row.base,
            hint="the object was replaced or changed: `tiered repair TOPIC:P --dry-run` looks for an older version",
        )
        self.base_offset = row.base


class SegmentScan:
    """Scan of the bytes of segment ``row`` for the batches that touch offsets ``start`` to ``end`` (exclusive).

    ``position``: byte of the ``.log`` at which the bytes begin. Pass all of them to ``feed`` in order, then call
    ``finish``. Batches wholly below ``start`` are skipped unverified. ``done`` is True once ``end`` was reached.
    ``verify_crc`` False: no checksum is compared.

    If the whole ``.log`` is fed, its CRC32C is compared with the row's before the last call returns a batch. Batches of
    earlier calls were verified only by their own CRCs. If only a part is fed, batch CRCs, offsets, times and the
    object's size are checked against the row.
    """

    def __init__(
        self, tp: TopicPartition, key: str, row: Row, *, position: int, start: int, end: int, verify_crc: bool = True
    ) -> None:
        self._tp = tp
        self._key = key
        self._row = row
        self._staged = bool(row.flags & FLAG_STAGED)
        self._origin = origin = row.base if self._staged else 0  # added to the stored offsets
        self._start = start - origin
        self._end = end - origin
        self._verify_crc = verify_crc
        dense = row.records == row.next - row.base
        self._offsets = Offsets(row.base - origin, row.next - origin)
        self._walk = BatchWalk(self._damage, position=position, offsets=self._offsets, dense=dense)
        self._crc = 0
        self._counted = 0 if verify_crc and position == 0 else -1
        self._summing = False
        self._held: list[memoryview] = []
        self._held_bytes = 0
        self._held_size = _PREFIX_BYTES
        self._by_index = position > 0
        self._dense = dense
        self._first = True
        self._beyond = False
        self._next = self._offsets.base
        self.done = False

    @property
    def next_offset(self) -> int:
        """Return the offset after the last batch that was returned or skipped."""
        return self._next + self._origin

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the batches that ``data``, the next bytes, completes. Raises CorruptionError for damage."""
        for found in self.runs(data):
            if isinstance(found, BatchRun):
                for position, header in walk_headers(found.data):
                    yield header, found.data[position : position + header.size_bytes]
            else:
                yield found

    def runs(self, data: bytes | memoryview) -> Iterator[tuple[BatchHeader, memoryview] | BatchRun]:
        """Yield the batches that ``data``, the next bytes, completes.

        Consecutive v2 batches of wanted offsets come undecoded, as one :class:`BatchRun`. Each other batch comes as
        (header, bytes). Raises CorruptionError for damage, with key, position and offset.
        """
        view = memoryview(data)
        summing = self._count_piece(view)
        pieces = [] if self.done else [view]
        if self._held_bytes:
            at = self._hold(view)
            if summing:
                self._crc = crc32c(view[:at], self._crc)
            if self._held_bytes < self._held_size:
                return
            pieces = [memoryview(b"".join(self._held)), view[at:]]
            self._held, self._held_bytes, self._held_size = [], 0, _PREFIX_BYTES
        for piece in pieces:
            before, at = self._walk.position, 0
            self._summing = summing and piece is pieces[-1]  # the joined piece is in the checksum already
            while not self.done:
                run = self._run(piece[at:])
                if run is not None:
                    yield run
                else:
                    found = next(self._walk.whole(piece[at:]), None)
                    if found is None:
                        break
                    if self._summing:
                        self._crc = crc32c(found[1], self._crc)
                    header = self._accept(*found)
                    if header is not None:
                        yield self._handed(header, found[1])
                at = self._walk.position - before
            if summing and (self._summing or self.done):
                self._crc = crc32c(pieces[-1][at if self._summing else 0 :], self._crc)
            if self.done:
                return
            if at < len(piece):
                self._hold(piece[at:])

    def _handed(self, header: BatchHeader, batch: memoryview) -> tuple[BatchHeader, memoryview]:
        if self._staged:
            header, batch = rebased(batch, header, self._origin, self._row.leader_epoch)
        return header, batch

    def _run(self, piece: memoryview) -> BatchRun | None:
        """Return the verified v2 batches at the start of ``piece``; None if the first one must be checked alone.

        These are checked alone: the first batch at a place from an index, batches below the wanted offsets, and those
        of a staged segment.
        """
        if self._staged or not self._verify_crc or self._beyond or (self._by_index and self._first):
            return None
        if self._walk.expected < self._start or len(piece) <= MAX_IGNORED_TAIL_BYTES:
            return None
        total = self._crc if self._summing else -1
        run = self._walk.verified(piece, self._end, most_bytes=MAX_BATCH_BYTES, latest=self._row.max_ts, total=total)
        if run is None:
            return None
        if self._summing:
            self._crc = run.total
        self._first = False
        self._next = run.next_offset
        self.done = run.next_offset >= self._end
        return run

    def finish(self) -> None:
        """Raise CorruptionError if the fed bytes end before the wanted offsets do. Call it after the last byte."""
        if self.done or (self._beyond and not self._held_bytes):
            return
        position = self._walk.position
        if self._held_bytes or position != self._row.size:
            raise self._corrupt(f"the bytes end before offset {self._end}")
        if self._dense and self._next < self._offsets.next:
            raise self._corrupt(f"offsets {self._next} to {self._offsets.next} are missing")

    def _count_piece(self, view: memoryview) -> bool:
        """Return True if the segment's CRC can be combined from the CRCs of the batches in ``view``.

        Return False if ``view`` ends the segment: its batches may be returned only once the segment's checksum is
        known. Also return False if no such checksum is compared. Raises SegmentDiffers if the checksum is wrong. If a
        batch in ``view`` is damaged, that batch's own error is raised later instead.
        """
        if self._counted < 0:
            return False
        self._counted += len(view)
        if self._counted < self._row.size and not self.done:
            return True
        self._crc = crc32c(view, self._crc)
        if self._counted == self._row.size and self._crc != self._row.crc and not self._is_damaged(view):
            raise SegmentDiffers(
                f"{self._tp}: {self._key} (offsets {self._row.base} to {self._row.next}) has CRC32C {self._crc:#010x}, "
                f"the catalog says {self._row.crc:#010x}",
                key=self._key,
                row=self._row,
            )
        return False

    def _is_damaged(self, view: memoryview) -> bool:
        probe = copy.copy(self)
        probe._held, probe._counted, probe._walk = list(self._held), -1, copy.copy(self._walk)
        try:
            for _ in probe.feed(view):
                pass
            probe.finish()
        except CorruptionError:
            return True
        return False

    def _hold(self, view: memoryview) -> int:
        """Buffer the missing bytes of the current batch from ``view``. Return the number of bytes taken."""
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
        size = self._walk.size_at(prefix)
        if self._walk.position + size > self._row.size:
            raise self._corrupt(f"a batch of {size} bytes does not fit into the object's {self._row.size} bytes")
        if size > MAX_BATCH_BYTES:
            raise self._too_large(size, self._walk.position)
        return size

    def _too_large(self, size: int, position: int) -> CorruptionError:
        what = f"a batch of {size} bytes is larger than a reader accepts ({MAX_BATCH_BYTES})"
        return self._corrupt(what, position)

    def _accept(self, span: BatchPosition, batch: memoryview) -> BatchHeader | None:
        """Check one whole batch. Return its header, or None if the batch is outside the wanted offsets.

        ``span``: position and size of the batch. Raises CorruptionError for a damaged one.
        """
        if span.size > MAX_BATCH_BYTES:
            raise self._too_large(span.size, span.position)
        try:
            header = read_header(batch)
            if self._staged and header.magic < 2:
                raise self._corrupt(f"a batch of format v{header.magic}, whose CRC holds its offsets", span.position)
            if header.records_count < 0:  # a compressed v0/v1 message: only its content has the first offset
                header = verify_batch(batch, header)
                if header.base_offset < self._next:
                    raise self._corrupt(
                        f"a batch of offsets {header.base_offset} to {header.last_offset} stands where "
                        f"{self._next} to {self._offsets.next - 1} are expected",
                        span.position,
                    )
            if self._by_index or header.magic < 2:
                self._check_gap(header, span.position)
            if header.max_timestamp > self._row.max_ts:
                raise self._corrupt(
                    f"a batch has the timestamp {header.max_timestamp}, the catalog says that none is above "
                    f"{self._row.max_ts}",
                    span.position,
                )
            next_offset = header.base_offset + header.last_offset_delta + 1
            wanted = self._start < next_offset and header.base_offset < self._end
            if wanted and self._verify_crc:
                verify_batch(batch, header)
        except CorruptionError as error:
            raise error if error.path_or_key else self._corrupt(error.message, span.position) from error
        self._next = next_offset
        if header.base_offset >= self._end:
            # Offsets up to the end are missing. A damaged base offset looks the same: wait for the next batch.
            self.done, self._beyond = self._beyond, True
        else:
            self.done = next_offset >= self._end
        return header if wanted else None

    def _check_gap(self, header: BatchHeader, position: int) -> None:
        first, self._first = self._first, False
        if first and self._by_index:
            if header.base_offset > self._start:
                what = f"the index points here for offset {self._start}, but offset {header.base_offset} begins here"
                raise self._corrupt(what, position)
        elif self._dense and header.magic < 2 and header.base_offset > self._next:
            raise self._corrupt(f"offsets {self._next} to {header.base_offset} are missing", position)

    def _damage(self, position: int, what: str, _: int = -1) -> CorruptionError:
        return self._corrupt(what, position)

    def _corrupt(self, reason: str, at: int = -1) -> CorruptionError:
        position = self._walk.position if at < 0 else at
        if self._staged:
            reason = f"{reason} (counted from its base {self._row.base})"
        return CorruptionError(
            f"{self._tp}: {reason}, at byte {position} of {self._key} (offset {self.next_offset} or later)",
            path_or_key=self._key,
            position=position,
            offset=self.next_offset,
            hint=f"`tiered check {self._tp.topic} --read-data` shows all damage; "
            f"`tiered repair {self._tp.topic}:{self._tp.partition} --from-dir DIR` takes the segment from a disk",
        )
