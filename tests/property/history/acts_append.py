"""What producers, coordinators and leaders do."""

from __future__ import annotations

from tests.property.history.checks import same
from tests.property.history.world import HOUR_MS, Subject, World, outcome
from tiered.model import NewRecord

KEYS = b"abcdefgh"


def records(world: World, subject: Subject, count: int, *, timeless: bool = True) -> list[NewRecord]:
    """Keys from a few, values of any length, times about now; now and then one that a rule refuses."""
    dice, now = world.dice, world.clock.now_ms()
    made = []
    base = now + dice.choice([0, 0, 0, -HOUR_MS, dice.randint(-10_000, 10_000)])
    for _ in range(count):
        key = bytes([dice.choice(KEYS)])
        if not subject.config.compacted or dice.random() < 0.01:
            key = dice.choice([key, None])
        value = None if dice.random() < 0.2 else dice.randbytes(dice.choice([0, 1, 10, 40, 90]))
        time = dice.choice([base, base, base + dice.randint(-5000, 5000), now])
        if timeless and dice.random() < 0.3:
            time = -1
        if dice.random() < 0.01:
            time = now + 2 * HOUR_MS
        headers = [("h", dice.choice([None, b"", b"1"]))] if dice.random() < 0.2 else None
        made.append(NewRecord(value, key, time, headers))
    return made


def append(world: World, subject: Subject) -> None:
    """One batch of records."""
    made = records(world, subject, world.dice.choice([1, 1, 2, 3, 8]))
    now, model = world.clock.now_ms(), subject.model
    expected = outcome(lambda: model.append(made, now))
    found = outcome(lambda: world.partition(subject).append(made).offset)
    world.say(f"append {subject.name} {len(made)} records: {found}")
    same(found, expected, f"append to {subject.name}")
