"""Columns of frames that the source reads and the sink writes. Names match without regard to case.

A read has the columns of Spark's Kafka source, or those of them that the user's ``.schema(...)`` chooses. A written
frame has columns with the names and types of Spark's Kafka sink:

============  ==========================================  ==============================================================
column        type                                        null, or no such column
============  ==========================================  ==============================================================
``value``     binary or string                            a null is a tombstone; the column is needed
``key``       binary or string                            no key; a compacted topic refuses that
``headers``   array<struct<key:string,value:binary>>      no headers
``topic``     string                                      an error, unless the option ``topic`` names one for all rows
``partition`` int                                         the key decides, as Kafka's producer does it
``timestamp`` timestamp                                   the time of the write
============  ==========================================  ==============================================================

``offset`` and ``timestampType``, which a frame of the source has, are left out. Any other column is refused.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tiered.errors import ConfigError, InvalidTimestampError
from tiered.format.columns import Int64s, RecordColumns

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
}
_NAMES = {name.lower(): name for name in _TYPES}


def kafka_schema(*, include_headers: bool) -> StructType:
    """Return the columns of Spark's Kafka source; ``headers`` only on request, as there.

    Columns missing in the user's ``.schema(...)`` are neither decoded nor sent to the JVM.
    """
    names = [name for name in _TYPES if include_headers or name != "headers"]
    return StructType([StructField(name, _TYPES[name]) for name in names])


def check_schema(schema: StructType, *, include_headers: bool) -> StructType:
    """Check the columns of ``schema`` and return it unchanged.

    Spark compares the batches with its letter case, order and nullability. Here names match without regard to case.
    Raises ConfigError for an unknown column, a duplicate, another type, or ``headers`` without ``include_headers``.
    """
    seen: set[str] = set()
    for wanted, name in zip(schema.fields, column_names(schema), strict=True):
        if name in seen:
            raise ConfigError(
                f"schema: column {wanted.name} is named twice",
                hint=f"name {name} once in the schema, and select it twice after load()",
            )
        seen.add(name)
        if _shape(wanted.dataType) != _shape(_TYPES[name]):
            raise ConfigError(
                f"schema: column {wanted.name} is {_TYPES[name].simpleString()}, not {wanted.dataType.simpleString()}",
                hint="only choose columns in the schema, and convert them after load()",
            )
        if name == "headers" and not include_headers:
            raise ConfigError(
                "schema: headers needs the option includeHeaders=true", hint='add option("includeHeaders", "true")'
            )
    return schema


def column_names(schema: StructType) -> list[str]:
    """Return the log's own names of the columns of ``schema``. Raises ConfigError for an unknown column."""
    names = []
    for wanted in schema.fields:
        name = _NAMES.get(wanted.name.lower())
        if name is None:
            raise ConfigError(
                f"schema: there is no column {wanted.name}",
                hint=f"columns: {', '.join(_TYPES)}; cast and parse value after load()",
            )
        names.append(name)
    return names


def _shape(kind: DataType) -> str:
    """Return a type without nullability and letter case; field names of ``headers`` resolve as column names do."""
    return kind.simpleString().lower()


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema for the source's record batches, as Spark requires it for ``schema``."""
    return to_arrow_schema(schema, timezone="UTC")


LEFT_OUT = ("offset", "timestamptype")
"""Columns of a frame of the source that are not written: a commit assigns the offsets."""

_TEXT_OR_BYTES: tuple[DataType, ...] = (BinaryType(), StringType())
WRITABLE: dict[str, tuple[DataType, ...]] = {
    "key": _TEXT_OR_BYTES,
    "value": _TEXT_OR_BYTES,
    "headers": (_HEADERS,),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "timestamp": (TimestampType(),),
}
_ARROW_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Rows of one record batch. ``topics``: Arrow dictionary column, None if the option names one topic.

    ``partitions``: -1 for a row without one; None if the frame has no such column.
    """

    records: RecordColumns
    topics: pa.DictionaryArray | None
    partitions: Int64s | None


@dataclass(frozen=True, slots=True)
class WriteSchema:
    """Index of each known column in the frame's record batches. Columns that the frame lacks are absent."""

    places: dict[str, int]

    @classmethod
    def from_spark(cls, schema: StructType, *, topic: str | None) -> WriteSchema:
        """Return the mapping for a frame's schema. ``topic``: the option that names the topic of all rows, None without
        it.

        Raises ConfigError, in one sentence, for an unknown, missing, repeated or mistyped column.
        """
        places: dict[str, int] = {}
        for at, field in enumerate(schema.fields):
            name = field.name.lower()
            if name in LEFT_OUT:
                continue
            if name not in WRITABLE:
                near = difflib.get_close_matches(name, WRITABLE, n=1, cutoff=0.6)
                raise ConfigError(
                    f"column {field.name} cannot be written",
                    hint=f"did you mean {near[0]}?"
                    if near
                    else f"columns: {', '.join(WRITABLE)}; for example select(to_json(struct('*')).alias('value'))",
                )
            if name in places:
                raise ConfigError(f"column {field.name} appears twice", hint="select it once")
            if not any(_written_shape(field.dataType) == _written_shape(kind) for kind in WRITABLE[name]):
                wanted = " or ".join(kind.simpleString() for kind in WRITABLE[name])
                raise ConfigError(
                    f"column {field.name} is {field.dataType.simpleString()}, not {wanted}",
                    hint="convert it with to_json, timestamp_millis or cast",
                )
            places[name] = at
        if "value" not in places:
            raise ConfigError("the DataFrame has no column `value`", hint="select(to_json(struct('*')).alias('value'))")
        if topic is None and "topic" not in places:
            raise ConfigError(
                "no topic was named",
                hint='give option("topic", "flights"), or a column topic that names one for each row',
            )
        if topic is not None:
            places.pop("topic", None)
        return cls(places)

    def rows(self, batch: pa.RecordBatch, now_ms: int) -> WrittenRows:
        """Return the records of one record batch. ``now_ms``: timestamp for rows without one.

        Raises ConfigError for a null topic or the partition -1, InvalidTimestampError for a time before 1970.
        """
        count = batch.num_rows
        headers = self._column(batch, "headers")
        records = RecordColumns(
            self._bytes(batch, "value"),
            self._bytes(batch, "key"),
            self._times(batch, now_ms),
            None if headers is None or headers.null_count == count else headers.cast(_ARROW_HEADERS),
        )
        topics = self._column(batch, "topic")
        if topics is not None:
            if topics.null_count:
                raise ConfigError(
                    "a row has a null topic", hint='filter such rows, or give option("topic", ...) for all rows'
                )
            topics = topics.cast(pa.string()).dictionary_encode()
        return WrittenRows(records, topics, self._partitions(batch))

    def _partitions(self, batch: pa.RecordBatch) -> Int64s | None:
        """Return the numbers of the partitions, -1 for a null. Raises ConfigError for a row that says -1 itself."""
        column = self._column(batch, "partition")
        if column is None:
            return None
        if pc.any(pc.equal(column, -1)).as_py():
            raise ConfigError(
                "a row names the partition -1",
                hint="give a number from 0 on, or null to choose the partition by the key",
            )
        return _numbers(column, -1)

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array | None:
        place = self.places.get(name)
        return None if place is None else batch.column(place)

    def _bytes(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        column = self._column(batch, name)
        if column is None:
            return pa.nulls(batch.num_rows, pa.binary())
        return column if column.type == pa.binary() else column.cast(pa.binary())

    def _times(self, batch: pa.RecordBatch, now_ms: int) -> Int64s:
        """Return the timestamp of each row in ms since 1970, ``now_ms`` for a row without one.

        The time zone in the column's type does not change the values. Raises InvalidTimestampError before 1970.
        """
        column = self._column(batch, "timestamp")
        if column is None:
            return np.full(batch.num_rows, now_ms, np.int64)
        missing = column.is_null().to_numpy(zero_copy_only=False)
        times = np.where(missing, now_ms, _numbers(column.cast(pa.timestamp("us", column.type.tz)), 0) // 1000)
        if len(times) and times.min() < 0:
            raise InvalidTimestampError(
                f"a row has the timestamp {times.min()} ms, before 1970",
                hint="correct the row, or leave the column timestamp out",
            )
        return times


def _numbers(column: pa.Array, instead: int) -> Int64s:
    """Return the column as a numpy array, with ``instead`` for nulls."""
    whole: Int64s = pc.fill_null(column.cast(pa.int64()), instead).to_numpy(zero_copy_only=False)
    return whole


def _written_shape(kind: DataType) -> str:
    """Return a type without nullability, letter case and the collation of strings."""
    return "string" if isinstance(kind, StringType) else kind.simpleString().lower()
