"""The consumer for asyncio: the same positions, cancellation, commits beside reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

import tiered
from tiered import TopicPartition, aio
from tiered.errors import ClosedError

ZERO = TopicPartition("t", 0)


def values(records: Iterable[tiered.ConsumerRecord]) -> list[bytes | None]:
    return [record.value for record in records]


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[aio.Log]:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.topic("t", create=True)
        await topic.append_many([b"%d" % i for i in range(600)])
        yield log


async def test_a_group_goes_on_where_it_committed(log: aio.Log) -> None:
    async with log.consumer("g", "t", stop_at="end") as consumer:
        count = 0
        async for record in consumer:
            count += 1
            if record.value == b"550":
                break
        await consumer.commit()
        assert await consumer.lag() == {ZERO: 49}
    async with log.consumer("g", "t", stop_at="end") as consumer:
        found = [values(batch) async for batch in consumer.batches(40)]
        assert [len(batch) for batch in found] == [40, 9]
        await consumer.commit(async_=True)
    async with log.consumer("g", "t") as consumer:
        assert (await consumer.committed(ZERO))[ZERO].offset == 600
        await consumer.seek(ZERO, 598)
        assert values(await consumer.poll()) == [b"598", b"599"]


async def test_a_cancelled_poll_loses_nothing(log: aio.Log) -> None:
    topic = await log.topic("t")
    async with log.consumer("g", "t") as consumer:
        assert len(await consumer.poll(600)) == 600
        waiting = asyncio.ensure_future(consumer.poll())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await topic.append(b"next")
        assert values(await consumer.poll()) == [b"next"]
        waiting = asyncio.ensure_future(consumer.poll())
        await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(ClosedError):
            await waiting


async def test_positions_commit_with_a_transaction(log: aio.Log) -> None:
    async with log.consumer("g", "t") as consumer:
        async with log.transaction("copy") as txn:
            await txn.append_many([(record.value, None) for record in await consumer.poll(10)], topic="t")
            await txn.commit_positions(consumer)
        assert (await consumer.committed(ZERO))[ZERO].offset == 10
