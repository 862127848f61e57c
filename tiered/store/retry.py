"""The one layer that repeats requests, and only those that are safe to repeat.

Safe: Get, Head, List, Delete, StartUpload (a lost answer leaves an empty upload for the lifecycle rule), UploadPart,
AbortUpload, ListUploads, ListVersions. Never a conditional PUT or CompleteUpload: after a lost answer their repeat says
"lost" about our own landed write, so the steps that sent them decide.

A store that refuses to delete several keys at once (it wants ``Content-MD5``, or has no such request) gets one request
for each key, which is repeated by itself.

The first attempt goes to the store directly: what tenacity needs for a request (39 us) is spent on those that failed.
"""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import tenacity

from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.errors import ConfigError, NotFoundError, RemotePermissionError, RemoteUnavailableError
from tiered.store.aio_driver import AioSleep
from tiered.store.base import (
    ACCESS_DENIED,
    AioStore,
    AioStoreAround,
    CompleteUpload,
    Delete,
    Deleted,
    Outcome,
    Put,
    Store,
    StoreAround,
    StoreRequest,
)
from tiered.store.driver import backoff_seconds
from tiered.store.options import RETRY_DEADLINE_SECONDS

_ONCE = (Put, CompleteUpload)
"""What is never repeated: the attempt before it may have landed."""


class _Policy:
    """When to repeat and how long to wait, for both loops."""

    def __init__(self, clock: Clock | None, ids: IdSource | None, deadline_seconds: float) -> None:
        self.clock = clock or SystemClock()
        self._ids = ids or SystemIds()
        self._deadline_seconds = deadline_seconds

    def options(self, begun: float) -> dict[str, Any]:
        """Keyword arguments of tenacity for one request whose first attempt was ``begun`` then."""

        def stop(state: tenacity.RetryCallState) -> bool:
            return self.clock.monotonic() - begun + state.upcoming_sleep > self._deadline_seconds

        def wait(state: tenacity.RetryCallState) -> float:
            return backoff_seconds(state.attempt_number, self._ids.random())

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


_NO_MULTI_DELETE = (ConfigError, NotFoundError)
"""How the refusal of a multi-delete is raised: the codes differ (400, 404, 405, 411, 501), and so do their reasons."""


def _refused(key: str, error: RemotePermissionError) -> tuple[str, str]:
    """Return one key that must not be deleted, as a multi-delete reports it. Raise what stops all of them."""
    if ACCESS_DENIED not in error.message:
        raise error
    return key, error.message


class RetryingStore(StoreAround):
    """Repeats safe requests of ``inner`` on ``RemoteUnavailableError`` until ``deadline_seconds``; 0 never repeats."""

    def __init__(
        self,
        inner: Store,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        deadline_seconds: float = RETRY_DEADLINE_SECONDS,
    ) -> None:
        super().__init__(inner)
        self._policy = _Policy(clock, ids, deadline_seconds)
        self._one_by_one = False

    def execute(self, request: StoreRequest) -> Outcome:
        """Make as many attempts as are safe and fit before the deadline."""
        if not isinstance(request, Delete) or len(request.keys) < 2:
            return self._execute(request)
        if not self._one_by_one:
            try:
                return self._execute(request)
            except _NO_MULTI_DELETE:
                pass  # if it was refused for another reason, the first single delete raises that
        failed: list[tuple[str, str]] = []
        for key in request.keys:
            try:
                self._execute(Delete((key,)))
            except RemotePermissionError as error:
                failed.append(_refused(key, error))
        self._one_by_one = True
        return Deleted(tuple(failed), one_by_one=True)

    def _execute(self, request: StoreRequest) -> Outcome:
        if isinstance(request, _ONCE):
            return self.inner.execute(request)
        begun = self._policy.clock.monotonic()
        try:
            return self.inner.execute(request)
        except RemoteUnavailableError as error:
            failed = [error]

        def attempt() -> Outcome:
            if failed:  # tenacity counts from the first one, which has been made
                raise failed.pop()
            return self.inner.execute(request)

        return tenacity.Retrying(sleep=self._policy.clock.sleep, **self._policy.options(begun))(attempt)


class AioRetryingStore(AioStoreAround):
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
        super().__init__(inner)
        self._policy = _Policy(clock, ids, deadline_seconds)
        self._one_by_one = False
        self._sleep = sleep

    async def execute(self, request: StoreRequest) -> Outcome:
        """Make as many attempts as are safe and fit before the deadline."""
        if not isinstance(request, Delete) or len(request.keys) < 2:
            return await self._execute(request)
        if not self._one_by_one:
            try:
                return await self._execute(request)
            except _NO_MULTI_DELETE:
                pass
        failed: list[tuple[str, str]] = []
        for key in request.keys:
            try:
                await self._execute(Delete((key,)))
            except RemotePermissionError as error:
                failed.append(_refused(key, error))
        self._one_by_one = True
        return Deleted(tuple(failed), one_by_one=True)

    async def _execute(self, request: StoreRequest) -> Outcome:
        if isinstance(request, _ONCE):
            return await self.inner.execute(request)
        begun = self._policy.clock.monotonic()
        try:
            return await self.inner.execute(request)
        except RemoteUnavailableError as error:
            failed = [error]

        async def attempt() -> Outcome:
            if failed:  # tenacity counts from the first one, which has been made
                raise failed.pop()
            return await self.inner.execute(request)

        return await tenacity.AsyncRetrying(sleep=self._sleep, **self._policy.options(begun))(attempt)
