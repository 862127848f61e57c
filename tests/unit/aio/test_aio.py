"""The asyncio facade: the same answers, and no task left behind by a cancellation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tiered import aio
from tiered.errors import ClosedError, ConfigError, UnknownTopicError
from tiered.store.location import StoreLocation


async def test_the_same_names_give_the_same_answers(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'store'}"
    async with aio.open(tmp_path / "log", remote=url) as log:
        topic = await log.topic("t", partitions=2, create=True)
        md = await topic.append(b"v", key=b"k", durability="disk")
        assert (md.offset, topic.positions(md.partition).flushed_offset) == (0, 1)
        await topic.append_many([b"%d" % i for i in range(2000)], partition=1 - md.partition)
        await log.sync(timeout=30)
        assert len([r async for r in topic.read()]) == 2001
        with pytest.raises(UnknownTopicError):
            await log.topic("nope")
    async with aio.open_reader(url) as reader:
        assert [i.partitions for i in (await reader.topics()).values()] == [2]
        found = await reader.find("t", key=b"k")
        assert [r.value async for r in found] == [b"v"]
        assert found.report.complete
        ends = await (await reader.topic("t")).end_offsets()
        assert sorted(ends.values()) == [1, 2000]
    with pytest.raises(ClosedError):
        await log.flush()


async def test_positions_uploads_and_deleted_topics(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log", remote=f"file://{tmp_path / 'store'}") as log:
        await (await log.topic("t", create=True)).append(b"v")
        await log.sync(timeout=30)
        assert {str(tp): at.uploaded_offset for tp, at in log.positions().items()} == {"t-0": 1}
    async with aio.open(tmp_path / "other") as log:
        await log.topic("t", create=True)
        await log.delete_topic("t")
        assert log.topics() == {}


async def test_leaving_a_stream_early_leaves_no_task(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.topic("t", create=True)
        await topic.append_many([b"%d" % i for i in range(5000)])
        stream = topic.read()
        assert (await anext(stream)).value == b"0"  # type: ignore[arg-type]  # an async generator
        reading = asyncio.create_task(_all(topic))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []
        assert (await topic.append(b"after")).offset == 5000


async def _all(topic: aio.Topic) -> int:
    return len([r async for r in topic.read()])


async def test_a_bucket_that_cannot_be_opened_for_the_loop_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example without the extra ``aio``: the log is free for who comes next."""

    def refuse(*_: object, **__: object) -> None:
        raise ConfigError("the extra aio is missing")

    url = f"file://{tmp_path / 'store'}"
    with monkeypatch.context() as patch:
        patch.setattr(StoreLocation, "open_aio", refuse)
        with pytest.raises(ConfigError, match="the extra aio is missing"):
            await aio.open(tmp_path / "log", remote=url)
    async with aio.open(tmp_path / "log", remote=url) as log:
        assert log.remote is not None
