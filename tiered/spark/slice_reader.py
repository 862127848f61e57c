"""Slices of pieces on the driver, Arrow batches of slices in the workers; for batch queries and streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from tiered.arrow import ArrowDecoder, RecordBounds
from tiered.format.batch import read_header
from tiered.format.batch_scanner import BatchRun, cut
from tiered.model import Row
from tiered.plan.visibility import Hidden
from tiered.spark.options import ReadOptions
from tiered.spark.ranges import offset_index_of
from tiered.spark.schema import arrow_schema_of, column_names
from tiered.spark.slices import Cuts, PartitionSlice, Slice, cut_slices, cuts_of, rows_to_cut, target_bytes
from tiered.spark.stores import store_of
from tiered.spark.subscription import planning_pool
from tiered.spark.task_reader import Batches, PinnedPiece, Sources
from tiered.spark.worker_setup import start_task
from tiered.store.base import Store
from tiered.store.driver import drive


class SliceReader:
    """Reader of slices, made of options and columns, so that it can be pickled to the workers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self._schema = schema

    def cut(self, pieces: Sequence[PartitionSlice]) -> list[Slice]:
        """Cut pieces into slices, in the same order. Raises ConfigError for too many, and the errors of the store."""
        options = self.options
        target = target_bytes(pieces, options.slice_bytes, options.min_partitions)
        return cut_slices(
            pieces,
            slice_bytes=options.slice_bytes,
            min_partitions=options.min_partitions,
            max_records=options.max_records,
            cuts=self._cuts(rows_to_cut(pieces, target), target),
        )

    def read(self, partition: InputPartition, store: Store | None = None) -> Iterator[pa.RecordBatch]:
        """Yield record batches of about 1 MB. Records that moved since the plan are read from their new place
        (``pin``).

        ``store``: used instead of the one in the options. Raises OffsetOutOfRangeError and OffsetGapError for missing
        offsets (with ``failOnDataLoss=false`` they are skipped and counted in a warning), CorruptionError, and
        ConfigError for a null in a column that is NOT NULL.
        """
        if not isinstance(partition, Slice):  # a query without slices is one call with an empty partition
            return
        start_task()
        schema = arrow_schema_of(self._schema)
        columns = column_names(self._schema)
        sources = Sources(store or self.store(), self.options.local_dir)
        try:
            for piece in partition.pieces:
                hidden = Hidden(piece.aborted)
                fail, past = self.options.fail_on_data_loss, self.options.as_of is not None
                pinned = PinnedPiece(piece, sources, fail_on_data_loss=fail, past=past)
                for start, batches in pinned.stretches():
                    bounds = RecordBounds(start, piece.end)
                    decoder = ArrowDecoder(piece.tp, columns=columns, timestamp_unit="us", bounds=bounds, schema=schema)
                    yield from _decoded(decoder, hidden, batches)
        finally:
            sources.close()

    def _cuts(self, rows: Sequence[tuple[PartitionSlice, Row]], target: int) -> Cuts:
        """Return where to cut segments that are larger than a slice. Fetches their offset indexes concurrently."""
        store = self.store()
        if store is None or not rows:
            return {}

        def cuts_at(piece: PartitionSlice, row: Row) -> list[int] | None:
            index = drive(store, offset_index_of(piece.tp, piece.topic_id, row))
            return cuts_of(index.entries, target) if index is not None else None

        with planning_pool("indexes") as pool:
            found = pool.map(cuts_at, *zip(*rows, strict=True))
            return {
                (piece.tp, row.base): cuts for (piece, row), cuts in zip(rows, found, strict=True) if cuts is not None
            }

    def store(self) -> Store | None:
        """Return the store of this process; None for a local tier alone. Raises ConfigError."""
        path = self.options.path
        return store_of(path, self.options) if path else None


def _decoded(decoder: ArrowDecoder, hidden: Hidden, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Decode batches without those that ``read_committed`` hides."""
    for found in batches:
        if not isinstance(found, BatchRun):
            if not hidden.hides(found[0]):
                yield from decoder.add(*found)
        elif not hidden.hides_any:
            yield from decoder.add_run(found.data)
        else:
            for batch in cut(found.data):
                header = read_header(batch)
                if not hidden.hides(header):
                    yield from decoder.add(header, batch)
    yield from decoder.finish()
