"""The daemon's loops end on request, whatever happens at the same moment. Its time follows the wall clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sim.tiers.daemon import SIZES, Told
from tiered.engine.bucket import Bucket
from tiered.engine.disk import LogDirectory
from tiered.engine.drain import Drain, DrainMode
from tiered.engine.journal import Journal
from tiered.engine.partition import EngineLimits
from tiered.engine.runner import DirectoryRun
from tiered.errors import LocalIOError
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.directory_files import CLEAN_SHUTDOWN_NAME
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.model import TopicPartition
from tiered.store.location import ThreadedAioStore
from tiered.store.memory import MemoryStore
from tiered.store.metrics import StoreMetrics
from tiered.testing.clock import START_MS, FakeClock, SeededIds
from uploader.metrics import Metrics
from uploader.telemetry import Notify

ROUNDS = 20
"""Turns of the event loop in which a cancelled task has ended."""


def runner_of(path: Path) -> DirectoryRun:
    clock, ids = FakeClock(), SeededIds(1)
    LocalLog.open(path, clock=clock, ids=ids).close()
    directory = LogDirectory(path, clock=clock, ids=ids)
    journal = Journal(path, directory.files)
    store = ThreadedAioStore(MemoryStore())
    bucket = Bucket(store, directory, journal, clock=clock, ids=ids, owner="d", sizes=SIZES)
    told = Told(Metrics(StoreMetrics(), list), clock, notify=Notify(""))
    return DirectoryRun(bucket, directory, clock=clock, ids=ids, limits=EngineLimits(), listener=told)


async def test_the_time_follows_the_wall_forward_until_a_deadline_counts(tmp_path: Path) -> None:
    """A machine slept for a night: files of now looked as if they were of tomorrow, and none was sealed until then."""
    runner = runner_of(tmp_path)
    clock = runner._clock
    assert isinstance(clock, FakeClock)
    runner.set_timing(replace(runner.timing, tick_ms=1))

    async def after_a_jump(hours: int) -> int:
        clock.jump(hours * 3600)
        ticking = asyncio.create_task(runner._keep_ticking())
        await asyncio.sleep(0.05)
        ticking.cancel()
        await asyncio.wait([ticking])
        return (runner.now_ms() - START_MS) // 3_600_000

    assert await after_a_jump(8) == 0  # before the first look: what a one-shot run has for its time begins there
    await runner._scan()
    assert await after_a_jump(0) == 8
    assert await after_a_jump(-3) == 8
    assert await after_a_jump(4) == 9
    runner.drain(Drain(DrainMode.ALL, runner.now_ms() + 25_000))
    assert await after_a_jump(5) == 9


@pytest.mark.parametrize("turns", range(5))
async def test_a_look_that_is_asked_for_as_the_daemon_stops_keeps_nothing_alive(turns: int, tmp_path: Path) -> None:
    runner = runner_of(tmp_path)
    task = asyncio.create_task(runner._keep_scanning())
    for _ in range(3):
        await asyncio.sleep(0)
    runner._scan_now.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
    assert task.done() or turns > 1  # by then a look has begun, which is waited for
    await asyncio.wait([task], timeout=60)
    assert task.cancelled()


async def test_a_checkpoint_that_cannot_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, tp = runner_of(tmp_path), TopicPartition("t", 0)
    monkeypatch.setattr("tiered.engine.runner.NOTE_RETRY_SECONDS", 0.001)
    note, failures = runner._directory.note, [LocalIOError("no space left on device")]

    def noted(uploads: Mapping[TopicPartition, PartitionUpload]) -> int:
        if failures:
            raise failures.pop()
        return note(uploads)

    runner._directory.acquire()
    monkeypatch.setattr(runner._directory, "note", noted)
    noting = asyncio.create_task(runner._keep_noting())
    runner._record_upload(tp, PartitionUpload(7, 1))
    async with asyncio.timeout(60):
        while tp not in runner._directory.uploads():
            await asyncio.sleep(0.001)
    assert runner._directory.uploads()[tp].end_offset == 7
    noting.cancel()
    await asyncio.wait([noting])
    runner._directory.release()


async def test_a_run_that_ends_waits_for_the_thread_that_has_the_log_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal of the store ends the run during a seal. Without the wait no clean shutdown was marked."""
    runner, closing, may_close = runner_of(tmp_path), threading.Event(), threading.Event()
    true_close = LocalLog.close

    def close(log: LocalLog) -> None:
        closing.set()
        assert may_close.wait(60)
        true_close(log)

    monkeypatch.setattr(LocalLog, "close", close)
    runner._directory.acquire()
    sealing = asyncio.create_task(runner._seal())
    await asyncio.to_thread(closing.wait, 60)
    asyncio.get_running_loop().call_later(0.05, may_close.set)
    await runner._stop([sealing])
    assert (tmp_path / CLEAN_SHUTDOWN_NAME).exists()
    runner._directory.release()
