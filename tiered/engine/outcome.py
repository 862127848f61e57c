"""Changes of a partition's row after a failure, a success or a fence, and the report of each."""

from __future__ import annotations

from tiered.engine.failure import RECHECK_PERMISSION_MS, Dice, Failure, FailureKind, fatal_delay_ms, retry_delay_ms
from tiered.engine.partition import NONE_MS, Partition, Phase, RefusedCommit
from tiered.engine.reports import Level, Report

PASSING = frozenset({FailureKind.RETRIABLE, FailureKind.UNKNOWN})
"""Failures that time cures."""

REFUSED = frozenset({FailureKind.PERMISSION, FailureKind.FATAL})
"""Failures that are retried rarely while the program runs, and once more at its end."""


def delay_ms(failure: Failure, attempt: int, dice: Dice) -> int:
    """Return the wait after the ``attempt``-th failure in a row (from 1)."""
    if failure.kind is FailureKind.PERMISSION:
        return RECHECK_PERMISSION_MS
    if failure.kind is FailureKind.FATAL:
        return fatal_delay_ms(attempt)
    return retry_delay_ms(attempt, dice)


def failed(p: Partition, failure: Failure, doing: str, now_ms: int, *, dice: Dice, repeat_ms: int) -> Report | None:
    """Note the failure and the time of the next attempt. Return the report that is due, if any."""
    p.attempts += 1
    p.failure, p.failed_doing = failure, doing
    p.retry_at_ms = now_ms + delay_ms(failure, p.attempts, dice)
    level = Level.WARN if failure.kind in PASSING else Level.ERROR
    return once(p, level, failure.code, _text(failure, doing), now_ms=now_ms, repeat_ms=repeat_ms)


def refused(p: Partition, failure: Failure, end: int) -> None:
    """Note that the commit up to ``end`` is proven not to be in the catalog. Retries become rarer."""
    p.attempts = 0 if p.refused is None else p.refused.times
    p.refusal = RefusedCommit(p.committed, end, p.attempts + 1, failure)


def succeeded(p: Partition, doing: str) -> Report | None:
    """Clear the last failure. A refused commit stays the failure until the catalog goes beyond it."""
    if p.refused is not None:
        p.failure, p.failed_doing, p.attempts = p.refused.failure, committing(p), p.refused.times
        p.retry_at_ms = 0
        return None
    report = None
    if p.failure is not None:
        if p.reported_ms != NONE_MS:
            report = Report(Level.INFO, "recovered", f"{doing} works again after {p.attempts} failures", p.tp)
        p.failure, p.failed_doing, p.reported_ms, p.reported_code = None, "", NONE_MS, ""
    p.attempts = 0
    p.retry_at_ms = 0
    return report


def fenced(p: Partition, failure: Failure, now_ms: int, *, repeat_ms: int) -> Report | None:
    """Note that a newer claim owns the partition. No more of its work begins."""
    p.phase = Phase.FENCED
    p.failure, p.failed_doing = failure, "fenced"
    return once(p, Level.ERROR, "fenced", _text(failure, "the partition is fenced"), now_ms=now_ms, repeat_ms=repeat_ms)


def once(p: Partition, level: Level, code: str, text: str, *, now_ms: int, repeat_ms: int) -> Report | None:
    """Return the report of the first failure of its kind, then one every ``repeat_ms``."""
    repeat = p.reported_code == code and p.reported_ms != NONE_MS
    if repeat and now_ms < p.reported_ms + repeat_ms:
        return None
    p.reported_code, p.reported_ms = code, now_ms
    fields = (("attempt", p.attempts), ("code", code))
    return Report(level, "still_failing" if repeat else "failed", text, p.tp, fields)


def retry_now(p: Partition, now_ms: int) -> None:
    """End the wait for a retry where time alone cures the failure: a caller waits for the upload."""
    if p.failure is not None and p.failure.kind in PASSING:
        p.retry_at_ms = now_ms


def ask_again(p: Partition, now_ms: int) -> None:
    """Clear a refusal before the end of the run: it may have been corrected, and the run ends by a current answer."""
    if p.failure is not None and p.failure.kind in REFUSED:
        p.failure, p.retry_at_ms = None, now_ms


def committing(p: Partition) -> str:
    """Return the name of the partition's commit in reports."""
    return f"committing {p.tp} from offset {p.committed}"


def _text(failure: Failure, doing: str) -> str:
    return f"{doing}: {failure.message}" + (f" ({failure.hint})" if failure.hint else "")
