"""The engine for ``log.sync()``: the bucket side of an open log. It adopts partitions and drains them to given offsets.

::

    adopt:  topics/{topic} registered or adopted -> a partition without records, or that this volume never claimed, is
            claimed now: a fresh directory must begin where the bucket ended, before its first append, and of two fresh
            ones the first must be fenced before the second acknowledges offset 0, too
    sync:   (uploader lock) claim -> upload sealed segments, a few together -> commit -> read the root back
            -> tiered-offset-checkpoint -> only now may local bytes go

The engine is the daemon's, fed from an open log. Failures are not retried here: the caller decides about a wait. Only
the holder of ``tiered-uploader.lock`` commits. The claim on the disk shows whether another process of this volume has
claimed since. Each directory of a log is a volume of its own, with its claims and its uploader. An offline directory
does not delay the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from tiered.clock import Clock, IdSource
from tiered.engine.bucket import StepBucket
from tiered.engine.disk import OpenDisk
from tiered.engine.engine import Engine
from tiered.engine.journal import Journal
from tiered.engine.limits import EngineLimits
from tiered.engine.partition import NONE_MS, PAUSED_HINT, Partition, PartitionSeen, Phase, SegmentRef
from tiered.engine.reports import Report, Step, StepKind
from tiered.engine.steps import BucketSteps
from tiered.engine.thread import run_apart
from tiered.engine.turns import Turns
from tiered.errors import (
    CommitUnknown,
    CorruptionError,
    DataLocalError,
    FencedError,
    LogDestroyedError,
    OffsetGapError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.disk.claims import ClaimProof
from tiered.local.disk.files import sweep_temporaries
from tiered.local.disk.plain_lock import PlainLock
from tiered.local.disk.topics import TopicInfo
from tiered.local.disk.uploader_files import UPLOADER_FILES, PartitionUpload, PauseFile, uploader_lock
from tiered.local.partition.write_log import WriteLog
from tiered.model import Row, TopicPartition
from tiered.plan.ownership import is_own_claim
from tiered.plan.pauses import Pause
from tiered.plan.root_lower_bounds import Known
from tiered.remote.claim import owner_of
from tiered.remote.roots import REGISTRATION_REQUESTS
from tiered.remote.topics import TopicEntry, load_topic
from tiered.store.aio_driver import in_thread, to_its_end
from tiered.store.base import Get, Steps, Store
from tiered.store.driver import drive
from tiered.store.layers import LayeredStore
from tiered.store.limit import Slots
from tiered.store.retry import Retries
from tiered.store.threads import ThreadPool
from tiered.store.unique_upload import PUT_DEADLINE_SECONDS, PartSizes

ADOPT_TIMEOUT_S = 60.0
"""Limit in seconds for opening a fresh directory while another process's uploader claims its partitions."""
ADOPT_FIRST_POLL_S = 0.02
ADOPT_POLL_S = 0.2
NOTE_EVERY_S = 1.0
"""Interval in seconds of checkpoint writes during a sync: the file names every partition."""
LIMITS = EngineLimits(commit_wait_ms=1 << 40, seal_idle_ms=NONE_MS)
"""Limits of a run: it commits when nothing more is under way, as no reader follows meanwhile."""
TOGETHER = LIMITS.claims
"""Concurrent claims and uploads of a run. The limits bound the uploads further."""
ALONE = (FencedError, OffsetGapError, CorruptionError, LogDestroyedError)
"""Errors of one partition that do not stop the others from being drained."""

_logger = logging.getLogger("tiered.engine")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Driver:
    """Driver of the engine's steps on the calling thread."""

    store: Store
    clock: Clock
    ids: IdSource

    def __call__(self, steps: Steps[T]) -> T:
        """Return the value of the steps."""
        return drive(self.store, steps, clock=self.clock, ids=self.ids, together=REGISTRATION_REQUESTS)

    def once(self) -> Driver:
        """Return a driver that tries each request once, for a store that may not answer."""
        store = self.store
        if isinstance(store, LayeredStore) and isinstance(store.layer, Retries):
            store = store.inner
        return Driver(store, self.clock, self.ids)


class Tiering:
    """The bucket side of one directory of an open log. Thread-safe: one run at a time of each partition."""

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
        """``memory``: shared limit of the bytes in memory for uploads and commits; None: not counted."""
        self.local = local
        self.memory = memory
        self.clock = clock
        self.drive = Driver(store, clock, ids)
        self._reachable = reachable
        self._disk = OpenDisk(local)
        owner = owner_of("tiered")
        self.steps = BucketSteps(store.url, self._disk, self._open_journal, owner=owner, sizes=PartSizes())
        self.pauses = PauseFile(local.directory, local.files)
        self._lock = uploader_lock(local.directory, local.files)
        self._journal: Journal | None = None
        self._turns = Turns()
        self._swept = False
        self._notes: dict[TopicPartition, PartitionUpload] = {}  # read back, not yet in the checkpoint
        self._noted_at = -math.inf
        self._noting = PlainLock()

    @staticmethod
    def check_reachable(store: Store, *, clock: Clock, ids: IdSource) -> bool:
        """Send one GET, without retries. Return False if unreachable; raise errors that no wait cures."""
        try:
            Driver(store, clock, ids).once()(_look())
        except RemoteUnavailableError as error:
            text = "%s cannot be reached now: what was uploaded from here before goes on, a new log has to wait: %s"
            _logger.warning(text, store.url, error)
            return False
        return True

    def asked(self, steps: Steps[T]) -> T:
        """Answer a question of an opening log: with retries, unless the store did not answer just now."""
        answer = (self.drive if self._reachable else self.drive.once())(steps)
        self._reachable = True
        return answer

    def find_topic(self, name: str) -> TopicEntry | None:
        """Return the bucket's entry of a topic, None without one. Raises RemoteUnavailableError."""
        return self.asked(load_topic(name))

    def register(self, name: str, partitions: int) -> None:
        """Give the topic so many partitions in the bucket: their roots first, then the entry."""
        self.asked(self.steps.register(name, partitions))

    # ------------------------------------------------------------------ adoption

    def adopt(self, info: TopicInfo, deadline: float | None = None) -> None:
        """Register the topic and claim the partitions that this volume never claimed before.

        Wait for an uploader in another process until ``deadline`` (default: ``ADOPT_TIMEOUT_S`` from now). Raises
        ConfigError (another topic of that name is in the bucket), FencedError, RemoteUnavailableError where a partition
        without records cannot know its first offset; a log that was claimed before only warns.
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
                    *(info.name, entry.partitions, self.drive.store.url, info.partitions, self.local.directory),
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
                    f" {self.drive.store.url} nobody knows at which offset it goes on: {error.message}",
                    hint=error.hint or "try again when the store answers",
                ) from error
            _logger.warning("topic %s is not checked against %s now: %s", info.name, self.drive.store.url, error)

    def _adopt_partitions(self, tps: Sequence[TopicPartition], deadline: float) -> None:
        """Claim them, or wait until another process's uploader, if it has the lock, has claimed for this volume."""
        poll_s = ADOPT_FIRST_POLL_S
        waiting = list(tps)
        while waiting:
            if self._run(dict.fromkeys(waiting, 0), None, claims=True):
                return
            waiting = [tp for tp in waiting if not self.drive(self.steps.take_grant(tp))]
            if waiting and self.clock.monotonic() >= deadline:
                raise RemoteUnavailableError(
                    f"{waiting[0]}: the uploader of {self.local.directory} has not claimed it within "
                    f"{ADOPT_TIMEOUT_S:.0f} s",
                    hint="`tiered status` says what it waits for",
                )
            if waiting:
                self.clock.sleep(poll_s)
                poll_s = min(2 * poll_s, ADOPT_POLL_S)

    def _catch_up(self, tp: TopicPartition) -> None:
        """Apply the leader epoch of a daemon's claim: it claimed a restored volume while no process wrote it."""
        root = self.drive(self.drive(self.steps.catalog(tp)).load())
        if root is not None and is_own_claim(root, self.steps.proof(tp)):
            self._disk.lead(tp, root.leader_epoch)

    # ------------------------------------------------------------------ sync

    def sync(self, ends: Mapping[TopicPartition, int], timeout_s: float | None) -> dict[TopicPartition, int]:
        """Upload and commit the sealed segments of each partition up to its offset in ``ends``.

        Returns the partitions that another process uploads, as this directory's uploader: all of them, or none. Raises
        DataLocalError after ``timeout_s``, FencedError, RemoteUnavailableError, RemotePermissionError, CommitUnknown;
        earlier commits stay. Errors of one partition alone (FencedError, OffsetGapError, CorruptionError,
        LogDestroyedError) are raised after the others were synced.
        """
        deadline = None if timeout_s is None else self.clock.monotonic() + timeout_s
        return {} if self._run(ends, deadline) else dict(ends)

    def _run(self, ends: Mapping[TopicPartition, int], deadline: float | None, *, claims: bool = False) -> bool:
        """Run the engine once under the uploader's lock. Return False if another process has it.

        Runs of other partitions go on beside it.
        """
        turn = self._turns.begin(ends, deadline if deadline is None else deadline - self.clock.monotonic())
        if turn is None:  # another run of this process: waited for, instead of mistaken for a process
            raise DataLocalError(
                f"another sync of {self.local.directory} was still at work when the time was up",
                hint="sync again; the data is safe on this disk meanwhile",
            )
        try:
            with self._turns.changed:
                if not self._lock.is_held:
                    if not self._lock.try_acquire(self.clock):
                        return False
                    self._take_over()
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
        behind = {tp: end for tp, end in ends.items() if claims or not self._is_committed(tp, end)}
        if not behind:
            return
        errors = Run(self, deadline).drain(behind, claims=claims)
        for tp, error in errors.items():
            if isinstance(error, FencedError) and not claims:
                errors[tp] = self._note_fenced(tp, error)
        refused = sorted(errors.values(), key=lambda error: isinstance(error, ALONE))
        if refused:
            raise _root_cause(refused[0])

    def _is_committed(self, tp: TopicPartition, end: int) -> bool:
        at = self.local.partition(tp).positions()
        if at.uploaded_offset < end and at.end_offset > at.local_start_offset:
            return False
        if self._has_claimed(tp):  # the checkpoint speaks of a bucket: is it this one?
            with contextlib.suppress(RemoteUnavailableError):
                self.asked(self.steps.register(tp.topic))
        return True

    def _take_over(self) -> None:
        """Clean up after a crash or another process. Call it only with the uploader's lock."""
        if not self._swept:
            sweep_temporaries(self.local.files, self.local.directory, of=UPLOADER_FILES)
            self._swept = True
        if self._journal is not None:
            self._journal.refresh()

    def _open_journal(self) -> Journal:
        """Return the journal as of the lock. Open it on first use."""
        with self._noting:
            if self._journal is None:
                self._journal = Journal(self.local.directory, self.local.files)
            return self._journal

    def close(self) -> None:
        """Close the journal; the next claim sweeps the uploads that it names."""
        with self._noting:
            journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    # ------------------------------------------------------------------ what the bucket holds

    def note(self, tp: TopicPartition, upload: PartitionUpload) -> bool:
        """Note the state of a root that was read back. Return True if the checkpoint is due for a write.

        The note permits local deletion. A fence is noted with the run's error, once all is known.
        """
        if upload.fenced:
            return False
        with self._noting:
            self._notes[tp] = upload
        return self.clock.monotonic() - self._noted_at >= NOTE_EVERY_S

    def write_notes(self) -> None:
        """Write the checkpoint, then permit deletion: a disk never lacks records that the checkpoint does not name."""
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
        """Note a newer claim: every process of this directory refuses appends from now on.

        Returns the error that names the acknowledged records that the bucket does not hold.
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
            hint="`tiered repair rejoin` sets them aside and lets this log start again at the bucket's end",
        )

    def known(self, tp: TopicPartition) -> Known:
        """Return the state that a reader of this log compares a partition's root with. No I/O."""
        return Known(
            made=tp.topic in self.steps.registered, next_offset=self.local.partition(tp).positions().uploaded_offset
        )

    def _proof(self, tp: TopicPartition) -> ClaimProof:
        return self.local.claims.of(tp)

    def _has_claimed(self, tp: TopicPartition) -> bool:
        """Return True if a root of this partition was seen from this volume: a claim, or a restore."""
        proof = self._proof(tp)
        return proof.token is not None or proof.restored_from is not None


class SpreadTiering:
    """The bucket side of an open log over one directory or several. Thread-safe, like each of its parts."""

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

    def find_topic(self, name: str) -> TopicEntry | None:
        """Call ``Tiering.find_topic`` in one directory."""
        return next(iter(self._parts.values())).find_topic(name)

    def register(self, name: str, partitions: int) -> None:
        """Call ``Tiering.register`` in one directory that holds a part of the topic."""
        holders = (part for part in self._parts.values() if name in part.local.topics())
        next(holders).register(name, partitions)

    def adopt(self, info: TopicInfo) -> None:
        """Adopt the topic in each directory in service that holds a part of it, within one deadline."""
        deadline = self._clock.monotonic() + ADOPT_TIMEOUT_S
        for path, part in self._parts.items():
            held = None if path in self._local.offline else part.local.topics().get(info.name)
            if held is not None:
                part.adopt(held, deadline)

    def known(self, tp: TopicPartition) -> Known:
        """Call ``Tiering.known`` in the partition's directory."""
        return self._parts[self._local.directory_of(tp)].known(tp)

    def sync(self, ends: Mapping[TopicPartition, int], timeout_s: float | None) -> dict[TopicPartition, int]:
        """Call ``Tiering.sync`` in one directory after the other. Raise the first error after the last."""
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
        """Call ``Tiering.close`` in each directory."""
        for part in self._parts.values():
            part.close()


class Run:
    """One drain. A failure that concerns more than one partition ends it. Steps in progress are waited for.

    The run has a thread of the engine's, with an event loop of its own. Nothing is retried and nothing waits for a
    time: the loop turns when a step ends.
    """

    def __init__(self, tiering: Tiering, deadline: float | None) -> None:
        """``deadline`` is monotonic."""
        self._tiering = tiering
        self._clock = tiering.clock
        self._deadline = deadline
        self._heeds_pauses = False
        self._ends: Mapping[TopicPartition, int] = {}
        self._errors: dict[TopicPartition, TieredError] = {}
        self._topic_errors: dict[str, TieredError] = {}
        self._stopped = False
        self._engine: Engine | None = None
        self._writing: asyncio.Task[None] | None = None

    def drain(self, ends: Mapping[TopicPartition, int], *, claims: bool = False) -> dict[TopicPartition, TieredError]:
        """Run until all is committed up to ``ends``, or nothing more can be done. Return the error of each that is not.

        ``claims``: each is claimed again, too.
        """
        self._ends = ends
        self._heeds_pauses = not claims  # a claim sends nothing, and a log cannot begin without
        pauses = self._tiering.pauses.read() if self._heeds_pauses else {}
        found = [_Found.of(self._tiering, tp, end, anew=claims) for tp, end in ends.items()]
        partitions = run_apart(partial(self._carry, found, pauses))
        return {tp: error for tp, end in ends.items() if (error := self._verdict(partitions[tp], end)) is not None}

    async def _carry(self, found: Sequence[_Found], pauses: Mapping[str, Pause]) -> Mapping[TopicPartition, Partition]:
        """Run the engine until it is idle, and return its table."""
        tiering = self._tiering
        with ThreadPool(TOGETHER, "tiered-engine") as pool:
            bucket = InlineBucket(tiering, pool, seconds_left=self._seconds_left, look=self._look_at_pauses)
            self._engine = engine = Engine(
                bucket,
                now_ms=lambda: int(self._clock.monotonic() * 1000),
                monotonic=self._clock.monotonic,
                dice=tiering.drive.ids,
                limits=LIMITS,
                listener=self,
                note=self._note,
                in_call=True,
            )
            bucket.when_looked, bucket.is_alone = engine.pause, engine.is_alone
            engine.wants, engine.may_claim = self._wants, lambda: not self._is_late()
            engine.pause(pauses)
            try:
                for each in found:
                    each.enter(engine)
                await engine.idle()
            finally:
                await engine.stop()
                if self._writing is not None:
                    await self._writing
        return engine.partitions

    def _wants(self, p: Partition, base: int) -> bool:
        """Return True up to the requested offset. After the deadline no upload begins."""
        return base < self._ends[p.tp] and not self._is_late()

    def _is_late(self) -> bool:
        return self._deadline is not None and self._clock.monotonic() >= self._deadline

    def _seconds_left(self) -> float:
        return math.inf if self._deadline is None else max(self._deadline - self._clock.monotonic(), 0.0)

    def _look_at_pauses(self) -> Mapping[str, Pause]:
        """Return the current pauses: one ``stat``."""
        return self._tiering.pauses.read() if self._heeds_pauses else {}

    # ------------------------------------------------------------------ callbacks of the engine

    def _note(self, tp: TopicPartition, upload: PartitionUpload) -> None:
        due = self._tiering.note(tp, upload)
        if due and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(in_thread(self._tiering.write_notes))

    def report(self, report: Report) -> None:
        """Log events that no error reports."""
        if report.event == "resumed":
            _logger.warning("%s", report.message)

    def ended(self, step: Step, error: BaseException | None, seconds: float) -> None:
        """Store the first error of each partition. An error of more than one partition ends the run."""
        del seconds
        if not isinstance(error, TieredError):
            return
        if step.kind is StepKind.SETTLE:
            _logger.warning("%s: what the last run left is still in the bucket: %s", step.tp, error.message)
            return
        if step.tp is None:
            self._topic_errors[step.topic] = error
        else:
            self._errors.setdefault(step.tp, error)
        if not isinstance(error, ALONE) and self._engine is not None:
            self._stopped = True
            self._engine.halt()

    def bug(self, error: BaseException) -> None:
        """Crash the engine: the caller gets the error."""
        if self._engine is not None:
            self._engine.crash(error)

    def _verdict(self, p: Partition, end: int) -> TieredError | None:
        """Return why a partition is not committed up to ``end``; None if it is, or if the run ended before its turn."""
        tp = p.tp
        if tp in self._errors:
            return self._errors[tp]
        failure = p.trouble.failure
        if p.phase is Phase.FENCED and failure is not None:
            return FencedError(failure.message, hint=failure.hint)
        if p.known_committed >= end:
            return None
        if tp.topic in self._topic_errors:
            return self._topic_errors[tp.topic]
        if self._stopped:
            return None
        if p.pause is not None:
            return DataLocalError(f"{tp}: committed up to {p.known_committed} of {end}: {p.pause}", hint=PAUSED_HINT)
        if p.phase is Phase.CLAIMED and p.committed not in p.works and not self._is_late():
            first = min(p.works, default=end)
            return OffsetGapError(
                f"{tp}: the catalog ends at {p.committed}, the next sealed segment on this disk begins at {first}",
                start=p.committed,
                end=first,
                hint="segments were removed from the log directory, or it belongs to another log: run tiered check",
            )
        return DataLocalError(
            f"{tp}: committed up to {p.known_committed} of {end} when the time was up",
            hint="sync again, or run tiered-uploader; the data is safe on this disk meanwhile",
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """State of a partition on the disk, and the claim of an earlier run if it stands."""

    seen: PartitionSeen
    held: tuple[int, int] | None
    sealed: tuple[SegmentRef, ...]

    @classmethod
    def of(cls, tiering: Tiering, tp: TopicPartition, end: int, *, anew: bool) -> _Found:
        """Read the segments below ``end``; none of a partition that will be claimed again."""
        log = tiering.local.partition(tp)
        at = log.positions()
        start, held = at.uploaded_offset, None
        catalog = None if anew else tiering.steps.held(tp)
        if catalog is not None and catalog.root is not None:
            start = catalog.root.next_offset
            held = (catalog.claim_epoch, start)
        sealed = [
            SegmentRef(segment.base_offset, segment.end_offset, segment.size_bytes, segment.appended_ms)
            for segment in ([] if anew else log.sealed_segments(start))
            if segment.base_offset < end
        ]
        seen = PartitionSeen(
            tp,
            log.topic_id,
            at.local_start_offset,
            at.flushed_offset,
            at.end_offset,
            noted_offset=at.uploaded_offset,
        )
        return cls(seen, held, tuple(sealed))

    def enter(self, engine: Engine) -> None:
        """Put it into the engine's table."""
        p = engine.see(self.seen)
        if self.held is not None:
            p.claimed(*self.held)
            engine.topics.mark_registered(p)
        for segment in self.sealed:  # above the end of the claim's root
            p.add(segment)
        engine.changed(p)


class InlineBucket(StepBucket):
    """The steps of an open log. Each is driven on a thread of the engine's by the log's own store, to its end."""

    def __init__(
        self,
        tiering: Tiering,
        pool: ThreadPool,
        *,
        seconds_left: Callable[[], float],
        look: Callable[[], Mapping[str, Pause]],
    ) -> None:
        super().__init__(tiering.steps, tiering.memory)
        self._tiering = tiering
        self._pool = pool
        self._seconds_left = seconds_left
        self._look = look
        self.when_looked: Callable[[Mapping[str, Pause]], None] = lambda pauses: None
        self.is_alone: Callable[[], bool] = lambda: False

    async def drive(self, steps: Steps[T], *, together: int = REGISTRATION_REQUESTS) -> T:
        """Return the value of the steps."""
        del together
        return await self._call(partial(self._tiering.drive, steps))

    async def _call(self, work: Callable[[], T]) -> T:
        """Return the result of a call that blocks."""
        if self.is_alone():
            return work()  # on the loop's thread, where nothing else waits: no hop to another one
        return await to_its_end(work, self._pool)

    def upload_deadline_seconds(self) -> float:
        """Return how long each object of an upload is retried."""
        return min(self._seconds_left(), PUT_DEADLINE_SECONDS)

    async def register(self, topic: str) -> None:
        """Register the topic. A store that did not answer just now gets one attempt."""
        await self._call(partial(self._tiering.asked, self.steps.register(topic)))

    async def upload(self, tp: TopicPartition, segment: SegmentRef, claim_epoch: int) -> Row:
        """Store and verify both objects of a segment. Then read the pauses, before the next upload begins."""
        seconds = self.upload_deadline_seconds()
        steps = self.steps.upload(tp, segment, claim_epoch, deadline_seconds=seconds)

        row, pauses = await self._call(lambda: (self._tiering.drive(steps), self._look()))
        self.when_looked(pauses)
        return row


def _root_cause(error: TieredError) -> TieredError:
    """Return the cause of a refused commit, which has the useful hint; the next sync claims again."""
    cause = error.__cause__
    return (
        cause if isinstance(error, CommitUnknown) and isinstance(cause, TieredError) and not cause.retriable else error
    )


def _look() -> Steps[None]:
    yield Get("topics/.look", 0, 1)


def _is_empty(log: WriteLog) -> bool:
    positions = log.positions()
    return positions.end_offset == positions.local_start_offset
