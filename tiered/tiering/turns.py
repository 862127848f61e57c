"""Which runs of the engine are at work in one log directory: one at a time of each partition."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from dataclasses import dataclass
from types import FrameType

from tiered.format.locks import has_ended, reentrant_call
from tiered.model import TopicPartition

POLL_SECONDS = 0.05
"""Between two looks at runs that are waited for: one that an interrupt ended wakes no waiter."""


@dataclass(eq=False, slots=True)
class Turn:
    """One run: its partitions, its thread, and the frame of its function: with that it ends, whatever comes."""

    partitions: frozenset[TopicPartition]
    thread: int
    frame: FrameType | None


class Turns:
    """The runs at work. Thread-safe. ``changed`` is held for a look at them, and across no request."""

    def __init__(self) -> None:
        self.changed = threading.Condition()  # its lock is reentrant: a signal handler may come in between
        self._turns: list[Turn] = []

    def begin(self, partitions: Collection[TopicPartition], seconds: float | None) -> Turn | None:
        """Wait until no other run has one of ``partitions``; None if that takes longer than ``seconds``.

        The run ends with the caller's frame at the latest.
        Raises ReentrantCallError where this thread is inside such a run.
        """
        turn = Turn(frozenset(partitions), threading.get_ident(), sys._getframe(1))
        with self.changed:
            while others := [other for other in self._at_work() if other.partitions & turn.partitions]:
                if any(other.thread == turn.thread for other in others):
                    raise reentrant_call()
                if seconds is not None and seconds <= 0:
                    return None
                self.changed.wait(POLL_SECONDS if seconds is None else min(seconds, POLL_SECONDS))
                seconds = None if seconds is None else seconds - POLL_SECONDS
            self._turns.append(turn)
            return turn

    def end(self, turn: Turn) -> bool:
        """End a run; True if none is left."""
        with self.changed:
            self._turns = [other for other in self._at_work() if other is not turn]
            turn.frame = None  # a frame that refers to itself stays until the next collection
            self.changed.notify_all()
            return not self._turns

    def _at_work(self) -> list[Turn]:
        return [turn for turn in self._turns if not has_ended(turn.frame)]
