"""One set of limits for uploads and maintenance of a daemon: told, changed by SIGHUP, slowed by the store."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.uploader.logs import T0, make_log
from tiered.errors import RemoteUnavailableError
from tiered.plan.tiering import orders
from tiered.plan.tiering.facts import SegmentRef
from tiered.store.base import AioStore, Get, Outcome, Put, PutResult, PutStatus, Store, StoreRequest
from tiered.store.location import StoreLocation
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock
from tiered.tiering.aio_run import ORDER_SECONDS
from uploader import status
from uploader.config import Settings
from uploader.service import Place, Service


@dataclass(frozen=True)
class Location(StoreLocation):
    """Remembers with which limits it was opened, and by whom."""

    opened: dict[str, Any] = field(default_factory=dict)
    store: Any = None

    def raw_store(self, **_: Any) -> Store:
        store: Store = self.store
        return store

    def open(self, **options: Any) -> Store:
        self.opened["maintenance"] = options["limits"]
        return super().open(**options)

    def open_aio(self, **options: Any) -> AioStore:
        self.opened["uploads"] = options["limits"]
        return super().open_aio(**options)


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
    return Service(Place(path / "log", location), Settings(http=None, scan=20, commit_wait=1, **changes)), location


def drained(service: Service) -> int:
    async def story() -> int:
        run = asyncio.create_task(service.run(started=lambda: asyncio.get_running_loop().call_soon(service.drain)))
        return (await run).code

    return asyncio.run(story())


def test_uploads_and_maintenance_share_their_limits(tmp_path: Path) -> None:
    service, location = service_on(tmp_path, MemoryStore(), maintain=True, requests_per_second=1_000_000)
    assert drained(service) == 0
    assert location.opened["uploads"] is location.opened["maintenance"] is service._limits


def test_a_store_that_asks_to_slow_down_is_heard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Busy()
    service, _ = service_on(tmp_path, store)
    with caplog.at_level(logging.WARNING):
        assert drained(service) == 0
    assert store.refused == ["get", "put"]
    said = [record for record in caplog.records if getattr(record, "tiered_event", "") == "slowed_down"]
    assert len(said) == 1
    assert "memory://limits is asked too often below " in said[0].getMessage()
    document = service.status()
    assert document["store"]["slow_downs"] == 2
    text = service._metrics.render().decode()
    assert "tiered_store_slow_downs_total 2.0\n" in text


def test_sighup_changes_both_rates(tmp_path: Path) -> None:
    clock = FakeClock()
    make_log(tmp_path / "log", records=1, partitions=1)
    place = Place(tmp_path / "log", StoreLocation.parse("memory://x"))
    service = Service(place, Settings(http=None, requests_per_second=5), clock=clock)
    wanted = replace(service.settings, requests_per_second=7, bytes_per_second=1000)
    assert service.reload(wanted) == []
    document = service.status()["store"]
    assert (document["requests_per_second"], document["bytes_per_second"]) == (7, 1000)
    assert (document["slow_downs"], document["slowed"]) == (0, [])
    clock.advance(1)
    waits = [service._limits.before(Get("k")) for _ in range(15)]
    assert sum(wait > 0 for wait in waits) == 8


def test_the_table_says_which_prefix_is_slowed_and_that_nobody_need_act(tmp_path: Path) -> None:
    clock = FakeClock()
    make_log(tmp_path / "log", records=1, partitions=1)
    service = Service(Place(tmp_path / "log", StoreLocation.parse("memory://x")), Settings(http=None), clock=clock)
    for _ in range(20):
        service._limits.before(Get("a3/t/root"))
    service._limits.after(Get("a3/t/root"), RemoteUnavailableError("503", slow_down=True))
    clock.advance(5)
    lines = status.table(service.status()).splitlines()
    assert lines[1] == (
        "the store asked to slow down since 5s: 15.0 requests a second below a3/; unblocked by itself, the rate rises "
        "while nothing is refused"
    )


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
    service = Service(Place(tmp_path / "log", StoreLocation.parse("memory://x")), settings)
    upload = orders.Upload(1, T0, SegmentRef(0, 1, 67_000_000, 0), 1)
    assert service._timing().seconds_of(upload) == seconds
    assert service._timing().seconds_of(orders.Claim(1, T0)) == ORDER_SECONDS
