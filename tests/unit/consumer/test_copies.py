"""Copies of a log's positions in the bucket: when they are written, who may write them, and what restores them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import tiered
from tiered import TopicPartition, admin
from tiered.clock import SystemClock, SystemIds
from tiered.config import LogConfig
from tiered.engine.disk import LogDirectory
from tiered.engine.scanner import COLD_LOOKS
from tiered.engine.tiering import Tiering
from tiered.errors import ConfigError, CorruptionError, FencedError, RemoteUnavailableError
from tiered.format.keys import positions_key
from tiered.format.positions import PositionsCopy, decode_positions, encode_positions, within
from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, Position
from tiered.remote.positions import LATELY_MS, load_positions, refuse_logged, store_positions
from tiered.store.base import Get, Match, Object, Put, Store
from tiered.store.driver import drive
from tiered.store.location import StoreLocation
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock, SeededIds
from tiered.testing.faults import Fault, FaultKind, FaultStore

TP = TopicPartition("t", 0)
PLACE = "*/positions"


class World:
    """A log of one partition that syncs to a store with faults."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = FaultStore(MemoryStore())
        self.log = self.opened()
        self.topic_id = self.log.create_topic("t").topic_id
        self.tiering = self.tiered()

    def opened(self) -> LocalLog:
        return LocalLog.open(
            self.directory, ids=SeededIds(1), config=LogConfig(remote=True, disk_reserve_bytes=0), clock=FakeClock()
        )

    def tiered(self) -> Tiering:
        tiering = Tiering(self.log, self.store, clock=SystemClock(), ids=SystemIds())
        tiering.adopt(self.log.topics()["t"])
        return tiering

    def append(self, count: int) -> None:
        for number in range(count):
            self.log.partition(TP).append([NewRecord(b"%d" % number)])

    def commit(self, **offsets: int) -> None:
        for group, offset in offsets.items():
            self.log.transactions.positions.commit(group, {TP: Position(offset, 0, "", 7)})

    def sync(self, end: int | None = None) -> None:
        self.log.note_positions()
        self.tiering.sync({TP: self.uploaded if end is None else end}, None)

    def seal_and_sync(self) -> None:
        self.log.partition(TP).roll()
        self.sync(self.log.partition(TP).positions().end_offset)

    @property
    def uploaded(self) -> int:
        return self.log.partition(TP).positions().uploaded_offset

    def copy(self) -> PositionsCopy | None:
        (found,) = drive(self.store.inner, load_positions([(self.topic_id, 0)]))
        assert not isinstance(found, Exception)
        return found

    def offsets(self) -> Mapping[str, int]:
        copy = self.copy()
        return {} if copy is None else {group: at.offset for group, at in copy.groups.items()}

    def puts(self) -> int:
        return self.store.calls.count(("put", positions_key(self.topic_id, 0)))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "log")


def test_a_copy_names_no_offset_beyond_the_root_and_is_written_when_it_changes(world: World) -> None:
    world.append(3)
    world.seal_and_sync()
    assert (world.copy(), world.puts()) == (None, 0)  # a partition without groups costs nothing
    world.append(2)
    world.commit(slow=1, fast=5)
    world.sync()
    assert world.offsets() == {"slow": 1, "fast": 3}  # the last two records are on this disk alone
    world.commit(fast=5)
    world.sync()
    assert world.puts() == 1
    world.seal_and_sync()
    assert (world.offsets(), world.puts()) == ({"slow": 1, "fast": 5}, 2)
    world.log.transactions.positions.delete("slow", [TP], 7)
    world.sync()
    world.log.transactions.positions.delete("fast", [TP], 7)
    world.sync()
    assert (world.offsets(), world.puts()) == ({}, 4)


def test_a_failed_copy_delays_the_sync_and_the_note_of_the_commit(world: World) -> None:
    world.append(3)
    world.commit(g=2)
    world.store.add(Fault(FaultKind.ERROR, "get", PLACE, times=-1))
    with pytest.raises(RemoteUnavailableError):
        world.seal_and_sync()
    assert world.uploaded == 0  # its records stay on the disk
    world.store.clear()
    world.sync(3)
    assert (world.offsets(), world.uploaded) == ({"g": 2}, 3)


def test_a_lower_claim_never_replaces_a_higher_one(world: World) -> None:
    groups = {"g": Position(2, 0, "m", 7)}
    drive(world.store, store_positions(world.topic_id, TP, 5, groups))
    drive(world.store, store_positions(world.topic_id, TP, 6, groups))  # the same positions fence earlier claims
    with pytest.raises(FencedError, match="claim 6"):
        drive(world.store, store_positions(world.topic_id, TP, 5, {}))
    copy = world.copy()
    assert copy is not None
    assert (copy.topic, copy.epoch, copy.groups) == ("t", 6, groups)
    world.append(1)
    world.commit(g=1)
    with pytest.raises(FencedError, match="claim 6"):
        world.seal_and_sync()


def test_a_lost_answer_is_settled_and_a_damaged_copy_is_replaced(world: World) -> None:
    world.append(3)
    world.commit(g=2)
    world.store.add(Fault(FaultKind.UNKNOWN_AFTER, "put", PLACE))
    world.seal_and_sync()
    assert (world.offsets(), world.puts()) == ({"g": 2}, 2)
    key = positions_key(world.topic_id, 0)
    damage(world.store.inner, key)
    with pytest.raises(CorruptionError):
        decode_positions(b"{", key=key)
    world.commit(g=3)
    world.sync()
    assert world.offsets() == {"g": 3}


def test_partitions_that_are_asleep_stay_so_and_a_crash_loses_no_position(world: World) -> None:
    world.append(3)
    world.commit(g=2)
    world.log.tick()
    world.log.close()
    path = world.directory / "tiered-positions"
    assert json.loads(path.read_text())["partitions"] == [["t", 0, [["g", 2, 0, "", 7]]]]
    world.log = world.opened()
    world.log.note_positions()
    assert not [log for log in world.log.awake() if log.tp.topic == "__consumer_offsets"]
    world.commit(g=3)
    path.write_bytes(b"torn")
    world.log.tick()
    assert json.loads(path.read_text())["partitions"] == [["t", 0, [["g", 3, 0, "", 7]]]]
    world.tiering = world.tiered()
    world.seal_and_sync()
    assert world.offsets() == {"g": 3}
    world.log.close()


def test_the_daemon_looks_once_in_a_dozen_scans_and_after_each_seal(world: World) -> None:
    world.append(3)
    directory = LogDirectory(world.directory, clock=SystemClock(), ids=SystemIds())
    directory.acquire()
    directory.scan()
    world.commit(g=2)
    world.log.note_positions()
    looks = [directory.scan(whole=False).positions for _ in range(COLD_LOOKS)]
    assert [dict(found) for found in looks if found is not None] == [{TP: {"g": Position(2, 0, "", 7)}}]
    assert directory.scan().positions is None
    world.commit(g=3)
    world.log.note_positions()
    world.log.partition(TP).roll()
    assert directory.scan(whole=False).positions == {TP: {"g": Position(3, 0, "", 7)}}
    (world.directory / "tiered-positions").write_bytes(b"{")
    assert directory.scan().positions is None
    directory.release()


def test_positions_are_moved_into_the_log() -> None:
    groups = {"low": Position(1, 4, "m", 7), "in": Position(5, 4), "high": Position(9, 4)}
    assert within(groups, 3, 6) == {"low": Position(3, -1, "m", 7), "in": Position(5, 4), "high": Position(6, -1)}
    copy = PositionsCopy("t", 3, groups, 1)
    assert decode_positions(encode_positions(copy, key="k"), key="k") == copy


def damage(store: Store, key: str) -> None:
    found = store.execute(Get(key))
    assert isinstance(found, Object)
    store.execute(Put(key, b"{", Match(found.etag)))


def uploaded(root: Path) -> str:
    """A log of ten records whose group ``g`` has read six, and ``late`` all."""
    url = f"file://{root / 'store'}"
    with tiered.open(root / "log", remote=url) as log:
        topic = log.topic("t", create=True)
        for number in range(0, 10, 2):
            topic.append_many([b"%d" % number, b"%d" % (number + 1)])
        for group, count in (("g", 6), ("late", 10)):
            with log.consumer(group, "t") as consumer:
                consumer.poll(count)
                consumer.commit()
        log.sync()
    return url


def positions_of(directory: Path, topic: str = "t") -> dict[str, int]:
    found = {}
    with tiered.open(directory) as log:
        for group in ("g", "late"):
            with log.consumer(group, topic) as consumer:
                for at in consumer.committed().values():
                    found[group] = at.offset
    return found


def test_a_restore_brings_positions_back_within_what_it_restored(tmp_path: Path) -> None:
    url = uploaded(tmp_path)
    assert not admin.restore(tmp_path / "all", url).notes
    assert positions_of(tmp_path / "all") == {"g": 6, "late": 10}
    admin.restore(tmp_path / "part", url, ["t"], end=4)
    assert positions_of(tmp_path / "part") == {"g": 4, "late": 4}
    (note,) = admin.restore(tmp_path / "other", url, ["t"], name="u").notes
    assert note == "u-0: positions of 2 groups in t are left out"
    assert positions_of(tmp_path / "other", "u") == {}


def test_a_restored_log_goes_on_and_fences_the_copy(tmp_path: Path) -> None:
    url = uploaded(tmp_path)
    admin.restore(tmp_path / "new", url)
    with tiered.open(tmp_path / "new", remote=url) as log:
        with log.consumer("g", "t", stop_at="end") as consumer:
            assert [record.offset for record in consumer] == [6, 7, 8, 9]
            consumer.commit()
        log.sync()
    store = StoreLocation.parse(url).open()
    with tiered.open_reader(url) as reader:
        topic_id = reader.topics()["t"].topic_id
    (copy,) = drive(store, load_positions([(topic_id, 0)]))
    assert isinstance(copy, PositionsCopy)
    assert (copy.epoch, copy.groups["g"].offset) == (2, 10)
    damage(store, positions_key(topic_id, 0))
    report = admin.check(remote=url)
    assert [found.code for found in report.findings] == ["positions"]
    (note,) = admin.restore(tmp_path / "again", url).notes
    assert note.startswith("t-0: positions of groups are not restored: ")


def test_a_group_lives_in_the_log_or_in_the_bucket(tmp_path: Path) -> None:
    url = uploaded(tmp_path)
    with tiered.open_reader(url) as reader:
        ids = [(reader.topics()["t"].topic_id, 0)]
        with pytest.raises(ConfigError, match="keeps its positions in the log"):
            reader.consumer("g", "t")
        with reader.consumer("shared", "t", stop_at="end") as consumer:
            assert len(list(consumer)) == 10
    with tiered.open(tmp_path / "log", remote=url) as log:
        with pytest.raises(ConfigError, match="keeps its positions in the bucket"):
            log.consumer("shared", "t")
        with log.consumer("shared", "t", positions={}), log.consumer("a name\nof a log alone", "t"):
            pass
    store = StoreLocation.parse(url).open()
    (copy,) = drive(store, load_positions(ids))
    assert isinstance(copy, PositionsCopy)
    now_ms = copy.groups["g"].committed_ms + LATELY_MS
    drive(store, refuse_logged("g", ["t"], now_ms))  # its log has been silent for a day
    with pytest.raises(ConfigError, match="less than a day"):
        drive(store, refuse_logged("g", ["t", "nothing"], now_ms - 1))
    damage(store, positions_key(*ids[0]))
    drive(store, refuse_logged("g", ["t"], now_ms - 1))  # a damaged copy stops no reader
