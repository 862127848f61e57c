"""Both drivers carry out the same steps, and leave nothing behind."""

from __future__ import annotations

import asyncio
import threading
from typing import TypeVar

import pytest

from tiered.errors import NotFoundError, RemoteUnavailableError, TieredError
from tiered.plan.pacing import backoff_bound_seconds, backoff_seconds
from tiered.store.aio_driver import adrive
from tiered.store.base import (
    ABSENT,
    Backoff,
    Blocking,
    Get,
    Missing,
    NewId,
    Now,
    Object,
    Outcome,
    Put,
    PutStatus,
    Steps,
    Store,
    StoreRequest,
    Time,
    Together,
)
from tiered.store.driver import TOGETHER_REQUESTS, drive
from tiered.store.location import ThreadedAioStore
from tiered.store.memory import MemoryStore
from tiered.testing.clock import START_MS, FakeClock, SeededIds
from tiered.testing.faults import Fault, FaultKind, FaultStore

ERROR = FaultKind.ERROR
T = TypeVar("T")


def all_requests(seen: list[object]) -> Steps[str]:
    seen.append((yield NewId()))
    seen.append((yield Now()))
    seen.append((yield Put("k", b"v", ABSENT)).status)
    yield Backoff(3)
    seen.append((yield Now()))
    both = yield Together((Get("k"), Get("absent"), Get("k", 5)))
    seen.append([each.data if isinstance(each, Object) else each for each in both])
    try:
        yield Get("broken")
    except RemoteUnavailableError as error:
        seen.append(error.code)
    return "done"


def expected() -> list[object]:
    ids = SeededIds(7)
    uid, jitter = ids.uid(), ids.random()
    return [
        uid,
        Time(START_MS, 0.0),
        PutStatus.LANDED,
        Time(int(START_MS + jitter * 0.8 * 1000), jitter * 0.8),
        [b"v", Missing(), b""],
        "remote_unavailable",
    ]


FACES = pytest.mark.parametrize("face", ["threads", "asyncio"])


def run(face: str, store: Store, steps: Steps[T], *, together: int = TOGETHER_REQUESTS) -> T:
    """Run the steps by one of the drivers. On asyncio, raise AssertionError for a task that is left."""
    clock, ids = FakeClock(), SeededIds(7)
    if face == "threads":
        return drive(store, steps, clock=clock, ids=ids, together=together)

    async def on_a_loop() -> T:
        aio = ThreadedAioStore(store)
        try:
            return await adrive(aio, steps, clock=clock, ids=ids, sleep=clock.aio_sleep, together=together)
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}
            await aio.close()

    return asyncio.run(on_a_loop())


@FACES
def test_every_request_is_carried_out(face: str) -> None:
    seen: list[object] = []
    assert run(face, FaultStore(MemoryStore(), [Fault(ERROR, key="broken")]), all_requests(seen)) == "done"
    assert seen == expected()


def failing_together(finished: list[str]) -> Steps[None]:
    try:
        yield Together((Get("a"), Get("bad"), Get("worse"), Get("b")))
    finally:
        finished.append("closed")


@FACES
@pytest.mark.parametrize("together", [1, 2, 4])
def test_together_finishes_all_and_raises_the_first(face: str, together: int) -> None:
    faults = [
        Fault(ERROR, key="bad", error=NotFoundError("bad")),
        Fault(ERROR, key="worse", error=RemoteUnavailableError("worse")),
    ]
    store, finished = FaultStore(MemoryStore(), faults), list[str]()
    with pytest.raises(NotFoundError, match="bad"):
        run(face, store, failing_together(finished), together=together)
    assert sorted(key for _, key in store.calls) == ["a", "b", "bad", "worse"]
    assert finished == ["closed"]


def telling_together() -> Steps[list[str]]:
    found = yield Together((Get("a"), Get("bad"), Get("worse"), Get("b")), errors=True)
    return [each.code if isinstance(each, TieredError) else type(each).__name__ for each in found]


@FACES
@pytest.mark.parametrize("together", [1, 4])
def test_together_returns_every_error_to_steps_that_want_them(face: str, together: int) -> None:
    faults = [Fault(ERROR, key="bad", error=NotFoundError("bad")), Fault(ERROR, key="worse")]
    found = run(face, FaultStore(MemoryStore(), faults), telling_together(), together=together)
    assert found == ["Missing", "not_found", "remote_unavailable", "Missing"]


class Peak(MemoryStore):
    """Counts requests that are under way at once; each waits until ``width`` are, or all are told to go."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = threading.Barrier(width)
        self.under_way = self.peak = 0
        self.count_lock = threading.Lock()

    def execute(self, request: StoreRequest) -> Outcome:
        with self.count_lock:
            self.under_way += 1
            self.peak = max(self.peak, self.under_way)
        self.gate.wait()
        outcome = super().execute(request)
        with self.count_lock:
            self.under_way -= 1
        return outcome


def six() -> Steps[int]:
    return len((yield Together(tuple(Get(str(i)) for i in range(6)))))


@FACES
def test_together_is_bounded(face: str) -> None:
    store = Peak(3)
    assert run(face, store, six(), together=3) == 6
    assert store.peak == 3


class Endless:
    """An async store that never answers."""

    url = "endless://"

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.left = 0

    async def execute(self, request: StoreRequest) -> Outcome:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left += 1
        raise AssertionError("it was to wait for ever")

    async def close(self) -> None:
        """Nothing to release."""


@pytest.mark.parametrize("width", [1, 3])
async def test_cancelling_closes_the_steps_and_leaves_no_task(width: int) -> None:
    store, finished = Endless(), list[str]()

    def steps() -> Steps[None]:
        try:
            yield Together(tuple(Get("k") for _ in range(width))) if width > 1 else Get("k")
        finally:
            finished.append("closed")

    task = asyncio.create_task(adrive(store, steps()))
    await store.entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert finished == ["closed"]
    assert store.left == width
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_other_exceptions_close_the_steps_and_pass() -> None:
    class Broken(MemoryStore):
        def execute(self, request: StoreRequest) -> Outcome:
            raise ZeroDivisionError

    finished: list[str] = []

    def steps() -> Steps[None]:
        try:
            yield Get("k")
        except TieredError:
            finished.append("wrongly told")
        finally:
            finished.append("closed")

    with pytest.raises(ZeroDivisionError):
        drive(Broken(), steps())
    assert finished == ["closed"]


def test_backoff_is_full_jitter_within_named_limits() -> None:
    assert [backoff_bound_seconds(n) for n in (1, 2, 3, 9, 10, 5000)] == [0.2, 0.4, 0.8, 51.2, 60.0, 60.0]
    assert (backoff_seconds(3, 0.0), backoff_seconds(3, 0.5)) == (0.0, 0.4)


def keeping(kept: list[tuple[str, str]], word: str) -> Steps[str]:
    def keep() -> None:
        if word == "full":
            raise TieredError("no space")
        kept.append((word, threading.current_thread().name))

    try:
        yield Blocking(keep)
    except TieredError as error:
        return error.message
    return "kept"


def test_what_blocks_is_done_on_the_callers_thread_and_off_the_event_loop() -> None:
    here = threading.current_thread().name
    kept: list[tuple[str, str]] = []
    assert drive(MemoryStore(), keeping(kept, "sync")) == "kept"
    assert drive(MemoryStore(), keeping(kept, "full")) == "no space"
    store = ThreadedAioStore(MemoryStore())
    assert asyncio.run(adrive(store, keeping(kept, "aio"))) == "kept"
    assert asyncio.run(adrive(store, keeping(kept, "full"))) == "no space"
    assert [word for word, _ in kept] == ["sync", "aio"]
    assert [thread == here for _, thread in kept] == [True, False]


def test_a_cancelled_write_has_ended_before_anybody_else_may_write() -> None:
    """Else it could replace what a later claim has kept."""
    begun, go_on, done = threading.Event(), threading.Event(), []

    def write() -> None:
        begun.set()
        go_on.wait()
        done.append("written")

    def steps() -> Steps[None]:
        yield Blocking(write)
        done.append("went on")

    async def run() -> list[str]:
        task = asyncio.create_task(adrive(ThreadedAioStore(MemoryStore()), steps()))
        await asyncio.to_thread(begun.wait)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return list(done)

    assert asyncio.run(run()) == ["written"]
