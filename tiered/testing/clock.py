"""A clock that moves only when told, and ids that repeat with their seed."""

from __future__ import annotations

import random
import threading
import uuid

START_MS = 1_700_000_000_000
"""2023-11-14 22:13:20 UTC, where a :class:`FakeClock` begins unless told otherwise."""


class FakeClock:
    """A :class:`tiered.clock.Clock` without real time: ``sleep`` and a timed ``wait`` advance it and return at once.

    ``sleeps`` keeps the seconds of every sleep, for tests of retries. Thread-safe.
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self._lock = threading.Lock()
        self._wall_ms = float(now_ms)
        self._monotonic = 0.0
        self.sleeps: list[float] = []

    def now_ms(self) -> int:
        """The wall clock in milliseconds."""
        with self._lock:
            return int(self._wall_ms)

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        with self._lock:
            return self._monotonic

    def advance(self, seconds: float) -> None:
        """Moves both clocks forward."""
        with self._lock:
            self._wall_ms += seconds * 1000
            self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Moves the wall clock only, in either direction, as an administrator or NTP does."""
        with self._lock:
            self._wall_ms += seconds * 1000

    def set_ms(self, now_ms: int) -> None:
        """Sets the wall clock only."""
        with self._lock:
            self._wall_ms = float(now_ms)

    def sleep(self, seconds: float) -> None:
        """Advances instead of blocking."""
        self.sleeps.append(seconds)
        self.advance(max(0.0, seconds))

    async def aio_sleep(self, seconds: float) -> None:
        """The same for ``adrive(sleep=...)``."""
        self.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        """A timed wait advances and returns; without a time it blocks until the event, as there is nothing to pass."""
        if seconds is None:
            return event.wait()
        if not event.is_set():
            self.advance(max(0.0, seconds))
        return event.is_set()


class SeededIds:
    """A :class:`tiered.clock.IdSource` that repeats with ``seed``. Thread-safe."""

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(seed)  # noqa: S311 - ids of tests, not secrets

    def uuid(self) -> uuid.UUID:
        """A version 4 UUID."""
        with self._lock:
            return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def uid(self) -> str:
        """128 bits as 32 hex digits."""
        with self._lock:
            return f"{self._random.getrandbits(128):032x}"

    def random(self) -> float:
        """Uniform in [0, 1)."""
        with self._lock:
            return self._random.random()
