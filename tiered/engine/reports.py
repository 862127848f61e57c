"""Reports of the engine to its caller and the operator."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tiered.model import TopicPartition


class Level(enum.Enum):
    """Severity of a report."""

    INFO = "info"
    WARN = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Report:
    """A message for the operator; ``event`` is a stable name."""

    level: Level
    event: str
    message: str
    tp: TopicPartition | None = None
    fields: tuple[tuple[str, str | int], ...] = ()


@dataclass(frozen=True, slots=True)
class Exit:
    """End of the program with this status; work in progress is cancelled."""

    code: int
    reason: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.hint})" if self.hint else self.reason


class StepKind(enum.Enum):
    """Steps of an upload that a report names."""

    REGISTER = "register"
    CLAIM = "claim"
    SETTLE = "settle"
    UPLOAD = "upload"
    COMMIT = "commit"
    COPY = "copy"
    SEAL = "seal"


class Step(NamedTuple):
    """One attempt at a step: ``size_bytes`` of an upload, ``records`` (offsets) of a commit."""

    kind: StepKind
    topic: str = ""
    tp: TopicPartition | None = None
    size_bytes: int = 0
    records: int = 0


class Listener(Protocol):
    """Callbacks for the outcome of the work, on the event loop."""

    def report(self, report: Report) -> None:
        """Handle a report for the operator."""

    def ended(self, step: Step, error: BaseException | None, seconds: float) -> None:
        """Handle the end of a step."""

    def bug(self, error: BaseException) -> None:
        """Handle an error that is not in the error tree."""


class DaemonListener(Listener, Protocol):
    """Callbacks of a daemon, also for events beside the steps."""

    def disk(self, free_bytes: int, used_percent: int) -> None:
        """Handle the free bytes of the log's disk, and its used percentage."""

    def trouble(self, event: str, error: BaseException) -> None:
        """Handle a failure beside the steps."""

    def tick(self, partitions: int, behind: int) -> None:
        """Handle a turn of the loop."""
