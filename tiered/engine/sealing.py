"""The seals that no writer makes: of a tail whose writer is gone, and of all tails in a drain of everything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tiered.engine.failure import NO_FAILURES, Failure
from tiered.engine.partition import NONE_MS
from tiered.engine.reports import Step, StepKind
from tiered.engine.wakeup import Wakeup

if TYPE_CHECKING:
    from tiered.engine.engine import Engine

WRITER_SEAL_MS = 60_000
"""Time after which a writer that was asked to roll is asked again."""

WRITER_GONE_MS = 500
"""Time between attempts during a drain, if the lock has no known holder."""


class Sealer:
    """The loop of the seals. ``seal`` rolls, or asks the writer to and returns True. Then it scans the disk."""

    def __init__(self, engine: Engine, seal: Callable[[], Awaitable[bool]]) -> None:
        self._engine = engine
        self._seal = seal
        self.when_sealed: Callable[[], None] = lambda: None
        self._changed = Wakeup()
        self._not_before_ms = 0
        self.trouble = NO_FAILURES
        self._at_work = False
        self.writer = ""
        self._draining = False
        self.needs_seal = False  # set by a drain of everything

    def is_at_work(self) -> bool:
        """Return True while a roll or a request to the writer is under way."""
        return self._at_work

    def writer_is(self, holder: str) -> None:
        """Set the log's writer; empty: none."""
        if self._draining and self.writer and not holder:
            self._not_before_ms = self._engine.now_ms()  # the writer was asked to roll and is gone: now roll here
        self.writer = holder
        self._changed.set()

    def drain(self) -> None:
        """Seal the drain's segments at once, and nothing else from now on."""
        self._draining = True
        self.seal_now()

    def seal_now(self) -> None:
        """End the wait: a drain has found more to seal."""
        self._not_before_ms, self.trouble = self._engine.now_ms(), NO_FAILURES
        self._changed.set()

    def review(self) -> None:
        """Review the due time: the disk, the limits or the drain have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Seal whenever it is due, for ever."""
        while True:
            at_ms = self.due_ms()
            now_ms = self._engine.now_ms()
            if at_ms == NONE_MS or at_ms > now_ms:
                await self._changed.wait(None if at_ms == NONE_MS else (at_ms - now_ms) / 1000)
                continue
            self._at_work = True
            try:
                found = await self._engine.attempt(Step(StepKind.SEAL), self._seal)
            finally:
                self._at_work = False
            self._sealed(found)
            self.when_sealed()

    def due_ms(self) -> int:
        """Return when the next seal is due; -1: not before something changes."""
        if self._draining:
            due = 0 if self.needs_seal else NONE_MS
        elif self.writer:
            return NONE_MS
        else:
            idle_ms = self._engine.limits.seal_idle_ms
            times = (p.seal_at(idle_ms) for p in self._engine.partitions.values() if p.active_bytes)
            due = min((at_ms for at_ms in times if at_ms != NONE_MS), default=NONE_MS)
        return due if due == NONE_MS else max(due, self._not_before_ms, self.trouble.retry_at_ms)

    def _sealed(self, found: bool | Failure) -> None:
        engine, doing = self._engine, "sealing the active segments"
        if isinstance(found, Failure):
            self.trouble = engine.failure_noted(self.trouble, found, doing)
            return
        self.trouble = engine.success_noted(self.trouble, doing)
        writer_ended = found and self._draining and not self.writer  # during the request
        self._not_before_ms = engine.now_ms() + (WRITER_GONE_MS if writer_ended else WRITER_SEAL_MS)
