"""Reads of the asyncio face: on the event loop alone, no more than is asked for, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.unit.aio.on_the_loop import OnTheLoop
from tiered import aio
from tiered.aio.worker import ThreadPools
from tiered.config import TopicConfig
from tiered.format.batch_scanner import BatchRun
from tiered.local.partition.read_log import ReadLog
from tiered.model import NewRecord
from tiered.store.aio_driver import AioRunner
from tiered.store.location import open_store

SETTINGS = TopicConfig.from_properties({"segment.bytes": 4096})
RECORDS = 400
FIRST_MS = 1_700_000_000_000


@pytest.fixture
def url(tmp_path: Path) -> str:
    place = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=place) as log:
        topic = log.topic("t", create=True, config=SETTINGS)
        for at in range(0, RECORDS, 10):
            topic.append_many([NewRecord(b"%d" % n, b"k%d" % (n % 7), FIRST_MS + n) for n in range(at, at + 10)])
        log.sync(timeout=60)
    return place


@contextlib.asynccontextmanager
async def reading(url: str, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]  # a pair
    """A reader of the bucket whose event loop refuses to start work on a thread."""
    store = OnTheLoop(open_store(url))
    reader = aio.Reader(tiered.open_reader(url), ThreadPools("test"), AioRunner(store))

    def refuse(*_: object) -> None:
        raise AssertionError("a read of the bucket needs no thread")

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "run_in_executor", refuse)
        yield reader, store
    await reader.close()


async def test_reads_of_the_bucket_need_no_thread(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reading(url, monkeypatch) as (reader, store):
        topic = await reader.topic("t")
        assert [record.offset async for record in topic.read()] == list(range(RECORDS))
        assert [r.offset async for r in topic.read(isolation="read_committed", start=395)] == list(range(395, RECORDS))
        assert [o for o, _ in (await topic.offsets_for_times(FIRST_MS + 17)).values() if o] == [17]
        assert (await topic.positions(0)).uploaded_offset == RECORDS
        found = await reader.find("t", key=b"k3")
        assert [record.offset async for record in found] == list(range(3, RECORDS, 7))
        assert (found.report.complete, found.report.records_scanned) == (True, RECORDS)
        assert store.threads == {threading.get_ident()}


async def test_the_disk_is_looked_at_and_read_on_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    read_runs = ReadLog.read_runs

    def told(reading: Iterator[BatchRun]) -> Iterator[BatchRun]:
        for run in reading:
            threads.append(threading.get_ident())
            yield run

    def begun(log: ReadLog, *offsets: int) -> Iterator[BatchRun]:
        threads.append(threading.get_ident())
        return told(read_runs(log, *offsets))

    monkeypatch.setattr(ReadLog, "read_runs", begun)
    async with aio.open(tmp_path) as log:
        topic = await log.topic("t", create=True, config={"segment.bytes": "4096"})
        for at in range(0, RECORDS, 10):
            await topic.append_many([NewRecord(b"%d" % n) for n in range(at, at + 10)])
        assert [record.offset async for record in topic.read()] == list(range(RECORDS))
    assert len(threads) >= 3  # one look at the segments, a run at least of each of two
    assert threading.get_ident() not in threads


async def test_a_stream_that_is_left_leaves_no_task(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reading(url, monkeypatch) as (reader, store):
        stream = await (await reader.topic("t")).stream(0)
        before = store.asked
        batches = stream.batches(0)
        async with contextlib.aclosing(batches):
            assert store.asked == before
            first = await anext(batches)
            assert (first.header.base_offset, store.asked) == (0, before + 1)
            while (await anext(batches)).header.base_offset < 200:
                pass
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
        assert store.asked < before + RECORDS // 10
