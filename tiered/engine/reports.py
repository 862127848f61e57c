"""What the engine tells whoever runs it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tiered.model import TopicPartition


class Level(enum.Enum):
    """How loud a report is."""

    INFO = "info"
    WARN = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the operator; ``event`` is a stable name."""

    level: Level
    event: str
    message: str
    tp: TopicPartition | None = None
    fields: tuple[tuple[str, str | int], ...] = ()


@dataclass(frozen=True, slots=True)
class Exit:
    """End the program with this status; whatever is still under way is cancelled."""

    code: int
    reason: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.hint})" if self.hint else self.reason


class StepKind(enum.Enum):
    """The kinds of steps."""

    REGISTER = "register"
    CLAIM = "claim"
    SETTLE = "settle"
    UPLOAD = "upload"
    COMMIT = "commit"
    SEAL = "seal"


class Step(NamedTuple):
    """One attempt at a step: ``size_bytes`` of an upload, ``records`` (offsets) of a commit."""

    kind: StepKind
    topic: str = ""
    tp: TopicPartition | None = None
    size_bytes: int = 0
    records: int = 0


class Listener(Protocol):
    """Callbacks that hear of the outcome of the work, on the event loop."""

    def report(self, report: Report) -> None:
        """Take a sentence for the operator."""

    def ended(self, step: Step, error: BaseException | None, seconds: float) -> None:
        """Take the end of a step."""

    def bug(self, error: BaseException) -> None:
        """Take an error that is not in the error tree."""


class DaemonListener(Listener, Protocol):
    """The same, and of what lies beside the steps."""

    def disk(self, free_bytes: int, used_percent: int) -> None:
        """Take the free bytes of the log's disk, and how many percent of it are used."""

    def trouble(self, event: str, error: BaseException) -> None:
        """Take a failure beside the steps."""

    def tick(self, partitions: int, behind: int) -> None:
        """Take the sign that the loop turns."""
