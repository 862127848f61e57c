"""At most so many bodies are on their way to the store at once, in the whole process."""

from __future__ import annotations

import asyncio

from tiered.store.base import AioStore, Outcome, Put, StoreRequest, UploadPart

PARTS_IN_FLIGHT = 4
"""Parts and single objects streamed from files: what bounds memory and connections."""


class GatedStore:
    """Waits for a slot before it sends a file or a part of one; everything else passes at once."""

    def __init__(self, inner: AioStore, bodies: int = PARTS_IN_FLIGHT) -> None:
        self._inner = inner
        self._slots = asyncio.Semaphore(bodies)

    @property
    def url(self) -> str:
        """That of the inner store."""
        return self._inner.url

    async def execute(self, request: StoreRequest) -> Outcome:
        """One request."""
        streams = isinstance(request, UploadPart) or (isinstance(request, Put) and not isinstance(request.body, bytes))
        if not streams:
            return await self._inner.execute(request)
        async with self._slots:
            return await self._inner.execute(request)

    async def close(self) -> None:
        """Closes the inner store."""
        await self._inner.close()
