"""A process whose life is steps (``store.base``): it goes on by one request at a time, and dies between two of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tiered.errors import TieredError
from tiered.plan.pacing import backoff_seconds
from tiered.store.base import (
    Backoff,
    Begin,
    Blocking,
    Emit,
    NewId,
    Now,
    Outcome,
    Steps,
    Store,
    StoreRequest,
    Take,
    Time,
    Together,
)
from tiered.store.layers import LayeredStore
from tiered.store.retry import Retries
from tiered.testing.clock import FakeClock, SeededIds

RETRY_SECONDS = 5.0
"""How long a request that is safe to repeat is repeated."""

FAR_MS = 3_600_000
"""A machine's clock that is further from the store's is not used."""

Life = Callable[["SteppedProcess"], Steps[None]]


class Skewed:
    """A machine's clock: ``skew_ms`` before ``clock``, which is the store's unless ``store_ms`` reads that."""

    def __init__(self, clock: FakeClock, store_ms: Callable[[], int] | None = None) -> None:
        self._clock = clock
        self._store_ms = store_ms or clock.now_ms
        self.skew_ms = 0

    def now_ms(self) -> int:
        """The machine's wall clock."""
        return self._clock.now_ms() + self.skew_ms

    def counted_ms(self) -> int:
        """The time that a maintainer may count ages by: the store's where the wall clock is far from it."""
        return self.now_ms() if self.is_right() else self._store_ms()

    def is_right(self) -> bool:
        """Return whether the wall clock is near the store's."""
        return abs(self.now_ms() - self._store_ms()) <= FAR_MS

    def monotonic(self) -> float:
        """Of the world."""
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """Passes in no time but the world's."""
        self._clock.sleep(seconds)


class SteppedProcess:
    """One life after the other of ``life``; what emits puts it into ``emitted``."""

    def __init__(
        self,
        name: str,
        life: Life,
        store: Store,
        clock: FakeClock,
        seed: int,
        store_ms: Callable[[], int] | None = None,
    ) -> None:
        self.name = name
        self.clock = Skewed(clock, store_ms)
        self.ids = SeededIds(seed)
        self.store = LayeredStore(store, Retries(clock=clock, ids=self.ids, deadline_seconds=RETRY_SECONDS))
        self.lives = 0
        self.emitted: list[Any] = []
        self.last: StoreRequest | None = None
        """The request that was carried out last."""
        self.life = life
        self._steps: Steps[None] | None = None
        self._answer: Any = None
        self._left: list[StoreRequest] = []
        self._outcomes: list[Any] = []

    def __str__(self) -> str:
        return f"{self.name}.{self.lives}"

    def die(self) -> None:
        """kill -9: whatever was under way is."""
        if self._steps is not None:
            self._steps.close()
        self._steps = self._answer = None
        self._left, self._outcomes = [], []
        self.emitted = []

    def step(self) -> bool:
        """Up to its next request, and its answer. False: its life is over, the next step begins another one."""
        if self._steps is None:
            self.lives += 1
            self._steps, self._answer = self.life(self), None
        if self._left:
            self._one_of_several()
            return True
        while True:
            answer, self._answer = self._answer, None
            try:
                failed = isinstance(answer, TieredError)
                request = self._steps.throw(answer) if failed else self._steps.send(answer)
            except StopIteration:
                self._steps = None
                return False
            if isinstance(request, Together) and request.errors:
                self._left, self._outcomes = list(request.requests), []
                self._one_of_several()
                return True
            try:
                self._answer = self._carry_out(request)
            except TieredError as error:
                self._answer = error
            if not isinstance(request, Now | NewId | Emit | Take | Blocking):
                return True

    def _carry_out(self, request: Any) -> Any:
        match request:
            case Backoff(attempt, most_seconds):
                self.clock.sleep(min(backoff_seconds(attempt, self.ids.random()), most_seconds))
            case Now():
                return Time(self.clock.now_ms(), self.clock.monotonic())
            case NewId():
                return self.ids.uid()
            case Blocking(call):
                return call()
            case Emit(value):
                self.emitted.append(value)
            case Together(requests):
                return self._together(requests)
            case Begin(wanted):
                return self._begun(wanted)
            case Take(ticket):
                assert isinstance(ticket, Future)
                return ticket.result()
            case _:
                return self._execute(request)
        return None

    def _one_of_several(self) -> None:
        """The next request of those whose errors are told one by one: between two of them anything may happen."""
        request = self._left.pop(0)
        try:
            self._outcomes.append(self._execute(request))
        except TieredError as error:
            self._outcomes.append(error)
        if not self._left:
            self._answer, self._outcomes = tuple(self._outcomes), []

    def _execute(self, request: StoreRequest) -> Outcome:
        self.last = request
        return self.store.execute(request)

    def _together(self, requests: tuple[StoreRequest, ...]) -> tuple[Outcome, ...]:
        outcomes: list[Outcome] = []
        first: TieredError | None = None
        for each in requests:
            try:
                outcomes.append(self._execute(each))
            except TieredError as error:
                first = first or error
        if first is not None:
            raise first
        return tuple(outcomes)

    def _begun(self, request: StoreRequest) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        try:
            future.set_result(self._execute(request))
        except TieredError as error:
            future.set_exception(error)
        return future
