"""Layers around a store. Each is written once: ``LayeredStore`` runs it on threads, ``AioLayeredStore`` on asyncio.

A layer makes a generator for each request. The generator yields requests for the inner store, :class:`Sleep` and
:class:`TurnRequest`. An exception of one of them, also a cancellation, is raised at its ``yield``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from tiered.clock import Clock
from tiered.store.base import AioStore, Outcome, Store, StoreRequest

AioSleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Request of a layer to wait for some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """Request of a layer to wait until the future ``given`` is done: its units are granted (``store.limit.Slots``)."""

    given: Future[None]


Attempt = Generator[StoreRequest | Sleep | TurnRequest, Any, Outcome]


class Layer(Protocol):
    """Layer between a caller and a store, such as retries or limits. ``clock`` measures its waits."""

    @property
    def clock(self) -> Clock: ...

    def attempt(self, request: StoreRequest) -> Attempt:
        """Return the generator that carries out one request.

        It yields requests (to the inner store, or to wait) and receives their outcomes. Its return value is the outcome
        of ``request``.
        """

    def close(self) -> None:
        """Close the layer. Called before the inner store is closed."""


class LayeredStore:
    """Store that sends each request through one :class:`Layer` to an inner store."""

    def __init__(self, inner: Store, layer: Layer) -> None:
        self.inner, self.layer, self.url = inner, layer, inner.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def execute(self, request: StoreRequest) -> Outcome:
        """Carry out one request, on the calling thread."""
        steps = self.layer.attempt(request)
        answer: Outcome | None = None
        error: BaseException | None = None
        try:
            while True:
                try:
                    asked = steps.send(answer) if error is None else steps.throw(error)
                except StopIteration as stop:
                    outcome: Outcome = stop.value
                    return outcome
                answer = error = None
                try:
                    if isinstance(asked, Sleep):
                        self.layer.clock.sleep(asked.seconds)
                    elif isinstance(asked, TurnRequest):
                        asked.given.result()
                    else:
                        answer = self.inner.execute(asked)
                except BaseException as raised:  # noqa: BLE001 - the layer raises it again
                    error = raised
        finally:
            steps.close()
            error = None  # its traceback refers to this frame: a cycle that only the collector would free

    def close(self) -> None:
        """Close the layer, then the inner store."""
        self.layer.close()
        self.inner.close()


class AioLayeredStore:
    """Asyncio store that sends each request through one :class:`Layer` to an inner store.

    ``sleep``: replaces ``asyncio.sleep`` in tests.
    """

    def __init__(self, inner: AioStore, layer: Layer, sleep: AioSleep | None = None) -> None:
        import asyncio  # noqa: PLC0415 - programs on threads use this module, too, and never load asyncio

        self.inner, self.layer, self.url = inner, layer, inner.url
        self._sleep = sleep or asyncio.sleep
        self._wrap = asyncio.wrap_future

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    async def execute(self, request: StoreRequest) -> Outcome:
        """Carry out one request, on the event loop."""
        steps = self.layer.attempt(request)
        answer: Outcome | None = None
        error: BaseException | None = None
        try:
            while True:
                try:
                    asked = steps.send(answer) if error is None else steps.throw(error)
                except StopIteration as stop:
                    outcome: Outcome = stop.value
                    return outcome
                answer = error = None
                try:
                    if isinstance(asked, Sleep):
                        await self._sleep(asked.seconds)
                    elif isinstance(asked, TurnRequest):
                        if not asked.given.done():
                            await self._wrap(asked.given)
                    else:
                        answer = await self.inner.execute(asked)
                except BaseException as raised:  # noqa: BLE001 - the layer raises it again
                    error = raised
        finally:
            steps.close()
            error = None

    async def close(self) -> None:
        """Close the layer, then the inner store."""
        self.layer.close()
        await self.inner.close()
