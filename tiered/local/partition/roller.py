"""The end of one segment and the beginning of the next."""

from __future__ import annotations

import logging

from tiered.config import MAX_LONG
from tiered.errors import ConfigError, DiskFullError, LocalIOError
from tiered.local.partition.condition import ROLL
from tiered.local.partition.flusher import Flusher
from tiered.local.partition.producers import PartitionProducers
from tiered.local.partition.surroundings import Shared
from tiered.plan.roll import RollReason

LOGGER = logging.getLogger("tiered.local")


class Roller:
    """Seals the active segment: by request, by the clock, or because an append does not fit (:meth:`roll_now`)."""

    __slots__ = ("_clock", "_condition", "_flusher", "_lock", "_producers", "_segments")

    def __init__(self, shared: Shared, *, flusher: Flusher, producers: PartitionProducers) -> None:
        self._clock = shared.around.clock
        self._lock = shared.lock
        self._condition = shared.condition
        self._segments = shared.segments
        self._flusher = flusher
        self._producers = producers

    def roll(self, reason: RollReason = RollReason.REQUESTED, base_offset: int | None = None) -> bool:
        """Seals the active segment, durably, if it holds records; returns whether it did.

        ``base_offset`` names the base of the new segment if it lies above the end (the offsets between are left out).
        An empty active segment makes way for a fresh one. ConfigError for the base of a segment with records, and for
        one below the active segment.
        """
        segments = self._segments
        with self._lock:
            self._condition.check_writable()
            active, end = segments.active, segments.end
            if base_offset is not None and base_offset > MAX_LONG:
                raise ConfigError(f"{segments.tp}: no segment can begin at {base_offset}, above the last offset")
            if base_offset is not None and base_offset < active.base_offset + (active.size_bytes > 0):
                raise ConfigError(f"{segments.tp} ends at offset {end}: no segment can begin at {base_offset}")
            base_offset = None if base_offset is None else max(base_offset, end)
            now_ms = self._clock.now_ms()
            rolled = active.size_bytes > 0
            if rolled:
                self.roll_now(reason, now_ms, base_offset)
            elif base_offset is not None:
                self._replace_empty(base_offset, now_ms)
        self._flusher.flush_to(segments.active.base_offset)
        return rolled

    def roll_now(self, reason: RollReason, now_ms: int, base_offset: int | None = None) -> None:
        """The lock is held. As Kafka, the new base is the end, or the first offset of the append above it."""
        segments = self._segments
        old = segments.active
        base = segments.end if base_offset is None else max(base_offset, segments.end)
        if old.size_bytes == 0:
            if base != old.base_offset:
                self._replace_empty(base, now_ms)
            return
        condition = self._condition
        condition.under_way = ROLL
        try:
            segments.seal_active(base, now_ms)
            old.note_producers(self._producers.take(base))
        except (LocalIOError, DiskFullError):  # the segment goes on as it was
            condition.under_way = None
            raise
        condition.under_way = None
        LOGGER.debug("segment_sealed partition=%s base=%d end=%d reason=%s", segments.tp, old.base_offset, base, reason)

    def _replace_empty(self, base_offset: int, now_ms: int) -> None:
        """A fresh active segment at ``base_offset`` instead of an empty one. The lock is held."""
        self._condition.under_way = ROLL
        if self._segments.replace_empty(base_offset, now_ms):
            self._producers.raise_log_start()
        self._producers.settle(())
        self._producers.take(base_offset)
        self._condition.under_way = None

    def seal_idle(self, now_ms: int) -> int | None:
        """The timer of ``seal.ms``; returns the bytes that it sealed, None if it was not due."""
        condition, active = self._condition, self._segments.active
        if not condition.at_work or condition.fenced or active.idle_reason(now_ms) is None:
            return None
        size = active.size_bytes
        return size if self.roll(RollReason.WALL_CLOCK) else None
