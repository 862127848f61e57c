"""Stream source: the methods that Spark calls for a running query, on the driver and in the workers.

=================================  ================  ==================================================================
call                               process           does
=================================  ================  ==================================================================
``initialOffset``                  driver's runner   where a new query begins; the same for the life of this object
``latestOffset``                   driver's runner   a conditional GET of each root; how far the next batch goes
``prepareForTriggerAvailableNow``  driver's runner   keeps the current ends: later appends are not read
``partitions``                     driver's runner   cuts the slices of a batch, as a batch query is cut
``read(slice)``                    worker            streams, verifies and decodes the slice, as a batch query does
=================================  ================  ==================================================================

Reading and planning use different objects. An exception ends the query, so an outage of the store is waited out here.
Nothing depends on ``commit``: the last batch of a query gets none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.errors import ConfigError, LogDestroyedError, RemoteUnavailableError
from tiered.format.root import STATE_DELETING
from tiered.model import TopicPartition
from tiered.plan.pacing import backoff_seconds
from tiered.remote.catalog_view import CatalogView
from tiered.remote.fetch import SegmentGone
from tiered.spark import refused_calls
from tiered.spark.options import ReadOptions, StreamOptions
from tiered.spark.ranges import begin_at_group, check_named, lose, offset_within, pieces_between, start_of
from tiered.spark.slice_reader import SliceReader
from tiered.spark.slices import PartitionSlice
from tiered.spark.stream_offsets import (
    AvailableOffsets,
    Loss,
    Range,
    StreamOffset,
    batch_ranges,
    end_of,
    lag,
    limited,
    proportional,
)
from tiered.spark.subscription import PinnedPartition, Subscription, planning_pool, refuse_deleting
from tiered.store.base import Store

OUTAGE_PATIENCE_SECONDS = 300.0
"""Time that an outage of the store is waited out before it ends the query."""

_logger = logging.getLogger("tiered.spark")

T = TypeVar("T")


class TieredStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream. One instance plans on the driver for the life of a query. Workers get a new, pickled one."""

    def __init__(
        self,
        options: StreamOptions,
        schema: StructType,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        self._options = options
        self._slices = SliceReader(options.read, schema)
        self._clock: Clock = clock or SystemClock()
        self._ids: IdSource = ids or SystemIds()
        self._watch: Watch | None = None
        self._initial: StreamOffset | None = None
        self._target: Mapping[TopicPartition, AvailableOffsets] | None = None
        self._newest: StreamOffset | None = None
        self._last_batch: float | None = None

    # -- offsets -------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a checkpoint, as Kafka's nested JSON, the same at each call.

        Raises ConfigError (options that do not fit the log), UnknownTopicError, and the errors of the tiers.
        """
        if self._initial is None:
            self._initial = self._patiently(self._initial_offset)
        return self._initial.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the batch that begins at ``start``. ``limit`` and the stream's options bound its size.

        Return ``start`` itself if nothing has changed since, or while ``minOffsetsPerTrigger`` delays the batch. The
        first batch of a query may be empty.

        Raises OffsetOutOfRangeError (data loss), UnknownTopicError, RemoteUnavailableError after an outage of
        ``OUTAGE_PATIENCE_SECONDS``, and the errors of the tiers.
        """
        begun = StreamOffset.from_json(start)
        extents = self._target if self._target is not None else self._patiently(self._available)
        ranges, losses = lag(begun, extents)
        self._newest = StreamOffset({tp: extent.end for tp, extent in extents.items()}, _topic_ids(extents))
        if self._options.read.fail_on_data_loss:
            self._warn(losses)
        if not isinstance(limit, ReadAllAvailable):
            if self._is_held_back(ranges):
                return start
            ranges = self._limited(ranges, limit)
        end = end_of(begun, ranges, extents)
        if end is begun:
            return start
        self._warn(losses)
        self._last_batch = self._clock.monotonic()
        return end.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the stream's limits, because Spark takes only one. ``latestOffset`` applies all of them."""
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadMinRows(options.min_offsets) if options.min_offsets is not None else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end offsets that the last trigger found, without its limits; None before the first one."""
        return self._newest.to_json() if self._newest is not None else None

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the current end offsets as the end of the query, so that later appends are not read."""
        self._target = self._patiently(self._available)

    # -- batches -------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the slices of the batch from ``start`` to ``end``. After a restart Spark calls this again for an
        unfinished batch.

        Raises OffsetOutOfRangeError and OffsetGapError (data loss), and the errors of the tiers.
        """
        if start == end:
            return []
        until = StreamOffset.from_json(end)
        ranges = batch_ranges(StreamOffset.from_json(start), until)
        return self._patiently(lambda: self._planned(ranges, until.topic_ids))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one slice.

        Raises OffsetOutOfRangeError and OffsetGapError for missing offsets, unless ``failOnDataLoss`` is false.
        """
        return self._slices.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark's checkpoint stores the progress."""

    def stop(self) -> None:
        """Close the log directory, if the stream has opened one."""
        if self._watch is not None:
            self._watch.close()

    # -- how -----------------------------------------------------------------------------------------------------

    def _watching(self) -> Watch:
        if self._watch is None:
            self._watch = Watch(self._options.read, self._slices.store(), self._clock)
        return self._watch

    def _available(self) -> Mapping[TopicPartition, AvailableOffsets]:
        return self._watching().extents()

    def _initial_offset(self) -> StreamOffset:
        extents = self._target if self._target is not None else self._available()
        watch = self._watching()
        read = begin_at_group(self._options.read, watch.subscription)
        check_named(read.start, watch.subscription, "starting")

        def start(item: tuple[TopicPartition, AvailableOffsets]) -> tuple[TopicPartition, int]:
            tp, extent = item
            return tp, start_of(watch.subscription.tiers(tp), read, extent.earliest, extent.end)

        with planning_pool("starts") as pool:
            return StreamOffset(dict(pool.map(start, sorted(extents.items()))), {})

    def _is_held_back(self, ranges: Mapping[TopicPartition, Range]) -> bool:
        """Return True to delay the batch, because ``ranges`` have fewer offsets than ``minOffsetsPerTrigger``.

        Return False once the last batch is ``maxTriggerDelay`` ago.

        Return False for the first batch, as in Kafka's source, and with ``availableNow``, which would not reach its
        end.
        """
        least = self._options.min_offsets
        if least is None or self._target is not None:
            return False
        if self._last_batch is None:
            self._last_batch = self._clock.monotonic()
            return False
        waits = self._clock.monotonic() - self._last_batch < self._options.max_delay_ms / 1000
        return waits and sum(found.offsets for found in ranges.values()) < least

    def _limited(self, ranges: dict[TopicPartition, Range], limit: ReadLimit) -> dict[TopicPartition, Range]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets
        if most is not None:
            ranges = limited(ranges, most)
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        if size is None:
            return ranges
        shares = proportional({tp: found.offsets for tp, found in ranges.items()}, size)
        watch = self._watching()

        def cut(tp: TopicPartition) -> tuple[TopicPartition, Range]:
            start, end = ranges[tp]
            if start < end:
                end = max(start + 1, offset_within(watch.subscription.tiers(tp), start, end, shares[tp]))
            return tp, Range(start, end)

        with planning_pool("sizes") as pool:
            return dict(pool.map(cut, sorted(ranges)))

    def _planned(self, ranges: Mapping[TopicPartition, Range], topic_ids: Mapping[str, str]) -> list[InputPartition]:
        watch = self._watching()
        watch.ensure_read()
        try:
            return list(self._slices.cut(watch.plan_slices(ranges, topic_ids, self._lost)))
        except SegmentGone:  # a page of an older root was deleted: look again
            watch.extents()
            return list(self._slices.cut(watch.plan_slices(ranges, topic_ids, self._lost)))

    def _warn(self, losses: list[Loss]) -> None:
        for loss in losses:
            self._lost(loss)

    def _lost(self, loss: Loss) -> None:
        lose(
            loss.what,
            loss.offsets,
            requested=loss.requested,
            held=loss.held,
            fail=self._options.read.fail_on_data_loss,
            hint="failOnDataLoss=false reads what there is; another checkpoint begins again",
        )

    def _patiently(self, call: Callable[[], T]) -> T:
        """Return the result of ``call``. While the store is unreachable, repeat it for ``OUTAGE_PATIENCE_SECONDS``."""
        deadline = self._clock.monotonic() + OUTAGE_PATIENCE_SECONDS
        attempt = 0
        while True:
            try:
                return call()
            except RemoteUnavailableError as error:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    raise
                attempt += 1
                _logger.warning("the store cannot be reached, attempt %d; %d s are left: %s", attempt, left, error)
                self._clock.sleep(min(left, backoff_seconds(attempt, self._ids.random())))


def _topic_ids(extents: Mapping[TopicPartition, AvailableOffsets]) -> dict[str, str]:
    return {tp.topic: extent.topic_id for tp, extent in extents.items()}


def refused_stream_reader(why: ConfigError) -> DataSourceStreamReader:
    """Return the reader of a query that cannot begin. Spark gets the error from the first method that it calls.

    Raised earlier, the error would be lost: Spark stops a reader that was never made, and that second error ends the
    query.
    """
    calls = ("initialOffset", "latestOffset", "getDefaultReadLimit", "prepareForTriggerAvailableNow", "partitions")
    bases = (DataSourceStreamReader, SupportsTriggerAvailableNow)
    made: DataSourceStreamReader = type("RefusedStreamReader", bases, refused_calls(why, *calls, "read"))()
    return made


REGISTRY_AGE_SECONDS = 10.0
"""Longest time until the stream sees a new topic or partition in the registry or the directory."""


class Watch:
    """Subscription of one running stream. It remembers its partitions and their roots from trigger to trigger."""

    def __init__(self, options: ReadOptions, store: Store | None, clock: Clock) -> None:
        self._read = options
        self._clock = clock
        self._looked: float | None = None
        self._stable: dict[TopicPartition, tuple[CatalogView, int]] = {}
        self.subscription = Subscription(options, store)

    def close(self) -> None:
        """Close the log directory, if the options name one."""
        self.subscription.close()

    def ensure_read(self) -> None:
        """Read the registry if it was not read yet."""
        if self._looked is None:
            self._read_registry()

    def extents(self) -> dict[TopicPartition, AvailableOffsets]:
        """Return the offsets that each partition has now, by one conditional GET each.

        Raises UnknownTopicError, CorruptionError for a damaged or missing catalog, LogDestroyedError for a topic that
        was deleted, and the errors of the tiers.
        """
        now = self._clock.monotonic()
        if self._looked is None or now - self._looked >= REGISTRY_AGE_SECONDS:
            self._read_registry()
        try:
            found = self._each()
        except LogDestroyedError:
            found = None
        if found is None:  # a topic was or is being deleted, and perhaps made again: read the registry
            self._read_registry()
            found = self._each(again=True)
        return found or {}

    def plan_slices(
        self, ranges: Mapping[TopicPartition, Range], topic_ids: Mapping[str, str], lost: Callable[[Loss], None]
    ) -> list[PartitionSlice]:
        """Return the ranges of a batch, each in one tier and with its segments, ordered by partition and offset.

        ``ranges``: offsets of the batch. ``topic_ids``: ids of the topics at its end. Calls ``lost`` for a partition
        that is gone, or whose topic has another id now.
        """
        with planning_pool("partitions") as partitions, planning_pool("bundles") as bundles:

            def pieces_of(item: tuple[TopicPartition, Range]) -> list[PartitionSlice]:
                tp, (start, end) = item
                topic = self.subscription.topics.get(tp.topic)
                if topic is None or tp.partition >= topic.partitions or topic.topic_id != topic_ids.get(tp.topic):
                    what = f"{tp}: offsets {start} to {end} of this batch are gone: the topic is deleted or made again"
                    lost(Loss(what, end - start, start, (end, end)))
                    return []
                return pieces_between(self.subscription.tiers(tp), start, end, self._read, bundles)

            return [piece for pieces in partitions.map(pieces_of, sorted(ranges.items())) for piece in pieces]

    def _read_registry(self) -> None:
        self.subscription.refresh()
        self._looked = self._clock.monotonic()

    def _each(self, *, again: bool = False) -> dict[TopicPartition, AvailableOffsets] | None:
        """Return the offsets of all partitions. None: a topic is being deleted, and the registry must be read again.

        ``again``: the registry was just read. For a topic that is being deleted raise UnknownTopicError then, or leave
        it out with ``failOnDataLoss=false`` and a pattern.
        """
        with planning_pool("roots") as pool:
            found = list(pool.map(self._extent, self.subscription.partitions))
        extents: dict[TopicPartition, AvailableOffsets] = {}
        for tp, extent in zip(self.subscription.partitions, found, strict=True):
            if extent is not None:
                extents[tp] = extent
            elif again:
                refuse_deleting(tp.topic, self._read)
            else:
                return None
        return extents

    def _extent(self, tp: TopicPartition) -> AvailableOffsets | None:
        tiers = self.subscription.tiers(tp)
        tiers.stream.refresh()
        pinned = tiers.pinned
        if pinned is not None and pinned.root.state == STATE_DELETING:
            return None
        if tiers.local is None and tiers.remote is None:
            return AvailableOffsets(tiers.topic_id, 0, 0, 0)
        latest = tiers.stream.latest()
        end = min(latest, self._last_stable(tp, tiers, pinned)) if self._read.read_committed else latest
        return AvailableOffsets(tiers.topic_id, tiers.stream.earliest(), latest, end)

    def _last_stable(self, tp: TopicPartition, tiers: PinnedPartition, pinned: CatalogView | None) -> int:
        """Return the last stable offset, where ``read_committed`` ends. It is found once per version of a catalog."""
        before = self._stable.get(tp)
        if tiers.local is None and before is not None and before[0] is pinned:
            return before[1]
        offset = tiers.stream.last_stable_offset()
        if pinned is not None:
            self._stable[tp] = pinned, offset
        return offset
