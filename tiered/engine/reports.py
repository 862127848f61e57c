"""Reports of the engine, for its caller and for the operator."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tiered.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Report:
    """Message for the operator. ``level``: of ``logging``. ``event``: stable name of its kind. ``fields``: for logs."""

    level: int
    event: str
    message: str
    tp: TopicPartition | None = None
    fields: tuple[tuple[str, str | int], ...] = ()


@dataclass(frozen=True, slots=True)
class Exit:
    """End of the program with an exit status, a reason and a hint. Work in progress is cancelled."""

    code: int
    reason: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.hint})" if self.hint else self.reason


class StepKind(enum.Enum):
    """Kind of a step. ``SETTLE``: deletion of earlier claims' unfinished uploads. ``COPY``: of groups' positions."""

    REGISTER = "register"
    CLAIM = "claim"
    SETTLE = "settle"
    UPLOAD = "upload"
    COMMIT = "commit"
    COPY = "copy"
    SEAL = "seal"


class Step(NamedTuple):
    """One attempt at a step. ``size_bytes``: size of an upload. ``records``: number of offsets in a commit."""

    kind: StepKind
    topic: str = ""
    tp: TopicPartition | None = None
    size_bytes: int = 0
    records: int = 0


class Listener(Protocol):
    """Callbacks for reports and for the ends of steps. They are called on the event loop."""

    def report(self, report: Report) -> None:
        """Called with a report for the operator."""

    def ended(self, step: Step, error: BaseException | None, seconds: float) -> None:
        """Called when a step ended after ``seconds``. ``error`` None: it succeeded."""

    def bug(self, error: BaseException) -> None:
        """Called with an unexpected exception, which is a bug."""


class DaemonListener(Listener, Protocol):
    """Callbacks of a daemon: those of a Listener, and more for the disk, the ticks and failures outside of steps."""

    def disk(self, free_bytes: int, used_percent: int) -> None:
        """Called with the free bytes and the used percentage of the log's disk."""

    def trouble(self, event: str, error: BaseException) -> None:
        """Called with a failure outside of the steps. ``event``: its stable name."""

    def tick(self, partitions: int, behind: int) -> None:
        """Called in a regular interval, one second by default, with the number of partitions.

        ``behind``: number of those with sealed segments that the bucket lacks.
        """
