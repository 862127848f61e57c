"""The bucket of one log directory: its steps, and how the engine runs them."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from tiered.clock import Clock, IdSource
from tiered.engine.disk import LogDirectory
from tiered.engine.journal import Journal
from tiered.engine.steps import BucketSteps
from tiered.remote.roots import REGISTRATION_REQUESTS
from tiered.store.aio_driver import adrive, in_thread
from tiered.store.base import AioStore, Steps
from tiered.store.driver import TOGETHER_REQUESTS
from tiered.store.limit import Slots
from tiered.store.unique_upload import PartSizes

T = TypeVar("T")


class StepBucket(ABC):
    """Steps of the engine, and the memory that they share. A subclass defines how steps are run (:meth:`drive`)."""

    def __init__(self, steps: BucketSteps, memory: Slots | None) -> None:
        """``memory``: shared limit of the bytes in memory for uploads and commits; None: not counted."""
        self.steps = steps
        self._memory = memory
        self._probing = asyncio.Lock()

    @abstractmethod
    async def drive(self, steps: Steps[T], *, together: int = TOGETHER_REQUESTS) -> T:
        """Run a steps function to its end and return its value.

        ``together``: limit of its requests that are in progress at the same time.
        """

    async def drive_probed(self, steps: Steps[T]) -> T:
        """Run a steps function to its end, once the store's capabilities are known. Return its value."""
        if self.steps.capabilities is None:
            async with self._probing:  # many partitions begin at once, and one probe is enough
                await self.drive(self.steps.probe())
        return await self.drive(steps, together=REGISTRATION_REQUESTS)

    async def register(self, topic: str) -> None:
        """Create the topic's registry entry in the bucket, or adopt an entry with the same topic id."""
        await self.drive_probed(self.steps.register(topic))

    @contextlib.asynccontextmanager
    async def room(self, needed: Callable[[], int], *, reads_disk: bool) -> AsyncIterator[None]:
        """Reserve memory inside the block, after a wait if necessary. ``needed``: returns the number of bytes."""
        if self._memory is None:
            yield
            return
        async with self._memory.aio_turn(await in_thread(needed) if reads_disk else needed()):
            yield


class Bucket(StepBucket):
    """The bucket of a directory that this process does not write, on an asyncio store and one event loop."""

    def __init__(
        self,
        store: AioStore,
        directory: LogDirectory,
        journal: Journal,
        *,
        clock: Clock,
        ids: IdSource,
        owner: str,
        sizes: PartSizes,
        memory: Slots | None = None,
    ) -> None:
        super().__init__(BucketSteps(store.url, directory, lambda: journal, owner=owner, sizes=sizes), memory)
        self._store = store
        self._clock = clock
        self._ids = ids

    async def drive(self, steps: Steps[T], *, together: int = TOGETHER_REQUESTS) -> T:
        return await adrive(self._store, steps, clock=self._clock, ids=self._ids, together=together)

    async def close(self) -> None:
        """Close the store's connections."""
        await self._store.close()
