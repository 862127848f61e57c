"""Sees each pass of retention and each round of cleaning, also those that a timer runs."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.property.history.judges import judge_retention, judge_round
from tests.property.history.world import World
from tiered.local.partition.write_log import WriteLog


class Watch:
    """Puts a judge in front of both, in every process of a history."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.on_open.append(self.attach)
        self.attach()

    def attach(self) -> None:
        """To the directories of this process, and to every partition that wakes."""
        for log in self.world.logs.logs().values():
            for writer in log.roster.awake():
                self._attach_writer(writer)
            roster: Any = log.roster
            roster.adopt = partial(self._adopt, roster.adopt)
            cleaner: Any = log.cleaner
            cleaner._round = partial(self._round, cleaner._round)

    def _adopt(self, real: Any, *args: Any, **options: Any) -> WriteLog:
        writer: WriteLog = real(*args, **options)
        self._attach_writer(writer)
        return writer

    def _attach_writer(self, writer: Any) -> None:
        writer.maintenance.apply_retention = partial(self._retention, writer, writer.maintenance.apply_retention)

    def _retention(self, writer: WriteLog, real: Any, now_ms: int) -> list[int]:
        subject = self.world.subjects.get(writer.tp.topic)
        return real(now_ms) if subject is None else judge_retention(self.world, subject, writer, real, now_ms)

    def _round(self, real: Any, seen: Any, candidate: Any, now_ms: int) -> Any:
        subject = self.world.subjects.get(candidate.tp.topic)
        work = partial(real, seen, candidate, now_ms)
        return work() if subject is None else judge_round(self.world, subject, seen.writer, work, candidate, now_ms)
