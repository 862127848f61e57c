"""Columns of the Spark source: Kafka's, and the user's choice of them."""

from __future__ import annotations

import pyarrow as pa
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

from tiered.errors import ConfigError

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
_NAMES = {name.lower(): name for name in _TYPES}


def kafka_schema(*, include_headers: bool) -> StructType:
    """Return the columns of Spark's Kafka source; ``headers`` only on request, as there.

    Columns missing in the user's ``.schema(...)`` are neither decoded nor sent to the JVM.
    """
    names = [name for name in _TYPES if include_headers or name != "headers"]
    return StructType([StructField(name, _TYPES[name]) for name in names])


def check_schema(schema: StructType, *, include_headers: bool) -> StructType:
    """Check ``schema`` and return it unchanged: Spark compares with its letter case, order and nullability.

    Names match without regard to case, as Spark resolves columns. Raises ConfigError, in one sentence, for an unknown
    column, a duplicate, or another type.
    """
    seen: set[str] = set()
    for wanted, name in zip(schema.fields, column_names(schema), strict=True):
        if name in seen:
            raise ConfigError(
                f"schema: column {wanted.name} is named twice",
                hint=f"name {name} once, select it twice behind the source",
            )
        seen.add(name)
        if _shape(wanted.dataType) != _shape(_TYPES[name]):
            raise ConfigError(
                f"schema: column {wanted.name} is {_TYPES[name].simpleString()}, not {wanted.dataType.simpleString()}",
                hint="choose columns in the schema, convert them behind the source",
            )
        if name == "headers" and not include_headers:
            raise ConfigError("schema: headers needs the option includeHeaders=true")
    return schema


def column_names(schema: StructType) -> list[str]:
    """Return the log's own names of the columns of ``schema``. Raises ConfigError for an unknown column."""
    names = []
    for wanted in schema.fields:
        name = _NAMES.get(wanted.name.lower())
        if name is None:
            raise ConfigError(
                f"schema: there is no column {wanted.name}",
                hint=f"columns: {', '.join(_TYPES)}; cast and parse value behind the source",
            )
        names.append(name)
    return names


def _shape(kind: DataType) -> str:
    """Return a type without nullability and letter case; field names of ``headers`` resolve as column names do."""
    return kind.simpleString().lower()


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark requires of the source's record batches."""
    return to_arrow_schema(schema, timezone="UTC")
