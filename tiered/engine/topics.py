"""The registration of topics: one attempt at a time for all partitions of a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tiered.engine.failure import NO_FAILURES, Failure, FailureStreak
from tiered.engine.partition import Partition
from tiered.engine.reports import Step, StepKind
from tiered.engine.wakeup import Wakeup
from tiered.model import TopicPartition

if TYPE_CHECKING:
    from tiered.engine.engine import Engine


@dataclass(slots=True)
class TopicRow:
    """One topic; ``members`` are its partitions on this disk."""

    name: str
    registered: bool = False
    trouble: FailureStreak = NO_FAILURES
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

    def find(self, p: Partition) -> TopicRow:
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
        """Return True if the bucket's registry names the topic with our id. If not, start or continue an attempt."""
        topic = self.find(p)
        if not topic.registered and topic.task is None:
            topic.task = asyncio.get_running_loop().create_task(self._register(topic))
            topic.task.add_done_callback(partial(self._ended, topic))
        return topic.registered

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks of the registrations in progress."""
        return [topic.task for topic in self if topic.task is not None]

    def mark_registered(self, p: Partition) -> None:
        """Note that this process has registered the topic of a partition before."""
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
