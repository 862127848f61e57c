"""A store that fails at random, and one that refuses: what is committed is exactly the log, whatever it costs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.integration.uploader.logs import T0, T1, judge, make_log
from tests.integration.uploader.stores import location
from tiered.engine.drain import DrainMode
from tiered.store.base import StoreRequest
from tiered.store.location import ThreadedAioStore
from tiered.store.memory import MemoryStore
from tiered.testing.faults import Fault, FaultKind, FaultStore
from uploader.config import Settings
from uploader.service import Service, ServicePlace

SETTINGS = Settings(http=None, commit_wait=1, scan=50)


async def test_a_refusal_is_said_at_once_and_the_corrected_policy_drains_unaided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"refusal-{tmp_path.name}"
    make_log(tmp_path / "log", records=100)
    refused = FaultStore(MemoryStore(name), [Fault(FaultKind.PERMISSION, "put", "*/s/*.log", times=-1)])
    once = await Service(ServicePlace(tmp_path / "log", location(name, ThreadedAioStore(refused))), SETTINGS).run(
        oneshot=DrainMode.ALL
    )
    assert (once.code, "only on this disk" in once.reason) == (12, True)

    monkeypatch.setattr("tiered.engine.failure.RECHECK_PERMISSION_MS", 20)
    denied = 3

    def choose(request: StoreRequest) -> FaultKind | None:
        nonlocal denied
        if type(request).__name__ == "Put" and ".log" in str(getattr(request, "key", "")) and denied:
            denied -= 1
            return FaultKind.PERMISSION
        return None

    corrected = FaultStore(MemoryStore(name), choose=choose)
    service = Service(ServicePlace(tmp_path / "log", location(name, ThreadedAioStore(corrected))), SETTINGS)
    run = asyncio.create_task(service.run())
    async with asyncio.timeout(20):
        while not service.views() or min(view.uploaded_offset for view in service.views()) < 46:
            await asyncio.sleep(0.01)
    service.drain()
    assert (await run).code == 0
    assert denied == 0
    assert judge(f"memory://{name}", tmp_path / "log", [T0, T1]) == 6


async def test_a_drain_that_can_send_nothing_more_ends_at_once(tmp_path: Path) -> None:
    """The end comes in the moment in which the drain wakes the scan: a cancel that is lost there is never repeated."""
    name = f"stuck-{tmp_path.name}"
    make_log(tmp_path / "log", records=50, partitions=1)
    refused = FaultStore(MemoryStore(name), [Fault(FaultKind.PERMISSION, "put", "*/s/*.log", times=-1)])
    settings = Settings(http=None, commit_wait=1, scan=60_000)
    service = Service(ServicePlace(tmp_path / "log", location(name, ThreadedAioStore(refused))), settings)
    run = asyncio.create_task(service.run())
    async with asyncio.timeout(30):
        while not any(view.waiting and view.waiting.code == "permission" for view in service.views()):
            await asyncio.sleep(0.01)
        service.drain()
        done, _ = await asyncio.wait([run], timeout=20)
    assert done == {run}, "the drain did not end"
    assert (await run).code == 75
