"""Compaction by hand; timers run it, too."""

from __future__ import annotations

from tests.property.history.checks import same
from tests.property.history.world import Raised, Subject, World, outcome
from tiered.errors import ConfigError


def clean(world: World, subject: Subject) -> None:
    """One round, whatever the ratio."""
    found = outcome(lambda: world.home(subject).cleaner.clean(subject.tp))
    world.say(f"clean {subject.name}: {'nothing' if found is None else type(found).__name__}")
    if not subject.config.compacted or subject.uploaded is not None:
        same(found, Raised(ConfigError), f"cleaning of {subject.name}")
    else:
        assert not isinstance(found, Raised), found


def roll_and_clean(world: World, subject: Subject) -> None:
    """All that is appended becomes cleanable."""
    if subject.config.compacted:
        world.partition(subject).roll()
    clean(world, subject)
