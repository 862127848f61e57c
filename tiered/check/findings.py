"""Findings of a check: frozen values with a severity, a stable code, and the place."""

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
    """One finding. ``code`` is a stable word. ``position`` (bytes) and ``offset`` are -1 if unknown.

    ``denied``: the user may not read the object, and nothing more is known.
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
        """Return the fields for ``--json``."""
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
    """Progress: ``size_bytes`` more of ``note`` (a partition) were read. ``total_bytes`` 0: unknown."""

    size_bytes: int
    note: str
    total_bytes: int = 0


class Findings:
    """A collector of findings about one thing, with a limit for each kind."""

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
        """Add a finding, unless the limit of its kind is reached."""
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
        """Add an error."""
        self.add(Severity.ERROR, code, message, position=position, offset=offset)

    def about(self, topic: str, partition: int) -> list[Finding]:
        """Return all findings with topic and partition filled in."""
        return [replace(item, topic=topic, partition=partition) for item in self.items]


Progress = Callable[[int, int, str], None]
"""Callback with bytes done, bytes in all (0: unknown) and the current partition."""
OnFinding = Callable[[Finding], None]


def handed_on(progress: Progress | None, on_finding: OnFinding | None = None) -> Callable[[Finding | Passed], None]:
    """Return a function that passes what steps emit on to the callbacks."""
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
