"""Local bytes leave the disk only below a committed end that was read back, by size and by age; reading goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered.clock import SystemIds
from tiered.config import TopicConfig
from tiered.engine.tiering import Tiering
from tiered.errors import OffsetGapError, OffsetOutOfRangeError
from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, TopicPartition
from tiered.read.stream import ReadRange
from tiered.read.topic import PartitionStream
from tiered.remote.catalog import Catalog
from tiered.remote.reader import RemotePartition
from tiered.store.base import Delete
from tiered.store.driver import Runner, drive
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock

TP = TopicPartition("t", 0)


class World:
    """One partition on both tiers, with a clock that is moved by hand."""

    def __init__(self, directory: Path, **config: int) -> None:
        self.clock, self.ids, self.store = FakeClock(), SystemIds(), MemoryStore()
        self.log = LocalLog.open(directory, clock=self.clock, ids=self.ids)
        self.log.create_topic("t", 1, TopicConfig(segment_bytes=2048, file_delete_delay_ms=0, **config))
        self.partition = self.log.partition(TP)
        self.tiering = Tiering(self.log, self.store, clock=self.clock, ids=self.ids)

    def append(self, start: int, end: int) -> None:
        for i in range(start, end):
            self.partition.append([NewRecord(b"%05d" % i * 40, None, self.clock.now_ms())])
            self.clock.advance(1)

    def remote(self) -> RemotePartition:
        return RemotePartition(TopicPartition("t", 0), self.partition.topic_id)

    def stream(self) -> PartitionStream:
        runner = Runner(self.store, self.clock, self.ids)
        return PartitionStream.open(TP, local=self.partition, remote=self.remote(), runner=runner)

    def trim(self, offset: int) -> None:
        """In the bucket alone; by the writer's own catalog: the maintainer's trim is a commit like any other."""
        catalog = self.tiering.steps._catalogs[TP]
        assert isinstance(catalog, Catalog)
        drive(self.store, catalog.trim(offset), clock=self.clock, ids=self.ids)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.log.tick()


def test_by_size(tmp_path: Path) -> None:
    world = World(tmp_path, local_retention_bytes=5000)
    world.append(0, 100)
    world.partition.roll()
    world.pass_time(3600)
    assert world.partition.positions().local_start_offset == 0  # nothing is committed: nothing may go
    world.tiering.sync({TP: 50}, None)
    committed = world.partition.positions().uploaded_offset
    world.pass_time(3600)
    assert 0 < world.partition.positions().local_start_offset <= committed
    world.tiering.sync({TP: 100}, None)
    world.append(100, 105)
    world.pass_time(3600)
    start = world.partition.positions().local_start_offset
    left = sum(path.stat().st_size for path in (tmp_path / "t-0").glob("*.log"))
    assert 50 < start < 100
    assert 5000 <= left < 5000 + 2048 + 2048
    records = list(world.stream().records(ReadRange()))
    assert [r.offset for r in records] == list(range(105))
    assert [r.tier for r in records] == ["remote"] * start + ["local"] * (105 - start)
    world.log.close()


def test_by_age(tmp_path: Path) -> None:
    world = World(tmp_path, local_retention_ms=60_000)
    world.append(0, 40)
    world.partition.roll()
    world.tiering.sync({TP: 40}, None)
    world.pass_time(3600)
    world.append(40, 45)
    world.pass_time(0)
    assert world.partition.positions().local_start_offset == 40
    assert [r.offset for r in world.stream().records(ReadRange())] == list(range(45))
    world.log.close()


def test_nothing_goes_by_default(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.append(0, 60)
    world.partition.roll()
    world.tiering.sync({TP: 60}, None)
    world.pass_time(10 * 365 * 86_400)
    assert world.partition.positions().local_start_offset == 0
    assert {r.tier for r in world.stream().records(ReadRange())} == {"local"}
    world.log.close()


def test_a_trimmed_catalog_and_a_lost_root_are_errors_never_a_jump(tmp_path: Path) -> None:
    world = World(tmp_path, local_retention_ms=60_000)
    world.append(0, 60)
    world.partition.roll()
    world.tiering.sync({TP: 60}, None)
    world.append(60, 70)
    world.pass_time(3600)
    catalog = world.tiering.steps._catalogs[TP]  # the writer's own: the maintainer's trim is a commit like any other
    assert isinstance(catalog, Catalog)
    drive(world.store, catalog.trim(30), clock=world.clock, ids=world.ids)
    stream = world.stream()
    assert stream.earliest() == 30
    with pytest.raises(OffsetOutOfRangeError) as caught:
        list(stream.records(ReadRange(start=10)))
    assert (caught.value.requested, caught.value.earliest, caught.value.latest) == (10, 30, 70)
    assert [r.offset for r in stream.records(ReadRange(start=10), on_trimmed="jump")] == list(range(30, 70))
    world.store.execute(Delete((catalog.key,)))
    local_start = world.partition.positions().local_start_offset
    assert local_start == 60
    with pytest.raises((OffsetOutOfRangeError, OffsetGapError)):
        list(world.stream().records(ReadRange(start=40)))
    world.log.close()


def test_what_the_bucket_has_trimmed_and_the_disk_still_holds_is_read_by_time_as_by_offset(tmp_path: Path) -> None:
    """A read from the earliest offset gives it: one of the same records by their times must not begin behind it."""
    world = World(tmp_path)
    first_ms = world.clock.now_ms()
    world.append(0, 60)
    times = [first_ms + 1000 * i for i in range(60)]
    world.partition.roll()
    world.tiering.sync({TP: 60}, None)
    world.trim(30)
    stream = world.stream()
    everything = list(range(60))
    assert stream.earliest() == 0
    for wanted in (ReadRange(), ReadRange(since_ms=0), ReadRange(until_ms=times[59] + 1)):
        assert [r.offset for r in stream.records(wanted)] == everything, wanted
    assert [r.offset for r in stream.records(ReadRange(since_ms=times[20]))] == everything[20:]
    assert [r.offset for r in stream.records(ReadRange(since_ms=times[40]))] == everything[40:]
    assert [r.offset for r in stream.records(ReadRange(until_ms=times[20]))] == everything[:20]
    assert [r.offset for r in stream.records(ReadRange(end=25, since_ms=times[20]))] == everything[20:25]
    assert [r.offset for r in stream.records(ReadRange(start=25, until_ms=times[35]))] == everything[25:35]
    assert stream.offset_for_time(0) == (0, times[0])
    assert stream.offset_for_time(times[20]) == (20, times[20])
    assert stream.offset_for_time(times[40]) == (40, times[40])
    assert stream.offset_for_time(times[59] + 1) is None
    world.log.close()


def test_an_offset_outside_is_an_error_whatever_bounds_the_other_side(tmp_path: Path) -> None:
    """``until`` must not make of offsets that retention took, or that are still to come, a read that ends well."""
    world = World(tmp_path, local_retention_ms=60_000)
    world.append(0, 60)
    world.partition.roll()
    world.tiering.sync({TP: 60}, None)
    world.trim(30)
    world.pass_time(3600)
    bucket = PartitionStream.open(
        TP, local=None, remote=world.remote(), runner=Runner(world.store, world.clock, world.ids)
    )
    late_ms = world.clock.now_ms()
    for stream in (world.stream(), bucket):
        stream.refresh()
        for start in (10, 61):
            for until_ms in (None, 1, late_ms):
                with pytest.raises(OffsetOutOfRangeError) as caught:
                    list(stream.records(ReadRange(start=start, until_ms=until_ms)))
                assert (caught.value.requested, caught.value.earliest, caught.value.latest) == (start, 30, 60)
        assert list(stream.records(ReadRange(start=60, until_ms=late_ms))) == []
        assert list(stream.records(ReadRange(start=61, end=40))) == []
        jumped = stream.records(ReadRange(start=10, until_ms=late_ms), on_trimmed="jump")
        assert [r.offset for r in jumped] == list(range(30, 60))
    world.log.close()
