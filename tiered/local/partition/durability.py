"""Fsyncs of one partition, one for all waiting threads, and the offset below which records survive a power cut.

There are two locks, taken in this order. The flush lock allows one fsync at a time. A thread that waited for it usually
finds its records durable. The partition's lock guards all other state. It is never held across an fsync of records.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from tiered.errors import NotDurableError, ReentrantCallError, TieredError, TooManyOpenFilesError
from tiered.format.kernels import TurnLock
from tiered.format.local_names import TXN_INDEX_SUFFIX
from tiered.local.partition.context import PartitionContext
from tiered.local.segment.sealed import END_OFFSET, SealedLocalSegment


class Durability:
    """Flusher of one partition. Thread-safe. ``flushed``: records below this offset survive a power cut.

    ``gaps``: offset ranges that truncations left without records.
    """

    def __init__(self, context: PartitionContext, *, flushed: int) -> None:
        self.lock = TurnLock()
        self._segments = segments = context.segments
        self.flushed = min(flushed, segments.end)
        self.gaps: tuple[tuple[int, int], ...] = ()  # offsets that cuts left without records, where promises may end
        self.interval_ms = 0
        self._context = context
        self._last_ms = context.around.clock.now_ms()

    @property
    def recovery_point(self) -> int:
        """Return the recovery point: ``flushed``, or the start of a gap that a truncation left directly below it.

        With a point above the gap's start, recovery would take a torn batch inside the gap for a durable one.
        """
        for start, end in self.gaps:
            if start < self.flushed <= end:
                return start
        return self.flushed

    def note_gap(self, start: int, end: int) -> None:
        """Add a gap: a truncation leaves no records from ``start`` to ``end`` (exclusive).

        Drop older gaps that end above ``start``, or below the flushed offset.
        """
        self.gaps = (*(gap for gap in self.gaps if self.flushed <= gap[1] <= start), (start, end))

    @property
    def durable_segments(self) -> tuple[SealedLocalSegment, ...]:
        """Return the sealed segments whose files are durable."""
        sealed = self._segments.sealed
        return sealed[: bisect_right(sealed, self.flushed, key=END_OFFSET)]

    def flush(self) -> None:
        """Make all records durable that were appended so far. Raises ClosedError after the close.

        If an fsync fails, take the partition offline and raise LocalIOError. Raises NotDurableError if a file could not
        be opened: the next flush tries again.
        """
        context = self._context
        if context.closed or context.offline is not None:
            context.check_writable(fenced_too=False)
        self.flush_to(self._segments.end)

    def flush_to(self, offset: int) -> None:
        """Make records below ``offset`` durable.

        Write the ``.seal`` notes of sealed segments, too. If an fsync fails, take the partition offline and raise
        LocalIOError. Raises NotDurableError if a file could not be opened: the next flush tries again. Raises
        ClosedError after the close.
        """
        segments = self._segments
        if self.flushed >= offset and not segments.closing:  # a sealed one has indexes and a note to be written
            return
        with self.lock:
            if self.flushed >= offset and not segments.closing:
                return
            with self._context.lock:
                self._context.check_writable(fenced_too=False)
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
                    self._context.files.sync_directory(segments.directory)
            except TooManyOpenFilesError as error:
                raise NotDurableError(
                    f"{segments.tp}: the records are in the log, but not durable yet: {error.message}",
                    hint="close files or raise `ulimit -n`, then call `flush()` again; do not append the records again",
                ) from error
            except ReentrantCallError:  # a handler's, which interrupted this: no word of the disk
                raise
            except TieredError as error:
                # mutant failed-fsync-goes-offline
                self._context.go_offline(error)
                raise self._context.offline_error(error) from error
            with self._context.lock:
                # mutant flushed-end-is-of-before
                self.flushed = end
                segments.new_names = segments.new_names and segments.active is not active
                del segments.closing[: len(closing)]
            for segment in closing:
                segment.close()
        if closing:
            self._context.around.sealed()

    def flush_in_time(self, now_ms: int) -> int | None:
        """Flush if ``flush.ms`` has passed since the last timed flush and some records are not flushed.

        Return the size of the active segment in bytes. Return None if nothing was flushed.
        """
        if not self._context.at_work or 0 <= now_ms - self._last_ms < self.interval_ms:
            return None
        self._last_ms = now_ms
        segments = self._segments
        if self.flushed >= segments.end and not segments.closing:
            return None
        size = segments.active.size_bytes
        self.flush()
        return size

    def flush_recovered(self) -> None:
        """Fsync, after a recovery, all files with records above ``flushed``. Then all records count as flushed."""
        segments = self._segments
        for segment in segments.sealed:
            if segment.end_offset > self.flushed:
                self.sync_closed(segment.path)
        self.sync_txn_index(segments.active.path)
        self.flush_to(segments.end)

    def flush_closing(self) -> None:
        """Fsync the active segment, which a close has sealed, and its trimmed indexes."""
        segments = self._segments
        self.flushed = min(self.flushed, segments.active.base_offset)
        self.flush_to(max(segments.end, self.flushed + 1))

    def sync_closed(self, log: Path) -> None:
        """Fsync a sealed segment whose files are not open: the ``.log`` and its transaction index."""
        self._sync_file(log)
        self.sync_txn_index(log)

    def sync_txn_index(self, log: Path) -> None:
        """Fsync the transaction index of the segment with this ``.log``, if there is one."""
        path = log.with_suffix(TXN_INDEX_SUFFIX)
        if self._context.files.state(path) is not None:
            self._sync_file(path)

    def _sync_file(self, path: Path) -> None:
        handle = self._context.files.open_read(path)
        try:
            # mutant closing-file-is-fsynced
            self._context.files.sync(handle)
        finally:
            self._context.files.close(handle)
