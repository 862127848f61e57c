"""The daemon with ``--maintain``: the bucket is maintained beside the uploads, and neither waits for the other."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import tiered
import uploader.upkeep
from tests.support.uploaded import RETAINED, upload_topics
from tiered.clock import SystemClock, SystemIds
from tiered.engine.reports import Step, StepKind
from tiered.errors import CorruptionError, RemoteUnavailableError
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import PauseFile
from tiered.model import TopicPartition
from tiered.plan.maintenance import MaintenanceKind
from tiered.plan.pacing import Pause
from tiered.program.maintenance_loop import EVERY_MS, MaintenanceLoop, UpkeepView
from tiered.program.uploader_status import talk
from tiered.remote.maintain import Maintainer
from tiered.store.base import Steps
from tiered.store.location import StoreLocation, open_store
from uploader.config import Settings, resolve
from uploader.service import Service, ServicePlace
from uploader.telemetry import Telemetry
from uploader.upkeep import as_json

SECONDS = 30
T0 = TopicPartition("t", 0)


@pytest.fixture
def place(tmp_path: Path) -> ServicePlace:
    """Forty records in the bucket, of which retention takes the beginning, and ten more on the disk."""
    url = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 1000, "retention.bytes": 4000})
        for _ in range(40):
            topic.append(b"x" * 100)
        log.sync(timeout=60)
    with tiered.open(tmp_path / "log") as log:
        for _ in range(10):
            log.topic("t").append(b"y" * 100)
    return ServicePlace(tmp_path / "log", StoreLocation.parse(url))


class Held:
    """The maintainer's first action begins and waits until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.release, self.done = threading.Event(), threading.Event(), threading.Event()
        self.committed = threading.Event()
        run, told, ended = Maintainer.run, uploader.upkeep._done, Telemetry.ended

        def held(maintainer: Maintainer, *args: Any, **kwargs: Any) -> Any:
            self.began.set()
            self.release.wait(SECONDS)
            return (yield from run(maintainer, *args, **kwargs))

        def done(*args: Any) -> None:
            told(*args)
            self.done.set()

        def heard(telemetry: Telemetry, step: Step, error: BaseException | None, seconds: float) -> None:
            ended(telemetry, step, error, seconds)
            if step.kind is StepKind.COMMIT:
                self.committed.set()

        monkeypatch.setattr(Maintainer, "run", held)
        monkeypatch.setattr(uploader.upkeep, "_done", done)
        monkeypatch.setattr(Telemetry, "ended", heard)


def test_uploads_go_on_while_an_action_takes_its_time(place: ServicePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    service = Service(place, Settings(http=None, scan=20, seal_idle=1, commit_wait=1, maintain=True))

    async def story() -> int:
        run = asyncio.create_task(service.run())
        try:
            assert await asyncio.to_thread(held.began.wait, SECONDS)
            assert await asyncio.to_thread(held.committed.wait, SECONDS)
            assert set(service.committed) == {T0}
            assert service.status()["maintenance"]["doing"] == "t-0 retention"
            assert service.status()["maintenance"]["actions"] == {}
            held.release.set()
            assert await asyncio.to_thread(held.done.wait, SECONDS)
            assert service.status()["maintenance"]["actions"] == {"retention": 1}
            text = service._metrics.render().decode()
            assert 'tiered_maintenance_actions_total{kind="retention"} 1.0\n' in text
            assert 'tiered_maintenance_actions_total{kind="merge"} 0.0\n' in text
        finally:
            held.release.set()
            service.drain()
        return (await run).code

    assert asyncio.run(asyncio.wait_for(story(), SECONDS)) == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "maintain"]
    with tiered.open_reader(place.store.url) as reader:
        records = list(reader.topic("t").read(0))
    assert (records[0].offset > 0, records[-1].offset) == (True, 49)


def test_a_pause_of_the_directory_pauses_its_maintenance(place: ServicePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    PauseFile(place.directory, PosixFiles()).write({"t": Pause(1)})
    turn, ended = MaintenanceLoop.turn, threading.Event()

    def told_turn(upkeep: MaintenanceLoop) -> None:
        turn(upkeep)
        ended.set()

    monkeypatch.setattr(MaintenanceLoop, "turn", told_turn)
    service = Service(place, Settings(http=None, scan=20, maintain=True))

    async def story() -> dict[str, Any]:
        run = asyncio.create_task(service.run())
        assert await asyncio.to_thread(ended.wait, SECONDS)
        told = service.status()
        service.drain()
        await run
        return told

    told = asyncio.run(asyncio.wait_for(story(), SECONDS))
    assert (told["maintenance"]["paused"], told["maintenance"]["actions"]) == (["t"], {})
    assert "maintenance of t is paused; unblocked by `tiered-uploader resume`" in list(talk(told))


def test_it_is_off_by_default(place: ServicePlace) -> None:
    service = Service(place, Settings(http=None, scan=20))
    assert (Settings().maintain, Settings().maintain_every) == (False, EVERY_MS)

    async def story() -> int:
        run = asyncio.create_task(service.run(started=service.drain))
        return (await run).code

    assert asyncio.run(asyncio.wait_for(story(), SECONDS)) == 0
    assert "maintenance" not in service.status()
    assert b"tiered_maintain" not in service._metrics.render()
    with tiered.open_reader(place.store.url) as reader:
        assert next(iter(reader.topic("t").read(0))).offset == 0


def test_its_settings_come_from_everywhere() -> None:
    assert resolve({"maintain": True, "maintain_every": "1h"}, {}, None).maintain_every == 3_600_000
    found = resolve(
        {"maintain": None}, {"TIERED_UPLOADER_MAINTAIN": "yes", "TIERED_UPLOADER_MAINTAIN_EVERY": "5m"}, None
    )
    assert (found.maintain, found.maintain_every) == (True, 300_000)


def test_what_it_does_and_what_fails_is_told() -> None:
    failed = {T0: CorruptionError("broken", path_or_key="k", hint="mend it")}
    view = UpkeepView(3, 1000, 2000, "", {MaintenanceKind.MERGE: 2}, 10, 20, failed, RemoteUnavailableError("down"))
    report = {"now_ms": 62_000, "store": {}}
    assert list(talk({**report, "maintenance": as_json(view)})) == [
        "maintenance rests; rounds: 3, the last 1m00s ago; 2 merge",
        "maintenance failed: down",
        "maintenance failed: t-0: broken; mend it",
    ]
    first = list(talk({**report, "maintenance": as_json(UpkeepView(began_ms=1, doing="t-0 merge"))}))
    assert first == ["maintenance at t-0 merge; rounds: 0; nothing had to be done"]


def test_a_lease_that_another_maintainer_takes_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the claim and the commit of an action."""
    store, clock, ids = open_store(upload_topics(tmp_path, RETAINED)), SystemClock(), SystemIds()
    mine, other = (MaintenanceLoop(store, owner=name, clock=clock, ids=ids) for name in ("mine", "other"))
    claimed = Maintainer._claimed

    def raced(self: Maintainer) -> Steps[None]:
        yield from claimed(self)
        if self._owner == "mine":
            other.turn()

    monkeypatch.setattr(Maintainer, "_claimed", raced)
    mine.turn()
    assert (mine.view.fenced, other.view.fenced, sum(other.view.actions.values())) == (1, 0, 1)
    assert [each.value for each in mine.view.metrics() if each.name == "tiered_maintenance_fenced_total"] == [1]
    store.close()
