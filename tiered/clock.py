"""Time, ids and randomness. No other module of the product imports ``time``, ``random`` or ``uuid``'s makers.

Passing a :class:`Clock` and an :class:`IdSource` in is what lets tests run without sleeping and a failure
replay from a printed seed (``tiered.testing.clock``).
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """Wall clock in whole milliseconds, and a monotonic one in seconds."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC. May jump in both directions."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""

    def sleep(self, seconds: float) -> None:
        """Blocks the calling thread."""

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        """Blocks until ``event`` is set or ``seconds`` passed; returns whether it is set."""


class IdSource(Protocol):
    """Ids that are never repeated, and jitter."""

    def uuid(self) -> uuid.UUID:
        """A random UUID (version 4)."""

    def uid(self) -> str:
        """128 random bits as 32 hex digits: object names, commit ids, tokens."""

    def random(self) -> float:
        """Uniform in [0, 1): jitter of retries and rolls."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        return event.wait(seconds)


class SystemIds:
    """The operating system's randomness."""

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def uid(self) -> str:
        return uuid.uuid4().hex

    random = staticmethod(random.random)
