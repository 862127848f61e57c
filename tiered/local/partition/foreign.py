"""One partition of a log directory that somebody else writes: our own daemon's view, or a Kafka broker's directory.

Nothing is locked, written or renamed. Growth is seen at each read by two ``stat`` calls; bytes that are not a whole
batch yet, or no batch at all, are the end for now.
"""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from uuid import UUID

from tiered.errors import CorruptionError, NotFoundError
from tiered.format.keys import LOG_SUFFIX, SWAP_SUFFIX, log_name, parse_local_name
from tiered.local.disk.epochs import LeaderEpochs
from tiered.local.disk.files import Files, FileState
from tiered.local.partition.state import SPARSE_NAME
from tiered.local.segment.indexes import SegmentIndexes, load_growing
from tiered.local.segment.reading import Extent, View
from tiered.local.segment.scan import LogFile
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.model import TopicPartition

REINDEX_BYTES = 4 * 1024 * 1024
"""The index of the growing segment is read again after this much growth; an old one only costs a longer scan."""


class GrowingSegment:
    """The last segment, as far as it is known: whole batches up to ``size_bytes``, records up to ``end_offset``."""

    def __init__(self, files: Files, directory: Path, base_offset: int) -> None:
        self.path = directory / log_name(base_offset)
        self.base_offset = base_offset
        self._files = files
        self._forget()

    def _forget(self) -> None:
        self.end_offset = self.base_offset
        self.size_bytes = 0
        self.max_timestamp = -1
        self._indexed_bytes = -REINDEX_BYTES
        self._indexes = SegmentIndexes.empty(self.base_offset)

    @property
    def lookup(self) -> SegmentIndexes:
        """Both indexes, in memory."""
        return self._indexes

    def grow(self) -> None:
        """Walks what was added since the last call."""
        with LogFile(self._files, self.path) as log:
            size = log.size()
            if size < self.size_bytes:  # its owner cut a torn tail
                self._forget()
            if size - self._indexed_bytes >= REINDEX_BYTES:
                self._indexes, self._indexed_bytes = load_growing(self._files, log, self.base_offset, size), size
                if self.size_bytes == 0:
                    self._jump()
            try:
                for span, view in log.batches(self.size_bytes, size):
                    header = log.header(view, span.position)
                    if span.base_offset < self.end_offset:
                        return
                    self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
                    self.end_offset, self.size_bytes = span.last_offset + 1, span.position + span.size
            except CorruptionError:
                return

    def _jump(self) -> None:
        """Starts at the last indexed batch instead of the first: all before it is whole."""
        position = self._indexes.last_position
        if position:
            self.size_bytes = position
            self.max_timestamp = self._indexes.last_time[0]


class ForeignPartition:
    """Implements the reading half of a partition over files that change under it. Thread-safe."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        tp: TopicPartition,
        topic_id: UUID,
        *,
        interval_bytes: int,
        dense: bool,
        log_start: int,
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.log_start = log_start
        self.epochs = LeaderEpochs(directory, files, read_only=True)
        self._files = files
        self.directory = directory
        self._interval = interval_bytes
        self._dense = dense
        self._lock = threading.Lock()
        self._seen: FileState | None = None
        self._sealed: tuple[SealedLocalSegment, ...] = ()
        self._tail: GrowingSegment | None = None

    @property
    def sealed(self) -> tuple[SealedLocalSegment, ...]:
        """All segments but the last, as of now."""
        with self._lock:
            self._refresh()
            return self._sealed

    def view(self) -> View:
        """What a read that begins now may see."""
        with self._lock:
            self._refresh()
            sealed, tail = self._sealed, self._tail
            extents = [Extent(s.base_offset, s.end_offset, s.size_bytes, None, s) for s in sealed]
            if tail is None:
                return View(self.tp, self.log_start, self.log_start, (), self._dense)
            extents.append(Extent(tail.base_offset, tail.end_offset, tail.size_bytes, tail.max_timestamp, tail))
            start = max(extents[0].base_offset, self.log_start)
            return View(self.tp, start, max(tail.end_offset, start), tuple(extents), self._dense)

    def _refresh(self) -> None:
        for _ in range(3):  # a roll or a deletion may fall between the listing and the reading
            try:
                state = self._files.state(self.directory)
                if state != self._seen:
                    self._list()
                    self._seen = state
                if self._tail is not None:
                    self._tail.grow()
                return
            except NotFoundError:
                self._seen = None
        raise NotFoundError(
            f"{self.directory} changes faster than it can be read, or is gone",
            hint="if its writer crashed while it exchanged segments, the next open for writing finishes that",
        )

    def _list(self) -> None:
        parsed = [parse_local_name(name) for name in self._files.names(self.directory)]
        if any(file and file.suffix == LOG_SUFFIX and file.work == SWAP_SUFFIX for file in parsed):
            raise NotFoundError(f"{self.directory}: segments are being exchanged, some of them have no name now")
        bases = sorted(file.base for file in parsed if file and file.suffix == LOG_SUFFIX and not file.work)
        self._dense = self._dense and self._files.state(self.directory / SPARSE_NAME) is None
        known = {segment.base_offset: segment for segment in self._sealed}
        self.epochs.reload()
        self._sealed = tuple(
            known[base] if base in known and self._is_same(known[base], end) else self._open(base, end)
            for base, end in itertools.pairwise(bases)
        )
        if not bases:
            self._tail = None
        elif self._tail is None or self._tail.base_offset != bases[-1]:
            self._tail = GrowingSegment(self._files, self.directory, bases[-1])

    def _is_same(self, known: SealedLocalSegment, end_offset: int) -> bool:
        """A cleaner replaces a segment by another one of the same base."""
        state = self._files.state(known.path)
        return known.end_offset == end_offset and state is not None and state.size == known.size_bytes

    def _open(self, base: int, end: int) -> SealedLocalSegment:
        state = self._files.state(self.directory / log_name(base))
        if state is None:
            raise NotFoundError(f"{self.directory / log_name(base)} is gone")
        return SealedLocalSegment(
            self._files,
            self.directory,
            self.tp,
            self.topic_id,
            base_offset=base,
            end_offset=end,
            size_bytes=state.size,
            appended_ms=state.modified_ns // 1_000_000,
            interval_bytes=self._interval,
            epochs=self.epochs.below,
            read_only=True,
        )
