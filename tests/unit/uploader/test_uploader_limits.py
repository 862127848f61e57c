"""One set of limits for uploads and maintenance of a daemon: told, changed by SIGHUP, slowed by the store."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.integration.uploader.logs import T0, append, make_log, open_log
from tests.unit.remote.building import TRUSTED
from tiered.config import MEMORY_BYTES, MIN_MEMORY_BYTES, TopicConfig
from tiered.engine.reports import Step, StepKind
from tiered.engine.runner import STEP_SECONDS
from tiered.engine.steps import INDEX_COPIES
from tiered.errors import ConfigError, RemoteUnavailableError
from tiered.plan.maintenance import REWRITE_BYTES, MaintenanceAction, MaintenanceKind
from tiered.plan.offset_map import DEDUPE_BUFFER_BYTES
from tiered.program.maintenance_loop import MaintenanceLoop
from tiered.remote.maintain import ActionResult, Maintainer
from tiered.store.base import (
    MIN_PART_BYTES,
    AioStore,
    Get,
    Outcome,
    Put,
    PutResult,
    PutStatus,
    Store,
    StoreRequest,
)
from tiered.store.limit import Limits, Slots
from tiered.store.location import StoreLocation
from tiered.store.memory import MemoryStore
from tiered.store.options import DEFAULTS, StoreOptions
from tiered.store.sources import PIECE_BYTES
from tiered.store.unique_upload import PartSizes
from tiered.testing.clock import FakeClock, SeededIds
from uploader.config import Settings, resolve
from uploader.service import Service, ServicePlace


@dataclass(frozen=True)
class Location(StoreLocation):
    """Remembers with which limits it was opened, and by whom."""

    opened: dict[str, Any] = field(default_factory=dict)
    store: Any = None

    def raw_store(self, **_: Any) -> Store:
        store: Store = self.store
        return store

    def open(self, options: StoreOptions = DEFAULTS) -> Store:
        self.opened["maintenance"] = options.limits
        return super().open(options)

    def open_aio(self, options: StoreOptions = DEFAULTS) -> AioStore:
        self.opened["uploads"] = options.limits
        return super().open_aio(options)


class Busy(MemoryStore):
    """Refuses the first segment once, and the first read of a root, as S3 does when it is asked too often."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    def execute(self, request: StoreRequest) -> Outcome:
        kind = "put" if isinstance(request, Put) and request.key.endswith(".log") else ""
        kind = kind or ("get" if isinstance(request, Get) and request.key.endswith("root") else "")
        if kind and kind not in self.refused:
            self.refused.append(kind)
            if kind == "put":
                return PutResult(PutStatus.UNKNOWN, cause="503 SlowDown", slow_down=True)
            raise RemoteUnavailableError("503 SlowDown", slow_down=True)
        return super().execute(request)


def service_on(path: Path, store: Store, **changes: Any) -> tuple[Service, Location]:
    make_log(path / "log", records=30, partitions=1)
    location = Location("memory", "limits", store=store)
    return Service(
        ServicePlace(path / "log", location), Settings(http=None, scan=20, commit_wait=1, **changes)
    ), location


def drained(service: Service) -> int:
    async def story() -> int:
        run = asyncio.create_task(service.run(started=lambda: asyncio.get_running_loop().call_soon(service.drain)))
        return (await run).code

    return asyncio.run(story())


def test_uploads_and_maintenance_share_their_limits(tmp_path: Path) -> None:
    service, location = service_on(tmp_path, MemoryStore(), maintain=True, requests_per_second=1_000_000)
    assert drained(service) == 0
    assert location.opened["uploads"] is location.opened["maintenance"] is service._limits


def test_a_store_that_refuses_too_many_requests_is_asked_again(tmp_path: Path) -> None:
    store = Busy()
    service, _ = service_on(tmp_path, store)
    assert drained(service) == 0
    assert store.refused == ["get", "put"]
    document = service.status()
    assert document["store"]["slow_downs"] == 2
    text = service._metrics.render().decode()
    assert "tiered_store_slow_downs_total 2.0\n" in text


@pytest.mark.parametrize(
    ("rate", "uploads", "seconds"),
    [(None, 4, 300 + 67_000_000 / 50_000), (10_000_000, 4, 300 + 67_000_000 / 50_000), (100_000, 4, 300 + 10_720)],
)
def test_an_upload_has_the_time_that_a_low_rate_takes(
    tmp_path: Path, rate: int | None, uploads: int, seconds: float
) -> None:
    """One that is cancelled has been charged: what is cancelled again and again would use up the rate for nothing."""
    make_log(tmp_path / "log", records=1, partitions=1)
    settings = Settings(http=None, bytes_per_second=rate, uploads=uploads)
    service = Service(ServicePlace(tmp_path / "log", StoreLocation.parse("memory://x")), settings)
    assert service._timing().seconds_of(Step(StepKind.UPLOAD, "t", T0, size_bytes=67_000_000)) == seconds
    assert service._timing().seconds_of(Step(StepKind.CLAIM, "t", T0)) == STEP_SECONDS


class Held(MemoryStore):
    """Notes the budget at each body of a segment, and holds the first until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[int] = []
        self.limits: Limits | None = None
        self.came, self.release = threading.Event(), threading.Event()

    def execute(self, request: StoreRequest) -> Outcome:
        if self.limits is not None and isinstance(request, Put) and request.key.endswith(".log"):
            self.taken.append(self.limits.memory.taken)
            self.came.set()
            assert self.release.wait(30)
        return super().execute(request)


def test_uploads_wait_for_memory_and_status_tells(tmp_path: Path) -> None:
    """Index bundles included: a budget for one upload means one at a time, whatever ``uploads`` says."""
    store = Held()
    service, _ = service_on(tmp_path, store)
    with open_log(tmp_path / "log") as log:
        for number in range(400):
            append(log, T0, number)
        segments = log.partition(T0).sealed_segments(0)
        indexes = [segment.index_bytes for segment in segments]
    assert min(indexes) > 0
    each = PIECE_BYTES + INDEX_COPIES * max(indexes)
    store.limits = service._limits
    service._limits.memory.reconfigure(each)

    async def story() -> dict[str, Any]:
        run = asyncio.create_task(service.run())
        assert await asyncio.to_thread(store.came.wait, 30)
        async with asyncio.timeout(30):
            while service._limits.memory.waiting < 3:  # the others ask their disk first
                await asyncio.sleep(0)
        told: dict[str, Any] = service.status()["store"]["memory"]
        lines = dict(line.rsplit(" ", 1) for line in service._metrics.render().decode().splitlines())
        assert float(lines["tiered_memory_limit_bytes"]) == each
        store.release.set()
        service.drain()
        await run
        return told

    told = asyncio.run(story())
    assert told["limit_bytes"] == each
    assert PIECE_BYTES < told["held_bytes"] <= each
    assert told["waiting"] == 3  # of the four uploads that the engine allows
    assert len(store.taken) > 10
    assert {PIECE_BYTES < taken <= each for taken in store.taken} == {True}
    assert service._limits.memory.taken == 0


@pytest.mark.parametrize(("memory", "map_bytes"), [(64 << 20, 8 << 20), (256 << 20, 72 << 20), (1 << 30, 128 << 20)])
def test_an_action_of_maintenance_holds_half_of_the_memory_at_most(
    memory: int, map_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Settings().memory == MEMORY_BYTES
    budget, seen = Slots(memory), list[tuple[int, int]]()

    def run(_: Maintainer, action: MaintenanceAction, __: Any, *, memory_bytes: int) -> Any:
        seen.append((budget.taken, memory_bytes))
        yield from ()
        return ActionResult(action)

    monkeypatch.setattr(Maintainer, "run", run)
    upkeep = MaintenanceLoop(MemoryStore(), owner="m", clock=FakeClock(), ids=SeededIds(), memory=budget)
    maintainer = Maintainer(T0, UUID(int=1), TopicConfig(), owner="m")
    for kind in (MaintenanceKind.COMPACT, MaintenanceKind.MERGE, MaintenanceKind.RETENTION):
        upkeep._run(maintainer, MaintenanceAction(kind, 0, 1, "test"), TRUSTED)
    assert seen == [(REWRITE_BYTES + map_bytes, map_bytes), (REWRITE_BYTES, map_bytes), (0, DEDUPE_BUFFER_BYTES)]
    assert REWRITE_BYTES + map_bytes <= max(memory // 2, MIN_MEMORY_BYTES)
    assert budget.taken == 0


def test_a_reload_takes_what_can_be_taken_and_names_the_rest(tmp_path: Path) -> None:
    service, _ = service_on(tmp_path, MemoryStore(), maintain=True)
    wanted = replace(
        service.settings,
        memory=MIN_MEMORY_BYTES,
        multipart_above=100,
        part_size=MIN_PART_BYTES,
        maintain_every=1,
        requests_per_second=700,
        bytes_per_second=1000,
        http=("127.0.0.1", 0),
        log_format="text",
    )

    async def story() -> None:
        started = asyncio.Event()
        run = asyncio.create_task(service.run(started=started.set))
        await started.wait()
        assert service.reload(wanted) == ["http", "log_format"]
        assert service._bucket is not None
        assert service._bucket.steps.sizes == PartSizes(100, MIN_PART_BYTES)
        assert service._limits.memory.count == MIN_MEMORY_BYTES
        rates = service.status()["store"]
        assert (rates["requests_per_second"], rates["bytes_per_second"]) == (700, 1000)
        assert service._maintenance is not None
        assert service._maintenance._upkeep._every_ms == 1
        service.drain()
        await run

    asyncio.run(story())
    assert (service.settings.http, service.settings.log_format) == (None, None)


def test_too_little_memory_is_refused() -> None:
    assert resolve({"memory": "64MiB"}, {}, None).memory == MIN_MEMORY_BYTES
    with pytest.raises(
        ConfigError, match="--memory: '63MiB' is too small: a single maintenance action needs more memory"
    ):
        resolve({"memory": "63MiB"}, {}, None)
