"""The batch source: what Spark calls, on the driver and in the workers.

============================  ==================  ===============================================================
call                          process             does
============================  ==================  ===============================================================
``schema``, ``reader``        driver's planner    checks options and columns
``partitions``                driver's planner    pins one root per partition, cuts slices: at the first action
                                                  of a DataFrame, once for it and all that is derived from it
``read(slice)``               worker of the task  streams, verifies and decodes the slice into Arrow batches
============================  ==================  ===============================================================

There is no ``pushFilters``: Spark keeps one reader per DataFrame, and a filter pushed for one use of it would drop
rows of the others. Options prune, and the columns of ``.schema(...)``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import Unpack
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
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

from tiered.config import S3Keywords
from tiered.errors import ConfigError
from tiered.format.bundle import SectionKind
from tiered.format.offset_index import OffsetIndex
from tiered.model import Row
from tiered.plan.visibility import Hidden
from tiered.read.arrow import ArrowDecoder
from tiered.remote.fetch import SegmentGone
from tiered.remote.reader import SegmentReader
from tiered.spark.options import ReadOptions
from tiered.spark.pin import Batches, PinnedPiece, Sources
from tiered.spark.ranges import planning_pool, resolve_pieces
from tiered.spark.slices import Cuts, Piece, Slice, cut_slices, cuts_of, rows_to_cut, target_bytes
from tiered.store.base import Store
from tiered.store.driver import drive
from tiered.store.location import open_store

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

_stores: dict[tuple[object, ...], Store] = {}
_lock = threading.Lock()


def kafka_schema(*, include_headers: bool) -> StructType:
    """The columns of Spark's Kafka source; ``headers`` only when asked for, as there.

    What the user's ``.schema(...)`` leaves out is not decoded, nor sent to the JVM.
    """
    names = [name for name in _TYPES if include_headers or name != "headers"]
    return StructType([StructField(name, _TYPES[name]) for name in names])


def check_schema(schema: StructType, *, include_headers: bool) -> StructType:
    """``schema`` itself: its names in the user's letters, its order and nullability, since Spark compares with it.

    Names are matched without regard to case, as Spark resolves columns. Raises ConfigError, in one sentence, for a
    column that the log does not have, one that is named twice, or one of another type.
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
    """The log's own names of the columns of ``schema``. Raises ConfigError for one that the log does not have."""
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
    """A type without nullability and letter case; field names of ``headers`` resolve as column names do."""
    return kind.simpleString().lower()


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Exactly what Spark compares the record batches of a source with."""
    return to_arrow_schema(schema, timezone="UTC")


def worker_store(url: str, **s3: Unpack[S3Keywords]) -> Store:
    """The store of this process for ``url``; credentials come from its environment. Raises ConfigError.

    It is opened once per process, because an SDK client costs 0.1 s and a pool of connections, and workers are reused
    for many tasks. The process id is part of the key: a forked child must not use its parent's connections. Workers
    end without cleaning up, so nothing here needs to be closed.
    """
    key = (os.getpid(), url, *sorted(s3.items()))
    with _lock:
        store = _stores.get(key)
        if store is None:
            store = _stores[key] = open_store(url, **s3, create=False)
        return store


class TieredDataSource(DataSource):
    """``format("tiered")``."""

    @classmethod
    def name(cls) -> str:
        """The word for ``format(...)``."""
        return "tiered"

    def schema(self) -> StructType:
        """Kafka's columns, where the user gave none. Raises ConfigError for a wrong option."""
        return kafka_schema(include_headers=ReadOptions.parse(self.options).include_headers)

    def reader(self, schema: StructType) -> TieredReader:
        """Raises ConfigError for a wrong option or column."""
        options = ReadOptions.parse(self.options)
        return TieredReader(options, check_schema(schema, include_headers=options.include_headers))


class TieredReader(DataSourceReader):
    """Plans on the driver, is pickled, and reads in the workers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Slices of the wanted ranges, as the log is now, in the order of topic, partition and offset.

        Raises ConfigError, UnknownTopicError (also for a topic that is being deleted), OffsetOutOfRangeError and
        OffsetGapError (data loss), and what the store raises.
        """
        options = self._options
        pieces = resolve_pieces(options, self._store())
        target = target_bytes(pieces, options.slice_bytes, options.min_partitions)
        return list(
            cut_slices(
                pieces,
                slice_bytes=options.slice_bytes,
                min_partitions=options.min_partitions,
                max_records=options.max_records,
                cuts=self._cuts(rows_to_cut(pieces, target), target),
            )
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of about 1 MB. What is no longer where it was planned is read where it is now (``pin``).

        Raises OffsetOutOfRangeError and OffsetGapError for offsets that are gone (with ``failOnDataLoss=false`` they
        are skipped and counted in a warning), CorruptionError, ConfigError for a null in a column that is NOT NULL.
        """
        if not isinstance(partition, Slice):  # a query without slices is one call with an empty partition
            return
        schema = arrow_schema_of(self._schema)
        columns = column_names(self._schema)
        sources = Sources(self._store(), self._options.local_dir)
        try:
            for piece in partition.pieces:
                hidden = Hidden(piece.aborted)
                fail, past = self._options.fail_on_data_loss, self._options.as_of is not None
                pinned = PinnedPiece(piece, sources, fail_on_data_loss=fail, past=past)
                for start, batches in pinned.runs():
                    decoder = ArrowDecoder(
                        piece.tp, columns=columns, timestamp_unit="us", start=start, end=piece.end, schema=schema
                    )
                    yield from decoder.record_batches(_visible(hidden, batches))
        finally:
            sources.close()

    def _cuts(self, rows: Sequence[tuple[Piece, Row]], target: int) -> Cuts:
        """Where to cut the segments that are larger than a slice; their offset indexes are fetched concurrently."""
        store = self._store()
        if store is None or not rows:
            return {}

        def of(piece: Piece, row: Row) -> list[int] | None:
            reader = SegmentReader(piece.tp, UUID(piece.topic_id))
            try:
                data = drive(store, reader.lookup.section(row, SectionKind.OFFSET_INDEX))
            except SegmentGone:
                return None  # rewritten or trimmed since the root was read: the task will look where it is
            return cuts_of(OffsetIndex.from_bytes(data, row.base).entries, target)

        with planning_pool("indexes") as pool:
            found = pool.map(of, *zip(*rows, strict=True))
            return {
                (piece.tp, row.base): cuts for (piece, row), cuts in zip(rows, found, strict=True) if cuts is not None
            }

    def _store(self) -> Store | None:
        options = self._options
        if not options.path:
            return None
        return worker_store(
            options.path,
            endpoint_url=options.endpoint_url,
            region=options.region,
            expected_bucket_owner=options.expected_bucket_owner,
        )


def _visible(hidden: Hidden, batches: Batches) -> Batches:
    """Without what ``read_committed`` hides."""
    for header, batch in batches:
        if not hidden.hides(header):
            yield header, batch
