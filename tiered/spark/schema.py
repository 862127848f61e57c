"""Kafka's columns as Spark types. What the user's ``.schema(...)`` leaves out is not decoded, nor sent to the JVM."""

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


def kafka_schema(*, include_headers: bool) -> StructType:
    """The columns of Spark's Kafka source; ``headers`` only when asked for, as there."""
    names = [name for name in _TYPES if include_headers or name != "headers"]
    return StructType([StructField(name, _TYPES[name]) for name in names])


def check_schema(schema: StructType, *, include_headers: bool) -> StructType:
    """``schema`` with every field nullable. Raises ConfigError for a column that the log does not have, or its type."""
    fields = []
    for wanted in schema.fields:
        kind = _TYPES.get(wanted.name)
        if kind is None:
            raise ConfigError(
                f"schema: there is no column {wanted.name}",
                hint=f"columns: {', '.join(_TYPES)}; cast and parse value behind the source",
            )
        if wanted.dataType.simpleString() != kind.simpleString():
            raise ConfigError(
                f"schema: column {wanted.name} is {kind.simpleString()}, not {wanted.dataType.simpleString()}",
                hint="choose columns in the schema, convert them behind the source",
            )
        if wanted.name == "headers" and not include_headers:
            raise ConfigError("schema: headers needs the option includeHeaders=true")
        fields.append(StructField(wanted.name, kind))
    return StructType(fields)


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Exactly what Spark compares the record batches of a source with."""
    return to_arrow_schema(schema, timezone="UTC")
