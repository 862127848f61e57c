"""Run of the daemon: it scans a log directory, feeds the engine, writes the checkpoint, and ends with a drain.

::

    scan of the disk ──> Engine ──> notes ──> checkpoint        the directory, which another process may write
    tick, seal, resume                                          every loop is one method; each fails alone and goes on
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tiered.clock import Clock, IdSource
from tiered.engine.bucket import Bucket
from tiered.engine.disk import LogDirectory
from tiered.engine.drain import Drain, Ending, Sealer
from tiered.engine.engine import Engine
from tiered.engine.partition import EngineLimits
from tiered.engine.reports import DaemonListener, Exit, Report, Step, StepKind
from tiered.engine.scanner import Look
from tiered.engine.status import PartitionView
from tiered.engine.worker import Wakeup
from tiered.errors import TieredError
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.model import TopicPartition
from tiered.store.aio_driver import in_thread
from tiered.store.threads import ThreadPool

SCAN_MS = 5_000
TICK_MS = 1_000
STEP_SECONDS = 120.0
"""Time limit of a claim, a registration, a sweep, a commit, a seal."""

UPLOAD_SECONDS = 300.0
UPLOAD_BYTES_PER_SECOND = 50_000
"""Slowest rate of an upload: its limit is ``UPLOAD_SECONDS`` plus its size at this rate."""

NOTE_RETRY_SECONDS = 1.0
NOTE_PAUSE_SECONDS = 0.000_2
"""Pause after a write of the checkpoint, for each partition in it: about ten times the cost of its write."""
RESUME_RETRY_SECONDS = 10.0
CLOSE_SECONDS = 10.0
"""Longest wait of the end of a run for its threads: one may have the log open, and has to close it."""
SCAN_PAUSES = 9
"""Length of the pause between scans in a drain, as a multiple of a scan's duration: at most a tenth of the time."""
IDLE_PAUSES = 250
"""Length of the pause after a scan without changes, as a multiple of its duration."""
SEEN_AT_ONCE = 256
"""Partitions of one scan that are processed before the loop turns."""

T = TypeVar("T")

DIRECTORY_THREADS = 2
"""Threads for work on all partitions, few because the memory allocator keeps large buffers in each thread."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Periods of the run in milliseconds, and the slowest rate at which an upload does not time out."""

    scan_ms: int = SCAN_MS
    tick_ms: int = TICK_MS
    upload_bytes_per_second: float = UPLOAD_BYTES_PER_SECOND

    def seconds_of(self, step: Step) -> float:
        """Return the time limit of a step in seconds."""
        if step.kind is not StepKind.UPLOAD:
            return STEP_SECONDS
        return UPLOAD_SECONDS + step.size_bytes / self.upload_bytes_per_second


class DirectoryRun:
    """Run of the daemon over one log directory. Use it on the event loop only.

    :meth:`run` returns an Exit: the program's exit status, with a reason and a hint.
    """

    def __init__(
        self,
        bucket: Bucket,
        directory: LogDirectory,
        *,
        clock: Clock,
        ids: IdSource,
        limits: EngineLimits,
        listener: DaemonListener,
        timing: Timing | None = None,
        lazy: bool = False,
    ) -> None:
        """``lazy`` (one-shot runs): claim no partition whose records are all committed, as the checkpoint shows."""
        self._directory = directory
        self._threads = ThreadPool(DIRECTORY_THREADS, "tiered-directory")
        self._clock = clock
        self._listener = listener
        self._start = (clock.now_ms(), clock.monotonic())
        self.engine = Engine(
            bucket,
            now_ms=self.now_ms,
            monotonic=clock.monotonic,
            dice=ids,
            limits=limits,
            listener=listener,
            note=self._record_upload,
        )
        self.engine.lazy = lazy
        self._sealer = Sealer(self.engine, self._seal)
        self._ending = Ending(self.engine, self._sealer, self._scan)
        self.set_timing(timing or Timing())
        self.has_scanned = False
        self.scan_failure: TieredError | None = None  # the last scan's: the disk's state is unknown since
        self._notes: dict[TopicPartition, PartitionUpload] = {}
        self._noted = Wakeup()
        self._resuming = Wakeup()
        self._scan_seconds = 0.0
        self._scan_now = Wakeup()
        self._scanning = asyncio.Lock()
        self._requests: list[tuple[Drain, bool]] = []
        self._draining: list[asyncio.Task[None]] = []
        self._running = False
        self._disk_reported_ms: int | None = None
        self._beat = clock.monotonic()
        self.engine.when_resuming = self._resuming.set

    # ------------------------------------------------------------------ time

    def set_timing(self, timing: Timing) -> None:
        """Replace the periods of scans and ticks, and the rate that limits the time of an upload."""
        self.timing = timing
        self.engine.seconds_of = timing.seconds_of

    def reconfigure(self, limits: EngineLimits) -> None:
        """Replace the limits, except the numbers of concurrent claims and commits, which stay those of the start."""
        self.engine.reconfigure(limits)
        self._ending.review()

    def beat_age_ms(self) -> int:
        """Return the ms since the last tick of the run. A high value shows that the event loop hangs."""
        return int((self._clock.monotonic() - self._beat) * 1000)

    def now_ms(self) -> int:
        """Return the wall-clock time in ms. It never goes back, even if the system's clock does."""
        wall_ms, monotonic = self._start
        return wall_ms + int((self._clock.monotonic() - monotonic) * 1000)

    def _catch_up(self) -> None:
        """Move the run's time forward to the wall clock, if the machine slept or its clock was set.

        Not during a drain, because its deadline would come too early.
        """
        ahead_ms = self._clock.now_ms() - self.now_ms()
        if ahead_ms > 0 and self.has_scanned and not self.is_draining:
            wall_ms, monotonic = self._start
            self._start = (wall_ms + ahead_ms, monotonic)

    def views(self) -> list[PartitionView]:
        """Return the status of each partition, for ``status`` and the metrics."""
        return self.engine.views(self.now_ms())

    # ------------------------------------------------------------------ the run and its end

    async def run(self) -> Exit:
        """Scan and upload until a drain has ended. Return the exit status of the program, with a reason and a hint.

        Raises the error of the first scan, and an unexpected error of a background loop.
        """
        self._running = True
        loops = (self._keep_noting(), self._keep_ticking(), self._keep_resuming(), self._sealer.run())
        background: list[asyncio.Task[Any]] = [asyncio.create_task(loop) for loop in loops]
        try:
            with contextlib.suppress(TieredError):  # the next look says so
                await self._check_disk()
            await self._scan()
            self._start_drains()
            background.append(asyncio.create_task(self._keep_scanning()))
            ending = asyncio.create_task(self._ending.run())
            background.append(ending)
            waited: list[asyncio.Future[Any]] = [ending, self.engine.bugs, *background]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            for each in waited:  # a loop that must never end has failed: a half-dead uploader is the worst outcome
                if each is not ending and each.done():
                    each.result()
            return await ending
        finally:
            await self._stop([*background, *self._draining])

    def scan_now(self) -> None:
        """Scan the disk now, and end the waits for retries after failures that time cures."""
        self.engine.scan_now()
        self._scan_now.set()

    @property
    def is_draining(self) -> bool:
        """Return True once a drain was requested."""
        return self._ending.drain is not None or bool(self._requests or self._draining)

    def drain(self, drain: Drain, *, scan: bool = False) -> None:
        """Start ``drain``, at first after the first scan of the run, and end the run with it.

        ``scan``: scan once more first, which finds all records that were appended before this call.
        """
        self._requests.append((drain, scan))
        if self._running and self.has_scanned:
            self._start_drains()

    def _start_drains(self) -> None:
        requests, self._requests = self._requests, []
        for drain, scan in requests:
            if scan:
                self._draining.append(asyncio.create_task(self._scan_and_drain(drain)))
            else:
                self._ending.start_drain(drain)

    async def _scan_and_drain(self, drain: Drain) -> None:
        try:
            await self._scan()
        except (TieredError, OSError) as error:  # the last scan fails too, and its status reports it
            self._listener.trouble("scan_failed", error)
        except Exception as error:  # noqa: BLE001 - any bug: the requested end has to come
            self._listener.bug(error)
        self._ending.start_drain(drain)
        self._scan_now.set()  # the pause between two scans is short from now on

    async def _stop(self, background: list[asyncio.Task[Any]]) -> None:
        """Cancel the work in progress, and write the last committed ends. The journal names cancelled uploads."""
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await self.engine.stop()
        await self._write_notes()
        with contextlib.suppress(TimeoutError):  # a disk that does not answer keeps no process alive
            async with asyncio.timeout(CLOSE_SECONDS):
                await in_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    # ------------------------------------------------------------------ what is on the disk

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _scan(self, *, whole: bool = True) -> None:
        """Scan the directory and apply the changes. Scans run one at a time, so that no older one is applied last."""
        async with self._scanning:
            begun = self._clock.monotonic()
            try:
                look = await self._on_disk(partial(self._directory.scan, whole=whole))
            except TieredError as failure:
                self.scan_failure = failure
                raise
            self.scan_failure = None
            self._scan_seconds = self._clock.monotonic() - begun
            await self._apply(look)
            for error in self._directory.unreadable().values():
                self._listener.trouble("partition_unreadable", error)
        self.has_scanned = True
        self._ending.review()

    async def _apply(self, look: Look) -> None:
        for tp in look.gone:
            self.engine.forget(tp)
        if look.writer is not None:
            self._ending.writer_is(look.writer)
        if look.pauses is not None:
            self.engine.pause(look.pauses)
        if look.positions is not None:
            self.engine.copy(look.positions)
        for number, seen in enumerate(look.seen, 1):
            self.engine.see(seen)
            if number % SEEN_AT_ONCE == 0:
                await asyncio.sleep(0)  # work begins, and probes are answered

    async def _seal(self) -> bool:
        by_writer = await self._on_disk(self._directory.seal)
        await self._scan()
        return by_writer

    async def _check_disk(self) -> None:
        space = await in_thread(self._directory.disk)
        if space is None:
            return
        free, used = space
        self._listener.disk(free, used)
        limits, now_ms, before_ms = self.engine.limits, self.now_ms(), self._disk_reported_ms
        if used < limits.disk_warn_percent or (before_ms is not None and now_ms < before_ms + limits.repeat_report_ms):
            return
        self._disk_reported_ms = now_ms
        text = f"the disk of the log is {used} % full, {free >> 20} MiB are free"
        self._listener.report(Report(logging.WARNING, "disk_low", text, None, (("free_bytes", free),)))

    async def _keep_scanning(self) -> None:
        """Scan for ever. A scan that fails is reported and retried."""
        while True:
            # Thousands of idle partitions are to cost half a percent of a core: then the pause is up to twice as long.
            pause = min(max(self.timing.scan_ms, int(self._scan_seconds * 1000 * IDLE_PAUSES)), 2 * self.timing.scan_ms)
            if self._ending.drain is not None:
                pause = max(min(pause, TICK_MS // 5), int(self._scan_seconds * 1000 * SCAN_PAUSES))
            asked = await self._scan_now.wait(pause / 1000)
            try:
                await self._scan(whole=asked or self._ending.drain is not None)  # a caller waits for the result
                await self._check_disk()
            except TieredError as error:
                self._listener.trouble("scan_failed", error)

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(self.timing.tick_ms / 1000)
            self._beat = self._clock.monotonic()
            self._catch_up()
            self._listener.tick(*self.engine.counts())
            with contextlib.suppress(TieredError):  # the next look says so
                if self.has_scanned and await in_thread(self._directory.has_news):
                    self._scan_now.set()

    # ------------------------------------------------------------------ what is written on the disk

    def _record_upload(self, tp: TopicPartition, upload: PartitionUpload) -> None:
        self._notes[tp] = upload
        self._noted.set()

    async def _keep_noting(self) -> None:
        """Write new committed ends to the checkpoint, for ever. A failed write is retried.

        The file names every partition, so a pause follows that grows with their number. Changes in the pause share the
        next write.
        """
        while True:
            await self._noted.wait()
            named = await self._write_notes()
            if named < 0:
                await asyncio.sleep(NOTE_RETRY_SECONDS)
                self._noted.set()
            else:
                await asyncio.sleep(named * NOTE_PAUSE_SECONDS)

    async def _write_notes(self) -> int:
        """Write new committed ends to the checkpoint. Return its number of partitions, -1 if the write failed."""
        notes = dict(self._notes)
        if not notes:
            return 0
        try:
            named = await self._on_disk(partial(self._directory.note, notes))
        except (TieredError, OSError) as error:
            self._listener.trouble("checkpoint_failed", error)
            return -1
        for tp, written in notes.items():  # kept until written: a cancelled write is made again at the end
            if self._notes.get(tp) is written:
                del self._notes[tp]
        return named

    async def _keep_resuming(self) -> None:
        """Move empty logs to the bucket's end after their claims, for ever. A failure is retried.

        If another process writes the directory, it moves them itself.
        """
        while True:
            await self._resuming.wait()
            try:
                await self._on_disk(self._directory.resume)
            except (TieredError, OSError) as error:
                self._listener.trouble("resume_failed", error)
                await asyncio.sleep(RESUME_RETRY_SECONDS)
                self._resuming.set()
            else:
                self._scan_now.set()
