"""A store for asyncio tests that lives on the event loop."""

from __future__ import annotations

import asyncio
import threading

from tiered.store.base import Outcome, Store, StoreRequest


class OnTheLoop:
    """A store that answers on the event loop, after a turn of it, and knows from which threads it was asked."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.url = inner.url
        self.threads: set[int] = set()
        self.asked = 0

    async def execute(self, request: StoreRequest) -> Outcome:
        self.threads.add(threading.get_ident())
        self.asked += 1
        await asyncio.sleep(0)
        return self._inner.execute(request)

    async def close(self) -> None:
        self._inner.close()
