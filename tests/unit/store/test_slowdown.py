"""What a store refuses as too much slows down its prefix, and only that; rates on a clock that only the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from tiered.errors import RemoteUnavailableError
from tiered.model import BytesSource
from tiered.store import limit
from tiered.store.base import (
    ABSENT,
    Delete,
    Get,
    Head,
    List,
    Missing,
    Outcome,
    Put,
    PutResult,
    PutStatus,
    StoreRequest,
    UploadPart,
)
from tiered.store.driver import BACKGROUND_THREADS
from tiered.store.layers import AioLayeredStore, LayeredStore
from tiered.store.limit import SMALL_BYTES, SMALL_WAIT_SECONDS, Limits, Slots
from tiered.store.location import ThreadedAioStore
from tiered.store.memory import MemoryStore
from tiered.store.slowdown import FREE_FACTOR, MIN_PER_SECOND, Paces, Slowed, prefix_of
from tiered.testing.clock import FakeClock

OURS = Get("a3/t/root")


class Throttling(MemoryStore):
    """Takes ``most`` requests a second below each prefix, and refuses what is more as S3 does."""

    def __init__(self, clock: FakeClock, most: int) -> None:
        super().__init__()
        self._clock, self._most = clock, most
        self.took: dict[tuple[str, int], int] = {}
        self.refused = 0

    def execute(self, request: StoreRequest) -> Outcome:
        turn = (prefix_of(request), int(self._clock.monotonic()))
        if self.took.get(turn, 0) >= self._most:
            self.refused += 1
            if isinstance(request, Put):
                return PutResult(PutStatus.UNKNOWN, cause="503 SlowDown", slow_down=True)
            raise RemoteUnavailableError("503 SlowDown", slow_down=True)
        self.took[turn] = self.took.get(turn, 0) + 1
        return super().execute(request)


def ask(store: LayeredStore, clock: FakeClock, seconds: float) -> None:
    """A hundred times a second, or as often as the store's limits allow."""
    until = clock.monotonic() + seconds
    while clock.monotonic() < until:
        with contextlib.suppress(RemoteUnavailableError):
            store.execute(OURS)
        clock.advance(0.01)


def test_a_refusal_halves_the_rate_and_a_burst_of_them_counts_once() -> None:
    paces = Paces()
    for number in range(100):
        assert paces.ask(OURS, number / 100) == 0.0
    first = paces.slow_down(OURS, 1.0)
    assert first == Slowed("a3", 50.0, 1.0, 1)
    assert paces.slow_down(OURS, 1.5) is None
    second = paces.slow_down(OURS, 2.0)
    assert second is not None
    assert (second.per_second, second.since, second.refusals) == ((50.0 + 5.0) / 2, 1.0, 2)
    assert paces.slow_downs == 3


def test_the_rate_rises_while_nothing_is_refused_until_there_is_no_limit() -> None:
    paces = Paces()
    for number in range(100):
        paces.ask(OURS, number / 100)
    paces.slow_down(OURS, 1.0)
    assert [paces.slowed(1.0 + seconds)[0].per_second for seconds in (0, 1, 10)] == [50.0, 55.0, 100.0]
    free_at = 1.0 + (FREE_FACTOR * 100 - 50) / 5
    assert paces.slowed(free_at - 0.1) != []
    assert paces.slowed(free_at) == []
    assert paces.ask(OURS, free_at) == 0.0


def test_requests_are_spread_over_the_second() -> None:
    paces = Paces()
    for number in range(20):
        paces.ask(OURS, number / 20)
    paces.slow_down(OURS, 1.0)  # ten a second from now on
    assert [paces.ask(OURS, 1.0) for _ in range(4)] == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_a_prefix_is_never_asked_so_seldom_that_nobody_notices_that_it_is_back() -> None:
    paces = Paces()
    paces.ask(OURS, 0.0)
    for second in range(1, 50):
        paces.slow_down(OURS, float(second))
    (slowed,) = paces.slowed(49.0)
    assert slowed.per_second == MIN_PER_SECOND


def test_another_prefix_is_not_slowed() -> None:
    paces = Paces()
    paces.ask(OURS, 0.0)
    paces.slow_down(OURS, 0.0)
    assert [paces.ask(OURS, 0.0) for _ in range(3)] == [0.0, 0.5, 1.0]
    assert [paces.ask(Get("b7/u/root"), 0.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert [each.prefix for each in paces.slowed(0.0)] == ["a3"]
    requests: list[StoreRequest] = [Delete(("a3/x", "b7/y")), List("topics/"), Head("probe/1"), Delete(())]
    assert [prefix_of(request) for request in requests] == ["a3", "topics", "probe", ""]


def test_whoever_asks_too_often_settles_near_what_the_store_takes() -> None:
    """A hundred a second are wanted, twenty are taken: few are refused, and nearly all of the twenty are used."""
    clock = FakeClock()
    store = Throttling(clock, 20)
    limits = Limits(clock=clock)
    ask(LayeredStore(store, limits), clock, 20)  # it learns
    store.took.clear()
    store.refused = 0
    ask(LayeredStore(store, limits), clock, 60)
    taken = sum(store.took.values())
    assert 0.6 * 20 * 60 < taken <= 20 * 61
    assert store.refused < taken / 20


def test_a_write_that_is_refused_slows_down_too_and_the_first_is_told() -> None:
    clock, told = FakeClock(), list[Slowed]()
    limits = Limits(clock=clock)
    limits.report_slowed(told.append)
    store = LayeredStore(Throttling(clock, 0), limits)
    answer = store.execute(Put("a3/k", b"v", ABSENT))
    assert isinstance(answer, PutResult)
    assert [(each.prefix, each.refusals) for each in told] == [("a3", 1)]
    figures = {(each.name, each.labels): each.value for each in limits.paces.metrics(clock.monotonic())}
    assert figures == {
        ("tiered_store_slow_downs_total", ()): 1,
        ("tiered_store_rate_limit", (("prefix", "a3"),)): MIN_PER_SECOND,
    }


async def test_both_kinds_of_store_share_what_the_limits_allow() -> None:
    clock = FakeClock()
    limits = Limits(requests_per_second=2, clock=clock)
    uploads = AioLayeredStore(ThreadedAioStore(MemoryStore()), limits, clock.aio_sleep)
    maintenance = LayeredStore(MemoryStore(), limits)
    for _ in range(3):
        await uploads.execute(Get("k"))
        assert maintenance.execute(Get("k")) == Missing()
    assert clock.monotonic() == pytest.approx(2.0)
    limits.go_by(requests_per_second=20, bytes_per_second=None)
    for _ in range(40):
        maintenance.execute(Get("k"))
    assert clock.monotonic() == pytest.approx(2.0 + 2.0)
    limits.go_by(requests_per_second=None, bytes_per_second=10)
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
    limits.paces.ask(OURS, 0.0)
    limits.paces.slow_down(OURS, 0.0)  # to MIN_PER_SECOND
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
    assert limits.before(OURS) == 0.0  # the pace of the prefix, too
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
    budget.go_by(29)
    assert not waits.done()
    budget.leave(first)
    budget.leave(small)
    assert waits.done()
    assert budget.taken == 20


async def _enter(budget: Slots, wanted: int) -> None:
    async with budget.aio_turn(wanted):
        raise AssertionError("it was cancelled")
