"""A maintainer of the bucket: it holds no records, claims its role and trims the beginning of a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.tiers.machine import Process, SimStore
from tests.sim.tiers.truth import TOPIC, TPS
from tiered.errors import TieredError
from tiered.format.keys import Role
from tiered.plan.known import Known
from tiered.remote.catalog import Catalog
from tiered.store.driver import drive
from tiered.store.retry import RetryingStore

if TYPE_CHECKING:
    from tests.sim.tiers.world import World

OWNER = "maintainer"
RETRY_SECONDS = 5.0


class Maintainer:
    """Each act is a process of its own."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __str__(self) -> str:
        return OWNER

    def act(self) -> None:
        """The log of a partition begins later; its newest record always stays."""
        tp = self.world.rng.choice(TPS)
        entry, root = self.world.truth.entry, self.world.truth.roots.get(tp)
        if entry is None or root is None or root.next_offset - root.start_offset < 2:
            return
        offset = self.world.rng.randrange(root.start_offset + 1, root.next_offset)
        self.world.note(self, f"trim {tp} {offset}")
        process = Process(self.world, None, OWNER)
        clock, ids = self.world.clock, process.ids
        store = RetryingStore(SimStore(process), clock=clock, ids=ids, deadline_seconds=RETRY_SECONDS)
        catalog = Catalog(entry.topic_id, tp.partition, TOPIC, known=Known(made=entry.roots))
        self.world.truth.trimmed[tp] = max(self.world.truth.trimmed[tp], offset)
        try:
            drive(store, catalog.claim(Role.MAINTAINER, OWNER), clock=clock, ids=ids)
            drive(store, catalog.trim(offset), clock=clock, ids=ids)
            self.world.note(self, "trimmed")
        except TieredError as error:
            self.world.note(self, f"{type(error).__name__} {error}")
            if tp not in self.world.truth.damaged:
                self.world.tolerated(error)
