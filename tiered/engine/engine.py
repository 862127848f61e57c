"""Upload engine: a table of partitions, and what their coroutines share: upload slots, limits, reports, status.

::

    discovery ──> table of rows ──> a Worker for each row that has work:   claim, upload a window, commit, note
                                        └── UploadQueue (oldest byte first), claims and commits (semaphores), Topics

It runs on one event loop. It neither scans a directory nor ends a run: ``runner`` does so for the daemon, ``tiering``
for ``log.sync()``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from tiered.engine import partition, status
from tiered.engine.bucket import StepBucket
from tiered.engine.failure import NO_FAILURES, PASSING, Failure, FailureKind, FailureStreak, RandomSource
from tiered.engine.partition import EngineLimits, Partition, PartitionSeen, Phase
from tiered.engine.reports import Listener, Report, Step, StepKind
from tiered.engine.status import PartitionView
from tiered.engine.worker import UploadQueue, Wakeup, Worker
from tiered.errors import CommitUnknownError, TieredError
from tiered.format.positions import Positions
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.model import TopicPartition
from tiered.plan.pacing import ALL_TOPICS, Pause
from tiered.store.unique_upload import PUT_DEADLINE_SECONDS

REJOIN_HINT = "`tiered repair rejoin` sets this log's files aside and continues at the bucket's end"

FRESH_WORKERS = 64
"""Limit of coroutines that have neither claimed nor waited yet. Other partitions are queued without a coroutine."""

T = TypeVar("T")
Note = Callable[[TopicPartition, PartitionUpload], None]


class Engine:
    """Uploader of sealed segments: a table of partitions, and a coroutine for each one that has work.

    Call it only on its event loop.
    """

    def __init__(
        self,
        bucket: StepBucket,
        *,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
        dice: RandomSource,
        limits: EngineLimits,
        listener: Listener,
        note: Note,
        in_call: bool = False,
    ) -> None:
        """Start with an empty table.

        ``note`` gets the state of a partition from a root that was read back, for the checkpoint. ``in_call``: the run
        is one call of an application. A failed partition is then not retried, because the caller decides about waits,
        and :meth:`views` has no wait times.
        """
        self.bucket = bucket
        self.now_ms = now_ms
        self.dice = dice
        self.limits = limits
        self.partitions: dict[TopicPartition, Partition] = {}
        self.topics = Topics(self)
        self.queue = UploadQueue(lambda: self.limits)
        self.claims = asyncio.Semaphore(limits.claims)
        self.commits = asyncio.Semaphore(limits.commits)
        self.seconds_of: Callable[[Step], float | None] = lambda step: None
        self.pauses: Mapping[str, Pause] = {}
        self._positions: Mapping[TopicPartition, Positions] = {}
        self.wants: partition.Wanted = lambda p, base: True
        self.may_claim: Callable[[], bool] = lambda: True
        self.when_changed: Callable[[Partition], None] = lambda p: None
        self.when_resuming: Callable[[], None] = lambda: None
        self.put_seconds: Callable[[], float] = lambda: PUT_DEADLINE_SECONDS
        self.stopped = False
        self.bugs: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._monotonic = monotonic
        self._listener = listener
        self._note = note
        self.retries = not in_call
        self.lazy = False  # True: what the checkpoint notes as wholly committed is not claimed (one-shot runs)
        self._workers: dict[TopicPartition, Worker] = {}
        self._fresh: set[TopicPartition] = set()  # workers that have neither claimed nor waited yet
        self._line: dict[TopicPartition, Partition] = {}  # partitions that have work, and no worker yet
        self._leaving: dict[asyncio.Task[None], None] = {}  # tasks of removed partitions

    # ------------------------------------------------------------------ the table

    def see(self, seen: PartitionSeen) -> Partition:
        """Update a partition from the result of a scan, or add it. Return its entry in the table."""
        p = self.partitions.get(seen.tp)
        if p is not None and p.topic_id != seen.topic_id:
            self.forget(seen.tp)
            p = None
        if p is None:
            p = self.partitions[seen.tp] = Partition(seen.tp, seen.topic_id, wait_since_ms=self.now_ms())
            p.pause = self._pause_of(p)
            p.positions = self._positions.get(p.tp)
            self.topics.add(p)
        p.see(seen)
        resuming = p.phase is Phase.CLAIMED and p.resume_at >= 0
        if resuming and not self.fence_diverged(p) and p.local_start >= p.resume_at:
            p.resume_at = -1
            self.note(p)
        self.changed(p)
        return p

    def forget(self, tp: TopicPartition) -> None:
        """Drop a partition that is no longer in the log directory, and cancel its work.

        Its upload slots are free once its uploads have ended.
        """
        p = self.partitions.pop(tp, None)
        if p is None:
            return
        self._line.pop(tp, None)
        self.topics.remove(p)
        worker = self._workers.pop(tp, None)
        if worker is not None:
            self._leaving[worker.task] = None
            worker.task.add_done_callback(lambda task: self._leaving.pop(task, None))
            worker.task.cancel()
        self.release_claim_slot(p)

    def pause(self, pauses: Mapping[str, Pause]) -> None:
        """Set the paused topics; the key ``ALL_TOPICS`` pauses all. Work in progress is completed and committed."""
        before, self.pauses = self.pauses, pauses
        if before == pauses:
            return
        for name in sorted(pauses.keys() - before.keys()):
            self.report(Report(logging.WARNING, "paused", f"{name or 'all topics'}: {pauses[name]}"))
        for name in sorted(before.keys() - pauses.keys()):
            self.report(Report(logging.INFO, "resumed_uploads", f"{name or 'all topics'}: uploads go on"))
        for p in list(self.partitions.values()):
            p.pause = self._pause_of(p)
            self.changed(p)

    def copy(self, positions: Mapping[TopicPartition, Positions]) -> None:
        """Set the positions of consumer groups to copy to the bucket.

        A position is copied after the root that covers its offset was read back.
        """
        self._positions = positions
        for tp, groups in positions.items():
            p = self.partitions.get(tp)
            if p is not None and p.positions != groups:
                p.positions = groups
                self.changed(p)

    def _pause_of(self, p: Partition) -> Pause | None:
        return self.pauses.get(p.tp.topic) or self.pauses.get(ALL_TOPICS)

    def scan_now(self, *, refused: bool = False) -> None:
        """Retry at once after failures that time cures. This method scans nothing; its callers scan the disk.

        ``refused``: also retry after a missing permission or a fatal failure, whose cause may be corrected by now.
        """
        now_ms = self.now_ms()
        for topic in self.topics:
            topic.trouble = topic.trouble.retry_now(now_ms, refused=refused)
            topic.changed.set()
        for p in list(self.partitions.values()):
            p.trouble = p.trouble.retry_now(now_ms, refused=refused)
            self.changed(p)

    def reconfigure(self, limits: EngineLimits) -> None:
        """Replace the limits, except the numbers of concurrent claims and commits, which stay those of the start."""
        self.limits = limits
        self.queue.fill_soon()
        for worker in self._workers.values():
            worker.wake()

    def views(self, now_ms: int) -> list[PartitionView]:
        """Return the status of each partition, sorted by name, for ``status`` and the metrics."""
        found = []
        for _, p in sorted(self.partitions.items()):
            topic = self.topics.find(p)
            found.append(status.view_of(p, now_ms, topic.trouble.failure, topic.registered))
        return found

    def counts(self) -> tuple[int, int]:
        """Return (number of partitions, number of those with sealed segments that the bucket lacks)."""
        return len(self.partitions), sum(1 for p in self.partitions.values() if p.works)

    # ------------------------------------------------------------------ work

    def has_work(self, p: Partition) -> bool:
        """Return True while a step of the partition runs, or if it has anything to claim, upload or commit.

        Group positions to copy and old uploads to delete count, too. So does work that waits for a retry.
        """
        if self.partitions.get(p.tp) is not p or self.stopped:
            return p.at_work
        if p.phase is not Phase.CLAIMED and not self.may_claim():
            return p.at_work
        return partition.has_work(p, self.wanted, lazy=self.lazy)

    def is_alone(self) -> bool:
        """Return True if the step that begins now is the only one. It may then block the event loop."""
        workers = list(self._workers.values())
        if self._line or len(workers) + len(self.topics.tasks()) != 1:
            return False
        return not workers or (workers[0].p.uploading <= 1 and workers[0].p.next_upload() is None)

    def ends(self, p: Partition) -> bool:
        """Return True if no more work on the partition begins in this run."""
        return self.stopped or p.given_up

    def wanted(self, p: Partition, base: int) -> bool:
        """Return True if the segment at ``base`` is to be uploaded in this run."""
        return not self.stopped and self.wants(p, base)

    def changed(self, p: Partition) -> None:
        """React to a change of a partition: wake its coroutine, or start one if there is work."""
        if self.partitions.get(p.tp) is not p:
            return
        blocked = p.blocked()
        if blocked is not None:
            p.trouble = self._reported(p.trouble, logging.ERROR, *blocked, p.tp)
        self.when_changed(p)
        self.track(p)
        worker = self._workers.get(p.tp)
        if worker is not None:
            worker.wake()
        elif self.has_work(p) and self.topics.registered(p):
            if p.phase is Phase.NEW:
                self._line[p.tp] = p
                self._start_claims()
            else:
                self._start(p)

    def release_claim_slot(self, p: Partition) -> None:
        """Stop counting the partition's coroutine as a fresh one, and start the next partition in the queue.

        At most ``FRESH_WORKERS`` coroutines are fresh: they have neither claimed nor waited yet.
        """
        if p.tp in self._fresh:
            self._fresh.discard(p.tp)
            self._start_claims()

    def _start_claims(self) -> None:
        """Start coroutines for queued partitions until ``FRESH_WORKERS`` have neither claimed nor waited yet."""
        while self._line and len(self._fresh) < FRESH_WORKERS:
            tp = next(iter(self._line))
            p = self._line.pop(tp)
            if tp not in self._workers and self.has_work(p):
                self._fresh.add(tp)
                self._start(p)
        if not self._line:
            self._line = {}  # a table that was long stays so

    def _start(self, p: Partition) -> None:
        worker = self._workers[p.tp] = Worker(p, self)
        worker.task.add_done_callback(partial(self._ended, worker))

    def _ended(self, worker: Worker, task: asyncio.Task[None]) -> None:
        """Remove a worker that ended. Start another one if there is new work."""
        if self._workers.get(worker.p.tp) is worker:
            del self._workers[worker.p.tp]
            self.release_claim_slot(worker.p)
        if task.cancelled():
            return
        if (bug := task.exception()) is not None:
            self.crash(bug)
        else:
            self.rest(worker.p)
            self.changed(worker.p)

    def rest(self, p: Partition) -> None:
        """Record that a partition is idle, so that most of its catalog may be dropped from memory."""
        if self.retries:
            self.bucket.steps.rest(p.tp)

    def crash(self, bug: BaseException) -> None:
        """End the run with an unexpected error. A silent, half-dead uploader would be worse."""
        if not self.bugs.done():
            self.bugs.set_exception(bug)

    async def attempt(
        self,
        step: Step,
        work: Callable[[], Awaitable[T]],
        room: contextlib.AbstractAsyncContextManager[None] | None = None,
    ) -> T | Failure:
        """Run one attempt of a step. Return its result, or a Failure for any error, a time-out or a bug.

        ``room``: reservation of memory, entered before the time limit starts.
        """
        begun = self._monotonic()
        seconds = self.seconds_of(step)
        error: BaseException
        try:
            async with room or contextlib.nullcontext():
                begun = self._monotonic()
                async with asyncio.timeout(seconds):
                    value = await work()
        except TimeoutError as late:
            error = late
            if step.kind is StepKind.COMMIT:
                error = CommitUnknownError(
                    f"{step.tp}: no answer to the commit within {seconds or 0:.0f} s: it is unknown whether the "
                    "bucket has it"
                )
        except (TieredError, OSError) as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001 - any bug: the partition goes on or reports it
            self._listener.bug(raised)
            error = raised
        else:
            self._listener.ended(step, None, self._monotonic() - begun)
            return value
        if step.kind is StepKind.COMMIT and not isinstance(error, TieredError):  # the bucket may have the rows
            error = CommitUnknownError(f"{step.tp}: an unexpected error in the middle of the commit: {error!r}")
        self._listener.ended(step, error, self._monotonic() - begun)
        return Failure.from_error(error)

    # ------------------------------------------------------------------ outcomes

    def failed(self, p: Partition, failure: Failure, doing: str) -> None:
        """Record the failure of a step of one partition. The step is retried later.

        In a run that is one call of an application, the partition is given up instead.
        ``doing``: the step, in words.
        """
        p.trouble = self.failure_noted(p.trouble, failure, doing, p.tp)
        p.given_up = not self.retries
        self.changed(p)

    def succeeded(self, p: Partition, doing: str) -> None:
        """Record that the step ``doing``, a text for reports, succeeded, and clear the partition's failure."""
        p.trouble = self.success_noted(p.trouble, doing, p.tp)

    def failure_noted(
        self, before: FailureStreak, failure: Failure, doing: str, tp: TopicPartition | None = None
    ) -> FailureStreak:
        """Return ``before``, a failure record, after one more failure of the step ``doing``.

        Report the failure, unless the same error code was reported within ``repeat_report_ms``.
        """
        after = before.after_failure(failure, doing, self.now_ms(), self.dice)
        level = logging.WARNING if failure.kind in PASSING else logging.ERROR
        return self._reported(after, level, failure.code, failure.text(doing), tp)

    def success_noted(self, before: FailureStreak, doing: str, tp: TopicPartition | None = None) -> FailureStreak:
        """Return ``before``, a failure record, after a success of the step ``doing``. Report a recovery.

        A failure that was never reported is cleared without one.
        """
        after, report = before.after_success(doing, tp)
        if report is not None:
            self._listener.report(report)
        return after

    def _reported(
        self, before: FailureStreak, level: int, code: str, text: str, tp: TopicPartition | None
    ) -> FailureStreak:
        """Report ``text``, unless ``code`` was reported within ``repeat_report_ms``. Return the new failure record."""
        repeat_ms = self.limits.repeat_report_ms
        after, report = before.after_report(level, code, text, tp, now_ms=self.now_ms(), repeat_ms=repeat_ms)
        if report is not None:
            self._listener.report(report)
        return after

    def fence_diverged(self, p: Partition) -> bool:
        """Fence the partition if its local records end below the bucket's end. Return True if so.

        New records would get offsets that the bucket has. A log that must resume at the bucket's end is also fenced if
        it has records below that offset.
        """
        if not partition.has_diverged(p):
            return False
        text = f"{p.tp} holds offsets {p.local_start}..{p.end} on this disk, but the bucket went on to {p.committed}"
        p.committed = p.noted  # the noted end is of this disk; the rest of the bucket is not on it
        self.fence(p, Failure(FailureKind.FENCED, "diverged", text, REJOIN_HINT, exit_code=11))
        return True

    def fence(self, p: Partition, failure: Failure) -> None:
        """Stop a partition for the rest of the run, and write to the checkpoint that it is fenced.

        ``failure``: the reason, a newer claim or records that diverge from the bucket.
        """
        self.drop_claim(p)
        p.phase, p.trouble = Phase.FENCED, replace(p.trouble, failure=failure, doing="fenced")
        text = failure.text("the partition is fenced")
        p.trouble = self._reported(p.trouble, logging.ERROR, "fenced", text, p.tp)
        self._note(p.tp, PartitionUpload(p.known_committed, p.claim_epoch, True, p.remote_start))
        self.changed(p)

    def drop_claim(self, p: Partition) -> None:
        """Give up the claim of a partition and cancel its uploads. The next claim begins when they have ended."""
        p.drop_claim()
        worker = self._workers.get(p.tp)
        if worker is not None:
            worker.cancel_uploads()

    def note(self, p: Partition) -> None:
        """Write the committed end to the checkpoint, which permits the deletion of local records.

        Do nothing for an empty log that must still be moved to the bucket's end.
        """
        if p.resume_at < 0:
            self._note(p.tp, PartitionUpload(p.committed, p.claim_epoch, False, p.remote_start))

    def track(self, p: Partition) -> None:
        """Record since when the partition waits for its current reason, for the status."""
        if self.retries and self.partitions.get(p.tp) is p:
            topic = self.topics.find(p)
            status.track(p, topic.trouble.failure, topic.registered, self.now_ms())

    def report(self, report: Report) -> None:
        """Pass a report to the listener, for the operator."""
        self._listener.report(report)

    # ------------------------------------------------------------------ the end

    async def idle(self) -> None:
        """Wait until no partition has work. Raise the unexpected error of a coroutine, which ends the wait."""
        while not self.bugs.done():
            tasks = [*[worker.task for worker in self._workers.values()], *self.topics.tasks()]
            if not tasks:
                break
            await asyncio.wait([*tasks, self.bugs], return_when=asyncio.FIRST_COMPLETED)
        if self.bugs.done():
            self.bugs.result()

    def halt(self) -> None:
        """Start no more steps. Running steps are completed."""
        self.stopped = True
        for worker in self._workers.values():
            worker.wake()

    async def stop(self) -> None:
        """Cancel the work in progress, and wait for its end. The journal has its object names for the next start."""
        self.stopped = True
        tasks = [*[worker.task for worker in self._workers.values()], *self.topics.tasks()]
        for task in tasks:
            task.cancel()
        tasks += self._leaving
        await asyncio.gather(*tasks, return_exceptions=True)
        self.bugs.cancel()


@dataclass(slots=True)
class TopicRow:
    """Registration state of one topic. ``members``: its partitions in the engine's table."""

    name: str
    registered: bool = False
    trouble: FailureStreak = NO_FAILURES
    members: dict[TopicPartition, Partition] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    changed: Wakeup = field(default_factory=Wakeup)


class Topics:
    """Topics of the engine's partitions, and their registration."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rows: dict[str, TopicRow] = {}

    def __iter__(self) -> Iterator[TopicRow]:
        return iter(self._rows.values())

    def find(self, p: Partition) -> TopicRow:
        """Return the :class:`TopicRow` of the topic of a partition in the engine's table."""
        return self._rows[p.tp.topic]

    def add(self, p: Partition) -> None:
        """Add a partition to the :class:`TopicRow` of its topic. The first partition creates that row."""
        self._rows.setdefault(p.tp.topic, TopicRow(p.tp.topic)).members[p.tp] = p

    def remove(self, p: Partition) -> None:
        """Remove a partition. With the last one of a topic, remove its :class:`TopicRow`, and end its registration."""
        topic = self._rows[p.tp.topic]
        topic.members.pop(p.tp, None)
        if not topic.members:
            del self._rows[p.tp.topic]
            if topic.task is not None:
                topic.task.cancel()

    def registered(self, p: Partition) -> bool:
        """Return True if the partition's topic is registered in the bucket. If not, start a registration."""
        topic = self.find(p)
        if not topic.registered and topic.task is None:
            topic.task = asyncio.get_running_loop().create_task(self._register(topic))
            topic.task.add_done_callback(partial(self._ended, topic))
        return topic.registered

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks of the registrations in progress."""
        return [topic.task for topic in self if topic.task is not None]

    def mark_registered(self, p: Partition) -> None:
        """Mark the partition's topic as registered, because this process has registered it before."""
        self.find(p).registered = True

    async def _register(self, topic: TopicRow) -> None:
        engine, doing = self._engine, f"registering the topic {topic.name}"
        while not topic.registered and any(engine.has_work(p) for p in topic.members.values()):
            now_ms = engine.now_ms()
            if topic.trouble.retry_at_ms > now_ms:
                await topic.changed.wait((topic.trouble.retry_at_ms - now_ms) / 1000)
                continue
            found = await engine.attempt(
                Step(StepKind.REGISTER, topic.name), partial(engine.bucket.register, topic.name)
            )
            if isinstance(found, Failure):
                topic.trouble = engine.failure_noted(topic.trouble, found, doing)
            else:
                topic.registered, topic.trouble = True, engine.success_noted(topic.trouble, doing)
            for p in list(topic.members.values()):
                p.given_up = p.given_up or not (topic.registered or engine.retries)
                engine.changed(p)

    def _ended(self, topic: TopicRow, task: asyncio.Task[None]) -> None:
        topic.task = None
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._engine.crash(bug)
            return
        for p in list(topic.members.values()):
            self._engine.changed(p)
