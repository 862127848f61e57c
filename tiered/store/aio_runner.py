"""As ``store.runner``, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, TypeVar

from tiered.clock import Clock, IdSource
from tiered.store.aio_driver import adrive, adrive_stream
from tiered.store.base import AioStore, Outcome, Steps, StoreRequest
from tiered.store.driver import Taker, refuse
from tiered.store.runner import no_store

T = TypeVar("T")


class _NoAioStore:
    """As ``_NoStore`` for asyncio."""

    url = ""

    async def execute(self, request: StoreRequest) -> Outcome:
        """Raises ConfigError."""
        raise no_store(request)

    async def close(self) -> None:
        """Nothing to do."""


_NO_AIO_STORE = _NoAioStore()


@dataclass(frozen=True, slots=True)
class AioRunner:
    """Runs steps on the event loop."""

    store: AioStore | None = None
    clock: Clock | None = None
    ids: IdSource | None = None

    async def run(self, steps: Steps[T], take: Taker = refuse) -> T:
        """To their end; ``take`` gets what they emit."""
        return await adrive(self.store or _NO_AIO_STORE, steps, clock=self.clock, ids=self.ids, take=take)

    def stream(self, steps: Steps[object]) -> AsyncGenerator[Any, None]:
        """What they emit."""
        return adrive_stream(self.store or _NO_AIO_STORE, steps, clock=self.clock, ids=self.ids)
