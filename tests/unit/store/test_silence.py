"""A request that has no answer: a log line after ten seconds, its age as a metric, progress for whoever waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.uploader.logs import make_log
from tiered.clock import SystemIds
from tiered.errors import DataLocalError
from tiered.model import BytesSource
from tiered.store.base import AioStoreAround, Get, Outcome, StoreAround, StoreRequest, UploadPart
from tiered.store.location import StoreLocation, ThreadedAioStore
from tiered.store.memory import MemoryStore
from tiered.store.metrics import SILENT_SECONDS, AioMeteredStore, MeteredStore, StoreMetrics, request_metrics
from tiered.testing.clock import FakeClock
from tiered.tiering.directory import LogDirectory
from tiered.tiering.wait import PROGRESS_SECONDS, follow
from uploader.config import Settings
from uploader.service import Place, Service


class Hanging(StoreAround):
    """Calls ``meanwhile`` before it answers."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__(MemoryStore("silence"))
        self._meanwhile = meanwhile

    def execute(self, request: StoreRequest) -> Outcome:
        self._meanwhile()
        return self.inner.execute(request)


class AioHanging(AioStoreAround):
    """The same for asyncio."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__(ThreadedAioStore(MemoryStore("silence")))
        self._meanwhile = meanwhile

    async def execute(self, request: StoreRequest) -> Outcome:
        self._meanwhile()
        return await self.inner.execute(request)


class Watch:
    """What a tick of every second sees while a request hangs for half a minute."""

    def __init__(self) -> None:
        self.clock, self.metrics = FakeClock(), StoreMetrics()
        self.overdue: list[bool] = []
        self.ages: list[float] = []

    def look(self) -> None:
        for _ in range(30):
            self.clock.advance(1)
            self.overdue.append(self.metrics.say_overdue(self.clock.monotonic(), "s3://bucket"))
            self.ages.append(self.age())

    def age(self) -> float:
        figures = request_metrics(self.metrics, self.clock.monotonic())
        (found,) = [each.value for each in figures if each.name == "tiered_store_oldest_request_seconds"]
        return found


def judge(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    assert watch.overdue == [second >= SILENT_SECONDS for second in range(1, 31)]
    assert watch.ages == [float(second) for second in range(1, 31)]
    said = [record for record in caplog.records if getattr(record, "tiered_event", "") == "request_silent"]
    assert [record.getMessage() for record in said] == ["s3://bucket has not answered a request (get) for 10 s"]
    assert (watch.age(), watch.metrics.say_overdue(watch.clock.monotonic(), "s3://bucket")) == (0.0, False)


def test_a_hanging_request_is_logged_once_and_has_an_age(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    MeteredStore(Hanging(watch.look), watch.metrics, clock=watch.clock).execute(Get("k"))
    judge(watch, caplog)


async def test_the_same_for_asyncio(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    store = AioMeteredStore(AioHanging(watch.look), watch.metrics, clock=watch.clock)
    await store.execute(Get("k"))
    await store.close()
    judge(watch, caplog)


def test_bytes_that_are_sent_may_take_longer() -> None:
    metrics = StoreMetrics()
    metrics.begin(UploadPart("k", "id", 1, BytesSource(bytes(5_000_000)), 0, 5_000_000), 0.0)
    assert (metrics.overdue(29.9), metrics.overdue(30.0) is not None) == (None, True)


def test_who_follows_a_running_uploader_is_shown_how_far_it_is(tmp_path: Path) -> None:
    make_log(tmp_path / "log", records=7, partitions=1)
    clock = FakeClock()
    running = LogDirectory(tmp_path / "log", clock=clock, ids=SystemIds())
    running.acquire()
    said: list[tuple[float, str]] = []
    directory = LogDirectory(tmp_path / "log", clock=clock, ids=SystemIds())
    with pytest.raises(DataLocalError) as raised:
        follow(directory, clock=clock, timeout_ms=25_000, progress=lambda text: said.append((clock.monotonic(), text)))
    running.release()
    assert raised.value.hint == "`tiered status` says what it waits for"
    assert [text for _, text in said] == ["not committed by the running uploader yet: t-0 0 of 7"] * 2
    assert [round(at) for at, _ in said] == [PROGRESS_SECONDS, 2 * PROGRESS_SECONDS]


def test_a_sync_of_its_own_shows_how_far_it_is(tmp_path: Path) -> None:
    make_log(tmp_path / "log", records=7, partitions=1)
    clock, said = FakeClock(), list[str]()
    service = Service(Place(tmp_path / "log", StoreLocation.parse("memory://x")), Settings(http=None), clock=clock)
    for event in service._directory.scan():
        service._state.handle(event, clock.now_ms())
    service._progress = said.append
    for _ in range(25):
        clock.advance(1)
        service._look_around()
    assert len(said) == 2
    assert said[0].endswith(" to commit: t-0 0 of 7")
