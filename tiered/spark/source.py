"""The batch source: what Spark calls, on the driver and in the workers.

============================  ==================  ===============================================================
call                          process             does
============================  ==================  ===============================================================
``schema``, ``reader``        driver's planner    checks options and columns
``partitions``                driver's planner    pins one root per partition, cuts slices; once per ``load``
``read(slice)``               worker of the task  streams, verifies and decodes the slice into Arrow batches
============================  ==================  ===============================================================

There is no ``pushFilters``: Spark keeps one reader per DataFrame, and a filter pushed for one use of it would drop
rows of the others. Options prune, and the columns of ``.schema(...)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tiered.arrow import ArrowDecoder
from tiered.errors import NotFoundError
from tiered.format.batch import BatchHeader, read_header
from tiered.format.bundle import SectionKind
from tiered.format.offset_index import OffsetIndex
from tiered.local.directory.manager import LocalLog
from tiered.model import Row
from tiered.plan.read import Tier
from tiered.remote.fetch import SegmentGone
from tiered.remote.reader import SegmentReader
from tiered.spark.options import ReadOptions
from tiered.spark.ranges import resolve_pieces
from tiered.spark.schema import arrow_schema_of, check_schema, kafka_schema
from tiered.spark.slices import Entries, Piece, Slice, cut_slices, rows_to_cut, target_bytes
from tiered.spark.stores import worker_store
from tiered.store.base import Store


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
        """Slices of the wanted ranges, as the log is now.

        Raises ConfigError, UnknownTopicError, OffsetOutOfRangeError (data loss), and what the store raises.
        """
        options = self._options
        pieces = resolve_pieces(options, self._store())
        target = target_bytes(pieces, options.slice_bytes, options.min_partitions)
        entries = {(piece.tp, row.base): self._entries(piece, row) for piece, row in rows_to_cut(pieces, target)}
        return list(
            cut_slices(pieces, slice_bytes=options.slice_bytes, min_partitions=options.min_partitions, entries=entries)
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of about 1 MB. Raises CorruptionError, NotFoundError for a snapshot that has expired."""
        if not isinstance(partition, Slice):  # a query without slices is one call with an empty partition
            return
        schema = arrow_schema_of(self._schema)
        for piece in partition.pieces:
            decoder = ArrowDecoder(
                piece.tp,
                columns=self._schema.names,
                timestamp_unit="us",
                start=piece.start,
                end=piece.end,
                schema=schema,
            )
            yield from decoder.record_batches(_visible(piece, self._batches(piece)))

    def _batches(self, piece: Piece) -> Iterator[tuple[BatchHeader, bytes | memoryview]]:
        if piece.tier is Tier.LOCAL:
            return _local_batches(self._options.local_dir or "", piece)
        return _remote_batches(_segment_reader(self._store(), piece), piece)

    def _entries(self, piece: Piece, row: Row) -> Entries:
        """The offset index of a segment that is larger than a slice."""
        reader = _segment_reader(self._store(), piece)
        try:
            data = reader.run(reader.lookup.section(row, SectionKind.OFFSET_INDEX))
        except SegmentGone as gone:
            raise _expired(piece, gone) from None
        return OffsetIndex.from_bytes(data, row.base).entries

    def _store(self) -> Store | None:
        options = self._options
        return worker_store(options.path, options.endpoint_url, options.region) if options.path else None


def _segment_reader(store: Store | None, piece: Piece) -> SegmentReader:
    if store is None:
        raise NotFoundError(f"{piece.tp}: a remote piece without a store", hint="option path is missing")
    return SegmentReader(store, piece.tp, UUID(piece.topic_id))


def _remote_batches(reader: SegmentReader, piece: Piece) -> Iterator[tuple[BatchHeader, memoryview]]:
    try:
        yield from reader.read(piece.start, piece.segments_from)
    except SegmentGone as gone:
        raise _expired(piece, gone) from None


def _expired(piece: Piece, gone: SegmentGone) -> NotFoundError:
    return NotFoundError(
        f"{piece.tp}: {gone.key} is gone: it was rewritten or trimmed after this DataFrame was loaded",
        hint="load again",
    )


def _local_batches(local_dir: str, piece: Piece) -> Iterator[tuple[BatchHeader, bytes | memoryview]]:
    log = LocalLog.open(Path(local_dir), read_only=True)
    try:
        for batch in log.partition(piece.tp).read_batches(piece.start, piece.end):
            yield read_header(batch), batch
    finally:
        log.close()


def _visible(
    piece: Piece, batches: Iterator[tuple[BatchHeader, bytes | memoryview]]
) -> Iterator[tuple[BatchHeader, bytes | memoryview]]:
    """Without what ``read_committed`` hides."""
    for header, batch in batches:
        if not (header.is_transactional and piece.hides(header.producer_id, header.base_offset)):
            yield header, batch
