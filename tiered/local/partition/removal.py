"""How segments leave one partition: retention, deleted records, room on a tiered disk.

A segment leaves in this order: the log start moves, the list forgets it, its files get the suffix ``.deleted`` (the
``.log`` first), and after ``file.delete.delay.ms`` they are unlinked. Reads that began before end as they began.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tiered.errors import ConfigError, OffsetOutOfRangeError, TieredError
from tiered.local.partition.rolling import PartitionRoller
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.plan.retention import LocalSegmentFacts, plan_local_retention
from tiered.plan.roll import RollReason

LOGGER = logging.getLogger("tiered.local")

END = -1
"""``delete_records``: all records below the high watermark."""


class PartitionRemover(PartitionRoller):
    """Lets whole segments go, and moves the log start."""

    def delete_local_before(self, offset: int) -> list[int]:
        """Whole sealed segments below ``offset`` leave the disk, oldest first; returns their bases."""
        with self._lock:
            self._check_writable(fenced_too=False)
            limit = min(offset, self.high_watermark)
            if self.upload is not None:
                limit = min(limit, self.upload.end_offset)
            flushed = self._flushed
            gone = 0
            for segment in self._sealed:
                if segment.end_offset > limit or segment.end_offset > flushed:
                    break
                gone += 1
            going, left = self._sealed[:gone], self._sealed[gone:]
            if not going:
                return []
            if self.upload is None:
                first = left[0].base_offset if left else self._active.base_offset  # a gap may lie before it
                self.log_start = max(self.log_start, first)
                self.epochs.truncate_from_start(self.log_start)
                self._producers.raise_log_start(self.log_start)
            self._sealed = left
            try:
                self._throw_away(going)
                self._files.sync_directory(self.directory)
            except TieredError as error:
                self._go_offline(error)
                raise
        bases = [segment.base_offset for segment in going]
        LOGGER.info("segments_deleted partition=%s bases=%s", self.tp, bases)
        return bases

    def delete_records(self, offset: int) -> int:
        """Records below ``offset`` (-1: all) are no longer read; returns the log start. Files go at the next pass.

        ConfigError unless ``cleanup.policy`` contains delete, and on a tiered log, whose start is the catalog's.
        OffsetOutOfRangeError beyond the end. The start never goes back.
        """
        with self._lock:
            self._check_writable()
            if not self.config.deletes:
                raise ConfigError(
                    f"{self.tp}: records cannot be deleted, cleanup.policy is {self.config.cleanup_policy}",
                    hint="set cleanup.policy to delete or compact,delete",
                )
            if self.upload is not None:
                raise ConfigError(
                    f"{self.tp} is tiered: its start lies in the bucket",
                    hint="trim the remote log; local.retention.* lets local files go",
                )
            bound = self.high_watermark
            wanted = bound if offset == END else offset
            if not 0 <= wanted <= bound:
                what = "the log ends" if bound == self._end else "the high watermark lies"
                raise OffsetOutOfRangeError(
                    f"{self.tp}: records below {offset} cannot be deleted, {what} at {bound}",
                    requested=offset,
                    earliest=self.log_start,
                    latest=bound,
                )
            if wanted > self.log_start:
                self.log_start = wanted
                self.epochs.truncate_from_start(wanted)
                self._producers.raise_log_start(wanted)
            return self.log_start

    def apply_retention(self, now_ms: int) -> list[int]:
        """One pass of ``plan.retention``; returns the bases that left the disk. Nothing by default."""
        config = self.config
        limits = (config.retention_ms, config.retention_bytes, config.local_retention_ms, config.local_retention_bytes)
        if max(limits) < 0 and self.log_start <= self.first_base:
            return []
        with self._lock:
            active, end = self._active, self._end
            tail = LocalSegmentFacts(
                active.base_offset, end, active.size_bytes, active.max_timestamp, active.appended_ms
            )
            all_sealed = self._sealed
        sealed = self.sealed
        plan = plan_local_retention(
            [
                LocalSegmentFacts(s.base_offset, s.end_offset, s.size_bytes, s.max_timestamp, s.appended_ms)
                for s in sealed
            ],
            active_bytes=tail.size_bytes,
            active=tail if len(sealed) == len(all_sealed) else None,
            config=config,
            now_ms=now_ms,
            log_start_offset=self.log_start,
            high_watermark=self.high_watermark,
            committed_end=None if self.upload is None else self.upload.end_offset,
        )
        if plan.roll_active:
            self.roll(RollReason.RETENTION)
        return self.delete_local_before(plan.delete_below) if plan.bases else []

    def retain(self, now_ms: int) -> int | None:
        """One pass of the retention rules, unless the partition is out of service; returns the bytes that left."""
        if not self.at_work or self.fenced:
            return None
        before = self._sealed
        gone = set(self.apply_retention(now_ms))
        return sum(segment.size_bytes for segment in before if segment.base_offset in gone) if gone else None

    def expire_producers(self, now_ms: int) -> int | None:
        """Forgets producers that were idle for a day; None if there was none."""
        if not self.at_work:
            return None
        with self._lock:
            return 0 if self._producers.expire(now_ms) else None

    def empty_trash(self, now_ms: int) -> int | None:
        """Unlinks the files whose ``file.delete.delay.ms`` is over; returns their bytes, None without any."""
        return self._empty_trash(now_ms) if self.at_work else None

    def _throw_away(self, segments: Sequence[SealedLocalSegment]) -> None:
        """Renames the files; they are unlinked by a later tick. The lock is held."""
        for segment in segments:
            self._trash_later(segment.rename_away())

    def _trash_later(self, paths: Sequence[Path]) -> None:
        due_ms = self._around.clock.now_ms() + self.config.file_delete_delay_ms
        self._trash += [(due_ms, path) for path in paths]

    @property
    def trash_bytes(self) -> int:
        """Bytes of files that wait for their ``file.delete.delay.ms``."""
        with self._lock:
            waiting = [path for _, path in self._trash]
        states = (self._files.state(path) for path in waiting)
        return sum(state.size for state in states if state is not None)

    def _empty_trash(self, now_ms: int) -> int | None:
        """Unlinks what is due. What cannot be unlinked is tried again; the error is raised after all were tried."""
        with self._lock:
            due = [entry for entry in self._trash if entry[0] <= now_ms]
            self._trash = [entry for entry in self._trash if entry[0] > now_ms]
        failed: TieredError | None = None
        size = 0
        for entry in due:
            try:
                state = self._files.state(entry[1])
                self._files.unlink(entry[1])
                size += state.size if state is not None else 0
            except TieredError as error:
                failed = failed or error
                with self._lock:
                    self._trash.append(entry)
        if failed is not None:
            raise failed
        return size if due else None
