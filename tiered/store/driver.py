"""The driver and runner for threads. A driver carries out the requests of *steps* (``store.base``).

``aio_driver`` is the twin for asyncio.

A steps generator has the protocol and touches nothing; a driver touches everything and knows no protocol::

    root = drive(store, catalog.load(), clock=clock, ids=ids)
    root = await adrive(aio_store, catalog.load(), clock=clock, ids=ids)

    for records in drive_stream(store, stream.records(wanted)): ...
    async for records in adrive_stream(aio_store, stream.records(wanted)): ...

Each ``TieredError`` of a request is thrown into the generator at its ``yield``, so that steps can use ``try``.
Any other exception, and a cancellation, closes the generator and goes to the caller.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.errors import ConfigError, TieredError
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
    Wait,
)
from tiered.store.threads import ThreadPool

TOGETHER_REQUESTS = 4
"""Requests of one :class:`Together` in flight at once."""

BACKGROUND_THREADS = 8
"""Threads of one store for requests of :class:`Begin`, for all its sync streams: a slow one delays itself."""

_CLOCK, _IDS = SystemClock(), SystemIds()
_pools: weakref.WeakKeyDictionary[Store, ThreadPool] = weakref.WeakKeyDictionary()
_spare_pools: list[ThreadPool] = []

T = TypeVar("T")
Taker = Callable[[Any], object]


def refuse(emitted: object) -> None:
    """Raise TypeError for the value ``emitted``. This is the default ``take`` of :func:`drive`."""
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
    """Run ``steps`` to their end on the calling thread and return their value. Raises what the steps raise.

    ``clock`` and ``ids`` default to the machine's. ``together``: most threads for one :class:`Together`. ``take``
    receives the values that the steps emit; by default one of them raises TypeError.
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
    """Iterate over the values that ``steps`` emit, lazily. The generator's return value is that of the steps.

    Closing it closes the steps. ``clock`` and ``ids`` default to the machine's. ``together``: most threads for one
    :class:`Together`. Raises what the steps raise.
    """
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
                    case Blocking(call):
                        outcome = call()
                    case Begin(wanted):
                        outcome = _pool_of(store).submit(store.execute, wanted)
                        begun.add(outcome)
                        outcome.add_done_callback(begun.discard)  # the ticket alone keeps the result
                    case Take(ticket):
                        outcome = ticket.result()  # type: ignore[attr-defined]
                        del ticket, request  # they refer to the outcome: its consumer must have the only reference
                    case Backoff(attempt, most_seconds):
                        clock.sleep(min(backoff_seconds(attempt, ids.random()), most_seconds))
                    case Wait(signal, seconds):
                        clock.wait(signal, seconds)
                    case Now():
                        outcome = Time(clock.now_ms(), clock.monotonic())
                    case NewId():
                        outcome = ids.uid()
                    case Together(several, errors):
                        outcome = checked_outcomes(_execute_together(store, several, together), errors=errors)
                    case _:
                        outcome = store.execute(request)
            except TieredError as raised:
                error = raised
    finally:
        for future in tuple(begun):  # each one leaves the set when it ends
            future.cancel()
        steps.close()
        error = None  # the traceback of the error refers to this frame: a cycle that only the collector would free


def _pool_of(store: Store) -> ThreadPool:
    pool = _pools.get(store)
    if pool is None:  # two threads may each make one: both work, and the first ends when it is idle
        # Every thread has a heap of its own: with new threads, each reader would fault in all pages of its bodies.
        try:
            pool = _spare_pools.pop()
        except IndexError:
            pool = ThreadPool(BACKGROUND_THREADS, "tiered-read")
        _pools[store] = pool
        # Jobs refer to the store: the pool is idle by then. The collector may call this at any point: it takes no lock.
        weakref.finalize(store, _spare_pools.append, pool).atexit = False
    return pool


def _execute_together(store: Store, several: Sequence[StoreRequest], limit: int) -> tuple[Outcome | TieredError, ...]:
    if len(several) <= 1 or limit <= 1:
        return tuple([_outcome_of(store, each) for each in several])
    with ThreadPool(min(limit, len(several)), "tiered-together") as pool:
        futures = [pool.submit(_outcome_of, store, each) for each in several]
    # Leaving the pool waited for all of them: none is left running, whatever one of them raised.
    return tuple(future.result() for future in futures)


def _outcome_of(store: Store, request: StoreRequest) -> Outcome | TieredError:
    try:
        return store.execute(request)
    except TieredError as error:
        return error


def checked_outcomes(found: tuple[Outcome | TieredError, ...], *, errors: bool) -> tuple[Outcome | TieredError, ...]:
    """Return the outcomes of a :class:`Together`. Without ``errors``, raise the first error among them."""
    for each in () if errors else found:
        if isinstance(each, TieredError):
            raise each
    return found


class _NoStore:
    """Store of a log without bucket: steps that only wait for the disk never use it."""

    url = ""

    def execute(self, request: StoreRequest) -> Outcome:
        """Raise ConfigError, because the log has no bucket."""
        raise no_store(request)

    def close(self) -> None:
        """Do nothing."""


_NO_STORE = _NoStore()


@dataclass(frozen=True, slots=True)
class Runner:
    """Runner of steps on the calling thread. ``clock`` and ``ids`` default to the machine's.

    ``store`` None: a log without bucket, where each request to the store raises ConfigError. ``together``: most
    concurrent requests of one :class:`Together` in :meth:`run`; :meth:`stream` uses the default.
    """

    store: Store | None = None
    clock: Clock | None = None
    ids: IdSource | None = None
    together: int = TOGETHER_REQUESTS

    def run(self, steps: Steps[T], take: Taker = refuse) -> T:
        """Run ``steps`` to their end and return their value. ``take`` receives the values that they emit."""
        return drive(self.store or _NO_STORE, steps, clock=self.clock, ids=self.ids, take=take, together=self.together)

    def stream(
        self, steps: Steps[object], after: Callable[[], Steps[object]] | None = None
    ) -> Generator[Any, None, object]:
        """Iterate over the values that ``steps`` emit. At their end, or an early close, run the steps of ``after``."""
        emitted = drive_stream(self.store or _NO_STORE, steps, clock=self.clock, ids=self.ids)
        return emitted if after is None else self._stream_then(emitted, after)

    def _stream_then(
        self, emitted: Generator[Any, None, object], after: Callable[[], Steps[object]]
    ) -> Generator[Any, None, object]:
        try:
            return (yield from emitted)
        finally:
            if not sys.is_finalizing():  # sockets and imports are gone by then: a remaining pin expires
                self.run(after())


def no_store(request: StoreRequest) -> ConfigError:
    """Return the error for a request to the store of a log without bucket."""
    return ConfigError(f"{type(request).__name__} needs a bucket, and none is named", hint="pass a remote URL")
