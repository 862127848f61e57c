"""Arrow schema of a read, and a read as a stream of record batches.

Needs ``pyarrow`` (extra ``arrow``), imported at first use. Columns have the names of Spark's Kafka source::

    key binary | value binary | topic string | partition int32 | offset int64
    timestamp timestamp[ms or us, UTC] | timestampType int32 (0 CreateTime, 1 LogAppendTime)
    headers list<struct<key string, value binary>>, null for a record without headers
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tiered.errors import ConfigError, install_command
from tiered.store.threads import main_has_ended

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""All columns, in the order of Spark's Kafka source."""


def arrow_schema(columns: Sequence[str] = COLUMNS, *, timestamp_unit: str = "ms") -> pa.Schema:
    """Return the schema with these columns, in this order. ``timestamp_unit``: "ms" or "us".

    Raises ConfigError for an unknown column.
    """
    arrow = pyarrow()
    types = {
        "key": arrow.binary(),
        "value": arrow.binary(),
        "topic": arrow.string(),
        "partition": arrow.int32(),
        "offset": arrow.int64(),
        "timestamp": arrow.timestamp(timestamp_unit, tz="UTC"),
        "timestampType": arrow.int32(),
        "headers": arrow.list_(arrow.struct({"key": arrow.string(), "value": arrow.binary()}.items())),
    }
    unknown = [name for name in columns if name not in types]
    if unknown:
        raise ConfigError(f"unknown column {', '.join(unknown)}", hint=f"columns: {', '.join(COLUMNS)}")
    return arrow.schema([arrow.field(name, types[name]) for name in columns])


def arrow_table(pieces: Iterable[pa.RecordBatch], columns: Sequence[str] = COLUMNS) -> pa.Table:
    """Return the rows of all record batches as one table with ``columns``. Without batches it has no rows."""
    return pyarrow().Table.from_batches(pieces, schema=arrow_schema(columns))


class RecordBatches:
    """Lazy iterable of a read's Arrow record batches, each of about ``RECORD_BATCH_BYTES``. Loop over it only once.

    ``iter()`` returns its iterator. It is also a stream of Arrow's C interface, which polars, duckdb, pandas and
    pyarrow read without a copy (``pyarrow.RecordBatchReader.from_stream``).
    """

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.schema = schema
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pyarrow().RecordBatchReader.from_batches(self.schema, self._batches)
        return reader.__arrow_c_stream__(requested_schema)


def pyarrow(way: str = "output") -> Any:
    """Import and return pyarrow. Raises ConfigError if it is missing. ``way``: "input" or "output", for the error."""
    try:
        import pyarrow as module  # noqa: PLC0415  an optional and slow import, owned by this file
    except ImportError as error:
        raise ConfigError(
            f"Arrow {way} needs pyarrow, which is not installed", hint=install_command("arrow")
        ) from error
    if main_has_ended():
        with contextlib.suppress(RuntimeError):
            module.array([])  # the first array imports pandas' executors, which are closed: it fails once and no more
    return module
