"""Keeps a background job below a number of bytes per second."""

from __future__ import annotations

import threading

from tiered.clock import Clock

MAX_NAP_SECONDS = 1.0
"""How long one sleep lasts at most: whoever is slowed down looks up between two of them."""


class Throttle:
    """``bytes_per_second`` None: no limit. Counts from the first byte on; used by one thread. ``ends`` ends a sleep."""

    def __init__(self, clock: Clock, bytes_per_second: int | None, ends: threading.Event | None = None) -> None:
        self._clock = clock
        self._ends = ends or threading.Event()
        self._rate = bytes_per_second
        self._began = clock.monotonic()
        self._bytes = 0

    def spend(self, count: int) -> None:
        """``count`` more bytes were read or written; sleeps if that was too fast, at most MAX_NAP_SECONDS."""
        if self._rate is None:
            return
        self._bytes += count
        ahead = self._bytes / self._rate - (self._clock.monotonic() - self._began)
        if ahead > 0:
            self._clock.wait(self._ends, min(ahead, MAX_NAP_SECONDS))
