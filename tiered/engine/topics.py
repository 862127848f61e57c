"""The registration of topics: one attempt at a time for all partitions of a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tiered.engine import outcome
from tiered.engine.failure import Failure, FailureKind
from tiered.engine.partition import NONE_MS, Partition
from tiered.engine.reports import Level, Report, Step, StepKind
from tiered.engine.wakeup import Wakeup
from tiered.model import TopicPartition

if TYPE_CHECKING:
    from tiered.engine.engine import Engine


@dataclass(slots=True)
class TopicRow:
    """One topic; ``members`` are its partitions on this disk."""

    name: str
    registered: bool = False
    attempts: int = 0
    retry_at_ms: int = 0
    failure: Failure | None = None
    reported_ms: int = NONE_MS
    members: dict[TopicPartition, Partition] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    changed: Wakeup = field(default_factory=Wakeup)


class Topics:
    """The topics of the engine's partitions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rows: dict[str, TopicRow] = {}

    def __iter__(self) -> Iterator[TopicRow]:
        return iter(self._rows.values())

    def of(self, p: Partition) -> TopicRow:
        """Return the topic of a partition in the table."""
        return self._rows[p.tp.topic]

    def add(self, p: Partition) -> None:
        """Add a partition."""
        self._rows.setdefault(p.tp.topic, TopicRow(p.tp.topic)).members[p.tp] = p

    def remove(self, p: Partition) -> None:
        """Remove a partition, and with the last one the topic."""
        topic = self._rows[p.tp.topic]
        topic.members.pop(p.tp, None)
        if not topic.members:
            del self._rows[p.tp.topic]
            if topic.task is not None:
                topic.task.cancel()

    def registered(self, p: Partition) -> bool:
        """Return True if the bucket's registry names the topic with our id. If not, an attempt begins, or goes on."""
        topic = self.of(p)
        if not topic.registered and topic.task is None:
            topic.task = asyncio.get_running_loop().create_task(self._register(topic))
            topic.task.add_done_callback(partial(self._ended, topic))
        return topic.registered

    def retry_now(self, now_ms: int, *, refused: bool = False) -> None:
        """End the waits for a retry. With ``refused``, also forget refusals and end their waits."""
        for topic in self:
            if topic.failure is None:
                continue
            if refused and topic.failure.kind in outcome.REFUSED:
                topic.failure = None
            elif topic.failure.kind is not FailureKind.RETRIABLE:
                continue
            topic.retry_at_ms = now_ms
            topic.changed.set()

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel the attempts."""
        tasks = [topic.task for topic in self if topic.task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    def mark_registered(self, p: Partition) -> None:
        """Note that this process has registered the topic of a partition before."""
        self.of(p).registered = True

    async def _register(self, topic: TopicRow) -> None:
        engine = self._engine
        while not topic.registered and any(engine.has_work(p) for p in topic.members.values()):
            now_ms = engine.now_ms()
            if topic.retry_at_ms > now_ms:
                await topic.changed.wait((topic.retry_at_ms - now_ms) / 1000)
                continue
            found = await engine.attempt(
                Step(StepKind.REGISTER, topic.name), partial(engine.bucket.register, topic.name)
            )
            if isinstance(found, Failure):
                self._failed(topic, found)
            else:
                if topic.failure is not None:
                    engine.report(Report(Level.INFO, "recovered", f"topic {topic.name} is registered"))
                topic.registered, topic.failure, topic.attempts = True, None, 0
            for p in list(topic.members.values()):
                engine.changed(p)

    def _failed(self, topic: TopicRow, failure: Failure) -> None:
        engine, now_ms = self._engine, self._engine.now_ms()
        topic.attempts += 1
        first = topic.failure is None or topic.failure.code != failure.code
        topic.failure = failure
        for p in topic.members.values():
            p.given_up = not engine.retries
        topic.retry_at_ms = now_ms + outcome.delay_ms(failure, topic.attempts, engine.dice)
        if first or now_ms >= topic.reported_ms + engine.limits.repeat_report_ms:
            topic.reported_ms = now_ms
            level = Level.WARN if failure.kind is FailureKind.RETRIABLE else Level.ERROR
            hint = f" ({failure.hint})" if failure.hint else ""
            text = f"topic {topic.name} is not registered: {failure.message}{hint}"
            fields = (("code", failure.code),)
            engine.report(Report(level, "failed" if first else "still_failing", text, None, fields))

    def _ended(self, topic: TopicRow, task: asyncio.Task[None]) -> None:
        topic.task = None
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._engine.crash(bug)
            return
        for p in list(topic.members.values()):
            self._engine.changed(p)
