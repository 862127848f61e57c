"""A local log meets its bucket: topics are registered, partitions adopted, sealed segments uploaded inline.

::

    adopt:  topics/{topic} registered or adopted -> a partition without records, or that this volume never claimed, is
            claimed now: a fresh directory must begin where the bucket ended, before its first append, and of two fresh
            ones the first must be fenced before the second acknowledges offset 0, too
    sync:   (uploader lock) claim -> upload sealed segments, a few together -> commit -> read the root back
            -> tiered-offset-checkpoint -> only now may local bytes go

The daemon does the same through ``uploader``; both drive the same steps of ``remote``. Whoever holds
``tiered-uploader.lock`` commits; the claim on disk tells whether another process of this volume has claimed since.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from tiered.clock import Clock, IdSource
from tiered.errors import (
    CommitUnknown,
    FencedError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.root import Root
from tiered.local.disk.claims import ClaimProof
from tiered.local.disk.files import sweep_temporaries
from tiered.local.disk.uploads import UPLOADER_FILES, PartitionUpload, uploader_lock
from tiered.model import TopicPartition
from tiered.plan.known import Known
from tiered.plan.lifecycle import held_ids, is_own_claim
from tiered.plan.tiering.orders import Note
from tiered.remote.fence import owner_of
from tiered.remote.topics import TopicEntry, load_topic
from tiered.store.base import Get, Steps, Store
from tiered.tiering.disk import OpenDisk
from tiered.tiering.journal import Journal
from tiered.tiering.run import ALONE, Driver, Run
from tiered.tiering.steps import BucketSteps, Granted, PartSizes

if TYPE_CHECKING:
    from tiered.local.directory.manager import LocalLog
    from tiered.local.disk.topics import TopicInfo
    from tiered.local.partition.partition import PartitionLog

ADOPT_TIMEOUT_S = 60.0
"""How long opening a fresh directory waits for the uploader of another process to claim its partitions."""
ADOPT_FIRST_POLL_S = 0.02
ADOPT_POLL_S = 0.2
ADOPT_TOGETHER = 16
"""Partitions of one topic that are claimed at once when it is adopted."""
NOTE_EVERY_S = 1.0
"""The checkpoint names every partition: while a sync goes on it is written this often, and at its end."""

_logger = logging.getLogger("tiered.tiering")

T = TypeVar("T")


class Tiering:
    """The bucket side of one open log. Thread-safe: one sync at a time."""

    def __init__(self, local: LocalLog, store: Store, *, clock: Clock, ids: IdSource, reachable: bool = True) -> None:
        self._local = local
        self._store = store
        self._reachable = reachable
        self._clock = clock
        self._drive = Driver(store, clock, ids)
        self._checkpoint = local.uploads
        self._claims = local.claims
        self._journal: Journal | None = None
        owner = owner_of(socket.gethostname(), os.getpid(), "tiered")
        self._steps = BucketSteps(store.url, OpenDisk(local), self._open_journal, owner=owner, sizes=PartSizes())
        self._busy = threading.RLock()
        self._swept = False
        self._notes: dict[TopicPartition, PartitionUpload] = {}  # read back, not yet in the checkpoint
        self._noted_at = -math.inf
        self._noting = threading.Lock()

    @staticmethod
    def check_reachable(store: Store, *, clock: Clock, ids: IdSource) -> bool:
        """One GET, tried once: raises what no waiting mends (no such bucket, no permission); False if unreachable."""
        try:
            Driver(store, clock, ids).once()(_look())
        except RemoteUnavailableError as error:
            text = "%s cannot be reached now: what was uploaded from here before goes on, a new log has to wait: %s"
            _logger.warning(text, store.url, error)
            return False
        return True

    def _asked(self) -> Driver:
        """For questions of an opening log: with the store's retries, but for one that did not answer just now."""
        return self._drive if self._reachable else self._drive.once()

    def find_topic(self, name: str) -> TopicEntry | None:
        """The bucket's entry of a topic, None if it has none. Raises RemoteUnavailableError: unknown is not "none"."""
        return self._asked()(load_topic(name))

    def adopt(self, info: TopicInfo) -> None:
        """Registers the topic and claims the partitions that this volume never claimed before.

        Raises ConfigError (another topic of that name is in the bucket), FencedError, RemoteUnavailableError where a
        partition without records cannot know its first offset; a log that was claimed before only warns.
        """
        broken = self._local.out_of_service
        tps = [tp for p in info.here if (tp := TopicPartition(info.name, p)) not in broken]
        unclaimed = [tp for tp in tps if self._proof(tp).token is None or _is_empty(self._local.partition(tp))]
        try:
            self._register(info.name)
            self._adopt_partitions(unclaimed)
            for tp in tps:
                if tp not in unclaimed and self._proof(tp).restored_from is not None:
                    self._catch_up(tp)
                if self._has_claimed(tp):
                    self._local.transactions.abort_orphans(tp)
        except RemoteUnavailableError as error:
            if unclaimed:
                raise RemoteUnavailableError(
                    f"topic {info.name} was never uploaded from {self._local.directory}, and without {self._store.url}"
                    f" nobody knows at which offset it goes on: {error.message}",
                    hint=error.hint or "try again when the store answers",
                ) from error
            _logger.warning("topic %s is not checked against %s now: %s", info.name, self._store.url, error)

    def _register(self, topic: str) -> None:
        before = self._steps.registered.get(topic)
        if before is None or before.partitions < self._local.topics()[topic].partitions:
            self._asked()(self._steps.register(topic))
            self._reachable = True

    def _adopt_partitions(self, tps: Sequence[TopicPartition]) -> None:
        """Claims them, or waits until the uploader of another process, which alone may, has claimed for this volume."""
        deadline = self._clock.monotonic() + ADOPT_TIMEOUT_S
        poll_s = ADOPT_FIRST_POLL_S
        waiting = list(tps)
        while waiting:
            with self._busy, self._noted():
                lock = uploader_lock(self._local.directory, self._local.files)
                if lock.try_acquire(self._clock):
                    try:
                        self._take_over()
                        self._drive(self._steps.probe())
                        self._each(waiting, self._claim)
                    finally:
                        lock.release()
                    return
            granted = self._each(waiting, self._take_grant)
            waiting = [tp for tp, done in zip(waiting, granted, strict=True) if not done]
            if waiting and self._clock.monotonic() >= deadline:
                raise RemoteUnavailableError(
                    f"{waiting[0]}: the uploader of {self._local.directory} has not claimed it within "
                    f"{ADOPT_TIMEOUT_S:.0f} s",
                    hint="tiered-uploader status says what it waits for",
                )
            if waiting:
                self._clock.sleep(poll_s)
                poll_s = min(2 * poll_s, ADOPT_POLL_S)

    def _each(self, tps: Sequence[TopicPartition], what: Callable[[TopicPartition], T]) -> list[T]:
        """``what`` of each, some at once; the first error only after all have ended."""
        if len(tps) == 1:
            return [what(tps[0])]
        with ThreadPoolExecutor(min(ADOPT_TOGETHER, len(tps)), thread_name_prefix="tiered-adopt") as pool:
            futures = [pool.submit(what, tp) for tp in tps]
        return [future.result() for future in futures]

    def _take_grant(self, tp: TopicPartition) -> bool:
        """Whether the claim that the root carries was made for this volume as it is now; begins where it says, then.

        The volume's own proof tells: it is on the disk before the PUT. The root's word alone may be of a claim from
        before this directory became a fresh volume (``repair rejoin``).
        """
        log = self._local.partition(tp)
        if not self._proof(tp).token:
            return False
        root = self._load(tp)
        proof = self._steps.proof(tp)
        if root is None or not is_own_claim(root, proof) or held_ids(proof.token)[-1] != root.writer.token:
            return False  # a newer claim of this volume may be under way: its leader epoch is the one to write under
        if proof.empty and root.next_offset:
            producers = self._drive(self._steps.producers(tp, root))
            log.start_at(root.next_offset, root.leader_epoch, producers)
        elif root.leader_epoch > _leader_epoch(log):
            log.new_leader_epoch(root.leader_epoch)
        log.begin_under(proof.token or None, root.writer.epoch)
        return True

    def _catch_up(self, tp: TopicPartition) -> None:
        """A daemon that claimed a restored volume while nobody wrote it left the new leader epoch to the writer."""
        log = self._local.partition(tp)
        root = self._load(tp)
        ours = root is not None and is_own_claim(root, self._steps.proof(tp))
        if root is not None and ours and root.leader_epoch > _leader_epoch(log):
            log.new_leader_epoch(root.leader_epoch)

    def held_elsewhere(self) -> bool:
        """Whether another process is this directory's uploader."""
        with self._busy:  # a sync of this process holds the lock too: wait for it instead of mistaking it
            lock = uploader_lock(self._local.directory, self._local.files)
            if lock.try_acquire(self._clock):
                lock.release()
                return False
            return True

    def ours(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """What this process is to upload: all of it, or nothing beside another process's uploader."""
        return {} if self.held_elsewhere() else dict(ends)

    @contextlib.contextmanager
    def _uploader_lock(self) -> Iterator[None]:
        lock = uploader_lock(self._local.directory, self._local.files)
        lock.acquire(self._clock)
        try:
            self._take_over()
            yield
        finally:
            lock.release()

    def _take_over(self) -> None:
        """With the uploader's lock, which alone may: what a crash or another process has left of its files."""
        if not self._swept:
            sweep_temporaries(self._local.files, self._local.directory, of=UPLOADER_FILES)
            self._swept = True
        if self._journal is not None:
            self._journal.refresh()

    def _open_journal(self) -> Journal:
        """As it is since the lock was taken; opened when something is first written down or looked for."""
        with self._noting:
            if self._journal is None:
                self._journal = Journal(self._local.directory, self._local.files)
            return self._journal

    def close(self) -> None:
        """Closes the journal; what it names is swept by whoever claims next."""
        with self._noting:
            journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    def sync(self, ends: Mapping[TopicPartition, int], timeout_s: float | None) -> None:
        """Uploads and commits the sealed segments of each partition up to its offset in ``ends``.

        Raises DataLocalError after ``timeout_s``, LockedError if an uploader has started meanwhile, FencedError,
        RemoteUnavailableError, RemotePermissionError, CommitUnknown; what was committed before stays committed. What
        is wrong with one partition alone (FencedError, OffsetGapError, CorruptionError, LogDestroyedError) is raised
        after the others were synced.
        """
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        with self._busy, self._uploader_lock(), self._noted():
            behind = {tp: end for tp, end in ends.items() if not self._is_committed(tp, end)}
            if behind:
                self._run(behind, deadline)

    def _is_committed(self, tp: TopicPartition, end: int) -> bool:
        log = self._local.partition(tp)
        if log.positions().uploaded_offset < end and not _is_empty(log):
            return False
        if self._has_claimed(tp):  # the checkpoint speaks of a bucket: is it this one?
            with contextlib.suppress(RemoteUnavailableError):
                self._register(tp.topic)
        return True

    def _run(self, ends: Mapping[TopicPartition, int], deadline: float | None) -> None:
        run = Run(
            self._local,
            self._steps,
            driver=self._drive,
            register=self._register,
            claim=self._take,
            note=self._note,
            warn=lambda text: _logger.warning("%s", text),
        )
        run.drain(ends, deadline)
        alone: TieredError | None = None
        others: TieredError | None = None
        for tp in ends:
            error = run.errors.get(tp)
            if isinstance(error, FencedError):
                error = self._note_fenced(tp, error)
            if isinstance(error, ALONE):
                alone = alone or error
            else:
                others = others or error
        refused = others or alone
        if refused is not None:
            raise _told(refused)

    def _note(self, note: Note) -> None:
        """After a root that was read back, never before: this permits local deletion, once it is written."""
        root = self._steps.root(note.tp)
        if note.fenced or root is None:
            return
        with self._noting:
            self._notes[note.tp] = PartitionUpload(note.end_offset, note.claim_epoch, False, root.start_offset)
        self._note_if_due()

    def _note_if_due(self) -> None:
        if self._clock.monotonic() - self._noted_at >= NOTE_EVERY_S:
            self._write_notes()

    def _write_notes(self) -> None:
        """The checkpoint first: a disk must never lack what the checkpoint does not say to be in the bucket."""
        with self._noting:
            notes = dict(self._notes)
            if not notes:
                return
            self._checkpoint.update(notes)
            self._notes.clear()
            self._noted_at = self._clock.monotonic()
        for tp, upload in notes.items():
            log = self._local.partition(tp)
            log.set_uploaded(upload.end_offset, upload.claim_epoch, upload.fenced, upload.start_offset)

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        """Whatever ends it, what was committed until then is in the checkpoint."""
        try:
            yield
        finally:
            self._write_notes()

    def _note_fenced(self, tp: TopicPartition, error: FencedError) -> FencedError:
        """A newer claim owns the partition: appends are refused from now on, by every process of this directory.

        Returns the error that names what this log has acknowledged and the bucket does not hold.
        """
        self._write_notes()
        log = self._local.partition(tp)
        positions = log.positions()
        before = self._checkpoint.read().get(tp, PartitionUpload(positions.uploaded_offset))
        self._checkpoint.update({tp: dataclasses.replace(before, fenced=True)})
        log.set_uploaded(before.end_offset, before.claim_epoch, True, before.start_offset)
        first = max(before.end_offset, positions.local_start_offset)
        if first >= positions.end_offset:
            return error
        return FencedError(
            f"{error.message}; offsets {first}..{positions.end_offset} of {tp}, acknowledged by this log, are only on "
            f"the disk of {self._local.directory}",
            hint="`tiered repair rejoin` sets them aside and lets this log start again at the bucket's end",
        )

    def _load(self, tp: TopicPartition) -> Root | None:
        """The newest root, None if the partition has none yet."""
        catalog = self._drive(self._steps.catalog(tp))
        return self._drive(catalog.load())

    def known(self, tp: TopicPartition) -> Known:
        """What a reader of this log holds the root of a partition against. No I/O."""
        return Known(
            made=tp.topic in self._steps.registered, next_offset=self._local.partition(tp).positions().uploaded_offset
        )

    def _claim(self, tp: TopicPartition) -> None:
        """An adoption's: beside the drain's rules there is nothing to decide."""
        granted = self._take(tp)
        self._note(Note(tp, granted.next_offset, granted.claim_epoch, fenced=False))
        try:
            self._drive(self._steps.settle(tp, granted.claim_epoch, granted.next_offset))
        except TieredError as error:  # the journal keeps its entries for the next claim
            _logger.warning("%s: what the last run left is still in the bucket: %s", tp, error)

    def _take(self, tp: TopicPartition) -> Granted:
        """Claims the partition, and begins or goes on under the claim, as who writes the log has to."""
        log = self._local.partition(tp)
        granted = self._drive(self._steps.claim(tp))
        if granted.resume is not None:
            log.start_at(granted.resume.next_offset, granted.resume.leader_epoch, granted.resume.producers)
        elif granted.leader_epoch > _leader_epoch(log):  # also one that an interrupted claim was granted
            log.new_leader_epoch(granted.leader_epoch)
        log.begin_under(self._proof(tp).token, granted.claim_epoch)
        for text in granted.warnings:
            _logger.warning("%s", text)
        return granted

    def _proof(self, tp: TopicPartition) -> ClaimProof:
        return self._claims.of(tp)

    def _has_claimed(self, tp: TopicPartition) -> bool:
        """Whether a root of this partition was seen from this volume: a claim, or a restore."""
        proof = self._proof(tp)
        return proof.token is not None or proof.restored_from is not None


def _told(error: TieredError) -> TieredError:
    """A commit that was refused is in doubt, but what refused it says what helps; the next sync claims again."""
    cause = error.__cause__
    return (
        cause if isinstance(error, CommitUnknown) and isinstance(cause, TieredError) and not cause.retriable else error
    )


def _look() -> Steps[None]:
    yield Get("topics/.look", 0, 1)


def _is_empty(log: PartitionLog) -> bool:
    positions = log.positions()
    return positions.end_offset == positions.local_start_offset


def _leader_epoch(log: PartitionLog) -> int:
    epochs = log.leader_epochs()
    return epochs[-1].epoch if epochs else -1
