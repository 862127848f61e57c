"""Throws the dice: one act after the other, checked after each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.property.history import acts_append, acts_change, acts_life
from tests.property.history.checks import check, check_ends
from tests.property.history.world import TOPICS, Subject, World

CHECK_EVERY = 7
"""So often the whole content of a partition is read; its ends are looked at after each step."""

LOCAL: list[tuple[int, Callable[[World, Subject], None]]] = [
    (40, acts_append.append),
    (5, acts_change.flush),
    (5, acts_change.roll),
]
GLOBAL: list[tuple[int, Callable[[World], None]]] = [
    (1, acts_life.close),
    (1, acts_life.kill),
    (1, acts_life.cut_power),
]


class Story:
    """A world and the weights of what may happen in it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.world = World(directory, seed)
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
            told = f"TIERED_HISTORY_SEED={world.seed} step {world.steps}\n{lines}"
            raise AssertionError(f"{type(error).__name__}: {error}\n{told}") from error

    def _act(self, at: int) -> None:
        world = self.world
        if at >= len(LOCAL):
            GLOBAL[at - len(LOCAL)][1](world)
            return
        subject = world.dice.choice(list(world.subjects.values()))
        LOCAL[at][1](world, subject)
        if subject.tp.topic not in world.subjects:
            return
        if world.steps % CHECK_EVERY:
            check_ends(world, subject)
        else:
            check(world, subject)
