"""A sealed segment on the local disk: read by any thread, uploaded, in the end renamed away and unlinked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from tiered.clock import Clock
from tiered.errors import ClosedError, CorruptionError, TieredError
from tiered.format.batch_scanner import Offsets
from tiered.format.kernels import PlainLock
from tiered.format.local_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    local_name,
    log_name,
)
from tiered.format.segment_builder import SegmentStats
from tiered.local.disk.files import Files
from tiered.local.segment.indexes import SegmentIndexes, load_indexes, lost_end
from tiered.local.segment.scan import LogFile
from tiered.local.segment.side_files import (
    SEAL_SUFFIX,
    SegmentPlace,
    SideFiles,
    measure,
    read_note,
)
from tiered.model import AbortedTxn, EpochEntry, SealedIndexes, SegmentDescriptor, TopicPartition
from tiered.plan.producer_state import ProducerSnapshot

if TYPE_CHECKING:
    from tiered.local.segment.active import ActiveSegment

SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SEAL_SUFFIX)
END_OFFSET = attrgetter("end_offset")
"""Key for bisecting sealed segments, which are ascending."""


class FileSource:
    """Readable bytes of a segment: the first ``size`` bytes of one file (:class:`tiered.model.FillingSource`).

    ``sync``: fsync the file first. Thread-safe.
    """

    def __init__(self, files: Files, path: Path, size: int, *, sync: bool) -> None:
        self._lock = PlainLock()
        self._files = files
        self.size = size
        self._path = path
        self._handle: int | None = files.open_read(path)
        if sync:
            # mutant upload-is-fsynced
            files.sync(self._handle)

    def read_at(self, position: int, length: int) -> bytes:
        buffer = bytearray(length)
        self.fill_from(position, memoryview(buffer))
        return bytes(buffer)

    def fill_from(self, position: int, buffer: memoryview) -> None:
        with self._lock:
            if self._handle is None:
                raise ClosedError(f"{self._path} was closed before")
            if self._files.read_into(self._handle, buffer, position) < len(buffer):
                raise CorruptionError(
                    f"{self._path} ends before byte {position + len(buffer)}",
                    path_or_key=str(self._path),
                    position=position,
                )

    def close(self) -> None:
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            self._files.close(handle)


def rename_to_deleted(files: Files, directory: Path, base_offset: int, *, snapshot: bool = True) -> list[Path]:
    """Add the suffix ``.deleted`` to all files of the segment at ``base_offset``, the ``.log`` first.

    Return the new paths. ``snapshot``: also its producer snapshot.
    """
    renamed = []
    for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX) if snapshot else SEGMENT_SUFFIXES:
        path = directory / local_name(base_offset, suffix)
        if files.state(path) is not None:
            target = path.with_name(path.name + DELETED_SUFFIX)
            files.rename(path, target)
            renamed.append(target)
    return renamed


class OwningLog(NamedTuple):
    """Facts of the log to which a segment belongs. ``interval_bytes``: distance between index entries.

    ``epochs``: returns the leader epochs below an offset. ``read_only``: another process writes the log.
    """

    directory: Path
    tp: TopicPartition
    topic_id: UUID
    interval_bytes: int
    epochs: Callable[[int], tuple[EpochEntry, ...]]
    read_only: bool = False


class SealedLocalSegment:
    """Sealed segment in local files, as :class:`tiered.model.SealedSegment`. ``end_offset`` is exclusive.

    ``size_bytes``: of the ``.log``. ``appended_ms``: time of the last append. ``stats``: the segment's totals; None:
    the ``.seal`` note has them, or they are measured. ``indexes`` None: they are loaded and checked at the first
    lookup. Damaged ones are rebuilt in memory, and by the writer on disk, too.
    """

    def __init__(
        self,
        files: Files,
        log: OwningLog,
        base_offset: int,
        end_offset: int,
        *,
        size_bytes: int,
        appended_ms: int,
        indexes: SegmentIndexes | None = None,
        stats: SegmentStats | None = None,
    ) -> None:
        self.directory = log.directory
        self.path = log.directory / log_name(base_offset)
        self.tp = log.tp
        self.topic_id = log.topic_id
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.size_bytes = size_bytes
        self._appended_ms = appended_ms
        self._files = files
        self._interval = log.interval_bytes
        self._epochs = log.epochs
        self._indexes = indexes
        self._stats = stats
        self._read_only = log.read_only
        self._ends = stats is not None  # True if the file reaches its end at the seal
        self.dense = False  # True if every offset is known to have a record
        self.reach = -1  # for a damaged one: its batches reached this offset once
        self._aborted: list[AbortedTxn] | None = None
        self.before: ActiveSegment | None = None  # the active segment that it was: a read may have begun then

    @property
    def appended_ms(self) -> int:
        """Return the time of the last append, by the ``.seal`` note or the modification time; -1 if unknown."""
        stats = self._noted()
        if stats is not None and stats.appended_ms >= 0:
            return stats.appended_ms
        return self._appended_ms if self._appended_ms > 0 else -1  # archives set the times of their files to zero

    @property
    def offset_range(self) -> Offsets:
        """Return the offsets that the segment's batches may have: from its base to its end (exclusive)."""
        return Offsets(self.base_offset, self.end_offset)

    @property
    def lookup(self) -> SegmentIndexes:
        """Return the offset index and the time index, in memory.

        Raises CorruptionError if the end of the ``.log`` is lost.
        """
        if self._indexes is not None and self._ends:
            return self._indexes
        self._check_end()
        if self._indexes is None:
            noted = self._noted()
            with LogFile(self._files, self.path) as log:
                self._indexes = load_indexes(
                    self._files,
                    log,
                    self.base_offset,
                    self.size_bytes,
                    self._interval,
                    repair=not self._read_only,
                    largest=None if noted is None else noted.max_timestamp,
                    next_offset=self.end_offset,
                )
        return self._indexes

    @property
    def max_timestamp(self) -> int:
        """Return the largest record timestamp, -1 if no record has one."""
        return self.lookup.last_time[0]

    @property
    def descriptor(self) -> SegmentDescriptor:
        """Return the totals of the segment, from the ``.seal`` note or by reading all of the ``.log``.

        Raises CorruptionError if that read finds damage or a lost end.
        """
        stats = self._noted()
        if stats is None:
            self._check_end()
            with LogFile(self._files, self.path) as log:
                stats = self._stats = measure(log, self.size_bytes, self.offset_range, dense=self.dense)
        found = stats.descriptor(self.topic_id, self.tp.partition, self.base_offset, self.end_offset)
        return replace(found, appended_ms=self.appended_ms)

    def _check_end(self) -> None:
        """Raise CorruptionError if the ``.log`` has lost its end since the seal. A passed check is not repeated."""
        if self._ends:
            return
        if self._noted() is not None:
            self._ends = True
            return
        with LogFile(self._files, self.path) as log:
            if lost_end(self._files, log, self.base_offset, self.size_bytes):
                raise log.damage(self.size_bytes, "the file ends here, but it was longer when it was sealed")
        self._ends = True

    def _noted(self) -> SegmentStats | None:
        """Return the totals in the ``.seal`` note, None without a note that fits the ``.log``."""
        if self._stats is None:
            self._stats = read_note(self._files, self.path.with_suffix(SEAL_SUFFIX), self.size_bytes)
        return self._stats

    def open_log(self) -> FileSource:
        """Open the ``.log`` for reading.

        If another process writes the log, fsync it first: uploaded bytes must be durable here.
        """
        return FileSource(self._files, self.path, self.size_bytes, sync=self._read_only)

    @property
    def lacks_producers(self) -> bool:
        """Return True if only the bucket may know the producers before this segment.

        Then :meth:`indexes` needs the producer snapshot at the end of the bucket.
        """
        return self._side_files().lacks_producers

    def indexes(self, before: ProducerSnapshot | None = None) -> SealedIndexes:
        """Return the content of all index files: offset, time and transaction index, producer snapshot, leader epochs.

        Lost or damaged ones are rebuilt from the log. Raises CorruptionError if that is impossible. ``before``: the
        producers at the end of the bucket, for a directory without snapshots.
        """
        beside = self._side_files(before)
        txn_index, producer_snapshot, lookup = beside.txn_index(), beside.producer_snapshot(), self.lookup
        return SealedIndexes(
            offset_index=lookup.offset_bytes(),
            time_index=lookup.time_bytes(),
            txn_index=txn_index,
            producer_snapshot=producer_snapshot,
            leader_epochs=self._epochs(self.end_offset),
        )

    @property
    def index_bytes(self) -> int:
        """Return the present size on disk of the index files and of the producer snapshot at the base offset."""
        suffixes = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
        states = [self._files.state(self.directory / local_name(self.base_offset, suffix)) for suffix in suffixes]
        return sum(state.size for state in states if state is not None)

    def aborted_txns(self) -> list[AbortedTxn]:
        """Return the aborted transactions whose ABORT markers are in the segment.

        Raises CorruptionError if the transaction index is lost and cannot be rebuilt.
        """
        if self._aborted is None:
            self._aborted = self._side_files().aborted_txns()
        return self._aborted

    def _side_files(self, before: ProducerSnapshot | None = None) -> SideFiles:
        place = SegmentPlace(self.tp, self.directory, self.path, self.base_offset, self.end_offset)
        return SideFiles(self._files, place, self._noted(), before)

    def rename_to_deleted(self) -> list[Path]:
        """Add the suffix ``.deleted`` to each file of the segment, the ``.log`` first. Return the new paths."""
        renamed = rename_to_deleted(self._files, self.directory, self.base_offset)
        self.moved_to_deleted()
        return renamed

    def moved_to_deleted(self) -> None:
        """Set ``path`` to the renamed ``.deleted`` file, for reads in progress."""
        self.path = self.directory / local_name(self.base_offset, LOG_SUFFIX, DELETED_SUFFIX)
        if self.before is not None:
            self.before.path = self.path


class DeletedFiles:
    """Files of one partition that were renamed ``.deleted`` and are unlinked after ``file.delete.delay.ms``.

    A read in progress continues in the renamed file. ``lock``: the partition's lock; callers that add files hold it.
    """

    __slots__ = ("_clock", "_files", "_lock", "_waiting", "delay_ms")

    def __init__(self, files: Files, clock: Clock, lock: PlainLock) -> None:
        self.delay_ms = 0
        self._files = files
        self._clock = clock
        self._lock = lock
        self._waiting: list[tuple[int, Path]] = []

    def throw_away(self, segments: Iterable[SealedLocalSegment]) -> None:
        """Rename the files of ``segments`` to ``.deleted``, to be unlinked later. The caller holds the lock."""
        for segment in segments:
            self.put(segment.rename_to_deleted())

    def put(self, paths: Sequence[Path]) -> None:
        """Add files that have the suffix ``.deleted`` already. The caller holds the lock."""
        due_ms = self._clock.now_ms() + self.delay_ms
        self._waiting += [(due_ms, path) for path in paths]

    @property
    def size_bytes(self) -> int:
        """Return the size of the files that are not unlinked yet."""
        with self._lock:
            waiting = [path for _, path in self._waiting]
        states = (self._files.state(path) for path in waiting)
        return sum(state.size for state in states if state is not None)

    def empty(self, now_ms: int) -> int | None:
        """Unlink the files whose delay is over. Return their total size in bytes, None if no file was due.

        A file that cannot be unlinked is tried again by the next call. Its error is raised after all files were tried.
        """
        with self._lock:
            due = [entry for entry in self._waiting if entry[0] <= now_ms]
            self._waiting = [entry for entry in self._waiting if entry[0] > now_ms]
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
                    self._waiting.append(entry)
        if failed is not None:
            raise failed
        return size if due else None
