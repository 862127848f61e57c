"""Encode Arrow columns as one v2 batch without a Python object per record; ``columns`` decodes.

numpy makes the varints (lengths, deltas, counts) of all records at once. Arrow's join of binary columns puts keys,
values and header bytes between them and copies each byte once. ``pure_kernels.encode_records`` is the oracle: the
bytes are the same. The compiled kernels, if loaded, write records straight from the columns.

Needs ``pyarrow`` (extra ``arrow``), imported at the first use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from tiered.errors import InvalidRecordError
from tiered.format import kernels
from tiered.format.batch import encode_joined
from tiered.format.codecs import Codec
from tiered.format.header import HEADER_BYTES, LOG_APPEND_TIME_BIT, MAX_BATCH_BYTES, Buffer
from tiered.format.key_hashes import murmur2_column
from tiered.format.pure_kernels import BatchFiller, Elements, EncoderColumns
from tiered.model import TimestampType

if TYPE_CHECKING:
    import pyarrow as pa

Int64s = npt.NDArray[np.int64]
B = TypeVar("B", bound=Buffer)

RECORD_OVERHEAD_BYTES = 36
"""Upper bound of what lengths, deltas and the header count add to the key, value and headers of one record."""

HEADER_OVERHEAD_BYTES = 10
"""Upper bound of what two lengths add to the name and the value of one header."""

_NULL = -1
_VARLONG_BYTES = 10


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
    for field, size in zip(encoded, sizes, strict=True):
        _put_varints(out, at, field, size)
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
