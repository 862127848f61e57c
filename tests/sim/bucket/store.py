"""A bucket in memory that tells of each object that comes or goes, and the weather between it and the processes."""

from __future__ import annotations

import random
from collections import Counter
from typing import Protocol

from tiered.clock import Clock
from tiered.errors import RemotePermissionError, RemoteUnavailableError, TieredError
from tiered.store.base import (
    CompleteUpload,
    Delete,
    Deleted,
    Outcome,
    Put,
    PutResult,
    PutStatus,
    StoreRequest,
)
from tiered.store.memory import MemoryStore
from tiered.testing.faults import keys_of

MAX_IN_FLIGHT = 64
"""Requests that are late at the same time; what comes above it is dropped."""


class Watcher(Protocol):
    """Who is told. An invariant that does not hold is raised from here, through whoever sent the request."""

    def came(self, key: str, data: bytes) -> None:
        """An object is there now."""

    def went(self, key: str) -> None:
        """An object is not there any more."""


class WatchedStore(MemoryStore):
    """A memory store; ``watcher`` is told after each change."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.watcher: Watcher | None = None

    def execute(self, request: StoreRequest) -> Outcome:
        """One request."""
        gone = [key for key in request.keys if key in self._bucket.objects] if isinstance(request, Delete) else []
        outcome = super().execute(request)
        if self.watcher is not None:
            for key in gone:
                self.watcher.went(key)
            landed = isinstance(outcome, PutResult) and outcome.status is PutStatus.LANDED
            if landed and isinstance(request, Put | CompleteUpload):
                self.watcher.came(request.key, self._bucket.objects[request.key].data)
        return outcome

    def peek(self, key: str) -> bytes | None:
        """The bytes of an object, without a request."""
        found = self._bucket.objects.get(key)
        return None if found is None else found.data

    def times_ms(self) -> dict[str, int]:
        """Return the time at which each object was stored."""
        return {key: stored.modified_ms for key, stored in self._bucket.objects.items()}

    def all_keys(self) -> list[str]:
        """All keys."""
        return sorted(self._bucket.objects)


class Weather:
    """What becomes of a request on its way: refused, lost, late, carried out twice, answered by nobody.

    ``rate``: share of requests that meet something. Late ones wait for ``deliver``; what is late may come twice.
    """

    url = "memory://sim"

    def __init__(self, inner: WatchedStore, rng: random.Random, rate: float) -> None:
        self.inner = inner
        self.rate = rate
        self.counts: Counter[str] = Counter()
        self.in_flight: list[StoreRequest] = []
        self._rng = rng

    def execute(self, request: StoreRequest) -> Outcome:
        """One request."""
        if self._rng.random() >= self.rate:
            return self.inner.execute(request)
        kinds: tuple[str, ...] = ("refused", "refused", "unanswered")
        if isinstance(request, Delete):
            kinds = ("refused", "unanswered", "late", "twice", "in part")
        elif isinstance(request, Put | CompleteUpload):
            kinds = ("refused", "conflict", "unanswered", "unanswered", "late", "twice", "twice late")
        kind = "forbidden" if self._rng.random() < 0.04 else self._rng.choice(kinds)
        self.counts[kind] += 1
        return self._meets(kind, request)

    def deliver(self) -> None:
        """One late request arrives, or is lost for good."""
        if self.in_flight:
            late = self.in_flight.pop(self._rng.randrange(len(self.in_flight)))
            if self._rng.random() < 0.85:
                self._late(late)

    def deliver_all(self) -> None:
        """All that are late arrive, or are lost for good."""
        while self.in_flight:
            self.deliver()

    def close(self) -> None:
        """Nothing is held."""

    def _meets(self, kind: str, request: StoreRequest) -> Outcome:
        match kind:
            case "forbidden":
                if self._rng.random() < 0.5:  # what stands before the store may refuse the answer alone
                    self.inner.execute(request)
                operation = type(request).__name__
                raise RemotePermissionError("403", operation=operation, resource=(*keys_of(request), "")[0])
            case "refused":
                return _no_answer(request)
            case "unanswered":
                self.inner.execute(request)
                return _no_answer(request)
            case "late":
                self._keep(request)
                return _no_answer(request)
            case "conflict":
                return PutResult(PutStatus.CONFLICT, cause="409")
            case "twice":  # the first answer was lost below the store's client, which sent it again
                self.inner.execute(request)
                return self.inner.execute(request)
            case "twice late":
                outcome = self.inner.execute(request)
                self._keep(request)
                return outcome
        assert isinstance(request, Delete)
        cut = self._rng.randrange(len(request.keys))
        if cut:
            self.inner.execute(Delete(request.keys[:cut]))
        return Deleted(tuple([(key, "InternalError") for key in request.keys[cut:]]))

    def _keep(self, request: StoreRequest) -> None:
        if len(self.in_flight) < MAX_IN_FLIGHT:
            self.in_flight.append(request)

    def _late(self, request: StoreRequest) -> None:
        try:
            self.inner.execute(request)
        except TieredError:
            return  # nobody is there to hear it


def _no_answer(request: StoreRequest) -> PutResult:
    if isinstance(request, Put | CompleteUpload):
        return PutResult(PutStatus.UNKNOWN, cause="no answer")
    raise RemoteUnavailableError("503")
