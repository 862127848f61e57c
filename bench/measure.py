"""How a figure is taken: variants interleaved in rounds after a warm-up, collector off, minimum process CPU time."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table. ``ratio`` is peer's seconds over ours: above 1 means that ours is faster.

    ``spread``: the least and the largest ratio of a round, ``median`` the one in the middle; of the least times is
    ``ratio``.
    """

    what: str
    unit: str
    ours: float
    peer: str
    theirs: float | None
    ratio: float | None
    median: float | None = None
    spread: tuple[float, float] | None = None

    def as_json(self) -> dict[str, Any]:
        """For the committed file."""
        return asdict(self)


def seconds(function: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """CPU seconds (user and system, all threads of this process) of one call, or those of another clock."""
    gc.collect()
    gc.disable()
    try:
        started = clock()
        function()
        return clock() - started
    finally:
        gc.enable()


def compare(
    what: str,
    ours: Callable[[], object],
    *,
    units: float,
    unit: str,
    peer: str = "",
    theirs: Callable[[], object] | None = None,
    rounds: int,
    clock: Callable[[], float] = time.process_time,
    prepare: Callable[[], object] = lambda: None,
    prepare_peer: Callable[[], object] = lambda: None,
) -> Figure:
    """Runs both in turn ``rounds`` times; figures are ``units`` by the least time of a call, CPU time as a rule.

    ``prepare`` is called before each call of ours, ``prepare_peer`` before each of the peer's; both are in no figure.
    """
    best_ours = best_theirs = float("inf")
    ratios: list[float] = []
    prepare()
    ours()
    if theirs is not None:
        prepare_peer()
        theirs()
    for _ in range(rounds):
        prepare()
        our_seconds = seconds(ours, clock)
        best_ours = min(best_ours, our_seconds)
        if theirs is not None:
            prepare_peer()
            their_seconds = seconds(theirs, clock)
            best_theirs = min(best_theirs, their_seconds)
            ratios.append(their_seconds / our_seconds)
    return Figure(
        what=what,
        unit=unit,
        ours=units / best_ours,
        peer=peer,
        theirs=units / best_theirs if theirs is not None else None,
        ratio=best_theirs / best_ours if theirs is not None else None,
        median=statistics.median(ratios) if ratios else None,
        spread=(min(ratios), max(ratios)) if ratios else None,
    )
