"""What the partitions of one log directory share, and what the components of one partition share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tiered.clock import Clock, IdSource
from tiered.config import LogConfig
from tiered.errors import TieredError
from tiered.local.disk.claims import Claims
from tiered.local.disk.files import Files
from tiered.local.disk.plain_lock import PlainLock
from tiered.local.disk.space import DiskReserve
from tiered.local.disk.uploads import UploadCheckpoint
from tiered.local.partition.condition import Condition
from tiered.local.partition.leadership import Leadership
from tiered.local.partition.log_segments import LogSegments
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Surroundings:
    """``sealed`` is called, without locks, when a seal became durable.

    ``cut`` is called before a log is cut: at which offset it will end, and the lowest end that a crash may leave.
    ``failed`` is told what took a partition offline, possibly under its locks. ``claims`` and ``uploads``: what the
    directory's files say of claims and of committed ends, as of now.
    """

    files: Files
    clock: Clock
    ids: IdSource
    config: LogConfig
    reserve: DiskReserve
    sealed: Callable[[], None]
    cut: Callable[[TopicPartition, int, int], None]
    failed: Callable[[TieredError], None]
    claims: Claims
    uploads: UploadCheckpoint


class Trash:
    """Files on their way out of one partition: renamed ``.deleted``, unlinked after ``file.delete.delay.ms``.

    Reads that began before go on in a renamed file. ``lock`` is the partition's: held by whoever puts files in.
    """

    __slots__ = ("_clock", "_files", "_lock", "_waiting", "delay_ms")

    def __init__(self, files: Files, clock: Clock, lock: PlainLock) -> None:
        self.delay_ms = 0
        self._files = files
        self._clock = clock
        self._lock = lock
        self._waiting: list[tuple[int, Path]] = []

    def throw_away(self, segments: Iterable[SealedLocalSegment]) -> None:
        """Renames their files. The lock is held."""
        for segment in segments:
            self.put(segment.rename_away())

    def put(self, paths: Sequence[Path]) -> None:
        """Files that have their new names already. The lock is held."""
        due_ms = self._clock.now_ms() + self.delay_ms
        self._waiting += [(due_ms, path) for path in paths]

    @property
    def size_bytes(self) -> int:
        """Bytes of the files that wait."""
        with self._lock:
            waiting = [path for _, path in self._waiting]
        states = (self._files.state(path) for path in waiting)
        return sum(state.size for state in states if state is not None)

    def empty(self, now_ms: int) -> int | None:
        """Unlinks what is due; returns its bytes, None without any.

        What cannot be unlinked is tried again; the error is raised after all were tried.
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


@dataclass(frozen=True, slots=True)
class Shared:
    """What every component of a partition that is open for writing may use; all of it is changed under ``lock``.

    ``lock`` is never held across an fsync of records. Which other components one needs it is handed beside this.
    """

    around: Surroundings
    lock: PlainLock
    condition: Condition
    segments: LogSegments
    leadership: Leadership
    trash: Trash
