"""The role is an argument: a maintainer claims by the same steps and rules, and leaves the writer alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tiering.desk import Desk, tp
from tests.unit.tiering.world import topic_id
from tiered.clock import SystemClock, SystemIds
from tiered.config import LogConfig
from tiered.errors import FencedError
from tiered.format.keys import Role
from tiered.format.root import Root
from tiered.local.directory.manager import LocalLog
from tiered.model import NewRecord, TopicPartition
from tiered.plan.lifecycle import VolumeProof
from tiered.plan.tiering import facts, orders
from tiered.plan.tiering.state import State
from tiered.remote.catalog import Catalog
from tiered.remote.fence import forget
from tiered.store.base import Blocking, Delete, Get, Match, Put, Steps
from tiered.store.memory import MemoryStore
from tiered.testing.clock import SeededIds
from tiered.tiering.disk import OpenDisk
from tiered.tiering.journal import Entry, Journal
from tiered.tiering.run import Driver, Tiering
from tiered.tiering.steps import BucketSteps, PartSizes

TP = TopicPartition("t", 0)


class World:
    """A log with a writer and a maintainer, both on one bucket, one journal."""

    def __init__(self, directory: Path) -> None:
        self.log = LocalLog.open(directory, ids=SeededIds(1), config=LogConfig(remote=True, disk_reserve_bytes=0))
        self.log.create_topic("t")
        self.partition = self.log.partition(TP)
        store = MemoryStore()
        self.store = store
        self.tiering = Tiering(self.log, store, clock=SystemClock(), ids=SystemIds())
        self.drive = Driver(store, SystemClock(), SystemIds())
        self.tiering.adopt(self.log.topics()["t"])
        self.append_and_sync(3)
        self.journal = Journal(directory, self.log.files)

    def append_and_sync(self, count: int) -> None:
        for number in range(count):
            self.partition.append([NewRecord(b"%d" % number)])
        self.partition.roll()
        self.tiering.sync({TP: self.partition.positions().end_offset}, None)

    def maintainer(self) -> BucketSteps:
        return BucketSteps(
            self.store.url,
            OpenDisk(self.log),
            lambda: self.journal,
            owner="maintainer",
            sizes=PartSizes(),
            role=Role.MAINTAINER,
        )

    def carried_out(self, engine: BucketSteps, order: orders.AtTheBucket) -> facts.Answer:
        steps, told = engine.carry_out(order)
        return told(self.drive(steps))

    def root(self) -> Root:
        root = self.drive(self.drive(self.maintainer().catalog(TP)).load())
        assert root is not None
        return root


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "log")
    yield made
    made.journal.close()
    made.tiering.close()
    made.log.close()


def test_a_maintainer_claims_beside_the_writer(world: World) -> None:
    proof, writer = world.log.claims.of(TP), world.root().writer
    answer = world.carried_out(world.maintainer(), orders.Claim(1, TP))
    assert answer == facts.ClaimDone(1, 1, 0, 3)
    root = world.root()
    assert (root.roles["m"].epoch, root.roles["m"].owner) == (1, "maintainer")
    assert root.writer == writer
    assert world.log.claims.of(TP) == proof  # nothing of a maintainer's is on the volume
    world.append_and_sync(2)  # under the claim that the writer had before
    assert (world.root().next_offset, world.root().writer.epoch) == (5, writer.epoch)


def test_a_newer_maintainer_fences_the_older_and_nobody_else(world: World) -> None:
    older, newer = world.maintainer(), world.maintainer()
    for steps in (older, newer):
        world.drive(steps.claim(TP))
    held = older.held(TP)
    assert held is not None
    with pytest.raises(FencedError, match="claimed role m with epoch 2, this process held epoch 1"):
        world.drive(held.trim(1))
    current = newer.held(TP)
    assert current is not None
    assert world.drive(current.trim(1)).start_offset == 1
    world.append_and_sync(1)
    assert (world.root().start_offset, world.root().next_offset) == (1, 4)


def test_a_claim_that_is_taken_over_before_it_is_read_back_acknowledges_nothing(world: World) -> None:
    """What the other has committed is at offsets of this disk, and not on it."""
    world.partition.append([NewRecord(b"only on this disk")])
    world.partition.roll()
    engine = BucketSteps(world.store.url, OpenDisk(world.log), lambda: world.journal, owner="again", sizes=PartSizes())
    world.drive(engine.probe())
    with pytest.raises(FencedError, match="fresh claimed role w with epoch 3, this process held epoch 2"):
        interrupt(world, engine.claim(TP))
    assert world.root().next_offset == 4


def interrupt(world: World, steps: Steps[Any]) -> None:
    """Runs ``steps``; before the first GET behind a conditional PUT a fresh volume takes the partition over."""
    answer: object = None
    put = False
    while True:
        request = steps.send(answer)
        if put and isinstance(request, Get):
            take_over(world, "fresh", 4)
            put = False
        answer = world.drive(carried(request))
        put = put or (isinstance(request, Put) and isinstance(request.condition, Match))


def carried(request: Any) -> Steps[Any]:
    return (yield request)


def take_over(world: World, owner: str, end: int) -> None:
    """A volume without records claims the partition and commits up to ``end``."""
    catalog = Catalog(world.root().topic_id, 0, "t", persist=forget)
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


def test_each_role_settles_only_what_its_own_claims_left(world: World) -> None:
    for role, name in ((Role.WRITER, "w"), (Role.MAINTAINER, "m")):
        world.journal.put(Entry(TP, role, 1, 9, f"{name}.log", f"{name}.idx"))
    again = Journal(world.log.directory, world.log.files)
    assert [e.log_key for e in again.before(TP, Role.MAINTAINER, 2)] == ["m.log"]
    assert [e.log_key for e in again.before(TP, Role.WRITER, 2)] == ["w.log"]
    again.close()
    deleted = []
    for request in world.maintainer().settle(TP, 2, 9):
        if isinstance(request, Blocking):
            request.call()  # a line of the journal
        elif isinstance(request, Delete):
            deleted.append(request.keys)
    assert deleted == [("m.log", "m.idx")]
    assert [e.log_key for e in world.journal.before(TP, Role.WRITER, 2)] == ["w.log"]


def test_the_rules_for_a_maintainer_note_nothing_and_hold_no_disk_against_the_bucket() -> None:
    desk = Desk()
    desk.state = State(SeededIds(1), role=Role.MAINTAINER)
    desk.send(facts.PartitionSeen(tp(0), topic_id(), 0, 10, 10))
    desk.send(facts.Done(desk.of(orders.RegisterTopic)[0].order))
    (claim,) = desk.of(orders.Claim)
    desk.send(facts.ClaimDone(claim.order, 4, 0, 100))  # a writer on another volume went on: no affair of ours
    assert desk.of(orders.Note) == []
    assert [order.claim_epoch for order in desk.of(orders.Settle)] == [4]
    assert [r.message for r in desk.of(orders.Report)] == ["the maintainer role is ours, the bucket ends at 100"]
    assert [view.phase for view in desk.state.views(0)] == ["claimed"]
