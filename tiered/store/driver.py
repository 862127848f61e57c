"""The two drivers: they carry out what *steps* yield (``store.base``), on threads or on asyncio.

A steps generator holds the protocol and touches nothing; a driver touches everything and knows no protocol::

    root = drive(store, catalog.load(), clock=clock, ids=ids)
    root = await adrive(aio_store, catalog.load(), clock=clock, ids=ids)

    for records in drive_stream(store, stream.records(wanted)): ...
    async for records in adrive_stream(aio_store, stream.records(wanted)): ...

Each ``TieredError`` of a request is thrown into the generator at its ``yield``, so that steps can use ``try``.
Any other exception, and a cancellation, closes the generator and goes to the caller.

Waits between attempts grow exponentially with full jitter: uniform between nothing and the bound, which spreads a
thousand clients that failed at the same instant; a fixed exponential keeps them in step.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.errors import TieredError
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
    Store,
    StoreRequest,
    Take,
    Time,
    Together,
)

TOGETHER_REQUESTS = 4
"""Requests of one :class:`Together` that are under way at once."""

BACKGROUND_THREADS = 8
"""Threads of one process that carry out what steps :class:`Begin`, for all sync streams together."""

_CLOCK, _IDS = SystemClock(), SystemIds()
_pools: dict[int, ThreadPoolExecutor] = {}
_pools_lock = threading.Lock()

T = TypeVar("T")
AioSleep = Callable[[float], Awaitable[None]]
Taker = Callable[[Any], object]

BACKOFF_FIRST_SECONDS = 0.2
"""Bound of the wait before the first repeat."""

BACKOFF_MAX_SECONDS = 60.0
"""Bound of every wait."""

_MAX_DOUBLINGS = 32  # 2.0 ** 1024 raises OverflowError; an outage of days reaches such attempts


def refuse(emitted: object) -> None:
    """Takes nothing. Raises TypeError: these steps are not of those that emit."""
    raise TypeError(f"steps that are run to their end emitted {emitted!r}")


def drive(
    store: Store,
    steps: Steps[T],
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    together: int = TOGETHER_REQUESTS,
    take: Taker = refuse,
) -> T:
    """Runs ``steps`` to their end on the calling thread and returns their value.

    ``clock`` and ``ids`` default to the machine's; ``together`` bounds the threads of a :class:`Together`; ``take``
    gets what they emit. Raises what the steps raise.
    """
    stream = drive_stream(store, steps, clock=clock, ids=ids, together=together)
    try:
        while True:
            take(next(stream))
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        stream.close()


def drive_stream(
    store: Store,
    steps: Steps[T],
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    together: int = TOGETHER_REQUESTS,
) -> Generator[Any, None, T]:
    """What ``steps`` emit. Nothing is done for a value before it is asked for; closing it closes the steps."""
    clock = clock or _CLOCK
    ids = ids or _IDS
    begun: set[Future[Outcome]] = set()
    outcome: object = None
    error: TieredError | None = None
    try:
        while True:
            try:
                request = steps.send(outcome) if error is None else steps.throw(error)
            except StopIteration as stop:
                value: T = stop.value
                return value
            outcome, error = None, None
            try:
                match request:
                    case Emit(emitted):
                        yield emitted
                    case Begin(wanted):
                        outcome = _pool().submit(store.execute, wanted)
                        begun.add(outcome)
                    case Take(ticket):
                        begun.discard(ticket)
                        outcome = ticket.result()  # type: ignore[attr-defined]
                        del ticket, request  # they hold the outcome: its consumer's is to be the only reference
                    case Backoff(attempt, most_seconds):
                        clock.sleep(min(backoff_seconds(attempt, ids.random()), most_seconds))
                    case Now():
                        outcome = Time(clock.now_ms(), clock.monotonic())
                    case NewId():
                        outcome = ids.uid()
                    case Blocking(call):
                        outcome = call()
                    case Together(several, errors):
                        outcome = _told(_execute_together(store, several, together), errors=errors)
                    case _:
                        outcome = store.execute(request)
            except TieredError as raised:
                error = raised
    finally:
        for future in begun:
            future.cancel()
        steps.close()
        error = None  # the traceback of the error refers to this frame: without this both wait for the collector


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
    """As :func:`drive` for asyncio. Cancelling it closes the generator and leaves no task behind.

    A cancelled conditional PUT may have landed: whoever cancels treats it as unknown.
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
    """As :func:`drive_stream` for asyncio. Whoever stops early closes it (``aclosing``), and no task is left behind."""
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
    """Puts the value of the steps into ``ended``: an asynchronous generator has none."""
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
                    case Take(ticket):
                        outcome = await ticket  # type: ignore[misc]  # what Begin gave
                        begun.discard(ticket)
                        del ticket, request
                    case Backoff(attempt, most_seconds):
                        await sleep(min(backoff_seconds(attempt, ids.random()), most_seconds))
                    case Now():
                        outcome = Time(clock.now_ms(), clock.monotonic())
                    case NewId():
                        outcome = ids.uid()
                    case Blocking(call):
                        outcome = await _in_thread(call)
                    case Together(several, errors):
                        outcome = _told(await _execute_together_aio(store, several, together), errors=errors)
                    case _:
                        outcome = await store.execute(request)
            except TieredError as raised:
                error = raised
    finally:
        for task in begun:
            task.cancel()
        if begun:
            await asyncio.gather(*begun, return_exceptions=True)
        steps.close()
        error = None


def _pool() -> ThreadPoolExecutor:
    pid = os.getpid()  # the threads of a parent do not exist in a forked child
    with _pools_lock:
        pool = _pools.get(pid)
        if pool is None:
            _pools.clear()
            pool = _pools[pid] = ThreadPoolExecutor(BACKGROUND_THREADS, thread_name_prefix="tiered-read")
        return pool


async def _in_thread(call: Callable[[], T]) -> T:
    """To its end, also when cancelled; the cancellation is raised then, whatever became of the call."""
    work = asyncio.get_running_loop().run_in_executor(None, call)
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        work.exception()  # looked at, so that nobody complains that it was not
        raise cancelled
    return work.result()


def _execute_together(store: Store, several: Sequence[StoreRequest], limit: int) -> tuple[Outcome | TieredError, ...]:
    if len(several) <= 1 or limit <= 1:
        return tuple([_outcome_of(store, each) for each in several])
    with ThreadPoolExecutor(max_workers=min(limit, len(several)), thread_name_prefix="tiered-together") as pool:
        futures = [pool.submit(_outcome_of, store, each) for each in several]
    # Leaving the pool waited for all of them: none is left running, whatever one of them raised.
    return tuple(future.result() for future in futures)


def _outcome_of(store: Store, request: StoreRequest) -> Outcome | TieredError:
    try:
        return store.execute(request)
    except TieredError as error:
        return error


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


def _told(found: tuple[Outcome | TieredError, ...], *, errors: bool) -> tuple[Outcome | TieredError, ...]:
    """All of it where the steps want the ``errors``, else the first error is raised."""
    for each in () if errors else found:
        if isinstance(each, TieredError):
            raise each
    return found


def backoff_bound_seconds(attempt: int) -> float:
    """The longest wait before repeat ``attempt`` (from 1)."""
    doublings = min(max(attempt - 1, 0), _MAX_DOUBLINGS)
    return min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0**doublings)


def backoff_seconds(attempt: int, uniform: float) -> float:
    """The wait before repeat ``attempt`` (from 1); ``uniform`` is a random number in [0, 1)."""
    return uniform * backoff_bound_seconds(attempt)
