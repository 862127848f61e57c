"""A multipart upload that the store did not answer is aborted: by the commit, or by the next process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from tests.unit.remote.recording import RecordingStore
from tiered.config import LogConfig
from tiered.engine.disk import OpenDisk
from tiered.engine.journal import Journal
from tiered.engine.partition import SegmentRef
from tiered.engine.steps import BucketSteps
from tiered.errors import CorruptionError, FencedError, LocalIOError, RemoteUnavailableError
from tiered.format.keys import join_uid
from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, Row, TopicPartition
from tiered.plan.ownership import VolumeProof
from tiered.remote.catalog import Catalog
from tiered.store.aio_driver import adrive
from tiered.store.base import Delete, Get, Head, Object, Outcome, Steps, StoreRequest
from tiered.store.driver import drive
from tiered.store.location import ThreadedAioStore
from tiered.store.memory import MemoryStore
from tiered.store.steps import list_unfinished
from tiered.store.unique_upload import PartSizes
from tiered.testing.clock import FakeClock, SeededIds
from tiered.testing.faults import Fault, FaultKind, FaultStore

TP = TopicPartition("t", 0)
PARTS, STORED = 8, 4
T = TypeVar("T")


class World:
    """One sealed segment of eight parts, its claim, and a store that fails where a test wants it to."""

    def __init__(self, directory: Path, *, on_a_loop: bool) -> None:
        self.directory = directory
        self.clock = FakeClock()
        config = LogConfig(remote=True, disk_reserve_bytes=0)
        self.log = LocalLog.open(directory, clock=self.clock, ids=SeededIds(1), config=config)
        self.log.create_topic("t")
        self.store = FaultStore(MemoryStore(min_part_bytes=1))
        self.aio_store = ThreadedAioStore(self.store)
        self.ids = SeededIds(2)
        self.on_a_loop = on_a_loop
        self.journal = Journal(directory, self.log.files)
        self.steps = self.process()
        self.epoch = self.drive(self.steps.claim(TP)).claim_epoch
        self.log.partition(TP).append([NewRecord(bytes([number]) * 250) for number in range(3)])
        self.log.partition(TP).roll()
        (sealed,) = self.log.partition(TP).sealed_segments(0)
        self.segment = SegmentRef(sealed.base_offset, sealed.end_offset, sealed.size_bytes, sealed.appended_ms)
        self.store.calls.clear()

    def drive(self, steps: Steps[T]) -> T:
        """By the driver of a log's own thread, or by the daemon's."""
        if not self.on_a_loop:
            return drive(self.store, steps, clock=self.clock, ids=self.ids)
        sleep = self.clock.aio_sleep
        return asyncio.run(adrive(self.aio_store, steps, clock=self.clock, ids=self.ids, sleep=sleep))

    def process(self) -> BucketSteps:
        sizes = PartSizes(multipart_above_bytes=500, part_bytes=113)
        return BucketSteps(self.store.url, OpenDisk(self.log), lambda: self.journal, owner="o", sizes=sizes)

    def upload(self, steps: BucketSteps | None = None, epoch: int | None = None) -> Row:
        steps = steps or self.steps
        row: Row = self.drive(steps.upload(TP, self.segment, self.epoch if epoch is None else epoch))
        return row

    def cut_short(self) -> None:
        """The first parts of the segment are stored when the store stops to answer."""
        self.store.add(Fault(FaultKind.ERROR, "uploadpart", nth=STORED + 1, times=-1))
        self.store.add(Fault(FaultKind.ERROR, "abortupload", times=-1))
        with pytest.raises(RemoteUnavailableError):
            self.upload()
        assert len(self.journal.between(TP, 0, 1)) == 1
        self.store.clear()
        self.store.calls.clear()

    def sent(self) -> list[str]:
        """What was asked of the store since, without the reads."""
        return [operation for operation, _ in self.store.calls if operation not in ("get", "head")]

    def stored(self) -> bytes:
        (key,) = {key for operation, key in self.store.calls if operation == "completeupload"}
        found = self.store.execute(Get(key))
        assert isinstance(found, Object)
        return found.data


@pytest.fixture(params=[False, True], ids=["thread", "loop"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(tmp_path / "log", on_a_loop=bool(request.param))
    yield made
    asyncio.run(made.aio_store.close())
    made.journal.close()
    made.log.close()


def on_disk(world: World) -> bytes:
    return (world.directory / "t-0" / f"{0:020d}.log").read_bytes()


def test_a_commit_stands_whose_line_in_the_journal_cannot_be_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full. It was told to be proven not to be in the catalog, and the claim was given up."""
    row = world.upload()
    full = LocalIOError("no space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_append", lambda *_, **__: (_ for _ in ()).throw(full))
        root = world.drive(world.steps.commit(TP, world.epoch, [row]))
    assert root.next_offset == row.next
    assert world.steps.held(TP) is not None
    again = Journal(world.directory, world.log.files)
    left = again.before(TP, world.epoch + 1)
    assert [entry.uid for entry in left] == [join_uid(row.id_hi, row.id_lo)]
    again.close()
    granted = world.drive(world.steps.claim(TP))
    assert world.drive(world.steps.sweep_dead_uploads(TP, granted.claim_epoch, granted.next_offset)) == 0
    assert world.stored() == on_disk(world)


def test_what_a_failed_attempt_began_is_aborted_with_the_commit(world: World) -> None:
    """Also where the abort of the attempt itself did not get through."""
    world.cut_short()
    (entry,) = world.journal.between(TP, 0, 1)
    row = world.upload()
    world.drive(world.steps.commit(TP, world.epoch, [row]))
    assert world.store.calls.count(("abortupload", entry.log_key)) == 1
    assert world.journal.between(TP, 0, 1) == []
    assert drive(world.store, list_unfinished(""))[0] == []


def test_the_next_process_aborts_it(world: World) -> None:
    """The successor knows the upload from the journal alone, and stores under its own claim."""
    world.cut_short()
    (entry,) = world.journal.between(TP, 0, 1)
    after = world.process()
    granted = world.drive(after.claim(TP))
    assert world.drive(after.sweep_dead_uploads(TP, granted.claim_epoch, granted.next_offset)) == 1
    assert ("abortupload", entry.log_key) in world.store.calls
    world.store.calls.clear()
    world.upload(after, granted.claim_epoch)
    assert world.sent() == ["startupload"] + ["uploadpart"] * PARTS + ["completeupload", "put"]
    assert world.stored() == on_disk(world)


@pytest.mark.parametrize("taken", [True, False])
def test_an_object_that_is_gone_is_a_lost_claim_or_damage(world: World, taken: bool) -> None:
    """Another host claims while this one stands still behind its upload, and sweeps what the dead epoch left."""
    topic_id = next(iter(world.log.topics().values())).topic_id
    other = Catalog(topic_id, 0, "t", persist=lambda _token, _append: None)

    def sweep(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        if isinstance(request, Head) and request.key.endswith(".log"):
            around.answer = None
            if taken:
                drive(world.store, other.claim("w", "another host", VolumeProof("fresh", True, 0)), clock=world.clock)
            world.store.execute(Delete((request.key,)))
        return carry_out()

    around = RecordingStore(world.store)
    around.answer = sweep
    assert world.steps.capabilities is not None
    world.steps.capabilities = replace(world.steps.capabilities, returns_crc32c=False)  # so that it looks back
    expected = FencedError if taken else CorruptionError
    with pytest.raises(expected, match="another host" if taken else "is absent although"):
        drive(around, world.steps.upload(TP, world.segment, world.epoch), clock=world.clock, ids=world.ids)
