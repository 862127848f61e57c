"""The driver and runner for asyncio, apart from ``store.driver`` so that programs on threads never import asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.errors import TieredError
from tiered.format.locks import Signal
from tiered.plan.pacing import backoff_seconds
from tiered.store.base import (
    AioStore,
    Backoff,
    Begin,
    Blocking,
    Emit,
    NewId,
    Now,
    Outcome,
    Steps,
    StoreRequest,
    Take,
    Time,
    Together,
    Wait,
)
from tiered.store.driver import TOGETHER_REQUESTS, Taker, checked_outcomes, no_store, refuse
from tiered.store.layers import AioSleep
from tiered.store.threads import BLOCKING

_CLOCK, _IDS = SystemClock(), SystemIds()

P = ParamSpec("P")
T = TypeVar("T")


async def adrive(
    store: AioStore,
    steps: Steps[T],
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    sleep: AioSleep = asyncio.sleep,
    together: int = TOGETHER_REQUESTS,
    take: Taker = refuse,
) -> T:
    """Run ``steps`` to their end on the event loop and return their value. Raises what the steps raise.

    ``clock`` and ``ids`` default to the machine's. ``sleep``: replaces ``asyncio.sleep`` in tests. ``together``: most
    concurrent requests of one :class:`Together`. ``take`` receives the values that the steps emit; by default one of
    them raises TypeError. A cancellation closes the generator and leaves no task. A cancelled conditional PUT may have
    landed: the caller must treat it as unknown.
    """
    ended: list[T] = []
    stream = _astream(store, steps, ended, clock=clock, ids=ids, sleep=sleep, together=together)
    async with contextlib.aclosing(stream):
        async for emitted in stream:
            take(emitted)
    return ended[0]


def adrive_stream(
    store: AioStore,
    steps: Steps[object],
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> AsyncGenerator[Any, None]:
    """Iterate over the values that ``steps`` emit, lazily, on the event loop. Raises what the steps raise.

    ``clock`` and ``ids`` default to the machine's. A caller that stops early must close the iterator (``aclosing``),
    which closes the steps.
    """
    return _astream(store, steps, [], clock=clock, ids=ids, sleep=asyncio.sleep, together=TOGETHER_REQUESTS)


async def _astream(
    store: AioStore,
    steps: Steps[T],
    ended: list[T],
    *,
    clock: Clock | None,
    ids: IdSource | None,
    sleep: AioSleep,
    together: int,
) -> AsyncGenerator[Any, None]:
    """Iterate over emitted values; put the value of the steps, which the generator cannot return, into ``ended``."""
    clock = clock or _CLOCK
    ids = ids or _IDS
    begun: set[asyncio.Task[Outcome]] = set()
    outcome: object = None
    error: TieredError | None = None
    try:
        while True:
            try:
                request = steps.send(outcome) if error is None else steps.throw(error)
            except StopIteration as stop:
                ended.append(stop.value)
                return
            outcome, error = None, None
            try:
                match request:
                    case Emit(emitted):
                        yield emitted
                    case Begin(wanted):
                        outcome = asyncio.ensure_future(store.execute(wanted))
                        begun.add(outcome)
                        outcome.add_done_callback(begun.discard)  # the ticket alone keeps the result
                    case Take(ticket):
                        outcome = await ticket  # type: ignore[misc]  # what Begin gave
                        del ticket, request
                    case Backoff(attempt, most_seconds):
                        await sleep(min(backoff_seconds(attempt, ids.random()), most_seconds))
                    case Wait(signal, seconds):
                        await _wait(signal, seconds)
                    case Now():
                        outcome = Time(clock.now_ms(), clock.monotonic())
                    case NewId():
                        outcome = ids.uid()
                    case Blocking(call):
                        outcome = await to_its_end(call)
                    case Together(several, errors):
                        outcome = checked_outcomes(await _execute_together_aio(store, several, together), errors=errors)
                    case _:
                        outcome = await store.execute(request)
            except TieredError as raised:
                error = raised
    finally:
        running = tuple(begun)
        for task in running:
            task.cancel()
        if running:
            await asyncio.gather(*running, return_exceptions=True)
        steps.close()
        error = None


async def _wait(signal: Signal, seconds: float) -> None:
    """Wait until ``signal`` is set, from any thread, at most ``seconds``."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def end() -> None:
        if not woken.done():
            woken.set_result(None)

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(end)

    signal.hook = wake
    timer = loop.call_later(seconds, end)
    try:
        if not signal.is_set():  # asked after the hook is there: no wake-up is missed
            await woken
    finally:
        signal.hook = None
        timer.cancel()


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``function`` with the given arguments on a daemon thread of the pool ``BLOCKING``. Return its result."""
    return await asyncio.get_running_loop().run_in_executor(BLOCKING, lambda: function(*args, **kwargs))


class DaemonLoop(asyncio.SelectorEventLoop):
    """Event loop that still works after the main thread has ended: its default executor has daemon threads.

    Name resolution, ``asyncio.to_thread`` and the SDK's own use of the default executor run on these threads.
    """

    def run_in_executor(  # type: ignore[override]  # the base class declares a coroutine's type
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        return super().run_in_executor(BLOCKING if executor is None else executor, func, *args)


async def to_its_end(call: Callable[[], T], pool: Executor = BLOCKING) -> T:
    """Run ``call`` on a thread and return its result. A cancellation waits until ``call`` has ended, then is raised."""
    work = asyncio.get_running_loop().run_in_executor(pool, call)
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        work.exception()  # retrieved, so that asyncio logs no warning about it
        raise cancelled
    return work.result()


async def _execute_together_aio(
    store: AioStore, several: Sequence[StoreRequest], limit: int
) -> tuple[Outcome | TieredError, ...]:
    gate = asyncio.Semaphore(max(1, limit))

    async def one(request: StoreRequest) -> Outcome:
        async with gate:
            return await store.execute(request)

    # With return_exceptions the gathering ends when all have ended, also when it is cancelled.
    results = await asyncio.gather(*(one(each) for each in several), return_exceptions=True)
    found: list[Outcome | TieredError] = []
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, TieredError):
            raise result
        found.append(result)
    return tuple(found)


class _NoAioStore:
    """Store of a log without bucket, for asyncio."""

    url = ""

    async def execute(self, request: StoreRequest) -> Outcome:
        """Raise ConfigError, because the log has no bucket."""
        raise no_store(request)

    async def close(self) -> None:
        """Do nothing."""


_NO_AIO_STORE = _NoAioStore()


@dataclass(frozen=True, slots=True)
class AioRunner:
    """Runner of steps on the event loop. ``clock`` and ``ids`` default to the machine's.

    ``store`` None: a log without bucket, where each request to the store raises ConfigError.
    """

    store: AioStore | None = None
    clock: Clock | None = None
    ids: IdSource | None = None

    async def run(self, steps: Steps[T], take: Taker = refuse) -> T:
        """Run ``steps`` to their end and return their value. ``take`` receives the values that they emit."""
        return await adrive(self.store or _NO_AIO_STORE, steps, clock=self.clock, ids=self.ids, take=take)

    def stream(
        self, steps: Steps[object], after: Callable[[], Steps[object]] | None = None
    ) -> AsyncGenerator[Any, None]:
        """Iterate over the values that ``steps`` emit. At their end, or an early close, run the steps of ``after``."""
        emitted = adrive_stream(self.store or _NO_AIO_STORE, steps, clock=self.clock, ids=self.ids)
        return emitted if after is None else self._stream_then(emitted, after)

    async def _stream_then(
        self, emitted: AsyncGenerator[Any, None], after: Callable[[], Steps[object]]
    ) -> AsyncGenerator[Any, None]:
        try:
            async with aclosing(emitted):
                async for each in emitted:
                    yield each
        finally:
            await self.run(after())
