"""The daemon beside an application: the product's runner and state on an event loop that stands still between steps."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

from tests.sim.tiers.machine import Killed, Machine, Process, SimAioStore
from tests.sim.tiers.truth import Violated
from tests.sim.tiers.virtual import VirtualLoop
from tiered.engine.bucket import Bucket
from tiered.engine.disk import LogDirectory
from tiered.engine.drain import Drain, DrainMode
from tiered.engine.journal import Journal
from tiered.engine.partition import EngineLimits
from tiered.engine.runner import DirectoryRun, Timing
from tiered.errors import LockedError, NotFoundError, TieredError
from tiered.store.layers import AioLayeredStore
from tiered.store.limit import Limits as Allowed
from tiered.store.metrics import StoreMetrics
from tiered.store.retry import Retries
from tiered.store.unique_upload import PartSizes
from uploader.metrics import Metrics
from uploader.telemetry import Notify, Telemetry

if TYPE_CHECKING:
    from tests.sim.tiers.world import World
    from tiered.engine.reports import Exit

SIZES = PartSizes(1 << 30, 8 << 20)
RETRY_SECONDS = 5.0
ENDINGS = 5


class Told(Telemetry):
    """What the daemon says; a bug in it fails the run."""

    def bug(self, error: BaseException) -> None:
        """Kept for the test."""
        if not isinstance(error, Violated):
            raise Violated(f"the daemon met {type(error).__name__}: {error}") from error
        raise error


class Daemon:
    """One at a time on a machine; ``running`` between its start and its end."""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world = world
        self.machine = machine
        self.process: Process | None = None
        self._loop: VirtualLoop | None = None
        self._main: asyncio.Task[Exit] | None = None
        self._runner: DirectoryRun | None = None

    def __str__(self) -> str:
        return f"daemon {self.machine.root.name}"

    @property
    def running(self) -> bool:
        """Whether it has something to go on with."""
        return self._loop is not None

    def act(self) -> None:
        """Starts, works for a while, or is asked to end."""
        if self.running:
            if self.world.rng.random() < 0.08 and self._runner is not None and self._loop is not None:
                self.world.note(self, "SIGTERM")
                mode = self.world.rng.choice((DrainMode.SEALED, DrainMode.INFLIGHT))
                request = Drain(mode, self._runner.now_ms() + 30_000, last=True)
                self._loop.call_soon(partial(self._runner.drain, request, scan=True))
            self.advance()
        elif self.machine.path.exists() and self.world.rng.random() < 0.5:
            self.start()

    def start(self) -> None:
        """A new process."""
        oneshot = self.world.rng.random() < 0.3
        self.process = process = Process(self.world, self.machine, str(self))
        self._loop = loop = VirtualLoop(self.world.clock)
        try:
            self._main = loop.create_task(self._life(process, oneshot))
            self.world.note(self, "oneshot" if oneshot else "daemon")
            self.advance()
        except (LockedError, NotFoundError):
            pass

    async def _life(self, process: Process, oneshot: bool) -> Exit:
        clock, ids = self.world.clock, process.ids
        directory = LogDirectory(self.machine.path, clock=clock, ids=ids, files=process.files)
        directory.acquire()
        try:
            journal = Journal(self.machine.path, directory.files)
            try:
                raw = SimAioStore(process, self._pause)
                limited = AioLayeredStore(raw, Allowed(clock=clock))
                store = AioLayeredStore(limited, Retries(clock=clock, ids=ids, deadline_seconds=RETRY_SECONDS))
                bucket = Bucket(store, directory, journal, clock=clock, ids=ids, owner=str(self), sizes=SIZES)
                told = Told(Metrics(StoreMetrics(), list), clock, notify=Notify(""))
                timing = Timing(scan_ms=2_000)
                runner = DirectoryRun(
                    bucket,
                    directory,
                    clock=clock,
                    ids=ids,
                    limits=EngineLimits(),
                    listener=told,
                    timing=timing,
                    lazy=oneshot,
                )
                self._runner = runner
                if oneshot:
                    runner.drain(Drain(DrainMode.ALL, runner.now_ms() + 60_000, oneshot=True))
                return await runner.run()
            finally:
                journal.close()
        finally:
            directory.release()

    async def _pause(self) -> None:
        await asyncio.sleep(self.world.rng.choice((0, 0, 0.01, 0.2, 2)))

    def advance(self) -> None:
        """It goes on for a moment."""
        loop, main, process = self._loop, self._main, self.process
        if loop is None or main is None or process is None:
            return
        process.fuse = self.world.fuse()
        try:
            loop.run(self._until(main, self.world.rng.choice((0, 0.05, 0.3, 3))))
        except Killed:
            self.world.note(self, "killed")
            self.bury()
            return
        if process.dead:
            self.bury()
            return
        process.fuse = -1
        if main.done():
            self._ended(main)

    async def _until(self, main: asyncio.Task[Exit], seconds: float) -> None:
        await asyncio.wait([main], timeout=seconds)

    def _ended(self, main: asyncio.Task[Exit]) -> None:
        error = main.exception()
        self.world.note(self, f"ended {error if error is not None else main.result().code}")
        self.bury()
        if error is not None and not isinstance(error, LockedError | NotFoundError):
            if isinstance(error, TieredError):
                self.world.tolerated(error, self.world.truth_on(self.machine))
            else:
                raise error

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None and not self.process.dead:
            self.process.die()
        self.bury()

    def stop(self) -> None:
        """As a kill: what it had not committed is on the disk."""
        self.kill()

    def bury(self) -> None:
        """The loop and what waits on it end without any effect."""
        loop, process = self._loop, self.process
        self._loop = self._main = self._runner = self.process = None
        if process is not None:
            if not process.dead:
                process.die()
            process.buried = True
        if loop is None:
            return
        loop.leave()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        for _ in range(ENDINGS):
            if tasks:
                with contextlib.suppress(RuntimeError, Killed):  # the end that the interrupted run had asked for
                    loop.run(_gathered(tasks))
                    break
        loop.close()


async def _gathered(tasks: set[asyncio.Task[object]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
