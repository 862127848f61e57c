"""Reading ahead: in order, bounded, and not beyond what the consumer takes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tiered.errors import RemoteUnavailableError
from tiered.remote.prefetch import fetch_ahead


@dataclass(frozen=True)
class Request:
    number: int
    size_bytes: int = 10


class Source:
    """Requests, with how many of them were taken."""

    def __init__(self, count: int, size_bytes: int = 10) -> None:
        self.taken = 0
        self._requests = [Request(number, size_bytes) for number in range(count)]

    def __iter__(self) -> Iterator[Request]:
        for request in self._requests:
            self.taken += 1
            yield request


def number(request: Request) -> int:
    return request.number


def test_everything_in_order() -> None:
    assert [value for _, value in fetch_ahead(iter(Source(50)), number)] == list(range(50))
    assert list(fetch_ahead(iter(Source(0)), number)) == []


def test_the_first_read_is_on_the_callers_thread_and_alone() -> None:
    source = Source(10)
    threads: list[int] = []

    def fetch(request: Request) -> int:
        threads.append(threading.get_ident())
        return request.number

    with contextlib.closing(fetch_ahead(iter(source), fetch)) as stream:
        assert next(stream)[1] == 0
        assert (source.taken, threads) == (1, [threading.get_ident()])


def test_bytes_and_requests_ahead_are_bounded() -> None:
    by_bytes = Source(20)
    with contextlib.closing(fetch_ahead(iter(by_bytes), number, max_bytes=35, max_requests=100)) as stream:
        for at in range(5):
            assert next(stream)[1] == at
            # The one in hand, at most three ahead, and the next one, which is known but not asked for.
            assert by_bytes.taken <= at + 1 + 4
    by_count = Source(20)
    with contextlib.closing(fetch_ahead(iter(by_count), number, max_bytes=10**9, max_requests=2)) as stream:
        for at in range(5):
            assert next(stream)[1] == at
            assert by_count.taken <= at + 1 + 3


def test_one_request_larger_than_the_bound_still_goes() -> None:
    assert [value for _, value in fetch_ahead(iter(Source(4, 1000)), number, max_bytes=1)] == [0, 1, 2, 3]


def test_an_error_comes_at_its_turn() -> None:
    def fetch(request: Request) -> int:
        if request.number == 3:
            raise RemoteUnavailableError("no route")
        return request.number

    stream = fetch_ahead(iter(Source(10)), fetch)
    assert [next(stream)[1] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RemoteUnavailableError):
        next(stream)
