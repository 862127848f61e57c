"""What the owner of a log and its timers do."""

from __future__ import annotations

from tests.property.history.checks import same
from tests.property.history.world import Subject, World


def flush(world: World, subject: Subject) -> None:
    """All of it is promised."""
    world.say(f"flush {subject.name}")
    world.partition(subject).flush()
    subject.model.flush()


def roll(world: World, subject: Subject) -> None:
    """The active segment is sealed, if it holds anything."""
    writer = world.writer(subject)
    holds = writer._active.size_bytes > 0
    found = world.partition(subject).roll()
    world.say(f"roll {subject.name}: {found}")
    same(found, holds, f"roll of {subject.name}")
