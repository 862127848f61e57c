"""Several steps at once, by one driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from tiered.errors import TieredError
from tiered.store.base import Backoff, Steps, StoreRequest, Together

T = TypeVar("T")

AT_ONCE = 16
"""Steps of a long list that run at the same time."""


def in_turns(several: Sequence[Steps[T]]) -> Steps[list[T | TieredError]]:
    """Run any number of steps as :func:`side_by_side`, ``AT_ONCE`` of them at a time."""
    ends: list[T | TieredError] = []
    for first in range(0, len(several), AT_ONCE):
        ends += yield from side_by_side(several[first : first + AT_ONCE])
    return ends


def side_by_side(several: Sequence[Steps[T]]) -> Steps[list[T | TieredError]]:
    """Run several steps at once. Return the result of each, or the error that it raised, in their order.

    Requests that they wait for at the same time go out ``Together``. When no request is left, the longest of their
    waits is taken once for all of them. The caller bounds their number.
    """
    ends: dict[int, T | TieredError] = {}
    asked: dict[int, Any] = {}

    def resume(number: int, outcome: Any) -> None:
        steps = several[number]
        asked.pop(number, None)
        try:
            asked[number] = steps.throw(outcome) if isinstance(outcome, TieredError) else steps.send(outcome)
        except StopIteration as stop:
            ends[number] = stop.value
        except TieredError as error:
            ends[number] = error

    try:
        for number in range(len(several)):
            resume(number, None)
        while asked:
            stored = {number: each for number, each in asked.items() if isinstance(each, StoreRequest)}
            waits = {number: each for number, each in asked.items() if isinstance(each, Backoff)}
            own = [(number, each) for number, each in asked.items() if number not in stored and number not in waits]
            for number, request in own:  # a clock, an id, the disk, requests that are several already
                try:
                    outcome = yield request
                except TieredError as error:
                    outcome = error
                resume(number, outcome)
            if own:
                continue  # until each waits for the store or for time
            if stored:
                answers = yield Together(tuple(stored.values()), errors=True)
                for number, answer in zip(tuple(stored), answers, strict=True):
                    resume(number, answer)
            else:
                yield max(waits.values(), key=lambda wait: wait.attempt)
                for number in tuple(waits):
                    resume(number, None)
        return [ends[number] for number in range(len(several))]
    finally:
        for steps in several:
            steps.close()


def results_of(ends: Sequence[T | TieredError]) -> list[T]:
    """Return the results. Raise the first error."""
    for end in ends:
        if isinstance(end, TieredError):
            raise end
    return [end for end in ends if not isinstance(end, TieredError)]
