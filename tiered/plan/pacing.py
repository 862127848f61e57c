"""Rules for when to act again: backoff after failures, intervals of polls, rate limits, pauses of uploads."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from tiered.errors import ConfigError

BACKOFF_FIRST_SECONDS = 0.2
"""Bound of the wait before the first repeat."""

BACKOFF_MAX_SECONDS = 60.0
"""Bound of every wait: a client notices within a minute that the store is back."""

_MAX_DOUBLINGS = 32  # 2.0 ** 1024 raises OverflowError; an outage of days reaches such attempts


def backoff_bound_seconds(
    attempt: int, first_seconds: float = BACKOFF_FIRST_SECONDS, max_seconds: float = BACKOFF_MAX_SECONDS
) -> float:
    """Return the longest wait before retry ``attempt`` (from 1): ``first_seconds``, doubled by each further retry.

    The wait is at most ``max_seconds``.
    """
    doublings = min(max(attempt - 1, 0), _MAX_DOUBLINGS)
    return min(max_seconds, first_seconds * 2.0**doublings)


def backoff_seconds(attempt: int, uniform: float) -> float:
    """Return the wait before retry ``attempt`` (from 1). ``uniform`` is a random number in [0, 1).

    The wait is uniform between zero and :func:`backoff_bound_seconds`, so that clients that failed together retry at
    different times.
    """
    return uniform * backoff_bound_seconds(attempt)


_CHANGES = 8
_LOOKS = 4
"""Polls in the smallest gap between two changes, and in a silence of any length."""


class PollInterval:
    """Calculator of the interval between two polls of a partition that another machine writes.

    The interval is a quarter of the smallest gap between the last eight changes. After a longer silence it is a
    quarter of the silence. It is at least ``least_s`` and at most ``most_s``.
    """

    __slots__ = ("_changes", "_least_s", "_most_s")

    def __init__(self, now_s: float, least_s: float, most_s: float) -> None:
        """Start as if the partition had changed at ``now_s``."""
        self._least_s = least_s
        self._most_s = most_s
        self._changes = deque([now_s], maxlen=_CHANGES)

    def changed(self, now_s: float) -> None:
        """Record that the partition changed at ``now_s``."""
        self._changes.append(now_s)

    def interval_s(self, now_s: float) -> float:
        """Return the seconds until the next poll."""
        gap = min((later - earlier for earlier, later in pairwise(self._changes)), default=0.0)
        silence = now_s - self._changes[-1]
        return min(max(gap / _LOOKS, silence / _LOOKS, self._least_s), self._most_s)


class TokenBucket:
    """Rate limit: a bucket that gains ``rate`` tokens a second, up to ``burst``. Not thread-safe; it never waits.

    Tokens may become negative, so that one request may exceed ``burst``: the next caller then waits longer. Times are
    monotonic seconds. Raises ConfigError unless ``rate`` is positive.
    """

    def __init__(self, rate: float, *, burst: float, now: float) -> None:
        if not rate > 0:
            raise ConfigError(
                f"a rate limit of {rate} per second is not possible",
                hint="pass a positive number, or None for no limit",
            )
        self._rate, self._burst = rate, burst
        self._tokens, self._seen = burst, now

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self._rate

    def acquire(self, tokens: float, now: float) -> float:
        """Take ``tokens`` from the bucket. Return the seconds that the caller must wait before it acts."""
        self._refill(now)
        self._tokens -= tokens
        return max(0.0, -self._tokens / self._rate)

    def give_back(self, tokens: float, now: float) -> None:
        """Put unused tokens back into the bucket."""
        self._refill(now)
        self._tokens = min(self._burst, self._tokens + tokens)

    def set_rate(self, rate: float, now: float, *, burst: float) -> None:
        """Change rate and burst. Missing tokens (a negative number) stay missing, and are refilled at the new rate."""
        self._refill(now)
        self._rate, self._burst = rate, burst

    def _refill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._seen) * self._rate)
        self._seen = max(self._seen, now)


ALL_TOPICS = ""
"""Name that stands for every topic."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause of uploads that an operator requested. ``since_ms``: its start. ``reason``: text of the operator."""

    since_ms: int
    reason: str = ""

    def __str__(self) -> str:
        return "uploads are paused" + (f" ({self.reason})" if self.reason else "")
