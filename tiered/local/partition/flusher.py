"""Fsyncs of one partition, one for all threads that wait, and the offset below which records survive a power cut.

Two locks, taken in this order: the flush lock (one fsync at a time, by turns; whoever waits for it usually finds its
records already safe) and the partition's lock (everything else; never held across an fsync of records).
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from tiered.errors import NotDurableError, ReentrantCallError, TieredError, TooManyOpenFilesError
from tiered.format.keys import TXN_INDEX_SUFFIX
from tiered.local.disk.plain_lock import TurnLock
from tiered.local.partition.surroundings import Shared
from tiered.local.segment.sealed import END_OFFSET, SealedLocalSegment


class Flusher:
    """Thread-safe. ``flushed``: records below survive a power cut. ``sealed`` is told, without locks, of seals."""

    __slots__ = (
        "_condition",
        "_files",
        "_last_ms",
        "_partition_lock",
        "_sealed",
        "_segments",
        "flushed",
        "gaps",
        "interval_ms",
        "lock",
    )

    def __init__(self, shared: Shared, *, flushed: int) -> None:
        self.lock = TurnLock()
        self._segments = segments = shared.segments
        self.flushed = min(flushed, segments.end)
        self.gaps: tuple[tuple[int, int], ...] = ()  # offsets that cuts left without records, where promises may end
        self.interval_ms = 0
        self._files = shared.around.files
        self._partition_lock = shared.lock
        self._condition = shared.condition
        self._sealed = shared.around.sealed
        self._last_ms = shared.around.clock.now_ms()

    @property
    def recovery_point(self) -> int:
        """``flushed`` for the next open: where a cut left offsets without records at the end, they are not promised.

        Else a torn batch, which is looked for where the batch before it ends, would count as one that was safe.
        """
        for start, end in self.gaps:
            if start < self.flushed <= end:
                return start
        return self.flushed

    def note_gap(self, start: int, end: int) -> None:
        """A cut leaves no records from ``start`` on; gaps below it stay where nothing was flushed behind them yet."""
        self.gaps = (*(gap for gap in self.gaps if self.flushed <= gap[1] <= start), (start, end))

    @property
    def durable_segments(self) -> tuple[SealedLocalSegment, ...]:
        """Sealed segments whose files are durable."""
        sealed = self._segments.sealed
        return sealed[: bisect_right(sealed, self.flushed, key=END_OFFSET)]

    def flush(self) -> None:
        """All records appended so far survive a power cut when this returns."""
        condition = self._condition
        if condition.closed or condition.offline is not None:
            condition.check_writable(fenced_too=False)
        self.flush_to(self._segments.end)

    def flush_to(self, offset: int) -> None:
        """Records below ``offset`` are durable. If fsync fails: LocalIOError, and the partition is offline.

        NotDurableError: what had to be opened was not, all stays as it was for the next flush.
        """
        segments = self._segments
        if self.flushed >= offset and not segments.closing:  # a sealed one has indexes and a note to be written
            return
        with self.lock:
            if self.flushed >= offset and not segments.closing:
                return
            with self._partition_lock:
                self._condition.check_writable(fenced_too=False)
                end, active, closing = segments.end, segments.active, list(segments.closing)
                new_names = segments.new_names
            try:
                for segment in closing:
                    # mutant sealed-segments-are-fsynced
                    segment.sync()
                # mutant active-segment-is-fsynced
                active.sync()
                noted = [segment.write_seal() for segment in closing]
                if new_names and not any(noted):  # a note that was written has fsynced the directory
                    self._files.sync_directory(segments.directory)
            except TooManyOpenFilesError as error:
                raise NotDurableError(
                    f"{segments.tp}: what was appended is in the log, and not durable yet: {error.message}",
                    hint="close files, or raise the limit (ulimit -n), and flush again; append nothing a second time",
                ) from error
            except ReentrantCallError:  # a handler's, which interrupted this: no word of the disk
                raise
            except TieredError as error:
                # mutant failed-fsync-goes-offline
                self._condition.go_offline(error)
                raise self._condition.offline_error(error) from error
            with self._partition_lock:
                # mutant flushed-end-is-of-before
                self.flushed = end
                segments.new_names = segments.new_names and segments.active is not active
                del segments.closing[: len(closing)]
            for segment in closing:
                segment.close()
        if closing:
            self._sealed()

    def flush_in_time(self, now_ms: int) -> int | None:
        """The timer of ``flush.ms``; returns the bytes of the segment that it flushed, None if it was not due."""
        if not self._condition.at_work or 0 <= now_ms - self._last_ms < self.interval_ms:
            return None
        self._last_ms = now_ms
        segments = self._segments
        if self.flushed >= segments.end and not segments.closing:
            return None
        size = segments.active.size_bytes
        self.flush()
        return size

    def flush_recovered(self) -> None:
        """After a recovery: what is on disk becomes durable, so that it counts as flushed."""
        segments = self._segments
        for segment in segments.sealed:
            if segment.end_offset > self.flushed:
                self.sync_closed(segment.path)
        self.sync_txn_index(segments.active.path)
        self.flush_to(segments.end)

    def flush_closing(self) -> None:
        """The log ends for now: the sealed active segment is durable too, with its indexes, which were trimmed."""
        segments = self._segments
        self.flushed = min(self.flushed, segments.active.base_offset)
        self.flush_to(max(segments.end, self.flushed + 1))

    def sync_closed(self, log: Path) -> None:
        """Fsyncs the ``.log`` of a segment that nobody holds open, and its transaction index."""
        self._sync_file(log)
        self.sync_txn_index(log)

    def sync_txn_index(self, log: Path) -> None:
        """Fsyncs the transaction index beside a ``.log``, if there is one."""
        path = log.with_suffix(TXN_INDEX_SUFFIX)
        if self._files.state(path) is not None:
            self._sync_file(path)

    def _sync_file(self, path: Path) -> None:
        handle = self._files.open_read(path)
        try:
            # mutant closing-file-is-fsynced
            self._files.sync(handle)
        finally:
            self._files.close(handle)
