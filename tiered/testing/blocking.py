"""An async store for tests that are not async, so that one suite serves both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tiered.store.base import AioStore, Outcome, StoreRequest

T = TypeVar("T")


class BlockingStore:
    """An async store on an event loop of its own thread, as a sync :class:`Store`. Thread-safe."""

    def __init__(self, make: Callable[[], Awaitable[AioStore]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="blocking-store", daemon=True)
        self._thread.start()
        self.inner: AioStore = self.run(make())

    @property
    def url(self) -> str:
        """That of the async store."""
        return self.inner.url

    def run(self, awaitable: Awaitable[T]) -> T:
        """Runs ``awaitable`` on the loop and waits for it."""

        async def whole() -> T:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(whole(), self._loop).result()

    def execute(self, request: StoreRequest) -> Outcome:
        """One request."""
        return self.run(self.inner.execute(request))

    def close(self) -> None:
        """Closes the store and its loop."""
        if self._loop.is_closed():
            return
        self.run(self.inner.close())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
