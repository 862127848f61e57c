"""Several steps that run at once."""

from __future__ import annotations

import pytest

from tiered.errors import NotFoundError, RemoteUnavailableError, TieredError
from tiered.store.base import ABSENT, Backoff, Get, Missing, NewId, Now, Put, Request, Steps, Together
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.store.steps import results_of, side_by_side
from tiered.testing.clock import FakeClock, SeededIds


def writer(key: str, waits: int = 0) -> Steps[str]:
    yield Now()
    yield Put(key, (yield NewId()).encode(), ABSENT)
    for attempt in range(1, waits + 1):
        yield Backoff(attempt)
    assert not isinstance((yield Get(key)), Missing)
    return key


def failing() -> Steps[str]:
    yield Get("a")
    raise NotFoundError("there is none")


def asked(steps: Steps[object]) -> list[Request]:
    """The requests of steps that run against a store."""
    store, clock, ids = MemoryStore(), FakeClock(), SeededIds(1)
    requests: list[Request] = []
    outcome: object = None
    try:
        while True:
            request = steps.send(outcome)
            requests.append(request)

            def one(request: Request = request) -> Steps[object]:
                return (yield request)

            outcome = drive(store, one(), clock=clock, ids=ids)
    except StopIteration:
        return requests


def test_requests_go_out_together_and_waits_once() -> None:
    requests = asked(side_by_side([writer("a"), writer("b", 2), writer("c", 2)]))
    sent = [[type(each) for each in request.requests] for request in requests if isinstance(request, Together)]
    assert sent == [[Put, Put, Put], [Get], [Get, Get]]
    assert [request.attempt for request in requests if isinstance(request, Backoff)] == [1, 2]


def test_the_error_of_one_leaves_the_others() -> None:
    ends = drive(MemoryStore(), side_by_side([writer("a"), failing(), writer("c")]), clock=FakeClock())
    assert (ends[0], type(ends[1]), ends[2]) == ("a", NotFoundError, "c")
    with pytest.raises(NotFoundError):
        results_of(ends)
    assert results_of(["x", "y"]) == ["x", "y"]


def test_each_gets_the_error_of_its_own_request() -> None:
    class Broken(MemoryStore):
        def execute(self, request: Request) -> object:  # type: ignore[override]
            if isinstance(request, Put) and request.key == "b":
                raise RemoteUnavailableError("503")
            return super().execute(request)  # type: ignore[arg-type]

    ends = drive(Broken(), side_by_side([writer("a"), writer("b")]), clock=FakeClock())
    assert (ends[0], type(ends[1])) == ("a", RemoteUnavailableError)


def test_all_are_closed_with_it() -> None:
    closed: list[str] = []

    def open_steps(name: str) -> Steps[None]:
        try:
            yield Get(name)
        finally:
            closed.append(name)

    steps = side_by_side([open_steps("a"), open_steps("b")])
    next(steps)
    steps.close()
    assert closed == ["a", "b"]
    assert drive(MemoryStore(), side_by_side(list[Steps[TieredError]]())) == []
