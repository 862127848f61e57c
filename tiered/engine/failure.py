"""Failure of a step as data, and the record of consecutive failures: when to retry, and when to report."""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass, replace
from typing import Protocol

from tiered.engine.reports import Report
from tiered.errors import CommitUnknownError, FencedError, RemotePermissionError, TieredError
from tiered.model import TopicPartition
from tiered.plan.pacing import backoff_bound_seconds

NONE_MS = -1
"""Time that means "never"."""

RECHECK_PERMISSION_MS = 60_000
"""Interval of retries after a refused operation, so that a corrected policy drains unaided."""

RECHECK_FATAL_MS = 600_000
"""Longest wait before a retry of a failure that most likely needs a person; the first retries follow soon."""

FATAL_ATTEMPTS = 3
"""Attempts before a one-shot run ends with a fatal failure: damage in transit does not repeat, stored damage does."""

_FATAL_BASE_MS = 500


class FailureKind(enum.Enum):
    """Kind of a failure. It decides whether and when the step is retried."""

    RETRIABLE = "retriable"  # backs off and tries again, for ever
    PERMISSION = "permission"  # reported at once, retried every minute
    FATAL = "fatal"  # reported at once, retried every ten minutes
    FENCED = "fenced"  # stops the partition
    UNKNOWN = "unknown"  # a commit that may have landed: the next claim settles it


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of a step. ``code``: stable word for the error. ``exit_code``: exit status of a program that it ends."""

    kind: FailureKind
    code: str
    message: str
    hint: str = ""
    exit_code: int = 1

    @staticmethod
    def from_error(error: BaseException) -> Failure:
        """Return the failure for ``error``.

        An exception that is no TieredError, time-out or connection error counts as a bug.
        """
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

    def text(self, doing: str) -> str:
        """Return a sentence about the failure, for a report. ``doing``: the step, in words."""
        return f"{doing}: {self.message}" + (f" ({self.hint})" if self.hint else "")

    def delay_ms(self, attempt: int, dice: RandomSource) -> int:
        """Return the wait in ms after failure number ``attempt`` in a row (from 1), by the kind of failure.

        ``dice``: source of random numbers for the jitter.
        """
        if self.kind is FailureKind.PERMISSION:
            return RECHECK_PERMISSION_MS
        if self.kind is FailureKind.FATAL:
            return int(backoff_bound_seconds(attempt, _FATAL_BASE_MS / 1000, RECHECK_FATAL_MS / 1000) * 1000)
        return retry_delay_ms(attempt, dice)


PASSING = frozenset({FailureKind.RETRIABLE, FailureKind.UNKNOWN})
"""Failures that time cures."""

REFUSED = frozenset({FailureKind.PERMISSION, FailureKind.FATAL})
"""Failures that are retried rarely while the program runs, and once more at its end."""


@dataclass(frozen=True, slots=True)
class FailureStreak:
    """Record of consecutive failures of one retried task. ``failure``: the last one, None without any.

    ``doing``: the failed step, in words. ``reported_ms``, ``reported_code``: time and code of the last report; -1 and
    ``""``: none.
    """

    failure: Failure | None = None
    doing: str = ""
    attempts: int = 0
    retry_at_ms: int = 0
    reported_ms: int = NONE_MS
    reported_code: str = ""

    def after_failure(self, failure: Failure, doing: str, now_ms: int, dice: RandomSource) -> FailureStreak:
        """Return the streak with one more failure and the time of the next attempt. ``doing``: the failed step."""
        attempts = self.attempts + 1
        at_ms = now_ms + failure.delay_ms(attempts, dice)
        return replace(self, failure=failure, doing=doing, attempts=attempts, retry_at_ms=at_ms)

    def after_report(
        self, level: int, code: str, text: str, tp: TopicPartition | None, *, now_ms: int, repeat_ms: int
    ) -> tuple[FailureStreak, Report | None]:
        """Return (streak, report). The report is None if the same ``code`` was reported within ``repeat_ms``."""
        repeat = self.reported_code == code and self.reported_ms != NONE_MS
        if repeat and now_ms < self.reported_ms + repeat_ms:
            return self, None
        fields = (("attempt", self.attempts), ("code", code))
        report = Report(level, "still_failing" if repeat else "failed", text, tp, fields)
        return replace(self, reported_code=code, reported_ms=now_ms), report

    def after_success(self, doing: str, tp: TopicPartition | None) -> tuple[FailureStreak, Report | None]:
        """Return (streak, report) after a success of the step ``doing``, a text for the report.

        The report is None unless a failure was reported before.
        """
        if self.failure is None:
            return replace(self, attempts=0, retry_at_ms=0) if self.attempts or self.retry_at_ms else self, None
        if self.reported_ms == NONE_MS:
            return NO_FAILURES, None
        text = f"{doing} works again after {self.attempts} failures"
        return NO_FAILURES, Report(logging.INFO, "recovered", text, tp)

    def retry_now(self, now_ms: int, *, refused: bool = False) -> FailureStreak:
        """Return the streak with the next attempt at ``now_ms`` if time alone cures the failure, otherwise unchanged.

        ``refused``: also retry, and clear, a missing permission or a fatal failure: a person may have corrected the
        cause.
        """
        if self.failure is not None and self.failure.kind in PASSING:
            return replace(self, retry_at_ms=now_ms)
        if refused and self.failure is not None and self.failure.kind in REFUSED:
            return replace(self, failure=None, retry_at_ms=now_ms)
        return self


NO_FAILURES = FailureStreak()


class RandomSource(Protocol):
    """Source of random numbers for jitter, such as ``tiered.clock.IdSource``."""

    def random(self) -> float:
        """Return a number that is uniform in [0, 1)."""


def retry_delay_ms(attempt: int, dice: RandomSource) -> int:
    """Return the wait in ms after failure number ``attempt`` (from 1): exponential, with full jitter, at least 1.

    ``dice``: source of random numbers for the jitter.
    """
    return 1 + int(dice.random() * (int(backoff_bound_seconds(attempt) * 1000) - 1))
