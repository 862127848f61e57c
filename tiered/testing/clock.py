"""Clock that only the test moves, and ids that are the same in each run with the same seed."""

from __future__ import annotations

import random
import threading
import uuid

START_MS = 1_700_000_000_000
"""2023-11-14 22:13:20 UTC, the default start of a :class:`FakeClock`."""


class FakeClock:
    """A :class:`tiered.clock.Clock` without real time: ``sleep`` and a timed ``wait`` advance it and return at once.

    ``sleeps``: the seconds of every sleep, for tests of retries. Thread-safe.
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self._lock = threading.Lock()
        self._wall_ms = float(now_ms)
        self._monotonic = 0.0
        self.sleeps: list[float] = []

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds."""
        with self._lock:
            return int(self._wall_ms)

    def monotonic(self) -> float:
        """Return the seconds since the clock was created, as the monotonic clock."""
        with self._lock:
            return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move the wall clock and the monotonic clock forward."""
        with self._lock:
            self._wall_ms += seconds * 1000
            self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Move the wall clock only, in either direction, as an administrator or NTP does."""
        with self._lock:
            self._wall_ms += seconds * 1000

    def set_ms(self, now_ms: int) -> None:
        """Set the wall clock only."""
        with self._lock:
            self._wall_ms = float(now_ms)

    def sleep(self, seconds: float) -> None:
        """Advance both clocks by ``seconds`` and return at once."""
        self.sleeps.append(seconds)
        self.advance(max(0.0, seconds))

    async def aio_sleep(self, seconds: float) -> None:
        """Advance both clocks by ``seconds`` and return at once, as an async function."""
        self.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        """Return True if ``event`` is set, otherwise advance both clocks by ``seconds`` and check once more.

        ``seconds`` None: block in real time until it is set.
        """
        if seconds is None:
            return event.wait()
        if not event.is_set():
            self.advance(max(0.0, seconds))
        return event.is_set()


class SeededIds:
    """Source of ids and random numbers (:class:`tiered.clock.IdSource`). Thread-safe.

    The same ``seed`` gives the same sequence.
    """

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(seed)  # noqa: S311 - ids of tests, not secrets

    def uuid(self) -> uuid.UUID:
        """Return a version 4 UUID."""
        with self._lock:
            return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def uid(self) -> str:
        """Return 128 bits as 32 hex digits."""
        with self._lock:
            return f"{self._random.getrandbits(128):032x}"

    def random(self) -> float:
        """Return a number that is uniform in [0, 1)."""
        with self._lock:
            return self._random.random()
