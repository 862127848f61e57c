"""A request that has no answer: its age as a metric, and progress for a caller that waits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.uploader.logs import make_log
from tests.support.engine import seen_views
from tiered.clock import SystemIds
from tiered.engine.disk import LogDirectory
from tiered.engine.wait import PROGRESS_SECONDS, follow
from tiered.errors import DataLocalError, RemotePermissionError, RemoteUnavailableError, TieredError
from tiered.model import BytesSource
from tiered.store.base import Get, Outcome, StoreAround, StoreRequest, UploadPart
from tiered.store.layers import AioLayeredStore, LayeredStore
from tiered.store.location import StoreLocation, ThreadedAioStore
from tiered.store.memory import MemoryStore
from tiered.store.metrics import SILENT_SECONDS, Meter, StoreMetrics, request_metrics
from tiered.testing.clock import FakeClock
from uploader.config import Settings
from uploader.service import Service, ServicePlace


class Hanging(StoreAround):
    """Calls ``meanwhile`` before it answers."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__(MemoryStore("silence"))
        self._meanwhile = meanwhile

    def execute(self, request: StoreRequest) -> Outcome:
        self._meanwhile()
        return self.inner.execute(request)


class Watch:
    """Ages that a look each second sees while a request hangs for half a minute."""

    def __init__(self) -> None:
        self.clock, self.metrics = FakeClock(), StoreMetrics()
        self.overdue: list[bool] = []
        self.ages: list[float] = []

    def look(self) -> None:
        for _ in range(30):
            self.clock.advance(1)
            self.overdue.append(self.metrics.overdue(self.clock.monotonic()) is not None)
            self.ages.append(self.age())

    def age(self) -> float:
        figures = request_metrics(self.metrics, self.clock.monotonic())
        (found,) = [each.value for each in figures if each.name == "tiered_store_oldest_request_seconds"]
        return found

    def judge(self) -> None:
        assert self.overdue == [second >= SILENT_SECONDS for second in range(1, 31)]
        assert self.ages == [float(second) for second in range(1, 31)]
        assert (self.age(), self.metrics.overdue(self.clock.monotonic())) == (0.0, None)


@pytest.mark.parametrize("face", ["threads", "asyncio"])
async def test_a_hanging_request_has_an_age(face: str) -> None:
    watch = Watch()
    meter = Meter("memory://", watch.metrics, clock=watch.clock)
    if face == "threads":
        LayeredStore(Hanging(watch.look), meter).execute(Get("k"))
    else:
        store = AioLayeredStore(ThreadedAioStore(Hanging(watch.look)), meter)
        await store.execute(Get("k"))
        await store.close()
    watch.judge()


class Answers(StoreAround):
    """Each request takes 30 s and gets the next of ``answers``: an error, or a response (None)."""

    def __init__(self, clock: FakeClock, answers: list[Exception | None]) -> None:
        super().__init__(MemoryStore("answers"))
        self._clock, self._answers = clock, answers

    def execute(self, request: StoreRequest) -> Outcome:
        self._clock.advance(30)
        if (error := self._answers.pop(0)) is not None:
            raise error
        return self.inner.execute(request)


@pytest.mark.parametrize("response", [None, RemotePermissionError("403")])
def test_a_store_is_silent_from_the_first_request_without_a_response(response: Exception | None) -> None:
    clock, metrics = FakeClock(), StoreMetrics()
    answers = [RemoteUnavailableError("no answer"), RemoteUnavailableError("no answer"), OSError("cancelled"), response]
    store = LayeredStore(Answers(clock, answers), Meter("memory://", metrics, clock=clock))
    silent = []
    for _ in range(4):
        with contextlib.suppress(TieredError, OSError):
            store.execute(Get("k"))
        clock.advance(5)
        found = {each.name: each.value for each in request_metrics(metrics, clock.monotonic())}
        silent.append(found["tiered_store_silent_seconds"])
    assert silent == [35.0, 70.0, 105.0, 0.0]


def test_bytes_that_are_sent_may_take_longer() -> None:
    metrics = StoreMetrics()
    metrics.start(UploadPart("k", "id", 1, BytesSource(bytes(5_000_000)), 0, 5_000_000), 0.0)
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
    assert [text for _, text in said] == ["not committed by the running uploader yet: t-0 at offset 0 of 7"] * 2
    assert [round(at) for at, _ in said] == [PROGRESS_SECONDS, 2 * PROGRESS_SECONDS]


def test_a_sync_of_its_own_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_log(tmp_path / "log", records=7, partitions=1)
    clock, said = FakeClock(), list[str]()
    service = Service(
        ServicePlace(tmp_path / "log", StoreLocation.parse("memory://x")), Settings(http=None), clock=clock
    )
    views = seen_views(service._directory, clock.now_ms())
    monkeypatch.setattr(service, "views", lambda: views)
    service._progress = said.append
    for _ in range(25):
        clock.advance(1)
        service._check()
    assert len(said) == 2
    assert said[0].endswith(" to commit: t-0 0 of 7")
