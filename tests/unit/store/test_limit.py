"""Rates, turns and budgets of a store; rates on a clock that only the test moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from tiered.model import BytesSource
from tiered.store import limit
from tiered.store.base import (
    ABSENT,
    Get,
    Missing,
    Outcome,
    Put,
    StoreRequest,
    UploadPart,
)
from tiered.store.driver import BACKGROUND_THREADS
from tiered.store.layers import AioLayeredStore, LayeredStore
from tiered.store.limit import SMALL_BYTES, SMALL_WAIT_SECONDS, Limits, Slots
from tiered.store.location import ThreadedAioStore
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock


async def test_both_kinds_of_store_share_what_the_limits_allow() -> None:
    clock = FakeClock()
    limits = Limits(requests_per_second=2, clock=clock)
    uploads = AioLayeredStore(ThreadedAioStore(MemoryStore()), limits, clock.aio_sleep)
    maintenance = LayeredStore(MemoryStore(), limits)
    for _ in range(3):
        await uploads.execute(Get("k"))
        assert maintenance.execute(Get("k")) == Missing()
    assert clock.monotonic() == pytest.approx(2.0)
    limits.reconfigure(requests_per_second=20, bytes_per_second=None)
    for _ in range(40):
        maintenance.execute(Get("k"))
    assert clock.monotonic() == pytest.approx(2.0 + 2.0)
    limits.reconfigure(requests_per_second=None, bytes_per_second=10)
    maintenance.execute(Put("k", bytes(20), ABSENT))
    assert clock.monotonic() == pytest.approx(5.0)
    await uploads.close()


def test_a_commit_does_not_wait_for_all_that_the_uploads_beside_it_owe() -> None:
    """Four bodies of 64 MiB at 1 MiB a second: the fourth waits minutes, what is small a moment."""
    limits = Limits(bytes_per_second=1 << 20, clock=FakeClock())
    waits = [limits.before(UploadPart("k", "id", 1, BytesSource(b""), 0, 64 << 20)) for _ in range(4)]
    assert waits == [63.0, 127.0, 191.0, 255.0]
    small: list[StoreRequest] = [Get("root"), Put("root", bytes(2000), ABSENT), Get("k", 0, SMALL_BYTES)]
    assert [limits.before(request) for request in small] == [SMALL_WAIT_SECONDS] * 3
    assert limits.before(Get("k", 0, SMALL_BYTES + 1)) > 255
    assert limits.before(Put("k", bytes(SMALL_BYTES + 1), ABSENT)) > 256


def asked(slots: Slots, wanted: int = 1) -> Future[None]:
    turn: Future[None] = Future()
    slots.ask(turn, wanted)
    return turn


async def test_turns_come_in_the_order_of_asking_to_threads_and_tasks_alike() -> None:
    slots, order, gate = Slots(1), list[str](), threading.Event()
    held = asked(slots)
    assert held.done()

    def thread() -> None:
        with slots.turn():
            order.append("thread")
            assert gate.wait(30)

    async def task(name: str) -> None:
        async with slots.aio_turn():
            order.append(name)

    first = asyncio.create_task(task("first"))
    await asyncio.sleep(0)
    worker = threading.Thread(target=thread)
    worker.start()
    while slots.waiting < 2:
        await asyncio.sleep(0)
    given_up, last = asyncio.create_task(task("given up")), asyncio.create_task(task("last"))
    await asyncio.sleep(0)
    given_up.cancel()
    slots.leave(held)
    await first
    gate.set()
    await last
    worker.join()
    assert order == ["first", "thread", "last"]
    assert given_up.cancelled()
    assert asked(slots).done()  # none was lost on the way
    assert not asked(slots).done()


async def test_a_turn_that_came_to_a_task_that_is_cancelled_is_given_on() -> None:
    slots = Slots(1)
    held = asked(slots)

    async def wait() -> None:
        async with slots.aio_turn():
            raise AssertionError("it was cancelled")

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    slots.leave(held)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert asked(slots).done()


class Interrupted(Future[None]):
    """Ctrl-C in the middle of the wait: the turn comes before the thread leaves, or it does not."""

    comes_first: Callable[[], None] | None = None

    def result(self, timeout: float | None = None) -> None:
        if self.comes_first is not None:
            self.comes_first()
        raise KeyboardInterrupt


@pytest.mark.parametrize("comes_first", [False, True])
def test_an_interrupt_while_a_thread_waits_gives_its_turn_back(
    monkeypatch: pytest.MonkeyPatch, comes_first: bool
) -> None:
    slots = Slots(2)
    held = [asked(slots), asked(slots)]
    monkeypatch.setattr(limit, "Future", Interrupted)
    monkeypatch.setattr(Interrupted, "comes_first", lambda _: slots.leave(held.pop()) if comes_first else None)
    for _ in range(2):  # as often as there are slots: none would be left
        with pytest.raises(KeyboardInterrupt), slots.turn():
            raise AssertionError("it was interrupted")
    monkeypatch.undo()
    assert (slots.taken, slots.waiting) == (len(held), 0)
    for each in held:
        slots.leave(each)
    with slots.turn(2):
        assert slots.taken == 2


def test_an_interrupt_of_who_gives_a_turn_on_loses_no_turn() -> None:
    """The interrupt lands after the next in line was given its turn, before it hears of it."""
    slots = Slots(1)

    class Deaf(Future[None]):
        deaf = True

        def set_result(self, result: None) -> None:
            if self.deaf:
                self.deaf = False
                raise KeyboardInterrupt
            super().set_result(result)

    held = asked(slots)
    waiting = Deaf()
    slots.ask(waiting)
    with pytest.raises(KeyboardInterrupt):
        slots.leave(held)
    assert not waiting.done()
    last = asked(slots)
    assert (waiting.done(), last.done()) == (True, False)
    slots.leave(waiting)
    assert last.done()


class Counting(MemoryStore):
    """How many streamed bodies are under way at most."""

    def __init__(self, together: int) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._all_there = threading.Barrier(together)
        self.now = self.most = 0

    def execute(self, request: StoreRequest) -> Outcome:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self._all_there.wait(30)
        with self._lock:
            self.now -= 1
        return super().execute(request)


async def test_no_more_bodies_are_streamed_at_once_than_there_are_slots() -> None:
    inner = Counting(together=3)
    limited = AioLayeredStore(ThreadedAioStore(inner, threads=BACKGROUND_THREADS), Limits(bodies=3))
    await asyncio.gather(*(limited.execute(Put(f"k{n}", BytesSource(b"v"), ABSENT)) for n in range(9)))
    assert inner.most == 3
    await limited.close()


class GivenUp(BaseException):
    """Whoever waited does so no more."""


@pytest.mark.parametrize("face", ["threads", "asyncio"])
async def test_a_wait_that_is_given_up_gives_back_what_it_took(face: str) -> None:
    """Ten uploads that ran out of time before they sent a byte leave the eleventh the rate that was free before."""
    clock = FakeClock()
    limits = Limits(requests_per_second=2, bytes_per_second=1000, clock=clock)
    body = Put("a3/k", bytes(1000), ABSENT)
    waits = [limits.before(body) for _ in range(3)]
    assert waits == [0.0, 1.0, 2.0]

    class Impatient(FakeClock):
        def sleep(self, seconds: float) -> None:
            assert seconds == 3.0
            raise GivenUp

    impatient = Impatient()
    limits.clock = impatient  # only who waits sees it
    aio = AioLayeredStore(ThreadedAioStore(MemoryStore()), limits, impatient.aio_sleep)
    for _ in range(10):
        with pytest.raises(GivenUp):
            LayeredStore(MemoryStore(), limits).execute(body) if face == "threads" else await aio.execute(body)
    limits.clock = clock
    assert limits.before(body) == 3.0
    for _ in range(4):
        limits.withdraw(body)
    await aio.close()


async def test_a_budget_is_never_exceeded_and_nobody_waits_for_ever() -> None:
    """Bytes for threads and tasks alike, in the order of asking; what is larger than all of it comes alone."""
    budget, held, most, lock = Slots(100), [0], [0], threading.Lock()

    def enter(wanted: int) -> None:
        with lock:
            held[0] += wanted
            most[0] = max(most[0], held[0])
            assert held[0] <= 100 or held[0] == wanted

    def leave(wanted: int) -> None:
        with lock:
            held[0] -= wanted

    def thread(wanted: int) -> None:
        with budget.turn(wanted):
            enter(wanted)
            leave(wanted)

    async def task(wanted: int) -> None:
        async with budget.aio_turn(wanted):
            enter(wanted)
            await asyncio.sleep(0)
            leave(wanted)

    sizes = [1, 60, 40, 500, 30, 70, 100, 99, 0]
    threads = [threading.Thread(target=thread, args=(wanted,)) for wanted in sizes * 5]
    for each in threads:
        each.start()
    await asyncio.gather(*(task(wanted) for wanted in sizes * 5))
    for each in threads:
        await asyncio.to_thread(each.join)
    assert (budget.taken, budget.waiting, most[0]) == (0, 0, 500)


async def test_who_gives_up_a_large_wish_lets_the_small_ones_behind_pass() -> None:
    budget = Slots(10)
    first = asked(budget, 6)
    assert first.done()
    large = asyncio.create_task(_enter(budget, 8))
    await asyncio.sleep(0)
    small = asked(budget, 4)
    assert not small.done()
    assert budget.waiting == 2
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)
    assert small.done()
    assert (budget.taken, budget.waiting) == (10, 0)
    waits = asked(budget, 20)  # more than all: once all is back
    assert not waits.done()
    budget.reconfigure(29)
    assert not waits.done()
    budget.leave(first)
    budget.leave(small)
    assert waits.done()
    assert budget.taken == 20


async def _enter(budget: Slots, wanted: int) -> None:
    async with budget.aio_turn(wanted):
        raise AssertionError("it was cancelled")
