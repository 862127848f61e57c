"""Loop of one partition: claim once, upload segments, commit them in order, write the checkpoint, and repeat.

The loop is :meth:`Worker.run`. Each pass does the first thing that is due, or waits. Pure functions of ``partition``
decide what is due. ``engine.steps`` claims, uploads and commits. Workers wait for an upload slot in the
:class:`UploadQueue`.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tiered.engine import partition
from tiered.engine.failure import NO_FAILURES, NONE_MS, Failure, FailureKind
from tiered.engine.partition import EngineLimits, Partition, Phase, SegmentUpload
from tiered.engine.reports import Report, Step, StepKind
from tiered.engine.status import segments_are
from tiered.format.root import Root
from tiered.model import Row, TopicPartition

if TYPE_CHECKING:
    from tiered.engine.engine import Engine


class Worker:
    """Coroutine that uploads one partition. It ends when there is no work; for new work the engine starts another."""

    def __init__(self, p: Partition, engine: Engine) -> None:
        self.p = p
        self._engine = engine
        self._uploads: dict[asyncio.Task[None], None] = {}  # also uploads of a dropped claim, until they end
        self._changed = Wakeup()
        self.task = asyncio.get_running_loop().create_task(self.run())

    async def run(self) -> None:
        """Claim the partition, then upload and commit its sealed segments. Return when it has no work."""
        p, engine, has_committed = self.p, self._engine, False
        try:
            while engine.has_work(p):
                now_ms = engine.now_ms()
                if p.uploading and (p.phase is not Phase.CLAIMED or engine.ends(p)):
                    await self._end_uploads()  # the claim is gone, or the run ends: first they have to end
                elif p.trouble.retry_at_ms > now_ms:
                    await self._wait(p.trouble.retry_at_ms)
                elif p.phase is Phase.NEW:
                    await self._claim()
                elif partition.dead_upload_sweep_due(p, now_ms):
                    await self._sweep_dead_uploads()
                elif partition.rows_due(p, engine.limits, now_ms):
                    await self._commit()
                    has_committed = True
                elif partition.copy_due(p, engine.wanted, has_committed=has_committed):
                    has_committed = False
                    await self._copy()
                else:
                    engine.queue.offer(self)  # uploads begin in free slots, the oldest byte of all first
                    await self._wait(partition.next_ms(p, engine.limits))
        finally:
            self.cancel_uploads()
            if self._uploads:
                await self._end_uploads()

    def cancel_uploads(self) -> None:
        """Request the cancellation of all uploads. Each ends within its time limit, and then frees its slot."""
        self._engine.queue.withdraw(self)
        for upload in self._uploads:
            upload.cancel()

    def wake(self) -> None:
        """React to a change: start an upload if one is due, and end the present wait."""
        self._engine.queue.offer(self)
        self._changed.set()

    async def _wait(self, until_ms: int) -> None:
        """Wait for a change, at most until ``until_ms`` (-1: without a limit)."""
        if not self.p.at_work:
            self._engine.rest(self.p)  # thousands may wait, as for an upload slot
        self._engine.release_claim_slot(self.p)
        await self._changed.wait(None if until_ms == NONE_MS else (until_ms - self._engine.now_ms()) / 1000)

    # ------------------------------------------------------------------ the steps

    async def _claim(self) -> None:
        p, engine = self.p, self._engine
        async with engine.claims:
            if not engine.has_work(p):
                return  # this run has ended meanwhile
            p.phase = Phase.CLAIMING
            engine.track(p)
            try:
                step = Step(StepKind.CLAIM, p.tp.topic, p.tp)
                granted = await engine.attempt(
                    step, lambda: engine.bucket.drive_probed(engine.bucket.steps.claim(p.tp))
                )
            finally:
                if p.phase is Phase.CLAIMING:
                    p.phase = Phase.NEW
                engine.release_claim_slot(p)
        if isinstance(granted, Failure):
            if granted.kind is FailureKind.FENCED:
                engine.fence(p, granted)
            else:
                engine.failed(p, granted, "claiming the writer role")
            return
        for text in granted.warnings:
            engine.report(Report(logging.WARNING, "resumed", text, p.tp))
        if granted.resumes:
            engine.when_resuming()
        p.remote_start = granted.start_offset
        p.claim_epoch, p.committed = granted.claim_epoch, granted.next_offset
        yet_to = granted.resumes and p.local_start < granted.next_offset  # its writer may have been faster
        p.resume_at = granted.next_offset if yet_to else -1
        if engine.fence_diverged(p):
            return
        p.claimed(granted.claim_epoch, granted.next_offset)
        p.settled, p.sweep, p.doubt_end = False, NO_FAILURES, 0
        engine.succeeded(p, "claiming the writer role")
        engine.note(p)
        fields = (("claim_epoch", p.claim_epoch), ("uploaded_offset", p.committed))
        text = f"the writer role is ours, the bucket ends at {p.committed}"
        engine.report(Report(logging.INFO, "claimed", text, p.tp, fields))
        engine.changed(p)

    async def _sweep_dead_uploads(self) -> None:
        """Delete unfinished uploads of earlier claims, before a commit moves the committed end past them."""
        p, engine, epoch = self.p, self._engine, self.p.claim_epoch
        settle = engine.bucket.steps.sweep_dead_uploads(p.tp, epoch, p.committed)
        swept = await engine.attempt(Step(StepKind.SETTLE, p.tp.topic, p.tp), partial(engine.bucket.drive, settle))
        if p.claim_epoch != epoch or p.phase is not Phase.CLAIMED:
            return
        if not isinstance(swept, Failure):
            p.settled = True
            if swept:
                text = f"{swept} unfinished uploads of an earlier claim were deleted"
                engine.report(Report(logging.INFO, "settled", text, p.tp))
        else:
            p.settled = not engine.retries  # the next claim sweeps it; commits do not wait for it
            p.sweep = engine.failure_noted(p.sweep, swept, f"deleting old uploads of {p.tp}", p.tp)
        engine.changed(p)

    def upload_due(self) -> SegmentUpload | None:
        """Return the segment whose upload may begin now, None if there is none or a retry has to wait."""
        p = self.p
        return None if p.trouble.retry_at_ms > self._engine.now_ms() else partition.upload_due(p, self._engine.wanted)

    def start_upload(self, work: SegmentUpload) -> None:
        """Start the upload of a segment, for which the queue has reserved a slot."""
        work.uploading = True
        self.p.uploading += 1
        upload = asyncio.get_running_loop().create_task(self._upload(work, self.p.claim_epoch))
        self._uploads[upload] = None
        upload.add_done_callback(self._upload_ended)
        self._engine.track(self.p)

    def _upload_ended(self, upload: asyncio.Task[None]) -> None:
        """Free the slot of an upload that ended, also if it was cancelled before its first step."""
        del self._uploads[upload]
        self.p.uploading -= 1
        self._engine.queue.ended()
        self._engine.queue.offer(self)
        self._engine.changed(self.p)
        if not upload.cancelled() and (bug := upload.exception()) is not None:
            self._engine.crash(bug)

    async def _upload(self, work: SegmentUpload, claim_epoch: int) -> None:
        p, engine, segment = self.p, self._engine, work.segment
        step = Step(StepKind.UPLOAD, p.tp.topic, p.tp, size_bytes=segment.size_bytes)
        steps = engine.bucket.steps
        room = engine.bucket.room(partial(steps.upload_bytes, p.tp, segment), reads_disk=True)
        row = await engine.attempt(
            step,
            lambda: engine.bucket.drive(
                steps.upload(p.tp, segment, claim_epoch, deadline_seconds=engine.put_seconds())
            ),
            room,
        )
        if p.claim_epoch != claim_epoch or p.phase is not Phase.CLAIMED:
            return  # the claim is gone: no epoch adopts another's uploads
        work.uploading = False
        if isinstance(row, Failure):
            engine.failed(p, row, f"uploading {p.tp} from offset {segment.base}")
        elif not partition.matches(row, work, claim_epoch):
            text = f"the row {row.base}..{row.next} is not the segment {segment.base}"
            engine.failed(p, Failure(FailureKind.FATAL, "internal", text), "uploading")
        else:
            work.row, work.stored_ms = row, engine.now_ms()
            if not p.is_refused:
                engine.succeeded(p, "uploading")

    async def _commit(self) -> None:
        """Commit the uploaded segments that follow the committed end. Other uploads continue meanwhile."""
        p, engine = self.p, self._engine
        p.committing = True
        engine.track(p)
        try:
            async with engine.commits:
                epoch, rows = p.claim_epoch, partition.rows_due(p, engine.limits, engine.now_ms())
                if not rows:
                    return
                step = Step(StepKind.COMMIT, p.tp.topic, p.tp, records=rows[-1].next - rows[0].base)
                steps = engine.bucket.steps
                room = engine.bucket.room(partial(steps.commit_bytes, p.tp, rows), reads_disk=False)
                commit = steps.commit(p.tp, epoch, rows)
                found = await engine.attempt(step, partial(engine.bucket.drive, commit), room)
        finally:
            p.committing = False
        if p.claim_epoch == epoch and p.phase is Phase.CLAIMED:
            self._committed(rows, found)
        engine.changed(p)

    def _committed(self, rows: tuple[Row, ...], found: Root | Failure) -> None:
        """Apply the result of a commit: the root that was read back, or the failure.

        After an unknown outcome the claim is dropped, and the next claim reads the root. A refused commit is repeated
        under the same claim.
        """
        p, engine, end = self.p, self._engine, rows[-1].next
        if isinstance(found, Failure):
            if found.kind is FailureKind.FENCED:
                engine.fence(p, found)
                return
            if found.kind is FailureKind.UNKNOWN:
                p.doubt_end = end
                engine.drop_claim(p)
            engine.failed(p, found, p.committing_text)
            return
        if found.next_offset >= end:  # otherwise the root does not hold the rows
            p.committed = end
            p.remote_start = max(p.remote_start, found.start_offset)
            p.forget_committed()
            if p.positions_to_copy() is None:  # otherwise once the positions are copied, too: a sync waits for the note
                engine.note(p)
        if found.next_offset != end:  # another's rows follow ours
            text = f"the root read back ends at {found.next_offset}, not at {end}"
            engine.drop_claim(p)
            engine.failed(p, Failure(FailureKind.UNKNOWN, "commit_unknown", text, exit_code=75), p.committing_text)
            return
        engine.succeeded(p, "committing")
        fields = (("segments", len(rows)), ("uploaded_offset", p.committed))
        engine.report(Report(logging.INFO, "committed", f"{segments_are(len(rows))} in the catalog", p.tp, fields))

    async def _copy(self) -> None:
        """Copy the positions of groups, after the root that covers them was read back."""
        p, engine, epoch, positions = self.p, self._engine, self.p.claim_epoch, self.p.positions_to_copy()
        if positions is None:
            return
        p.committing = True
        engine.track(p)
        try:
            async with engine.commits:
                copying = engine.bucket.steps.copy_positions(p.tp, epoch, positions)
                step = Step(StepKind.COPY, p.tp.topic, p.tp)
                done = await engine.attempt(step, partial(engine.bucket.drive, copying))
        finally:
            p.committing = False
        if p.claim_epoch != epoch or p.phase is not Phase.CLAIMED:
            return
        if not isinstance(done, Failure):
            p.copied = positions
            engine.succeeded(p, "copying positions of groups")
            engine.note(p)
        elif done.kind is FailureKind.FENCED:
            engine.fence(p, done)
        else:
            engine.failed(p, done, f"copying positions of groups in {p.tp}")
        engine.changed(p)

    async def _end_uploads(self) -> None:
        await asyncio.wait(list(self._uploads))


class Wakeup:
    """Event for one waiting coroutine. If it is set while the coroutine works, the next wait returns at once."""

    def __init__(self) -> None:
        self._changed = False
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> None:
        """End the present wait. If none is in progress, the next one ends at once."""
        self._changed = True
        self._end()

    def _end(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until :meth:`set` is called, at most ``seconds`` (None: for ever). Return False after a time-out."""
        if not self._changed:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = None if seconds is None else loop.call_later(max(0.0, seconds), self._end)
            try:
                await self._waiting
            finally:
                self._waiting = None
                if timer is not None:
                    timer.cancel()
        changed, self._changed = self._changed, False
        return changed


HEAP_SLACK = 64


class UploadQueue:
    """Queue of partitions for upload slots, the oldest records first. Use it on the event loop only.

    At most ``limits.uploads`` uploads run; a cancelled upload counts until it has ended. A partition with a quarter of
    the slots gets another one only while no other partition waits.
    """

    def __init__(self, limits: Callable[[], EngineLimits]) -> None:
        self._limits = limits
        self.running = 0
        self._waiting: dict[TopicPartition, tuple[bool, int, Worker]] = {}
        self._heap: list[tuple[bool, int, TopicPartition]] = []  # with stale entries, dropped when they come up
        self._filling = False

    def offer(self, worker: Worker) -> None:
        """Put a worker's partition into the queue if one of its uploads may begin. Otherwise remove it.

        An older entry of the partition is replaced.
        """
        p, work = worker.p, worker.upload_due()
        if work is None:
            self._waiting.pop(p.tp, None)
            return
        over, first_ms = p.uploading >= self._limits().share, work.segment.first_ms
        known = self._waiting.get(p.tp)
        self._waiting[p.tp] = (over, first_ms, worker)
        if known is None or known[:2] != (over, first_ms):
            heapq.heappush(self._heap, (over, first_ms, p.tp))
            if len(self._heap) > 2 * len(self._waiting) + HEAP_SLACK:
                self._heap = [(*each[:2], tp) for tp, each in self._waiting.items()]
                heapq.heapify(self._heap)
        self.fill_soon()

    def withdraw(self, worker: Worker) -> None:
        """Remove a partition from the queue."""
        known = self._waiting.get(worker.p.tp)
        if known is not None and known[2] is worker:
            del self._waiting[worker.p.tp]

    def ended(self) -> None:
        """Free the slot of an upload that ended."""
        self.running -= 1
        self.fill_soon()

    def fill_soon(self) -> None:
        """Fill free slots soon, once the event loop has added all partitions of a scan to the queue."""
        if not self._filling and self._waiting and self.running < self._limits().uploads:
            self._filling = True
            asyncio.get_running_loop().call_soon(self._fill)

    def _fill(self) -> None:
        while self.running < self._limits().uploads and self._heap:
            over, first_ms, tp = heapq.heappop(self._heap)
            known = self._waiting.get(tp)
            if known is None or known[:2] != (over, first_ms):
                continue
            del self._waiting[tp]
            worker = known[2]
            work = worker.upload_due()
            if work is None:
                continue
            if (worker.p.uploading >= self._limits().share, work.segment.first_ms) == (over, first_ms):
                self.running += 1
                worker.start_upload(work)
            self.offer(worker)
        self._filling = False
