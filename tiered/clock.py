"""Sources of time, ids and random numbers. No other module uses ``time``, ``random`` or ``uuid`` for this.

Tests pass a :class:`Clock` and an :class:`IdSource` of their own (``tiered.testing.clock``). So they run without
sleeping, and a failure is replayed from its printed seed.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """Source of time: a wall clock in whole milliseconds and a monotonic clock in seconds."""

    def now_ms(self) -> int:
        """Return the wall clock: milliseconds since 1970-01-01 UTC. It may jump in both directions."""

    def monotonic(self) -> float:
        """Return seconds that never decrease. Only differences between two values have a meaning."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for ``seconds``."""

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        """Block until ``event`` is set or ``seconds`` have passed (None: no limit). Return True if the event is set."""


class IdSource(Protocol):
    """Source of unique ids and of random numbers."""

    def uuid(self) -> uuid.UUID:
        """Return a random UUID (version 4)."""

    def uid(self) -> str:
        """Return 128 random bits as 32 hex digits, for object names, commit ids and tokens."""

    def random(self) -> float:
        """Return a uniform random number from [0, 1), for jitter."""


class SystemClock:
    """Clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        return event.wait(seconds)


class SystemIds:
    """Ids from the operating system, and Python's random numbers."""

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def uid(self) -> str:
        return uuid.uuid4().hex

    random = staticmethod(random.random)
