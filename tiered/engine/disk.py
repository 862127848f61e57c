"""Log directory as the engine sees it: the protocol :class:`Disk` and two classes for it.

:class:`OpenDisk` is a log that this process writes. :class:`LogDirectory` is for an uploader beside another writer. It
writes only the uploader's own files. For other changes it takes ``.lock``.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import UUID

from tiered.clock import Clock, IdSource
from tiered.config import LogConfig
from tiered.engine.partition import SegmentRef
from tiered.engine.scanner import Look, Scanner, living
from tiered.errors import FencedError, LockedError, NotFoundError, TieredError, UnknownTopicError
from tiered.format.kernels import PlainLock
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import LogView, find_gone
from tiered.local.disk.claims import Claims
from tiered.local.disk.directory_files import refuse_standby
from tiered.local.disk.files import Files, FileState, PosixFiles, no_directory, sweep_temporaries
from tiered.local.disk.lock import DirectoryLock, LockTerms
from tiered.local.disk.partition_files import gone_error
from tiered.local.disk.topics import TOPICS_NAME, TopicInfo
from tiered.local.disk.uploader_files import (
    PAUSE_NAME,
    UPLOADER_FILES,
    PartitionUpload,
    PauseFile,
    SealRequest,
    uploader_lock,
)
from tiered.local.segment.sealed import SealedLocalSegment
from tiered.model import EpochEntry, TopicPartition
from tiered.plan.pacing import Pause


@dataclass(frozen=True, slots=True)
class LogExtent:
    """First offset and end of a local log. The end is a lower bound unless it was requested as exact.

    ``joints``: the only offsets at which a log without records can continue; None: at any.
    """

    local_start_offset: int
    end_offset: int
    joints: tuple[int, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Return True if the log has no record. This is exact even if the end is a lower bound."""
        return self.end_offset == self.local_start_offset


@dataclass(frozen=True, slots=True)
class Granted:
    """Granted claim whose root was read back. ``token``: the claim token on the volume's disk at that time.

    ``start_offset``, ``next_offset``: start and end (exclusive) of the root. ``resumes``: True if a log without records
    must still begin at ``next_offset``, under ``leader_epoch``. ``producers``: producer state at the root's end, as a
    ``.snapshot`` file; empty if there are none. ``warnings``: sentences for the operator.
    """

    token: str | None
    claim_epoch: int
    leader_epoch: int
    start_offset: int
    next_offset: int
    resumes: bool = False
    producers: bytes = field(default=b"", repr=False)
    warnings: tuple[str, ...] = ()


class Disk(Protocol):
    """Log directory, as the engine uses it. Thread-safe. The engine calls methods that read the disk on threads."""

    @property
    def path(self) -> Path:
        """Return the path of the directory."""

    @property
    def claims(self) -> Claims:
        """Return the claim proofs of the directory."""

    @property
    def volume_id(self) -> str:
        """Return the volume's id in claims."""

    def topics(self) -> Mapping[str, TopicInfo]:
        """Return the topics by name."""

    def topic_id(self, tp: TopicPartition) -> UUID:
        """Return Kafka's topic id of a partition."""

    def segment(self, tp: TopicPartition, ref: SegmentRef) -> SealedLocalSegment:
        """Return a sealed segment for reading. Raises NotFoundError if it is not on the disk."""

    def add_owner_hint(self, tp: TopicPartition, error: TieredError) -> None:
        """Replace the hint of ``error`` if the files belong to another program, such as a broker.

        ``error``: damage in ``tp``, a refused claim, or a topic that the bucket lost.
        """

    def leader_epochs(self, tp: TopicPartition) -> tuple[EpochEntry, ...]:
        """Return the leader epochs of a partition."""

    def extent(self, tp: TopicPartition, *, exact: bool) -> LogExtent:
        """Return start and end of the local log as they are now. ``exact`` False: the end may be a lower bound."""

    def uploads(self) -> Mapping[TopicPartition, PartitionUpload]:
        """Return the upload checkpoint: committed end and claim of each partition."""

    def start_log(self, tp: TopicPartition, granted: Granted) -> bool:
        """Prepare the log for appends under a granted claim. Return False if it is ready.

        Return True if a log without records must still be moved to the bucket's end (``Granted.resumes``).
        """


class OpenDisk:
    """Log directory that this process has open for writing, as a :class:`Disk`."""

    def __init__(self, local: LocalLog) -> None:
        self._local = local
        self.path = local.directory
        self.claims = local.claims
        self.volume_id = str(local.volume_id)

    def topics(self) -> Mapping[str, TopicInfo]:
        return self._local.topics()

    def topic_id(self, tp: TopicPartition) -> UUID:
        return self._local.partition(tp).topic_id

    def segment(self, tp: TopicPartition, ref: SegmentRef) -> SealedLocalSegment:
        for segment in self._local.partition(tp).sealed_segments(ref.base):
            if segment.base_offset == ref.base:
                return segment
        raise NotFoundError(
            f"{tp}: the sealed segment with base offset {ref.base} is missing in {self.path}",
            hint=f"a segment was removed: run `tiered check {tp.topic}`",
        )

    def add_owner_hint(self, tp: TopicPartition, error: TieredError) -> None:
        """Leave ``error`` unchanged: its hint is right for a log directory. Only a sidecar needs another hint."""

    def leader_epochs(self, tp: TopicPartition) -> tuple[EpochEntry, ...]:
        return tuple(self._local.partition(tp).leader_epochs())

    def extent(self, tp: TopicPartition, *, exact: bool) -> LogExtent:
        del exact
        positions = self._local.partition(tp).positions()
        return LogExtent(positions.local_start_offset, positions.end_offset)

    def uploads(self) -> Mapping[TopicPartition, PartitionUpload]:
        return self._local.uploads.read()

    def start_log(self, tp: TopicPartition, granted: Granted) -> bool:
        """Prepare the log for appends under a granted claim. Always return False: the log is ready."""
        log = self._local.partition(tp)
        if granted.resumes:
            log.start_at(granted.next_offset, granted.leader_epoch, granted.producers)
        else:
            self.lead(tp, granted.leader_epoch)  # also one that an interrupted claim was granted
        log.permit_first_append(granted.token, granted.claim_epoch)
        return False

    def lead(self, tp: TopicPartition, leader_epoch: int) -> None:
        """Write later records under ``leader_epoch``, if it is higher than the log's newest epoch."""
        log = self._local.partition(tp)
        epochs = log.leader_epochs()
        if not epochs or leader_epoch > epochs[-1].epoch:
            log.new_leader_epoch(leader_epoch)


class LogDirectory:
    """Log directory of an uploader that is not its writer, as a :class:`Disk`. Thread-safe.

    It holds ``tiered-uploader.lock`` between :meth:`acquire` and :meth:`release`.
    """

    def __init__(self, path: Path, *, clock: Clock, ids: IdSource, files: Files | None = None) -> None:
        self.path = path
        self.files: Files = files or PosixFiles()
        self.claims = Claims(path, self.files)
        self._clock = clock
        self._ids = ids
        self._scanner = Scanner(path, self.files, clock, segments=self.segments_of)
        self._lock: DirectoryLock = uploader_lock(path, self.files)
        self._checkpoint = self._scanner.checkpoint
        self._request = SealRequest(path, self.files)
        self._busy = threading.RLock()
        self._noting = PlainLock()
        self._pauses = PauseFile(path, self.files)
        self._seen: tuple[FileState | None, ...] = ()
        self._resuming: dict[TopicPartition, Granted] = {}  # empty logs that will begin where the bucket ends

    def acquire(self) -> None:
        """Take the uploader's lock. Raises LockedError if another uploader has it.

        Raises NotFoundError if the path is no log directory, ConfigError if it is a file or a standby's directory.
        """
        if not self.files.is_directory(self.path):
            raise no_directory(self.files, self.path, hint="check --log-dir, or start the application")
        refuse_standby(self.path, self.files)
        _ = self.volume_id  # refuses a directory that is no log before the lock's file is made in it
        try:
            self._lock.acquire(self._clock)
        except LockedError as error:
            error.hint = "`tiered-uploader sync` waits for the running uploader, `tiered status` shows its work"
            raise
        sweep_temporaries(self.files, self.path, of=UPLOADER_FILES)

    def uploader(self) -> str:
        """Return the holder of the uploader's lock in words, ``""`` if there is none or its process is gone."""
        return living(self._lock.holder())

    def note_http(self, address: str) -> None:
        """Store the address of this uploader's HTTP status in the lock file. ``""``: it has none."""
        self._lock.add_note(http=address)

    def note_trouble(self, trouble: str) -> None:
        """Store in the lock file why records do not reach the bucket. ``trouble``: a JSON text, ``""``: no problem."""
        self._lock.add_note(trouble=trouble)

    def check_place(self) -> None:
        """Raise LocalIOError if the directory was removed or replaced since it was acquired.

        Raise CorruptionError if a partition's directory is gone and had records that no bucket has.
        """
        self._lock.check()
        uploads = self._checkpoint.read()
        for tp, end in sorted(find_gone(self.path, self.files, uploads).items()):
            if tp not in uploads or uploads[tp].end_offset < end:
                raise gone_error(self.path, tp, end)

    def release(self) -> None:
        """Release the uploader's lock."""
        self._lock.release()

    @property
    def volume_id(self) -> str:
        return self._scanner.volume_id

    def scan(self, *, whole: bool = True) -> Look:
        """Scan the directory. Return the changes since the last scan.

        ``whole`` False: faster, but the growth of an active segment may be found up to a dozen scans later. Raises
        LocalIOError if the directory was removed or replaced.
        """
        with self._busy:
            self._lock.check()
            self._seen = self._news()
            return self._scanner.scan(whole=whole)

    def has_news(self) -> bool:
        """Return True if topics were created, changed, deleted, paused or resumed since the last scan.

        An application that creates a topic waits until its partitions are claimed: a scan should follow at once.
        """
        return self._news() != self._seen

    def _news(self) -> tuple[FileState | None, ...]:
        return tuple([self.files.state(self.path / name) for name in (TOPICS_NAME, PAUSE_NAME)])

    def pauses(self) -> Mapping[str, Pause]:
        """Return the paused topics. The key ``ALL_TOPICS`` pauses all."""
        return self._pauses.read()

    def pause(self, edit: Callable[[Mapping[str, Pause]], Mapping[str, Pause]]) -> None:
        """Replace the pauses by the result of ``edit``, which gets the current ones.

        Raises LockedError if another process is changing them for too long, and errors of ``edit``.
        """
        self._pauses.change(edit, self._clock)

    def unreadable(self) -> dict[TopicPartition, TieredError]:
        """Return the error of each partition that the last scan could not read. Nothing of these is uploaded."""
        return dict(self._scanner.broken)

    def segments_of(self, tp: TopicPartition, bases: Sequence[int]) -> Iterable[tuple[int, int]]:
        """Return (base, end) of each sealed segment. A segment ends at the next base.

        ``bases``: bases of all ``.log`` files, ascending; the last one is the active segment.
        """
        del tp
        return itertools.pairwise(bases)

    def topics(self) -> dict[str, TopicInfo]:
        with self._busy:
            return self._scanner.topics()

    def topic_id(self, tp: TopicPartition) -> UUID:
        return self._scanner.topic_id(tp)

    def segment(self, tp: TopicPartition, ref: SegmentRef) -> SealedLocalSegment:
        return self._scanner.segment(tp, ref)

    def add_owner_hint(self, tp: TopicPartition, error: TieredError) -> None:
        """Leave ``error`` unchanged: its hint is right for a log directory. Only a sidecar needs another hint."""

    def leader_epochs(self, tp: TopicPartition) -> tuple[EpochEntry, ...]:
        return self._scanner.leader_epochs(tp)

    def extent(self, tp: TopicPartition, *, exact: bool) -> LogExtent:
        """Return start and end of the local log, read from the disk now.

        ``exact``: read the active segment to find the end. Otherwise, and while another process writes the log, the end
        is a lower bound.
        """
        if exact and not self._scanner.writer():
            with LogView.open(self.path, clock=self._clock, files=self.files) as view:
                positions = view.partition(tp).positions()
            return LogExtent(positions.local_start_offset, positions.end_offset)
        return LogExtent(*self._scanner.extent(tp))

    def seal(self) -> bool:
        """Seal every active segment, and return False. Return True if another process must do it, and was asked to.

        Raises the first error after all partitions were tried. Fenced partitions are left out.
        """
        try:
            log = self._open()
        except LockedError:
            self._request.write()
            return True
        try:
            refused: TieredError | None = None
            broken = log.out_of_service  # reported by every scan
            with log.deferring_checkpoints():
                for tp in (tp for tp in log.partitions() if tp not in broken):
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

    def start_log(self, tp: TopicPartition, granted: Granted) -> bool:
        """Return True if this log has no records and must still begin at the end of the bucket (``granted.resumes``).

        It is recorded, and the next call of :meth:`resume` moves it there.
        """
        if granted.resumes:
            with self._noting:
                self._resuming[tp] = granted
        return granted.resumes

    def resume(self) -> bool:
        """Move the empty logs that :meth:`start_log` recorded to the bucket's end. Return True if that is done.

        Return False if another process writes the directory: it moves them itself. A log that got records meanwhile is
        left as it is. Raises the first error after all logs were tried; the next call tries again.
        """
        with self._noting:
            resuming = dict(self._resuming)
        try:
            log = self._open()
        except LockedError:
            self._resumed(resuming)
            return False
        refused: TieredError | None = None
        try:
            for tp, granted in resuming.items():
                try:
                    partition = log.partition(tp)
                    positions = partition.positions()
                    if positions.end_offset == positions.local_start_offset:
                        partition.start_at(granted.next_offset, granted.leader_epoch, granted.producers)
                except UnknownTopicError:
                    continue  # deleted meanwhile
                except TieredError as error:
                    refused = refused or error
        finally:
            log.close()
        if refused is not None:
            raise refused
        self._resumed(resuming)
        return True

    def _resumed(self, done: Mapping[TopicPartition, Granted]) -> None:
        with self._noting:
            self._resuming = {tp: each for tp, each in self._resuming.items() if done.get(tp) is not each}

    def note(self, uploads: Mapping[TopicPartition, PartitionUpload]) -> int:
        """Store the committed ends of ``uploads`` in the upload checkpoint, durably. The writer reads it.

        Return the number of partitions in the checkpoint. Each call writes the whole file.
        """
        with self._noting:
            self._lock.check()
            self._checkpoint.update(uploads)
            return len(self._checkpoint.read())

    def uploads(self) -> Mapping[TopicPartition, PartitionUpload]:
        return self._checkpoint.read()

    def disk(self) -> tuple[int, int] | None:
        """Return (free bytes, used percentage) of the file system, None if it reports no size."""
        return self._scanner.free_space()

    def _open(self) -> LocalLog:
        self._lock.check()
        config = LogConfig(remote=True)
        return LocalLog.open(
            self.path, clock=self._clock, ids=self._ids, files=self.files, config=config, terms=LockTerms(passing=True)
        )
