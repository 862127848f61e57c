"""The buffered appender for asyncio: the same answers, the loop never waits, and no task is left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tiered import aio
from tiered.errors import AppendTimeoutError, ClosedError, ConfigError, InvalidRecordError

HOUR_MS = 3_600_000


async def test_receipts_flush_and_the_end_of_the_block(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.topic("t", create=True, config={"cleanup.policy": "compact"})
        async with topic.appender(linger_ms=1) as appender:
            first = await appender.append(b"1", key=b"k", headers=[("a", b"b")])
            md = await first
            assert (md.offset, first.offset, first.partition, first.timestamp) == (0, 0, 0, md.timestamp)
            assert (await first.result(0.0), await first.exception()) == (md, None)
        async with topic.appender(linger_ms=HOUR_MS, durability="disk") as appender:
            second = await appender.append(b"2", key=b"k", timestamp=1_700_000_000_000)
            assert (second.done(), repr(second)) == (False, "<Receipt t-0 pending>")
            with pytest.raises(AppendTimeoutError, match=r"was not written within 0\.0 s"):
                await second.result(0.0)
            assert appender.buffered_bytes > 0
            refused = await appender.append(b"no key")
            waiting = [asyncio.create_task(each.exception()) for each in (second, refused)]
            with pytest.raises(InvalidRecordError, match="no key"):
                await appender.flush()
            assert [type(each) for each in await asyncio.gather(*waiting)] == [type(None), InvalidRecordError]
            with pytest.raises(InvalidRecordError):
                await refused
            assert topic.positions(0).flushed_offset == 2
            await appender.append(b"3", key=b"k")
        assert [r.value async for r in topic.read()] == [b"1", b"2", b"3"]
        with pytest.raises(ClosedError):
            await appender.append(b"4", key=b"k")
        with pytest.raises(ConfigError, match="linger_ms=-1"):
            await topic.appender(linger_ms=-1)


async def test_a_full_buffer_holds_back_its_task_and_no_other(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.topic("t", create=True)
        async with topic.appender(linger_ms=HOUR_MS, max_bytes=50, buffer_bytes=80) as appender:
            receipts = [await appender.append(b"%d" % i) for i in range(50)]
        assert [each.offset for each in receipts] == list(range(50))
        full = await topic.appender(linger_ms=HOUR_MS, max_bytes=50, buffer_bytes=80, max_block_ms=0)
        with full._appender._writing:  # nothing can be written: there never is room
            await full.append(b"x")
            await full.append(b"y")
            with pytest.raises(AppendTimeoutError, match="buffer_bytes is 80"):
                await full.append(b"z")
        await full.close()
        assert topic.positions(0).end_offset == 52


async def test_a_receipt_that_is_no_longer_waited_for_leaves_no_task(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.topic("t", create=True)
        appender = await topic.appender(linger_ms=HOUR_MS)
        receipt = await appender.append(b"v")
        waiting = asyncio.create_task(receipt.result())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []
    assert receipt.offset == 0  # the log's close wrote it
    with pytest.raises(ClosedError):
        await appender.append(b"v")


async def test_the_block_ends_with_its_own_error(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.topic("t", create=True, config={"cleanup.policy": "compact"})
        receipts = []

        async def work() -> None:
            async with topic.appender() as appender:
                receipts.append(await appender.append(b"no key"))
                raise KeyError

        with pytest.raises(KeyError):
            await work()
        assert isinstance(await receipts[0].exception(), InvalidRecordError)
