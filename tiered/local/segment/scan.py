"""Walks the batches of one file through a small reused buffer, with ``preadv``, never a map.

The CRC of a batch leaves out its first 21 bytes, so that damage there is found by order: offsets never go back inside
a segment and never leave its range, and the batches of a segment end where the segment does. ``segment`` holds every
batch to that and is how all read a segment that should be whole; ``batches`` is for what a crash may have left.

First bytes of a batch that the walk looks at (big-endian; v0, v1 and v2 agree up to ``magic``)::

    0        8        12       16      17      21           23                 27
    | base   | length | epoch  | magic | crc   | attributes | last offset delta |
    | int64  | int32  | int32  | int8  | u32   | int16      | int32             |
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tiered.errors import CorruptionError
from tiered.format.batch import HEADER_BYTES, BatchHeader, read_header, verify_batch
from tiered.local.disk.files import Files

BUFFER_BYTES = 256 * 1024
"""Default size of the reused buffer; a larger batch gets a buffer of its own, bounded by the file."""

LOG_OVERHEAD_BYTES = 12
"""Offset and length: what the length field does not count."""

MIN_TAIL_BYTES = 17
"""A tail of at most this many bytes holds no header: the walk stops quietly."""

MIN_BATCH_LENGTH = 14
"""Kafka's smallest length field; zeros behind a crash are caught by it."""

NO_LIMIT = 2**63 - 1
"""Above every offset: the end of a range that nobody knows."""

_PREFIX = struct.Struct(">qiib")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_PLACE = struct.Struct(">qi4xb6xi")  # base, length, magic, last offset delta of a v2 batch
_PLACE_BYTES = _PLACE.size
_MIN_V2_LENGTH = HEADER_BYTES - LOG_OVERHEAD_BYTES


class Offsets(NamedTuple):
    """Which offsets a segment may hold: from its base, which its name tells, to the next one's (exclusive)."""

    base: int
    next: int


class Span(NamedTuple):
    """One batch in a file: where it is and which offsets it covers (``last_offset`` inclusive)."""

    position: int
    size: int
    base_offset: int
    last_offset: int


class LogFile:
    """One open ``.log`` file. ``path`` and, in messages, ``offset`` name the place of damage."""

    def __init__(self, files: Files, path: Path, *, handle: int | None = None) -> None:
        self.path = path
        self._files = files
        self._owned = handle is None
        self._handle = files.open_read(path) if handle is None else handle

    def close(self) -> None:
        """Closes the file if this object opened it."""
        if self._owned:
            self._owned = False
            self._files.close(self._handle)

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def size(self) -> int:
        """Length of the file in bytes."""
        return self._files.size(self._handle)

    def read_at(self, position: int, length: int) -> bytes:
        """Exactly ``length`` bytes; CorruptionError if the file ends before."""
        buffer = bytearray(length)
        if self._files.read_into(self._handle, buffer, position) < length:
            raise self.damage(position, "the file ends inside what should be there")
        return bytes(buffer)

    def segment(
        self,
        position: int,
        size_bytes: int,
        offsets: Offsets,
        *,
        dense: bool = False,
        reach: int = -1,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> Iterator[tuple[Span, memoryview]]:
        """Each batch from ``position`` (a batch's start) to the end of a segment of ``size_bytes`` that is whole.

        As :meth:`batches`, but raises CorruptionError, with position and base offset, for a batch outside ``offsets``
        or not behind the one before it, and where the batches do not end at ``size_bytes``, or end below ``reach``.
        ``dense``: also where an offset is left out (v2 batches only: older ones do not tell their first offset).
        """
        return self._walk(position, size_bytes, buffer_bytes, offsets, dense=dense, reach=reach)

    def batches(
        self, position: int, end: int, *, buffer_bytes: int = BUFFER_BYTES
    ) -> Iterator[tuple[Span, memoryview]]:
        """Each whole batch from ``position`` (a batch's start) to ``end``, by declared length; CRCs are not checked.

        The view is valid until the next step. Stops quietly at a partial tail; raises CorruptionError where the
        declared length or the magic cannot be.
        """
        return self._walk(position, end, buffer_bytes, None)

    def _walk(
        self,
        position: int,
        end: int,
        buffer_bytes: int,
        offsets: Offsets | None,
        *,
        dense: bool = False,
        reach: int = -1,
    ) -> Iterator[tuple[Span, memoryview]]:
        expected, limit = (-1, NO_LIMIT) if offsets is None else offsets
        exact = expected if dense and position == 0 else -1
        buffer = bytearray(max(1, min(buffer_bytes, end - position)))
        unpack, new = _PLACE.unpack_from, tuple.__new__
        while end - position > MIN_TAIL_BYTES:
            view = memoryview(buffer)[: end - position]
            filled = self._files.read_into(self._handle, view, position)
            at = 0
            while filled - at > MIN_TAIL_BYTES:
                base, length, magic, delta = unpack(view, at) if filled - at >= _PLACE_BYTES else (-1, 0, 0, 0)
                if magic == 2 and length >= _MIN_V2_LENGTH and base >= 0 <= delta:
                    size, last = LOG_OVERHEAD_BYTES + length, base + delta
                    if size > filled - at:
                        break
                    if base > exact >= 0:
                        raise self.damage(position + at, f"offsets {exact} to {base} are missing", exact)
                else:
                    size = self._declared_size(view, at, position + at)
                    if size > filled - at:
                        break
                    base, last = self._odd_range(view, at, position + at, size)
                if offsets is not None:
                    if base < expected or last >= limit:
                        raise self._misplaced(position + at, base, last, expected, limit)
                    expected = last + 1
                    if dense:
                        exact = expected
                yield new(Span, (position + at, size, base, last)), view[at : at + size]
                at += size
            if filled < len(view) and at == 0:
                break  # the file is shorter than its declared end
            if at == 0:
                size = self._declared_size(view, 0, position)
                if size > end - position:
                    break
                buffer = bytearray(max(size, buffer_bytes))
            position += at
        if offsets is not None and position != end:
            left = f"no whole batch starts here, {end - position} bytes are left of {end}"
            raise self.damage(position, left, expected)
        if expected < reach:
            raise self.damage(position, f"the file ends here, offsets {expected} to {reach} were safe", expected)

    def starts_batch(self, position: int, size_bytes: int, offsets: Offsets, *, at_or_below: int) -> bool:
        """Whether at ``position`` a batch starts that lies in ``offsets`` and begins at or below ``at_or_below``."""
        try:
            header = self.header_at(position, size_bytes)
        except CorruptionError:
            return False
        return (
            offsets.base <= header.base_offset <= at_or_below
            and header.last_offset < offsets.next
            and position + header.size_bytes <= size_bytes
        )

    def header_at(self, position: int, end: int) -> BatchHeader:
        """The header of the batch that starts at ``position``; CorruptionError if none does."""
        data = self.read_at(position, max(0, min(HEADER_BYTES, end - position)))
        return self.header(memoryview(data), position)

    def header(self, view: memoryview, position: int) -> BatchHeader:
        """The header of a batch that :meth:`batches` gave."""
        try:
            return read_header(view)
        except CorruptionError as error:
            raise self.damage(position, error.message) from None

    def verify(self, span: Span, view: memoryview) -> BatchHeader:
        """The header of a batch whose CRC is right. Raises CorruptionError with path, position and offset."""
        try:
            return verify_batch(view)
        except CorruptionError as error:
            raise self.damage(span.position, error.message, span.base_offset) from None

    def is_intact(self, view: memoryview) -> bool:
        """Whether the CRC of a batch that :meth:`batches` gave is right."""
        try:
            verify_batch(view)
        except CorruptionError:
            return False
        return True

    def damage(self, position: int, what: str, offset: int = -1) -> CorruptionError:
        """The error for bytes at ``position`` that are not what was written."""
        return CorruptionError(
            f"{self.path} at byte {position}: {what}",
            path_or_key=str(self.path),
            position=position,
            offset=offset,
            hint="the bytes are kept; read another copy of this range, or run `tiered repair`",
        )

    def _declared_size(self, view: memoryview, at: int, position: int) -> int:
        base, length, _, magic = _PREFIX.unpack_from(view, at)
        if length < MIN_BATCH_LENGTH or base < 0 or not 0 <= magic <= 2:
            raise self.damage(position, f"no batch starts here (offset {base}, length {length}, magic {magic})", base)
        if magic == 2 and length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
            raise self.damage(position, f"a batch of {length} bytes is shorter than its header", base)
        return LOG_OVERHEAD_BYTES + int(length)

    def _odd_range(self, view: memoryview, at: int, position: int, size: int) -> tuple[int, int]:
        """First and last offset of a whole batch that is no plain v2 batch."""
        base, _, _, magic = _PREFIX.unpack_from(view, at)
        if magic == 2:
            delta = _LAST_OFFSET_DELTA.unpack_from(view, at + 23)[0]
            raise self.damage(position, f"the last offset delta is {delta}", base)
        header = self.header(view[at : at + size], position)
        return header.base_offset, header.last_offset

    def _misplaced(self, position: int, base: int, last: int, expected: int, limit: int) -> CorruptionError:
        what = f"a batch of offsets {base} to {last} stands where {expected} to {limit - 1} are expected"
        return self.damage(position, what, max(expected, 0))
