"""Wait before a request is repeated: exponential, with full jitter.

Full jitter is uniform between zero and the bound. It spreads a thousand clients that failed at the same instant; a
fixed exponential keeps them in step.
"""

from __future__ import annotations

BACKOFF_FIRST_SECONDS = 0.2
"""Bound of the wait before the first repeat."""

BACKOFF_MAX_SECONDS = 60.0
"""Bound of every wait: a client notices within a minute that the store is back."""

_MAX_DOUBLINGS = 32  # 2.0 ** 1024 raises OverflowError; an outage of days reaches such attempts


def backoff_bound_seconds(
    attempt: int, first_seconds: float = BACKOFF_FIRST_SECONDS, max_seconds: float = BACKOFF_MAX_SECONDS
) -> float:
    """Return the longest wait before repeat ``attempt`` (from 1)."""
    doublings = min(max(attempt - 1, 0), _MAX_DOUBLINGS)
    return min(max_seconds, first_seconds * 2.0**doublings)


def backoff_seconds(attempt: int, uniform: float) -> float:
    """Return the wait before repeat ``attempt`` (from 1). ``uniform`` is a random number in [0, 1)."""
    return uniform * backoff_bound_seconds(attempt)
