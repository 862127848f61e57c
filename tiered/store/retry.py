"""The only layer that repeats requests, and only those that are safe to repeat.

Safe: Get, Head, List, Delete, StartUpload (a lost response leaves an empty upload for the lifecycle rule), UploadPart,
AbortUpload, ListUploads, ListVersions. Never a conditional PUT or CompleteUpload: after a lost response their repeat
reports "lost" about our own landed write, so the steps that sent them decide.

A store that refuses to delete several keys at once (it wants ``Content-MD5``, or has no such request) gets one request
for each key, which is repeated by itself.
"""

from __future__ import annotations

from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.errors import ConfigError, NotFoundError, RemotePermissionError, RemoteUnavailableError
from tiered.plan.pacing import backoff_seconds
from tiered.store.base import (
    ACCESS_DENIED,
    CompleteUpload,
    Delete,
    Deleted,
    Outcome,
    Put,
    StoreRequest,
)
from tiered.store.layers import Attempt, Sleep
from tiered.store.options import RETRY_DEADLINE_SECONDS

_ONCE = (Put, CompleteUpload)
"""Requests that are never repeated: the attempt before may have landed."""


_NO_MULTI_DELETE = (ConfigError, NotFoundError)
"""Exceptions for a refused multi-delete: the codes differ (400, 404, 405, 411, 501), and so do their reasons."""


def _refused(key: str, error: RemotePermissionError) -> tuple[str, str]:
    """Return (``key``, reason) if the store denied the deletion of this key, as a multi-delete reports it.

    Raise ``error`` for another refusal, which applies to all keys.
    """
    if ACCESS_DENIED not in error.message:
        raise error
    return key, error.message


class Retries:
    """Layer that repeats requests on ``RemoteUnavailableError``, except conditional PUTs and ``CompleteUpload``.

    ``deadline_seconds``: time after the first attempt in which repeats are sent; 0: no repeats.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        deadline_seconds: float = RETRY_DEADLINE_SECONDS,
    ) -> None:
        self.clock = clock or SystemClock()
        self._ids = ids or SystemIds()
        self._deadline_seconds = deadline_seconds
        self._one_by_one = False

    def attempt(self, request: StoreRequest) -> Attempt:
        """Return the generator that sends one request, and repeats it if that is safe.

        If the store refuses to delete several keys at once, each key gets a request of its own.
        """
        if not isinstance(request, Delete) or len(request.keys) < 2:
            return (yield from self._repeated(request))
        if not self._one_by_one:
            try:
                return (yield from self._repeated(request))
            except _NO_MULTI_DELETE:
                pass  # if it was refused for another reason, the first single delete raises that
        failed: list[tuple[str, str]] = []
        for key in request.keys:
            try:
                yield from self._repeated(Delete((key,)))
            except RemotePermissionError as error:
                failed.append(_refused(key, error))
        self._one_by_one = True
        return Deleted(tuple(failed), one_by_one=True)

    def close(self) -> None:
        """Do nothing: this layer holds no resources."""

    def _repeated(self, request: StoreRequest) -> Attempt:
        """Send a request, again if that is safe, until it is answered. At the deadline raise RemoteUnavailableError."""
        begun, attempt = self.clock.monotonic(), 0
        while True:
            attempt += 1
            try:
                outcome: Outcome = yield request
                return outcome
            except RemoteUnavailableError as error:
                if isinstance(request, _ONCE):
                    raise
                seconds = backoff_seconds(attempt, self._ids.random())
                passed = self.clock.monotonic() - begun
                if passed + seconds > self._deadline_seconds:
                    if attempt == 1:
                        raise
                    raise RemoteUnavailableError(
                        f"{error.message}; gave up after {attempt} attempts in {passed:.1f} s", hint=error.hint
                    ) from error
            yield Sleep(seconds)
