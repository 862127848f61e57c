"""The active segment: the only file that grows, its two indexes, and its running totals.

The indexes in memory are authoritative. Their files are preallocated with zeros, as in Kafka. At the seal they are
written whole and trimmed, so that an earlier failed write of an index loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tiered.config import MAX_LONG, TopicConfig
from tiered.errors import CorruptionError, LocalIOError, TieredError, TooManyOpenFilesError
from tiered.format.batch_scanner import Offsets
from tiered.format.kernels import crc32c
from tiered.format.local_names import index_name, log_name, time_index_name, txn_index_name
from tiered.format.segment_builder import SegmentStats
from tiered.format.segment_indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, TXN_ENTRY_BYTES, encode_txns
from tiered.local.disk.files import Files
from tiered.local.segment.indexes import SegmentIndexes
from tiered.local.segment.scan import LogFile
from tiered.local.segment.side_files import (
    SEAL_SUFFIX,
    UNKNOWN_SNAPSHOT,
    load_growing_txns,
    measure,
    write_note,
)
from tiered.model import AbortedTxn
from tiered.plan.roll import MAX_RELATIVE_OFFSET, RollReason, roll_before_append

LOGGER = logging.getLogger("tiered.local")

BELOW_ALL_TIMES_MS = -2
"""Below every timestamp, including -1 (none)."""

BatchTuple = tuple[int, int, int, int, int]
"""Fields of :class:`BatchFacts` as a plain tuple, which is faster to build for each append."""


@dataclass(slots=True)
class FoundSegment:
    """One ``.log`` after loading. ``end_offset`` exclusive; ``indexes`` None: load when needed.

    ``damaged``: batches are unreadable, and the file stays as it is. ``records_end``: exclusive end offset of the last
    batch, -1 if unknown. ``largest``: the largest timestamp and the last offset of its batch; None: use the last entry
    of the time index. ``aborted``: the transactions whose ABORT markers are in the segment; None: read the ``.seal``
    note or the log. ``first_append_ms``: wall clock of the first append, -1 without appends. ``first_timestamp``: the
    largest timestamp of the first batch, -1 without one.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    indexes: SegmentIndexes | None = None
    first_timestamp: int = -1
    damaged: bool = False
    largest: tuple[int, int] | None = None
    records_end: int = -1
    aborted: list[AbortedTxn] | None = None
    first_append_ms: int = -1


class BatchFacts(NamedTuple):
    """Facts about one encoded batch of an append. ``last_offset``: inclusive.

    ``size``: in bytes. ``records``: their number. Timestamps are -1 if no record has one.
    """

    size: int
    last_offset: int
    records: int
    min_timestamp: int
    max_timestamp: int


class ActiveSegment:
    """Active segment of a partition: it is appended to, indexed and sealed. The caller holds the partition's lock.

    ``found``: the segment as loaded. ``created_ms``: wall clock of its creation, or of its last change before the open.
    ``jitter_ms``: shortens its ``segment.ms``. ``made``: True for a new segment, whose files do not exist yet.
    ``stats``: its running totals; None after a recovery: the seal measures them.
    """

    __slots__ = (  # Python shares no keys of so many attributes: each segment's own dict took 1,500 bytes
        "_aborted",
        "_files",
        "_full",
        "_index_handles",
        "_interval",
        "_jitter_ms",
        "_last_offset",
        "_log",
        "_lost",
        "_made",
        "_max_offsets",
        "_max_times",
        "_seal_ms",
        "_sealed",
        "_segment_ms",
        "_since_index",
        "_txn_crc",
        "_txn_handle",
        "appended_ms",
        "base_offset",
        "clock_bound",
        "crc32c",
        "created_ms",
        "directory",
        "first_append_ms",
        "first_timestamp",
        "indexes",
        "leader_epoch",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_bound",
        "path",
        "reach",
        "segment_bytes",
        "size_bytes",
        "snapshot",
        "stats",
        "time_bound",
    )

    def __init__(
        self,
        files: Files,
        directory: Path,
        found: FoundSegment,
        *,
        config: TopicConfig,
        created_ms: int,
        jitter_ms: int = 0,
        stats: SegmentStats | None = None,
        made: bool = False,
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset = found.base_offset
        self._last_offset = base_offset + MAX_RELATIVE_OFFSET  # that an index entry can hold
        self.path = directory / log_name(base_offset)
        self.indexes = found.indexes or SegmentIndexes.empty(base_offset)
        self.size_bytes = size_bytes = found.size_bytes
        self.stats = stats if size_bytes else SegmentStats()
        self.crc32c = self.stats.crc32c if self.stats is not None else 0
        # Entries of the transaction index and their CRC32C; -1: not counted since it was last written.
        self._aborted, self._txn_crc = (stats.aborted, stats.txn_crc) if stats is not None and size_bytes else (-1, 0)
        if not size_bytes:
            self._aborted = 0
        self._lost: CorruptionError | None = None  # why the aborted transactions are unknown
        self.snapshot = UNKNOWN_SNAPSHOT
        self.created_ms = created_ms
        self.first_timestamp = found.first_timestamp
        self.first_append_ms = found.first_append_ms
        self.appended_ms = created_ms
        largest = found.largest or (self.indexes.last_time if found.indexes is not None else (-1, base_offset))
        self.max_timestamp, self.max_timestamp_offset = largest
        self.leader_epoch = -1
        self._files = files
        self._since_index = 0
        self._jitter_ms = jitter_ms
        self._sealed = False
        self._made = made
        self.reach = -1
        self._index_handles: tuple[int, int] | None = None
        self._txn_handle: int | None = None
        self._interval = config.index_interval_bytes
        self._max_offsets = config.segment_index_bytes // OFFSET_ENTRY_BYTES
        self._max_times = config.segment_index_bytes // TIME_ENTRY_BYTES - 1  # one entry is kept for the seal
        self._full = found.indexes is not None and self._indexes_full()
        self.configure(config)
        self._log: int | None = files.open_write(self.path)

    @property
    def lookup(self) -> SegmentIndexes:
        """Return the offset and the time index, in memory."""
        return self.indexes

    def configure(self, config: TopicConfig) -> None:
        """Apply changed settings. The index settings and the jitter of this segment stay."""
        self.segment_bytes = config.segment_bytes
        self._seal_ms = config.seal_ms
        most_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.compacted else config.segment_ms
        self._segment_ms = most_ms - self._jitter_ms
        self._set_bounds()

    def roll_reason(self, incoming_bytes: int, max_timestamp: int, last_offset: int, now_ms: int) -> RollReason | None:
        """Return the reason why an append needs a new segment (``plan.roll``), None if it does not.

        ``incoming_bytes``, ``max_timestamp``, ``last_offset``: size, largest timestamp and last offset of the append.
        The bounds of this object decide nearly all cases without this call.
        """
        first = self.first_timestamp
        reason = roll_before_append(
            self.size_bytes,
            incoming_bytes,
            self.segment_bytes,
            max_timestamp - first if first >= 0 else now_ms - self.created_ms,
            self._segment_ms,
            last_offset - self.base_offset,
            self.indexes.offset_count >= self._max_offsets,
            self.indexes.time_count >= self._max_times,
        )
        return reason or self.idle_reason(now_ms)

    def idle_reason(self, now_ms: int) -> RollReason | None:
        """Return the reason to roll once ``seal.ms`` has passed since the first append, otherwise None.

        If the clock was set back below the time of the first append, ``seal.ms`` counts from now.
        """
        if now_ms < self.first_append_ms:
            self.first_append_ms = now_ms
            self._set_bounds()
        return RollReason.WALL_CLOCK if self.size_bytes and now_ms >= self.clock_bound else None

    def append(
        self,
        data: bytes | bytearray,
        facts: BatchTuple,
        crc: int,
        leader_epoch: int,
        now_ms: int,
        *,
        batches: Sequence[BatchTuple] = (),
    ) -> None:
        """Append all of ``data``, one or several batches, in one write.

        ``facts``: facts about ``data`` as a whole. ``batches``: facts about each batch if there are several. ``crc`` is
        the CRC-32C of the whole file with ``data``. Raises DiskFullError or TooManyOpenFilesError if the file is
        unchanged, any other LocalIOError if bytes of ``data`` may remain in it.
        """
        position, log = self.size_bytes, self._log
        if log is None:
            raise self._closed_error()
        try:
            self._files.write_at(log, data, position)
        except TieredError as error:
            if not (isinstance(error, TooManyOpenFilesError) and self._is_untouched()):
                self._cut_back(log)
            raise
        if position == 0:
            self.first_timestamp = (batches or (facts,))[0][4]
            self.first_append_ms = now_ms
            self._set_bounds()
        stats = self.stats
        for size, last_offset, records, least, greatest in batches or (facts,):
            if greatest > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = greatest, last_offset
            if self._since_index > self._interval:
                self._index(last_offset, position)
            self._since_index += size
            position += size
            if stats is not None:
                stats.records += records
                if least < stats.min_timestamp or stats.min_timestamp < 0:
                    stats.count(0, least, -1)
        self.crc32c = crc
        self.size_bytes = position
        self.leader_epoch = leader_epoch
        self.appended_ms = now_ms

    def _is_untouched(self) -> bool:
        """Return True if the ``.log`` has exactly ``size_bytes`` bytes."""
        state = self._files.state(self.path)
        return state is not None and state.size == self.size_bytes

    def _cut_back(self, handle: int) -> None:
        """Truncate the ``.log`` to ``size_bytes`` after a failed write. Raises LocalIOError if that fails."""
        try:
            self._files.truncate(handle, self.size_bytes)
        except TooManyOpenFilesError as error:
            raise LocalIOError(error.message, hint=error.hint) from error

    def cut_back(self, found: FoundSegment, aborted: Sequence[AbortedTxn] | None = None) -> None:
        """Truncate the segment to the end of ``found``, after an interrupted append. Repeating the call is safe.

        ``found``: the segment without that append. The totals are unknown afterwards: the seal measures them.
        ``aborted``: the entries that stay in the transaction index; None: leave its file unchanged.
        """
        size = self.size_bytes = found.size_bytes
        self._files.truncate(self._handle(), size)
        self.stats, self.crc32c = None if size else SegmentStats(), 0
        self.max_timestamp, self.max_timestamp_offset = found.largest or (-1, self.base_offset)
        self.first_timestamp = found.first_timestamp if size else -1
        self.first_append_ms = self.first_append_ms if size else -1
        self._since_index = 0
        self._full = self._indexes_full()
        self._set_bounds()
        if self._index_handles is not None:
            for handle, held, room in zip(
                self._index_handles,
                (self.indexes.offset_count * OFFSET_ENTRY_BYTES, self.indexes.time_count * TIME_ENTRY_BYTES),
                (self._max_offsets * OFFSET_ENTRY_BYTES, (self._max_times + 1) * TIME_ENTRY_BYTES),
                strict=True,
            ):
                self._files.truncate(handle, held)  # entries of what goes
                self._files.truncate(handle, room)
        if self._txn_handle is not None and aborted is not None:
            entries = encode_txns(aborted)
            self._files.truncate(self._txn_handle, len(entries))
            self.adopt_aborted(entries)

    def append_aborted(self, txns: Sequence[AbortedTxn]) -> None:
        """Append ``txns`` to the transaction index.

        After an error the file may have a part of an entry, and recovery rebuilds it.
        """
        if self._txn_handle is None:
            self._txn_handle = self._files.open_write(self.directory / txn_index_name(self.base_offset))
        size = self._files.size(self._txn_handle)
        entries = encode_txns(txns)
        self._files.write_at(self._txn_handle, entries, size - size % TXN_ENTRY_BYTES)
        if self._aborted >= 0:
            self._aborted, self._txn_crc = self._aborted + len(txns), crc32c(entries, self._txn_crc)

    def adopt_aborted(self, entries: bytes | CorruptionError) -> None:
        """Set the content that the transaction index must have, encoded, or the error with which it is lost."""
        if isinstance(entries, CorruptionError):
            self._lost, self._aborted = entries, -1
        else:
            self._aborted, self._txn_crc = len(entries) // TXN_ENTRY_BYTES, crc32c(entries)

    def aborted_txns(self) -> list[AbortedTxn]:
        """Return the aborted transactions whose ABORT markers are in the segment.

        Raises CorruptionError if entries of the transaction index are missing.
        """
        if self._lost is not None:
            raise self._lost
        expected = self._aborted
        found = load_growing_txns(self._files, self.directory, self.base_offset)
        if len(found) < expected:
            path = self.directory / txn_index_name(self.base_offset)
            raise CorruptionError(
                f"{path} holds {len(found)} of {expected} aborted transactions: another program cut or removed it",
                path_or_key=str(path),
                offset=self.base_offset,
                hint="close the log and open it again: the open rebuilds the index from the log",
            )
        return found

    def _set_bounds(self) -> None:
        """Set the bounds within which an append needs no :meth:`roll_reason`.

        Without a timestamp in the segment each append needs it. ``seal.ms`` -1 sets no bound.
        """
        first, begun = self.first_timestamp, self.first_append_ms
        self.time_bound = first + self._segment_ms if first >= 0 else BELOW_ALL_TIMES_MS
        self.clock_bound = begun + self._seal_ms if begun >= 0 and self._seal_ms >= 0 else MAX_LONG
        self.offset_bound = -1 if self._full else self._last_offset

    def _indexes_full(self) -> bool:
        """Return True if one of the indexes has no room for another entry."""
        return self.indexes.offset_count >= self._max_offsets or self.indexes.time_count >= self._max_times

    def seal(self) -> None:
        """End the appends: add the last time entry and write both index files, trimmed. Nothing is fsynced yet."""
        self.indexes.append_last_time(self.max_timestamp, self.max_timestamp_offset)
        self._sealed = True
        if self.stats is not None:
            self.stats.count(0, -1, self.max_timestamp)
            self.stats.size_bytes, self.stats.crc32c = self.size_bytes, self.crc32c
            if self.leader_epoch >= 0:  # of an append since the open
                self.stats.leader_epoch = self.leader_epoch
        self.write_indexes()

    def write_indexes(self) -> None:
        """Write both index files from memory, without preallocated zeros."""
        are_new = self._made and self._index_handles is None
        offsets, times = self._open_indexes(preallocate=False)
        for handle, data in ((offsets, self.indexes.offset_bytes()), (times, self.indexes.time_bytes())):
            if data:
                self._files.write_at(handle, data, 0)
            if not are_new:
                self._files.truncate(handle, len(data))

    def sync(self) -> None:
        """Fsync the ``.log`` and the transaction index, and after the seal the two other index files.

        Before the seal, recovery can rebuild those two.
        """
        log = self._handle()
        if not (self.size_bytes or self._sealed):
            return  # nothing was appended, nothing was promised
        # mutant flush-is-fsync
        self._files.sync(log)
        if self._txn_handle is not None:
            # mutant aborts-are-fsynced
            self._files.sync(self._txn_handle)
        if self._sealed and self._index_handles is not None:
            for handle in self._index_handles:
                self._files.sync(handle)

    def noted(self) -> SegmentStats:
        """Return the content of the ``.seal`` note.

        Totals that were not counted during the appends are measured now.
        """
        if self.stats is None:
            offsets = Offsets(self.base_offset, self.base_offset + MAX_RELATIVE_OFFSET + 1)
            self.stats = measure(LogFile(self._files, self.path, handle=self._handle()), self.size_bytes, offsets)
        self.stats.aborted, self.stats.txn_crc = self._aborted, self._txn_crc
        self.stats.producers, self.stats.snapshot_crc = self.snapshot.producers, self.snapshot.crc
        self.stats.appended_ms = self.appended_ms
        return self.stats

    def write_seal(self) -> bool:
        """Write the ``.seal`` note, durably. Return False, after a warning, if that failed: it can be made later."""
        try:
            write_note(self._files, self.path.with_suffix(SEAL_SUFFIX), self.noted())
        except TieredError as error:
            LOGGER.warning("seal_note_failed path=%s error=%s", self.path, error)
            return False
        return True

    def close(self) -> None:
        """Close the files, without writing anything."""
        for handle in (self._log, self._txn_handle, *(self._index_handles or ())):
            if handle is not None:
                self._files.close(handle)
        self._log = self._txn_handle = self._index_handles = None

    def _handle(self) -> int:
        if self._log is None:
            raise self._closed_error()
        return self._log

    def _closed_error(self) -> LocalIOError:
        return LocalIOError(f"the segment {self.path} is closed", hint="open the log again")

    def _index(self, last_offset: int, position: int) -> None:
        """Add one entry to both indexes: the batch's last offset with the batch's start, and the running maximum."""
        self._since_index = 0
        indexes = self.indexes
        at_offset, at_time = indexes.offset_count, indexes.time_count
        offset_entry, time_entry = indexes.append(last_offset, position, self.max_timestamp, self.max_timestamp_offset)
        if self._indexes_full():
            self._full = True
            self._set_bounds()
        try:
            offsets, times = self._index_handles or self._open_indexes()
            self._files.write_at(offsets, offset_entry, at_offset * OFFSET_ENTRY_BYTES)
            if time_entry:
                self._files.write_at(times, time_entry, at_time * TIME_ENTRY_BYTES)
        except TieredError as error:  # the record is safe; the seal writes the index whole
            LOGGER.warning("index_write_failed path=%s error=%s", self.path, error)

    def _open_indexes(self, *, preallocate: bool = True) -> tuple[int, int]:
        if self._index_handles is None:
            files, base = self._files, self.base_offset
            offsets = files.open_write(self.directory / index_name(base))
            times = files.open_write(self.directory / time_index_name(base))
            self._index_handles = (offsets, times)
            if preallocate:
                files.truncate(offsets, self._max_offsets * OFFSET_ENTRY_BYTES)
                files.truncate(times, (self._max_times + 1) * TIME_ENTRY_BYTES)
        return self._index_handles
