"""The steps of the engine on an event loop: each a coroutine that raises ``TieredError`` or returns facts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from tiered.clock import Clock, IdSource
from tiered.model import Row, TopicPartition
from tiered.plan.tiering.facts import SegmentRef
from tiered.remote.roots import REGISTRATION_REQUESTS
from tiered.store.base import AioStore, Capabilities, Steps
from tiered.store.driver import TOGETHER_REQUESTS, adrive
from tiered.tiering.directory import LogDirectory
from tiered.tiering.journal import Journal
from tiered.tiering.steps import BucketSteps, Granted, PartSizes

T = TypeVar("T")


class Bucket:
    """One store, one log directory, one event loop."""

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
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._steps = BucketSteps(store.url, directory, lambda: journal, owner=owner, sizes=sizes)
        self._probing = asyncio.Lock()

    @property
    def is_reachable(self) -> bool:
        """Whether the store has answered the probe."""
        return self._steps.capabilities is not None

    async def capabilities(self) -> Capabilities:
        """What the store can do, probed once. Raises ConditionalWritesUnsupportedError, and the store's errors."""
        async with self._probing:
            return await self._drive(self._steps.probe())

    async def register(self, topic: str) -> None:
        """See ``BucketSteps.register``, as for all that follow."""
        await self.capabilities()
        await self._drive(self._steps.register(topic), together=REGISTRATION_REQUESTS)

    async def check_uploaded(self) -> None:
        """Raises LogDestroyedError for a bucket that does not know what this volume has uploaded."""
        await self._drive(self._steps.check_uploaded())

    async def claim(self, tp: TopicPartition) -> Granted:
        """Takes the writer role, reads the root back."""
        await self.capabilities()
        return await self._drive(self._steps.claim(tp), together=REGISTRATION_REQUESTS)

    async def settle(self, tp: TopicPartition, claim_epoch: int, next_offset: int) -> int:
        """Removes what dead claims left; returns how many uploads that were."""
        return await self._drive(self._steps.settle(tp, claim_epoch, next_offset))

    async def upload(self, tp: TopicPartition, ref: SegmentRef, claim_epoch: int) -> Row:
        """Both objects of a segment, stored and verified."""
        await self.capabilities()
        return await self._drive(self._steps.upload(tp, ref, claim_epoch))

    async def commit(self, tp: TopicPartition, claim_epoch: int, rows: Sequence[Row]) -> int:
        """The end of a root that was read back."""
        return (await self._drive(self._steps.commit(tp, claim_epoch, rows))).next_offset

    async def close(self) -> None:
        """Releases connections."""
        await self._store.close()

    async def _drive(self, steps: Steps[T], *, together: int = TOGETHER_REQUESTS) -> T:
        return await adrive(self._store, steps, clock=self._clock, ids=self._ids, together=together)
