"""The offset checkpoints of a directory as its roster has them now."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tiered.errors import TieredError
from tiered.local.disk.checkpoints import (
    CLEANER_NAME,
    LOG_START_NAME,
    RECOVERY_POINT_NAME,
    REPLICATION_NAME,
    OffsetsFile,
)
from tiered.local.disk.files import Files
from tiered.local.disk.plain_lock import PlainLock
from tiered.local.partition.roster import Roster
from tiered.local.recovery.recovery import LOST_POINT, UNKNOWN_POINT
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")


class Noted(NamedTuple):
    """Recovery points and log starts as the checkpoints had them at the open.

    ``points_lost``: the recovery points were noted once, and the file is gone or damaged.
    """

    points: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int]
    points_lost: bool = False

    def point(self, tp: TopicPartition) -> int:
        """The recovery point of a partition, LOST_POINT or UNKNOWN_POINT."""
        return self.points.get(tp, LOST_POINT if self.points_lost else UNKNOWN_POINT)


class DirectoryNotes:
    """Thread-safe: what is written last is what was true last."""

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

    def read(self) -> Noted:
        """What the last process noted. Where there is no file yet an empty one is left, as by Kafka's first start."""
        gone = self.files.state(self.points.path) is None
        for name in (RECOVERY_POINT_NAME, LOG_START_NAME, REPLICATION_NAME, CLEANER_NAME):
            if self.files.state(self.directory / name) is None:
                self.files.close(self.files.open_write(self.directory / name))
        points = self.points.read()
        return Noted(points, self.starts.read(), gone or self.points.damaged)

    def write_points(self) -> int:
        """Recovery points: below which every record is durable. Returns how many there are."""
        with self._lock:
            points = self._roster.recovery_points()
            self.points.write(points)
            return len(points)

    def lower_point(self, tp: TopicPartition, offset: int) -> None:
        """A partition is about to be cut there: a crash on the way must not look as if what is gone had been lost."""
        with self._lock:
            points = self.points.read()
            if points.get(tp, offset) > offset:
                self.points.write({**points, tp: offset})

    def lower_start(self, tp: TopicPartition, offset: int) -> None:
        """A partition is about to be cut there: what is appended then must not look as if it had been deleted."""
        with self._lock:
            starts = self.starts.read()
            if starts.get(tp, offset) > offset:
                self.starts.write({**starts, tp: offset})
                self._starts_written = None

    def expect(self, tp: TopicPartition, start: int) -> None:
        """A partition is about to get its name here: its log start is noted before there is anything to start."""
        with self._lock:
            self._coming[tp] = start
        self.write_starts()

    def arrived(self, tp: TopicPartition) -> None:
        """The roster has it now."""
        with self._lock:
            self._coming.pop(tp, None)

    def write_starts(self) -> int:
        """Log starts, where the segments do not tell them; only if one has moved. Returns how many there are."""
        with self._lock:
            starts = {**self._coming, **self._roster.log_starts()}
            if starts != self._starts_written:
                known = self.files.state(self.starts.path)
                if starts or (known is not None and known.size):
                    self.starts.write(starts)
                self._starts_written = starts
            return len(starts)

    def take_watermarks(self) -> None:
        """Forget the high watermarks of a broker: a log without replicas ends at its end."""
        if self.watermarks.read():
            self.watermarks.write({})
            self._is_brokers = True

    def give_watermarks(self) -> None:
        """Write the ends into the high watermarks of a broker's directory, for its next start."""
        if self._is_brokers:
            self.watermarks.write(self._roster.ends())


class SealNotes:
    """Recovery points that follow a seal, so that the next open need not read what is sealed. Thread-safe.

    An append that succeeded does not fail because of them: an old checkpoint costs a longer scan.
    """

    def __init__(self, directory: Path, write: Callable[[], None]) -> None:
        self._directory = directory
        self._write = write
        self._lock = PlainLock()
        self._batches = 0
        self._due = False

    def note(self) -> None:
        """A segment was sealed."""
        with self._lock:
            if self._batches:
                self._due = True
                return
        try:
            self._write()
        except TieredError as error:
            LOGGER.warning("checkpoint_failed path=%s error=%s", self._directory, error)

    @contextlib.contextmanager
    def many(self) -> Iterator[None]:
        """Many partitions are sealed in turn: one write at the end instead of one, of all partitions, for each."""
        with self._lock:
            self._batches += 1
        try:
            yield
        finally:
            with self._lock:
                self._batches -= 1
                due = self._due and not self._batches
                self._due = self._due and not due
            if due:
                self.note()
