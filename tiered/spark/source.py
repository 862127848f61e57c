"""Source: the methods that Spark calls for a batch query, and the entry to streams (``stream``) and the sink.

============================  ==================  ===============================================================
call                          process             does
============================  ==================  ===============================================================
``schema``, ``reader``        driver's planner    checks options and columns
``partitions``                driver's planner    pins one root per partition, cuts slices: at the first action
                                                  of a DataFrame, once for it and all that is derived from it
``read(slice)``               worker of the task  streams, verifies and decodes the slice into Arrow batches
============================  ==================  ===============================================================

There is no ``pushFilters``: Spark keeps one reader per DataFrame, and a filter pushed for one use of it would drop rows
of the others. Options and the columns of ``.schema(...)`` limit what is read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tiered.errors import ConfigError
from tiered.spark.options import ReadOptions, StreamOptions, include_headers
from tiered.spark.ranges import resolve_pieces
from tiered.spark.schema import check_schema, kafka_schema
from tiered.spark.sink import TieredStreamWriter, TieredWriter, WritePlan
from tiered.spark.slice_reader import SliceReader
from tiered.spark.stream import TieredStreamReader, refused_stream_reader
from tiered.spark.worker import keep_modules
from tiered.spark.write_options import WriteOptions


class TieredDataSource(DataSource):
    """Data source ``format("tiered")``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format, for ``format(...)``."""
        return "tiered"

    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source, which a read without ``.schema(...)`` has.

        Raises ConfigError for a wrong value of ``includeHeaders``.
        """
        return kafka_schema(include_headers=include_headers(self.options))

    def reader(self, schema: StructType) -> TieredReader:
        """Return the reader of a batch query. Raises ConfigError for a wrong option or column."""
        options = ReadOptions.parse(self.options)
        return TieredReader(options, check_schema(schema, include_headers=options.include_headers))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream. With a wrong option or column each of its methods raises ConfigError."""
        try:
            options = StreamOptions.parse(self.options)
            return TieredStreamReader(options, check_schema(schema, include_headers=options.read.include_headers))
        except ConfigError as why:
            return refused_stream_reader(why)

    def writer(self, schema: StructType, overwrite: bool) -> TieredWriter:
        """Return the writer of a batch job. ``overwrite`` True (a mode that replaces rows) is refused.

        Raises ConfigError for a wrong option, column or mode, UnknownTopicError. Raises FencedError if local logs own
        all partitions of the topic.
        """
        options = WriteOptions.parse(self.options, streaming=False)
        return TieredWriter(WritePlan.from_options(options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TieredStreamWriter:
        """Return the writer of a stream. ``overwrite`` True (a mode that replaces rows) is refused.

        Raises ConfigError for a wrong option, column or mode, UnknownTopicError. Raises FencedError if local logs own
        all partitions of the topic.
        """
        options = WriteOptions.parse(self.options, streaming=True)
        return TieredStreamWriter(WritePlan.from_options(options, schema, overwrite=overwrite))


class TieredReader(DataSourceReader):
    """Reader of a batch query. Plans on the driver, is pickled, and reads in the workers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._slices = SliceReader(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Return the slices of the query, for the log as it is now. They are ordered by topic, partition and offset.

        Raises ConfigError, UnknownTopicError (also for a topic that is being deleted), OffsetOutOfRangeError and
        OffsetGapError (data loss), and the errors of the store.
        """
        return list(self._slices.cut(resolve_pieces(self._slices.options, self._slices.store())))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one slice.

        Raises OffsetOutOfRangeError and OffsetGapError for missing offsets, unless ``failOnDataLoss`` is false.
        """
        return self._slices.read(partition)


keep_modules()  # at this point a worker has loaded all modules that it needs
