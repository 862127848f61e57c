"""An open log that has claimed its partition, and another volume that takes it over."""

from __future__ import annotations

from pathlib import Path

from tiered.clock import SystemClock, SystemIds
from tiered.config import LogConfig
from tiered.engine.journal import Journal
from tiered.engine.tiering import Tiering
from tiered.format.keys import Role
from tiered.format.root import Root
from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, TopicPartition
from tiered.plan.ownership import VolumeProof
from tiered.remote.catalog import Catalog
from tiered.store.memory import MemoryStore
from tiered.testing.clock import SeededIds

TP = TopicPartition("t", 0)


class World:
    """A log that has claimed its partition and committed three records."""

    def __init__(self, directory: Path) -> None:
        self.log = LocalLog.open(directory, ids=SeededIds(1), config=LogConfig(remote=True, disk_reserve_bytes=0))
        self.log.create_topic("t")
        self.partition = self.log.partition(TP)
        store = MemoryStore()
        self.store = store
        self.tiering = Tiering(self.log, store, clock=SystemClock(), ids=SystemIds())
        self.drive = self.tiering.drive
        self.tiering.adopt(self.log.topics()["t"])
        self.append_and_sync(3)
        self.journal = Journal(directory, self.log.files)

    def append_and_sync(self, count: int) -> None:
        for number in range(count):
            self.partition.append([NewRecord(b"%d" % number)])
        self.partition.roll()
        self.tiering.sync({TP: self.partition.positions().end_offset}, None)

    def root(self) -> Root:
        root = self.drive(self.drive(self.tiering.steps.catalog(TP)).load())
        assert root is not None
        return root


def take_over(world: World, owner: str, end: int) -> None:
    """A volume without records claims the partition and commits up to ``end``."""
    catalog = Catalog(world.root().topic_id, 0, "t", persist=lambda *_: None)
    claim = world.drive(catalog.claim(Role.WRITER, owner, VolumeProof(owner, empty=True, end_offset=0)))
    (row,) = world.root().rows.slice(0, 1)
    base = claim.next_offset
    other = row._replace(
        base=base,
        next=end,
        id_hi=1,
        id_lo=1,
        claim_epoch=claim.epoch,
        leader_epoch=claim.leader_epoch,
        records=end - base,
    )
    world.drive(catalog.append([other]))
