"""Retries, limits and metrics around a store, on both loops, with a clock that only the test moves."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tiered.errors import ClosedError, ConfigError, NotFoundError, RemoteUnavailableError
from tiered.model import BytesSource
from tiered.plan.pacing import TokenBucket
from tiered.store.base import (
    ABSENT,
    AbortUpload,
    CompleteUpload,
    Delete,
    Get,
    Head,
    List,
    ListUploads,
    Missing,
    Outcome,
    Put,
    PutResult,
    PutStatus,
    StartUpload,
    StoreRequest,
    UploadPart,
)
from tiered.store.layers import AioLayeredStore, LayeredStore
from tiered.store.limit import Limits
from tiered.store.location import ThreadedAioStore
from tiered.store.memory import MemoryStore
from tiered.store.metrics import SECONDS_BOUNDS, Meter, StoreMetrics
from tiered.store.retry import Retries
from tiered.testing.clock import FakeClock, SeededIds
from tiered.testing.faults import Fault, FaultKind, FaultStore

ERROR = FaultKind.ERROR
SAFE: list[StoreRequest] = [
    Get("k"),
    Head("k"),
    List(""),
    Delete(("k",)),
    StartUpload("k"),
    AbortUpload("k", "id"),
    ListUploads("k"),
]
UNSAFE: list[StoreRequest] = [Put("k", b"v", ABSENT), CompleteUpload("k", "id", ())]


@pytest.mark.parametrize("request_", SAFE, ids=lambda each: type(each).__name__)
async def test_safe_requests_are_repeated(request_: StoreRequest) -> None:
    for times in (1, 4):
        inner = FaultStore(MemoryStore(), [Fault(ERROR, times=times)])
        clock = FakeClock()
        LayeredStore(inner, Retries(clock=clock, ids=SeededIds(3))).execute(request_)
        assert len(inner.calls) == times + 1
        aio_inner = FaultStore(MemoryStore(), [Fault(ERROR, times=times)])
        aio_clock = FakeClock()
        threaded = ThreadedAioStore(aio_inner)
        store = AioLayeredStore(threaded, Retries(clock=aio_clock, ids=SeededIds(3)), aio_clock.aio_sleep)
        await store.execute(request_)
        assert (aio_inner.calls, aio_clock.sleeps) == (inner.calls, clock.sleeps)
        assert all(0 <= wait <= 0.2 * 2**at for at, wait in enumerate(clock.sleeps))
        await store.close()


def test_parts_are_repeated() -> None:
    inner = FaultStore(MemoryStore(), [Fault(ERROR, "uploadpart", times=2)])
    with pytest.raises(NotFoundError):
        LayeredStore(inner, Retries(clock=FakeClock())).execute(UploadPart("k", "id", 1, BytesSource(b""), 0, 0))
    assert len(inner.calls) == 3


@pytest.mark.parametrize("request_", UNSAFE, ids=lambda each: type(each).__name__)
async def test_conditional_writes_are_never_repeated(request_: StoreRequest) -> None:
    for fault in (
        Fault(ERROR, times=-1),
        Fault(FaultKind.UNKNOWN_AFTER, times=-1),
        Fault(FaultKind.CONFLICT, times=-1),
    ):
        inner = FaultStore(MemoryStore(), [fault])
        store = AioLayeredStore(ThreadedAioStore(inner), Retries(clock=FakeClock()))
        try:
            outcome = await store.execute(request_)
            assert isinstance(outcome, PutResult)
            LayeredStore(inner, Retries(clock=FakeClock())).execute(request_)
        except (RemoteUnavailableError, ConfigError):
            with pytest.raises((RemoteUnavailableError, ConfigError)):
                LayeredStore(inner, Retries(clock=FakeClock())).execute(request_)
        assert len(inner.calls) == 2
        await store.close()


def test_retries_end_at_the_deadline_and_say_so() -> None:
    clock = FakeClock()
    inner = FaultStore(MemoryStore(), [Fault(ERROR, times=-1)])
    with pytest.raises(RemoteUnavailableError, match=r"gave up after \d+ attempts in") as caught:
        LayeredStore(inner, Retries(clock=clock, ids=SeededIds(), deadline_seconds=20)).execute(Get("k"))
    assert clock.monotonic() <= 20
    assert len(inner.calls) == len(clock.sleeps) + 1 > 5
    assert isinstance(caught.value.__cause__, RemoteUnavailableError)
    never = FaultStore(MemoryStore(), [Fault(ERROR, times=-1)])
    with pytest.raises(RemoteUnavailableError):
        LayeredStore(never, Retries(clock=clock, ids=SeededIds(), deadline_seconds=0)).execute(Get("k"))
    assert len(never.calls) == 1


def test_other_errors_are_not_repeated() -> None:
    inner = FaultStore(MemoryStore(), [Fault(FaultKind.PERMISSION), Fault(ERROR, error=NotFoundError("x"), nth=2)])
    store = LayeredStore(inner, Retries(clock=FakeClock()))
    for _ in range(2):
        with pytest.raises(Exception, match=r"x|403"):
            store.execute(Get("k"))
    assert len(inner.calls) == 2


def test_token_bucket_goes_into_debt_and_saves_one_burst() -> None:
    clock = FakeClock()
    bucket = TokenBucket(10, burst=10, now=clock.monotonic())
    assert [bucket.acquire(tokens, clock.monotonic()) for tokens in (5, 5, 5, 20)] == [0.0, 0.0, 0.5, 2.5]
    clock.advance(2.5)
    assert bucket.acquire(1, clock.monotonic()) == pytest.approx(0.1)
    clock.advance(1000)
    assert [bucket.acquire(tokens, clock.monotonic()) for tokens in (10, 1)] == [0.0, pytest.approx(0.1)]
    for rate in (0, -1, float("nan")):
        with pytest.raises(ConfigError):
            TokenBucket(rate, burst=1, now=0.0)


async def test_limits_of_requests_and_of_bytes_both_ways() -> None:
    clock = FakeClock()
    store = LayeredStore(MemoryStore(), Limits(requests_per_second=2, clock=clock))
    for _ in range(6):
        store.execute(Get("k"))
    assert clock.monotonic() == pytest.approx(2.0)
    clock = FakeClock()
    threaded = ThreadedAioStore(MemoryStore())
    limited = AioLayeredStore(threaded, Limits(bytes_per_second=1000, clock=clock), clock.aio_sleep)
    await limited.execute(Put("k", bytes(3000), ABSENT))
    assert clock.monotonic() == pytest.approx(2.0)  # one burst of a second was saved up
    await limited.execute(Get("k"))
    await limited.execute(Head("k"))
    assert clock.monotonic() == pytest.approx(5.0)  # what was read is paid by the next
    await limited.close()


class Slow(MemoryStore):
    """Each request takes a quarter of a second of the test's clock."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock

    def execute(self, request: StoreRequest) -> Outcome:
        self.clock.advance(0.25)
        return super().execute(request)


async def test_metrics_count_attempts_bytes_and_seconds() -> None:
    clock, metrics = FakeClock(), StoreMetrics()
    faults = [Fault(ERROR, "head", times=2)]
    metered = LayeredStore(FaultStore(Slow(clock), faults), Meter("memory://", metrics, clock=clock))
    store = LayeredStore(metered, Retries(clock=clock, ids=SeededIds()))
    store.execute(Put("k", b"12345", ABSENT))
    store.execute(Put("k", b"12345", ABSENT))
    store.execute(Get("k", 1, 3))
    store.execute(Get("other"))
    store.execute(Head("k"))
    aio_store = AioLayeredStore(ThreadedAioStore(Slow(clock)), Meter("memory://", metrics, clock=clock))
    await aio_store.execute(Get("k"))
    figures = {(f.op, f.status): f for f in metrics.snapshot()}
    assert {name: (f.requests, f.sent_bytes, f.received_bytes) for name, f in figures.items()} == {
        ("get", "missing"): (2, 0, 0),
        ("get", "ok"): (1, 0, 2),
        ("head", "ok"): (1, 0, 0),
        ("head", "remote_unavailable"): (2, 0, 0),
        ("put", "landed"): (1, 5, 0),
        ("put", "lost"): (1, 5, 0),
    }
    assert figures["get", "missing"].seconds == pytest.approx(0.5)
    assert figures["get", "ok"].buckets[SECONDS_BOUNDS.index(0.25)] == 1
    assert (metrics.requests(), metrics.requests("head")) == (8, 3)
    await aio_store.close()


async def test_threaded_store_is_bounded_and_closes() -> None:
    gate = threading.Event()
    entered = threading.Semaphore(0)

    class Waiting(MemoryStore):
        def execute(self, request: StoreRequest) -> Outcome:
            entered.release()
            gate.wait()
            return super().execute(request)

    store = ThreadedAioStore(Waiting(), threads=2)
    tasks = [asyncio.create_task(store.execute(Get("k"))) for _ in range(4)]
    await asyncio.to_thread(entered.acquire)
    await asyncio.to_thread(entered.acquire)
    assert not entered.acquire(blocking=False)
    gate.set()
    assert await asyncio.gather(*tasks) == [Missing()] * 4
    await store.close()
    with pytest.raises(ClosedError):
        await store.execute(Get("k"))


def test_the_fault_store_counts_and_fires_as_told() -> None:
    store = FaultStore(MemoryStore(), [Fault(FaultKind.UNKNOWN_AFTER, "Put", "a/*", nth=2)])
    statuses = []
    for key in ("a/1", "b/1", "a/2", "a/3"):
        outcome = store.execute(Put(key, b"", ABSENT))
        assert isinstance(outcome, PutResult)
        statuses.append(outcome.status.value)
    assert statuses == ["landed", "landed", "unknown", "landed"]
    assert store.execute(Head("a/2")) != Missing()
    assert store.fired == [(FaultKind.UNKNOWN_AFTER, "put", "a/2")]
    store.add(Fault(FaultKind.DELAYED))
    store.execute(Put("late", b"", ABSENT))
    assert store.execute(Head("late")) == Missing()
    assert store.apply_delayed() == 1
    assert store.execute(Head("late")) != Missing()
    store.clear()
    outcome = store.execute(Put("late", b"", ABSENT))
    assert isinstance(outcome, PutResult)
    assert outcome.status is PutStatus.LOST
