"""One partition of a log directory that another process writes: another `tieredlog`, or a Kafka broker.

Nothing is locked, written or renamed. Each read detects appended bytes by two ``stat`` calls. An incomplete batch at
the end is not read yet.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from tiered.clock import Clock
from tiered.config import TopicConfig
from tiered.errors import CorruptionError, LocalIOError, LogDestroyedError, NotFoundError
from tiered.format.local_names import LOG_SUFFIX, SWAP_SUFFIX, local_name, log_name, txn_index_name
from tiered.local.disk.files import Files, FileState
from tiered.local.disk.partition_files import SPARSE_NAME, LeaderEpochs, bases_of, local_files, snapshot_offsets
from tiered.local.disk.topics import TopicInfo, read_topic_id
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.local.partition.read_log import ReadLog, positions_of
from tiered.local.segment.indexes import SegmentIndexes, load_growing
from tiered.local.segment.read_view import Extent, SealedExtents, View
from tiered.local.segment.reading import patient_view
from tiered.local.segment.scan import LogFile
from tiered.local.segment.sealed import OwningLog, SealedLocalSegment
from tiered.local.segment.side_files import (
    SEAL_SUFFIX,
    SegmentPlace,
    SideFiles,
    abort_markers,
    load_growing_txns,
    read_note,
)
from tiered.model import AbortedTxn, Positions, TopicPartition

REINDEX_BYTES = 4 * 1024 * 1024
"""The index of the growing segment is read again after this much growth; an old one only costs a longer scan."""


def check_same_topic(tp: TopicPartition, seen: UUID, topic_id: UUID) -> None:
    """Raise LogDestroyedError if the topic id on disk changed from ``seen`` to ``topic_id``.

    An id of zero is unknown: nothing is raised.
    """
    if seen.int and topic_id.int and seen != topic_id:
        raise LogDestroyedError(
            f"{tp} has topic id {topic_id} on disk now, and had {seen} before: its topic was deleted and made again",
            hint="open the topic again and read from its start: it is a new topic with other records",
        )


class GrowingSegment:
    """Last segment of a log that another process writes, as read so far.

    Known are the whole batches in its first ``size_bytes`` bytes, with offsets below ``end_offset``. ``file_bytes``:
    the file's size at the last :meth:`grow`.
    """

    def __init__(self, files: Files, directory: Path, tp: TopicPartition, base_offset: int) -> None:
        self.path = directory / log_name(base_offset)
        self._tp = tp
        self.base_offset = base_offset
        self._files = files
        self._txns: tuple[int, FileState | None, list[AbortedTxn]] | None = None
        self.forget()

    def forget(self) -> None:
        """Discard all that was read from the segment. After a rename its path may name another segment."""
        self.end_offset = self.base_offset
        self.size_bytes = 0
        self.max_timestamp = -1
        self._indexed_bytes = -REINDEX_BYTES
        self._indexes = SegmentIndexes.empty(self.base_offset)
        self._jumped = False
        self.file_bytes = 0

    @property
    def lookup(self) -> SegmentIndexes:
        """Return the offset and the time index, in memory."""
        return self._indexes

    def aborted_txns(self) -> list[AbortedTxn]:
        """Return the aborted transactions whose markers are in this segment.

        The transaction index is checked against the ``.seal`` note of a clean close, or against the log. Of an append
        in progress, an ABORT marker without its index entry is left out. Raises CorruptionError if the index is lost or
        damaged and cannot be rebuilt.
        """
        files, directory, base = self._files, self.path.parent, self.base_offset
        state = files.state(self.path)
        noted = None if state is None else read_note(files, self.path.with_suffix(SEAL_SUFFIX), state.size)
        if noted is not None:
            place = SegmentPlace(self._tp, directory, self.path, base, self.end_offset)
            return SideFiles(files, place, noted).aborted_txns()
        size, index = self.size_bytes, files.state(directory / txn_index_name(base))
        if self._txns is not None and self._txns[:2] == (size, index):
            return self._txns[2]
        try:
            found, is_damaged = load_growing_txns(files, directory, base), False
        except CorruptionError:
            found, is_damaged = [], True
        with LogFile(files, self.path) as log:
            missing = set(abort_markers(log, size)) ^ {(txn.producer_id, txn.last_offset) for txn in found}
        # Behind the newest snapshot an abort whose entry is late counts as open: its writer puts the marker first.
        newest = max(snapshot_offsets(files, directory), default=0)
        late = set() if is_damaged else {marker for marker in missing if marker[1] >= newest}
        if is_damaged or missing != late:
            place = SegmentPlace(self._tp, directory, self.path, base, self.end_offset, size)
            indexed = SideFiles(files, place, None).aborted_txns()
            found = [txn for txn in indexed if (txn.producer_id, txn.last_offset) not in late]
        self._txns = (size, index, found)
        return found

    def grow(self, promised: int) -> None:
        """Read the batches that were appended since the last call.

        ``promised``: the recovery point. While batches below it are missing, no batch at or above it is read.
        """
        with LogFile(self._files, self.path) as log:
            size = self.file_bytes = log.size()
            if size < self.size_bytes:  # its owner cut a torn tail
                self.forget()
            if size - self._indexed_bytes >= REINDEX_BYTES:
                self._indexes, self._indexed_bytes = load_growing(self._files, log, self.base_offset, size), size
                if self.size_bytes == 0:
                    self._jump()
            self._walk(log, size, promised)
            if self._jumped and self.end_offset == self.base_offset:  # what is indexed last is no batch
                self.forget()
                self._indexed_bytes = self.file_bytes = size
                self._walk(log, size, promised)

    def _walk(self, log: LogFile, size: int, promised: int) -> None:
        try:
            for span, view in log.batches(self.size_bytes, size):
                header = log.header(view, span.position)
                if span.base_offset < self.end_offset or self.end_offset < promised <= span.base_offset:
                    return
                self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
                self.end_offset, self.size_bytes = span.last_offset + 1, span.position + span.size
        except CorruptionError:
            return

    def extent(self, promised: int) -> Extent:
        """Return the offsets and bytes of the segment that a read may use.

        ``promised``: the recovery point. If the batches end below it, the read raises CorruptionError at their end.
        """
        end = self.end_offset
        if promised <= end:
            return Extent(self.base_offset, end, self.size_bytes, self.max_timestamp, self)
        self._indexes.damaged = True
        return Extent(self.base_offset, promised, self.file_bytes, self.max_timestamp, self, promised)

    def _jump(self) -> None:
        """Start at the last indexed batch instead of the first: all batches before it are complete."""
        position = self._indexes.last_position
        if position:
            self._jumped = True
            self.size_bytes = position
            self.max_timestamp = self._indexes.last_time[0]


@dataclass(frozen=True, slots=True)
class ReadContext:
    """Services of a log directory that another process writes, shared by its partitions.

    ``upload_of`` returns the uploader's last report, None while the partition is not tiered. ``recovery_point_of``
    returns an offset below which the partition is durable.
    """

    files: Files
    clock: Clock
    buffer_bytes: int
    upload_of: Callable[[TopicPartition], PartitionUpload | None]
    recovery_point_of: Callable[[TopicPartition], int]


class ReadOnlyPartition(ReadLog):
    """Reader of a partition that another process writes at the same time. Thread-safe.

    If a broker writes the partition, missing offsets are normal. If this product writes it, two cases are damage: a
    record missing below the recovery point, and a missing offset unless the topic is compacted or the partition has
    the file ``tiered-sparse``.
    ``log_start``: the log start in the checkpoint, 0 without one.
    """

    def __init__(
        self,
        around: ReadContext,
        directory: Path,
        tp: TopicPartition,
        topic: TopicInfo,
        *,
        log_start: int,
    ) -> None:
        files = around.files
        epochs = LeaderEpochs(directory, files, read_only=True)
        super().__init__(files, directory, tp, topic_id=topic.topic_id, epochs=epochs, buffer_bytes=around.buffer_bytes)
        self._clock = around.clock
        self._upload_of, self._recovery_point_of = around.upload_of, around.recovery_point_of
        self._config = topic.config
        self._log_start = log_start
        self._ours = not topic.adopted
        self._dense = self._ours and not topic.config.compacted
        self._safe = 0  # below this offset all was fsynced, as of the last listing
        self._lock = threading.Lock()
        self._seen: FileState | None = None
        self._sealed: tuple[SealedLocalSegment, ...] = ()
        self._extents = SealedExtents()
        self._tail: GrowingSegment | None = None

    @property
    def config(self) -> TopicConfig:
        """Return the topic's settings."""
        return self._config

    @property
    def upload(self) -> PartitionUpload | None:
        """Return the uploader's last report on this disk; None while the log is not tiered."""
        return self._upload_of(self.tp)

    @property
    def sealed(self) -> tuple[SealedLocalSegment, ...]:
        """Return all segments but the last. List the directory again if it has changed."""
        self.view()
        return self._sealed

    def stamp(self) -> object:
        """Return the file states of the directory and of the last ``.log``.

        Two equal results mean that probably nothing was appended in between.
        """
        tail = self._tail
        return self.files.state(self.directory), None if tail is None else self.files.state(tail.path)

    def positions(self) -> Positions:
        """Return the start of the partition, its start on this disk, and its uploaded, flushed and appended ends."""
        view = self.view()
        flushed = min(self._recovery_point_of(self.tp), view.end_offset)
        return positions_of(self.upload, view.start_offset, view.start_offset, flushed, view.end_offset)

    def view(self) -> View:
        """Return an immutable list of the segments, for a read that begins now.

        Wait while the writer renames segments. Raises NotFoundError if that takes more than two seconds. Raises it
        also if the directory is gone, and LogDestroyedError if the topic was replaced.
        """
        self._check_process()
        return patient_view(self._view, self._clock)

    def _view(self) -> View:
        with self._lock:
            self._refresh()
            if self._tail is None:
                return View(self.tp, self._log_start, self._log_start, self._extents, None, self._dense)
            tail = self._tail.extent(self._safe)
            start = max((self._sealed[0] if self._sealed else tail).base_offset, self._log_start)
            return View(self.tp, start, max(tail.end_offset, start), self._extents, tail, self._dense)

    def _refresh(self) -> None:
        """Detect what was appended or changed. Raises NotFoundError if a file is gone since the listing: try again."""
        state = self.files.state(self.directory)
        if state is None:  # never what an empty log looks like
            raise NotFoundError(
                f"{self.directory} is gone",
                hint="its topic was deleted, or the partition was moved: open the log again",
            )
        try:
            if state != self._seen:
                # Before the files: they hold all that was durable then.
                self._safe = self._recovery_point_of(self.tp) if self._ours else 0
                self._list()
                self._seen = state
            if self._tail is not None:
                self._tail.grow(self._safe)
        except NotFoundError:
            self._seen = None
            raise

    def _list(self) -> None:
        self._check_topic()
        found = local_files(self.files, self.directory)
        swapped = [file for file in found if file.suffix == LOG_SUFFIX and file.work == SWAP_SUFFIX]
        if swapped:
            name = local_name(swapped[0].base, LOG_SUFFIX, SWAP_SUFFIX)
            raise NotFoundError(
                f"{self.directory}: the writer is replacing segments, {name} is not renamed yet",
                hint="read again; if the writer crashed, open the log for writing: that completes the replacement or "
                "rolls it back, without loss",
            )
        bases = bases_of(found)
        self._dense = self._dense and self.files.state(self.directory / SPARSE_NAME) is None
        known = {segment.base_offset: segment for segment in self._sealed}
        self.epochs.reload()
        self._sealed = tuple(
            known[base] if base in known and self._is_same(known[base], end) else self._open(base, end)
            for base, end in itertools.pairwise(bases)
        )
        self._extents = SealedExtents(map(Extent.whole, self._sealed))
        if not bases:
            self._tail = None
        elif self._tail is None or self._tail.base_offset != bases[-1]:
            self._tail = GrowingSegment(self.files, self.directory, self.tp, bases[-1])
        else:
            self._tail.forget()

    def _check_topic(self) -> None:
        """Raise LogDestroyedError if the folder now belongs to another topic of the same name."""
        try:
            topic_id = read_topic_id(self.directory, self.files)
        except (CorruptionError, LocalIOError):
            return  # the next scan of the log directory reports it
        if topic_id is not None:
            check_same_topic(self.tp, self.topic_id, topic_id)

    def _is_same(self, known: SealedLocalSegment, end_offset: int) -> bool:
        """Return True if ``known`` still ends at ``end_offset`` and its file still has the same size.

        Otherwise a cleaner has replaced the segment by one with the same base offset.
        """
        state = self.files.state(known.path)
        return known.end_offset == end_offset and state is not None and state.size == known.size_bytes

    def _open(self, base: int, end: int) -> SealedLocalSegment:
        state = self.files.state(self.directory / log_name(base))
        if state is None:
            raise NotFoundError(f"{self.directory / log_name(base)} is gone")
        log = OwningLog(
            self.directory,
            self.tp,
            self.topic_id,
            self._config.index_interval_bytes,
            self.epochs.below,
            read_only=True,
        )
        modified_ms = state.modified_ns // 1_000_000
        segment = SealedLocalSegment(self.files, log, base, end, size_bytes=state.size, appended_ms=modified_ms)
        segment.dense = self._dense
        return segment
