"""Changes of a partition other than appends: rolls, retention, truncation, replacement of compacted segments.

A segment is deleted in these steps. The log start moves. The segment leaves the list. Its files get the suffix
``.deleted``, the ``.log`` first. After ``file.delete.delay.ms`` they are unlinked. Reads in progress are not affected.

A truncation first finds the place in the file. Then it deletes the segments above, the last one first, so that a crash
leaves no gap between segments. Then it truncates the last remaining file and writes its indexes again.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

from tiered.config import MAX_LONG
from tiered.errors import ConfigError, CorruptionError, DiskFullError, LocalIOError, TieredError
from tiered.format.local_names import log_name, snapshot_name
from tiered.format.segment_indexes import txns_below
from tiered.local.disk.partition_files import remove_snapshots_above
from tiered.local.partition.context import CUT, EXCHANGE, ROLL, PartitionContext
from tiered.local.partition.durability import Durability
from tiered.local.partition.producers import PartitionProducers
from tiered.local.segment.active import ActiveSegment, FoundSegment
from tiered.local.segment.replacement import carry_out_cut, find_cut, remove_copy, swap_in
from tiered.local.segment.sealed import SealedLocalSegment, rename_to_deleted
from tiered.local.segment.side_files import SEAL_SUFFIX
from tiered.model import AbortedTxn
from tiered.plan.retention import LocalSegmentFacts, plan_local_retention
from tiered.plan.roll import RollReason

LOGGER = logging.getLogger("tiered.local")

NO_PRODUCERS_END = -1
"""End below every offset: ``remove_snapshots_above`` then removes all producer snapshots."""


class Maintenance:
    """Component that makes all changes of a partition other than appends. Methods take the partition's lock.

    A truncation takes the flush lock first. It calls ``DirectoryContext.cut`` before it changes a file.
    """

    def __init__(self, context: PartitionContext, *, durability: Durability, producers: PartitionProducers) -> None:
        self._context = context
        self._durability = durability
        self._producers = producers

    def roll(self, reason: RollReason = RollReason.REQUESTED) -> bool:
        """Seal the active segment, durably, if it holds records. Return True if it was sealed."""
        segments = self._context.segments
        with self._context.lock:
            self._context.check_writable()
            rolled = segments.active.size_bytes > 0
            if rolled:
                self.roll_now(reason, self._context.clock.now_ms())
        self._durability.flush_to(segments.active.base_offset)
        return rolled

    def roll_now(self, reason: RollReason, now_ms: int) -> None:
        """Seal the active segment and create a new one at the end of the log. An empty segment is left as it is.

        The caller holds the lock. After LocalIOError or DiskFullError the old segment stays active.
        """
        context, segments = self._context, self._context.segments
        if not segments.active.size_bytes:
            return
        context.under_way = ROLL
        try:
            old = segments.seal_active(now_ms)
            old.snapshot = self._producers.write_snapshot(segments.end)
        except (LocalIOError, DiskFullError):  # the segment goes on as it was
            context.under_way = None
            raise
        context.under_way = None
        LOGGER.debug(
            "segment_sealed partition=%s base=%d end=%d reason=%s", segments.tp, old.base_offset, segments.end, reason
        )

    def seal_idle(self, now_ms: int) -> int | None:
        """Seal the active segment once ``seal.ms`` has passed since its first append.

        Return the size of the sealed segment in bytes. Return None if no seal was due, or if the partition is closed,
        offline or fenced.
        """
        context, active = self._context, self._context.segments.active
        if not context.at_work or context.fenced or active.idle_reason(now_ms) is None:
            return None
        size = active.size_bytes
        return size if self.roll(RollReason.WALL_CLOCK) else None

    def delete_local_before(self, offset: int) -> list[int]:
        """Delete segments as :meth:`WriteLog.delete_local_before`, oldest first."""
        context, segments = self._context, self._context.segments
        with self._context.lock:
            context.check_writable(fenced_too=False)
            limit = min(offset, segments.end)
            if context.upload is not None:
                # mutant local-bytes-wait-for-commit
                limit = min(limit, context.upload.end_offset)
            flushed = self._durability.flushed
            gone = 0
            for segment in segments.sealed:
                if segment.end_offset > limit or segment.end_offset > flushed:
                    break
                gone += 1
            going, left = segments.sealed[:gone], segments.sealed[gone:]
            if not going:
                return []
            if context.upload is None:
                first = left[0].base_offset if left else segments.active.base_offset  # a gap may lie before it
                self._raise_log_start(max(segments.log_start, first))
            segments.keep_from(gone)
            try:
                self._context.deleted.throw_away(going)
                self._context.files.sync_directory(segments.directory)
            except TieredError as error:
                context.go_offline(error)
                raise
        bases = [segment.base_offset for segment in going]
        LOGGER.info("segments_deleted partition=%s bases=%s", segments.tp, bases)
        return bases

    def adjust_start(self) -> None:
        """Raise the log start to the first segment, and drop older leader epochs. A tiered log is left unchanged."""
        if self._context.upload is None:
            self._raise_log_start(max(self._context.segments.log_start, self._context.segments.first_base))

    def _raise_log_start(self, offset: int) -> None:
        self._context.segments.log_start = offset
        try:
            self._context.epochs.truncate_from_start(offset)
        except DiskFullError as error:  # what goes makes room; epochs below the start are forgotten the next time
            LOGGER.warning("epochs_not_forgotten partition=%s error=%s", self._context.segments.tp, error)
        self._producers.raise_log_start()

    def apply_retention(self, now_ms: int) -> list[int]:
        """Delete the segments that the topic's retention by time or size allows. By default nothing is deleted.

        Return the base offsets of the deleted segments. An expired active segment is sealed first.
        """
        segments = self._context.segments
        config = segments.config
        limits = (config.retention_ms, config.retention_bytes, config.local_retention_ms, config.local_retention_bytes)
        if max(limits) < 0 and segments.log_start <= segments.first_base:
            return []
        with self._context.lock:
            active, end = segments.active, segments.end
            tail = LocalSegmentFacts(
                active.base_offset, end, active.size_bytes, active.max_timestamp, active.appended_ms
            )
            all_sealed = segments.sealed
        sealed, upload = self._durability.durable_segments, self._context.upload
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
            try:
                self.roll(RollReason.RETENTION)
            except DiskFullError as error:  # the others still expire
                LOGGER.warning("expired_segment_not_rolled partition=%s error=%s", segments.tp, error)
        return self.delete_local_before(plan.delete_below) if plan.bases else []

    def retain(self, now_ms: int) -> int | None:
        """Apply the topic's retention settings once. Return the size of the deleted sealed segments in bytes.

        Return None if nothing was deleted. A partition that is closed, offline or fenced is left as it is.
        """
        if not self._context.at_work or self._context.fenced:
            return None
        before = self._context.segments.sealed
        gone = set(self.apply_retention(now_ms))
        return sum(segment.size_bytes for segment in before if segment.base_offset in gone) if gone else None

    def expire_producers(self, now_ms: int) -> int | None:
        """Remove producers that were idle for a day and have no open transaction.

        Return 0 (deleted bytes) if some were removed, None if none was.
        """
        if not self._context.at_work:
            return None
        with self._context.lock:
            return 0 if self._producers.expire(now_ms) else None

    def empty_trash(self, now_ms: int) -> int | None:
        """Unlink the files whose ``file.delete.delay.ms`` has passed.

        Return their total size in bytes, None if no file was due.
        """
        return self._context.deleted.empty(now_ms) if self._context.at_work else None

    def truncate_to(self, offset: int) -> None:
        """Truncate the log, its checkpoints, epochs, indexes and snapshots, durably (:meth:`WriteLog.truncate_to`)."""
        with self._durability.lock, self._context.lock:
            self._context.check_writable()
            tp, upload = self._context.segments.tp, self._context.upload
            if not 0 <= offset <= MAX_LONG:
                raise ConfigError(
                    f"{tp} cannot be truncated at offset {offset}", hint=f"name an offset from 0 to {MAX_LONG}"
                )
            if upload is not None and offset < upload.end_offset:
                raise ConfigError(
                    f"{tp} cannot be truncated at offset {offset}: the records below {upload.end_offset} are uploaded",
                    hint=f"name an offset from {upload.end_offset} on",
                )
            if offset >= self._context.segments.end:
                self._context.epochs.truncate_from_end(self._context.segments.end)
            elif offset < self._context.segments.first_base:
                self._restart(offset)
            else:
                self._cut(offset)
            self._context.unassigned = self._context.epochs.latest < self._context.epoch
        self._context.around.sealed()

    def start_at(self, offset: int, leader_epoch: int, producers: bytes = b"") -> None:
        """Let an empty log begin at ``offset`` as :meth:`WriteLog.start_at`."""
        with self._durability.lock, self._context.lock:
            self._context.check_writable(fenced_too=False)
            if not self._context.segments.empty:
                raise ConfigError(f"{self._context.segments.tp} holds records: it cannot start at offset {offset}")
            if not 0 <= offset <= MAX_LONG:
                raise ConfigError(
                    f"{self._context.segments.tp}: a log cannot start at offset {offset}",
                    hint=f"name an offset from 0 to {MAX_LONG}",
                )
            self._restart(offset)
            self._context.epochs.assign(leader_epoch, offset)
            self._context.epoch = leader_epoch
            self._context.unassigned = False
            if producers:
                self._context.files.replace(self._context.segments.directory / snapshot_name(offset), producers)
                self._producers.rebuild(some=True)

    def _cut(self, offset: int) -> None:
        """Truncate the log at ``offset``, which is inside it. The caller holds both locks."""
        segments, directory = self._context.segments, self._context.segments.directory
        active = segments.active
        staying = sum(segment.base_offset <= offset for segment in segments.sealed)
        going = segments.sealed[staying:]
        if active.base_offset <= offset:
            base, size, indexes = active.base_offset, active.size_bytes, active.indexes
            aborted = self._aborted_below(active, offset)
        else:
            staying -= 1  # the last of them is appended to again: its files keep their names
            last = segments.sealed[staying]
            base, size, indexes = last.base_offset, last.size_bytes, last.lookup
            aborted = self._aborted_below(last, offset)
        found, straddled = find_cut(self._context.files, directory / log_name(base), size, indexes, offset)
        found.aborted = aborted
        records_end = max(found.records_end, base)
        self._durability.note_gap(records_end, offset)
        self._withdraw(offset, records_end)
        self._context.under_way = CUT
        try:
            if straddled:
                segments.mark_sparse()
            segments.keep_first(staying)
            active.close()
            if active.base_offset > offset:
                self._throw_active_away(active)
            self._context.deleted.throw_away(going[::-1])
            self._context.files.sync_directory(directory)  # else a power cut may bring them back behind a hole
            carry_out_cut(self._context.files, directory, found, offset)
            self._durability.sync_txn_index(directory / log_name(base))  # its writer closed it without an fsync
            segments.resume(found, self._context.around.clock.now_ms())
            segments.close_closing()
            bases = {segment.base_offset for segment in segments.sealed}
            for segment in segments.closing:  # those that the cut left
                if segment.base_offset in bases:
                    self._durability.sync_closed(segment.path)
            segments.closing.clear()
            segments.end = offset
            self._durability.flushed = min(self._durability.flushed, offset)
            segments.log_start = min(segments.log_start, offset)
            self._context.epochs.truncate_from_end(offset)
            remove_snapshots_above(self._context.files, directory, offset)
            self._producers.rebuild(some=self._producers.state is not None)
            self._context.files.sync_directory(directory)
        except TieredError as error:
            self._context.go_offline_inconsistent(error)
            raise
        self._context.under_way = None
        LOGGER.warning("log_truncated partition=%s offset=%d segments=%d", segments.tp, offset, len(going))

    def mend(self, end: int) -> None:
        """Remove an append that ended midway, so that the log ends at ``end`` again. The caller holds the lock.

        No record at or above ``end`` was acknowledged or read. If this method raises, call it again.
        """
        segments = self._context.segments
        active = segments.active
        active.indexes.truncate_to(end)  # before a look-up: an entry may be there by halves
        found, _ = find_cut(self._context.files, active.path, active.size_bytes, active.indexes, end)
        if self._producers.state is None:
            active.cut_back(found)
        else:
            active.cut_back(found, txns_below(active.aborted_txns(), end))
            self._producers.rebuild(some=True)
        segments.end = end

    def _aborted_below(self, segment: ActiveSegment | SealedLocalSegment, offset: int) -> list[AbortedTxn] | None:
        """Return the aborted transactions of ``segment`` with markers below ``offset``.

        Return None if its transaction index is lost.
        """
        try:
            return txns_below(segment.aborted_txns(), offset)
        except CorruptionError as error:
            LOGGER.warning("txn_index_not_cut path=%s error=%s", segment.path, error)
            return None

    def _withdraw(self, offset: int, recovery_point: int) -> None:
        """Lower the flushed offset and the log start before a truncation, in memory and in the checkpoints.

        ``offset``: the new end. ``recovery_point``: the lowest end that a crash may leave. Without this, a truncation
        that fails midway would look like a loss of durable records. A log start above ``offset`` is lowered to it.
        Otherwise the next open would set aside the records appended below that start.
        """
        self._durability.flushed = min(self._durability.flushed, offset)
        self._context.segments.log_start = min(self._context.segments.log_start, offset)
        self._context.around.cut(self._context.segments.tp, offset, recovery_point)

    def _throw_active_away(self, active: ActiveSegment) -> None:
        renamed = rename_to_deleted(self._context.files, self._context.segments.directory, active.base_offset)
        active.path = renamed[0]
        self._context.deleted.put(renamed)

    def _restart(self, offset: int) -> None:
        """Replace all segments by an empty one at ``offset``. The caller holds both locks."""
        segments, directory = self._context.segments, self._context.segments.directory
        self._durability.note_gap(min(offset, segments.first_base), segments.end)  # a crash may leave any beginning
        self._withdraw(offset, 0)
        self._durability.flushed = 0  # a full disk may leave no file, which must not look like a loss of records
        old = segments.active
        self._context.under_way = CUT
        try:
            old.close()
            segments.close_closing()
            segments.closing.clear()
            if old.size_bytes:
                self._throw_active_away(old)
            else:
                segments.remove_files(old.base_offset)
            going = segments.sealed
            segments.keep_first(0)
            self._context.deleted.throw_away(going[::-1])
            segments.create_active(offset, self._context.around.clock.now_ms())
            segments.end = segments.log_start = offset
            self._context.begun = False
            self._durability.gaps = ()
            self._context.epochs.clear()
            remove_snapshots_above(self._context.files, directory, NO_PRODUCERS_END)
            self._producers.forget(offset)
            self._context.files.sync_directory(directory)
            self._durability.flushed = offset
        except TieredError as error:
            self._context.go_offline_inconsistent(error)
            raise
        self._context.under_way = None

    @property
    def settled(self) -> tuple[SealedLocalSegment, ...]:
        """Return the sealed segments that are durable and not being fsynced now. Their files may be renamed."""
        segments = self._context.segments
        with self._context.lock:
            bound = min([segment.base_offset for segment in segments.closing], default=segments.end)
            return tuple(segment for segment in self._durability.durable_segments if segment.base_offset < bound)

    def holds(self, segment: SealedLocalSegment) -> bool:
        """Return True if this object is in the list of segments. A replacement with the same base does not count."""
        return segment in self._context.segments.sealed

    def replace_segments(
        self, new: Sequence[FoundSegment], old: Sequence[int], *, witness: SealedLocalSegment | None = None
    ) -> bool:
        """Replace the sealed segments ``old`` by the finished copies ``new`` (``SegmentCopy``), crash-safe.

        ``old``: base offsets of neighbouring segments. Segments that retention has deleted are skipped. ``witness``:
        the last segment that compaction read.

        Return True if segments were replaced. Return False, with the log unchanged, if ``witness`` has left the log or
        no segment of ``old`` is left. Raises ConfigError if ``old`` are not sealed neighbours. After LocalIOError the
        partition is offline.
        """
        segments, directory = self._context.segments, self._context.segments.directory
        with self._context.lock:
            self._context.check_writable()
            sealed = segments.sealed
            if witness is not None and witness not in sealed:
                return False
            present = [segment for segment in sealed if segment.base_offset in set(old)]
            if not present or not new:
                for found in new:
                    remove_copy(self._context.files, directory, found.base_offset)
                return False
            at = sealed.index(present[0])
            if sealed[at : at + len(present)] != tuple(present) or present[-1].base_offset != max(old):
                raise ConfigError(
                    f"{segments.tp}: segments {list(old)} are not sealed neighbours: they cannot be replaced"
                )
            end = present[-1].end_offset
            for segment in present:
                _ = segment.lookup  # reads that go on over the old file need its own indexes
            new = sorted(new, key=lambda found: found.base_offset)
            for found, following in itertools.pairwise(new):
                found.end_offset = following.base_offset
            new[-1].end_offset = end
            self._context.under_way = EXCHANGE
            try:
                segments.mark_sparse()
                bases = [found.base_offset for found in new]
                for segment in present:
                    self._context.files.unlink(segment.path.with_suffix(SEAL_SUFFIX))
                renamed = swap_in(self._context.files, directory, bases, [s.base_offset for s in present])
                self._context.deleted.put(renamed)
            except TieredError as error:
                self._context.go_offline_inconsistent(error)
                raise
            for segment in present:
                segment.moved_to_deleted()
            segments.exchange(present, new)
            self._context.under_way = None
        LOGGER.info("segments_replaced partition=%s old=%s new=%s", segments.tp, list(old), bases)
        return True
