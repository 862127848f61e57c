"""Throws the dice: one act after the other, checked after each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.property.history import (
    acts_append,
    acts_change,
    acts_clean,
    acts_life,
    acts_producer,
    acts_read,
    acts_settings,
    acts_transact,
)
from tests.property.history.checks import check, check_ends
from tests.property.history.watch import Watch
from tests.property.history.world import TOPICS, Subject, World

CHECK_EVERY = 7
"""So often the whole content of a partition is read; its ends are looked at after each step."""

LOCAL: list[tuple[int, Callable[[World, Subject], None]]] = [
    (120, acts_append.append),
    (40, acts_append.append_batches),
    (4, acts_append.append_too_much),
    (90, acts_producer.producer_append),
    (45, acts_producer.end_transaction),
    (15, acts_transact.transact),
    (15, acts_change.flush),
    (25, acts_change.roll),
    (12, acts_change.new_leader_epoch),
    (10, acts_change.delete_records),
    (8, acts_change.delete_local),
    (15, acts_change.retain),
    (12, acts_change.truncate),
    (40, acts_change.upload),
    (25, acts_clean.roll_and_clean),
    (10, acts_clean.clean),
    (40, acts_read.read),
    (10, acts_read.read_committed),
    (20, acts_read.find_time),
    (8, acts_settings.alter),
    (4, acts_settings.alter_policy),
    (10, acts_settings.append_from_threads),
    (5, acts_life.move),
    (2, acts_life.recreate),
]
GLOBAL: list[tuple[int, Callable[[World], None]]] = [
    (40, acts_change.tick),
    (5, acts_read.look_from_outside),
    (5, acts_life.close),
    (5, acts_life.kill),
    (5, acts_life.cut_power),
]


class Story:
    """A world and the weights of what may happen in it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.world = World(directory, seed)
        Watch(self.world)
        for topic in TOPICS:
            self.world.create(topic)

    def run(self, steps: int) -> None:
        """``steps`` acts. An error of any kind is raised with the seed, the step and what came before it."""
        acts = [*LOCAL, *GLOBAL]
        weights = [weight for weight, _ in acts]
        world = self.world
        try:
            for _ in range(steps):
                world.steps += 1
                (at,) = world.dice.choices(range(len(acts)), weights)
                self._act(at)
            for subject in world.subjects.values():
                check(world, subject)
            world.logs.close()
        except Exception as error:
            lines = "\n".join(world.trace)
            told = f"TIERED_HISTORY_SEED={world.seed} repeats it; step {world.steps}\n{lines}"
            raise AssertionError(f"{type(error).__name__}: {error}\n{told}") from error

    def _act(self, at: int) -> None:
        world = self.world
        if at >= len(LOCAL):
            GLOBAL[at - len(LOCAL)][1](world)
            for subject in world.subjects.values():
                check_ends(world, subject)
            return
        subject = world.dice.choice(list(world.subjects.values()))
        LOCAL[at][1](world, subject)
        subject = world.subjects[subject.tp.topic]  # it may be another one of that name
        acts_transact.tidy(world, subject)
        if world.steps % CHECK_EVERY:
            check_ends(world, subject)
        else:
            check(world, subject)
