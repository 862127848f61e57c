"""A failure as data, the record of failures in a row, and the wait after each kind."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from tiered.errors import CommitUnknownError, FencedError, RemotePermissionError, TieredError
from tiered.plan.backoff import backoff_bound_seconds

RECHECK_PERMISSION_MS = 60_000
"""Interval of retries after a refused operation, so that a corrected policy drains unaided."""

RECHECK_FATAL_MS = 600_000
"""Longest wait before a retry of a failure that most likely needs a person; the first retries follow soon."""

FATAL_ATTEMPTS = 3
"""Attempts before a one-shot run ends with a fatal failure: damage in transit does not repeat, stored damage does."""

_FATAL_BASE_MS = 500


class FailureKind(enum.Enum):
    """Reaction of the rules to a failure."""

    RETRIABLE = "retriable"  # backs off and tries again, for ever
    PERMISSION = "permission"  # reported at once, retried every minute
    FATAL = "fatal"  # reported at once, retried every ten minutes
    FENCED = "fenced"  # stops the partition
    UNKNOWN = "unknown"  # a commit that may have landed: the next claim settles it


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed step as data: ``code`` and ``exit_code`` are those of ``tiered.errors``."""

    kind: FailureKind
    code: str
    message: str
    hint: str = ""
    exit_code: int = 1

    @staticmethod
    def from_error(error: BaseException) -> Failure:
        """Return the failure for ``error``. An error outside the error tree is a bug, and fatal to its step."""
        if isinstance(error, (TimeoutError, ConnectionError)):
            return Failure(FailureKind.RETRIABLE, "timeout", str(error) or "timed out", exit_code=75)
        if not isinstance(error, TieredError):
            return Failure(FailureKind.FATAL, "internal", f"{type(error).__name__}: {error}", "report this as a bug")
        if isinstance(error, FencedError):
            kind = FailureKind.FENCED
        elif isinstance(error, CommitUnknownError):
            kind = FailureKind.UNKNOWN
        elif isinstance(error, RemotePermissionError):
            kind = FailureKind.PERMISSION
        elif error.retriable:
            kind = FailureKind.RETRIABLE
        else:
            kind = FailureKind.FATAL
        return Failure(kind, error.code, error.message, error.hint, error.exit_code)


@dataclass(frozen=True, slots=True)
class FailureStreak:
    """Failures in a row of one thing that is retried. ``reported_*``: the last report of them, -1 and empty: none."""

    failure: Failure | None = None
    doing: str = ""
    attempts: int = 0
    retry_at_ms: int = 0
    reported_ms: int = -1
    reported_code: str = ""


NO_FAILURES = FailureStreak()


class RandomSource(Protocol):
    """Source of chance for jitter; ``tiered.clock.IdSource`` is one."""

    def random(self) -> float:
        """Return a number that is uniform in [0, 1)."""


def retry_delay_ms(attempt: int, dice: RandomSource) -> int:
    """Return the wait before attempt ``attempt`` + 1 (``attempt`` from 1): at least 1 ms, with full jitter."""
    return 1 + int(dice.random() * (int(backoff_bound_seconds(attempt) * 1000) - 1))


def fatal_delay_ms(attempt: int) -> int:
    """Return the wait after the fatal failure ``attempt`` (from 1): exponential up to ``RECHECK_FATAL_MS``."""
    return int(backoff_bound_seconds(attempt, _FATAL_BASE_MS / 1000, RECHECK_FATAL_MS / 1000) * 1000)
