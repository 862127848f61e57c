"""A request that has no answer: a log line after ten seconds, its age as a metric, progress for whoever waits."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tiered
from tests.integration.uploader.logs import make_log
from tests.support.engine import seen_views
from tiered import aio
from tiered.clock import SystemIds
from tiered.engine.directory import LogDirectory
from tiered.engine.wait import PROGRESS_SECONDS, follow
from tiered.errors import DataLocalError
from tiered.model import BytesSource
from tiered.store.base import Get, Outcome, StoreAround, StoreRequest, UploadPart
from tiered.store.layers import AioLayeredStore, LayeredStore
from tiered.store.location import StoreLocation, ThreadedAioStore
from tiered.store.memory import MemoryStore
from tiered.store.metrics import SILENT_SECONDS, WATCH, Meter, SilenceWatch, StoreMetrics, request_metrics
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


class AioHanging(ThreadedAioStore):
    """The same for asyncio."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__(MemoryStore("silence"))
        self._meanwhile = meanwhile

    async def execute(self, request: StoreRequest) -> Outcome:
        self._meanwhile()
        return await super().execute(request)


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
    LayeredStore(Hanging(watch.look), Meter("memory://", watch.metrics, clock=watch.clock)).execute(Get("k"))
    judge(watch, caplog)


async def test_the_same_for_asyncio(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    store = AioLayeredStore(AioHanging(watch.look), Meter("memory://", watch.metrics, clock=watch.clock))
    await store.execute(Get("k"))
    await store.close()
    judge(watch, caplog)


class Said(logging.Handler):
    """Sets ``event`` at the line of a request without an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "tiered_event", "") == "request_silent":
            self.event.set()


@pytest.fixture
def said() -> Iterator[Said]:
    handler = Said()
    logging.getLogger("tiered.store").addHandler(handler)
    yield handler
    logging.getLogger("tiered.store").removeHandler(handler)


@pytest.mark.parametrize("face", ["sync", "asyncio"])
def test_a_thread_says_so_while_the_caller_waits(face: str, said: Said, caplog: pytest.LogCaptureFixture) -> None:
    """No ticker of a log or of a daemon is at work: the caller alone waits for the store."""
    watch, clock, metrics = SilenceWatch(look_seconds=0.001), FakeClock(), StoreMetrics()

    def hang() -> None:
        clock.advance(SILENT_SECONDS)
        assert said.event.wait(30)

    if face == "sync":
        store = LayeredStore(Hanging(hang), Meter("memory://silence", metrics, clock=clock, watch=watch))
        store.execute(Get("k"))
        store.close()
    else:

        async def ask() -> None:
            store = AioLayeredStore(AioHanging(hang), Meter("memory://silence", metrics, clock=clock, watch=watch))
            await store.execute(Get("k"))
            await store.close()

        asyncio.run(ask())
    thread = watch._thread
    if thread is not None:
        thread.join(30)
    assert watch._thread is None
    lines = [record.getMessage() for record in caplog.records if record.name == "tiered.store"]
    assert lines == ["memory://silence has not answered a request (get) for 10 s"]


def test_every_open_store_of_a_reader_is_watched(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'bucket'}"
    with tiered.open(tmp_path / "log", remote=url) as log:
        log.topic("t", create=True).append(b"1")
        log.sync()
    before = set(WATCH._stores)
    with tiered.open_reader(url) as reader:
        assert [record.value for record in reader.topic("t").read()] == [b"1"]
        assert len(set(WATCH._stores) - before) == 1
    assert set(WATCH._stores) <= before

    async def read() -> None:
        async with aio.open_reader(url) as reader:
            topic = await reader.topic("t")
            assert [record.value async for record in topic.read()] == [b"1"]
            assert set(WATCH._stores) - before
        assert set(WATCH._stores) <= before

    asyncio.run(read())


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
    assert [text for _, text in said] == ["not committed by the running uploader yet: t-0 0 of 7"] * 2
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
