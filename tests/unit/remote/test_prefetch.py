"""Reading ahead: in order, bounded, and not beyond what the consumer takes; on threads and on asyncio."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tiered.errors import RemoteUnavailableError, TieredError
from tiered.model import Row, TopicPartition
from tiered.plan.read import ByteRange, SegmentRange
from tiered.remote.fetch import REQUESTS_AHEAD, ByteCache, Fetch, Prefetch
from tiered.store.aio_driver import adrive_stream
from tiered.store.base import Begin, Emit, Get, Object, Outcome, Steps, StoreRequest, Take
from tiered.store.driver import drive_stream

TP = TopicPartition("t", 0)


@dataclass(eq=False)
class Numbers:
    """A store of one large object, and what was asked of it, by whom."""

    fails_at: int = -1
    asked: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    url: str = "memory://numbers"

    def execute(self, request: StoreRequest) -> Outcome:
        assert isinstance(request, Get)
        assert request.end is not None
        self.asked.append(request.start)
        self.threads.append(threading.get_ident())
        if request.start == self.fails_at:
            raise RemoteUnavailableError("no route")
        return Object(bytes(request.end - request.start), '"e"', 1 << 20)

    def close(self) -> None:
        pass


class AioNumbers:
    """The same for asyncio."""

    def __init__(self) -> None:
        self.inner = Numbers()
        self.url = self.inner.url

    async def execute(self, request: StoreRequest) -> Outcome:
        return self.inner.execute(request)

    async def close(self) -> None:
        pass


class Source:
    """Reads of one segment, with how many of them were taken."""

    def __init__(self, count: int, size_bytes: int = 10) -> None:
        self.taken = 0
        row = Row(0, count, 0, 0, 1 << 20, 0, 0, 0, 0, 1, count, 0, 0)
        segment = SegmentRange(row, 0, count)
        self._left = iter(
            [Fetch(segment, "key", ByteRange(at * size_bytes, (at + 1) * size_bytes)) for at in range(count)]
        )

    def next(self) -> Steps[Fetch | None]:
        yield from ()
        fetch = next(self._left, None)
        self.taken += fetch is not None
        return fetch


def positions(source: Source, **limits: int) -> Steps[None]:
    ahead = Prefetch(source.next, TP, ByteCache(), **limits)
    while (read := (yield from ahead.next())) is not None:
        fetch, data = read
        assert len(data) == fetch.size_bytes
        yield Emit(fetch.range.start)


def stream(source: Source, store: Numbers | None = None, **limits: int) -> contextlib.closing[Iterator[int]]:
    return contextlib.closing(drive_stream(store or Numbers(), positions(source, **limits)))


def test_everything_in_order() -> None:
    with stream(Source(50)) as found:
        assert list(found) == list(range(0, 500, 10))
    with stream(Source(0)) as found:
        assert list(found) == []


async def test_nothing_is_asked_for_before_it_is_wanted_on_asyncio() -> None:
    store, source = AioNumbers(), Source(50)
    reading = adrive_stream(store, positions(source))
    async with contextlib.aclosing(reading):
        assert store.inner.asked == []
        assert await anext(reading) == 0
        assert store.inner.asked == [0]
        assert await anext(reading) == 10
        # The first, the one in hand, those ahead while the consumer is at work, and the next one, which is known.
        assert source.taken == 1 + 1 + REQUESTS_AHEAD + 1


def test_the_first_read_is_on_the_callers_thread_and_alone() -> None:
    source, store = Source(10), Numbers()
    with stream(source, store) as found:
        assert next(found) == 0
        assert (source.taken, store.threads) == (1, [threading.get_ident()])


def test_bytes_and_requests_ahead_are_bounded() -> None:
    by_bytes = Source(20)
    with stream(by_bytes, max_bytes=35, max_requests=100) as found:
        for at in range(5):
            assert next(found) == at * 10
            # The one in hand, at most three ahead, and the next one, which is known but not asked for.
            assert by_bytes.taken <= at + 1 + 4
    by_count = Source(20)
    with stream(by_count, max_bytes=10**9, max_requests=2) as found:
        for at in range(5):
            assert next(found) == at * 10
            assert by_count.taken <= at + 1 + 3


def test_one_request_larger_than_the_bound_still_goes() -> None:
    with stream(Source(4, 1000), max_bytes=1) as found:
        assert list(found) == [0, 1000, 2000, 3000]


def test_an_error_of_the_source_comes_behind_what_was_begun() -> None:
    class Breaks(Source):
        def next(self) -> Steps[Fetch | None]:
            if self.taken == 4:
                raise RemoteUnavailableError("no index")
            return (yield from super().next())

    with stream(Breaks(10)) as found:
        assert [next(found) for _ in range(4)] == [0, 10, 20, 30]
        with pytest.raises(RemoteUnavailableError, match="no index"):
            next(found)


def test_an_error_comes_at_its_turn() -> None:
    with stream(Source(10), Numbers(fails_at=30)) as found:
        assert [next(found) for _ in range(3)] == [0, 10, 20]
        with pytest.raises(RemoteUnavailableError):
            next(found)


class Answer(Object):
    """An answer that a test can watch."""


class Watched(Numbers):
    """Answers, and errors, of which it is known how many are in memory."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.fails = fails
        self.answers: list[weakref.ref[object]] = []

    def execute(self, request: StoreRequest) -> Outcome:
        answer = RemoteUnavailableError("no route") if self.fails else Answer(b"", '"e"', 0)
        self.answers.append(weakref.ref(answer))
        if isinstance(answer, TieredError):
            raise answer
        return answer

    def alive(self) -> int:
        gc.collect()
        return sum(answer() is not None for answer in self.answers)


class AioWatched(AioNumbers):
    def __init__(self, inner: Watched) -> None:
        super().__init__()
        self.inner = inner


def restarts(store: Watched) -> Steps[None]:
    """Begins three requests and takes one of them, again and again; the others are dropped once they are done."""
    for _ in range(20):
        tickets: tuple[object, ...] = ()
        for at in range(3):
            tickets += ((yield Begin(Get("k", at, at + 1))),)
        for ticket in tickets:
            with contextlib.suppress(TieredError):
                yield Take(ticket)
        del tickets, ticket
    yield Emit(store.alive())


@pytest.mark.parametrize("fails", [False, True])
async def test_a_driver_keeps_no_answer_that_was_taken(fails: bool) -> None:
    store = Watched(fails)
    with contextlib.closing(drive_stream(store, restarts(store))) as found:
        assert next(found) <= 1  # what was taken last
        assert len(store.answers) == 60
    store = Watched(fails)
    async with contextlib.aclosing(adrive_stream(AioWatched(store), restarts(store))) as emitted:
        assert await anext(emitted) <= 3  # the loop forgets them in its next round
        assert len(store.answers) == 60
