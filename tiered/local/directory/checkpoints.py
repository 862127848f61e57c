"""Offset checkpoints and small files that a directory's writer stores, from the state of its partitions."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tiered.errors import TieredError
from tiered.format.kernels import PlainLock
from tiered.local.disk.directory_files import (
    CLEANER_NAME,
    LOG_START_NAME,
    RECOVERY_POINT_NAME,
    REPLICATION_NAME,
    OffsetsFile,
)
from tiered.local.disk.files import Files
from tiered.local.disk.uploader_files import PositionsFile, UploadCheckpoint
from tiered.local.partition.open_partitions import Roster
from tiered.local.recovery.recovery import LOST_POINT, UNKNOWN_POINT
from tiered.local.transactions.group_positions import GroupPositions
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")


class StoredCheckpoints(NamedTuple):
    """Recovery points and log starts by partition, as the checkpoint files had them when the directory was opened.

    ``points_lost``: True if the file of the recovery points is damaged or missing.
    """

    points: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int]
    points_lost: bool = False

    def point(self, tp: TopicPartition) -> int:
        """Return the recovery point of a partition.

        Return UNKNOWN_POINT if the file has no entry, LOST_POINT if the file is damaged or missing.
        """
        return self.points.get(tp, LOST_POINT if self.points_lost else UNKNOWN_POINT)


class DirectoryCheckpoints:
    """Reader and writer of the offset checkpoint files of one directory, from the state of its partitions.

    Thread-safe: after concurrent writes a file has the newest state.
    """

    def __init__(self, directory: Path, files: Files, roster: Roster) -> None:
        self.points = OffsetsFile(directory, RECOVERY_POINT_NAME, files)
        self.starts = OffsetsFile(directory, LOG_START_NAME, files)
        self.watermarks = OffsetsFile(directory, REPLICATION_NAME, files)
        self.directory = directory
        self.files = files
        self._roster = roster
        self._lock = PlainLock()
        self._is_brokers = False
        self._coming: dict[TopicPartition, int] = {}
        self._starts_written: dict[TopicPartition, int] | None = None
        self._seal_batches = 0
        self._seal_noted = False

    def read(self) -> StoredCheckpoints:
        """Return the recovery points and log starts that the last process wrote.

        Missing files are created empty, as Kafka does at its first start.
        """
        gone = self.files.state(self.points.path) is None
        for name in (RECOVERY_POINT_NAME, LOG_START_NAME, REPLICATION_NAME, CLEANER_NAME):
            if self.files.state(self.directory / name) is None:
                self.files.close(self.files.open_write(self.directory / name))
        points = self.points.read()
        return StoredCheckpoints(points, self.starts.read(), gone or self.points.damaged)

    def write_points(self) -> int:
        """Write the recovery point of each partition to the checkpoint file. Return the number of partitions.

        Every record below a recovery point is durable.
        """
        with self._lock:
            points = self._roster.recovery_points()
            self.points.write(points)
            return len(points)

    def write_points_after_seal(self) -> None:
        """Write the recovery points after a seal, so that the next open need not read sealed segments.

        Inside :meth:`deferring_points` the write waits for the end of that block. A failed write is only logged: an old
        checkpoint costs a longer recovery.
        """
        with self._lock:
            if self._seal_batches:
                self._seal_noted = True
                return
        try:
            self.write_points()
        except TieredError as error:
            LOGGER.warning("checkpoint_failed path=%s error=%s", self.directory, error)

    @contextlib.contextmanager
    def deferring_points(self) -> Iterator[None]:
        """Write the recovery points once at the end of the block, not after each seal in it."""
        with self._lock:
            self._seal_batches += 1
        try:
            yield
        finally:
            with self._lock:
                self._seal_batches -= 1
                due = self._seal_noted and not self._seal_batches
                self._seal_noted = self._seal_noted and not due
            if due:
                self.write_points_after_seal()

    def lower(self, tp: TopicPartition, point: int, start: int) -> None:
        """Lower the stored recovery point to ``point`` and log start to ``start``, before the log is truncated.

        A missing or lower entry is not changed. Without this, a crash would make the truncation look like a loss of
        records, and records appended later look deleted.
        """
        with self._lock:
            for file, offset in ((self.points, point), (self.starts, start)):
                known = file.read()
                if known.get(tp, offset) > offset:
                    file.write({**known, tp: offset})
                    self._starts_written = None

    def expect(self, tp: TopicPartition, start: int) -> None:
        """Store the log start of a partition that is about to be moved into this directory, and write the file."""
        with self._lock:
            self._coming[tp] = start
        self.write_starts()

    def arrived(self, tp: TopicPartition) -> None:
        """Drop the log start that :meth:`expect` stored. From now on the open partition's own log start is written."""
        with self._lock:
            self._coming.pop(tp, None)

    def write_starts(self) -> int:
        """Write the log starts of tiered partitions, and of others that start inside their first segment.

        Return the number of log starts in the file. An unchanged file is not written again.
        """
        with self._lock:
            starts = {**self._coming, **self._roster.log_starts()}
            if starts != self._starts_written:
                known = self.files.state(self.starts.path)
                if starts or (known is not None and known.size):
                    self.starts.write(starts)
                self._starts_written = starts
            return len(starts)

    def drop_watermarks(self) -> None:
        """Empty the file of high watermarks that a broker wrote: without replicas every record counts as replicated."""
        marks = self.watermarks.read()
        if marks:
            ends = self._roster.recovery_points()
            if any(mark < ends.get(tp, 0) for tp, mark in marks.items()):
                LOGGER.warning("watermarks_dropped path=%s records above them are readable from now on", self.directory)
            self.watermarks.write({})
            self._is_brokers = True

    def write_watermarks(self) -> None:
        """Write each partition's end as its high watermark, if a broker wrote the file. Call it when all is durable.

        A broker reads the file at its next start, and warns of one below the log start.
        """
        if self._is_brokers:
            self.watermarks.write(self._roster.recovery_points())


class PositionsWriter:
    """Writer of ``tiered-positions``: positions of consumer groups in the uploaded partitions of one directory.

    The uploader reads the file and copies the positions to the bucket. Thread-safe.
    """

    def __init__(self, directory: Path, files: Files, uploads: UploadCheckpoint) -> None:
        self._file = PositionsFile(directory, files)
        self._uploads = uploads
        self._lock = PlainLock()
        self._written: tuple[int, int] | None = None

    def write(self, positions: GroupPositions) -> None:
        """Write the file if a group has committed, or a partition was first uploaded, since the last write.

        If nothing has changed, no partition is opened. A partition whose positions were all deleted keeps an empty
        entry: the uploader then empties its object of positions in the bucket.
        """
        with self._lock:
            uploads = self._uploads.read()
            state = (positions.mark(), len(uploads))
            if state == self._written or not uploads or not positions.exists:
                return
            before = self._file.read()
            if before is None or self._written is not None or state[0]:  # otherwise the last close has written it
                found = {tp: at for tp, at in positions.by_partition(uploads).items() if at or tp in (before or ())}
                if found != before:
                    self._file.write(found)
            self._written = state
