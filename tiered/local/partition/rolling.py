"""The end of one segment and the beginning of the next, and what is durable of both."""

from __future__ import annotations

import logging
from pathlib import Path

from tiered.errors import ConfigError, TieredError
from tiered.format.keys import TXN_INDEX_SUFFIX, index_name, log_name, time_index_name
from tiered.local.partition.state import PartitionState
from tiered.plan.roll import RollReason

LOGGER = logging.getLogger("tiered.local")


class PartitionRoller(PartitionState):
    """Seals the active segment; fsyncs, once for all who wait."""

    def roll(self, reason: RollReason = RollReason.REQUESTED, base_offset: int | None = None) -> bool:
        """Seals the active segment, durably, if it holds records; returns whether it did.

        ``base_offset`` names the base of the new segment if it lies above the end (the offsets between are left out).
        An empty active segment makes way for a fresh one. ConfigError for the base of a segment with records, and for
        one below the active segment.
        """
        with self._lock:
            self._check_writable()
            active = self._active
            if base_offset is not None and base_offset < active.base_offset + (active.size_bytes > 0):
                raise ConfigError(f"{self.tp} ends at offset {self._end}: no segment can begin at {base_offset}")
            base_offset = None if base_offset is None else max(base_offset, self._end)
            now_ms = self._around.clock.now_ms()
            rolled = self._active.size_bytes > 0
            if rolled:
                self._roll(reason, now_ms, base_offset)
            elif base_offset is not None:
                self._replace_empty(base_offset, now_ms)
        self.flush_to(self._active.base_offset)
        return rolled

    def _roll(self, reason: RollReason, now_ms: int, base_offset: int | None = None) -> None:
        """The lock is held. Kafka's new base (reference 4.4): the end, or the first offset of the append above it."""
        old = self._active
        base = self._end if base_offset is None else max(base_offset, self._end)
        if old.size_bytes == 0:
            if base != old.base_offset:
                self._replace_empty(base, now_ms)
            return
        if base > self._end:
            self._mark_sparse()
        old.seal()
        self._active = self._factory.create(base, now_ms)
        self._closing.append(old)
        self._new_names = True
        self._sealed = (*self._sealed, self._factory.sealed(old, base))
        self._end = base
        old.note_producers(self._producers.take(base))
        LOGGER.debug("segment_sealed partition=%s base=%d end=%d reason=%s", self.tp, old.base_offset, base, reason)

    def _replace_empty(self, base_offset: int, now_ms: int) -> None:
        """A fresh active segment at ``base_offset`` instead of an empty one."""
        if base_offset > self._end and self._sealed:
            self._mark_sparse()
            self._sealed[-1].end_offset = base_offset  # as after a reopen: else what follows the gap is never reached
        old = self._active
        old.close()
        self._factory.remove(old.base_offset)
        self._active = self._factory.create(base_offset, now_ms)
        self._new_names = True
        if not self._sealed and self.log_start >= old.base_offset:  # below that a bucket holds records
            self.log_start = max(self.log_start, base_offset)
            self._producers.raise_log_start(self.log_start)
        self._end = base_offset
        self._producers.settle((), base_offset, self.high_watermark)
        self._producers.take(base_offset)

    def note_opened(self) -> None:
        """A clean open is over: what it found is durable, and needs nothing at the end if nothing happens to it."""
        self._opened = (self._active, self._sealed, self._end)

    def _as_opened(self) -> bool:
        """Nothing happened since, and the files of the active segment are already those of a clean end."""
        active, base = self._active, self._active.base_offset
        if self._opened is None or self._closing:
            return False
        before, sealed, end = self._opened
        if before is not active or sealed is not self._sealed or end != self._end:
            return False
        active.indexes.close_times(active.max_timestamp, active.max_timestamp_offset)
        sizes = {
            log_name(base): active.size_bytes,
            index_name(base): len(active.indexes.offset_bytes()),
            time_index_name(base): len(active.indexes.time_bytes()),
        }
        states = {name: self._files.state(self.directory / name) for name in sizes}
        return all(state is not None and state.size == sizes[name] for name, state in states.items())

    def flush(self) -> None:
        """All records appended so far survive a power cut when this returns."""
        self._check_writable(fenced_too=False)
        self.flush_to(self._end)

    def flush_to(self, offset: int) -> None:
        """Records below ``offset`` are durable. If fsync fails: LocalIOError, and the partition is offline."""
        if self._flushed >= offset and not self._closing:  # a sealed one has indexes and a note to be written
            return
        with self._flush_lock:
            if self._flushed >= offset and not self._closing:
                return
            with self._lock:
                self._check_writable(fenced_too=False)
                end, active, closing, new_names = self._end, self._active, list(self._closing), self._new_names
            try:
                for segment in closing:
                    segment.write_seal()
                    segment.sync()
                active.sync()
                if new_names:
                    self._files.sync_directory(self.directory)
            except TieredError as error:
                self._go_offline(error)
                raise self._offline_error(error) from error
            with self._lock:
                self._flushed = end
                self._new_names = self._new_names and self._active is not active
                del self._closing[: len(closing)]
            for segment in closing:
                segment.close()
        if closing:
            self._around.sealed()

    def seal_idle(self, now_ms: int) -> int | None:
        """The timer of ``seal.ms``; returns the bytes that it sealed, None if it was not due."""
        if not self.at_work or self.fenced or self._active.idle_reason(now_ms) is None:
            return None
        size = self._active.size_bytes
        return size if self.roll(RollReason.WALL_CLOCK) else None

    def flush_in_time(self, now_ms: int) -> int | None:
        """The timer of ``flush.ms``; returns the bytes of the segment that it flushed, None if it was not due."""
        if not self.at_work or 0 <= now_ms - self._last_flush_ms < self.config.flush_ms:
            return None
        self._last_flush_ms = now_ms
        if self._flushed >= self._end and not self._closing:
            return None
        size = self._active.size_bytes
        self.flush()
        return size

    def flush_recovered(self) -> None:
        """After a recovery: what is on disk becomes durable, so that it counts as flushed."""
        for segment in self._sealed:
            if segment.end_offset > self._flushed:
                self._sync_closed(segment.path)
        self._sync_txn_index(self._active.path)
        self.flush_to(self._end)

    def _sync_closed(self, log: Path) -> None:
        """Fsyncs the ``.log`` of a segment that nobody holds open, and its transaction index."""
        self._sync_file(log)
        self._sync_txn_index(log)

    def _sync_txn_index(self, log: Path) -> None:
        path = log.with_suffix(TXN_INDEX_SUFFIX)
        if self._files.state(path) is not None:
            self._sync_file(path)

    def _sync_file(self, path: Path) -> None:
        handle = self._files.open_read(path)
        try:
            self._files.sync(handle)
        finally:
            self._files.close(handle)
