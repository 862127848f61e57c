"""Run of the upload engine for ``log.sync()`` or for an adoption, on a thread of its own and on an open log.

Failures are not retried here: the caller decides about a wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tiered.engine.bucket import StepBucket
from tiered.engine.engine import Engine
from tiered.engine.failure import NONE_MS
from tiered.engine.partition import PAUSED_HINT, EngineLimits, Partition, PartitionSeen, Phase, SegmentRef
from tiered.engine.reports import Report, Step, StepKind
from tiered.errors import (
    CorruptionError,
    DataLocalError,
    FencedError,
    LogDestroyedError,
    OffsetGapError,
    TieredError,
)
from tiered.format.locks import SafeEvent
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.model import TopicPartition
from tiered.plan.pacing import Pause
from tiered.remote.roots import REGISTRATION_REQUESTS
from tiered.store.aio_driver import DaemonLoop, in_thread, to_its_end
from tiered.store.base import Steps
from tiered.store.threads import ThreadPool
from tiered.store.unique_upload import PUT_DEADLINE_SECONDS

if TYPE_CHECKING:
    from tiered.engine.tiering import Tiering


LIMITS = EngineLimits(commit_wait_ms=1 << 40, seal_idle_ms=NONE_MS)
"""Limits of a run: it commits when no upload is in progress, so that it needs few commits."""
TOGETHER = LIMITS.claims
"""Concurrent claims and uploads of a run. The limits bound the uploads further."""
ALONE = (FencedError, OffsetGapError, CorruptionError, LogDestroyedError)
"""Errors that concern one partition only: the run continues with the others."""

_logger = logging.getLogger("tiered.engine")

T = TypeVar("T")


LOOPS = 64
"""Limit of concurrent runs in one process."""

_THREADS = ThreadPool(LOOPS, "tiered-engine")


class SyncRun:
    """Run of the engine on an open log, on a thread and event loop of its own. It does not retry.

    A failure that concerns more than one partition ends the run, after the running steps.
    """

    def __init__(self, tiering: Tiering, deadline: float | None) -> None:
        """``deadline``: monotonic time in seconds after which no upload begins; None: no limit."""
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
        """Upload until each partition is committed up to its offset in ``ends``, or fails. Return errors by partition.

        A partition without an error may be below its offset, if an error of another one ended the run. ``claims``:
        claim each partition again, without an upload, also if uploads are paused.
        """
        self._ends = ends
        self._heeds_pauses = not claims  # a claim sends nothing, and a log cannot begin without
        pauses = self._tiering.pauses.read() if self._heeds_pauses else {}
        partitions = run_apart(partial(self._carry, pauses, claims=claims))
        self._tiering.copied.update({tp: p.copied for tp, p in partitions.items() if p.copied is not None})
        return {tp: error for tp, end in ends.items() if (error := self._verdict(partitions[tp], end)) is not None}

    async def _carry(self, pauses: Mapping[str, Pause], *, claims: bool) -> Mapping[TopicPartition, Partition]:
        """Run the engine until it is idle, and return its table."""
        tiering = self._tiering
        with ThreadPool(TOGETHER, "tiered-engine") as pool:
            bucket = InlineBucket(tiering, pool)
            self._engine = engine = Engine(
                bucket,
                now_ms=lambda: int(self._clock.monotonic() * 1000),
                monotonic=self._clock.monotonic,
                dice=tiering.ids,
                limits=LIMITS,
                listener=self,
                note=self._record_upload,
                in_call=True,
            )
            bucket.is_alone, engine.put_seconds = engine.is_alone, self._put_seconds
            engine.wants, engine.may_claim = self._wants, lambda: not self._is_late()
            engine.pause(pauses)
            if self._heeds_pauses:  # a claim alone copies nothing
                engine.copy(tiering.positions.read() or {})
            try:
                for tp in self._ends:
                    self._enter(engine, tp, claims=claims)
                await engine.idle()
            finally:
                await engine.stop()
                if self._writing is not None:
                    await self._writing
        return engine.partitions

    def _enter(self, engine: Engine, tp: TopicPartition, *, claims: bool) -> None:
        """Put a partition into the engine's table, with its valid claim, and the sealed segments that the bucket lacks.

        ``claims``: without both, for a run that only claims.
        """
        tiering, log = self._tiering, self._tiering.local.partition(tp)
        at = log.positions()
        start = at.uploaded_offset
        seen = PartitionSeen(
            tp, log.topic_id, at.local_start_offset, at.flushed_offset, at.end_offset, noted_offset=start
        )
        p = engine.see(seen)
        catalog = None if claims else tiering.steps.held(tp)
        if catalog is not None and catalog.root is not None:
            start = catalog.root.next_offset
            p.claimed(catalog.claim_epoch, start)
            p.copied = tiering.copied.get(tp)
            engine.topics.mark_registered(p)
        for segment in [] if claims else log.sealed_segments(start):
            if segment.base_offset < self._ends[tp]:
                p.add(SegmentRef(segment.base_offset, segment.end_offset, segment.size_bytes, segment.appended_ms))
        engine.changed(p)

    def _wants(self, p: Partition, base: int) -> bool:
        """Return True if the segment at ``base`` is below the requested offset and the deadline has not passed."""
        return base < self._ends[p.tp] and not self._is_late()

    def _is_late(self) -> bool:
        return self._deadline is not None and self._clock.monotonic() >= self._deadline

    def _put_seconds(self) -> float:
        """Return the seconds for which the upload of each object may be retried: at most until the deadline."""
        left = math.inf if self._deadline is None else max(self._deadline - self._clock.monotonic(), 0.0)
        return min(left, PUT_DEADLINE_SECONDS)

    # ------------------------------------------------------------------ callbacks of the engine

    def _record_upload(self, tp: TopicPartition, upload: PartitionUpload) -> None:
        due = self._tiering.note(tp, upload)
        if due and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(in_thread(self._tiering.write_notes))

    def report(self, report: Report) -> None:
        """Log a warning about a granted claim. Ignore other reports: :meth:`drain` returns their errors."""
        if report.event == "resumed":
            _logger.warning("%s", report.message)

    def ended(self, step: Step, error: BaseException | None, seconds: float) -> None:
        """Store the first error of each partition. An error that concerns more than one partition ends the run.

        A failed deletion of old uploads is only logged. After an upload, the present pauses are read.
        """
        del seconds
        if step.kind is StepKind.UPLOAD and error is None and self._heeds_pauses and self._engine is not None:
            self._engine.pause(self._tiering.pauses.read())
        if not isinstance(error, TieredError):
            return
        if step.kind is StepKind.SETTLE:
            _logger.warning("%s: unfinished uploads of an earlier claim are not deleted: %s", step.tp, error.message)
            return
        if step.tp is None:
            self._topic_errors[step.topic] = error
        else:
            self._errors.setdefault(step.tp, error)
        if not isinstance(error, ALONE) and self._engine is not None:
            self._stopped = True
            self._engine.halt()

    def bug(self, error: BaseException) -> None:
        """End the run with this unexpected error, which :meth:`drain` then raises."""
        if self._engine is not None:
            self._engine.crash(error)

    def _verdict(self, p: Partition, end: int) -> TieredError | None:
        """Return the error why a partition is not committed up to ``end``.

        None if it is committed, or if another partition's error ended the run.
        """
        tp = p.tp
        if tp in self._errors:
            return self._errors[tp]
        failure = p.trouble.failure
        if p.phase is Phase.FENCED and failure is not None:
            return FencedError(failure.message, hint=failure.hint)
        if p.known_committed >= end and p.positions_to_copy() is None:
            return None
        if tp.topic in self._topic_errors:
            return self._topic_errors[tp.topic]
        if self._stopped:
            return None
        if p.pause is not None:
            return DataLocalError(
                f"{tp}: not all is uploaded, offset {p.known_committed} of {end}: {p.pause}", hint=PAUSED_HINT
            )
        if p.known_committed < end and p.phase is Phase.CLAIMED and p.committed not in p.works and not self._is_late():
            first = min(p.works, default=end)
            return OffsetGapError(
                f"{tp}: the bucket ends at offset {p.committed}, but the next sealed segment on this disk "
                f"begins at {first}",
                start=p.committed,
                end=first,
                hint=f"segments were removed, or the directory belongs to another log: run `tiered check {tp.topic}`",
            )
        return DataLocalError(
            f"{tp}: the sync timed out: uploaded up to offset {p.known_committed} of {end}",
            hint="call sync() again, or run `tiered-uploader sync --wait`; the data is safe on this disk meanwhile",
        )


class InlineBucket(StepBucket):
    """The bucket of an open log: steps run on threads of the run, and on the log's own synchronous store.

    ``is_alone``: returns True if no other step waits. A step may then block the event loop.
    """

    def __init__(self, tiering: Tiering, pool: ThreadPool) -> None:
        super().__init__(tiering.steps, tiering.memory)
        self._tiering = tiering
        self._pool = pool
        self.is_alone: Callable[[], bool] = lambda: False

    async def register(self, topic: str) -> None:
        """Create or adopt the topic's registry entry. A probe, which writes, comes only before its first write."""
        await self.drive(self.steps.register(topic))

    async def drive(self, steps: Steps[T], *, together: int = REGISTRATION_REQUESTS) -> T:
        del together
        if self.is_alone():
            return self._tiering.asked(steps)  # on the loop's thread, where nothing else waits: no hop to another one
        return await to_its_end(partial(self._tiering.asked, steps), self._pool)


def run_apart(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine on a new thread with an event loop of its own, and return its result.

    An interrupt of the calling thread cancels the coroutine, waits for its end, and is then raised.
    """
    run = _Run(work)
    try:
        _THREADS.submit(run.main)
        return run.result()
    except BaseException:
        run.cancel()
        raise


class _Run(Generic[T]):
    """One coroutine with its event loop, which the thread of :meth:`main` creates and closes."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._begun = False
        self._ended = SafeEvent()
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False

    def main(self) -> None:
        """Run the coroutine on this thread, unless it is cancelled already."""
        self._begun = True
        try:
            if not self._cancelled:  # looked at after ``_begun`` is set: a cancel waits, or nothing runs
                self._results.append(self._run())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            self._error = error
        finally:
            self._ended.set()

    def result(self) -> T:
        """Wait for the end. Return the coroutine's result, or raise its error."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> T:
        with asyncio.Runner(loop_factory=DaemonLoop) as runner:
            loop = runner.get_loop()
            self._task = loop.create_task(self._work())
            self._loop = loop
            if self._cancelled:  # looked at after the loop is known: no cancel falls between the two
                self._task.cancel()
            return loop.run_until_complete(self._task)

    def cancel(self) -> None:
        """Cancel the coroutine, from another thread, and wait for its end."""
        self._cancelled = True
        if not self._begun or self._ended.is_set():
            return
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the coroutine has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._ended.wait()
