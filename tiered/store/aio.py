"""A sync store for asyncio: each request on a thread of a bounded pool."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from tiered.errors import ClosedError
from tiered.store.base import Outcome, Store, StoreRequest

AIO_THREADS = 8
"""Requests of a threaded store that are under way at once; more wait."""


class ThreadedAioStore:
    """An :class:`~tiered.store.base.AioStore` over any thread-safe :class:`Store`.

    A cancelled request that has begun runs to its end on its thread, unseen: a cancelled PUT may land.
    """

    def __init__(self, inner: Store, *, threads: int = AIO_THREADS) -> None:
        self.inner = inner
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="tiered-store")
        self._closed = False

    @property
    def url(self) -> str:
        """That of the inner store."""
        return self.inner.url

    def __repr__(self) -> str:
        return f"ThreadedAioStore({self.inner!r})"

    async def execute(self, request: StoreRequest) -> Outcome:
        """One attempt on a thread."""
        if self._closed:
            raise ClosedError(f"{self.url} was closed")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.inner.execute, request)

    async def close(self) -> None:
        """Waits for requests that have begun, then closes the inner store."""
        self._closed = True
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)
        self.inner.close()
