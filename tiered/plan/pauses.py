"""Pauses of the uploads of one topic, or of all."""

from __future__ import annotations

from dataclasses import dataclass

ALL_TOPICS = ""
"""Name that stands for every topic."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause of uploads on an operator's request: its start, and the reason in the operator's words."""

    since_ms: int
    reason: str = ""

    def __str__(self) -> str:
        return "uploads are paused" + (f" ({self.reason})" if self.reason else "")
