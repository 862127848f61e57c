"""A directory from the bucket alone: the same bytes, a new volume, ready to go on; or nothing at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tiered
from tests.support.admin import apply_repair, check, plan_repair, restore
from tests.support.faulty_files import FaultyFiles
from tests.unit.check.building import RECORDS, SETTINGS, TOPIC, Scenario, record, scenario
from tiered.clock import SystemClock
from tiered.config import TopicConfig
from tiered.errors import (
    ConfigError,
    CorruptionError,
    DiskFullError,
    FencedError,
    LocalIOError,
    NotFoundError,
    RemoteUnavailableError,
    UnknownTopicError,
)
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.bundle import decode_bundle, encode_bundle
from tiered.format.root import decode_root
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.claims import Claims
from tiered.local.disk.files import DiskSpace, PosixFiles, translate
from tiered.model import NewRecord, Row, TopicPartition
from tiered.plan.maintenance import MaintenanceKind
from tiered.remote.maintain import Maintainer
from tiered.remote.topics import load_topic
from tiered.repair.plan import RepairOptions
from tiered.restore.plan import RestoreOptions
from tiered.store.capabilities import probe
from tiered.store.driver import drive
from tiered.store.location import StoreLocation
from tiered.store.memory import MemoryStore
from tiered.testing.clock import START_MS
from tiered.testing.faults import Fault, FaultKind, FaultStore

pytestmark = pytest.mark.usefixtures("both_catalogs")
TP = TopicPartition(TOPIC, 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path, partitions=2) as built:
        yield built


def sealed_logs(directory: Path, partition: int = 0) -> dict[str, bytes]:
    """Contents of the ``.log`` files that hold something."""
    files = sorted((directory / f"{TOPIC}-{partition}").glob("*.log"))
    return {path.name: path.read_bytes() for path in files if path.stat().st_size}


def values(directory: Path) -> list[bytes | None]:
    with tiered.open_reader(log_dir=directory) as reader:
        return [seen.value for seen in reader.topic(TOPIC).read()]


def append_and_sync(log: tiered.Log) -> None:
    log.topic(TOPIC).append_many([record(RECORDS)], partition=0)
    log.sync(timeout=60)


def leftovers(parent: Path) -> list[str]:
    return [path.name for path in parent.iterdir() if "restore-" in path.name]


def test_the_logs_are_the_same_bytes_and_the_directory_checks(log: Scenario, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "new"
    report = restore(log.store, target)
    for partition in (0, 1):
        assert sealed_logs(target, partition) == sealed_logs(log.directory, partition)
        for name in sealed_logs(target, partition):
            for suffix in (".index", ".timeindex"):
                ours, theirs = (
                    (directory / f"{TOPIC}-{partition}" / name).with_suffix(suffix).read_bytes()
                    for directory in (target, log.directory)
                )
                assert ours == theirs
    assert values(target) == values(log.directory)
    assert check(target, log.store).findings == ()
    assert (report.segments, report.notes) == (len(log.rows(0)) + len(log.rows(1)), ())
    assert leftovers(target.parent) == []


def test_it_is_a_new_volume_with_a_proof(log: Scenario, tmp_path: Path) -> None:
    report = restore(log.store, tmp_path / "new")
    with LocalLog.open(log.directory) as old, LocalLog.open(tmp_path / "new") as new:
        assert old.volume_id != new.volume_id
        assert str(new.volume_id) == report.volume_id
        assert new.topics() == old.topics()
        root = log.root()
        proof = Claims(tmp_path / "new", PosixFiles()).read()[TP]
        assert (proof.token, proof.restored_from) == (None, (root.version, root.next_offset))
        positions = new.partition(TP).positions()
        assert (positions.end_offset, positions.flushed_offset, positions.uploaded_offset) == (RECORDS,) * 3
        assert new.partition(TP).leader_epochs() == old.partition(TP).leader_epochs()


def test_a_restore_that_is_older_than_the_log_may_not_go_on(log: Scenario, tmp_path: Path) -> None:
    restore(log.store, tmp_path / "new")
    with tiered.open(log.directory, log.url) as old:
        old.topic(TOPIC).append_many([record(RECORDS)], partition=0)
        old.sync(timeout=60)
    with tiered.open(tmp_path / "new", log.url) as new, pytest.raises(FencedError):
        append_and_sync(new)


def test_an_older_root_that_was_put_back_is_not_restored(log: Scenario, tmp_path: Path) -> None:
    """Such a disk would give offsets again that objects of the bucket hold."""
    partition = 1
    older = log.read(log.root_key(partition))
    with tiered.open(tmp_path / "fresh", log.url) as fresh:
        fresh.topic(TOPIC).append_many([record(RECORDS)], partition=partition)
        fresh.sync(timeout=60)
    version = decode_root(older, key=log.root_key(partition)).version
    log.replace(log.root_key(partition), older)
    for options in (RestoreOptions(), RestoreOptions(selected=((TOPIC, None),), dry_run=True)):
        with pytest.raises(
            CorruptionError, match=f"hist/` has a copy of version .*, the root has version {version} "
        ) as told:
            restore(log.store, tmp_path / "new", options)
        assert told.value.path_or_key == log.root_key(partition)
        assert "`tiered repair TOPIC:P --dry-run`" in told.value.hint
    assert not (tmp_path / "new").exists()


def test_an_older_root_is_restored_when_it_is_asked_for(log: Scenario, tmp_path: Path) -> None:
    older = log.read(log.root_key())
    with tiered.open(tmp_path / "fresh", log.url) as fresh:
        fresh.topic(TOPIC).append_many([record(RECORDS)], partition=0)
        fresh.sync(timeout=60)
    log.replace(log.root_key(), older)
    restore(log.store, tmp_path / "new", RestoreOptions(as_of="now"))
    assert sealed_logs(tmp_path / "new") == sealed_logs(log.directory)


def test_only_the_newest(log: Scenario, tmp_path: Path) -> None:
    rows = log.rows()
    size_bytes = rows[-1].size + rows[-2].size
    report = restore(log.store, tmp_path / "new", RestoreOptions(newest_bytes=size_bytes))
    assert [len(plan.rows) for plan in report.plans] == [2, 2]
    with tiered.open_reader(log_dir=tmp_path / "new") as reader:
        stream = reader.topic(TOPIC).stream(0)
        assert (stream.earliest(), stream.latest()) == (rows[-2].base, RECORDS)
    with tiered.open_reader(log.url, log_dir=tmp_path / "new") as reader:
        assert [seen.offset for seen in reader.topic(TOPIC).read(0)] == list(range(RECORDS))
    assert check(tmp_path / "new", log.store).errors == 0


def test_only_since_a_time(log: Scenario, tmp_path: Path) -> None:
    rows = log.rows()
    since_ms = rows[2].min_ts + 1
    report = restore(log.store, tmp_path / "new", RestoreOptions(since_ms=since_ms))
    assert report.plans[0].rows == tuple(rows[2:])
    nothing = restore(log.store, tmp_path / "empty", RestoreOptions(since_ms=START_MS + 10**9))
    assert nothing.segments == 0
    with tiered.open(tmp_path / "empty", log.url) as resumed:
        assert resumed.topic(TOPIC).append_many([record(0)], partition=1)[0].offset == RECORDS


def test_only_what_was_selected(log: Scenario, tmp_path: Path) -> None:
    report = restore(log.store, tmp_path / "new", RestoreOptions(selected=((TOPIC, 1),)))
    assert [len(plan.rows) for plan in report.plans] == [0, len(log.rows(1))]
    assert sealed_logs(tmp_path / "new", 0) == {}
    assert sealed_logs(tmp_path / "new", 1) == sealed_logs(log.directory, 1)
    with LocalLog.open(tmp_path / "new") as new:
        assert new.partition(TP).positions().end_offset == RECORDS


def test_a_dry_run_touches_nothing(log: Scenario, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    report = restore(log.store, tmp_path / "new", RestoreOptions(dry_run=True))
    assert (report.dry_run, report.segments, report.volume_id) == (True, len(log.rows(0)) + len(log.rows(1)), "")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_what_is_there_is_never_overwritten(log: Scenario, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "taken"
    if kind == "directory":
        target.mkdir()
        (target / "keep").write_text("me")
    else:
        target.write_text("me")
    with pytest.raises(ConfigError, match="is not empty"):
        restore(log.store, target)
    assert restore(log.store, target, RestoreOptions(if_empty=True)).skipped
    assert (target / "keep" if kind == "directory" else target).read_text() == "me"


def _lose_bundle(log: Scenario, row: Row) -> None:
    log.delete(log.index_key(row))


def _garbage_bundle(log: Scenario, row: Row) -> None:
    log.replace(log.index_key(row), b"not a bundle")


def _foreign_bundle(log: Scenario, row: Row) -> None:
    log.replace(log.index_key(row), log.read(log.index_key(log.rows()[2])))


def _lying_bundle(log: Scenario, row: Row) -> None:
    bundle = decode_bundle(log.read(log.index_key(row)))
    lying = replace(bundle.indexes, offset_index=bundle.indexes.offset_index[:7] + b"\x7f")
    log.replace(log.index_key(row), encode_bundle(bundle.descriptor, lying, bundle.claim_epoch))


@pytest.mark.parametrize("damage", [_lose_bundle, _garbage_bundle, _foreign_bundle, _lying_bundle])
def test_damaged_indexes_are_rebuilt_and_reported(
    log: Scenario, tmp_path: Path, damage: Callable[[Scenario, Row], None]
) -> None:
    damage(log, log.rows()[0])
    report = restore(log.store, tmp_path / "new")
    assert len(report.notes) == 1
    assert "indexes of segment 0 were rebuilt" in report.notes[0]
    assert check(tmp_path / "new", None).findings == ()
    assert values(tmp_path / "new") == values(log.directory)


def test_a_body_that_arrives_damaged_once_is_fetched_again(log: Scenario, tmp_path: Path) -> None:
    store = FaultStore(log.store, [Fault(FaultKind.FLIPPED, "get", "*.log")])
    report = restore(store, tmp_path / "new")
    assert store.fired
    assert sealed_logs(tmp_path / "new") == sealed_logs(log.directory)
    assert report.notes == ()


def _flip_log(log: Scenario) -> None:
    key = log.log_key(log.rows()[1])
    data = bytearray(log.read(key))
    data[50] ^= 1
    log.replace(key, bytes(data))


def _cut_log(log: Scenario) -> None:
    key = log.log_key(log.rows()[1])
    log.replace(key, log.read(key)[:100])


def _lengthen_log(log: Scenario) -> None:
    """All that the row names is right: only the size tells that it is another object."""
    key = log.log_key(log.rows()[1])
    log.replace(key, log.read(key) + b"more")


def _lose_log(log: Scenario) -> None:
    log.delete(log.log_key(log.rows()[1]))


def _garbage_root(log: Scenario) -> None:
    log.replace(log.root_key(1), b"OLC1")


@pytest.mark.parametrize("damage", [_flip_log, _cut_log, _lengthen_log, _lose_log, _garbage_root])
def test_damaged_data_leaves_nothing_behind(log: Scenario, tmp_path: Path, damage: Callable[[Scenario], None]) -> None:
    damage(log)
    with pytest.raises(CorruptionError) as caught:
        restore(log.store, tmp_path / "new")
    assert caught.value.hint
    assert not (tmp_path / "new").exists()
    assert leftovers(tmp_path) == []


def test_a_store_that_goes_away_leaves_nothing_behind(log: Scenario, tmp_path: Path) -> None:
    store = FaultStore(log.store, [Fault(FaultKind.ERROR, "get", "*.log", nth=3, times=-1)])
    with pytest.raises(RemoteUnavailableError):
        restore(store, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert leftovers(tmp_path) == []


class FullDisk(PosixFiles):
    """Says how much is free, and may break in the middle."""

    def __init__(self, free: int, renames: int = 10**9) -> None:
        self._free = free
        self._renames = renames

    def space(self, path: Path) -> DiskSpace:
        return DiskSpace(self._free, 10**12)

    def rename(self, source: Path, target: Path) -> None:
        self._renames -= 1
        if self._renames < 0:
            raise LocalIOError(f"cannot rename {source}")
        super().rename(source, target)


def test_too_little_space_is_told_before_the_first_byte(log: Scenario, tmp_path: Path) -> None:
    store = FaultStore(log.store)
    with pytest.raises(DiskFullError, match="needs"):
        restore(store, tmp_path / "new", files=FullDisk(1000))
    assert not any(key.endswith(".log") for _, key in store.calls)


class MountPoint(PosixFiles):
    """Nothing takes the place of ``path``."""

    def __init__(self, path: Path, error: int) -> None:
        self._path, self._error = path, error

    def rename(self, source: Path, target: Path) -> None:
        if target == self._path:
            raise translate(OSError(self._error, os.strerror(self._error)), "rename", source)
        super().rename(source, target)


@pytest.mark.parametrize("error", [errno.EBUSY, errno.EXDEV])
def test_a_mount_point_is_refused_before_the_first_byte(log: Scenario, tmp_path: Path, error: int) -> None:
    store, place = FaultStore(log.store), tmp_path / "mounted"
    place.mkdir()
    with pytest.raises(ConfigError, match=f"{place} is a mount point") as refused:
        restore(store, place, files=MountPoint(place, error))
    assert refused.value.hint == f"name a folder in it: {place / 'log'}"
    assert not any(key.endswith(".log") for _, key in store.calls)
    assert (list(place.iterdir()), leftovers(tmp_path)) == ([], [])
    restore(store, place / "log", files=MountPoint(place, error))
    assert sorted(each.name for each in place.iterdir()) == ["log"]


def test_an_empty_directory_is_replaced(log: Scenario, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    restore(log.store, tmp_path / "new", RestoreOptions(if_empty=True))
    assert [each.name for each in tmp_path.iterdir() if each.name not in ("log", "new")] == []
    assert check(tmp_path / "new", log.store).findings == ()


@pytest.mark.parametrize("renames", [0, 1, 5, 20])
def test_a_disk_that_breaks_leaves_nothing_behind(log: Scenario, tmp_path: Path, renames: int) -> None:
    with pytest.raises(LocalIOError):
        restore(log.store, tmp_path / "new", files=FullDisk(10**12, renames))
    assert not (tmp_path / "new").exists()
    assert leftovers(tmp_path) == []


def test_what_was_restored_is_durable_before_it_takes_its_name(log: Scenario, tmp_path: Path) -> None:
    files = FaultyFiles()
    target = tmp_path / "new"
    restore(log.store, target, files=files)
    named = next(at for at, (name, path) in enumerate(files.effects) if name == "rename" and "restore-" in path.name)
    last = {path: name for name, path in files.effects[:named] if name in ("write", "truncate", "sync")}
    logs = {path.name for path in last if path.suffix == ".log" and path.parent.name == str(TP)}
    assert logs >= set(sealed_logs(target))
    assert {path.name: name for path, name in last.items() if name != "sync"} == {}


def test_names_that_are_not_there(log: Scenario, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicError, match="no topic 'trains'"):
        restore(log.store, tmp_path / "new", RestoreOptions(selected=(("trains", None),)))
    with pytest.raises(UnknownTopicError, match="has no partition 7"):
        restore(log.store, tmp_path / "new", RestoreOptions(selected=((TOPIC, 7),)))
    with pytest.raises(NotFoundError, match="holds no topics"):
        restore(MemoryStore("restore-empty"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("number", [1, -1])
def test_what_was_given_up_in_the_bucket_hides_nothing_behind_it(tmp_path: Path, number: int) -> None:
    """Its bundle says who wrote, if it is there."""
    with scenario(tmp_path) as log:  # another partition of the same records would have its bytes
        lost = log.rows()[number]
        for key in (log.log_key(lost), log.index_key(lost))[: 1 if number < 0 else 2]:
            log.delete(key)
        apply_repair(log.store, plan_repair(log.store, [TP], RepairOptions(accept_loss=True)))
        restore(log.store, tmp_path / "new")
        assert check(tmp_path / "new", None).findings == ()
        kept = [at for at in range(RECORDS) if not lost.base <= at < lost.next]
        with tiered.open(tmp_path / "new", log.url) as again:
            append_and_sync(again)
            seen = [(each.offset, each.value) for each in again.topic(TOPIC).read(partition=0)]
        assert seen == [(at, record(at).value) for at in (*kept, RECORDS)]


def test_only_a_log_that_leaves_offsets_out_is_marked(log: Scenario, tmp_path: Path) -> None:
    """The mark takes away what tells of lost batches: a whole log has none."""
    restore(log.store, tmp_path / "new")
    assert [path.name for path in (tmp_path / "new" / f"{TOPIC}-0").glob("tiered-sparse")] == []
    (tmp_path / "new" / f"{TOPIC}-0" / f"{log.rows()[1].base:020d}.log").unlink()
    assert [each.code for each in check(tmp_path / "new", None).findings if each.code == "log_gap"] == ["log_gap"]
    (tmp_path / "new" / f"{TOPIC}-0" / "tiered-sparse").touch()
    assert [each.code for each in check(tmp_path / "new", None).findings if each.code == "log_gap"] == []


def numbered(sequence: int, count: int) -> bytes:
    """A batch of an idempotent producer, as of now: one that was silent for a day is forgotten."""
    records = [NewRecord(b"%d" % number, b"k", SystemClock().now_ms()) for number in range(sequence, sequence + count)]
    return encode_batch(records, producer=BatchProducer(7, 0, sequence))


@pytest.mark.parametrize("fresh", [False, True])
def test_a_retry_is_known_after_a_trim_to_the_very_end(tmp_path: Path, fresh: bool) -> None:
    """Also after everything that left is collected, and on a volume that has nothing of its own."""
    url = f"file://{tmp_path / 'bucket'}"
    with tiered.open(tmp_path / "log", remote=url) as first:
        topic = first.topic(TOPIC, create=True, config={"gc.grace.ms": 0, "segment.bytes": 200})
        topic.append_batches(numbered(0, 3))
        acknowledged = topic.append_batches(numbered(3, 1))
        topic.append(b"somebody else, in another segment")
        first.sync(timeout=60)
    store = StoreLocation.parse(url).open()
    entry = drive(store, load_topic(TOPIC))
    assert entry is not None
    config = TopicConfig.from_properties(entry.config)
    for kind, begin_at in ((MaintenanceKind.RETENTION, 5), (MaintenanceKind.COLLECT, None)):
        maintainer = Maintainer(TP, entry.topic_id, config, owner="m")
        plan = drive(store, maintainer.plan((kind,), begin_at=begin_at))
        assert plan is not None
        assert [drive(store, maintainer.run(action, drive(store, probe()))) for action in plan.actions]
    if not fresh:
        restore(store, tmp_path / "new", RestoreOptions())
    with tiered.open(tmp_path / "new", remote=url) as second:
        topic = second.topic(TOPIC)
        assert topic.positions(0).end_offset == 5
        assert topic.append_batches(numbered(3, 1)).offset == acknowledged.offset
        assert topic.append_batches(numbered(4, 1)).offset == 5
        second.sync(timeout=60)
        assert [seen.value for seen in topic.read(0)] == [b"4"]


def test_a_topic_that_was_never_uploaded_begins_empty(log: Scenario, tmp_path: Path) -> None:
    with tiered.open(log.directory, log.url) as again:
        again.topic("idle", create=True, config=SETTINGS)
    restore(log.store, tmp_path / "new")
    with tiered.open(tmp_path / "new", log.url) as new:
        assert new.topic("idle").append(b"first").offset == 0
        new.sync(timeout=60)
