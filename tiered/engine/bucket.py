"""The engine's operations on a bucket as coroutines, for one log directory."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from tiered.clock import Clock, IdSource
from tiered.engine.disk import Granted, LogDirectory
from tiered.engine.journal import Journal
from tiered.engine.partition import SegmentRef
from tiered.engine.steps import BucketSteps
from tiered.format.root import Root
from tiered.model import Row, TopicPartition
from tiered.remote.roots import REGISTRATION_REQUESTS
from tiered.store.aio_driver import adrive, in_thread
from tiered.store.base import AioStore, Steps
from tiered.store.driver import TOGETHER_REQUESTS
from tiered.store.limit import Slots
from tiered.store.unique_upload import PUT_DEADLINE_SECONDS, PartSizes

T = TypeVar("T")


class StepBucket(ABC):
    """Base class of the engine's operations on a bucket. They are coroutines and raise ``TieredError``.

    A subclass implements :meth:`drive`.
    """

    def __init__(self, steps: BucketSteps, memory: Slots | None) -> None:
        """``memory``: shared limit of the bytes in memory for uploads and commits; None: not counted."""
        self.steps = steps
        self.when_claimed: Callable[[Granted], None] = lambda granted: None
        self._memory = memory
        self._probing = asyncio.Lock()

    @abstractmethod
    async def drive(self, steps: Steps[T], *, together: int = TOGETHER_REQUESTS) -> T:
        """Run a steps function to its end and return its value.

        ``together``: limit of its requests that are in progress at the same time.
        """

    @property
    def is_reachable(self) -> bool:
        """Return True once :meth:`probe` has succeeded."""
        return self.steps.capabilities is not None

    def rest(self, tp: TopicPartition) -> None:
        """Record that a partition is idle, so that most of its catalog may be dropped from memory."""
        self.steps.rest(tp)

    def upload_deadline_seconds(self) -> float:
        """Return the seconds for which the upload of each object may be retried."""
        return PUT_DEADLINE_SECONDS

    async def probe(self) -> None:
        """Find out the store's capabilities, unless they are known. All other operations need them."""
        if self.steps.capabilities is None:
            async with self._probing:
                await self.drive(self.steps.probe())

    async def register(self, topic: str) -> None:
        """Create the topic's registry entry in the bucket, or adopt an entry with the same topic id.

        Raises ConfigError if the entry has another topic id, LogDestroyedError if the bucket lost an uploaded topic.
        """
        await self.probe()
        await self.drive(self.steps.register(topic), together=REGISTRATION_REQUESTS)

    async def claim(self, tp: TopicPartition) -> Granted:
        """Claim the writer role of a partition. Return the granted claim after its root was read back.

        Raises FencedError if this volume may not write, OffsetGapError if a sidecar's broker has other records.
        """
        await self.probe()
        granted = await self.drive(self.steps.claim(tp), together=REGISTRATION_REQUESTS)
        self.when_claimed(granted)
        return granted

    async def sweep_dead_uploads(self, tp: TopicPartition, claim_epoch: int, next_offset: int) -> int:
        """Delete the objects of unfinished uploads of earlier claims. Return the number of these uploads.

        Their claims have epochs below ``claim_epoch``. Objects below ``next_offset``, the end of the root, stay: they
        may be committed.
        """
        return await self.drive(self.steps.sweep_dead_uploads(tp, claim_epoch, next_offset))

    async def upload(self, tp: TopicPartition, segment: SegmentRef, claim_epoch: int) -> Row:
        """Upload both objects of a segment, verify them, and return their row for the catalog.

        ``claim_epoch``: the present claim. Raises FencedError if a newer claim deleted the objects, CorruptionError
        if the segment is damaged.
        """
        seconds = self.upload_deadline_seconds()
        return await self.drive(self.steps.upload(tp, segment, claim_epoch, deadline_seconds=seconds))

    async def commit(self, tp: TopicPartition, claim_epoch: int, rows: Sequence[Row]) -> Root:
        """Append the rows to the root, and return the root as it was read back.

        Raises FencedError if a newer claim owns the partition, CommitUnknownError if the rows may be committed.
        """
        return await self.drive(self.steps.commit(tp, claim_epoch, rows))

    @contextlib.asynccontextmanager
    async def room_for_upload(self, tp: TopicPartition, segment: SegmentRef) -> AsyncIterator[None]:
        """Reserve memory for an upload inside the block, after a wait if necessary.

        Raises the error of an unreadable segment.
        """
        if self._memory is None:
            yield
            return
        async with self._memory.aio_turn(await in_thread(self.steps.upload_bytes, tp, segment)):
            yield

    @contextlib.asynccontextmanager
    async def room_for_commit(self, tp: TopicPartition, rows: Sequence[Row]) -> AsyncIterator[None]:
        """Reserve memory for a commit inside the block, after a wait if necessary."""
        if self._memory is None:
            yield
            return
        async with self._memory.aio_turn(self.steps.commit_bytes(tp, rows)):
            yield


class Bucket(StepBucket):
    """The engine's operations for one log directory, on an asyncio store and one event loop."""

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
        """Run a steps function to its end and return its value.

        ``together``: limit of its requests that are in progress at the same time.
        """
        return await adrive(self._store, steps, clock=self._clock, ids=self._ids, together=together)

    async def close(self) -> None:
        """Close the store's connections."""
        await self._store.close()
