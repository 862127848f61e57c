"""The one layer that repeats requests, and only those that are safe to repeat.

Safe: Get, Head, List, Delete, StartUpload (a lost answer leaves an empty upload for the lifecycle rule), UploadPart,
AbortUpload. Never a conditional PUT or CompleteUpload: after a lost answer their repeat says "lost" about our own
landed write, so the steps that sent them decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import tenacity

from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.errors import RemoteUnavailableError
from tiered.store.backoff import BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS, backoff_seconds
from tiered.store.base import AioStore, CompleteUpload, Outcome, Put, Store, StoreRequest
from tiered.store.driver import AioSleep

RETRY_DEADLINE_SECONDS = 30.0
"""No repeat begins later than this after the first attempt."""


class _Policy:
    """When to repeat and how long to wait, for both loops."""

    def __init__(
        self,
        clock: Clock | None,
        ids: IdSource | None,
        deadline_seconds: float,
        *,
        first_seconds: float,
        max_seconds: float,
    ) -> None:
        self.clock = clock or SystemClock()
        self.ids = ids or SystemIds()
        self.deadline_seconds = deadline_seconds
        self.first_seconds = first_seconds
        self.max_seconds = max_seconds

    def options(self) -> dict[str, Any]:
        """Keyword arguments of tenacity for one request that begins now."""
        begun = self.clock.monotonic()

        def stop(state: tenacity.RetryCallState) -> bool:
            return self.clock.monotonic() - begun + state.upcoming_sleep > self.deadline_seconds

        def wait(state: tenacity.RetryCallState) -> float:
            return backoff_seconds(
                state.attempt_number,
                self.ids.random(),
                first_seconds=self.first_seconds,
                max_seconds=self.max_seconds,
            )

        def give_up(state: tenacity.RetryCallState) -> NoReturn:
            last = state.outcome.exception() if state.outcome is not None else None
            if not isinstance(last, RemoteUnavailableError):
                raise RemoteUnavailableError("no attempt was made")
            if state.attempt_number == 1:
                raise last
            seconds = self.clock.monotonic() - begun
            raise RemoteUnavailableError(
                f"{last.message}; gave up after {state.attempt_number} attempts in {seconds:.1f} s", hint=last.hint
            ) from last

        return {
            "retry": tenacity.retry_if_exception_type(RemoteUnavailableError),
            "wait": wait,
            "stop": stop,
            "retry_error_callback": give_up,
        }


def is_safe_to_repeat(request: StoreRequest) -> bool:
    """Whether a second attempt of ``request`` cannot change what the first one did."""
    return not isinstance(request, Put | CompleteUpload)


class RetryingStore:
    """Repeats safe requests of ``inner`` on ``RemoteUnavailableError`` until ``deadline_seconds``; 0 never repeats."""

    def __init__(
        self,
        inner: Store,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        deadline_seconds: float = RETRY_DEADLINE_SECONDS,
        first_seconds: float = BACKOFF_FIRST_SECONDS,
        max_seconds: float = BACKOFF_MAX_SECONDS,
    ) -> None:
        self.inner = inner
        self._policy = _Policy(clock, ids, deadline_seconds, first_seconds=first_seconds, max_seconds=max_seconds)
        self._sleep: Callable[[float], None] = self._policy.clock.sleep

    @property
    def url(self) -> str:
        """That of the inner store."""
        return self.inner.url

    def __repr__(self) -> str:
        return f"RetryingStore({self.inner!r})"

    def execute(self, request: StoreRequest) -> Outcome:
        """As many attempts as are safe and fit before the deadline."""
        if not is_safe_to_repeat(request):
            return self.inner.execute(request)
        attempts = tenacity.Retrying(sleep=self._sleep, **self._policy.options())
        return attempts(self.inner.execute, request)

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
        first_seconds: float = BACKOFF_FIRST_SECONDS,
        max_seconds: float = BACKOFF_MAX_SECONDS,
    ) -> None:
        self.inner = inner
        self._policy = _Policy(clock, ids, deadline_seconds, first_seconds=first_seconds, max_seconds=max_seconds)
        self._sleep = sleep

    @property
    def url(self) -> str:
        """That of the inner store."""
        return self.inner.url

    def __repr__(self) -> str:
        return f"AioRetryingStore({self.inner!r})"

    async def execute(self, request: StoreRequest) -> Outcome:
        """As many attempts as are safe and fit before the deadline."""
        if not is_safe_to_repeat(request):
            return await self.inner.execute(request)
        attempts = tenacity.AsyncRetrying(sleep=self._sleep, **self._policy.options())
        return await attempts(self.inner.execute, request)

    async def close(self) -> None:
        """Closes the inner store."""
        await self.inner.close()
