"""The writing side of one partition: assign offsets, append, roll, fsync, let sealed segments go.

Two locks, taken in this order: ``_flush_lock`` (one fsync at a time; whoever waits for it usually finds its records
already safe) and ``_lock`` (everything else; never held across an fsync of records).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tiered.errors import ConfigError, DiskFullError, LocalIOError, TieredError
from tiered.format.batch import assign_offsets, encode_batch
from tiered.format.keys import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from tiered.local.active import BatchFacts, BatchTuple
from tiered.local.seal import SEAL_SUFFIX, write_note
from tiered.local.state import PartitionState
from tiered.model import NewRecord, RecordMetadata
from tiered.plan.retention import LocalSegmentFacts, plan_local_retention
from tiered.plan.roll import RollReason

LOGGER = logging.getLogger("tiered.local")


class PartitionWriter(PartitionState):
    """Thread-safe."""

    # -- append ----------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[NewRecord]) -> RecordMetadata:
        """One atomic batch."""
        now_ms = self._around.clock.now_ms()
        rules = self._rules
        settled, least, greatest = rules.settle(records, now_ms)
        count = len(settled)
        with self._lock:
            base = self._end
            data = encode_batch(
                settled,
                base_offset=base,
                leader_epoch=self._epoch,
                codec=rules.codec,
                level=rules.level,
                timestamp_type=rules.timestamp_type,
                append_time_ms=now_ms if rules.timestamp_type else -1,
            )
            size = len(data)
            if size > rules.max_bytes:
                rules.check_size(size, settled)
            facts = ((size, base + count - 1, count, least, greatest),)
            rolled = self._store(data, facts, greatest, base + count, now_ms)
        self._settle_append(rolled)
        timestamp = now_ms if rules.timestamp_type else settled[0][2]
        return RecordMetadata(self.tp.topic, self.tp.partition, base, timestamp, base + count)

    def append_batches(self, data: bytes) -> RecordMetadata:
        """Encoded v2 batches, all or none; offsets and leader epoch are assigned here."""
        now_ms = self._around.clock.now_ms()
        settled: list[tuple[bytes, BatchFacts]] = []
        index = 0
        for piece, header in self._rules.split(data):
            settled.append(self._rules.settle_batch(piece, header, now_ms, index))
            index += header.last_offset_delta + 1
        buffer = bytearray(b"".join(piece for piece, _ in settled))
        if len(buffer) > self._active.segment_bytes:
            self._rules.check_size(len(buffer), ())
        with self._lock:
            base = end = self._end
            position = 0
            facts = []
            for piece, fact in settled:
                assign_offsets(memoryview(buffer)[position:], end, self._epoch)
                facts.append(fact._replace(last_offset=end + fact.last_offset))
                end += fact.last_offset + 1
                position += len(piece)
            greatest = max(fact.max_timestamp for fact in facts)
            rolled = self._store(bytes(buffer), facts, greatest, end, now_ms)
        self._settle_append(rolled)
        return RecordMetadata(self.tp.topic, self.tp.partition, base, greatest, end)

    def _store(self, data: bytes, facts: Sequence[BatchTuple], greatest: int, end: int, now_ms: int) -> bool:
        """Writes, rolling first if it is time; returns whether it rolled. The lock is held."""
        self._check_writable()
        active = self._active
        self._around.reserve.take(len(data))
        reason = active.roll_reason(len(data), greatest, end - 1, now_ms)
        if reason is not None:
            self._roll(reason, now_ms)
            active = self._active
        try:
            active.append(data, facts, self._epoch, now_ms)
        except DiskFullError:
            raise
        except TieredError as error:
            self._go_offline(error)
            raise
        self._end = end
        return reason is not None

    def _settle_append(self, rolled: bool) -> None:
        """What an append leaves to do without the lock: a segment that it sealed, and ``flush.messages``."""
        if rolled:
            self.flush_to(self._active.base_offset)
        if self._end - self._flushed >= self._flush_messages:
            self.flush_to(self._end)

    # -- roll and fsync --------------------------------------------------------------------------------------------

    def roll(self, reason: RollReason = RollReason.REQUESTED) -> bool:
        """Seals the active segment, durably, if it holds records; returns whether it did."""
        with self._lock:
            self._check_writable()
            rolled = self._active.size_bytes > 0
            if rolled:
                self._roll(reason, self._around.clock.now_ms())
        self.flush_to(self._active.base_offset)
        return rolled

    def _roll(self, reason: RollReason, now_ms: int) -> None:
        old = self._active
        if old.size_bytes == 0:
            return
        old.seal()
        self._active = self._factory.create(self._end, now_ms)
        self._closing.append(old)
        self._new_names = True
        self._sealed = (
            *self._sealed,
            self._factory.sealed(old, self._end),
        )
        LOGGER.debug(
            "segment_sealed partition=%s base=%d end=%d reason=%s", self.tp, old.base_offset, self._end, reason
        )

    def flush(self) -> None:
        """All records appended so far survive a power cut when this returns."""
        self._check_writable(fenced_too=False)
        self.flush_to(self._end)

    def flush_to(self, offset: int) -> None:
        """Records below ``offset`` are durable. If fsync fails: LocalIOError, and the partition is offline."""
        if self._flushed >= offset:
            return
        with self._flush_lock:
            if self._flushed >= offset:
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

    def flush_recovered(self) -> None:
        """After a recovery: what is on disk becomes durable, so that it counts as flushed."""
        for path in [segment.path for segment in self._sealed if segment.end_offset > self._flushed]:
            handle = self._files.open_read(path)
            try:
                self._files.sync(handle)
            finally:
                self._files.close(handle)
        self.flush_to(self._end)

    # -- going away ------------------------------------------------------------------------------------------------

    def delete_local_before(self, offset: int) -> list[int]:
        """Whole sealed segments below ``offset`` leave the disk, oldest first; returns their bases."""
        with self._lock:
            self._check_writable(fenced_too=False)
            limit = offset if self.upload is None else min(offset, self.upload.end_offset)
            flushed = self._flushed
            gone = 0
            for segment in self._sealed:
                if segment.end_offset > limit or segment.end_offset > flushed:
                    break
                gone += 1
            going, self._sealed = self._sealed[:gone], self._sealed[gone:]
            if not going:
                return []
            if self.upload is None:
                self.log_start = max(self.log_start, going[-1].end_offset)
                self.epochs.truncate_from_start(self.log_start)
            due_ms = self._around.clock.now_ms() + self.config.file_delete_delay_ms
            for segment in going:
                self._trash += [(due_ms, path) for path in segment.rename_away()]
            self._files.sync_directory(self.directory)
        bases = [segment.base_offset for segment in going]
        LOGGER.info("segments_deleted partition=%s bases=%s", self.tp, bases)
        return bases

    def start_at(self, offset: int, leader_epoch: int) -> None:
        """An empty log resumes at ``offset`` under ``leader_epoch``. ConfigError if it holds records."""
        with self._flush_lock, self._lock:
            self._check_writable(fenced_too=False)
            if self._sealed or self._active.size_bytes:
                raise ConfigError(f"{self.tp} holds records: it cannot start at offset {offset}")
            old = self._active
            old.close()
            if offset != old.base_offset:
                for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, SEAL_SUFFIX):
                    self._files.unlink(old.path.with_suffix(suffix))
            self._active = self._factory.create(offset, self._around.clock.now_ms())
            self._end = self._flushed = self.log_start = offset
            self.epochs.clear()
            self.epochs.assign(leader_epoch, offset)
            self._epoch = leader_epoch
            self._files.sync_directory(self.directory)

    def new_leader_epoch(self, epoch: int) -> None:
        """Records appended from here on carry ``epoch``, which must be greater than all before."""
        with self._lock:
            self._check_writable(fenced_too=False)
            if epoch <= self.epochs.latest:
                raise ConfigError(f"{self.tp}: leader epoch {epoch} is not above {self.epochs.latest}")
            self.epochs.assign(epoch, self._end)
            self._epoch = epoch

    def tick(self, now_ms: int) -> None:
        """Timers: ``seal.ms``, ``flush.ms``, retention, and files whose delay is over."""
        if self._offline is not None or self._closed:
            return
        fenced = self.upload is not None and self.upload.fenced
        if not fenced and self._active.idle_reason(now_ms) is not None:
            self.roll(RollReason.WALL_CLOCK)
        if now_ms - self._last_flush_ms >= self.config.flush_ms:
            self._last_flush_ms = now_ms
            self.flush()
        if not fenced and now_ms - self._last_retention_ms >= self._around.config.retention_check_interval_ms:
            self._last_retention_ms = now_ms
            self.apply_retention(now_ms)
        self._empty_trash(now_ms)

    def apply_retention(self, now_ms: int) -> list[int]:
        """One pass of ``plan.retention``; returns the bases that left the disk. Nothing by default."""
        config = self.config
        limits = (config.retention_ms, config.retention_bytes, config.local_retention_ms, config.local_retention_bytes)
        if max(limits) < 0 and self.log_start <= self.first_base:
            return []
        sealed = self.sealed
        plan = plan_local_retention(
            [
                LocalSegmentFacts(s.base_offset, s.end_offset, s.size_bytes, s.max_timestamp, s.appended_ms)
                for s in sealed
            ],
            active_bytes=self._active.size_bytes,
            config=config,
            now_ms=now_ms,
            log_start_offset=self.log_start,
            committed_end=None if self.upload is None else self.upload.end_offset,
        )
        return self.delete_local_before(plan.delete_below) if plan.bases else []

    def close(self, timeout_seconds: float) -> bool:
        """Durable and trimmed; returns whether all of it is. LocalIOError if a thread does not let go in time."""
        if not self._flush_lock.acquire(timeout=timeout_seconds):
            raise LocalIOError(f"{self.tp}: an fsync has not returned for {timeout_seconds} s")
        self._flush_lock.release()
        if not self._lock.acquire(timeout=timeout_seconds):
            raise LocalIOError(f"{self.tp}: a write has not returned for {timeout_seconds} s")
        self._lock.release()
        if self._closed:
            return True
        clean = self._offline is None
        try:
            if clean:
                with self._lock:
                    self._active.seal()
                self._flushed = min(self._flushed, self._active.base_offset)  # the trimmed indexes are synced, too
                self.flush_to(max(self._end, self._flushed + 1))
                if self._active.stats is not None and self._active.size_bytes:
                    self._active.stats.first_append_ms = self._active.first_append_ms
                    write_note(self._files, self._active.path.with_suffix(SEAL_SUFFIX), self._active.stats)
        except TieredError as error:
            LOGGER.warning("close_failed partition=%s error=%s", self.tp, error)
            clean = False
        finally:
            with self._lock:
                self._closed = True
                for segment in (*self._closing, self._active):
                    segment.close()
        return clean

    # -- inside ----------------------------------------------------------------------------------------------------

    def _empty_trash(self, now_ms: int) -> None:
        with self._lock:
            due = [path for due_ms, path in self._trash if due_ms <= now_ms]
            self._trash = [entry for entry in self._trash if entry[0] > now_ms]
        for path in due:
            self._files.unlink(path)
