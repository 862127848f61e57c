"""Runs of the engine in one log directory: one at a time of each partition."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from dataclasses import dataclass
from types import FrameType

from tiered.format.locks import SafeEvent, has_ended, reentrant_call
from tiered.model import TopicPartition

POLL_SECONDS = 0.05
"""Interval between checks of other runs: one that an interrupt ended wakes no waiter."""


@dataclass(eq=False, slots=True)
class Turn:
    """One run: its partitions, its thread, and the frame of its function. The run ends with the frame at the latest."""

    partitions: frozenset[TopicPartition]
    thread: int
    frame: FrameType | None


class Turns:
    """The runs in progress. Thread-safe. ``changed`` is held for a check of them, and across no request."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may come in between. Unlike a condition's, no exception leaves it locked.
        self.changed = threading.RLock()
        self._ended = SafeEvent()
        self._turns: list[Turn] = []

    def acquire(self, partitions: Collection[TopicPartition], seconds: float | None) -> Turn | None:
        """Wait until no other run has one of ``partitions``; None if that takes longer than ``seconds``.

        The run ends with the caller's frame at the latest.
        Raises ReentrantCallError where this thread is inside such a run.
        """
        turn = Turn(frozenset(partitions), threading.get_ident(), sys._getframe(1))
        while True:
            self._ended.clear()  # before the look: a run that ends after it ends the wait
            with self.changed:
                others = [other for other in self._at_work() if other.partitions & turn.partitions]
                if not others:
                    self._turns.append(turn)
            if not others:
                return turn
            if any(other.thread == turn.thread for other in others):
                raise reentrant_call()
            if seconds is not None and seconds <= 0:
                return None
            self._ended.wait(POLL_SECONDS if seconds is None else min(seconds, POLL_SECONDS))
            seconds = None if seconds is None else seconds - POLL_SECONDS

    def end(self, turn: Turn) -> bool:
        """End a run. Return True if none is left."""
        with self.changed:
            self._turns = [other for other in self._at_work() if other is not turn]
            turn.frame = None  # a frame that refers to itself stays until the next collection
            self._ended.set()
            is_last = not self._turns
        return is_last  # noqa: RET504 - read under the lock

    def _at_work(self) -> list[Turn]:
        return [turn for turn in self._turns if not has_ended(turn.frame)]
