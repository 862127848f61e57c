"""Consumer for asyncio. Records are read on the event loop, positions are stored on threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tiered.aio.worker import Opening
from tiered.consumer.assignment import Position
from tiered.consumer.consumer import ARROW, taken
from tiered.consumer.steps import MAX_POLL_RECORDS, ConsumerFace, ConsumerSteps, Request
from tiered.format.kernels import ConsumerRecord
from tiered.model import TopicPartition
from tiered.read.fetch import PartitionFetch
from tiered.store.aio_driver import AioRunner, in_thread
from tiered.store.base import Steps
from tiered.times import Time

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")


class AsyncConsumer(ConsumerFace):
    """Consumer of a group (``tiered.consumer.Consumer`` for asyncio). Call it from one task at a time."""

    def __init__(self, core: ConsumerSteps, runner: AioRunner) -> None:
        super().__init__(core, runner.clock)
        self._runner = runner
        self._lock = asyncio.Lock()
        self._stream: AsyncGenerator[Any, None] | None = None

    # -- records -----------------------------------------------------------------------------------------------------

    async def poll(
        self, max_records: int = MAX_POLL_RECORDS, timeout: float | str | None = None
    ) -> list[ConsumerRecord]:
        """Return up to ``max_records`` records as soon as there are any; an empty list after ``timeout``.

        ``timeout``: seconds or text such as "5s"; None: no limit. The list is also empty after the end by ``stop_at``
        or ``idle_timeout``. A cancelled call loses no records: the next call returns them. Raises the errors of
        ``tiered.consumer.Consumer.poll``.
        """
        request = Request.checked(max_records, timeout)
        async with self._lock:
            return taken(await self._next(request) or (), request.most)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield the records. The iterator ends only by the options ``stop_at`` and ``idle_timeout``."""
        request = Request()
        interval_s = self.core.assignment.poll_interval_s
        while True:
            async with self._lock:
                fetches = await self._next(request)
            if fetches is None:
                return
            look_s = self._clock.monotonic() + interval_s
            while (record := self.core.hand_out(fetches)) is not None:
                yield record
                if self._clock.monotonic() >= look_s:
                    break

    async def batches(
        self, max_records: int = MAX_POLL_RECORDS, timeout: float | str | None = 1.0
    ) -> AsyncIterator[list[ConsumerRecord]]:
        """Yield lists of ``max_records`` records, or of fewer after ``timeout``; never an empty list.

        ``timeout``: seconds or text such as "5s"; None: no limit. The iteration ends only by the options ``stop_at``
        and ``idle_timeout``.
        """
        async for found in self._lists(Request.checked(max_records, timeout, fill=True)):
            yield found

    async def record_batches(self) -> AsyncIterator[pyarrow.RecordBatch]:
        """Yield Arrow record batches of about 1 MiB, with all columns.

        The iterator ends only by the options ``stop_at`` and ``idle_timeout``.
        """
        async for found in self._lists(Request(1, emit=ARROW)):
            yield found[0]

    async def _lists(self, request: Request) -> AsyncIterator[list[Any]]:
        while True:
            async with self._lock:
                fetches = await self._next(request)
                found = taken(fetches or (), request.most)
            if found:
                yield found
            elif fetches is None:
                return

    async def _next(self, request: Request) -> list[PartitionFetch] | None:
        """Return fetches with items, ``[]`` after the timeout, None at the end. After an error a new loop begins."""
        self.core.request = request
        if self._stream is None:
            self._stream = self._runner.stream(self.core.loop())
        try:
            found: list[PartitionFetch] | None = await anext(self._stream)
        except BaseException:
            self._stream = None
            raise
        return found

    async def _run(self, steps: Steps[T]) -> T:
        async with self._lock:
            return await self._runner.run(steps)

    # -- partitions --------------------------------------------------------------------------------------------------

    async def subscribe(self, topics: str | Iterable[str]) -> None:
        """Read these topics instead of the present ones, with the partitions that they get later.

        Raises UnknownTopicError.
        """
        await self._run(self.core.subscribe(topics))

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions instead of the present ones. Raises UnknownTopicError.

        Raises ConfigError in a group whose members share the partitions.
        """
        await self._run(self.core.assign(partitions))

    async def assignment(self) -> set[TopicPartition]:
        """Return the partitions that this consumer reads now."""
        return set(await self._run(self.core.positions()))

    # -- positions ---------------------------------------------------------------------------------------------------

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record to be returned from this partition.

        Raises UnknownTopicError if the partition is not assigned to this consumer.
        """
        return (await self._run(self.core.positions([partition])))[TopicPartition(*partition)]

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at ``offset`` of this partition. The committed position stays until the next commit.

        Raises UnknownTopicError if the partition is not assigned to this consumer, ConfigError for an offset below 0.
        """
        await self._run(self.core.seek(TopicPartition(*partition), offset))

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue at the earliest offset of these partitions, or of all assigned ones if none is named.

        Raises UnknownTopicError if one is not assigned to this consumer.
        """
        await self._run(self.core.seek_to(partitions or None, end=False))

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue at the end of these partitions, or of all assigned ones if none is named.

        With ``isolation="read_committed"`` the end is the last stable offset. Raises UnknownTopicError if one is not
        assigned to this consumer.
        """
        await self._run(self.core.seek_to(partitions or None, end=True))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, Time]
    ) -> dict[TopicPartition, tuple[int, int] | None]:
        """Return for each partition (offset, timestamp) of its first record at or after its time, None without one.

        Raises UnknownTopicError if a partition is not assigned to this consumer.
        """
        return await self._run(self.core.offsets_for_times(times))

    async def lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets between the position and the end of each partition.

        With ``isolation="read_committed"`` the end is the last stable offset.
        """
        return await self._run(self.core.lag())

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, Position]:
        """Return the stored positions of these partitions, or of all assigned ones if none is named.

        Partitions without a stored position are left out.
        """
        return await self._run(self.core.committed(partitions))

    async def commit(
        self, positions: Mapping[TopicPartition, Position | int] | None = None, *, async_: bool = False
    ) -> None:
        """Store the positions after the last returned records, or ``positions``. A cancelled call may have stored them.

        ``async_``: return at once. Arguments and errors are those of ``tiered.consumer.Consumer.commit``.
        """
        await self._run(self.core.commit_now(positions, later=async_))

    async def close(self) -> None:
        """Leave the group, without a new commit. Safe to call again.

        Positions of commits with ``async_`` are stored first, and their error is raised.
        """
        self.core.wake()
        async with self._lock:
            if self.core.left:
                return
            try:
                await self._runner.run(self.core.settle())
            finally:
                if self._stream is not None:
                    await self._stream.aclose()
                    self._stream = None
                await self._runner.run(self.core.close())

    async def _leave(self, error: BaseException | None) -> None:
        try:
            if error is None and self.core.commits_by_itself and not self.core.closed:
                await self.commit()
        finally:
            await self.close()


def open_consumer(make: Callable[[], ConsumerSteps], runner: AioRunner) -> Opening[AsyncConsumer]:
    """Return a consumer for ``await`` or ``async with``, at which the function ``make`` creates its steps."""

    async def opening() -> AsyncConsumer:
        return AsyncConsumer(await in_thread(make), runner)

    return Opening(opening, AsyncConsumer._leave)
