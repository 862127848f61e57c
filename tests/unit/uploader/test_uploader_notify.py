"""What a service manager hears: ready, reloading, stopping, and a watchdog that only a loop that turns feeds."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tiered
from tests.integration.uploader.logs import make_log
from tiered.engine.runner import TICK_MS
from tiered.errors import ConfigError
from tiered.metrics import metric
from tiered.program.uploader_status import reasons_of
from tiered.store.location import StoreLocation
from tiered.store.metrics import StoreMetrics
from tiered.testing.clock import FakeClock
from uploader.component import Uploader
from uploader.config import Settings
from uploader.health import HealthServer, Probes
from uploader.metrics import Metrics
from uploader.service import Service, ServicePlace
from uploader.telemetry import STOP_SPARE_MS, Notify

SECONDS = 30


class Manager:
    """The service manager's end of the socket."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)

    def heard(self) -> list[str]:
        """What came since, without a wait."""
        self._socket.setblocking(False)
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found

    def wait_for(self, begin: str) -> str:
        """The next message that begins so."""
        self._socket.settimeout(SECONDS)
        while not (text := self._socket.recv(4096).decode()).startswith(begin):
            pass
        return text

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    made = Manager(tmp_path / "n")
    monkeypatch.setenv("NOTIFY_SOCKET", made.address)
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    yield made
    made.close()


def service_on(path: Path) -> Service:
    make_log(path / "log", records=5, partitions=1)
    place = ServicePlace(path / "log", StoreLocation.parse(f"file://{path / 'store'}"))
    return Service(place, Settings(http=None, scan=20, drain_timeout=40_000), notify=Notify())


def test_the_manager_hears_of_the_begin_of_a_reload_and_of_the_end_as_it_begins(
    tmp_path: Path, manager: Manager
) -> None:
    service = service_on(tmp_path)

    def unreadable() -> Settings:
        raise ConfigError("it is not TOML")

    async def story() -> int:
        run = asyncio.create_task(service.run())
        ready = await asyncio.to_thread(manager.wait_for, "READY")
        assert ready == f"READY=1\nSTATUS=uploading {tmp_path / 'log'} to file://{tmp_path / 'store'}"
        await asyncio.to_thread(manager.wait_for, "WATCHDOG=1\nSTATUS=1 partitions, ")
        manager.heard()
        service.reload_from(lambda: replace(service.settings, uploads=9, log_format="text"))
        service.reload_from(unreadable)
        reloading, restart, again, kept = [text for text in manager.heard() if not text.startswith("WATCHDOG")]
        assert [text.split("=")[0] for text in (reloading, again)] == ["RELOADING", "RELOADING"]
        assert int(reloading.rpartition("=")[2]) <= int(again.rpartition("=")[2])
        assert restart == "READY=1\nSTATUS=reloaded; a restart is needed for log_format"
        assert kept == "READY=1\nSTATUS=the settings are those of before: it is not TOML"
        service.drain()
        heard = [text for text in manager.heard() if not text.startswith("WATCHDOG")]
        assert heard == [f"STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC={(40_000 + STOP_SPARE_MS) * 1000}"]
        return (await run).code

    assert asyncio.run(asyncio.wait_for(story(), SECONDS)) == 0
    assert [text for text in manager.heard() if text.startswith("STOPPING")] == []  # once


def test_a_manager_that_was_busy_or_away_hears_the_next_message(tmp_path: Path, manager: Manager) -> None:
    """Its queue holds few datagrams: silence from then on would be taken for a loop that is stuck."""
    notify = Notify(manager.address)
    for _ in range(20_000):
        notify.send("WATCHDOG=1")
    assert 0 < len(manager.heard()) < 20_000
    notify.send("WATCHDOG=1\nSTATUS=after it was full")
    assert manager.heard() == ["WATCHDOG=1\nSTATUS=after it was full"]
    late = Notify(str(tmp_path / "late"))
    late.send("WATCHDOG=1")
    other = Manager(tmp_path / "late")
    late.send("READY=1")
    assert other.heard() == ["READY=1"]
    other.close()


def test_a_path_that_is_no_utf8_is_told_escaped(tmp_path: Path, manager: Manager) -> None:
    odd = Path(os.fsdecode(bytes(tmp_path) + b"/\xff"))
    Notify(manager.address).ready(f"uploading {odd}")
    assert manager.heard() == [f"READY=1\nSTATUS=uploading {tmp_path}/\\udcff"]
    metrics = Metrics(StoreMetrics(), list, writer=lambda: [metric("task_runs_total", 3, {"log_dir": str(odd)})])
    lines = metrics.render().decode().splitlines()
    assert f'tiered_task_runs_total{{log_dir="{tmp_path}/\\\\udcff"}} 3.0' in lines
    probes = Probes(lambda: 0, lambda: [f"{odd} cannot be read"], metrics.render, dict)
    status, _, body = HealthServer(probes, "127.0.0.1", 0)._answer("/readyz")
    assert (status, body) == (503, f"{tmp_path}/\\udcff cannot be read\n".encode())


def test_a_loop_that_is_stuck_feeds_no_watchdog(tmp_path: Path, manager: Manager) -> None:
    service, stuck, release = service_on(tmp_path), threading.Event(), threading.Event()

    def hang() -> None:
        stuck.set()
        release.wait(SECONDS)

    async def story() -> None:
        run = asyncio.create_task(service.run())
        await asyncio.to_thread(manager.wait_for, "WATCHDOG")
        asyncio.get_running_loop().call_soon(hang)
        await asyncio.sleep(0)
        service.drain()
        await run

    thread = threading.Thread(target=asyncio.run, args=(story(),))
    thread.start()
    try:
        assert stuck.wait(SECONDS)
        manager.heard()
        assert manager.heard() == []
    finally:
        release.set()
    manager.wait_for("STOPPING")
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_the_loop_turns_twice_in_each_time_of_the_watchdog() -> None:
    pid = str(os.getpid())
    assert Notify.tick_ms({}) == TICK_MS
    assert Notify.tick_ms({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": pid}) == TICK_MS
    assert Notify.tick_ms({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": pid}) == 250
    assert Notify.tick_ms({"WATCHDOG_USEC": "500000"}) == 250
    assert Notify.tick_ms({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}) == TICK_MS
    assert Notify.tick_ms({"WATCHDOG_USEC": "soon"}) == TICK_MS


def test_an_uploader_inside_an_application_says_nothing_in_its_name(tmp_path: Path, manager: Manager) -> None:
    """The application's own readiness is the application's to tell."""
    remote = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=remote, uploader=Uploader()) as log:
        log.topic("t", create=True).append(b"v")
        log.sync(timeout=SECONDS)
    assert manager.heard() == []


def test_a_disk_that_fills_up_is_told_with_what_helps(tmp_path: Path) -> None:
    make_log(tmp_path / "log", records=1, partitions=1)
    place = ServicePlace(tmp_path / "log", StoreLocation.parse("memory://x"))
    service = Service(place, Settings(http=None), clock=FakeClock())
    assert "disk" not in service.status()  # before the first look
    service._telemetry.disk(3 << 30, 79)
    assert service.status()["disk"] == {"free_bytes": 3 << 30, "used_percent": 79, "warn_percent": 80}
    assert reasons_of(service.status()) == []
    service._telemetry.disk(1 << 30, 80)
    assert list(map(str, reasons_of(service.status()))) == [
        "the disk is 80 % full, 1.0 GiB are free; a larger disk, or local.retention.ms or .bytes once the data is in "
        "the bucket"
    ]
