"""Bucket side of an open log: it claims partitions, and uploads them up to given offsets.

::

    adopt:  topics/{topic} registered or adopted -> a partition without records, or that this volume never claimed, is
            claimed now: a fresh directory must begin where the bucket ended, before its first append; of two fresh
            directories the first must be fenced before the second acknowledges offset 0
    sync:   (uploader lock) claim -> upload sealed segments, a few together -> commit -> read the root back
            -> tiered-offset-checkpoint -> only now may local bytes go

A sync is a run of the daemon's engine (``sync_run``). Only the holder of ``tiered-uploader.lock`` commits. The claim on
the disk shows whether another process of this volume has claimed since. Each directory of a log is a volume of its own,
with its claims and its uploader. An offline directory does not delay the others.
Calls in one directory never work on the same partition at once (:class:`Turns`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import shlex
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypeVar

from tiered.clock import Clock, IdSource
from tiered.engine.disk import OpenDisk
from tiered.engine.journal import Journal
from tiered.engine.steps import BucketSteps
from tiered.engine.sync_run import ALONE, SyncRun
from tiered.errors import (
    CommitUnknownError,
    DataLocalError,
    FencedError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.kernels import PlainLock
from tiered.format.locks import SafeEvent, has_ended, reentrant_call
from tiered.format.positions import Positions, are_equal, within
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.disk.claims import ClaimProof
from tiered.local.disk.files import sweep_temporaries
from tiered.local.disk.topics import TopicInfo
from tiered.local.disk.uploader_files import (
    UPLOADER_FILES,
    PartitionUpload,
    PauseFile,
    PositionsFile,
    uploader_lock,
)
from tiered.local.partition.write_log import WriteLog
from tiered.model import TopicPartition
from tiered.plan.ownership import is_own_claim
from tiered.plan.root_lower_bounds import RootLowerBounds
from tiered.remote.committer import owner_of
from tiered.remote.roots import REGISTRATION_REQUESTS
from tiered.remote.topics import TopicEntry, load_topic
from tiered.store.base import Get, Steps, Store
from tiered.store.driver import Runner
from tiered.store.layers import LayeredStore
from tiered.store.limit import Slots
from tiered.store.retry import Retries
from tiered.store.unique_upload import PartSizes

ADOPT_TIMEOUT_S = 60.0
"""Limit in seconds for opening a fresh directory while another process's uploader claims its partitions."""
ADOPT_FIRST_POLL_S = 0.02
ADOPT_POLL_S = 0.2
NOTE_EVERY_S = 1.0
"""Interval in seconds of checkpoint writes during a sync: the file names every partition."""

_logger = logging.getLogger("tiered.engine")

T = TypeVar("T")


class Tiering:
    """Bucket side of one directory of an open log. Thread-safe. Concurrent runs never share a partition."""

    def __init__(
        self,
        local: LocalLog,
        store: Store,
        *,
        clock: Clock,
        ids: IdSource,
        reachable: bool = True,
        memory: Slots | None = None,
    ) -> None:
        """``reachable``: False if the store did not answer lately; requests while a log opens are then not retried.

        ``memory``: limit of the bytes in memory that uploads and commits share; None: not counted.
        """
        self.local = local
        self.memory = memory
        self.clock = clock
        self._runner = Runner(store, clock, ids, REGISTRATION_REQUESTS)
        self.store = store
        self.ids = ids
        self._reachable = reachable
        self._disk = OpenDisk(local)
        owner = owner_of("tiered")
        self.steps = BucketSteps(store.url, self._disk, self._open_journal, owner=owner, sizes=PartSizes())
        self.pauses = PauseFile(local.directory, local.files)
        self.positions = PositionsFile(local.directory, local.files)
        self.copied: dict[TopicPartition, Positions] = {}  # of earlier runs, each under its claim
        self._lock = uploader_lock(local.directory, local.files)
        self._journal: Journal | None = None
        self._turns = Turns()
        self._swept = False
        self._notes: dict[TopicPartition, PartitionUpload] = {}  # read back, not yet in the checkpoint
        self._noted_at = -math.inf
        self._noting = PlainLock()

    @staticmethod
    def check_reachable(store: Store, *, clock: Clock, ids: IdSource) -> bool:
        """Send one GET, without retries. Return False if the store does not answer. Raise errors that no wait cures."""
        try:
            Runner(_without_retries(store), clock, ids).run(_scan())
        except RemoteUnavailableError as error:
            text = "%s cannot be reached now: what was uploaded from here before goes on, a new log has to wait: %s"
            _logger.warning(text, store.url, error)
            return False
        return True

    def asked(self, steps: Steps[T]) -> T:
        """Run a steps function while a log opens, and return its value.

        Requests are not retried if the store did not answer lately.
        """
        runner = self._runner
        if not self._reachable:
            runner = dataclasses.replace(runner, store=_without_retries(self.store))
        answer = runner.run(steps)
        self._reachable = True
        return answer

    def drive(self, steps: Steps[T]) -> T:
        """Run a steps function on the calling thread and return its value."""
        return self._runner.run(steps)

    def register(self, name: str, partitions: int) -> None:
        """Create the topic in the bucket with ``partitions`` partitions: first their roots, then the registry entry."""
        self.asked(self.steps.register(name, partitions))

    # ------------------------------------------------------------------ adoption

    def adopt(self, info: TopicInfo, deadline: float | None = None) -> None:
        """Register the topic, and claim its partitions that are empty or were never claimed by this volume.

        If an uploader runs in another process, wait for its claims until ``deadline`` (monotonic; default: one minute
        from now). Raises ConfigError if the bucket has another topic of that name, FencedError if this volume may not
        write. If the store does not answer, or ``deadline`` passes, raises RemoteUnavailableError if a partition must
        be claimed, and otherwise logs a warning.
        """
        deadline = self.clock.monotonic() + ADOPT_TIMEOUT_S if deadline is None else deadline
        broken = self.local.out_of_service
        tps = [tp for p in info.here if (tp := TopicPartition(info.name, p)) not in broken]
        unclaimed = [tp for tp in tps if self._proof(tp).token is None or _is_empty(self.local.partition(tp))]
        try:
            entry = self.asked(self.steps.register(info.name))
            if entry.partitions > info.partitions:
                _logger.warning(
                    "topic %s has %d partitions in %s and %d in %s: `tiered topic set %s --partitions %d` with both "
                    "adds the others here",
                    *(info.name, entry.partitions, self.store.url, info.partitions, self.local.directory),
                    *(info.name, entry.partitions),
                )
            self._adopt_partitions(unclaimed, deadline)
            for tp in tps:
                if tp not in unclaimed and self._proof(tp).restored_from is not None:
                    self._catch_up(tp)
                if self._has_claimed(tp):
                    self.local.transactions.abort_orphans(tp)
        except RemoteUnavailableError as error:
            if unclaimed:
                raise RemoteUnavailableError(
                    f"topic {info.name} was never uploaded from {self.local.directory}, and without"
                    f" {self.store.url} it is not known at which offset it goes on: {error.message}",
                    hint=error.hint or "try again when the store answers",
                ) from error
            _logger.warning("topic %s is not checked against %s now: %s", info.name, self.store.url, error)

    def claim(self, tps: Sequence[TopicPartition]) -> None:
        """Claim partitions, so that this directory may write them. Raises FencedError if it may not.

        Raises RemoteUnavailableError if the store, or the uploader of another process, takes too long.
        """
        self._adopt_partitions(tps, self.clock.monotonic() + ADOPT_TIMEOUT_S)

    def _adopt_partitions(self, tps: Sequence[TopicPartition], deadline: float) -> None:
        """Claim the partitions. If another process's uploader has the lock, wait until it has claimed them.

        Raises RemoteUnavailableError if it has not done so at ``deadline`` (monotonic), FencedError if this volume may
        not write.
        """
        poll_s = ADOPT_FIRST_POLL_S
        waiting = list(tps)
        while waiting:
            if self._run(dict.fromkeys(waiting, 0), None, claims=True):
                return
            waiting = [tp for tp in waiting if not self.drive(self.steps.adopt_grant(tp))]
            if waiting and self.clock.monotonic() >= deadline:
                raise RemoteUnavailableError(
                    f"{waiting[0]} was not claimed within {ADOPT_TIMEOUT_S:.0f} s by the uploader of "
                    f"{self.local.directory}",
                    hint=f"`tiered status --log-dir {self.local.directory}` says what the uploader waits for",
                )
            if waiting:
                self.clock.sleep(poll_s)
                poll_s = min(2 * poll_s, ADOPT_POLL_S)

    def _catch_up(self, tp: TopicPartition) -> None:
        """Write later records under the leader epoch of a daemon's claim, made while no process wrote this volume."""
        root = self.drive(self.drive(self.steps.catalog(tp)).load())
        if root is not None and is_own_claim(root, self.steps.proof(tp)):
            self._disk.lead(tp, root.leader_epoch)

    # ------------------------------------------------------------------ sync

    def sync(self, ends: Mapping[TopicPartition, int], timeout_s: float | None) -> dict[TopicPartition, int]:
        """Upload and commit the sealed segments of each partition up to its offset in ``ends``.

        Return ``{}``, or ``ends`` if the uploader of another process must do it. Raises DataLocalError after
        ``timeout_s`` (None: no limit) or for paused uploads, and RemoteUnavailableError, RemotePermissionError or
        CommitUnknownError. Errors of one partition (FencedError, OffsetGapError, CorruptionError, LogDestroyedError)
        are raised after the others were synced.
        """
        deadline = None if timeout_s is None else self.clock.monotonic() + timeout_s
        return {} if self._run(ends, deadline) else dict(ends)

    def _run(self, ends: Mapping[TopicPartition, int], deadline: float | None, *, claims: bool = False) -> bool:
        """Run the engine once under the uploader's lock. Return False if another process has the lock.

        Raises DataLocalError if another run of this process with one of the partitions outlasts the deadline.
        """
        turn = self._turns.acquire(ends, deadline if deadline is None else deadline - self.clock.monotonic())
        if turn is None:  # another run of this process: waited for, instead of mistaken for a process
            raise DataLocalError(
                f"the sync of {self.local.directory} timed out while another sync was still running",
                hint="call sync() again; the data is safe on this disk meanwhile",
            )
        try:
            with self._turns.changed:
                if not self._lock.is_held:
                    if not self._lock.try_acquire(self.clock):
                        return False
                    self._recover()
            try:
                self._drain(ends, deadline, claims=claims)
            finally:
                self.write_notes()  # every earlier commit is in the checkpoint, on errors too
        finally:
            with self._turns.changed:
                if self._turns.end(turn):
                    self._lock.release()
        return True

    def _drain(self, ends: Mapping[TopicPartition, int], deadline: float | None, *, claims: bool) -> None:
        positions = {} if claims else self.positions.read() or {}
        behind = {tp: end for tp, end in ends.items() if claims or not self._is_committed(tp, end, positions.get(tp))}
        if not behind:
            return
        errors = SyncRun(self, deadline).drain(behind, claims=claims)
        for tp, error in errors.items():
            if isinstance(error, FencedError) and not claims:
                errors[tp] = self._note_fenced(tp, error)
            elif isinstance(error, FencedError):
                rejoin = f"tiered repair rejoin {tp.topic}:{tp.partition}"
                directory, remote = shlex.quote(str(self.local.directory)), shlex.quote(self.store.url)
                error.hint = error.hint.replace(rejoin, f"{rejoin} --log-dir {directory} --remote {remote}")
        refused = sorted(errors.values(), key=lambda error: isinstance(error, ALONE))
        if refused:
            raise _root_cause(refused[0])

    def _is_committed(self, tp: TopicPartition, end: int, groups: Positions | None) -> bool:
        """Return True if the bucket has the records up to ``end`` (exclusive), and these positions of groups.

        Raises LogDestroyedError if the bucket lost the topic, ConfigError if it has another topic of this name.
        """
        at = self.local.partition(tp).positions()
        if at.uploaded_offset < end and at.end_offset > at.local_start_offset:
            return False
        copied = self.copied.get(tp)
        if groups is not None and (copied is None or not are_equal(within(groups, 0, at.uploaded_offset), copied)):
            return False
        if self._has_claimed(tp):  # the checkpoint speaks of a bucket: is it this one?
            with contextlib.suppress(RemoteUnavailableError):
                self.asked(self.steps.register(tp.topic))
        return True

    def _recover(self) -> None:
        """Remove temporary files of a crash, and reread a changed journal. Call it only with the uploader's lock."""
        if not self._swept:
            sweep_temporaries(self.local.files, self.local.directory, of=UPLOADER_FILES)
            self._swept = True
        if self._journal is not None:
            self._journal.refresh()

    def _open_journal(self) -> Journal:
        """Return the journal. Open it on first use, with the uploader's lock held."""
        with self._noting:
            if self._journal is None:
                self._journal = Journal(self.local.directory, self.local.files)
            return self._journal

    def close(self) -> None:
        """Close the journal. Unfinished uploads in it are deleted after the next claim."""
        with self._noting:
            journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    # ------------------------------------------------------------------ what the bucket holds

    def note(self, tp: TopicPartition, upload: PartitionUpload) -> bool:
        """Record the state of a root that was read back, for :meth:`write_notes`. Return True if a write is due.

        A fence is not recorded: the end of the run stores it.
        """
        if upload.fenced:
            return False
        with self._noting:
            self._notes[tp] = upload
        return self.clock.monotonic() - self._noted_at >= NOTE_EVERY_S

    def write_notes(self) -> None:
        """Write the upload checkpoint. Only then permit the deletion of local records below its ends."""
        with self._noting:
            notes = dict(self._notes)
            if not notes:
                return
            self.local.uploads.update(notes)
            self._notes.clear()
            self._noted_at = self.clock.monotonic()
        for tp, upload in notes.items():
            log = self.local.partition(tp)
            log.set_uploaded(upload.end_offset, upload.claim_epoch, upload.fenced, upload.start_offset)

    def _note_fenced(self, tp: TopicPartition, error: FencedError) -> FencedError:
        """Store that a newer claim owns the partition: every process of this directory then refuses appends.

        Return the error to raise. It names the acknowledged records that the bucket lacks.
        """
        self.write_notes()
        log = self.local.partition(tp)
        positions = log.positions()
        before = self.local.uploads.read().get(tp, PartitionUpload(positions.uploaded_offset))
        self.local.uploads.update({tp: dataclasses.replace(before, fenced=True)})
        log.set_uploaded(before.end_offset, before.claim_epoch, True, before.start_offset)
        first = max(before.end_offset, positions.local_start_offset)
        if first >= positions.end_offset:
            return error
        return FencedError(
            f"{error.message}; offsets {first}..{positions.end_offset} of {tp}, acknowledged by this log, are only on "
            f"the disk of {self.local.directory}",
            hint=f"`tiered repair rejoin {tp.topic}:{tp.partition}` sets them aside and continues at the bucket's end",
        )

    def known(self, tp: TopicPartition) -> RootLowerBounds:
        """Return the lower bounds of the partition's root, by which a reader detects a lost or older root. No I/O."""
        return RootLowerBounds(
            made=tp.topic in self.steps.registered, next_offset=self.local.partition(tp).positions().uploaded_offset
        )

    def _proof(self, tp: TopicPartition) -> ClaimProof:
        return self.local.claims.proof(tp)

    def _has_claimed(self, tp: TopicPartition) -> bool:
        """Return True if this volume has claimed the partition, or was restored from the bucket."""
        proof = self._proof(tp)
        return proof.token is not None or proof.restored_from is not None


class SpreadTiering:
    """Bucket side of an open log with one or several directories. Thread-safe."""

    def __init__(
        self,
        local: LocalTier,
        store: Store,
        *,
        clock: Clock,
        ids: IdSource,
        reachable: bool,
        memory: Slots | None = None,
    ) -> None:
        self._local = local
        self._clock = clock
        self._parts = {
            path: Tiering(log, store, clock=clock, ids=ids, reachable=reachable, memory=memory)
            for path, log in local.logs().items()
        }

    def asked(self, steps: Steps[T]) -> T:
        """Run a steps function while a log opens, and return its value.

        Requests are not retried if the store did not answer lately. Raises what the steps raise.
        """
        return next(iter(self._parts.values())).asked(steps)

    def find_topic(self, name: str) -> TopicEntry | None:
        """Return the topic's registry entry in the bucket, None without one. Raises RemoteUnavailableError."""
        return self.asked(load_topic(name))

    def register(self, name: str, partitions: int) -> None:
        """Create the topic in the bucket with ``partitions`` partitions: first their roots, then the registry entry.

        The topic must exist in a directory of this log.
        """
        holders = (part for part in self._parts.values() if name in part.local.topics())
        next(holders).register(name, partitions)

    def adopt(self, info: TopicInfo) -> None:
        """Register the topic, and claim its partitions that are empty or were never claimed by this log's volumes.

        Directories out of service are skipped. Raises FencedError if a volume may not write, ConfigError if the bucket
        has another topic of that name. Raises RemoteUnavailableError if a partition must be claimed, and the store
        does not answer or another process's uploader does not claim it within a minute.
        """
        deadline = self._clock.monotonic() + ADOPT_TIMEOUT_S
        for path, part in self._parts.items():
            held = None if path in self._local.offline else part.local.topics().get(info.name)
            if held is not None:
                part.adopt(held, deadline)

    def known(self, tp: TopicPartition) -> RootLowerBounds:
        """Return the lower bounds of the partition's root, by which a reader detects a lost or older root. No I/O."""
        return self._parts[self._local.directory_of(tp)].known(tp)

    def sync(self, ends: Mapping[TopicPartition, int], timeout_s: float | None) -> dict[TopicPartition, int]:
        """Upload and commit the sealed segments of each partition up to its offset in ``ends``.

        Return those of ``ends`` that uploaders of other processes must reach. Raises the first error after all
        directories were synced: DataLocalError after ``timeout_s`` (None: no limit) or for paused uploads, FencedError,
        OffsetGapError, CorruptionError, LogDestroyedError, or one of the store.
        """
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        by_path: dict[Path, dict[TopicPartition, int]] = {}
        for tp, end in ends.items():
            by_path.setdefault(self._local.directory_of(tp), {})[tp] = end
        left: dict[TopicPartition, int] = {}
        first: TieredError | None = None
        for path, part in by_path.items():
            try:
                left_s = None if deadline is None else max(deadline - self._clock.monotonic(), 0.0)
                left |= self._parts[path].sync(part, left_s)
            except TieredError as error:
                first = first or error
        if first is not None:
            raise first
        return left

    def close(self) -> None:
        """Close the bucket side of each directory."""
        for part in self._parts.values():
            part.close()


def _root_cause(error: TieredError) -> TieredError:
    """Return the cause of a CommitUnknownError if no retry cures the cause, otherwise ``error``."""
    cause = error.__cause__
    return (
        cause
        if isinstance(error, CommitUnknownError) and isinstance(cause, TieredError) and not cause.retriable
        else error
    )


def _without_retries(store: Store) -> Store:
    """Return the store without its layer of retries."""
    return store.inner if isinstance(store, LayeredStore) and isinstance(store.layer, Retries) else store


def _scan() -> Steps[None]:
    yield Get("topics/.look", 0, 1)


def _is_empty(log: WriteLog) -> bool:
    positions = log.positions()
    return positions.end_offset == positions.local_start_offset


POLL_SECONDS = 0.05
"""Interval between checks of other runs, because a run that an interrupt ended wakes no waiter."""


@dataclass(eq=False, slots=True)
class Turn:
    """Running engine call of this process. ``partitions``: those that it uploads or claims.

    ``thread``: id of its thread. ``frame``: frame of the function that registered it.
    Once the frame has ended, the call no longer counts as running.
    """

    partitions: frozenset[TopicPartition]
    thread: int
    frame: FrameType | None


class Turns:
    """Running engine calls of this process: two calls never share a partition. Thread-safe.

    ``changed``: lock of the list; it is never held across a request.
    """

    def __init__(self) -> None:
        # Reentrant: a signal handler may come in between. Unlike a condition's, no exception leaves it locked.
        self.changed = threading.RLock()
        self._ended = SafeEvent()
        self._turns: list[Turn] = []

    def acquire(self, partitions: Collection[TopicPartition], seconds: float | None) -> Turn | None:
        """Wait until no other call has one of ``partitions``, then register and return a call.

        Return None if the wait takes longer than ``seconds`` (None: no limit). A call that an interrupt ended does not
        block others. Raises ReentrantCallError if this thread is inside a call with one of ``partitions``.
        """
        turn = Turn(frozenset(partitions), threading.get_ident(), sys._getframe(1))
        while True:
            self._ended.clear()  # before the look: a run that ends after it ends the wait
            with self.changed:
                others = [other for other in self._at_work() if other.partitions & turn.partitions]
                if not others:
                    self._turns.append(turn)
            if not others:
                return turn
            if any(other.thread == turn.thread for other in others):
                raise reentrant_call()
            if seconds is not None and seconds <= 0:
                return None
            self._ended.wait(POLL_SECONDS if seconds is None else min(seconds, POLL_SECONDS))
            seconds = None if seconds is None else seconds - POLL_SECONDS

    def end(self, turn: Turn) -> bool:
        """Remove a call. Return True if no call is left."""
        with self.changed:
            self._turns = [other for other in self._at_work() if other is not turn]
            turn.frame = None  # a frame that refers to itself stays until the next collection
            self._ended.set()
            is_last = not self._turns
        return is_last  # noqa: RET504 - read under the lock

    def _at_work(self) -> list[Turn]:
        return [turn for turn in self._turns if not has_ended(turn.frame)]
