"""Conversion of Arrow data for an append to columns of records. All is checked before any row is written.

============  ================================================  ========================================================
column        type                                              null, or no such column
============  ================================================  ========================================================
``value``     binary or text, of any of Arrow's layouts         a null is a tombstone; the column is needed
``key``       binary or text                                    no key; a compacted topic refuses that
``timestamp`` timestamp with a zone, or whole milliseconds      the time of the call
``headers``   list<struct<key: string, value: binary>>          no headers
``partition`` integer                                           the key decides, as for ``Topic.append``
============  ================================================  ========================================================

The columns ``topic``, ``offset`` and ``timestampType`` of a read are ignored. Any other column is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tiered.arrow.schema import pyarrow
from tiered.config import TopicConfig
from tiered.errors import ConfigError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError, UnknownTopicError
from tiered.format.batch import HEADER_BYTES
from tiered.format.columns import Int64s, RecordColumns, encode_columns, key_hashes, partitions_of, rows_by_partition
from tiered.local.partition.validation import RecordRules
from tiered.times import SECONDS_END, SECONDS_FROM, check_no_seconds

if TYPE_CHECKING:
    import pyarrow as pa

NAMES = ("value", "key", "timestamp", "headers", "partition")
LEFT_OUT = ("topic", "offset", "timestampType")

CHUNK_ROWS = 65_536
"""Rows that are checked and encoded at once."""


class RowSlice(NamedTuple):
    """Consecutive rows of the data of one append. ``first``: number of the first row, from 0.

    ``partitions``: target of each row. -1: the row has no key, and names no partition.
    """

    first: int
    records: RecordColumns
    partitions: Int64s


class ArrowRows:
    """Rows to append: a table, a record batch, or any object with Arrow's C interface, which is read at once.

    ``partitions``: number of partitions of the topic. ``partition``: target of all rows; None: column ``partition`` of
    each row, otherwise its key. A wrong type or column raises ConfigError.
    """

    def __init__(self, data: object, *, config: TopicConfig, partitions: int, partition: int | None) -> None:
        self._arrow = pyarrow("input")
        self._config = config
        self._rules = RecordRules(config)
        self._partitions = partitions
        self._partition = partition
        self._table = self._as_table(data)
        self._check_schema(self._table.schema)

    def checked(self, now_ms: int) -> list[RowSlice]:
        """Check all rows, and return them in chunks, which share the caller's memory where the layouts agree.

        ``now_ms``: time of rows without a timestamp. Raises ConfigError, InvalidRecordError, RecordTooLargeError,
        InvalidTimestampError or UnknownTopicError for a bad row. No row is appended.
        """
        found: list[RowSlice] = []
        first = 0
        for batch in self._table.to_batches(max_chunksize=CHUNK_ROWS):
            if batch.num_rows:
                found.append(self._rows(batch, first, now_ms))
                first += batch.num_rows
        return found

    def _as_table(self, data: object) -> pa.Table:
        arrow = self._arrow
        if isinstance(data, arrow.Table):
            return data
        if isinstance(data, arrow.RecordBatch):
            return arrow.Table.from_batches([data])
        cause, why = None, "not Arrow data"
        if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
            try:
                return arrow.table(data)
            except arrow.ArrowInvalid as error:  # a column alone
                cause, why = error, str(error)
        raise ConfigError(
            f"data is {type(data).__name__}, {why}",
            hint="pass a pyarrow.Table, a RecordBatch, or an object with __arrow_c_stream__ (polars, duckdb)",
        ) from cause

    def _check_schema(self, schema: pa.Schema) -> None:
        for name in schema.names:
            if name not in (*NAMES, *LEFT_OUT):
                near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.6)
                raise ConfigError(
                    f"column {name} is not a field of a record",
                    hint=f"did you mean {near[0]}?" if near else f"columns: {', '.join(NAMES)}",
                )
            if schema.names.count(name) > 1:
                raise ConfigError(f"column {name} appears twice", hint="select it once")
            wanted = _WANTED.get(name)
            if wanted is not None and not self._fits(name, schema.field(name).type):
                raise ConfigError(f"column {name} is {schema.field(name).type}, not {wanted}", hint="cast it first")
        if "value" not in schema.names:
            raise ConfigError(
                "the table has no column `value`", hint="rename the column that holds the records' values"
            )

    def _fits(self, name: str, kind: Any) -> bool:
        types = self._arrow.types
        if types.is_null(kind):
            return True
        if name in {"value", "key"}:
            kind = kind.value_type if types.is_dictionary(kind) else kind
            return any(getattr(types, f"is_{word}")(kind) for word in _BYTES)
        if name == "timestamp":
            return types.is_integer(kind) or (types.is_timestamp(kind) and kind.tz is not None)
        if name == "partition":
            return bool(types.is_integer(kind))
        if not (types.is_list(kind) or types.is_large_list(kind)) or not types.is_struct(kind.value_type):
            return False
        return [kind.value_type.field(at).name for at in range(kind.value_type.num_fields)] == ["key", "value"]

    def _rows(self, batch: pa.RecordBatch, first: int, now_ms: int) -> RowSlice:
        arrow = self._arrow
        headers, given = self._column(batch, "headers"), self._column(batch, "partition")
        inner = arrow.struct([("key", arrow.string()), ("value", arrow.binary())])
        try:
            records = RecordColumns(
                self._bytes(batch, "value"),
                self._bytes(batch, "key"),
                self._times(batch, now_ms, first),
                None if headers is None or headers.null_count == len(headers) else headers.cast(arrow.list_(inner)),
            )
            given = given if given is None else given.cast(arrow.int64())
        except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError, arrow.ArrowTypeError) as error:
            raise ConfigError(
                f"rows {first} to {first + batch.num_rows}: {error}",
                hint="cast the column to a type that `append_arrow` accepts",
            ) from error
        check_columns(self._config, records, now_ms, first)
        _check_header_names(records, first)
        self._check_sizes(records, first)
        return RowSlice(first, records, self._places(given, records, first))

    def _check_sizes(self, records: RecordColumns, first: int) -> None:
        """Raise RecordTooLargeError for a row that fits into no batch. Only large rows are encoded to find out."""
        rules = self._rules
        room = rules.max_bytes - HEADER_BYTES
        if records.largest() <= room:
            return
        for at in np.flatnonzero(records.sizes() > room).tolist():
            size = len(encode_columns(records.slice(at, at + 1), codec=rules.codec, level=rules.level))
            if size > rules.max_bytes:
                raise RecordTooLargeError(
                    f"row {first + at} is a batch of {size} bytes, but {rules.limit_name} is {rules.max_bytes}",
                    index=first + at,
                    hint=f"raise {rules.limit_name}, or leave such rows out",
                )

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array | None:
        return batch.column(name) if name in batch.schema.names else None

    def _bytes(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        arrow, column = self._arrow, self._column(batch, name)
        if column is None:
            return arrow.nulls(batch.num_rows, arrow.binary())
        return column if column.type == arrow.binary() else column.cast(arrow.binary())

    def _times(self, batch: pa.RecordBatch, now_ms: int, first: int) -> Int64s:
        arrow, column = self._arrow, self._column(batch, "timestamp")
        if column is None or column.null_count == len(column):
            return _all(now_ms, batch.num_rows)
        if arrow.types.is_timestamp(column.type):
            whole = column.type.unit == "s"  # seconds may overflow as ms: check; from us and ns, truncate
            column = column.cast(arrow.timestamp("ms", column.type.tz), safe=whole)
        else:
            given = _numbers(column, -1)
            for at in np.flatnonzero((given >= SECONDS_FROM) & (given < SECONDS_END))[:1].tolist():
                check_no_seconds(int(given[at]), what=f"row {first + at}: ", index=first + at)
        return _numbers(column, now_ms)

    def _places(self, column: pa.Array | None, records: RecordColumns, first: int) -> Int64s:
        """Return each row's partition: that of the call, the one it names, or that of its key. -1: none of these.

        ``column``: the column ``partition``, None without one. ``first``: row number of the first record, for errors.
        Raises UnknownTopicError for a partition that the topic does not have.
        """
        count = self._partitions
        if self._partition is not None:
            return _all(self._partition, len(records))
        chosen = _all(0 if count == 1 else -1, len(records))
        if count > 1 and records.keys.null_count < len(records):
            keyed = records.keys.is_valid().to_numpy(zero_copy_only=False)
            chosen = np.where(keyed, partitions_of(key_hashes(records.keys), count), chosen)
        if column is None or column.null_count == len(column):
            return chosen
        given = _numbers(column, -1)
        named = column.is_valid().to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(named & ((given < 0) | (given >= count)))
        if len(wrong):
            raise UnknownTopicError(
                f"row {first + wrong[0]}: the topic has no partition {given[wrong[0]]}", hint=f"use 0 to {count - 1}"
            )
        return np.where(named, given, chosen)


def check_columns(config: TopicConfig, records: RecordColumns, now_ms: int, first: int = 0) -> None:
    """Check the timestamps and keys of ``records`` against the topic's settings.

    ``now_ms``: the log's clock. ``first``: row number of the first record, for errors. Raises InvalidTimestampError or
    InvalidRecordError for the first refused row.
    """
    times = records.timestamps
    if not config.timestamp_type:
        least, most = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
        if len(times) and (int(times.min()) < max(least, 0) or int(times.max()) > most):
            wrong = np.flatnonzero((times < 0) | (times < least) | (times > most))
            at = first + int(wrong[0])
            raise InvalidTimestampError(
                f"row {at} has timestamp {times[wrong[0]]}, outside the range around the log's clock, {now_ms}",
                index=at,
                hint="correct it, or raise message.timestamp.before.max.ms or message.timestamp.after.max.ms",
            )
    if config.compacted and records.keys.null_count:
        missing = np.flatnonzero(records.keys.is_null().to_numpy(zero_copy_only=False))
        at = first + int(missing[0])
        raise InvalidRecordError(
            f"row {at} has no key, and the topic is compacted", index=at, hint="give every row a key"
        )


def pieces(rows: RowSlice, keyless: int, room: int) -> Iterator[tuple[int, RecordColumns]]:
    """Yield (partition, records) in the order of partitions. The records are consecutive rows of that partition.

    Before compression they have at most ``room`` bytes, or are one row. ``keyless``: partition of rows with neither a
    partition nor a key.
    """
    given = rows.partitions
    if len(given) and given.min() == given.max():
        chosen = int(given[0])
        yield from _runs(keyless if chosen < 0 else chosen, rows.records, room)
        return
    places = np.where(given < 0, keyless, given)
    for at in rows_by_partition(places):
        records = rows.records.select(at) if len(at) < len(places) else rows.records
        yield from _runs(int(places[at[0]]), records, room)


def _runs(partition: int, records: RecordColumns, room: int) -> Iterator[tuple[int, RecordColumns]]:
    """Yield (partition, run of records) for runs that fit into ``room`` bytes before compression, or are one row."""
    start = 0
    for end in records.run_ends(room):
        yield partition, records.slice(start, end)
        start = end


def _check_header_names(records: RecordColumns, first: int) -> None:
    """Raise InvalidRecordError for a header without a name. ``first``: row number of the first record."""
    if records.headers is None:
        return
    elements = records.headers.flatten()
    if elements.null_count or (len(elements) and elements.field(0).null_count):
        last = first + len(records)
        raise InvalidRecordError(
            f"rows {first} to {last}: a header has no name",
            index=first,
            hint="give every header a key, or leave it out",
        )


def _all(number: int, count: int) -> Int64s:
    """Return a constant column of ``count`` rows, which takes no memory."""
    return np.broadcast_to(np.int64(number), count)


def _numbers(column: pa.Array, instead: int) -> Int64s:
    """Return the column as a numpy array, with ``instead`` for nulls."""
    arrow = pyarrow("input")
    found: Int64s = column.cast(arrow.int64()).fill_null(instead).to_numpy(zero_copy_only=False)
    return found


_BYTES = ("binary", "large_binary", "binary_view", "fixed_size_binary", "string", "large_string", "string_view")
_WANTED = {
    "value": "binary or text",
    "key": "binary or text",
    "timestamp": "a timestamp with a time zone, or whole milliseconds",
    "headers": "list<struct<key: string, value: binary>>",
    "partition": "whole numbers",
}
