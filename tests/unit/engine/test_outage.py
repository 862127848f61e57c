"""An outage of hours costs lag: nothing grows with what waits, and the end of it drains in order."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.engine.desk import DOWN, Desk
from tests.unit.engine.world import World
from tiered.engine.partition import EngineLimits
from tiered.plan.pacing import BACKOFF_MAX_SECONDS

PARTITIONS, SEGMENTS = 20, 250
HOURS = 3
HOUR_MS = 3_600_000
CAP_MS = int(BACKOFF_MAX_SECONDS * 1000)


def sizes(world: Desk) -> dict[str, int]:
    """Return the sizes of all that the engine keeps beside the rows."""
    engine, loop = world.engine, world.loop
    return {
        "calls": len(world.open),
        "tasks": len(asyncio.all_tasks(loop)),
        "timers": len(loop._scheduled),  # type: ignore[attr-defined]  # the loop's own list
        "queue": len(engine.queue._heap),
        "leaving": len(engine._leaving),
    }


@pytest.mark.parametrize("seed", range(2))
def test_thousands_of_segments_wait_for_hours_at_the_cost_of_their_names(seed: int) -> None:
    world = World(seed, partitions=PARTITIONS, limits=EngineLimits(uploads=4))
    world.fault_rate = 0.0
    world.scan()
    while world.open:  # all are claimed
        world.carry_out(world.open[0])
    for at in world.disk:
        world.append(at, SEGMENTS)
    world.scan()
    begin, bound, attempts, failed = world.now_ms, dict[str, int](), list[int](), 0
    for hour in range(HOURS):
        before = failed
        while world.now_ms < begin + (hour + 1) * HOUR_MS:
            for call in list(world.open):
                world.answer(call, DOWN)
                failed += 1
            world.turn(2_000)
            bound = {name: max(size, bound.get(name, 0)) for name, size in sizes(world).items()}
        attempts.append(failed - before)
    assert bound["calls"] <= world.engine.limits.uploads
    assert bound["tasks"] <= PARTITIONS + 10
    assert bound["timers"] <= 3 * PARTITIONS + 100  # the loop drops cancelled ones when they are many
    assert bound["queue"] <= 2 * PARTITIONS + 64
    most = PARTITIONS * HOUR_MS // (CAP_MS // 3)  # a wait is half of its bound on average
    assert 0 < max(attempts) < most
    assert max(attempts) < 1.2 * min(attempts)  # no faster and no slower as it goes on
    world.settle(rounds=20_000)
    for at, truth in world.truths.items():
        assert truth.next_offset == world.disk[at][-1].end, f"seed {seed}: {at}"
    assert world.engine._workers == {}


def test_whoever_asks_again_and_again_during_an_outage_fills_nothing() -> None:
    """An application's sync pokes, and each scan_now is an attempt."""
    desk = Desk().claimed()
    desk.seal(0)
    most = 0
    for _ in range(1_000):
        for upload in desk.uploads:
            desk.answer(upload, DOWN)
        desk.do(desk.engine.scan_now, later_ms=500)
        most = max(most, sizes(desk)["timers"])
    assert most <= 150
