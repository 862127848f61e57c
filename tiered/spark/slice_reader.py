"""Arrow batches of slices, even if their records have moved since the plan; for batch queries and streams.

The driver cuts slices, and the workers read each piece of one::

    as planned ──> batches, until an object is gone (404) or offsets have left the disk
                        │
                        v   the catalog and the disk are read again, once
    elsewhere  ──> the rest from the tier that has it now: a rewritten segment, the bucket instead of the disk
                        │
                        v   offsets in neither tier
    lost       ──> an error, or with failOnDataLoss=false skipped and counted

A piece is read in *stretches*, each from the end of the one before. The batches of a stretch may hold records below its
start, because the batches of a rewritten segment may differ. Verified batches stay in runs, uncut, because work for
each batch costs more than its decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from tiered.arrow import ArrowDecoder, RecordBounds
from tiered.errors import (
    CorruptionError,
    NotFoundError,
    OffsetGapError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from tiered.format.batch import BatchHeader, read_header
from tiered.format.batch_scanner import BatchRun, cut
from tiered.format.keys import topic_key
from tiered.format.root import STATE_DELETING
from tiered.plan.read import Tier
from tiered.plan.visibility import Hidden
from tiered.read.topic import PartitionStream
from tiered.remote.catalog_view import CatalogView
from tiered.remote.fetch import SegmentGone
from tiered.remote.reader import RemotePartition, SegmentReader, StreamPosition
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import AsOf, Past
from tiered.remote.topics import STATE_DELETED, load_entry
from tiered.spark.options import ReadOptions
from tiered.spark.ranges import lose
from tiered.spark.schema import arrow_schema_of, column_names
from tiered.spark.slices import PartitionSlice, Slice, cut_slices
from tiered.spark.worker import start_task, store_of
from tiered.store.base import Store
from tiered.store.driver import Runner, drive, drive_stream

if TYPE_CHECKING:
    from tiered.local.directory.read_only_log import LogView
    from tiered.local.partition.read_log import ReadLog


Batches = Iterator[tuple[BatchHeader, bytes | memoryview] | BatchRun]


class SliceReader:
    """Reader that cuts a query into slices on the driver and reads them in workers. A slice is the work of one task.

    Spark pickles its options and columns.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self._schema = schema

    def cut(self, pieces: Sequence[PartitionSlice]) -> list[Slice]:
        """Cut the offset ranges of a query into slices, one for each Spark task, in the same order.

        Raises ConfigError for more than ``MAX_SLICES`` slices.
        """
        options = self.options
        return cut_slices(
            pieces,
            slice_bytes=options.slice_bytes,
            min_partitions=options.min_partitions,
            max_records=options.max_records,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a slice in Arrow batches of about 1 MB. Records that moved since the plan are read from
        their new place.

        Raises OffsetOutOfRangeError and OffsetGapError for missing offsets. With ``failOnDataLoss=false`` they are
        skipped and counted in a warning. Raises CorruptionError, and ConfigError for a null in a column that is NOT
        NULL.
        """
        if not isinstance(partition, Slice):  # a query without slices is one call with an empty partition
            return
        start_task()
        schema = arrow_schema_of(self._schema)
        columns = column_names(self._schema)
        sources = Sources(self.store(), self.options.local_dir)
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

    def store(self) -> Store | None:
        """Return this process's store for the options; None for a local tier alone.

        Raises ConfigError for a wrong URL or setting of S3.
        """
        path = self.options.path
        return store_of(path, self.options) if path else None


def _decoded(decoder: ArrowDecoder, hidden: Hidden, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield the decoded Arrow batches, without records that ``read_committed`` hides."""
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


__all__ = ["Batches", "PinnedPiece", "Sources"]


class Sources:
    """Store and log directory from which one task reads. The directory is opened at its first use."""

    def __init__(self, store: Store | None, local_dir: str | None) -> None:
        self.store = store
        self._local_dir = local_dir
        self._log: LogView | None = None

    def local(self, piece: PartitionSlice) -> ReadLog | None:
        """Return the partition on disk. None: there is no log directory, the partition has left it, or its topic was
        deleted and perhaps created again.

        Raises NotFoundError if the directory does not exist: then a disk is missing, and the partition has not left it.
        """
        if not self._local_dir:
            return None
        if self._log is None:
            # Imported here, so that a worker that reads the bucket alone does not load the modules of the disk.
            from tiered.local.directory.read_only_log import LogView  # noqa: PLC0415

            try:
                self._log = LogView.open(self._local_dir)
            except NotFoundError as error:
                hint = "local_dir must be readable, under this path, by the driver and by every executor"
                raise NotFoundError(error.message, hint=hint) from None
        info = self._log.topics().get(piece.tp.topic)
        if info is None or info.topic_id.hex != piece.topic_id:
            return None
        try:
            return self._log.partition(piece.tp)
        except UnknownTopicError:
            return None

    def close(self) -> None:
        """Close the local directory."""
        if self._log is not None:
            self._log.close()


class PinnedPiece:
    """Reader of one piece of a slice: a range of offsets of one partition in one tier. It serves one read."""

    def __init__(self, piece: PartitionSlice, sources: Sources, *, fail_on_data_loss: bool, past: bool = False) -> None:
        """Prepare the read. ``past``: read only the planned version of the catalog, as ``asOf`` requires."""
        self._past = past
        self._piece = piece
        self._sources = sources
        self._fail = fail_on_data_loss
        self._runner = Runner(sources.store)
        self._at = piece.start
        self._missing_until = piece.start

    def stretches(self) -> Iterator[tuple[int, Batches]]:
        """Yield (first wanted offset, batches from there on). Consume the batches before the next pair is requested.

        The first pair has the planned bytes. Later pairs have records that moved since the plan, from their new place.
        Raises OffsetOutOfRangeError for offsets that are gone, OffsetGapError for offsets in neither tier,
        CorruptionError for a missing object that is still named, and the errors of the tiers.
        """
        yield self._at, self._as_planned()
        if self._at >= self._piece.end:
            return
        stream = self._reopened()
        while self._at < self._piece.end:
            if stream is not None:
                yield self._at, self._elsewhere(stream)
            if self._at < self._piece.end:
                self._skip(stream)

    # -- as planned ----------------------------------------------------------------------------------------------

    def _as_planned(self) -> Batches:
        piece = self._piece
        if piece.tier is Tier.REMOTE:
            yield from self._from_rows()
            return
        local = self._sources.local(piece)
        if local is None:
            return
        try:
            if local.positions().end_offset < piece.end:
                return
            for run in local.read_runs(self._at, piece.end):
                yield run
                self._at = max(self._at, run.next_offset)
        except (OffsetOutOfRangeError, NotFoundError):
            return  # retention of this disk has passed the reader, or the partition was moved or deleted
        self._at = piece.end

    def _from_rows(self) -> Batches:
        piece = self._piece
        if self._sources.store is None:
            raise NotFoundError(
                f"{piece.tp}: the task has a range in the bucket, but no store to read it", hint="give the option path"
            )
        reader = SegmentReader(piece.tp, UUID(piece.topic_id))
        steps = reader.read(StreamPosition(self._at), piece.rows_from, piece.end, run_shape=lambda run: iter((run,)))
        try:
            for found in drive_stream(self._sources.store, steps):
                yield found
                self._at = max(self._at, (found if isinstance(found, BatchRun) else found[0]).next_offset)
        except SegmentGone:
            return
        self._at = piece.end

    # -- elsewhere -----------------------------------------------------------------------------------------------

    def _reopened(self) -> PartitionStream | None:
        """Return both tiers as they are now. None: the topic is deleted or was created again, or no tier has the
        partition.

        Raises CorruptionError for a missing registry entry, and for a root that is missing or older than the planned
        one. The fate of the records is then unknown, so they do not count as lost.
        """
        piece, store = self._piece, self._sources.store
        local, remote = self._sources.local(piece), None
        if store is not None:
            entry = drive(store, load_entry(piece.tp.topic))
            if entry is None and piece.root_version:
                raise CorruptionError(
                    f"{piece.tp}: the topic is no longer registered; it was when this DataFrame was planned",
                    path_or_key=topic_key(piece.tp.topic),
                    offset=self._at,
                    hint=f"run `tiered check {piece.tp.topic}`; failOnDataLoss does not cover a missing entry",
                )
            ended = entry is not None and entry.state in (STATE_DELETING, STATE_DELETED)
            if entry is not None and (ended or entry.topic_id.hex != piece.topic_id):
                return None
            if entry is not None:
                view = RootView(entry.topic_id, piece.tp.partition, piece.tp.topic)
                past = Past(view, AsOf(version=piece.root_version)) if self._past else None
                remote = RemotePartition(piece.tp, entry.topic_id, past=past)
                if not self._still_there(drive(store, remote.snapshot())):
                    return None
        if local is None and remote is None:
            return None
        return PartitionStream.open(piece.tp, local=local, remote=remote, runner=self._runner)

    def _still_there(self, pinned: CatalogView | None) -> bool:
        """Return False if the topic is being deleted. ``pinned``: the catalog now, None if there is no root.

        Raises CorruptionError if the root is missing or older than the planned one.
        """
        version = pinned.version if pinned is not None else 0
        if version < self._piece.root_version:
            raise CorruptionError(
                f"{self._piece.tp}: the catalog went back to version {version}: this DataFrame was planned "
                f"with version {self._piece.root_version}",
                offset=self._at,
                hint=f"run `tiered check {self._piece.tp.topic}`: an older root was put back, or the root was deleted",
            )
        return pinned is None or pinned.root.state != STATE_DELETING

    def _elsewhere(self, stream: PartitionStream) -> Batches:
        """Yield the batches that both tiers have now, from the first unread offset on.

        It stops at the end of the piece or at the first missing offset.
        """
        end = self._piece.end
        known = stream.latest()
        try:
            for found in self._runner.stream(stream.steps.batches(self._at, end, run_shape=_uncut)):
                yield found if isinstance(found, BatchRun) else (found.header, found.data)
                self._at = max(self._at, (found if isinstance(found, BatchRun) else found.header).next_offset)
        except OffsetGapError as gap:
            if self._fail:
                raise
            self._at, self._missing_until = max(self._at, gap.start), gap.end
            return
        except OffsetOutOfRangeError:
            earliest, latest = stream.earliest(), stream.latest()
            if earliest <= self._at < latest:
                raise  # the offset exists and could not be read: that is not data loss
            self._missing_until = earliest if self._at < earliest else end
            return
        # The stream ends at its latest offset, which may have moved in either direction meanwhile.
        self._at = max(self._at, min(end, known, stream.latest()))
        self._missing_until = end

    def _skip(self, stream: PartitionStream | None) -> None:
        """Skip the missing offsets at which the read has stopped; all of them if ``stream`` is None."""
        tp, end = self._piece.tp, self._piece.end
        until = end if stream is None else min(end, self._missing_until)
        earliest, latest = (stream.earliest(), stream.latest()) if stream is not None else (end, end)
        now = f"the log holds {earliest} to {latest}" if stream is not None else "the topic is deleted or made again"
        lose(
            f"{tp}: offsets {self._at} to {until} are gone since this DataFrame was planned: {now}",
            until - self._at,
            requested=self._at,
            held=(earliest, latest),
            fail=self._fail,
            hint="load again to read what there is; failOnDataLoss=false skips what is gone, with a warning",
        )
        self._at = self._missing_until = until


def _uncut(_: Tier, run: BatchRun) -> BatchRun:
    return run
