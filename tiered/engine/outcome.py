"""Changes of the record of failures, after a failure or a success, and the report of each."""

from __future__ import annotations

from dataclasses import replace

from tiered.engine.failure import (
    NO_FAILURES,
    RECHECK_PERMISSION_MS,
    Failure,
    FailureKind,
    FailureStreak,
    RandomSource,
    fatal_delay_ms,
    retry_delay_ms,
)
from tiered.engine.partition import NONE_MS, Partition, RefusedCommit
from tiered.engine.reports import Level, Report
from tiered.model import TopicPartition

PASSING = frozenset({FailureKind.RETRIABLE, FailureKind.UNKNOWN})
"""Failures that time cures."""

REFUSED = frozenset({FailureKind.PERMISSION, FailureKind.FATAL})
"""Failures that are retried rarely while the program runs, and once more at its end."""


def delay_ms(failure: Failure, attempt: int, dice: RandomSource) -> int:
    """Return the wait after the ``attempt``-th failure in a row (from 1)."""
    if failure.kind is FailureKind.PERMISSION:
        return RECHECK_PERMISSION_MS
    if failure.kind is FailureKind.FATAL:
        return fatal_delay_ms(attempt)
    return retry_delay_ms(attempt, dice)


def failed(before: FailureStreak, failure: Failure, doing: str, now_ms: int, dice: RandomSource) -> FailureStreak:
    """Return the state with one more failure and the time of the next attempt."""
    attempts = before.attempts + 1
    at_ms = now_ms + delay_ms(failure, attempts, dice)
    return replace(before, failure=failure, doing=doing, attempts=attempts, retry_at_ms=at_ms)


def once(
    before: FailureStreak, level: Level, code: str, text: str, tp: TopicPartition | None, *, now_ms: int, repeat_ms: int
) -> tuple[FailureStreak, Report | None]:
    """Return the report of the first failure of its kind, then one every ``repeat_ms``, and the record of it."""
    repeat = before.reported_code == code and before.reported_ms != NONE_MS
    if repeat and now_ms < before.reported_ms + repeat_ms:
        return before, None
    fields = (("attempt", before.attempts), ("code", code))
    report = Report(level, "still_failing" if repeat else "failed", text, tp, fields)
    return replace(before, reported_code=code, reported_ms=now_ms), report


def succeeded(before: FailureStreak, doing: str, tp: TopicPartition | None) -> tuple[FailureStreak, Report | None]:
    """Return the record after a success, and the report of the recovery from a reported failure."""
    if before.failure is None:
        return replace(before, attempts=0, retry_at_ms=0) if before.attempts or before.retry_at_ms else before, None
    if before.reported_ms == NONE_MS:
        return NO_FAILURES, None
    text = f"{doing} works again after {before.attempts} failures"
    return NO_FAILURES, Report(Level.INFO, "recovered", text, tp)


def retry_now(before: FailureStreak, now_ms: int, *, refused: bool = False) -> FailureStreak:
    """End the wait for a retry where time alone cures the failure: a caller waits for the upload.

    ``refused``: clear a refusal, too. It may have been corrected, and the run ends by a current answer.
    """
    if before.failure is not None and before.failure.kind in PASSING:
        return replace(before, retry_at_ms=now_ms)
    if refused and before.failure is not None and before.failure.kind in REFUSED:
        return replace(before, failure=None, retry_at_ms=now_ms)
    return before


def commit_refused(p: Partition, failure: Failure, end: int) -> None:
    """Note that the commit up to ``end`` is proven not to be in the catalog. Retries become rarer."""
    times = 0 if p.refused is None else p.refused.times
    p.trouble = replace(p.trouble, attempts=times)
    p.refusal = RefusedCommit(p.committed, end, times + 1, failure)


def still_refused(p: Partition, refused: RefusedCommit) -> FailureStreak:
    """Return the record of a commit that stays refused: no other success cures it."""
    return replace(p.trouble, failure=refused.failure, doing=committing(p), attempts=refused.times, retry_at_ms=0)


def committing(p: Partition) -> str:
    """Return the name of the partition's commit in reports."""
    return f"committing {p.tp} from offset {p.committed}"


def text_of(failure: Failure, doing: str) -> str:
    """Return the failure as a sentence for a report."""
    return f"{doing}: {failure.message}" + (f" ({failure.hint})" if failure.hint else "")
