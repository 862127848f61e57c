"""What a check says: frozen values with a severity, a stable code, and the place."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

MAX_SAME_FINDINGS = 20
"""Findings of one kind about one thing; a file of noise would otherwise fill the report."""


NEWER_RELEASE = "newer_release"
"""Code of what a newer release wrote: it may be whole, this release cannot tell."""


class Severity(enum.StrEnum):
    """``error``: data is damaged or missing. ``warning``: worth a look, no data is lost. ``info``: nothing is wrong."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was seen. ``code`` is a stable word; ``position`` bytes and ``offset`` are -1 where unknown.

    ``denied``: it says only that this user may not look.
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
        """The fields, for ``--json``."""
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
    """So many more bytes of ``note`` (a partition) were looked at, or fetched; ``total_bytes`` 0: not known."""

    size_bytes: int
    note: str
    total_bytes: int = 0


class Findings:
    """Collects findings about one thing, a limited number of each kind."""

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
        """One more, unless there are enough of this kind."""
        kind = code, denied  # what may not be read must not hide what cannot be read
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
        """Damage."""
        self.add(Severity.ERROR, code, message, position=position, offset=offset)

    def about(self, topic: str, partition: int) -> list[Finding]:
        """All of them, with topic and partition filled in."""
        return [replace(item, topic=topic, partition=partition) for item in self.items]


Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all (0: not known) and the partition under way."""
OnFinding = Callable[[Finding], None]


def handed_on(progress: Progress | None, on_finding: OnFinding | None = None) -> Callable[[Finding | Passed], None]:
    """Return a function that passes what steps emit on to the callbacks."""
    done = total = 0

    def take(seen: Finding | Passed) -> None:
        nonlocal done, total
        if isinstance(seen, Passed):
            done += seen.size_bytes
            total = max(total, seen.total_bytes, done)
            if progress is not None and (seen.note or seen.size_bytes):
                progress(done, total, seen.note)
        elif on_finding is not None:
            on_finding(seen)

    return take
