"""Sync under trouble: appends meanwhile, a partition that is fenced, forks, restores."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import pytest

import tiered
from tests.support.admin import restore
from tiered import aio
from tiered.clock import SystemClock
from tiered.engine.disk import LogDirectory
from tiered.engine.drain import DrainMode
from tiered.errors import FencedError, LogDestroyedError, NotFoundError
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.lock import UPLOADER_LOCK_NAME, DirectoryLock
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.model import TopicPartition
from tiered.store.location import StoreLocation, open_store
from uploader import Uploader
from uploader.config import Settings
from uploader.service import Service, ServicePlace

TP = TopicPartition("t", 0)


def store_url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'store'}"


def test_sync_while_another_thread_appends(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", remote=store_url(tmp_path)) as log:
        topic = log.topic("t", create=True)
        stop = threading.Event()

        def append() -> None:
            while not stop.is_set():
                topic.append(b"x" * 100)

        thread = threading.Thread(target=append)
        thread.start()
        try:
            for _ in range(10):
                end = topic.positions(0).end_offset
                log.sync(timeout=30)
                assert topic.positions(0).uploaded_offset >= end
        finally:
            stop.set()
            thread.join()


def test_a_fenced_partition_keeps_no_other_from_the_bucket(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", remote=store_url(tmp_path)) as log:
        topic = log.topic("t", create=True, partitions=2)
        for partition in (0, 1):
            topic.append(b"a", partition=partition)
        log.sync(timeout=30)
        topic.append(b"b", partition=1)
        before = log._local.logs()[log.directory].uploads.read()[TP]
        log._local.logs()[log.directory].uploads.update(
            {TP: PartitionUpload(before.end_offset, before.claim_epoch, fenced=True)}
        )
        log._local.refresh_uploads()
        with pytest.raises(FencedError):
            log.sync(timeout=30)
        assert topic.positions(1).uploaded_offset == 2


def test_the_daemon_seals_what_stands_behind_a_fenced_partition(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", create=True, partitions=2)
        for partition in (0, 1):
            topic.append(b"a", partition=partition)
        log._local.logs()[log.directory].uploads.update({TP: PartitionUpload(0, fenced=True)})
    directory = LogDirectory(tmp_path / "log", clock=SystemClock(), ids=tiered.clock.SystemIds())
    assert directory.seal() is False
    names = sorted(path.name for path in (tmp_path / "log" / "t-1").glob("*.log"))
    assert names == [f"{0:020d}.log", f"{1:020d}.log"]


def test_what_was_never_uploaded_stays_until_the_first_sync(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", remote=store_url(tmp_path)) as log:
        topic = log.topic("t", create=True, config={"retention.bytes": 1000, "segment.bytes": 500})
        for _ in range(50):
            topic.append(b"x" * 80)
        assert log._local.partition(TP).apply_retention() == []
        log.sync(timeout=30)
        assert topic.beginning_offsets() == {TP: 0}


def test_a_restored_log_that_a_daemon_claimed_first_starts_a_new_leader_epoch(tmp_path: Path) -> None:
    url = store_url(tmp_path)
    with tiered.open(tmp_path / "first", remote=url) as log:
        log.topic("t", create=True).append(b"a")
        log.sync(timeout=30)
    store = open_store(url)
    restore(store, tmp_path / "second")
    store.close()

    async def claim() -> None:
        service = Service(ServicePlace(tmp_path / "second", StoreLocation.parse(url)), Settings(http=None, scan=50))
        running = asyncio.create_task(service.run())
        while not any(view.phase == "claimed" for view in service.views()):
            await asyncio.sleep(0.05)
        service.drain()
        await running

    asyncio.run(asyncio.wait_for(claim(), 30))
    with tiered.open(tmp_path / "second", remote=url) as log:
        topic = log.topic("t")
        topic.append(b"b")
        log.sync(timeout=30)
        assert [(record.offset, record.leader_epoch) for record in topic.read()] == [(0, 0), (1, 1)]


class _Unclosable(PosixFiles):
    """Fails as no file system does."""

    def close(self, handle: int) -> None:
        raise KeyError(handle)


def test_a_forked_child_keeps_no_lock(tmp_path: Path) -> None:
    broken = [DirectoryLock(tmp_path, _Unclosable(), name=f"broken{i}") for i in range(20)]
    lock = DirectoryLock(tmp_path, PosixFiles())
    for one in (*broken[:10], lock, *broken[10:]):  # those that cannot be closed in the child keep no other
        one.acquire(SystemClock())
    forked, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b".")
        time.sleep(60)
        os._exit(0)
    try:
        os.read(forked, 1)
        assert not DirectoryLock(tmp_path, PosixFiles()).try_acquire(SystemClock())  # the parent's hold stands
        lock.release()
        assert DirectoryLock(tmp_path, PosixFiles()).try_acquire(SystemClock())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(forked)
        os.close(tell)
        for one in broken:
            os.close(one._handle or -1)
            one._handle = None


def test_a_forked_child_closes_no_other_file_under_the_number_of_a_lock(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path, PosixFiles())
    lock.acquire(SystemClock())
    number = lock._handle
    assert number is not None
    with (tmp_path / "another").open("w") as another:
        os.dup2(another.fileno(), number)  # somebody closed what was not theirs, and the number is another file's
        child = os.fork()
        if child == 0:
            try:
                os.fstat(number)
            except OSError:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lock.release()


def test_appends_that_wait_for_a_commit_leave_threads_for_the_sync_that_makes_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with aio.open(tmp_path / "log", remote=store_url(tmp_path)) as log:
            topic = await log.topic("t", create=True)
            waiting = [asyncio.create_task(topic.append(b"x", durability="remote")) for _ in range(8)]
            while topic.positions(0).end_offset < len(waiting):
                await asyncio.sleep(0.01)
            await log.sync(30)
            assert sorted(written.offset for written in await asyncio.gather(*waiting)) == list(range(8))

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_one_shot_run_with_nothing_to_send_looks_whether_the_bucket_is_the_same(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", remote=store_url(tmp_path)) as log:
        log.topic("t", create=True).append(b"a")
        log.sync(timeout=30)

    def once(url: str) -> int:
        service = Service(ServicePlace(tmp_path / "log", StoreLocation.parse(url)), Settings(http=None))
        return asyncio.run(service.run(oneshot=DrainMode.ALL, timeout_ms=20_000)).code

    assert once(store_url(tmp_path)) == 0
    other = tmp_path / "other"
    with pytest.raises(NotFoundError, match=f"the folder {other} does not exist"):
        once(f"file://{other}")
    assert not other.exists()
    other.mkdir()
    with pytest.raises(LogDestroyedError, match="does not know it"):
        once(f"file://{other}")
    assert list(other.iterdir()) == []


def test_a_sync_that_waits_for_an_uploader_goes_on_by_itself_when_that_one_dies(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", remote=store_url(tmp_path)) as log:
        topic = log.topic("t", create=True)
        topic.append(b"a")
        uploader = DirectoryLock(tmp_path / "log", PosixFiles(), name=UPLOADER_LOCK_NAME)
        uploader.acquire(SystemClock())
        threading.Timer(0.3, uploader.release).start()
        log.sync(timeout=30)
        assert topic.positions(0).uploaded_offset == 1


def test_positions_begin_where_the_bucket_begins_whoever_uploads(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "first", remote=store_url(tmp_path)) as log:
        log.topic("t", create=True).append_many([b"a", b"b"])
        log.sync(timeout=30)
    with tiered.open(tmp_path / "second", remote=store_url(tmp_path), uploader=Uploader()) as log:
        topic = log.topic("t")
        assert topic.append(b"c").offset == 2
        log.sync(timeout=30)
        assert topic.positions(0).start_offset == 0
        assert topic.beginning_offsets() == {TP: 0}
