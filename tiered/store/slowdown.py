"""Request rate for the keys of one prefix, learnt from the store's responses.

S3 splits its load by prefix and responds 503 SlowDown if one of them gets too many requests. Each such response
halves the rate of that prefix. Without them the rate rises again, and once it is well above the refused one, the
prefix has no limit any more. Decisions only: the caller passes the time and does the waiting.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tiered.metrics import Metric, metric
from tiered.plan.token_bucket import TokenBucket
from tiered.store.base import Delete, List, ListUploads, StoreRequest

HALVE_SECONDS = 1.0
"""Time within which refusals count as one: they respond to one burst."""

MIN_PER_SECOND = 2.0
"""Lowest rate of a prefix, so that a recovered store is noticed."""

PROBE_SHARE = 0.1
"""Rise of the rate in each second without a refusal, as a share of the halved rate; at least one request."""

FREE_FACTOR = 2.0
"""Multiple of the refused rate at which a rate is no limit any more."""

WINDOW_SECONDS = 1.0
"""Window for the measured rate, which a refusal halves if there is no limit yet."""

MAX_PREFIXES = 1_000
"""Limit of remembered prefixes; a bucket of ours has fewer (``format.keys``)."""


@dataclass(frozen=True, slots=True)
class Slowed:
    """A slowed prefix and its rate. ``since`` is monotonic; ``refusals`` counts bursts."""

    prefix: str
    per_second: float
    since: float
    refusals: int


@dataclass(slots=True)
class _Pace:
    """Pace of one prefix. ``base`` is the rate after halving at ``halved``, 0 while there is no limit."""

    window: float = 0.0  # when the count began
    asked: int = 0
    before: float = 0.0  # requests a second of the last whole window
    base: float = 0.0
    refused: float = 0.0  # the rate that was refused
    halved: float = 0.0
    since: float = 0.0
    refusals: int = 0
    turns: TokenBucket | None = None

    def rate(self, now: float) -> float:
        """Return requests a second now; 0 for no limit."""
        if not self.base:
            return 0.0
        rate = self.base + max(1.0, self.base * PROBE_SHARE) * (now - self.halved)
        if rate >= FREE_FACTOR * self.refused:
            self.base, self.refusals = 0.0, 0
            return 0.0
        return rate

    def ask(self, now: float) -> float:
        """Count one request; return the seconds to wait before sending it."""
        if now - self.window >= WINDOW_SECONDS:
            whole = now - self.window < 2 * WINDOW_SECONDS
            self.before = self.asked / WINDOW_SECONDS if whole else 0.0
            self.window, self.asked = now, 0
        self.asked += 1
        rate = self.rate(now)
        if not rate:
            return 0.0
        return self._turns(rate, now).acquire(1.0, now)

    def withdraw(self, now: float) -> None:
        """Uncount a request that is not sent. Earlier waiters keep their turn; later ones get an earlier turn."""
        self.asked = max(0, self.asked - 1)
        rate = self.rate(now)
        if rate:
            self._turns(rate, now).give_back(1.0, now)

    def _turns(self, rate: float, now: float) -> TokenBucket:
        """Return the bucket that spreads requests evenly: it saves up one at a time."""
        if self.turns is None:
            self.turns = TokenBucket(rate, burst=1.0, now=now)
        self.turns.go_at(rate, now, burst=1.0)
        return self.turns

    def slow_down(self, now: float) -> bool:
        """Note a refused request. Return True if that halved the rate."""
        if self.base and now - self.halved < HALVE_SECONDS:
            return False
        rate = self.rate(now)
        if not rate:
            self.since = now
            rate = max(self.before, self.asked / WINDOW_SECONDS)
        self.refused = max(rate, MIN_PER_SECOND)
        self.base = max(MIN_PER_SECOND, rate / 2)
        self.halved = now
        self.refusals += 1
        return True


class Paces:
    """Paces of all prefixes of one store. Thread-safe. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paces: dict[str, _Pace] = {}
        self.slow_downs = 0

    def ask(self, request: StoreRequest, now: float) -> float:
        """Count ``request``; return the seconds to wait before sending it."""
        with self._lock:
            return self._pace_for(request).ask(now)

    def withdraw(self, request: StoreRequest, now: float) -> None:
        """Uncount a ``request`` that waited and is not sent."""
        with self._lock:
            self._pace_for(request).withdraw(now)

    def slow_down(self, request: StoreRequest, now: float) -> Slowed | None:
        """Note that the store refused ``request``. Return the new pace of its prefix, None if it stays the same."""
        with self._lock:
            self.slow_downs += 1
            pace = self._pace_for(request)
            return self._slowed(prefix_of(request), pace, now) if pace.slow_down(now) else None

    def slowed(self, now: float) -> list[Slowed]:
        """Return the slowed prefixes, by name."""
        with self._lock:
            return [self._slowed(name, pace, now) for name, pace in sorted(self._paces.items()) if pace.rate(now)]

    def metrics(self, now: float) -> list[Metric]:
        """Return ``tiered_store_slow_downs_total``, and ``tiered_store_rate_limit`` of each slowed prefix."""
        limits = [metric("store_rate_limit", each.per_second, {"prefix": each.prefix}) for each in self.slowed(now)]
        return [metric("store_slow_downs_total", self.slow_downs), *limits]

    def _slowed(self, prefix: str, pace: _Pace, now: float) -> Slowed:
        return Slowed(prefix, pace.rate(now), pace.since, pace.refusals)

    def _pace_for(self, request: StoreRequest) -> _Pace:
        prefix = prefix_of(request)
        pace = self._paces.get(prefix)
        if pace is None:
            if len(self._paces) >= MAX_PREFIXES:
                self._paces = {name: each for name, each in self._paces.items() if each.base}
            pace = self._paces[prefix] = _Pace()
        return pace


def prefix_of(request: StoreRequest) -> str:
    """Return the first part of the key, which spreads partitions over the key space of a bucket."""
    match request:
        case Delete(keys):
            key = keys[0] if keys else ""
        case List(prefix) | ListUploads(prefix):
            key = prefix
        case _:
            key = request.key
    return key.split("/", 1)[0]
