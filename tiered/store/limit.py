"""What a store may be asked for, in one place for all that share it: requests and bytes per second, bodies at once.

Token buckets may go into debt, which lets one object be larger than the bucket: whoever comes next waits for it. A GET
is charged when its size is known, that is afterwards. What the store itself refuses as too much (503 SlowDown) slows
down the prefix that was asked (``store.pace``).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future

from tiered.clock import Clock, SystemClock
from tiered.errors import ConfigError, RemoteUnavailableError
from tiered.store.base import (
    AioStore,
    AioStoreAround,
    Get,
    Object,
    Outcome,
    Put,
    PutResult,
    Store,
    StoreAround,
    StoreRequest,
    UploadPart,
)
from tiered.store.driver import AioSleep
from tiered.store.pace import Paces, Slowed

BURST_SECONDS = 1.0
"""A bucket that was idle holds the tokens of this time."""
PARTS_IN_FLIGHT = 4
"""Parts and single objects that are streamed at once, in the whole process: what bounds memory and connections."""


SMALL_BYTES = 1024 * 1024
SMALL_WAIT_SECONDS = 5.0
"""A request that moves no more than ``SMALL_BYTES`` waits no longer than this for what larger ones owe, and is charged
all the same: at a low rate a commit would else wait for the uploads beside it until it is given up, again and again."""


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
            self._refill()
            self._tokens -= tokens
            return max(0.0, -self._tokens / self._rate)

    def go_at(self, rate: float) -> None:
        """Another rate from now on; a debt stays, and is paid at it."""
        with self._lock:
            self._refill()
            self._rate, self._burst = rate, rate * BURST_SECONDS

    def _refill(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._seen) * self._rate)
        self._seen = now


class Slots:
    """``count`` turns, for threads and tasks alike, given in the order of asking."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._line: deque[Future[None]] = deque()

    def ask(self) -> Future[None] | None:
        """None: a turn is taken. Else one comes with the result of the future, unless it is cancelled before."""
        with self._lock:
            if self._free:
                self._free -= 1
                return None
            turn: Future[None] = Future()
            self._line.append(turn)
            return turn

    def give_back(self) -> None:
        """To whoever has waited longest."""
        with self._lock:
            turn = next((each for each in self._waiting() if each.set_running_or_notify_cancel()), None)
            if turn is None:
                self._free += 1
        if turn is not None:
            turn.set_result(None)

    def _waiting(self) -> Iterator[Future[None]]:
        while self._line:
            yield self._line.popleft()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """For a thread."""
        waits = self.ask()
        if waits is not None:
            waits.result()
        try:
            yield
        finally:
            self.give_back()

    @contextlib.asynccontextmanager
    async def aio_turn(self) -> AsyncIterator[None]:
        """For a task; cancelled while it waits, it leaves the line."""
        waits = self.ask()
        if waits is not None:
            try:
                await asyncio.wrap_future(waits)
            except asyncio.CancelledError:
                if not waits.cancelled() and not waits.cancel():
                    self.give_back()  # the turn had come already
                raise
        try:
            yield
        finally:
            self.give_back()


class Limits:
    """The limits of a store; None for no limit. Thread-safe: stores that share them share what they allow.

    ``slowed`` is called when the store asks for fewer requests and a prefix is asked less often for it.
    """

    def __init__(
        self,
        *,
        requests_per_second: float | None = None,
        bytes_per_second: float | None = None,
        bodies: int = PARTS_IN_FLIGHT,
        clock: Clock | None = None,
        slowed: Callable[[Slowed], None] | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.slots = Slots(bodies)
        self.paces = Paces()
        self._said = slowed
        self._requests: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self.go_by(requests_per_second=requests_per_second, bytes_per_second=bytes_per_second)

    def go_by(self, *, requests_per_second: float | None, bytes_per_second: float | None) -> None:
        """Other rates from now on; None for no limit."""
        self._requests = self._bucket(self._requests, requests_per_second)
        self._bytes = self._bucket(self._bytes, bytes_per_second)

    def _bucket(self, held: TokenBucket | None, rate: float | None) -> TokenBucket | None:
        if rate is None:
            return None
        if held is None:
            return TokenBucket(rate, clock=self.clock)
        held.go_at(rate)
        return held

    def before(self, request: StoreRequest) -> float:
        """Seconds to wait before sending ``request``."""
        requests, sent = self._requests, self._bytes
        seconds = self.paces.ask(request, self.clock.monotonic())
        if requests is not None:
            seconds = max(seconds, requests.take(1.0))
        if sent is not None:
            owed = sent.take(sent_bytes(request))
            seconds = max(seconds, owed if _moved_bytes(request) > SMALL_BYTES else min(owed, SMALL_WAIT_SECONDS))
        return seconds

    def after(self, request: StoreRequest, answer: Outcome | BaseException) -> None:
        """Charges what came back; hears that the store wants fewer requests."""
        received = self._bytes
        if isinstance(answer, Object):
            if received is not None:
                received.take(len(answer.data))
        elif isinstance(answer, PutResult | RemoteUnavailableError) and answer.slow_down:
            slowed = self.paces.slow_down(request, self.clock.monotonic())
            if slowed is not None and self._said is not None:
                self._said(slowed)


def sent_bytes(request: StoreRequest) -> int:
    """Bytes of body that ``request`` uploads."""
    match request:
        case Put(body=body):
            return len(body) if isinstance(body, bytes) else body.size
        case UploadPart(start=start, end=end):
            return end - start
        case _:
            return 0


def _moved_bytes(request: StoreRequest) -> int:
    """Bytes that ``request`` is known to move; a GET without an end reads a small object, a root or a page."""
    if isinstance(request, Get):
        return 0 if request.end is None else request.end - request.start
    return sent_bytes(request)


def is_streamed(request: StoreRequest) -> bool:
    """Whether it sends a file or a part of one: that has to wait for a slot, everything else passes."""
    return isinstance(request, UploadPart) or (isinstance(request, Put) and not isinstance(request.body, bytes))


class LimitedStore(StoreAround):
    """Waits until ``limits`` allow a request. Several stores may share one :class:`Limits`."""

    def __init__(self, inner: Store, limits: Limits) -> None:
        super().__init__(inner)
        self._limits = limits

    def execute(self, request: StoreRequest) -> Outcome:
        """One attempt, when its turn comes."""
        if not is_streamed(request):
            return self._execute(request)
        with self._limits.slots.turn():
            return self._execute(request)

    def _execute(self, request: StoreRequest) -> Outcome:
        seconds = self._limits.before(request)
        if seconds > 0:
            self._limits.clock.sleep(seconds)
        try:
            outcome = self.inner.execute(request)
        except RemoteUnavailableError as error:
            self._limits.after(request, error)
            raise
        self._limits.after(request, outcome)
        return outcome


class AioLimitedStore(AioStoreAround):
    """The same for asyncio."""

    def __init__(self, inner: AioStore, limits: Limits, *, sleep: AioSleep = asyncio.sleep) -> None:
        super().__init__(inner)
        self._limits = limits
        self._sleep = sleep

    async def execute(self, request: StoreRequest) -> Outcome:
        """One attempt, when its turn comes."""
        if not is_streamed(request):
            return await self._execute(request)
        async with self._limits.slots.aio_turn():
            return await self._execute(request)

    async def _execute(self, request: StoreRequest) -> Outcome:
        seconds = self._limits.before(request)
        if seconds > 0:
            await self._sleep(seconds)
        try:
            outcome = await self.inner.execute(request)
        except RemoteUnavailableError as error:
            self._limits.after(request, error)
            raise
        self._limits.after(request, outcome)
        return outcome
