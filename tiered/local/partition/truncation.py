"""Cuts the end of one partition off: by request, or because its log starts again elsewhere.

The cut is looked for first; then segments above it go, the last one first, so that a crash between two steps leaves a
log without a hole; then the file that stays is cut and its indexes are written anew.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tiered.config import MAX_LONG
from tiered.errors import ConfigError, CorruptionError, TieredError
from tiered.format.batch_scanner import NO_LIMIT, Offsets
from tiered.format.keys import log_name, snapshot_name
from tiered.format.txn_index import truncate
from tiered.local.disk.files import Files
from tiered.local.disk.names import remove_snapshots_above
from tiered.local.partition.beginning import Beginning
from tiered.local.partition.condition import CUT
from tiered.local.partition.flusher import Flusher
from tiered.local.partition.producers import PartitionProducers
from tiered.local.partition.surroundings import Shared
from tiered.local.segment.active import ActiveSegment
from tiered.local.segment.factory import FoundSegment
from tiered.local.segment.indexes import SegmentIndexes, cut_txn_index, store_indexes
from tiered.local.segment.scan import LogFile
from tiered.local.segment.seal import SEAL_SUFFIX
from tiered.local.segment.sealed import SealedLocalSegment, rename_away
from tiered.model import AbortedTxn

LOGGER = logging.getLogger("tiered.local")

NO_PRODUCERS_END = -1
"""Below every offset: no snapshot outlives a log that starts again."""


class Truncation:
    """Cuts at an offset, or to nothing. Takes the flush lock, then the partition's lock.

    ``cut`` is told before anything is cut where the log will end, and the lowest end that a crash may leave; ``sealed``
    when all is done.
    """

    def __init__(
        self, shared: Shared, *, flusher: Flusher, producers: PartitionProducers, beginning: Beginning
    ) -> None:
        self._around = shared.around
        self._files = shared.around.files
        self._lock = shared.lock
        self._condition = shared.condition
        self._segments = shared.segments
        self._flusher = flusher
        self._leadership = shared.leadership
        self._producers = producers
        self._beginning = beginning
        self._trash = shared.trash

    def truncate_to(self, offset: int, *, below_uploaded: bool = False) -> None:
        """The log ends at ``offset``; a batch that reaches beyond goes whole. Nothing happens to an end below it.

        Below the first segment every segment goes, and an empty log begins there. Log start, recovery point, epochs,
        indexes, transaction index and snapshots follow. Durable on return.

        Raises ConfigError below what the bucket holds, unless ``below_uploaded``; CorruptionError, with nothing done,
        if the place cannot be found.
        """
        with self._flusher.lock, self._lock:
            self._check_cut(offset, below_uploaded)
            if offset >= self._segments.end:
                self._leadership.epochs.truncate_from_end(self._segments.end)
            elif offset < self._segments.first_base:
                self._restart(offset, offset)
            else:
                self._cut(offset)
            self._leadership.look_for_entry()
        self._around.sealed()

    def start_at(self, offset: int, leader_epoch: int, producers: bytes = b"") -> None:
        """An empty log resumes at ``offset`` under ``leader_epoch``. ConfigError if it holds records.

        ``producers``: those of the log so far, as a ``.snapshot`` file; their open transactions stay open.
        """
        with self._flusher.lock, self._lock:
            self._condition.check_writable(fenced_too=False)
            if not self._segments.empty:
                raise ConfigError(f"{self._segments.tp} holds records: it cannot start at offset {offset}")
            if not 0 <= offset <= MAX_LONG:
                raise ConfigError(f"{self._segments.tp}: a log cannot start at offset {offset}")
            self._restart(offset, offset)
            self._leadership.begin(leader_epoch, offset)
            if producers:
                self._files.replace(self._segments.directory / snapshot_name(offset), producers)
                self._producers.rebuild(some=True)

    def _check_cut(self, offset: int, below_uploaded: bool) -> None:
        self._condition.check_writable()
        tp, upload = self._segments.tp, self._condition.upload
        if not 0 <= offset <= MAX_LONG:
            raise ConfigError(f"{tp}: a log cannot end at offset {offset}")
        if upload is not None and offset < upload.end_offset and not below_uploaded:
            raise ConfigError(
                f"{tp}: the bucket holds all below {upload.end_offset}, the disk would end at {offset}",
                hint="below_uploaded=True cuts nevertheless; the offsets must not be given out again",
            )

    def _cut(self, offset: int) -> None:
        """``offset`` lies inside. Both locks are held."""
        segments, directory = self._segments, self._segments.directory
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
        found, straddled = find_cut(self._files, directory / log_name(base), size, indexes, offset)
        found.aborted = aborted
        records_end = max(found.records_end, base)
        self._flusher.note_gap(records_end, offset)
        self._take_back(offset, records_end)
        self._condition.under_way = CUT
        try:
            if straddled:
                segments.mark_sparse()
            segments.keep_first(staying)
            active.close()
            if active.base_offset > offset:
                self._throw_active_away(active)
            self._trash.throw_away(going[::-1])
            self._files.sync_directory(directory)  # else a power cut may bring them back behind a hole
            carry_out_cut(self._files, directory, found, offset)
            self._flusher.sync_txn_index(directory / log_name(base))  # whoever wrote it has closed it without
            segments.resume(found, self._around.clock.now_ms())
            segments.close_closing()
            self._sync_closing()
            segments.end = offset
            self._flusher.flushed = min(self._flusher.flushed, offset)
            segments.log_start = min(segments.log_start, offset)
            self._leadership.epochs.truncate_from_end(offset)
            remove_snapshots_above(self._files, directory, offset)
            self._producers.rebuild(some=self._producers.state is not None)
            self._files.sync_directory(directory)
        except TieredError as error:
            self._condition.break_off(error)
            raise
        self._condition.under_way = None
        LOGGER.warning("log_truncated partition=%s offset=%d segments=%d", segments.tp, offset, len(going))

    def mend(self, end: int) -> None:
        """Cuts an append back that ended midway: the log ends at ``end``, where it ended before. The lock is held.

        Nothing above was acknowledged or read. An exception in here leaves the append to the next call.
        """
        segments = self._segments
        active = segments.active
        active.indexes.truncate_to(end)  # before a look-up: an entry may be there by halves
        found, _ = find_cut(self._files, active.path, active.size_bytes, active.indexes, end)
        if self._producers.state is None:
            active.cut_back(found)
        else:
            active.cut_back(found, truncate(active.aborted_txns(), end))
            self._producers.rebuild(some=True, afresh=True)
        segments.end = end

    def _aborted_below(self, segment: ActiveSegment | SealedLocalSegment, offset: int) -> list[AbortedTxn] | None:
        """The aborted transactions that stay in a cut segment; None if only the rest of the log can tell."""
        try:
            return truncate(segment.aborted_txns(), offset)
        except CorruptionError as error:
            LOGGER.warning("txn_index_not_cut path=%s error=%s", segment.path, error)
            return None

    def _take_back(self, offset: int, recovery_point: int) -> None:
        """Before anything is cut: what lies above is promised no more, neither here nor on the disk.

        A cut that fails or is cut short would else look as if promised records had been lost. Nor does the log begin
        above its end: the next open would put aside what is appended below that start.
        """
        self._flusher.flushed = min(self._flusher.flushed, offset)
        self._segments.log_start = min(self._segments.log_start, offset)
        self._around.cut(self._segments.tp, offset, recovery_point)

    def _throw_active_away(self, active: ActiveSegment) -> None:
        renamed = rename_away(self._files, self._segments.directory, active.base_offset)
        active.path = renamed[0]
        self._trash.put(renamed)

    def _sync_closing(self) -> None:
        """Segments that were sealed and not yet fsynced: those that stay are synced now, by name."""
        bases = {segment.base_offset for segment in self._segments.sealed}
        for segment in self._segments.closing:
            if segment.base_offset in bases:
                self._flusher.sync_closed(segment.path)
        self._segments.closing.clear()

    def _restart(self, offset: int, log_start: int) -> None:
        """Nothing is left but an empty segment at ``offset``. Both locks are held."""
        segments, directory = self._segments, self._segments.directory
        lowest = min(offset, segments.first_base)
        self._flusher.note_gap(lowest, segments.end)  # a crash may leave any beginning of the log
        self._take_back(offset, lowest)
        old = segments.active
        self._condition.under_way = CUT
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
            self._trash.throw_away(going[::-1])
            segments.start_again(offset, self._around.clock.now_ms())
            segments.end = self._flusher.flushed = offset
            self._beginning.begun = False
            self._flusher.gaps = ()
            segments.log_start = log_start
            self._leadership.epochs.clear()
            remove_snapshots_above(self._files, directory, NO_PRODUCERS_END)
            self._producers.forget(offset)
            self._files.sync_directory(directory)
        except TieredError as error:
            self._condition.break_off(error)
            raise
        self._condition.under_way = None


def find_cut(
    files: Files, path: Path, size_bytes: int, indexes: SegmentIndexes, offset: int
) -> tuple[FoundSegment, bool]:
    """The segment as it will be when it ends at ``offset``; whether a batch reached across that. Nothing is changed.

    The indexes lose their entries at or above ``offset`` at once, which costs a lookup nothing but a longer scan.
    """
    base = int(path.stem)
    position, straddled = size_bytes, False
    found = FoundSegment(base, offset, 0, indexes)
    with LogFile(files, path) as log:
        offsets = Offsets(base, NO_LIMIT)
        for span, _ in log.segment(indexes.seek(log, offset, size_bytes, offsets), size_bytes, offsets):
            if span.last_offset >= offset:
                position, straddled = span.position, span.base_offset < offset
                break
        indexes.truncate_to(offset)
        largest, at = indexes.last_time
        if position:
            found.first_timestamp = log.header_at(0, position).max_timestamp
        for span, _ in log.segment(indexes.seek(log, offset, position, offsets), position, offsets):
            found.records_end = span.last_offset + 1
        for span, view in log.segment(indexes.seek(log, at, position, offsets), position, offsets):
            timestamp = log.header(view, span.position).max_timestamp
            if timestamp > largest:
                largest, at = timestamp, span.last_offset
    found.size_bytes, found.largest = position, (largest, at)
    return found, straddled


def carry_out_cut(files: Files, directory: Path, found: FoundSegment, offset: int) -> None:
    """Cuts the ``.log``, writes the indexes as they are now, cuts the transaction index, forgets the note."""
    path = directory / log_name(found.base_offset)
    handle = files.open_write(path)
    try:
        files.truncate(handle, found.size_bytes)
        files.sync(handle)
    finally:
        files.close(handle)
    files.unlink(path.with_suffix(SEAL_SUFFIX))
    if found.indexes is not None:
        store_indexes(files, directory, found.base_offset, found.indexes)
    cut_txn_index(files, directory, found.base_offset, offset)
