"""Runner of steps for asyncio; ``store.runner`` is its twin for threads."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from tiered.clock import Clock, IdSource
from tiered.store.aio_driver import adrive, adrive_stream
from tiered.store.base import AioStore, Outcome, Steps, StoreRequest
from tiered.store.driver import Taker, refuse
from tiered.store.runner import no_store

T = TypeVar("T")


class _NoAioStore:
    """Store of a log without bucket, for asyncio."""

    url = ""

    async def execute(self, request: StoreRequest) -> Outcome:
        """Raise ConfigError."""
        raise no_store(request)

    async def close(self) -> None:
        """Do nothing."""


_NO_AIO_STORE = _NoAioStore()


@dataclass(frozen=True, slots=True)
class AioRunner:
    """Runner of steps on the event loop."""

    store: AioStore | None = None
    clock: Clock | None = None
    ids: IdSource | None = None

    async def run(self, steps: Steps[T], take: Taker = refuse) -> T:
        """Run ``steps`` to their end; ``take`` receives the values that they emit."""
        return await adrive(self.store or _NO_AIO_STORE, steps, clock=self.clock, ids=self.ids, take=take)

    def stream(
        self, steps: Steps[object], after: Callable[[], Steps[object]] | None = None
    ) -> AsyncGenerator[Any, None]:
        """Iterate over what the steps emit. ``after`` runs at the end, also of a stream that is closed early."""
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
