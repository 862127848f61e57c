"""A log without records is claimed as one only while it is one, and takes its first record only where it belongs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.admin import plan_rejoin, rejoin
from tiered.config import TopicConfig
from tiered.engine.bucket import Bucket
from tiered.engine.disk import LogDirectory, LogExtent
from tiered.engine.journal import Journal
from tiered.engine.tiering import Tiering
from tiered.errors import FencedError, LockedError
from tiered.format.keys import root_key
from tiered.format.root import Root, decode_root
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.claims import Claims
from tiered.local.disk.uploader_files import PartitionUpload, UploadCheckpoint
from tiered.local.partition.appender import BEGIN_PATIENCE_S
from tiered.local.segment.active import ActiveSegment
from tiered.model import NewRecord, TopicPartition
from tiered.store.base import Get, Object
from tiered.store.location import ThreadedAioStore
from tiered.store.memory import MemoryStore
from tiered.store.unique_upload import PartSizes
from tiered.testing.clock import FakeClock, SeededIds

TP = TopicPartition("t", 0)
TOPIC_ID = UUID(int=0x5EED)


def log_at(path: Path, clock: FakeClock, seed: int) -> LocalLog:
    """A log that knows of no bucket, with the topic under the id that all have it under."""
    log = LocalLog.open(path, clock=clock, ids=SeededIds(seed))
    if "t" not in log.topics():
        log.create_topic("t", 1, TopicConfig(seal_ms=-1), topic_id=TOPIC_ID)
    return log


def append(log: LocalLog, value: bytes = b"v") -> int:
    return log.partition(TP).append([NewRecord(value)]).offset


class World:
    """``owner`` has committed three records; ``fresh`` is a disk without records, and ``bucket`` is its daemon's."""

    def __init__(self, root: Path) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore()
        self.owner = log_at(root / "owner", self.clock, 1)
        tiering = Tiering(self.owner, self.store, clock=self.clock, ids=SeededIds(2))
        for _ in range(3):
            append(self.owner)
        self.owner.partition(TP).roll()
        tiering.sync({TP: 3}, None)
        self.fresh = log_at(root / "fresh", self.clock, 3)
        self.directory = LogDirectory(root / "fresh", clock=self.clock, ids=SeededIds(4))
        self.directory.acquire()
        self.directory.scan()
        self.journal = Journal(root / "fresh", self.directory.files)
        self.bucket = Bucket(
            ThreadedAioStore(self.store),
            self.directory,
            self.journal,
            clock=self.clock,
            ids=SeededIds(5),
            owner="daemon",
            sizes=PartSizes(1 << 30, 8 << 20),
        )

    def root(self) -> Root:
        key = root_key(TOPIC_ID, 0)
        got = self.store.execute(Get(key))
        assert isinstance(got, Object)
        return decode_root(got.data, key=key)

    def owners_volume(self) -> bool:
        return self.root().writer.volume == str(self.owner.volume_id)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    await world.bucket.close()
    world.journal.close()
    world.directory.release()
    world.fresh.close()
    world.owner.close()


async def test_records_that_came_since_the_last_scan_are_not_taken_for_none(world: World) -> None:
    assert append(world.fresh) == 0
    assert world.directory.extent(TP, exact=False) == LogExtent(0, 1)
    with pytest.raises(FencedError, match="holds records"):
        await world.bucket.drive(world.bucket.steps.claim(TP))
    assert world.owners_volume()


async def test_a_record_that_comes_before_the_proof_is_there_keeps_the_claim_from_being_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    correct = Claims.keep

    def keep(self: Claims, tp: TopicPartition, token: str | None, last_append: str | None) -> None:
        assert append(world.fresh) == 0  # acknowledged: nothing told that anybody claims
        correct(self, tp, token, last_append)

    with monkeypatch.context() as patch:
        patch.setattr(Claims, "keep", keep)
        with pytest.raises(LockedError, match="first records"):
            await world.bucket.drive(world.bucket.steps.claim(TP))
    assert world.owners_volume()
    with pytest.raises(FencedError, match="holds records"):
        await world.bucket.drive(world.bucket.steps.claim(TP))
    assert world.owners_volume()


async def test_a_record_that_comes_behind_the_proof_is_refused(world: World) -> None:
    granted = await world.bucket.drive(world.bucket.steps.claim(TP))
    assert granted.next_offset == 3
    begun = world.clock.monotonic()
    for _ in range(2):
        with pytest.raises(FencedError, match="continues at the bucket's end"):
            append(world.fresh)
    assert BEGIN_PATIENCE_S <= world.clock.monotonic() - begun < 2 * BEGIN_PATIENCE_S  # it is waited for once
    assert world.fresh.partition(TP).positions().end_offset == 0


async def test_a_record_that_is_written_while_the_proof_comes_is_taken_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = Claims(world.fresh.directory, world.fresh.files)
    correct = ActiveSegment.append

    def slow(self: ActiveSegment, *arguments: Any, **others: Any) -> None:
        correct(self, *arguments, **others)
        claims.keep(TP, "a-token", "")

    with monkeypatch.context() as patch:
        patch.setattr(ActiveSegment, "append", slow)
        with pytest.raises(FencedError, match="the record was removed"):
            append(world.fresh)
    assert world.fresh.partition(TP).positions().end_offset == 0
    assert (world.fresh.directory / "t-0" / f"{0:020}.log").stat().st_size == 0
    with pytest.raises(FencedError):
        append(world.fresh)
    granted = await world.bucket.drive(world.bucket.steps.claim(TP))
    assert granted.next_offset == 3


async def test_a_log_that_knows_no_bucket_begins_once_the_claim_is_noted(tmp_path: Path) -> None:
    """A topic that nobody has written yet, and the daemon's note that it begins where this log does."""
    noted: list[float] = []

    class Waited(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if len(self.sleeps) == 3:
                checkpoint = UploadCheckpoint(tmp_path, log.files)
                checkpoint.update({TP: PartitionUpload(0, 1)})
                noted.append(self.monotonic())

    clock = Waited()
    log = log_at(tmp_path, clock, 1)
    Claims(tmp_path, log.files).keep(TP, "a-token", "")
    assert append(log) == 0
    assert len(noted) == 1
    assert append(log) == 1
    log.close()


async def test_the_note_of_an_older_claim_does_not_say_where_a_log_begins(world: World) -> None:
    """Adopted while it was empty, taken over by another volume that wrote on, and claimed again by its own daemon."""
    world.directory.release()
    clock = world.clock
    tiering = Tiering(world.fresh, world.store, clock=clock, ids=SeededIds(8))
    tiering.adopt(world.fresh.topics()["t"])
    assert world.fresh.uploads.read()[TP].end_offset == 3
    other = log_at(world.fresh.directory.with_name("other"), clock, 9)
    taking = Tiering(other, world.store, clock=clock, ids=SeededIds(10))
    taking.adopt(other.topics()["t"])
    assert append(other) == 3
    other.partition(TP).roll()
    taking.sync({TP: 4}, None)
    other.close()
    world.directory.acquire()
    world.directory.scan()
    granted = await world.bucket.drive(world.bucket.steps.claim(TP))
    assert granted.next_offset == 4
    with pytest.raises(FencedError, match="continues at the bucket's end"):
        append(world.fresh)
    assert world.fresh.partition(TP).positions().end_offset == 3


def test_what_was_set_aside_goes_on_where_the_bucket_ends_or_not_at_all(world: World) -> None:
    directory = world.owner.directory
    world.owner.close()
    rejoin(plan_rejoin(directory, [TP], clock=world.clock), clock=world.clock)
    world.owner = log_at(directory, world.clock, 6)
    with pytest.raises(FencedError, match="continues at the bucket's end"):
        append(world.owner)
    assert world.owner.partition(TP).positions().end_offset == 0
    tiering = Tiering(world.owner, world.store, clock=world.clock, ids=SeededIds(7))
    tiering.adopt(world.owner.topics()["t"])
    assert append(world.owner) == 3
