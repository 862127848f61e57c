"""Findings of a check: immutable values with a severity, a stable code, and a place."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

MAX_SAME_FINDINGS = 20
"""Most findings of one kind about one thing. A wholly damaged file would otherwise fill the report."""


NEWER_RELEASE = "newer_release"
"""Code of a finding about data of a newer release, which this release cannot judge."""


class Severity(enum.StrEnum):
    """Weight of a finding. ``error``: lost or damaged data. ``warning``: no data is lost. ``info``: no problem."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. ``code``: a stable word. ``where``: the path, object key or prefix that the finding is about.

    ``position`` (in bytes), ``offset`` and ``partition``: -1 if unknown. ``denied``: True if this user may not read the
    object.
    """

    severity: Severity
    code: str
    message: str
    where: str
    topic: str = ""
    partition: int = -1
    position: int = -1
    offset: int = -1
    denied: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, for ``--json``."""
        return {
            "severity": self.severity.value,
            "code": self.code,
            "message": self.message,
            "where": self.where,
            "topic": self.topic or None,
            "partition": self.partition if self.partition >= 0 else None,
            "position": self.position if self.position >= 0 else None,
            "offset": self.offset if self.offset >= 0 else None,
            "denied": self.denied,
        }

    def __str__(self) -> str:
        place = f" at byte {self.position}" if self.position >= 0 else ""
        return f"{self.severity.value}: {self.where}{place}: {self.message}"


class Passed(NamedTuple):
    """Progress event of a check or restore: ``size_bytes`` more bytes of the partition ``note`` were read.

    ``total_bytes``: bytes that the whole run will read. 0: unknown.
    """

    size_bytes: int
    note: str
    total_bytes: int = 0


class Findings:
    """Findings about one object or partition, with a limit for each code."""

    def __init__(self, where: str, *, limit: int = MAX_SAME_FINDINGS) -> None:
        self.where = where
        self.items: list[Finding] = []
        self._limit = limit
        self._counts: dict[tuple[str, bool], int] = {}

    def add(
        self,
        severity: Severity,
        code: str,
        message: str,
        *,
        position: int = -1,
        offset: int = -1,
        denied: bool = False,
    ) -> None:
        """Add a finding, unless there are too many of its code."""
        kind = code, denied  # denied reads must not hide damaged data
        count = self._counts.get(kind, 0)
        self._counts[kind] = count + 1
        if count < self._limit:
            one = Finding(severity, code, message, self.where, position=position, offset=offset, denied=denied)
            self.items.append(one)
        elif count == self._limit:
            self.items.append(
                Finding(severity, code, "more of the same kind are not listed", self.where, denied=denied)
            )

    def error(self, code: str, message: str, *, position: int = -1, offset: int = -1) -> None:
        """Add a finding with severity ``error``."""
        self.add(Severity.ERROR, code, message, position=position, offset=offset)

    def about(self, topic: str, partition: int) -> list[Finding]:
        """Return all findings, with topic and partition set."""
        return [replace(item, topic=topic, partition=partition) for item in self.items]


Progress = Callable[[int, int, str], None]
"""Callback with bytes done, bytes in all (0: unknown) and the current partition."""
OnFinding = Callable[[Finding], None]


def emit_handler(progress: Progress | None, on_finding: OnFinding | None = None) -> Callable[[Finding | Passed], None]:
    """Return a function for emitted values: it passes findings to ``on_finding`` and progress to ``progress``."""
    done = total = 0

    def add(seen: Finding | Passed) -> None:
        nonlocal done, total
        if isinstance(seen, Passed):
            done += seen.size_bytes
            total = max(total, seen.total_bytes, done)
            if progress is not None and (seen.note or seen.size_bytes):
                progress(done, total, seen.note)
        elif on_finding is not None:
            on_finding(seen)

    return add
