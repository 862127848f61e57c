"""The one layer that repeats requests, and only those that are safe to repeat.

Safe: Get, Head, List, Delete, StartUpload (a lost answer leaves an empty upload for the lifecycle rule), UploadPart,
AbortUpload. Never a conditional PUT or CompleteUpload: after a lost answer their repeat says "lost" about our own
landed write, so the steps that sent them decide.
"""

from __future__ import annotations

import asyncio

from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.errors import RemoteUnavailableError
from tiered.store.base import AioStore, CompleteUpload, Outcome, Put, Store, StoreRequest
from tiered.store.driver import AioSleep, backoff_seconds

RETRY_DEADLINE_SECONDS = 30.0
"""No repeat begins later than this after the first attempt."""

_ONCE = (Put, CompleteUpload)
"""What is never repeated: the attempt before it may have landed."""


class _Policy:
    """When to repeat and how long to wait, for both loops."""

    def __init__(self, clock: Clock | None, ids: IdSource | None, deadline_seconds: float) -> None:
        self.clock = clock or SystemClock()
        self._ids = ids or SystemIds()
        self._deadline_seconds = deadline_seconds

    def pause(self, error: RemoteUnavailableError, attempt: int, begun: float) -> float:
        """Seconds to wait after this attempt (from 1). Raises if the next one would begin behind the deadline."""
        seconds = backoff_seconds(attempt, self._ids.random())
        passed = self.clock.monotonic() - begun
        if passed + seconds <= self._deadline_seconds:
            return seconds
        if attempt == 1:
            raise error
        raise RemoteUnavailableError(
            f"{error.message}; gave up after {attempt} attempts in {passed:.1f} s", hint=error.hint
        ) from error


class RetryingStore:
    """Repeats safe requests of ``inner`` on ``RemoteUnavailableError`` until ``deadline_seconds``; 0 never repeats."""

    def __init__(
        self,
        inner: Store,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        deadline_seconds: float = RETRY_DEADLINE_SECONDS,
    ) -> None:
        self.inner, self.url = inner, inner.url
        self._policy = _Policy(clock, ids, deadline_seconds)

    def __repr__(self) -> str:
        return f"RetryingStore({self.inner!r})"

    def execute(self, request: StoreRequest) -> Outcome:
        """As many attempts as are safe and fit before the deadline."""
        if isinstance(request, _ONCE):
            return self.inner.execute(request)
        begun, attempt = self._policy.clock.monotonic(), 1
        while True:
            try:
                return self.inner.execute(request)
            except RemoteUnavailableError as error:
                seconds = self._policy.pause(error, attempt, begun)
            self._policy.clock.sleep(seconds)
            attempt += 1

    def close(self) -> None:
        """Closes the inner store."""
        self.inner.close()


class AioRetryingStore:
    """The same for asyncio; ``sleep`` is injected by tests."""

    def __init__(
        self,
        inner: AioStore,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        sleep: AioSleep = asyncio.sleep,
        deadline_seconds: float = RETRY_DEADLINE_SECONDS,
    ) -> None:
        self.inner, self.url = inner, inner.url
        self._policy = _Policy(clock, ids, deadline_seconds)
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"AioRetryingStore({self.inner!r})"

    async def execute(self, request: StoreRequest) -> Outcome:
        """As many attempts as are safe and fit before the deadline."""
        if isinstance(request, _ONCE):
            return await self.inner.execute(request)
        begun, attempt = self._policy.clock.monotonic(), 1
        while True:
            try:
                return await self.inner.execute(request)
            except RemoteUnavailableError as error:
                seconds = self._policy.pause(error, attempt, begun)
            await self._sleep(seconds)
            attempt += 1

    async def close(self) -> None:
        """Closes the inner store."""
        await self.inner.close()
