"""How segments leave one partition: retention, deleted records, room on a tiered disk.

A segment leaves in this order: the log start moves, the list forgets it, its files get the suffix ``.deleted`` (the
``.log`` first), and after ``file.delete.delay.ms`` they are unlinked. Reads that began before end as they began.
"""

from __future__ import annotations

import logging

from tiered.errors import DiskFullError, TieredError
from tiered.local.partition.flusher import Flusher
from tiered.local.partition.producers import PartitionProducers
from tiered.local.partition.roller import Roller
from tiered.local.partition.surroundings import Shared
from tiered.plan.retention import LocalSegmentFacts, plan_local_retention
from tiered.plan.roll import RollReason

LOGGER = logging.getLogger("tiered.local")


class Retention:
    """Lets whole segments go, and moves the log start. Takes the partition's lock."""

    def __init__(self, shared: Shared, *, flusher: Flusher, roller: Roller, producers: PartitionProducers) -> None:
        self._files = shared.around.files
        self._lock = shared.lock
        self._condition = shared.condition
        self._segments = shared.segments
        self._flusher = flusher
        self._roller = roller
        self._epochs = shared.leadership.epochs
        self._producers = producers
        self._trash = shared.trash

    def delete_local_before(self, offset: int) -> list[int]:
        """Whole sealed segments below ``offset`` leave the disk, oldest first; returns their bases."""
        condition, segments = self._condition, self._segments
        with self._lock:
            condition.check_writable(fenced_too=False)
            limit = min(offset, segments.end)
            if condition.upload is not None:
                # mutant local-bytes-wait-for-commit
                limit = min(limit, condition.upload.end_offset)
            flushed = self._flusher.flushed
            gone = 0
            for segment in segments.sealed:
                if segment.end_offset > limit or segment.end_offset > flushed:
                    break
                gone += 1
            going, left = segments.sealed[:gone], segments.sealed[gone:]
            if not going:
                return []
            if condition.upload is None:
                first = left[0].base_offset if left else segments.active.base_offset  # a gap may lie before it
                self._raise_log_start(max(segments.log_start, first))
            segments.drop_first(gone)
            try:
                self._trash.throw_away(going)
                self._files.sync_directory(segments.directory)
            except TieredError as error:
                condition.go_offline(error)
                raise
        bases = [segment.base_offset for segment in going]
        LOGGER.info("segments_deleted partition=%s bases=%s", segments.tp, bases)
        return bases

    def settle_start(self) -> None:
        """A loaded log that no bucket continues begins at its first segment or above, and so do its epochs."""
        if self._condition.upload is None:
            self._raise_log_start(max(self._segments.log_start, self._segments.first_base))

    def _raise_log_start(self, offset: int) -> None:
        self._segments.log_start = offset
        try:
            self._epochs.truncate_from_start(offset)
        except DiskFullError as error:  # what goes makes room; epochs below the start are forgotten the next time
            LOGGER.warning("epochs_not_forgotten partition=%s error=%s", self._segments.tp, error)
        self._producers.raise_log_start()

    def apply_retention(self, now_ms: int) -> list[int]:
        """One pass of ``plan.retention``; returns the bases that left the disk. Nothing by default."""
        segments = self._segments
        config = segments.config
        limits = (config.retention_ms, config.retention_bytes, config.local_retention_ms, config.local_retention_bytes)
        if max(limits) < 0 and segments.log_start <= segments.first_base:
            return []
        with self._lock:
            active, end = segments.active, segments.end
            tail = LocalSegmentFacts(
                active.base_offset, end, active.size_bytes, active.max_timestamp, active.appended_ms
            )
            all_sealed = segments.sealed
        sealed, upload = self._flusher.durable_segments, self._condition.upload
        plan = plan_local_retention(
            [
                LocalSegmentFacts(s.base_offset, s.end_offset, s.size_bytes, s.max_timestamp, s.appended_ms)
                for s in sealed
            ],
            active_bytes=tail.size_bytes,
            active=tail if len(sealed) == len(all_sealed) else None,
            config=config,
            now_ms=now_ms,
            log_start_offset=segments.log_start,
            committed_end=None if upload is None else upload.end_offset,
        )
        if plan.roll_active:
            self._roll_expired()
        return self.delete_local_before(plan.delete_below) if plan.bases else []

    def _roll_expired(self) -> None:
        """The active segment, to go with the others. A full disk keeps none of these: they make the room for it."""
        try:
            self._roller.roll(RollReason.RETENTION)
        except DiskFullError as error:
            LOGGER.warning("expired_segment_not_rolled partition=%s error=%s", self._segments.tp, error)

    def retain(self, now_ms: int) -> int | None:
        """One pass of the retention rules, unless the partition is out of service; returns the bytes that left."""
        if not self._condition.at_work or self._condition.fenced:
            return None
        before = self._segments.sealed
        gone = set(self.apply_retention(now_ms))
        return sum(segment.size_bytes for segment in before if segment.base_offset in gone) if gone else None

    def expire_producers(self, now_ms: int) -> int | None:
        """Forgets producers that were idle for a day; None if there was none."""
        if not self._condition.at_work:
            return None
        with self._lock:
            return 0 if self._producers.expire(now_ms) else None

    def empty_trash(self, now_ms: int) -> int | None:
        """Unlinks the files whose ``file.delete.delay.ms`` is over; returns their bytes, None without any."""
        return self._trash.empty(now_ms) if self._condition.at_work else None
