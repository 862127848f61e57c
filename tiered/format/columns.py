"""Records as columns, by numpy: batches -> columns, and Arrow columns -> batches, without a Python object per record.

Records are length-prefixed, so finding their starts is a loop. All further fields are decoded for thousands of records
by one numpy call per varint. Keys and values are not copied: key ``i`` is ``buffer[key_at[i] : key_at[i] +
key_len[i]]``; a negative length means null. ``pure_kernels.decode_records`` is the oracle: it decodes batches that fail
here, and raises its own errors.

An encoding makes the varints (lengths, deltas, counts) of all records at once. Arrow's join of binary columns puts
keys, values and header bytes between them and copies each byte once. ``pure_kernels.encode_records`` is the oracle: the
bytes are the same. The compiled kernels, if loaded, write records straight from the columns. Encoding needs ``pyarrow``
(extra ``arrow``), imported at the first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from tiered.errors import CorruptionError, InvalidRecordError
from tiered.format import kernels
from tiered.format.batch import BatchHeader, decode_records, encode_joined
from tiered.format.codecs import MAX_DECOMPRESSED_BYTES, Codec, codec_of, decompress
from tiered.format.header import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME_BIT, MAX_BATCH_BYTES, Buffer
from tiered.format.kernel_values import BatchFiller, Elements, EncoderColumns
from tiered.format.pure_kernels import MIN_RECORD_BYTES, read_varint
from tiered.format.records import header_name
from tiered.model import Headers, TimestampType
from tiered.partitioner import murmur2

if TYPE_CHECKING:
    import pyarrow as pa

B = TypeVar("B", bound=Buffer)

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


RECORD_OVERHEAD_BYTES = 36
"""Upper bound of what lengths, deltas and the header count add to the key, value and headers of one record."""

HEADER_OVERHEAD_BYTES = 10
"""Upper bound of what two lengths add to the name and the value of one header."""

_NULL = -1


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records as columns of one length.

    ``keys`` and ``values`` are Arrow ``binary``; ``headers`` is ``list<struct<key: string, value: binary>>``, None if
    no record has any. ``timestamps`` are resolved milliseconds; -1 is none.
    """

    values: pa.Array
    keys: pa.Array
    timestamps: Int64s
    headers: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.timestamps)

    def slice(self, start: int, end: int) -> RecordColumns:
        """Return records ``start`` to ``end`` (exclusive) without copying."""
        return RecordColumns(
            self.values.slice(start, end - start),
            self.keys.slice(start, end - start),
            self.timestamps[start:end],
            None if self.headers is None else self.headers.slice(start, end - start),
        )

    def select(self, rows: Int64s) -> RecordColumns:
        """Return the records at ``rows``, in that order."""
        return RecordColumns(
            self.values.take(rows),
            self.keys.take(rows),
            self.timestamps[rows],
            None if self.headers is None else self.headers.take(rows),
        )

    def sizes(self) -> Int64s:
        """Return an upper bound of each record's bytes in a batch before compression."""
        sizes = _lengths(self.values)
        sizes += _lengths(self.keys)
        sizes += RECORD_OVERHEAD_BYTES
        if self.headers is None or not len(self.headers.flatten()):
            return sizes
        elements = self.headers.flatten()
        names, values = elements.field(0), elements.field(1)
        held = np.concatenate(([0], np.cumsum(_lengths(names) + _lengths(values) + HEADER_OVERHEAD_BYTES)))
        ends = np.cumsum(_counts(self.headers))
        return sizes + held[ends] - held[np.concatenate(([0], ends[:-1]))]

    def largest(self) -> int:
        """Return the bytes of the largest record by ``sizes``; 0 without records."""
        rows = rows_of(self)
        return int(self.sizes().max(initial=0)) if rows is None else rows.largest()

    def run_ends(self, room: int) -> list[int]:
        """Return the ends of consecutive runs that fit ``room`` bytes by ``sizes``, at least one record each."""
        rows = rows_of(self)
        return _run_ends(self.sizes(), room) if rows is None else rows.run_ends(room)


def _run_ends(sizes: Int64s, room: int) -> list[int]:
    found: list[int] = []
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        taken = int(ends[start - 1]) if start else 0
        start = max(start + 1, int(np.searchsorted(ends, taken + room, side="right")))
        found.append(start)
    return found


def join_columns(pieces: list[RecordColumns]) -> RecordColumns:
    """Concatenate the records of ``pieces``."""
    if len(pieces) == 1:
        return pieces[0]
    arrow = _pyarrow()
    with_headers = [piece for piece in pieces if piece.headers is not None]
    headers = None
    if with_headers:
        kind = with_headers[0].headers.type  # type: ignore[union-attr]  # chosen for having some
        headers = arrow.concat_arrays(
            [arrow.nulls(len(piece), kind) if piece.headers is None else piece.headers for piece in pieces]
        )
    return RecordColumns(
        arrow.concat_arrays([piece.values for piece in pieces]),
        arrow.concat_arrays([piece.keys for piece in pieces]),
        np.concatenate([piece.timestamps for piece in pieces]),
        headers,
    )


def key_hashes(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """Return Kafka's hash of each key of a binary column; that of a null is undefined."""
    found = kernels.key_hashes(len(keys), _elements(keys))
    if found is not None:
        return np.frombuffer(found, np.uint32)
    starts = _starts(keys).astype(np.int64)
    data = keys.buffers()[2]
    held = bytes(memoryview(data)[starts[0] : starts[-1]]) if data is not None else b""
    return murmur2_column(held, starts[:-1] - starts[0], _lengths(keys))


def encode_columns(
    columns: RecordColumns,
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    append_time_ms: int = -1,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Return one v2 batch of all records (at least one), equal to that of ``batch.encode_batch``.

    Raises InvalidRecordError for a header without a name, RecordTooLargeError like ``encode_batch``.
    """
    filler, rows = kernels.batch_filler(MAX_BATCH_BYTES), rows_of(columns)
    if filler is not None and rows is not None and filler.add(rows, None, 0) == len(columns):
        return encode_filled(
            filler,
            codec=codec,
            level=level,
            timestamp_type=timestamp_type,
            append_time_ms=append_time_ms,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
        )
    times = columns.timestamps
    base = int(times[0])
    return encode_joined(
        _joined(columns, times - base),
        len(columns),
        (base, append_time_ms if timestamp_type else int(times.max())),
        codec=codec,
        level=level,
        timestamp_type=timestamp_type,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def rows_of(columns: RecordColumns) -> EncoderColumns | None:
    """Return the columns for the compiled kernels, or None if these cannot take them."""
    headers = None
    if columns.headers is not None:
        elements = columns.headers.flatten()  # without the elements of null lists
        names, values = elements.field(0), elements.field(1)
        if elements.null_count or names.null_count:
            return None
        bounds = np.concatenate(([0], np.cumsum(_counts(columns.headers))))
        headers = bounds.data, _elements(names), _elements(values)
    times = np.ascontiguousarray(columns.timestamps, np.int64).data
    return kernels.arrow_rows(len(columns), _elements(columns.values), _elements(columns.keys), times, headers)


def encode_filled(
    filler: BatchFiller[B],
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    append_time_ms: int = -1,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> B | bytes:
    """Return one v2 batch of the rows in ``filler`` (at least one) and empty it. See :func:`encode_columns`."""
    count, first, greatest = filler.count, filler.first, filler.greatest
    plain = filler.finish(base_offset, leader_epoch, LOG_APPEND_TIME_BIT if timestamp_type else 0, append_time_ms)
    if not codec:
        return plain
    return encode_joined(
        memoryview(plain)[HEADER_BYTES:],
        count,
        (first, append_time_ms if timestamp_type else greatest),
        codec=codec,
        level=level,
        timestamp_type=timestamp_type,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def _elements(column: pa.Array) -> Elements:
    validity, offsets, data = column.buffers()
    return validity if column.null_count else None, offsets, data, column.offset


def _joined(columns: RecordColumns, deltas: Int64s) -> memoryview:
    """Return the concatenated encoded records of a batch."""
    count = len(columns)
    key_lengths, value_lengths = _field_lengths(columns.keys), _field_lengths(columns.values)
    tails = _tails(columns.headers)
    fields = [deltas, np.arange(count, dtype=np.int64), key_lengths]
    bodies = 1 + sum((_varint_sizes(_zigzag(field)) for field in fields), np.zeros(count, np.int64))
    bodies += np.maximum(key_lengths, 0) + _varint_sizes(_zigzag(value_lengths)) + np.maximum(value_lengths, 0)
    bodies += 1 if tails is None else _lengths(tails)
    heads = _varint_column([bodies, np.zeros(count, np.int64), *fields])
    parts = [heads, columns.keys, _varint_column([value_lengths]), columns.values]
    return _bytes_of(_join(*parts, b"\0" if tails is None else tails))


def _tails(headers: pa.Array | None) -> pa.Array | None:
    """Return a binary column: count and bytes of the headers of each record. None if no record has any."""
    if headers is None:
        return None
    elements = headers.flatten()  # without the elements of null lists
    if not len(elements):
        return None
    names, values = elements.field(0), elements.field(1)
    if elements.null_count or names.null_count:
        raise InvalidRecordError("a header has no name", hint="headers are array<struct<key: string, value: binary>>")
    arrow, counts = _pyarrow(), _counts(headers)
    lengths = _varint_column([_lengths(names)]), _varint_column([_field_lengths(values)])
    encoded = _join(lengths[0], names.cast(arrow.binary()), lengths[1], values)
    bounds = np.frombuffer(encoded.buffers()[1], np.int32)[np.concatenate(([0], np.cumsum(counts)))]
    whole = arrow.Array.from_buffers(arrow.binary(), len(counts), [None, arrow.py_buffer(bounds), encoded.buffers()[2]])
    return _join(_varint_column([counts]), whole)


def _join(*parts: Any) -> pa.Array:
    """Join columns element by element; a null counts as empty."""
    arrow = _pyarrow()
    compute = arrow.compute
    given = [arrow.scalar(part, arrow.binary()) if isinstance(part, bytes) else part for part in parts]
    nothing = arrow.scalar(b"", arrow.binary())
    return compute.binary_join_element_wise(*given, nothing, null_handling="replace", null_replacement="")


def _bytes_of(joined: pa.Array) -> memoryview:
    """Return the concatenated elements, which Arrow stores contiguously in a fresh column."""
    ends = np.frombuffer(joined.buffers()[1], np.int32, len(joined) + 1)
    return memoryview(joined.buffers()[2])[: int(ends[-1])]


def _lengths(column: pa.Array) -> Int64s:
    """Return the bytes of each element, 0 for a null."""
    lengths = _field_lengths(column)
    return np.maximum(lengths, 0, out=lengths) if column.null_count else lengths


def _field_lengths(column: pa.Array) -> Int64s:
    """Return the bytes of each element, -1 for a null."""
    starts = _starts(column)
    lengths: Int64s = np.subtract(starts[1:], starts[:-1], dtype=np.int64)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return lengths


def _starts(column: pa.Array) -> npt.NDArray[np.int32]:
    """Return the start of each element of a binary column, and the end of the last."""
    return np.frombuffer(column.buffers()[1], np.int32, column.offset + len(column) + 1)[column.offset :]


def _counts(headers: pa.Array) -> Int64s:
    """Return the number of elements of each list, 0 for a null."""
    counts: Int64s = _pyarrow().compute.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False)
    return counts.astype(np.int64)


def _zigzag(values: Int64s) -> npt.NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _varint_sizes(zigzag: npt.NDArray[np.uint64]) -> Int64s:
    sizes = np.ones(len(zigzag), np.int64)
    largest = int(zigzag.max(initial=0))
    for size in range(1, _VARLONG_BYTES):
        if largest < 1 << 7 * size:
            break
        sizes += zigzag >= np.uint64(1 << 7 * size)
    return sizes


def _varint_column(fields: list[Int64s]) -> pa.Array:
    """Return a binary column: for each record the concatenated varints of ``fields``."""
    arrow = _pyarrow()
    encoded = [_zigzag(field) for field in fields]
    sizes = [_varint_sizes(field) for field in encoded]
    offsets = np.concatenate(([0], np.cumsum(sum(sizes[1:], sizes[0]))))
    out = np.empty(int(offsets[-1]), np.uint8)
    at = offsets[:-1].copy()
    for values, size in zip(encoded, sizes, strict=True):
        _put_varints(out, at, values, size)
        at += size
    buffers = [None, arrow.py_buffer(offsets.astype(np.int32)), arrow.py_buffer(out)]
    return arrow.Array.from_buffers(arrow.binary(), len(at), buffers)


def _put_varints(out: npt.NDArray[np.uint8], at: Int64s, zigzag: npt.NDArray[np.uint64], sizes: Int64s) -> None:
    """Write the varints of ``zigzag`` at the positions ``at``."""
    longest = int(sizes.max(initial=1))
    if longest == 1:
        out[at] = zigzag
        return
    for byte in range(1, longest + 1):
        more = sizes > byte
        out[at] = (zigzag & np.uint64(0x7F)).astype(np.uint8) | np.where(more, np.uint8(0x80), np.uint8(0))
        at, zigzag, sizes = at[more] + 1, zigzag[more] >> np.uint64(7), sizes[more]


def _pyarrow() -> Any:
    import pyarrow as pa  # noqa: PLC0415  an optional extra
    import pyarrow.compute  # noqa: PLC0415  makes pa.compute

    return pa


LONG_KEY_BYTES = 1024
"""Size above which keys are hashed one by one: in a column, each word of four bytes is a pass over all keys."""

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_TAIL_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)


def murmur2_column(
    data: bytes, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """Return the hash of each key ``data[starts[i] : starts[i] + lengths[i]]``. No length is negative."""
    words: npt.NDArray[np.uint32] = np.ndarray((len(data) + 1,), "<u4", data + bytes(4), strides=(1,))
    short = np.where(lengths > LONG_KEY_BYTES, 0, lengths)
    whole, rest = short >> 2, short & 3
    h = _SEED ^ short.astype(np.uint32)
    for word in range(int(whole.max(initial=0))):
        at = np.flatnonzero(whole > word)
        k = words[starts[at] + 4 * word] * _M
        h[at] = (h[at] * _M) ^ ((k ^ (k >> np.uint32(24))) * _M)
    at = np.flatnonzero(rest)
    tails = words[starts[at] + 4 * whole[at]] & _TAIL_MASKS[rest[at]]
    h[at] = (h[at] ^ tails) * _M
    h = (h ^ (h >> np.uint32(13))) * _M
    h ^= h >> np.uint32(15)
    for i in np.flatnonzero(lengths > LONG_KEY_BYTES):
        h[i] = murmur2(data[starts[i] : starts[i] + lengths[i]])
    return h


def partitions_of(hashes: npt.NDArray[np.uint32], partitions: npt.NDArray[np.int64] | int) -> npt.NDArray[np.int64]:
    """Return the partition of each key by its hash, like ``Partitioner.partition_for``, among ``partitions``."""
    return (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions


def rows_by_partition(partitions: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Return the row indexes of each partition, ascending; ``partitions`` gives that of each row, from 0 up."""
    if len(partitions) and partitions[0] == partitions.min() == partitions.max():
        return [np.arange(len(partitions))]
    narrow = partitions.max(initial=0) < 2**16
    order = np.argsort(partitions.astype(np.uint16) if narrow else partitions, kind="stable")  # 16 bits: by radix
    return np.split(order, np.flatnonzero(np.diff(partitions[order])) + 1)
