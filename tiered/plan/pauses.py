"""What pauses uploads: of a topic, or of all."""

from __future__ import annotations

from dataclasses import dataclass

ALL_TOPICS = ""
"""Instead of a topic's name: every topic."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Somebody wants nothing to be sent: since when, and why, in that person's words."""

    since_ms: int
    reason: str = ""

    def __str__(self) -> str:
        return "uploads are paused" + (f" ({self.reason})" if self.reason else "")
