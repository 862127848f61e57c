"""What a store may be asked for: requests and bytes per second, bodies at once. Token buckets may go into debt.

Debt lets one object be larger than the bucket: whoever comes next waits for it. A GET is charged when its size is
known, that is afterwards.
"""

from __future__ import annotations

import asyncio
import threading

from tiered.clock import Clock, SystemClock
from tiered.errors import ConfigError
from tiered.store.base import (
    AioStore,
    AioStoreAround,
    Object,
    Outcome,
    Put,
    Store,
    StoreAround,
    StoreRequest,
    UploadPart,
)
from tiered.store.driver import AioSleep

BURST_SECONDS = 1.0
"""A bucket that was idle holds the tokens of this time."""
PARTS_IN_FLIGHT = 4
"""Parts and single objects streamed from files: what bounds memory and connections."""


class TokenBucket:
    """``rate`` tokens a second, at most ``burst`` saved up. Thread-safe; waits for nothing itself."""

    def __init__(self, rate: float, *, clock: Clock, burst: float | None = None) -> None:
        if not rate > 0:
            raise ConfigError(f"a rate limit of {rate} per second", hint="a positive number, or None for no limit")
        self._rate = rate
        self._burst = rate * BURST_SECONDS if burst is None else burst
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = self._burst
        self._seen = clock.monotonic()

    def take(self, tokens: float) -> float:
        """Takes ``tokens`` and returns the seconds to wait before using them."""
        with self._lock:
            now = self._clock.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._seen) * self._rate)
            self._seen = now
            self._tokens -= tokens
            return max(0.0, -self._tokens / self._rate)


class Limits:
    """The two buckets of a store; None for no limit."""

    def __init__(
        self,
        *,
        requests_per_second: float | None = None,
        bytes_per_second: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self._requests = None if requests_per_second is None else TokenBucket(requests_per_second, clock=self.clock)
        self._bytes = None if bytes_per_second is None else TokenBucket(bytes_per_second, clock=self.clock)

    def before(self, request: StoreRequest) -> float:
        """Seconds to wait before sending ``request``."""
        seconds = 0.0 if self._requests is None else self._requests.take(1.0)
        if self._bytes is not None:
            seconds = max(seconds, self._bytes.take(sent_bytes(request)))
        return seconds

    def after(self, outcome: Outcome) -> None:
        """Charges what came back."""
        if self._bytes is not None and isinstance(outcome, Object):
            self._bytes.take(len(outcome.data))


def sent_bytes(request: StoreRequest) -> int:
    """Bytes of body that ``request`` uploads."""
    match request:
        case Put(body=body):
            return len(body) if isinstance(body, bytes) else body.size
        case UploadPart(start=start, end=end):
            return end - start
        case _:
            return 0


class LimitedStore(StoreAround):
    """Waits until ``limits`` allow a request. Several stores may share one :class:`Limits`."""

    def __init__(self, inner: Store, limits: Limits) -> None:
        super().__init__(inner)
        self._limits = limits

    def execute(self, request: StoreRequest) -> Outcome:
        """One attempt, when its turn comes."""
        seconds = self._limits.before(request)
        if seconds > 0:
            self._limits.clock.sleep(seconds)
        outcome = self.inner.execute(request)
        self._limits.after(outcome)
        return outcome


class AioLimitedStore(AioStoreAround):
    """The same for asyncio."""

    def __init__(self, inner: AioStore, limits: Limits, *, sleep: AioSleep = asyncio.sleep) -> None:
        super().__init__(inner)
        self._limits = limits
        self._sleep = sleep

    async def execute(self, request: StoreRequest) -> Outcome:
        """One attempt, when its turn comes."""
        seconds = self._limits.before(request)
        if seconds > 0:
            await self._sleep(seconds)
        outcome = await self.inner.execute(request)
        self._limits.after(outcome)
        return outcome


class GatedStore(AioStoreAround):
    """Waits for a slot before it sends a file or a part of one; everything else passes at once."""

    def __init__(self, inner: AioStore, bodies: int = PARTS_IN_FLIGHT) -> None:
        super().__init__(inner)
        self._slots = asyncio.Semaphore(bodies)

    async def execute(self, request: StoreRequest) -> Outcome:
        """One request."""
        streams = isinstance(request, UploadPart) or (isinstance(request, Put) and not isinstance(request.body, bytes))
        if not streams:
            return await self.inner.execute(request)
        async with self._slots:
            return await self.inner.execute(request)
