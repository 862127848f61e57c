"""Records as Arrow columns, encoded as batches without a Python object per record, and their partitions.

The compiled kernels write records straight from the columns. Columns that they cannot take, and all columns without
them, are encoded record by record. Needs ``pyarrow`` (extra ``arrow``), imported at the first use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from tiered.errors import InvalidRecordError
from tiered.format import kernels
from tiered.format.batch import encode_batch, read_header, recoded_batch
from tiered.format.codecs import Codec
from tiered.format.header import LOG_APPEND_TIME_BIT, MAX_BATCH_BYTES, Buffer
from tiered.format.kernel_values import BatchFiller, Elements, EncoderColumns
from tiered.model import NewRecord, TimestampType

if TYPE_CHECKING:
    import pyarrow as pa

Int64s = npt.NDArray[np.int64]
B = TypeVar("B", bound=Buffer)

RECORD_OVERHEAD_BYTES = 36
"""Upper bound of what lengths, deltas and the header count add to the key, value and headers of one record."""

HEADER_OVERHEAD_BYTES = 10
"""Upper bound of what two lengths add to the name and the value of one header."""


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records as columns of equal length.

    ``keys`` and ``values`` are Arrow ``binary``; ``headers`` is ``list<struct<key: string, value: binary>>``, None if
    no record has any. ``timestamps``: milliseconds, -1 for none.
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
        """Return the records with the indexes ``rows``, in that order."""
        return RecordColumns(
            self.values.take(rows),
            self.keys.take(rows),
            self.timestamps[rows],
            None if self.headers is None else self.headers.take(rows),
        )

    def records(self) -> list[NewRecord]:
        """Return the records as a list of NewRecords. Raises InvalidRecordError for a header without a name."""
        headers = [None] * len(self) if self.headers is None else self.headers.to_pylist()
        return [
            NewRecord(value, key, timestamp, None if not pairs else [_header(pair) for pair in pairs])
            for value, key, timestamp, pairs in zip(
                self.values.to_pylist(), self.keys.to_pylist(), self.timestamps.tolist(), headers, strict=True
            )
        ]

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
        """Return an upper bound of the largest record's bytes in a batch before compression; 0 without records."""
        rows = rows_of(self)
        return int(self.sizes().max(initial=0)) if rows is None else rows.largest()

    def run_ends(self, room: int) -> list[int]:
        """Split the records into consecutive runs. Return the exclusive end index of each run.

        A run has at most ``room`` bytes before compression, or is one record.
        """
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
    """Return the records of all ``pieces``, of which there is at least one, as one RecordColumns."""
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


def _header(pair: dict[str, Any] | None) -> tuple[str, bytes | None]:
    if pair is None or pair["key"] is None:
        raise InvalidRecordError("a header has no name", hint="give every header a key, or leave it out")
    return pair["key"], pair["value"]


def key_hashes(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """Return the hash of each key by which Kafka's partitioner chooses. The hash of a null is undefined."""
    found = kernels.key_hashes(len(keys), _elements(keys))
    if found is not None:
        return np.frombuffer(found, np.uint32)
    return np.array([kernels.murmur2(key or b"") for key in keys.to_pylist()], np.uint32)


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

    ``level`` None: the default of ``codec``. ``append_time_ms``: time of all records with LogAppendTime. Raises
    InvalidRecordError for a header without a name, RecordTooLargeError beyond the size that readers accept, and
    ConfigError for a level that ``codec`` does not have.
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
    return encode_batch(
        columns.records(),
        codec=codec,
        level=level,
        timestamp_type=timestamp_type,
        append_time_ms=append_time_ms,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def rows_of(columns: RecordColumns) -> EncoderColumns | None:
    """Return the columns for the compiled kernels. None: no kernels are loaded, or they do not support these
    columns.
    """
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
    """Return one v2 batch of the records in ``filler``, and remove them. Raises ValueError without records.

    ``level`` None: the default of ``codec``. ``append_time_ms``: time of all records with LogAppendTime.
    """
    plain = filler.finish(base_offset, leader_epoch, LOG_APPEND_TIME_BIT if timestamp_type else 0, append_time_ms)
    return plain if not codec else recoded_batch(read_header(plain), plain, codec, level)


def _elements(column: pa.Array) -> Elements:
    validity, offsets, data = column.buffers()
    return validity if column.null_count else None, offsets, data, column.offset


def _lengths(column: pa.Array) -> Int64s:
    """Return the length of each element in bytes, 0 for a null."""
    starts = np.frombuffer(column.buffers()[1], np.int32, column.offset + len(column) + 1)[column.offset :]
    lengths: Int64s = np.subtract(starts[1:], starts[:-1], dtype=np.int64)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return lengths


def _counts(headers: pa.Array) -> Int64s:
    """Return the number of elements of each list, 0 for a null."""
    counts: Int64s = _pyarrow().compute.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False)
    return counts.astype(np.int64)


def _pyarrow() -> Any:
    import pyarrow as pa  # noqa: PLC0415  an optional extra
    import pyarrow.compute  # noqa: PLC0415  makes pa.compute

    return pa


def partitions_of(hashes: npt.NDArray[np.uint32], partitions: npt.NDArray[np.int64] | int) -> npt.NDArray[np.int64]:
    """Return the partition of each key by its hash, as Kafka's partitioner chooses it.

    ``partitions``: number of partitions of the topic, or one number for each key.
    """
    return (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions


def rows_by_partition(partitions: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Return one array of ascending record indexes for each partition with records, in the order of partitions.

    ``partitions``: the partition of each record, 0 or above.
    """
    if len(partitions) and partitions[0] == partitions.min() == partitions.max():
        return [np.arange(len(partitions))]
    narrow = partitions.max(initial=0) < 2**16
    order = np.argsort(partitions.astype(np.uint16) if narrow else partitions, kind="stable")  # 16 bits: by radix
    return np.split(order, np.flatnonzero(np.diff(partitions[order])) + 1)
