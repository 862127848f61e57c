"""A store that does not answer: what is said, how often, and how long a sync goes on asking."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import tiered
from tiered.clock import SystemIds
from tiered.config import LogConfig, TopicConfig
from tiered.errors import DataLocalError, RemoteUnavailableError
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.log import SYNC_RETRY_S, Log
from tiered.store.base import ABSENT, Get, Outcome, Put, StoreRequest
from tiered.store.layers import AioLayeredStore, LayeredStore
from tiered.store.location import ThreadedAioStore
from tiered.store.memory import MemoryStore
from tiered.store.metrics import OUTAGE_ATTEMPTS, Meter, StoreMetrics
from tiered.store.retry import Retries
from tiered.testing.clock import FakeClock
from tiered.testing.faults import Fault, FaultKind, FaultStore


class Clock(FakeClock):
    """Time passes in the waits of the test's own thread alone, which are noted; ``then`` comes after some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.then: Callable[[int], None] = lambda _: None

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        if threading.current_thread().name == "tiered-tick":
            return event.wait()
        self.waits.append(seconds or 0.0)
        done = super().wait(event, seconds)
        self.then(len(self.waits))
        return done


def make(tmp_path: Path) -> tuple[Log, FaultStore, Clock]:
    clock = Clock()
    store = FaultStore(MemoryStore())
    noticing = LayeredStore(store, Meter("memory://", StoreMetrics(), clock=clock, notice_outages=True))
    local = LocalTier.open([tmp_path / "log"], clock=clock, config=LogConfig(remote=True))
    log = Log(
        local,
        LayeredStore(noticing, Retries(clock=clock, deadline_seconds=0)),
        clock=clock,
        ids=SystemIds(),
        reachable=True,
    )
    log.topic("t", create=True, config=TopicConfig(seal_ms=-1)).append(b"v")
    return log, store, clock


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.tiered_event for record in caplog.records if hasattr(record, "tiered_event")]


def test_a_sync_with_a_timeout_uses_its_time(tmp_path: Path) -> None:
    log, store, clock = make(tmp_path)
    with log:
        store.add(Fault(FaultKind.ERROR, times=-1))
        begun, clock.sleeps[:] = clock.monotonic(), []
        with pytest.raises(RemoteUnavailableError):
            log.sync(timeout=300)  # longer than one object is sent again
        assert 300 - SYNC_RETRY_S <= clock.monotonic() - begun <= 300
        assert abs(sum(clock.waits) + sum(clock.sleeps) - (clock.monotonic() - begun)) < 0.001
        assert clock.waits
        assert max(clock.waits) == SYNC_RETRY_S
        begun = clock.monotonic()
        with pytest.raises(RemoteUnavailableError):
            log.sync(timeout=5)
        assert 5 - SYNC_RETRY_S <= clock.monotonic() - begun <= 5
        asked = len(clock.waits)
        with pytest.raises(DataLocalError):
            log.sync(timeout=0)
        with pytest.raises(RemoteUnavailableError):
            log.sync()
        assert len(clock.waits) == asked


def test_a_sync_with_a_timeout_waits_no_longer_for_another_one(tmp_path: Path) -> None:
    """The other one sends for as long as it takes: this one's caller has given a time."""

    class Slow(MemoryStore):
        def execute(self, request: StoreRequest) -> Outcome:
            if isinstance(request, Put) and request.key.endswith(".log"):
                entered.set()
                assert goes_on.wait(60)
            return super().execute(request)

    entered, goes_on, clock, store = threading.Event(), threading.Event(), FakeClock(), Slow()
    local = LocalTier.open([tmp_path / "log"], clock=clock, config=LogConfig(remote=True))
    with Log(local, store, clock=clock, ids=SystemIds(), reachable=True) as log:
        log.topic("t", create=True, config=TopicConfig(seal_ms=-1)).append(b"v")
        other = threading.Thread(target=log.sync)
        other.start()
        assert entered.wait(60)
        with pytest.raises(DataLocalError, match=r"the sync of .* timed out while another sync was still running"):
            log.sync(timeout=0.05)
        goes_on.set()
        other.join(60)
        log.sync(timeout=0)
        assert [at.uploaded_offset for at in log.positions().values()] == [1]


def test_a_sync_may_be_given_more_time_than_a_lock_can_count(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", remote=f"file://{tmp_path}/bucket") as log:
        topic = log.topic("t", create=True)
        topic.append(b"v")
        log.sync(timeout=1e12)
        assert topic.positions(0).uploaded_offset == 1


@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.UNKNOWN_BEFORE, FaultKind.UNKNOWN_AFTER])
def test_a_store_that_comes_back_in_time_gets_all_of_it(
    tmp_path: Path, kind: FaultKind, caplog: pytest.LogCaptureFixture
) -> None:
    log, store, clock = make(tmp_path)
    with log, caplog.at_level(logging.INFO, "tiered"):
        store.add(Fault(kind, times=-1))
        clock.then = lambda count: store.clear() if count == 4 else None
        log.sync(timeout=3600)
        assert log.topic("t").positions(0).uploaded_offset == 1
        assert [record.value for record in log.topic("t").read()] == [b"v"]
        log.topic("t").append(b"w")
        log.sync(timeout=60)
    assert events(caplog) == ["outage_began", "outage_ended"]


def test_one_failure_is_no_outage_and_each_outage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, faults = FakeClock(), FaultStore(MemoryStore())
    store = LayeredStore(faults, Meter("memory://", StoreMetrics(), clock=clock, notice_outages=True))
    told = []
    for failures in (1, OUTAGE_ATTEMPTS - 1, OUTAGE_ATTEMPTS, 50):
        caplog.clear()
        faults.add(Fault(FaultKind.ERROR, times=-1))
        for _ in range(failures):
            with pytest.raises(RemoteUnavailableError):
                store.execute(Get("k"))
            clock.advance(2)
        faults.clear()
        store.execute(Get("k"))
        store.execute(Get("k"))
        told.append(events(caplog))
    both = ["outage_began", "outage_ended"]
    assert told == [[], [], both, both]
    assert "answers again, after 100 s" in caplog.messages[-1]


async def test_the_same_for_asyncio_and_for_writes_that_may_have_landed(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultStore(MemoryStore())
    store = AioLayeredStore(
        ThreadedAioStore(faults), Meter("memory://", StoreMetrics(), clock=FakeClock(), notice_outages=True)
    )
    faults.add(Fault(FaultKind.UNKNOWN_AFTER, times=-1))
    for number in range(OUTAGE_ATTEMPTS):
        await store.execute(Put(f"k{number}", b"v", ABSENT))
    faults.clear()
    await store.execute(Get("k0"))
    await store.close()
    assert events(caplog) == ["outage_began", "outage_ended"]


def test_a_log_that_was_never_uploaded_is_not_told_that_appends_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True)
    with tiered.open(tmp_path / "log", "s3://bucket", endpoint_url="http://127.0.0.1:9") as log:
        assert "a new log has to wait" in caplog.messages[0]
        with pytest.raises(RemoteUnavailableError, match="it is not known at which offset it goes on") as caught:
            log.topic("t")
        assert caught.value.hint
