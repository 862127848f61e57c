"""A store whose k-th request, and the ones behind it, fail in one way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tiered.errors import NotFoundError, RemotePermissionError, RemoteUnavailableError
from tiered.store.base import (
    CompleteUpload,
    Get,
    Head,
    List,
    ListPage,
    Match,
    Missing,
    Object,
    Outcome,
    Put,
    PutResult,
    PutStatus,
    StoreRequest,
)
from tiered.store.memory import MemoryStore
from tiered.testing.faults import FaultKind, damage, keys_of

Answer = Callable[[StoreRequest, Callable[[], Outcome], "FailingStore"], Outcome]


def _conditional(request: StoreRequest) -> bool:
    return isinstance(request, Put | CompleteUpload)


def _unavailable(request: StoreRequest, why: str) -> Outcome:
    if _conditional(request):
        return PutResult(PutStatus.UNKNOWN, cause=why)
    raise RemoteUnavailableError(f"{why}: {type(request).__name__}")


def _error_before(request: StoreRequest, _: Callable[[], Outcome], __: FailingStore) -> Outcome:
    raise RemoteUnavailableError(f"no connection: {type(request).__name__}")


def _reset_after(request: StoreRequest, apply: Callable[[], Outcome], _: FailingStore) -> Outcome:
    apply()
    raise RemoteUnavailableError(f"connection reset: {type(request).__name__}")


def _timeout_before(request: StoreRequest, _: Callable[[], Outcome], __: FailingStore) -> Outcome:
    return _unavailable(request, "timed out")


def _timeout_after(request: StoreRequest, apply: Callable[[], Outcome], _: FailingStore) -> Outcome:
    apply()
    return _unavailable(request, "timed out")


def _forbidden(request: StoreRequest) -> RemotePermissionError:
    return RemotePermissionError("403", operation=type(request).__name__, resource=(keys_of(request) or ("",))[0])


def _forbidden_before(request: StoreRequest, _: Callable[[], Outcome], __: FailingStore) -> Outcome:
    raise _forbidden(request)


def _forbidden_after(request: StoreRequest, apply: Callable[[], Outcome], _: FailingStore) -> Outcome:
    apply()
    raise _forbidden(request)


def _not_found(request: StoreRequest, _: Callable[[], Outcome], __: FailingStore) -> Outcome:
    if isinstance(request, Get | Head):
        return Missing()
    if isinstance(request, Put) and isinstance(request.condition, Match):
        return PutResult(PutStatus.ABSENT)
    raise NotFoundError("404 NoSuchBucket")


def _precondition(request: StoreRequest, _: Callable[[], Outcome], __: FailingStore) -> Outcome:
    return PutResult(PutStatus.LOST) if _conditional(request) else _unavailable(request, "412")


def _conflict(request: StoreRequest, _: Callable[[], Outcome], __: FailingStore) -> Outcome:
    return PutResult(PutStatus.CONFLICT) if _conditional(request) else _unavailable(request, "409")


def _server_error(request: StoreRequest, _: Callable[[], Outcome], __: FailingStore) -> Outcome:
    return _unavailable(request, "500")


def _slow_down(request: StoreRequest, _: Callable[[], Outcome], __: FailingStore) -> Outcome:
    raise RemoteUnavailableError(f"503 SlowDown: {type(request).__name__}")


def _damaged(kind: FaultKind) -> Answer:
    def answer(request: StoreRequest, apply: Callable[[], Outcome], store: FailingStore) -> Outcome:
        if isinstance(request, Put):
            body = request.body if isinstance(request.body, bytes) else request.body.read_at(0, request.body.size)
            if request.crc32c is None:
                return _unavailable(request, "400 BadDigest")
            return store.inner.execute(replace(request, body=damage(kind, body)))  # which refuses it
        outcome = apply()
        if not isinstance(outcome, Object):
            return outcome
        flipped = kind is FaultKind.FLIPPED
        return replace(
            outcome, data=(_another_bit(outcome.data, store.count) if flipped else damage(kind, outcome.data))
        )

    return answer


def _another_bit(data: bytes, number: int) -> bytes:
    """One bit flipped, another one in each answer: bytes that come twice alike are what the object holds."""
    middle = len(data) // 2
    return data[:middle] + bytes(byte ^ 1 << number % 8 for byte in data[middle : middle + 1]) + data[middle + 1 :]


def _stale(request: StoreRequest, apply: Callable[[], Outcome], store: FailingStore) -> Outcome:
    if isinstance(request, Get) and request.key in store.older:
        return store.older[request.key]
    outcome = apply()
    if isinstance(outcome, ListPage) and isinstance(request, List):
        return replace(outcome, entries=outcome.entries[:-1])
    return outcome


FAULTS: dict[str, Answer] = {
    "error before": _error_before,
    "reset after": _reset_after,
    "timeout before": _timeout_before,
    "timeout after": _timeout_after,
    "403 before": _forbidden_before,
    "403 after": _forbidden_after,
    "404": _not_found,
    "412": _precondition,
    "409": _conflict,
    "500": _server_error,
    "503": _slow_down,
    "truncated": _damaged(FaultKind.TRUNCATED),
    "wrong bytes": _damaged(FaultKind.FLIPPED),
    "stale": _stale,
}


class FailingStore:
    """``first`` (from 0): the request at which ``fault`` begins, for ``times`` requests. ``older``: what keys held."""

    url = "memory://failing"

    def __init__(self, inner: MemoryStore, *, first: int = -1, times: int = 0, fault: str = "") -> None:
        self.inner = inner
        self.first = first
        self.last = first + times
        self.fault = fault
        self.count = 0
        self.fired = 0
        self.older: dict[str, Outcome] = {}

    def heal(self) -> None:
        """All is well from now on."""
        self.first = -1

    def execute(self, request: StoreRequest) -> Outcome:
        """One request."""
        number = self.count
        self.count += 1

        def apply() -> Outcome:
            if isinstance(request, Put):
                before = self.inner.execute(Get(request.key))
                outcome = self.inner.execute(request)
                if isinstance(outcome, PutResult) and outcome.status is PutStatus.LANDED:
                    self.older[request.key] = before
                return outcome
            return self.inner.execute(request)

        if self.first <= number < self.last and self.first >= 0:
            self.fired += 1
            return FAULTS[self.fault](request, apply, self)
        return apply()

    def close(self) -> None:
        """Nothing is held."""


class AioFailingStore:
    """The same for a daemon."""

    url = "memory://failing"

    def __init__(self, store: FailingStore) -> None:
        self._store = store

    async def execute(self, request: StoreRequest) -> Outcome:
        """One request."""
        return self._store.execute(request)

    async def close(self) -> None:
        """Nothing is held."""
