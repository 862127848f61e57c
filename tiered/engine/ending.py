"""The end of a run: the drain in progress, the last scan of the disk, the exit status.

::

    asked ──> seal, upload, commit up to the targets ──> all sent ──> a last look at the disk ──> exit
                    ^                                                        │
                    └─────────────── something new is on the disk ──────────┘
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tiered.engine import outcome
from tiered.engine.drain import LEFT_HINT, Drain, DrainRequested
from tiered.engine.engine import Engine
from tiered.engine.failure import Failure, FailureKind
from tiered.engine.partition import Partition
from tiered.engine.reports import Exit, Level, Report
from tiered.engine.sealing import Sealer
from tiered.engine.wakeup import Wakeup
from tiered.errors import DataLocalError, TieredError

JUDGE_PAUSES = 9
"""Length of the pause after a review of all partitions, as a multiple of its duration."""


class Ending:
    """The wait until the engine has sent the records of a drain."""

    def __init__(self, engine: Engine, sealer: Sealer, look: Callable[[], Awaitable[None]]) -> None:
        self.drain: Drain | None = None
        self._engine = engine
        self._sealer = sealer
        self._look = look
        self._changed = Wakeup()
        engine.wants, engine.when_changed = self._wants, self._touch
        sealer.when_sealed = self._changed.set

    def start_drain(self, request: DrainRequested) -> None:
        """Begin the drain that the request asks for. A second request replaces the first."""
        engine = self._engine
        self.drain = Drain.start(request, engine.partitions)
        engine.report(Report(Level.INFO, "drain_started", f"sending {request.mode.value} data, then ending"))
        self._sealer.drain()
        engine.scan_now(refused=True)
        self._changed.set()

    def review(self) -> None:
        """Review the drain: a scan, or new limits, may have changed what is due."""
        self._sealer.review()
        self._changed.set()

    def writer_is(self, holder: str) -> None:
        """Set the writer of the log. Once the writer is gone, this program has to send its last records."""
        self._sealer.writer_is(holder)
        if self.drain is not None and not holder:
            self._engine.scan_now()

    async def run(self) -> Exit:
        """Return the exit once a drain has sent all, can send no more, or has no time left."""
        engine = self._engine
        while True:
            begun_ms = engine.now_ms()
            exit_ = self._judge()
            judged_ms = engine.now_ms() - begun_ms
            if exit_ is not None and exit_.code == 0 and self.drain is not None and self.drain.request.last:
                exit_ = await self._scan_last(self.drain)
            if exit_ is not None:
                engine.halt()
                return exit_
            # A review reads all partitions: with thousands it takes no more than a tenth of the time.
            await asyncio.sleep(judged_ms * JUDGE_PAUSES / 1000)
            await self._wait()

    def _judge(self) -> Exit | None:
        """Return the exit if the end has come. Update the sealer's work."""
        drain, partitions = self.drain, self._engine.partitions
        if drain is None:
            return None
        left = drain.left(partitions)
        self._sealer.needs_seal = drain.needs_seal(left)
        if not left:
            return drain.all_sent(partitions)
        self._sealer.review()
        return drain.ending(left, self._engine.now_ms(), obstacle=self._obstacle)

    async def _scan_last(self, drain: Drain) -> Exit | None:
        """Return the exit if a scan finds no more to send; None if it does, or cannot run yet."""
        late = "ended before a last look at the log directory: whether the bucket holds it all is not known"
        if drain.is_over(self._engine.now_ms()):
            return Exit(DataLocalError.exit_code, late, LEFT_HINT)
        if self._sealer.is_at_work():
            return None  # while it seals, its own lock looks like a writer's
        look = asyncio.ensure_future(self._look())
        look.add_done_callback(lambda _: self._changed.set())
        try:
            while not look.done():
                await self._wait()
                if self.drain is not None and self.drain.is_over(self._engine.now_ms()) and not look.done():
                    return Exit(DataLocalError.exit_code, late, LEFT_HINT)
        finally:
            look.cancel()
        error = look.exception()
        if isinstance(error, (TieredError, OSError)):
            failure = Failure.from_error(error)
            reason = f"the log directory cannot be read before the end: {failure.message}"
            return Exit(DataLocalError.exit_code, reason, failure.hint or LEFT_HINT)
        if error is not None:
            raise error
        self._changed.set()  # review the result at once
        return None if self._sealer.is_at_work() else self._judge()

    async def _wait(self) -> None:
        """Wait for a change, or for the end of the time."""
        drain, seconds = self.drain, None
        if drain is not None and drain.request.deadline_ms is not None:
            seconds = (drain.request.deadline_ms - self._engine.now_ms()) / 1000
        await self._changed.wait(seconds)

    # ------------------------------------------------------------------ what the engine asks

    def _wants(self, p: Partition, base: int) -> bool:
        return self.drain is None or self.drain.wants(p, base)

    def _touch(self, p: Partition) -> None:
        drain = self.drain
        if drain is None:
            return
        if drain.request.last and not self._sealer.writer and drain.follow(p):
            p.trouble = outcome.retry_now(p.trouble, self._engine.now_ms())
            self._sealer.seal_now()
        self._changed.set()

    def _obstacle(self, p: Partition) -> Failure | None:
        registering = self._engine.topics.find(p).trouble.failure
        if registering is not None and registering.kind in outcome.REFUSED:
            return registering
        sealing = self._sealer.trouble.failure
        if sealing is not None and sealing.kind is FailureKind.FATAL and not p.works:
            return sealing
        return p.obstacle()
