"""Decode many batches as columns: positions of keys and values in one buffer, offsets and times as arrays.

Records are length-prefixed, so finding their starts is a loop. All further fields are decoded for thousands of records
by one numpy call per varint. Keys and values are not copied: key ``i`` is ``buffer[key_at[i] : key_at[i] +
key_len[i]]``; a negative length means null.

``pure_kernels.decode_records`` is the oracle: it decodes batches that fail here, and raises its own errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tiered.errors import CorruptionError
from tiered.format.batch import HEADER_BYTES, BatchHeader, decode_records
from tiered.format.codecs import MAX_DECOMPRESSED_BYTES, codec_of, decompress
from tiered.format.header import CODEC_MASK
from tiered.format.pure_kernels import MIN_RECORD_BYTES, header_name, read_varint
from tiered.model import Headers, TimestampType

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_PAD = bytes(16)  # a varint is read to its end even where a damaged record ends first
_VARINT_BYTES = 5
_VARLONG_BYTES = 10


def _none() -> Int64s:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Columns:
    """Records of several batches. If only offsets were requested, the later arrays may be empty."""

    offsets: Int64s
    timestamp_types: npt.NDArray[np.int32]
    timestamps: Int64s = field(default_factory=_none)
    buffer: bytes = b""
    key_at: Int64s = field(default_factory=_none)
    key_len: Int64s = field(default_factory=_none)
    value_at: Int64s = field(default_factory=_none)
    value_len: Int64s = field(default_factory=_none)
    headers_at: Int64s = field(default_factory=_none)
    ends: Int64s = field(default_factory=_none)

    def __len__(self) -> int:
        return len(self.offsets)

    def headers(self, index: int) -> Headers | None:
        """Return the headers of one record, None if it has none. Raises CorruptionError."""
        data, position, end = self.buffer, int(self.headers_at[index]), int(self.ends[index])
        if not data[position]:
            return None
        found: list[tuple[str, bytes | None]] = []
        count, position = read_varint(data, position)
        _within(count * 2, end - position)  # a header takes at least two bytes
        for _ in range(count):
            size, position = read_varint(data, position)
            name = header_name(data[position : position + _within(size, end - position)])
            position += size
            size, position = read_varint(data, position)
            found.append((name, data[position : position + _within(size, end - position)] if size >= 0 else None))
            position += max(size, 0)
        if position != end:
            raise CorruptionError("the headers do not fill the record", offset=int(self.offsets[index]))
        return found or None


def _within(size: int, room: int) -> int:
    if not 0 <= size <= room:
        raise CorruptionError(f"headers of {size} bytes do not fit the {room} bytes that are left")
    return size


class ColumnReader:
    """Collects v2 batches and decodes them together.

    ``parse`` False promises that only offsets and timestamp types are needed. Full batches (compaction removed no
    record) are then not even decompressed.
    """

    def __init__(self, *, parse: bool = True) -> None:
        self._parse = parse
        self._data = bytearray()
        self._starts: list[int] = []
        self._batches: list[tuple[BatchHeader, memoryview]] = []
        self._parsing = parse
        self.rows = 0

    @property
    def size_bytes(self) -> int:
        """Uncompressed bytes collected since the last :meth:`take`."""
        return len(self._data)

    def accepts(self, header: BatchHeader) -> bool:
        """Return True if this batch may join those collected. Otherwise call :meth:`take` first."""
        return not self._batches or self._parsing == self._needs_parsing(header)

    def add(self, header: BatchHeader, batch: bytes | memoryview) -> None:
        """Add one verified v2 batch. Raises CorruptionError here or in :meth:`take`."""
        room = MAX_DECOMPRESSED_BYTES if header.attributes & CODEC_MASK else len(batch) - HEADER_BYTES
        if header.records_count * MIN_RECORD_BYTES > room:
            raise CorruptionError(
                f"{header.records_count} records cannot be in {room} bytes", offset=header.base_offset
            )
        self._parsing = self._needs_parsing(header)
        view = memoryview(batch)
        self._batches.append((header, view))
        self.rows += header.records_count
        if not self._parsing or not header.records_count:
            return
        records = view[HEADER_BYTES:]
        at = len(self._data)
        if header.attributes & CODEC_MASK:
            self._data += decompress(codec_of(header.attributes), records, max_bytes=MAX_DECOMPRESSED_BYTES)
        else:
            self._data += records
        if not _find_records(self._data, at, header.records_count, self._starts):
            self._refuse()

    def finish(self) -> Columns:
        """Return everything collected as columns and empty the reader. Raises CorruptionError."""
        headers = [header for header, _ in self._batches]
        counts = np.array([header.records_count for header in headers], np.int64)
        kinds = np.repeat(np.array([int(header.timestamp_type) for header in headers], np.int32), counts)
        bases = np.repeat(np.array([header.base_offset for header in headers], np.int64), counts)
        if self._parsing:
            columns = self._parse_fields(headers, counts, bases, kinds)
        else:
            firsts = np.repeat(np.cumsum(counts) - counts, counts)
            columns = Columns(bases + (np.arange(len(bases), dtype=np.int64) - firsts), kinds)
        self._data, self._starts, self._batches, self.rows = bytearray(), [], [], 0
        return columns

    def _needs_parsing(self, header: BatchHeader) -> bool:
        return self._parse or header.records_count != header.last_offset_delta + 1

    def _parse_fields(
        self, headers: Sequence[BatchHeader], counts: Int64s, bases: Int64s, kinds: npt.NDArray[np.int32]
    ) -> Columns:
        self._data += _PAD
        data = bytes(self._data)
        buffer = np.frombuffer(data, np.uint8)
        good = True
        length, at, fine = _varints(buffer, np.array(self._starts, np.int64))
        good &= fine
        ends = at + length
        time_delta, at, fine = _varints(buffer, at + 1, _VARLONG_BYTES)  # after the attributes byte, which is unused
        good &= fine
        offset_delta, at, fine = _varints(buffer, np.minimum(at, ends))
        good &= fine
        key_len, key_at, fine = _varints(buffer, np.minimum(at, ends))
        good &= fine and bool((key_len <= ends - key_at).all())
        at = np.minimum(key_at + np.maximum(key_len, 0), ends)
        value_len, value_at, fine = _varints(buffer, at)
        good &= fine and bool((value_len <= ends - value_at).all())
        headers_at = np.minimum(value_at + np.maximum(value_len, 0), ends)
        without = buffer[headers_at] == 0
        good &= bool(((headers_at < ends) & (~without | (headers_at + 1 == ends))).all())
        good &= bool((length >= MIN_RECORD_BYTES - 1).all())
        if not good:
            self._refuse()
        with np.errstate(over="ignore"):
            times = np.repeat(np.array([_base_time(header) for header in headers], np.int64), counts)
            times += np.where(kinds == TimestampType.LOG_APPEND_TIME, 0, time_delta)
        return Columns(bases + offset_delta, kinds, times, data, key_at, key_len, value_at, value_len, headers_at, ends)

    def _refuse(self) -> None:
        """Raise the error of the plain decoder for the collected batches."""
        for header, batch in self._batches:
            try:
                for _ in decode_records(batch):
                    pass
            except CorruptionError as error:
                error.offset = header.base_offset
                raise
        raise CorruptionError("records cannot be decoded", offset=self._batches[0][0].base_offset)


def _base_time(header: BatchHeader) -> int:
    return header.max_timestamp if header.timestamp_type else header.base_timestamp


def _find_records(data: bytearray, at: int, count: int, starts: list[int]) -> bool:
    """Append the start of each of ``count`` records from ``at`` on. Return False unless they end with ``data``."""
    add = starts.append
    try:
        for _ in range(count):
            add(at)
            byte = data[at]
            if byte < 0x80:
                at += 1 + (byte >> 1)
                continue
            second = data[at + 1]
            if second < 0x80:
                at += 2 + ((byte & 0x7F | second << 7) >> 1)
                continue
            size, behind = read_varint(bytes(data[at : at + _VARINT_BYTES]), 0)
            at += behind + size
    except (IndexError, CorruptionError):
        return False
    return at == len(data)


def _varints(buffer: Bytes, at: Int64s, max_bytes: int = _VARINT_BYTES) -> tuple[Int64s, Int64s, bool]:
    """Return (signed values, positions after them, True if none was too long) of the zigzag varints at ``at``."""
    byte = buffer[at]
    value = (byte & 0x7F).astype(np.uint64)
    behind = at + 1
    more = np.flatnonzero(byte > 0x7F)
    for size in range(1, max_bytes):
        if not len(more):
            break
        byte = buffer[behind[more]]
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * size)
        behind[more] += 1
        more = more[byte > 0x7F]
    if max_bytes == _VARINT_BYTES:
        value &= np.uint64(0xFFFF_FFFF)
    sign = (value & np.uint64(1)).view(np.int64)
    return (value >> np.uint64(1)).view(np.int64) ^ -sign, behind, not len(more)
