"""Members of a group one request at a time: no violation over seeds; a seed replays; many members settle soon."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.sim.groups.world import World

pytestmark = pytest.mark.no_cover  # its tracer makes seeds take three times as long

RANDOM_SEED = random.SystemRandom().randrange(2**32)
"""Another one in each run; a failure prints it."""
SEEDS = 60


def run(seed: int) -> World:
    try:
        return World(seed).run()
    except BaseException as error:
        error.add_note(f"replay: make sim SEEDS={seed} WORLD=groups TRACE=1")
        raise


def test_no_seed_violates_an_invariant() -> None:
    totals: Counter[str] = Counter()
    for seed in range(SEEDS):
        totals.update(run(seed).counts)
    least_of = {"handed out": 20_000, "commits": 5_000, "takes": 400, "again": 100, "judged dead": 100, "idle": 3}
    for what, least in least_of.items():
        assert totals[what] >= least, (what, totals)  # a simulation in which nothing happens proves nothing


def test_a_seed_that_nobody_has_run() -> None:
    run(RANDOM_SEED)


def test_a_seed_replays_exactly() -> None:
    worlds = [World(RANDOM_SEED, trace=True).run() for _ in range(2)]
    assert worlds[0].history == worlds[1].history
