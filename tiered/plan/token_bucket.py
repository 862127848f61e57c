"""Rate limiter of requests, bytes and turns per second."""

from __future__ import annotations

from tiered.errors import ConfigError


class TokenBucket:
    """Bucket that gains ``rate`` tokens a second, up to ``burst``. The caller passes the time, holds a lock, and waits.

    A bucket may go into debt, so that one object may be larger than the bucket: the next caller waits for it. Times are
    monotonic seconds.
    """

    def __init__(self, rate: float, *, burst: float, now: float) -> None:
        if not rate > 0:
            raise ConfigError(f"a rate limit of {rate} per second", hint="a positive number, or None for no limit")
        self._rate, self._burst = rate, burst
        self._tokens, self._seen = burst, now

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self._rate

    def acquire(self, tokens: float, now: float) -> float:
        """Take ``tokens``. Return the seconds to wait before using them."""
        self._refill(now)
        self._tokens -= tokens
        return max(0.0, -self._tokens / self._rate)

    def give_back(self, tokens: float, now: float) -> None:
        """Return unused tokens."""
        self._refill(now)
        self._tokens = min(self._burst, self._tokens + tokens)

    def go_at(self, rate: float, now: float, *, burst: float) -> None:
        """Change the rate. A debt stays, and is paid at the new rate."""
        self._refill(now)
        self._rate, self._burst = rate, burst

    def _refill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._seen) * self._rate)
        self._seen = max(self._seen, now)
