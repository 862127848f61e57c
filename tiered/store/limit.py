"""Limits of a store, shared by all its users: requests and bytes per second, concurrent uploads, and memory.

A GET is charged afterwards, when its size is known. A refusal of the store (503 SlowDown) is counted here;
``store.retry`` waits before it repeats the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, InvalidStateError

from tiered.clock import Clock, SystemClock
from tiered.config import MEMORY_BYTES, StoreLimits
from tiered.errors import RemoteUnavailableError
from tiered.metrics import Metric, metric
from tiered.plan.pacing import TokenBucket
from tiered.store.base import (
    Get,
    Object,
    Outcome,
    Put,
    PutResult,
    StoreRequest,
    UploadPart,
    sent_bytes,
)
from tiered.store.layers import Attempt, Sleep, TurnRequest

BURST_SECONDS = 1.0
"""Time whose tokens an idle bucket saves up."""
PARTS_IN_FLIGHT = 4
"""Parts and single objects that the whole process streams at once: the bound of its connections."""

SMALL_BYTES = 1024 * 1024
SMALL_WAIT_SECONDS = 5.0
"""Longest wait of a request of at most ``SMALL_BYTES`` for the bytes of larger requests. Its own bytes count, too.

Without this bound, at a low rate, a commit would wait for concurrent uploads until its deadline, again and again.
"""


class Slots:
    """Pool of ``count`` units (upload slots, bytes of memory) for threads and asyncio tasks, granted in request order.

    A request for more than ``count`` units is granted when no other unit is in use, so that it does not wait for ever.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._count = count
        self._given: dict[Future[None], int] = {}
        self._line: dict[Future[None], int] = {}

    @property
    def count(self) -> int:
        """Number of units in the pool."""
        return self._count

    @property
    def taken(self) -> int:
        """Number of units that are granted now."""
        with self._lock:
            return self._taken()

    @property
    def waiting(self) -> int:
        """Number of requests that wait for units."""
        with self._lock:
            return len(self._line)

    def reconfigure(self, count: int) -> None:
        """Change the number of units. Units that are granted stay granted."""
        with self._lock:
            self._count = count
        self._let_in()

    def ask(self, turn: Future[None], wanted: int = 1) -> None:
        """Queue a request for ``wanted`` units. ``turn``: its future, which is done once they are granted.

        The caller must call :meth:`leave` with each future, also after an error.
        """
        with self._lock:
            self._line[turn] = wanted
        self._let_in()

    def leave(self, turn: Future[None]) -> None:
        """End the request of the future ``turn``: return its units, or remove it from the queue.

        A future that was never queued, or was ended already, changes nothing.
        """
        turn.cancel()
        with self._lock:
            self._line.pop(turn, None)
            self._given.pop(turn, None)
        self._let_in()

    def _taken(self) -> int:
        return sum(self._given.values())

    def _let_in(self) -> None:
        """Grant queued requests, in order, while units are free."""
        with self._lock:
            while self._line:
                turn, wanted = next(iter(self._line.items()))
                taken = self._taken()
                if taken and taken + wanted > self._count:
                    break
                # Granted first, out of the line second: an interrupt between the two lines loses no turn.
                self._given[turn] = wanted
                del self._line[turn]
            came = [turn for turn in self._given if not turn.done()]  # also those of an interrupted call
        for turn in came:
            with contextlib.suppress(InvalidStateError):  # cancelled, or done by another thread
                turn.set_result(None)

    @contextlib.contextmanager
    def turn(self, wanted: int = 1) -> Iterator[None]:
        """Return a context manager, for threads, that waits for ``wanted`` units and returns them at its end.

        An exception during the wait ends the request.
        """
        turn: Future[None] = Future()
        try:
            self.ask(turn, wanted)
            turn.result()
            yield
        finally:
            self.leave(turn)

    @contextlib.asynccontextmanager
    async def aio_turn(self, wanted: int = 1) -> AsyncIterator[None]:
        """Return a context manager, for tasks, that waits for ``wanted`` units and returns them at its end.

        A cancellation during the wait ends the request.
        """
        turn: Future[None] = Future()
        try:
            self.ask(turn, wanted)
            if not turn.done():
                await asyncio.wrap_future(turn)
            yield
        finally:
            self.leave(turn)


class Limits:
    """Layer that delays requests until the limits allow them. Thread-safe: stores may share one.

    Rates are None for no limit. ``bodies``: most concurrent uploads of files. ``memory_bytes``: size of ``memory``, the
    pool from which uploads, commits and maintenance take the bytes that they need.
    """

    def __init__(
        self,
        *,
        requests_per_second: float | None = None,
        bytes_per_second: float | None = None,
        bodies: int = PARTS_IN_FLIGHT,
        memory_bytes: int = MEMORY_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.slots = Slots(bodies)
        self.memory = Slots(memory_bytes)
        self.slow_downs = 0  # refusals of requests as too many
        self._lock = threading.Lock()  # of the two buckets and the count
        self._requests: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self.reconfigure(requests_per_second=requests_per_second, bytes_per_second=bytes_per_second)

    @classmethod
    def from_config(cls, limits: StoreLimits, *, clock: Clock | None = None) -> Limits:
        """Return the layer for limits that a user has set."""
        return cls(
            requests_per_second=limits.requests_per_second,
            bytes_per_second=limits.bytes_per_second,
            memory_bytes=limits.memory,
            clock=clock,
        )

    @property
    def requests_per_second(self) -> float | None:
        """Limit of requests per second, None for no limit."""
        return None if self._requests is None else self._requests.rate

    @property
    def bytes_per_second(self) -> float | None:
        """Limit of bytes per second in both directions, None for no limit."""
        return None if self._bytes is None else self._bytes.rate

    def reconfigure(
        self, *, requests_per_second: float | None, bytes_per_second: float | None, memory_bytes: int | None = None
    ) -> None:
        """Change the limits. Rates: None for no limit.

        ``memory_bytes``: new size of the pool ``memory``; None: it stays the same.
        """
        if memory_bytes is not None:
            self.memory.reconfigure(memory_bytes)
        self._requests = self._bucket(self._requests, requests_per_second)
        self._bytes = self._bucket(self._bytes, bytes_per_second)

    def _bucket(self, held: TokenBucket | None, rate: float | None) -> TokenBucket | None:
        if rate is None:
            return None
        now, burst = self.clock.monotonic(), rate * BURST_SECONDS
        if held is None:
            return TokenBucket(rate, burst=burst, now=now)
        with self._lock:
            held.set_rate(rate, now, burst=burst)
        return held

    def metrics(self) -> list[Metric]:
        """Return the metrics of the memory budget, and the number of requests that the store refused as too many."""
        return [
            metric("memory_limit_bytes", self.memory.count),
            metric("memory_used_bytes", self.memory.taken),
            metric("memory_waiters", self.memory.waiting),
            metric("store_slow_downs_total", self.slow_downs),
        ]

    def attempt(self, request: StoreRequest) -> Attempt:
        """Return the generator that waits until ``request`` is allowed, then sends it."""
        turn: Future[None] | None = None
        try:
            if is_streamed(request):
                turn = Future()
                self.slots.ask(turn)
                yield TurnRequest(turn)
            seconds = self.before(request)
            if seconds > 0:
                try:
                    yield Sleep(seconds)
                except BaseException:  # cancelled, for example by a time limit: it was charged and sent nothing
                    self.withdraw(request)
                    raise
            try:
                outcome: Outcome = yield request
            except RemoteUnavailableError as error:
                self.after(error)
                raise
            self.after(outcome)
            return outcome
        finally:
            if turn is not None:
                self.slots.leave(turn)

    def close(self) -> None:
        """Do nothing: other stores may share the limits."""

    def before(self, request: StoreRequest) -> float:
        """Charge ``request`` to the rates. Return the seconds to wait before it is sent."""
        requests, sent, now = self._requests, self._bytes, self.clock.monotonic()
        with self._lock:
            turn = 0.0 if requests is None else requests.acquire(1.0, now)
            owed = 0.0 if sent is None else sent.acquire(sent_bytes(request), now)
        owed = owed if _moved_bytes(request) > SMALL_BYTES else min(owed, SMALL_WAIT_SECONDS)
        return max(turn, owed)

    def withdraw(self, request: StoreRequest) -> None:
        """Undo the charge of a ``request`` that was abandoned while it waited."""
        requests, sent, now = self._requests, self._bytes, self.clock.monotonic()
        with self._lock:
            if requests is not None:
                requests.give_back(1.0, now)
            if sent is not None:
                sent.give_back(sent_bytes(request), now)

    def after(self, answer: Outcome | BaseException) -> None:
        """Charge the bytes of a response. ``answer``: outcome or error; a refusal as too many requests is counted."""
        received = self._bytes
        if isinstance(answer, Object):
            if received is not None:
                with self._lock:
                    received.acquire(len(answer.body), self.clock.monotonic())
        elif isinstance(answer, PutResult | RemoteUnavailableError) and answer.slow_down:
            with self._lock:
                self.slow_downs += 1


def _moved_bytes(request: StoreRequest) -> int:
    """Return the bytes that ``request`` sends or reads; 0 for a GET without an end, which reads a small object."""
    if isinstance(request, Get):
        return 0 if request.end is None else request.end - request.start
    return sent_bytes(request)


def is_streamed(request: StoreRequest) -> bool:
    """Return True if a request uploads a file or a part of one. Only such requests wait for an upload slot."""
    return isinstance(request, UploadPart) or (isinstance(request, Put) and not isinstance(request.body, bytes))
