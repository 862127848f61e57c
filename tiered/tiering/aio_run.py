"""The only tasks: carries out what the state orders, bounded and with time limits, and tells it what came of it.

One event loop, one state, one event at a time. Every order is one task; its end, whatever it is, becomes exactly one
event. Blocking work on the log directory runs in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tiered.clock import Clock, IdSource
from tiered.errors import CommitUnknown, RemoteUnavailableError, TieredError
from tiered.local.disk.uploads import PartitionUpload
from tiered.model import TopicPartition
from tiered.plan.tiering import facts, orders
from tiered.plan.tiering.facts import Failure
from tiered.plan.tiering.state import State
from tiered.remote.roots import REGISTRATION_REQUESTS
from tiered.store.aio_driver import adrive, in_thread
from tiered.store.base import AioStore, Steps
from tiered.store.driver import TOGETHER_REQUESTS
from tiered.store.limit import Slots
from tiered.tiering.directory import LogDirectory
from tiered.tiering.journal import Journal
from tiered.tiering.steps import BucketSteps, PartSizes

SCAN_MS = 5_000
TICK_MS = 1_000
ORDER_SECONDS = 120.0
"""Limit of a claim, a registration, a settlement, a seal; a commit has its own, shorter one inside."""

UPLOAD_SECONDS = 300.0
UPLOAD_BYTES_PER_SECOND = 50_000
"""An upload may take ``UPLOAD_SECONDS`` and, on top, its size at this rate."""

NOTE_RETRY_SECONDS = 1.0
NOTE_PAUSE_SECONDS = 0.000_2
"""Pause after a write of the checkpoint, for each partition that it names: about ten times what writing one costs."""
RESUME_RETRY_SECONDS = 10.0
SCAN_PAUSES = 9
"""A drain looks at the disk again and again, but for no more than a tenth of its time."""
EVENTS_AT_ONCE = 256
"""Events of one scan that are told before the loop turns."""


T = TypeVar("T")


class Bucket:
    """The engine's steps on one store, one log directory, one event loop: coroutines that raise ``TieredError``."""

    def __init__(
        self,
        store: AioStore,
        directory: LogDirectory,
        journal: Journal,
        *,
        clock: Clock,
        ids: IdSource,
        owner: str,
        sizes: PartSizes,
        memory: Slots | None = None,
    ) -> None:
        """``memory``: bytes that uploads and commits hold, shared with others; None: not counted."""
        self._store = store
        self._memory = memory
        self._clock = clock
        self._ids = ids
        self.steps = BucketSteps(store.url, directory, lambda: journal, owner=owner, sizes=sizes)
        self._probing = asyncio.Lock()

    @property
    def is_reachable(self) -> bool:
        """Whether the store has answered the probe."""
        return self.steps.capabilities is not None

    async def carry_out(self, order: orders.AtTheBucket) -> facts.Answer:
        """What came of an order; the store is probed once before all of them."""
        if self.steps.capabilities is None:
            async with self._probing:
                await self.drive(self.steps.probe())
        many = isinstance(order, orders.RegisterTopic | orders.Claim)
        steps, told = self.steps.carry_out(order)
        return told(await self.drive(steps, together=REGISTRATION_REQUESTS if many else TOGETHER_REQUESTS))

    @contextlib.asynccontextmanager
    async def room_for(self, order: orders.Order) -> AsyncIterator[None]:
        """Waits until there is memory for what ``order`` holds. Raises as the order itself where it cannot be told."""
        if self._memory is None or not isinstance(order, orders.Upload | orders.Commit):
            yield
            return
        waits = isinstance(order, orders.Upload)  # for the disk, which tells how long its indexes are
        held = await in_thread(self.steps.held_bytes, order) if waits else self.steps.held_bytes(order)
        async with self._memory.aio_turn(held):
            yield

    async def drive(self, steps: Steps[T], *, together: int = TOGETHER_REQUESTS) -> T:
        """The value of the steps."""
        return await adrive(self._store, steps, clock=self._clock, ids=self._ids, together=together)

    async def close(self) -> None:
        """Releases connections."""
        await self._store.close()


@dataclass(frozen=True, slots=True)
class Timing:
    """Periods in milliseconds; the rate at which the slowest upload is still waited for."""

    scan_ms: int = SCAN_MS
    tick_ms: int = TICK_MS
    upload_bytes_per_second: float = UPLOAD_BYTES_PER_SECOND

    def seconds_of(self, order: orders.Order) -> float:
        """How long an order may take."""
        if isinstance(order, orders.Upload):
            return UPLOAD_SECONDS + order.segment.size_bytes / self.upload_bytes_per_second
        return ORDER_SECONDS


class Telling(Protocol):
    """Callbacks that hear of the outcome of the work."""

    def report(self, report: orders.Report) -> None:
        """What the state says."""

    def answered(self, action: orders.Action, error: BaseException | None, seconds: float) -> None:
        """An order has ended."""

    def disk(self, free_bytes: int, used_percent: int) -> None:
        """Free bytes of the log's disk, and how many percent of it are used."""

    def trouble(self, event: str, error: BaseException) -> None:
        """Something beside the orders failed."""

    def bug(self, error: BaseException) -> None:
        """What is not in the error tree."""

    def tick(self, partitions: int, behind: int) -> None:
        """The loop turns."""


class Runner:
    """Drives one state. ``run`` returns the ``Exit`` that the state ordered."""

    def __init__(
        self,
        state: State,
        bucket: Bucket,
        directory: LogDirectory,
        *,
        clock: Clock,
        telemetry: Telling,
        timing: Timing | None = None,
    ) -> None:
        self._state = state
        self._bucket = bucket
        self._directory = directory
        self._clock = clock
        self._telemetry = telemetry
        self.timing = timing or Timing()
        self.has_scanned = False
        self.scan_failure: TieredError | None = None  # of the last look: what the disk holds by now is not known
        self._start = (clock.now_ms(), clock.monotonic())
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._notes: dict[TopicPartition, PartitionUpload] = {}
        self._noted = asyncio.Event()
        self._resuming = asyncio.Event()
        self._scan_seconds = 0.0
        self._scan_now = asyncio.Event()
        self._scanning = asyncio.Lock()
        self._drains: list[tuple[facts.DrainMode, int]] = []
        self._draining: list[asyncio.Task[None]] = []
        self._early: list[facts.DrainRequested] = []
        self._timer: asyncio.TimerHandle | None = None
        self._exit: asyncio.Future[orders.Exit] | None = None
        self._beat = clock.monotonic()

    def beat_age_ms(self) -> int:
        """How long ago the loop last turned."""
        return int((self._clock.monotonic() - self._beat) * 1000)

    def now_ms(self) -> int:
        """Wall-clock time that never goes back: where it was at the start, and the monotonic clock since."""
        wall_ms, monotonic = self._start
        return wall_ms + int((self._clock.monotonic() - monotonic) * 1000)

    def _catch_up(self) -> None:
        """Goes by the wall clock where that is ahead: the machine slept, or its clock was set.

        Files are dated by it, and so is told what waits for how long. Not once a deadline counts.
        """
        ahead_ms = self._clock.now_ms() - self.now_ms()
        if ahead_ms > 0 and self.has_scanned and not self.is_draining:
            wall_ms, monotonic = self._start
            self._start = (wall_ms + ahead_ms, monotonic)

    async def run(self, *, first: facts.DrainRequested | None = None) -> orders.Exit:
        """Scans, works, ends when the state says so. ``first`` is told after the first scan."""
        self._exit = asyncio.get_running_loop().create_future()
        loops = (self._keep_noting(), self._keep_ticking(), self._keep_resuming())
        background = [asyncio.create_task(loop) for loop in loops]
        try:
            with contextlib.suppress(TieredError):  # the next scan says so
                await self._look_at_disk()
            await self._scan()
            for request in ([first] if first is not None else []) + self._early:
                self.post(request)
            self._begin_drains()
            background.append(asyncio.create_task(self._keep_scanning()))
            return await self._until_exit(background)
        finally:
            await self._stop([*background, *self._draining])

    async def _until_exit(self, background: list[asyncio.Task[None]]) -> orders.Exit:
        """The exit, or the error of a loop that must never end: a silent half-dead uploader is the worst outcome."""
        if self._exit is None:
            raise RuntimeError("run() was not called")
        waited: list[asyncio.Future[Any]] = [self._exit, *background]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        for task in background:
            if task.done():
                task.result()
        return await self._exit

    def post(self, event: facts.Event) -> None:
        """Tells the state, carries out its answer. On the event loop only."""
        for action in self._state.handle(event, self.now_ms()):
            self._carry_out(action)

    def poke(self) -> None:
        """Look at the disk now, and try now what waits after a failure."""
        self.post(facts.Poked())
        self._scan_now.set()

    @property
    def is_draining(self) -> bool:
        """Whether an end was asked for."""
        return self._state.is_draining or bool(self._drains or self._draining or self._early)

    def drain(self, mode: facts.DrainMode, wait_ms: int) -> None:
        """The last drain: looks at the disk first, so that all that was appended before this call is in it."""
        self._drains.append((mode, self.now_ms() + wait_ms))
        if self._exit is not None and self.has_scanned:
            self._begin_drains()

    def end_now(self) -> None:
        """The last drain without a wait."""
        self._post_later(facts.DrainRequested(facts.DrainMode.INFLIGHT, self.now_ms(), last=True))

    def finish(self, wait_ms: int) -> None:
        """Ends with what is being uploaded, at once if an end was asked for before."""
        until_ms = self.now_ms() + (0 if self.is_draining else wait_ms)
        self._post_later(facts.DrainRequested(facts.DrainMode.INFLIGHT, until_ms))

    def _post_later(self, request: facts.DrainRequested) -> None:
        """Now, or once there is a run that it can end."""
        if self._exit is None:
            self._early.append(request)
        else:
            self.post(request)

    def _begin_drains(self) -> None:
        drains, self._drains = self._drains, []
        self._draining += [asyncio.create_task(self._look_and_drain(mode, until_ms)) for mode, until_ms in drains]

    async def _look_and_drain(self, mode: facts.DrainMode, until_ms: int) -> None:
        try:
            await self._scan()
        except (TieredError, OSError) as error:  # the look before the end fails too, and says so in its status
            self._telemetry.trouble("scan_failed", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the end that was asked for has to come
            self._telemetry.bug(error)
        self.post(facts.DrainRequested(mode, until_ms, last=True))
        self._scan_now.set()  # the pause between two scans is a short one from now on

    def _carry_out(self, action: orders.Action) -> None:
        match action:
            case orders.Note(tp, end_offset, claim_epoch, fenced, start_offset):
                self._notes[tp] = PartitionUpload(end_offset, claim_epoch, fenced, start_offset)
                self._noted.set()
            case orders.Report():
                self._telemetry.report(action)
            case orders.RetryAt(at_ms):
                if self._timer is not None:
                    self._timer.cancel()
                delay = max(0, at_ms - self.now_ms()) / 1000
                self._timer = asyncio.get_running_loop().call_later(delay, self.post, facts.Tick())
            case orders.CancelUpload(upload):
                task = self._tasks.get(upload)
                if task is not None:
                    task.cancel()
            case orders.Exit():
                if self._exit is not None and not self._exit.done():
                    self._exit.set_result(action)
            case _:
                self._tasks[action.order] = asyncio.create_task(self._answer(action))

    async def _answer(self, action: orders.Order) -> None:
        """One order, one event; also when it was cancelled, ran out of time, or hit a bug."""
        begun = self._clock.monotonic()
        seconds = self.timing.seconds_of(action)
        error: BaseException | None = None
        event: facts.Event
        try:
            async with self._bucket.room_for(action):  # its time begins when it does
                begun = self._clock.monotonic()
                async with asyncio.timeout(seconds):
                    event = await self._do(action)
        except asyncio.CancelledError:
            if self._exit is None or self._exit.done():
                raise
            error = RemoteUnavailableError("cancelled")
        except (TieredError, OSError, TimeoutError) as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001 - whatever it is, the order must be answered, or its slot is lost
            self._telemetry.bug(raised)
            error = raised
        if error is not None:
            if isinstance(action, orders.Commit) and isinstance(error, TimeoutError):
                error = CommitUnknown(f"{action.tp}: the commit was not answered within {seconds:.0f} s")
            event = facts.Failed(action.order, Failure.of(error))
        self._telemetry.answered(action, error, self._clock.monotonic() - begun)
        self._tasks.pop(action.order, None)
        self.post(event)

    async def _do(self, order: orders.Order) -> facts.Event:
        if isinstance(order, orders.Seal):
            by_writer = await in_thread(self._directory.seal)
            await self._scan()
            return facts.SealDone(order.order, by_writer)
        if isinstance(order, orders.Look):
            await self._scan()
            return facts.Done(order.order)
        answer = await self._bucket.carry_out(order)
        if isinstance(answer, facts.ClaimDone) and answer.resumes:
            self._resuming.set()
        return answer

    # ------------------------------------------------------------------ loops

    async def _scan(self) -> None:
        """Looks one at a time: what an older look saw must not be handled after what a newer one saw."""
        async with self._scanning:
            begun = self._clock.monotonic()
            try:
                events = await in_thread(self._directory.scan)
            except TieredError as failure:
                self.scan_failure = failure
                raise
            self.scan_failure = None
            self._scan_seconds = self._clock.monotonic() - begun
            for number, event in enumerate(events, 1):
                self.post(event)
                if number % EVENTS_AT_ONCE == 0:
                    await asyncio.sleep(0)  # what was ordered begins, and probes are answered
            for error in self._directory.unreadable().values():
                self._telemetry.trouble("partition_unreadable", error)
        self.has_scanned = True

    async def _look_at_disk(self) -> None:
        space = await in_thread(self._directory.disk)
        if space is None:
            return
        free, used = space
        self._telemetry.disk(free, used)
        if used >= self._state.limits.disk_warn_percent:
            self.post(facts.DiskLow(free, used))

    async def _keep_scanning(self) -> None:
        """Scans for ever; a scan that fails is told and tried again."""
        while True:
            self._scan_now.clear()
            pause = self.timing.scan_ms
            if self._state.is_draining:
                pause = max(min(pause, TICK_MS // 5), int(self._scan_seconds * 1000 * SCAN_PAUSES))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause / 1000):  # before Python 3.12 wait_for may lose a cancellation
                    await self._scan_now.wait()
            try:
                await self._scan()
                await self._look_at_disk()
            except TieredError as error:
                self._telemetry.trouble("scan_failed", error)

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(self.timing.tick_ms / 1000)
            self._beat = self._clock.monotonic()
            self._catch_up()
            self.post(facts.Tick())
            self._telemetry.tick(*self._state.counts())
            with contextlib.suppress(TieredError):  # the next scan says so
                if self.has_scanned and await in_thread(self._directory.has_news):
                    self._scan_now.set()

    async def _keep_noting(self) -> None:
        """Writes what is noted; what cannot be written is kept and tried again.

        The file names every partition, so a pause follows that grows with their number: what is noted meanwhile shares
        the next write, and the cost of a commit does not grow with the partitions beside it.
        """
        while True:
            await self._noted.wait()
            self._noted.clear()
            named = await self._write_notes()
            if named < 0:
                await asyncio.sleep(NOTE_RETRY_SECONDS)
                self._noted.set()
            else:
                await asyncio.sleep(named * NOTE_PAUSE_SECONDS)

    async def _write_notes(self) -> int:
        """How many partitions the checkpoint names now, -1 if it could not be written."""
        notes = dict(self._notes)
        if not notes:
            return 0
        try:
            named = await in_thread(self._directory.note, notes)
        except (TieredError, OSError) as error:
            self._telemetry.trouble("checkpoint_failed", error)
            return -1
        for tp, written in notes.items():  # kept until written: a cancelled write is made again at the end
            if self._notes.get(tp) is written:
                del self._notes[tp]
        return named

    async def _keep_resuming(self) -> None:
        """Lets logs without records begin where the bucket ends: all that wait, for the directory is opened as a whole.

        Beside a writer nothing is done: it begins there itself. What fails is tried again.
        """
        while True:
            await self._resuming.wait()
            self._resuming.clear()
            try:
                await in_thread(self._directory.resume)
            except (TieredError, OSError) as error:
                self._telemetry.trouble("resume_failed", error)
                await asyncio.sleep(RESUME_RETRY_SECONDS)
                self._resuming.set()
            else:
                self._scan_now.set()

    async def _stop(self, background: list[asyncio.Task[None]]) -> None:
        """Cancels what is under way (the journal names it for the next start) and writes the last notes."""
        if self._exit is not None and not self._exit.done():
            self._exit.cancel()
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*background, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._write_notes()
