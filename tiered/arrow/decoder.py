"""Record batches of Kafka's format -> Arrow record batches.

The compiled kernels decode without a Python object per record, and only the columns that the caller wants. Batches that
they cannot take, and all batches without them, are decoded record by record. Needs ``pyarrow``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from tiered.arrow.schema import COLUMNS, arrow_schema, pyarrow
from tiered.errors import ConfigError, CorruptionError
from tiered.format import kernels
from tiered.format.batch import BatchHeader, decode_records, read_header
from tiered.format.batch_scanner import cut
from tiered.format.codecs import MAX_DECOMPRESSED_BYTES
from tiered.format.columns import Int64s
from tiered.format.header import CODEC_MASK, HEADER_BYTES
from tiered.format.kernel_values import ArrowBinary, ArrowBuffers, ArrowColumns
from tiered.format.kernels import Record
from tiered.format.pure_kernels import MIN_RECORD_BYTES
from tiered.model import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


RECORD_BATCH_BYTES = 1024 * 1024
"""Uncompressed bytes of one record batch. Larger ones exceed CPU caches, smaller ones cost calls."""

RECORD_BATCH_ROWS = 65_536
"""Most rows of one record batch."""

FIRST_ROWS = 16_384
"""Least number of rows with which a column of equal values is built. Shorter columns are slices of it."""

_PARSED = frozenset({"key", "value", "timestamp", "headers"})
_MAX_US = np.int64((2**63 - 1) // 1000)
_V2 = 2

Batch = tuple[BatchHeader, bytes | memoryview]


class RecordBounds(NamedTuple):
    """Bounds of records: ``start <= offset < end`` and ``since_ms <= timestamp < until_ms``. None: no bound."""

    start: int = 0
    end: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None


class ArrowDecoder:
    """Decoder of one partition's Kafka batches, in order, into Arrow record batches. Skips control batches.

    Only ``columns``, and records inside ``bounds``, are decoded. ``timestamp_unit``: "ms" or "us". ``batch_bytes``:
    target size of a record batch. ``schema``: the same columns with the receiver's names and nullability. A null in a
    column that ``schema`` declares not nullable raises ConfigError, because a receiver would read it as a value.
    """

    def __init__(
        self,
        tp: TopicPartition,
        *,
        columns: Sequence[str] = COLUMNS,
        timestamp_unit: str = "ms",
        bounds: RecordBounds = RecordBounds(),  # noqa: B008 - it never changes
        batch_bytes: int = RECORD_BATCH_BYTES,
        schema: pa.Schema | None = None,
    ) -> None:
        self._pa = pyarrow()
        self._tp = tp
        own = arrow_schema(columns, timestamp_unit=timestamp_unit)
        self._schema = own if schema is None else schema
        self._columns = tuple(columns)
        self._types = {name: field.type for name, field in zip(columns, self._schema, strict=True)}
        self._required = [at for at, field in enumerate(self._schema) if _has_required_field(field)]
        self._unit = timestamp_unit
        self._bounds = bounds
        self._batch_bytes = batch_bytes
        timed = bounds.since_ms is not None or bounds.until_ms is not None
        self._parses = timed or not _PARSED.isdisjoint(columns)
        self._records: list[Record] = []
        self._kinds: list[int] = []
        self._size = 0
        self._buffers = kernels.arrow_columns(self._columns, *bounds, timestamp_unit == "us")
        self._arrays = BufferArrays(tp, self._types)

    def record_batches(self, batches: Iterable[Batch]) -> Iterator[pa.RecordBatch]:
        """Decode all ``batches``. Yield each Arrow record batch as soon as it is full, at the end also the last one.

        Raises CorruptionError for a damaged batch, ConfigError for a null that ``schema`` forbids.
        """
        for header, data in batches:
            yield from self.add(header, data)
        yield from self.finish()

    def add(self, header: BatchHeader, data: bytes | memoryview) -> Iterator[pa.RecordBatch]:
        """Decode one Kafka batch, and yield the Arrow record batches that are full.

        ``data``: the whole batch, with its header. It is decoded only while the result is iterated. Raises
        CorruptionError for a damaged batch, ConfigError for a null that ``schema`` forbids.
        """
        if header.is_control or header.records_count == 0:
            return
        buffers = self._buffers
        if buffers is not None:
            if header.magic >= _V2 and buffers.add(data):
                if self._is_full(buffers.size_bytes, buffers.rows, len(data)):
                    yield from self._rows_from_buffers(buffers)
                return
            yield from self.finish()  # in the order of the log
        for record in self._decoded(header, data):
            self._records.append(record)
            self._kinds.append(int(header.timestamp_type))
            self._size += len(record.key or b"") + len(record.value or b"")
            if self._is_full(self._size, len(self._records)):
                yield self._rows_from_records()
        if buffers is not None and self._records:
            yield self._rows_from_records()

    def add_run(self, run: memoryview) -> Iterator[pa.RecordBatch]:
        """Decode the consecutive verified v2 batches in ``run``, and yield the Arrow record batches that are full.

        Decodes only while the result is iterated. Raises CorruptionError for a damaged batch, ConfigError for a null
        that ``schema`` forbids.
        """
        buffers = self._buffers
        for batch in cut(run):
            if buffers is None or not buffers.add(batch):
                yield from self.add(read_header(batch), batch)
            elif self._is_full(buffers.size_bytes, buffers.rows, len(batch)):
                yield from self._rows_from_buffers(buffers)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the decoded records that were not yielded yet, as Arrow record batches. Call it at the end."""
        if self._buffers is not None:
            yield from self._rows_from_buffers(self._buffers)
        if self._records:
            yield self._rows_from_records()

    def _is_full(self, size_bytes: int, rows: int, more: int = 0) -> bool:
        """Return True if a record batch of ``size_bytes`` is closer to the target size than with ``more`` bytes.

        Return True also if ``rows``, its number of records, is at least ``RECORD_BATCH_ROWS``.
        """
        return size_bytes + more // 2 >= self._batch_bytes or rows >= RECORD_BATCH_ROWS

    def _rows_from_buffers(self, held: ArrowColumns) -> Iterator[pa.RecordBatch]:
        """Yield the records that the compiled kernels collected in ``held``, as record batches, and empty ``held``."""
        size = held.size_bytes
        found = held.finish()
        arrays = [self._arrays.array(name, found) for name in self._columns] if found.rows else []
        offsets = np.frombuffer(found.offsets, np.int64)
        for piece in self._pieces(np.arange(found.rows), size):
            first, rows = int(piece[0]), len(piece)
            shown = arrays if rows == found.rows else [array.slice(first, rows) for array in arrays]
            yield self._record_batch(shown, offsets[first : first + rows])

    def _decoded(self, header: BatchHeader, data: bytes | memoryview) -> list[Record]:
        """Return the records of one batch that are inside the bounds. Raises CorruptionError for a damaged batch."""
        start, end, since_ms, until_ms = self._bounds
        try:
            return [
                record
                for record in self._whole(header, data)
                if record.offset >= start
                and (end is None or record.offset < end)
                and (since_ms is None or record.timestamp >= since_ms)
                and (until_ms is None or record.timestamp < until_ms)
            ]
        except CorruptionError as error:
            error.offset = header.base_offset
            raise

    def _whole(self, header: BatchHeader, data: bytes | memoryview) -> Iterable[Record]:
        """Return the records of one batch. If only offsets are wanted and none is missing, the header gives them."""
        count = header.records_count
        if self._parses or header.magic < _V2 or count != header.last_offset_delta + 1:
            return decode_records(data)
        room = MAX_DECOMPRESSED_BYTES if header.attributes & CODEC_MASK else len(data) - HEADER_BYTES
        if count * MIN_RECORD_BYTES > room:
            raise CorruptionError(f"{count} records cannot be in {room} bytes")
        return (Record(offset, 0, None, None, ()) for offset in range(header.base_offset, header.next_offset))

    def _rows_from_records(self) -> pa.RecordBatch:
        """Return one record batch of all records that were decoded one by one, without the compiled kernels."""
        found, kinds = self._records, self._kinds
        self._records, self._kinds, self._size = [], [], 0
        offsets = np.array([record.offset for record in found], np.int64)
        return self._record_batch([self._array(name, found, kinds) for name in self._columns], offsets)

    def _pieces(self, rows: Int64s, size_bytes: int) -> Iterator[Int64s]:
        """Yield ``rows``, the indexes of records, in one array, or in several if they far exceed one record batch.

        ``size_bytes``: bytes of all these records. Yield nothing without records.
        """
        pieces = max(1, size_bytes // (2 * self._batch_bytes), -(-len(rows) // (2 * RECORD_BATCH_ROWS)))
        if pieces == 1:
            return iter((rows,)) if len(rows) else iter(())
        return (piece for piece in np.array_split(rows, pieces) if len(piece))

    def _record_batch(self, arrays: list[pa.Array], offsets: Int64s) -> pa.RecordBatch:
        rows = len(offsets)
        for at in self._required:
            if _has_forbidden_null(arrays[at], self._schema.field(at)):
                raise ConfigError(
                    f"{self._tp}: column {self._schema.field(at).name} is NOT NULL in the schema, and records "
                    f"at offsets {offsets[0]} to {offsets[-1]} have nulls",
                    hint="leave NOT NULL out of the schema, and filter the rows after reading",
                )
        if arrays:
            return self._pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        empty = self._pa.array([{}] * rows, self._pa.struct([]))  # no columns, only a number of rows
        return self._pa.RecordBatch.from_struct_array(empty)

    def _array(self, name: str, records: list[Record], kinds: list[int]) -> pa.Array:
        if name == "timestamp":
            timestamps = np.array([record.timestamp for record in records], np.int64)
            if self._unit == "us":
                timestamps = np.clip(timestamps, -_MAX_US, _MAX_US) * 1000
            return self._pa.array(timestamps).view(self._pa.timestamp(self._unit, tz="UTC"))
        values: list[Any]
        match name:
            case "key":
                values = [record.key for record in records]
            case "value":
                values = [record.value for record in records]
            case "topic":
                values = [self._tp.topic] * len(records)
            case "partition":
                values = [self._tp.partition] * len(records)
            case "offset":
                values = [record.offset for record in records]
            case "timestampType":
                values = kinds
            case _:
                values = [list(record.headers) or None for record in records]
        return self._pa.array(values, self._types[name])


def _has_required_field(field: pa.Field) -> bool:
    """Return True if this field, or one inside it, is declared not nullable."""
    inner = [field.type.field(at) for at in range(field.type.num_fields)]
    return not field.nullable or any(_has_required_field(each) for each in inner)


def _has_forbidden_null(array: pa.Array, field: pa.Field) -> bool:
    """Return True for a null where ``field`` allows none. A null parent is not a null of its children."""
    if array.null_count and not field.nullable:
        return True
    inner = [field.type.field(at) for at in range(field.type.num_fields)]
    if not inner:
        return False
    held = array.flatten()  # of a list its items, of a struct a list of its fields; without what nulls hide
    return any(map(_has_forbidden_null, held if isinstance(held, list) else [held], inner))


class BufferArrays:
    """Builder of one partition's arrays around the buffers that the compiled kernels filled, without a copy.

    ``types``: Arrow types of the wanted columns, by name.
    """

    def __init__(self, tp: TopicPartition, types: dict[str, pa.DataType]) -> None:
        self._pa = pyarrow()
        self._types = types
        self._equal: dict[str, pa.Array] = {}
        self._repeated: dict[str, Callable[[int], pa.Array]] = {
            "topic": lambda rows: self._names(tp.topic.encode(), rows),
            "partition": lambda rows: self._plain(self._pa.int32(), rows, np.full(rows, tp.partition, np.int32)),
        }

    def array(self, name: str, buffers: ArrowBuffers) -> pa.Array:
        """Return the array of one column, with ``buffers.rows`` elements."""
        rows = buffers.rows
        if name in self._repeated:
            return self._same(name, rows)
        if name == "headers":
            return self._lists(buffers)
        if name in {"key", "value"}:
            found = cast("ArrowBinary", buffers.keys if name == "key" else buffers.values)
            return self._binary(self._types[name], rows, found)
        whole = {"offset": buffers.offsets, "timestamp": buffers.timestamps, "timestampType": buffers.kinds}[name]
        return self._plain(self._types[name], rows, whole)

    def _plain(self, kind: pa.DataType, rows: int, values: object) -> pa.Array:
        return self._pa.Array.from_buffers(kind, rows, [None, self._pa.py_buffer(values)], 0)

    def _names(self, name: bytes, rows: int) -> pa.Array:
        # Not pa.repeat: Arrow imports pandas (0.3 s of a process) before it converts its first value of Python.
        ends = self._pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * np.int32(len(name)))  # rows + 1 offsets
        return self._pa.Array.from_buffers(self._pa.string(), rows, [None, ends, self._pa.py_buffer(name * rows)], 0)

    def _same(self, name: str, rows: int) -> pa.Array:
        """Return ``rows`` equal values of column ``name``, "topic" or "partition"."""
        found = self._equal.get(name)
        if found is None or len(found) < rows:
            found = self._equal[name] = self._repeated[name](max(rows, FIRST_ROWS))
        return found.slice(0, rows)

    def _binary(self, kind: pa.DataType, count: int, of: ArrowBinary) -> pa.Array:
        return self._pa.Array.from_buffers(kind, count, [*self._bounds(of), self._pa.py_buffer(of.data)], of.nulls)

    def _lists(self, buffers: ArrowBuffers) -> pa.Array:
        kind = self._types["headers"]
        lists, names, values = cast("tuple[ArrowBinary, ArrowBinary, ArrowBinary]", buffers.headers)
        fields, count = kind.value_type, len(names.ends) // 4 - 1
        children = [self._binary(fields.field(at).type, count, of) for at, of in enumerate((names, values))]
        held = self._pa.Array.from_buffers(fields, count, [None], 0, children=children)
        return self._pa.Array.from_buffers(kind, buffers.rows, self._bounds(lists), lists.nulls, children=[held])

    def _bounds(self, of: ArrowBinary) -> list[Any]:
        buffer = self._pa.py_buffer
        return [None if of.validity is None else buffer(of.validity), buffer(of.ends)]
