"""The log directory as the uploader may touch it: reading always, writing only with ``.lock`` or to its own files."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from tiered.clock import Clock, IdSource
from tiered.config import LogConfig
from tiered.errors import FencedError, LockedError, NotFoundError, TieredError
from tiered.local.directory.manager import LocalLog
from tiered.local.disk.files import Files, PosixFiles
from tiered.local.disk.lock import DirectoryLock
from tiered.local.disk.topics import TopicInfo
from tiered.local.disk.uploads import PartitionUpload, SealRequest, UploadCheckpoint, uploader_lock
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.model import EpochEntry, TopicPartition
from uploader.discover import Scanner, living
from uploader.events import Event, SegmentRef


@dataclass(frozen=True, slots=True)
class Extent:
    """First and end offset of a local log."""

    local_start_offset: int
    end_offset: int


class LogDirectory:
    """One log directory, held by ``tiered-uploader.lock`` between ``acquire`` and ``release``. Thread-safe."""

    def __init__(self, path: Path, *, clock: Clock, ids: IdSource, files: Files | None = None) -> None:
        self.path = path
        self.files: Files = files or PosixFiles()
        self._clock = clock
        self._ids = ids
        self._scanner = Scanner(path, self.files, clock)
        self._lock: DirectoryLock = uploader_lock(path, self.files)
        self._checkpoint = UploadCheckpoint(path, self.files)
        self._request = SealRequest(path, self.files)
        self._busy = threading.RLock()
        self._noting = threading.Lock()

    def acquire(self) -> None:
        """Becomes the one uploader. Raises NotFoundError (no log there), LockedError (it names the holder)."""
        if not self.files.is_directory(self.path):
            raise NotFoundError(
                f"there is no log directory {self.path}", hint="check --log-dir, or start the application"
            )
        try:
            self._lock.acquire(self._clock)
        except LockedError as error:
            error.hint = "one is enough: `tiered-uploader sync` waits for it, `tiered-uploader status` shows its work"
            raise

    def uploader(self) -> str:
        """Who uploads from here, as far as the lock's note tells; empty if nobody."""
        return living(self._lock.holder())

    def release(self) -> None:
        """Lets another uploader in."""
        self._lock.release()

    @property
    def volume_id(self) -> str:
        """Which volume this is, in claims."""
        return self._scanner.volume_id

    def scan(self) -> list[Event]:
        """What changed since the last scan."""
        with self._busy:
            return self._scanner.scan()

    def topics(self) -> dict[str, TopicInfo]:
        """Topics by name."""
        with self._busy:
            return self._scanner.topics()

    def topic_id(self, tp: TopicPartition) -> UUID:
        """Kafka's topic id of a partition."""
        return self._scanner.topic_id(tp)

    def segment(self, tp: TopicPartition, ref: SegmentRef) -> SealedLocalSegment:
        """A sealed segment, to be read."""
        return self._scanner.segment(tp, ref)

    def leader_epochs(self, tp: TopicPartition) -> tuple[EpochEntry, ...]:
        """Leader epochs of a partition."""
        return self._scanner.leader_epochs(tp)

    def extent(self, tp: TopicPartition, *, exact: bool) -> Extent:
        """Where the local log begins and ends. ``exact`` reads the active segment, if nobody is writing to it."""
        if exact and not self._scanner.writer():
            log = LocalLog.open(self.path, clock=self._clock, ids=self._ids, files=self.files, read_only=True)
            try:
                positions = log.partition(tp).positions()
            finally:
                log.close()
            return Extent(positions.local_start_offset, positions.end_offset)
        seen = self._scanner.seen(tp)
        return Extent(seen.local_start_offset, seen.end_offset)

    def seal(self) -> bool:
        """Rolls every active segment; True if the writer was asked to, False if it was done here."""
        try:
            log = self._open()
        except LockedError:
            self._request.write(self._ids.uid())
            return True
        try:
            refused: TieredError | None = None
            for tp in log.partitions():
                try:
                    log.partition(tp).roll()
                except FencedError:
                    continue  # its end is not asked for either; the state says that it is fenced
                except TieredError as error:
                    refused = refused or error  # one partition that cannot be sealed keeps no other on this disk
            log.tick()
            if refused is not None:
                raise refused
        finally:
            log.close()
        return False

    def start_at(self, tp: TopicPartition, offset: int, leader_epoch: int) -> bool:
        """An empty log resumes at ``offset``; False if a writer has the directory: it does so itself."""
        try:
            log = self._open()
        except LockedError:
            return False
        try:
            partition = log.partition(tp)
            positions = partition.positions()
            if positions.end_offset == positions.local_start_offset:
                partition.start_at(offset, leader_epoch)
        finally:
            log.close()
        return True

    def note(self, uploads: dict[TopicPartition, PartitionUpload]) -> None:
        """Writes committed ends to the checkpoint that the writer reads, durably; one thread at a time."""
        with self._noting:
            self._checkpoint.update(uploads)

    def uploads(self) -> dict[TopicPartition, PartitionUpload]:
        """What the checkpoint notes of each partition."""
        return self._checkpoint.read()

    def disk(self) -> tuple[int, int]:
        """Free bytes, and how many percent are used."""
        return self._scanner.free_space()

    def _open(self) -> LocalLog:
        config = LogConfig(remote=True)
        return LocalLog.open(self.path, clock=self._clock, ids=self._ids, files=self.files, config=config)
