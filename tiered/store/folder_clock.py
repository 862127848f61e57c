"""Clock of a folder's file system: the counterpart of the ``Date`` header of an object store.

The clock of a process may be wrong by years. A file system sets modification times by another one: the kernel's, or
that of a file server.
"""

from __future__ import annotations

import os
from pathlib import Path

from tiered.clock import Clock, SystemClock

JUMP_MS = 1000
"""Difference up to which the two clocks count as one; after a larger jump they are compared again."""


class FolderClock:
    """Clock of the file system below ``folder``, which a writer has made; until then it is ``clock``.

    A clock that a test moves may be before the file system's, never after it.
    """

    def __init__(self, clock: Clock, folder: Path) -> None:
        self._clock, self._folder = clock, folder
        self._compared: tuple[int, int] | None = None  # wall clock without the time that passed, and its lead then

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        now_ms = self._clock.now_ms()
        origin_ms = now_ms - int(self._clock.monotonic() * 1000)
        if self._compared is None or abs(origin_ms - self._compared[0]) > JUMP_MS:
            lead_ms = self._lead_ms(now_ms)
            self._compared = None if lead_ms is None else (origin_ms, lead_ms)
        return now_ms - (self._compared[1] if self._compared is not None else 0)

    def _lead_ms(self, now_ms: int) -> int | None:
        """Return how far the clock is ahead; None if the file system cannot be asked: a reader may change nothing."""
        try:
            os.utime(self._folder)  # without a time: the file system uses its own clock
            lead_ms = now_ms - self._folder.stat().st_mtime_ns // 1_000_000
        except OSError:
            return None
        if abs(lead_ms) <= JUMP_MS or (lead_ms < 0 and not isinstance(self._clock, SystemClock)):
            return 0
        return lead_ms
