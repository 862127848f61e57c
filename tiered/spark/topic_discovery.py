"""Partitions of a running stream, read again with each trigger. Runs on the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tiered.clock import Clock
from tiered.errors import LogDestroyedError
from tiered.format.root import STATE_DELETING
from tiered.model import TopicPartition
from tiered.remote.catalog_view import CatalogView
from tiered.spark.options import ReadOptions
from tiered.spark.ranges import pieces_between
from tiered.spark.slices import PartitionSlice
from tiered.spark.stream_offsets import AvailableOffsets, Loss, Range
from tiered.spark.subscription import PinnedPartition, Subscription, planning_pool, refuse_deleting
from tiered.store.base import Store

REGISTRY_AGE_SECONDS = 10.0
"""Longest time until the stream sees a new topic or partition in the registry or the directory."""


class Watch:
    """Partitions of a stream from trigger to trigger."""

    def __init__(self, options: ReadOptions, store: Store | None, clock: Clock) -> None:
        self._read = options
        self._clock = clock
        self._looked: float | None = None
        self._stable: dict[TopicPartition, tuple[CatalogView, int]] = {}
        self.subscription = Subscription(options, store)

    def close(self) -> None:
        """Close the directory."""
        self.subscription.close()

    def ensure_read(self) -> None:
        """Read the registry unless it was read before."""
        if self._looked is None:
            self._read_registry()

    def extents(self) -> dict[TopicPartition, AvailableOffsets]:
        """Return the offsets of each partition now, by a conditional GET each.

        Raises UnknownTopicError, CorruptionError, LogDestroyedError, and the errors of the tiers.
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
        """Return the offset ranges that a batch reads, in order. Calls ``lost`` for partitions that no longer exist."""
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
        """Return all extents, None if a root's topic is being deleted, unless the registry was read ``again``."""
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
        """Return the end of read_committed, looked up once for each version of a catalog."""
        before = self._stable.get(tp)
        if tiers.local is None and before is not None and before[0] is pinned:
            return before[1]
        offset = tiers.stream.last_stable_offset()
        if pinned is not None:
            self._stable[tp] = pinned, offset
        return offset
