"""State that all partitions of a log directory share, and state that the parts of one partition share.

::

    PartitionContext   state: open, offline, fenced, shorter than in its bucket, being changed; the leader epoch
      LogSegments   the list of segments, the log start and the end
      Appender      batches into the active segment           Durability    fsyncs, and the end of the durable records
      Maintenance   rolls, retention, truncation, replacement         PartitionProducers    sequences and transactions
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tiered.clock import Clock, IdSource
from tiered.config import LogConfig
from tiered.errors import (
    ClosedError,
    ConfigError,
    DiskFullError,
    FencedError,
    LocalIOError,
    ReentrantCallError,
    TieredError,
)
from tiered.format.kernels import PlainLock
from tiered.format.locks import Signal
from tiered.local.disk.claims import Claims
from tiered.local.disk.files import Files
from tiered.local.disk.partition_files import LeaderEpochs
from tiered.local.disk.uploader_files import PartitionUpload, UploadCheckpoint
from tiered.local.partition.log_segments import LogSegments
from tiered.local.segment.sealed import DeletedFiles
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")

APPEND = "an append"
ROLL = "a roll to a new segment"
CUT = "a truncation of the log"
EXCHANGE = "a replacement of segments"
"""Values of :attr:`PartitionContext.under_way`."""


@dataclass(frozen=True, slots=True)
class DirectoryContext:
    """Services and callbacks of one log directory, shared by its partitions.

    ``sealed``: called, without locks, after a seal became durable and after a truncation. ``cut``: called before a
    truncation with the partition, the new end and the lowest end that a crash may leave. ``failed``: called with the
    error that took a partition offline, possibly under its locks. ``claims``, ``uploads``: files of the uploader.
    ``reserve``: check of the free disk space before appends.
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


class PartitionContext:
    """State of a partition that is open for writing. All of it changes under ``lock``, one attribute at a time.

    ``lock`` is never held across an fsync of records.

    ``upload`` is the uploader's last report, None while the log is not tiered. ``ending``: close has begun. Changes of
    the log are refused, and flushes still work. ``files_inconsistent``: a truncation or replacement failed
    midway, so the files differ from the list of segments. ``offline``: the error of the write or fsync that failed,
    otherwise None.

    ``under_way`` names the change that is being made, None between changes. It is set before the first effect and
    cleared after the last one. If ``lock`` is free and ``under_way`` is set, an exception ended that change midway,
    and the next call undoes an append with ``mend``, back to ``resume_at``, the end of the log before it. After another
    change it takes the partition offline.

    ``watchers`` are the signals of reads that follow this partition.

    ``epoch`` is the leader epoch of the next record. ``unassigned``: a truncation removed the entry of that epoch, and
    the next append adds it again. ``begun``: the log has records, or had some since the open or since all of its
    segments were removed.
    """

    def __init__(
        self, around: DirectoryContext, segments: LogSegments, epochs: LeaderEpochs, upload: PartitionUpload | None
    ) -> None:
        self.around = around
        self.files = around.files
        self.clock = around.clock
        self.tp: TopicPartition = segments.tp
        self.lock = PlainLock()
        self.segments = segments
        self.deleted = DeletedFiles(around.files, around.clock, self.lock)
        self.upload = upload
        self.offline: TieredError | None = None
        self.files_inconsistent = False
        self.ending = False
        self.closed = False
        self.under_way: str | None = None
        self.resume_at = 0
        self.mend: Callable[[int], None] = lambda _: None
        self.begun = not segments.empty
        self.watchers: tuple[Signal, ...] = ()
        if epochs.latest < 0:
            epochs.assign(0, segments.end)
        self.epochs = epochs
        self.epoch = epochs.latest
        self.unassigned = False

    def watch(self, signal: Signal) -> None:
        """Set ``signal`` after each append from now on, and when the partition is closed."""
        with self.lock:
            self.watchers = (*self.watchers, signal)

    def unwatch(self, signal: Signal) -> None:
        """Remove ``signal``, which :meth:`watch` added."""
        with self.lock:
            self.watchers = tuple(each for each in self.watchers if each is not signal)

    def notify(self) -> None:
        """Set the signals of all reads that follow this partition."""
        for signal in self.watchers:
            signal.set()

    @property
    def at_work(self) -> bool:
        """Return True while the partition is neither closed nor offline."""
        return self.offline is None and not self.closed

    @property
    def fenced(self) -> bool:
        """Return True if appends are refused, because a claim of another volume owns the partition."""
        return self.upload is not None and self.upload.fenced

    def check_open(self) -> None:
        """Raise ClosedError if the partition was closed. Otherwise call :meth:`mend_interrupted`."""
        if self.closed:
            raise ClosedError(f"{self.tp} is closed, and the call had no effect", hint="open the log again")
        self.mend_interrupted()

    def mend_interrupted(self) -> None:
        """Undo an append that an exception ended midway. After another such change go offline.

        The caller holds the lock. If this method raises, ``under_way`` stays set, and the next call tries again.
        """
        if self.under_way is None or self.offline is not None:
            return
        if self.under_way != APPEND:
            why = f"{self.tp}: {self.under_way} was interrupted"
            self.go_offline_inconsistent(LocalIOError(why, hint="close the log and open it again"))
            return
        try:
            self.mend(self.resume_at)
        except ReentrantCallError:
            raise
        except TieredError as error:
            self.go_offline_inconsistent(error)
            return
        self.under_way = None
        LOGGER.warning("append_cut_back partition=%s offset=%d", self.tp, self.resume_at)

    def check_readable(self) -> None:
        """Raise ClosedError after a close, or LocalIOError if the files differ from the list of segments."""
        self.check_open()
        if self.files_inconsistent and self.offline is not None:
            raise self.offline_error(self.offline)

    def check_writable(self, *, fenced_too: bool = True) -> None:
        """Raise ClosedError, LocalIOError (offline) or FencedError if the log must not change.

        ``fenced_too`` False: allow the change on a fenced partition, and while the partition closes. The caller holds
        the lock.
        """
        if self.closed or (self.ending and fenced_too):
            raise ClosedError(f"{self.tp} is closed, and the call had no effect", hint="open the log again")
        if self.under_way is not None:
            self.mend_interrupted()
        if self.offline is not None:
            raise self.offline_error(self.offline)
        if fenced_too and self.upload is not None and self.upload.fenced:
            raise FencedError(
                f"{self.tp}: another log directory owns this partition now, so appends are refused; nothing "
                "here is deleted",
                hint=f"`tiered repair rejoin {self.tp.topic}:{self.tp.partition}` sets this disk's files aside and "
                "continues at the bucket's end",
            )

    def check_continues(self, end: int) -> None:
        """Raise FencedError if ``end``, the end of the log on this disk, is below the bucket's end.

        The bucket has other records at the next offsets. The log was truncated, or it lost its tail. Appends are
        refused until ``tiered repair rejoin``.
        """
        if self.upload is not None and end < self.upload.end_offset:
            raise FencedError(
                f"{self.tp} ends at offset {end} on this disk, but at {self.upload.end_offset} in the bucket: "
                "appends would reuse offsets",
                hint=f"`tiered repair rejoin {self.tp.topic}:{self.tp.partition}` sets this disk's files aside and "
                "continues at the bucket's end",
            )

    def go_offline(self, error: TieredError) -> None:
        """Take the partition offline after an error of its disk. Report the first such error to the directory."""
        if self.offline is None:
            self.offline = error
            LOGGER.error("partition_offline partition=%s error=%s", self.tp, error)
            self.around.failed(error)

    def go_offline_inconsistent(self, error: TieredError) -> None:
        """Take the partition offline after a truncation or replacement that failed midway. Reads are refused, too."""
        self.files_inconsistent = True
        self.go_offline(error)

    def offline_error(self, error: TieredError) -> LocalIOError:
        """Return the error for calls on this partition, which ``error`` took offline."""
        return LocalIOError(
            f"{self.tp} is offline: {error.message}",
            hint="close the log, repair the disk if it failed, and open the log again; records that were not flushed "
            "may be lost",
        )

    def _assign(self, epoch: int, end: int) -> None:
        """Add the entry of a leader epoch. After an error restore the file, or go offline if that is impossible."""
        known = self.epochs.entries
        try:
            self.epochs.assign(epoch, end)
        except TieredError as error:
            try:
                self.epochs.restore(known)
            except TieredError:
                self.go_offline(error)
            raise
        self.epoch = epoch
        self.unassigned = False

    def assign_epoch(self, end: int) -> None:
        """Add the entry of the current leader epoch at ``end``, the end of the log. A truncation had removed it."""
        self._assign(self.epoch, end)

    def start_leader_epoch(self, epoch: int, end: int) -> None:
        """Use the leader epoch ``epoch`` from offset ``end`` on.

        Raises ConfigError unless ``epoch`` is higher than all earlier epochs.
        """
        latest = max(self.epochs.latest, self.epoch)
        if epoch <= latest:
            raise ConfigError(
                f"{self.tp}: leader epoch {epoch} cannot be used, because the log has epoch {latest} already",
                hint=f"pass a leader epoch above {latest}",
            )
        self._assign(epoch, end)


class DiskReserve:
    """Disk space that a log directory reserves. Appends are refused while less is free.

    ``left``: bytes that may be appended before the next check of the file system.
    """

    def __init__(self, files: Files, directory: Path, config: LogConfig) -> None:
        self._files = files
        self._directory = directory
        self._config = config
        self._reserve = 0
        self.left = 0

    def account(self, size_bytes: int) -> None:
        """Subtract the bytes of an append from ``left``. Below 0, check the file system and reset ``left``.

        Raises DiskFullError while less than the reserve is free.
        """
        self.left -= size_bytes
        if self.left < 0:
            self.refill()

    def refill(self) -> None:
        """Check the file system and reset ``left``. Raises DiskFullError while less than the reserve is free."""
        if not self.check():
            raise DiskFullError(
                f"{self._directory}: appends are refused, because less than the reserve of {self._reserve} bytes is "
                "free",
                hint="free some space: `tiered disk drop TOPIC --remote URL` deletes local copies",
            )

    def check(self) -> bool:
        """Check the file system and reset ``left``. Return True if more than the reserve is free.

        Return True, too, for a file system that does not report its free space.
        """
        space = self._files.space(self._directory)  # two checks at once: either result is right
        if space is None:  # ramfs, some of FUSE: a full one fails the write itself
            self.left = self._config.disk_check_bytes
            return True
        self._reserve = self._config.reserve_bytes(space.total)
        room = space.free - self._reserve
        self.left = min(self._config.disk_check_bytes, room) if room > 0 else -1
        return room > 0
