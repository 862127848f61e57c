"""``tiered status`` beside an uploader in each of its states: the first line, the exit code, the JSON."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
from pathlib import Path

import pytest

from tests.integration.uploader.daemons import Daemon, call, status
from tests.integration.uploader.logs import make_log
from tests.support.engine import seen_views
from tiered.engine.reports import Report
from tiered.local.disk.files import DiskSpace, PosixFiles
from tiered.store.base import Get
from tiered.store.location import StoreLocation
from tiered.testing.clock import FakeClock
from uploader.config import Settings
from uploader.service import Service, ServicePlace

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-central-1"}


def expect(directory: Path, code: str, first: str, *more: str, exit_code: int = 3) -> str:
    """One state as a person and as a machine reads it; the first line."""
    ended, lines, told = status("--log-dir", str(directory), *more)
    assert (ended, told["exit_code"], told["safe"], told["reason"]) == (exit_code, exit_code, False, code)
    assert told["reasons"][[each["code"] for each in told["reasons"]].index(code)]["text"]
    assert lines[0].startswith(f"NOT SAFE: {first}"), lines[0]
    return lines[0]


def test_safe(directory: Path, url: str) -> None:
    place = ("--log-dir", str(directory), "--remote", url)
    assert call("sync", *place).returncode == 0
    with Daemon(*place) as daemon:
        daemon.wait_for("claimed")
        code, lines, told = status(*place)
        assert (code, lines[0], told["safe"], told["reason"], told["reasons"]) == (0, "safe", True, None, [])
        assert str(daemon.process.pid) in told["uploader"]["running"]


def test_without_a_server_of_status_the_note_beside_the_lock_says_it(
    directory: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds for ``--http off`` and for an uploader inside an application."""
    clock = FakeClock()
    service = Service(ServicePlace(directory, StoreLocation.parse(url)), Settings(http=None), clock=clock)
    service._directory.acquire()
    try:
        views = seen_views(service._directory, clock.now_ms())
        monkeypatch.setattr(service, "views", lambda: views)
        service._telemetry.report(Report(logging.ERROR, "failed", "403"))
        service._check()
        assert status("--log-dir", str(directory))[2]["reason"] is None
        number = service.store_metrics.start(Get("t/root"), clock.monotonic())
        clock.advance(9.9)
        service._check()
        assert status("--log-dir", str(directory))[2]["reason"] is None
        clock.advance(0.1)
        service._check()
        expect(directory, "silent", "the store does not answer a request")
        service.store_metrics.add(Get("t/root"), TimeoutError(), 10.0, number)
        service._check()
        assert status("--log-dir", str(directory))[2]["reason"] is None
    finally:
        service._directory.release()
    expect(directory, "stopped", "no uploader runs, 200 records", "--remote", url)


def test_paused(directory: Path, url: str) -> None:
    place = ("--log-dir", str(directory), "--remote", url)
    assert call("sync", *place).returncode == 0
    assert call("pause", "--reason", "the bucket moves", "--log-dir", str(directory)).returncode == 0
    expect(directory, "paused", "uploads are paused since 20", "--remote", url)
    with Daemon(*place) as daemon:
        daemon.wait_for("paused")
        line = expect(directory, "paused", "uploads are paused since 20")
        assert "(the bucket moves)" in line


def test_damaged(directory: Path, url: str) -> None:
    path = directory / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    with Daemon("--log-dir", str(directory), "--remote", url) as daemon:
        said = daemon.wait_for("failed")
        assert "segment 0 of" in said["message"]
        assert "`tiered check --log-dir DIR` names the damage" in said["message"]
        line = expect(directory, "damaged", "something is damaged")
        assert "segment 0 of" in line
        daemon.kill()
    assert "segment 0 of" in expect(directory, "damaged", "something is damaged", "--remote", url)


def test_an_uploader_that_hangs(directory: Path, url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        held = Service(ServicePlace(directory, StoreLocation.parse(url)), Settings(http=None))._directory
        held.acquire()
        held.note_http(f"127.0.0.1:{silent.getsockname()[1]}")
        try:
            expect(directory, "hangs", "the uploader does not answer since 20")
        finally:
            held.release()


def test_the_directory_is_gone(directory: Path, url: str) -> None:
    with Daemon("--log-dir", str(directory), "--remote", url) as daemon:
        daemon.wait_for("claimed")
        while directory.exists():
            shutil.rmtree(directory, ignore_errors=True)
        expect(directory, "directory_gone", "the log directory is gone", exit_code=10)
        expect(directory, "directory_gone", "the log directory is gone", "--remote", url, exit_code=10)
        assert daemon.stop() == 75


def test_the_disk_is_low(directory: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    space = DiskSpace(9 * 2**30, 100 * 2**30)
    monkeypatch.setattr(PosixFiles, "space", lambda *_: space)
    service = Service(ServicePlace(directory, StoreLocation.parse(url)), Settings(http=("127.0.0.1", 0), scan=20))

    async def story() -> None:
        started = asyncio.Event()
        run = asyncio.create_task(service.run(started=started.set))
        await started.wait()
        while service._metrics.disk_free_bytes is None or not service._bucket or not service._bucket.steps.capabilities:
            await asyncio.sleep(0)
        await asyncio.to_thread(expect, directory, "disk_low", "the disk is nearly full")
        service.drain()
        await run

    asyncio.run(story())


def test_one_topic(directory: Path, url: str) -> None:
    place = ("--log-dir", str(directory), "--remote", url)
    assert call("sync", *place).returncode == 0
    make_log(directory, records=1, partitions=1, topic="u")
    assert call("pause", "u", "--log-dir", str(directory)).returncode == 0
    code, lines, told = status("t", *place)
    assert (code, lines[0], [each["topic"] for each in told["partitions"]]) == (0, "safe", ["t"])
    assert status("u", *place)[2]["reason"] == "paused"
    assert status(*place)[2]["reason"] == "paused"
