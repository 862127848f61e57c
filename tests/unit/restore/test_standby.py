"""A standby: it follows every change of a bucket, through kills and outages, and is promoted once."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.support.admin import check
from tests.support.faulty_files import FaultyFiles, PowerCut, on_nth
from tiered.clock import SystemClock, SystemIds
from tiered.engine.disk import LogDirectory
from tiered.errors import (
    ConfigError,
    FencedError,
    LogDestroyedError,
    RemotePermissionError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.keys import topic_key
from tiered.local.disk import lock
from tiered.local.disk.directory_files import STANDBY_NAME, read_standby
from tiered.local.disk.files import Files, PosixFiles
from tiered.model import TopicPartition
from tiered.plan.maintenance import MaintenanceKind
from tiered.remote.gc.deletion import start_deletion
from tiered.remote.maintain import Maintainer
from tiered.remote.topics import load_topic
from tiered.repair.log_directory import RepairDirectory
from tiered.restore.standby import PullReport, Standby, promote
from tiered.store.base import Delete, Store
from tiered.store.capabilities import probe
from tiered.store.driver import Runner
from tiered.store.memory import MemoryStore
from tiered.testing.faults import Fault, FaultKind, FaultStore

CLOCK, IDS = SystemClock(), SystemIds()
MERGED = {"merge.idle.ms": 0, "merge.min.bytes": 2000, "merge.target.bytes": 5000}
FLIGHTS = {"segment.bytes": 1024, "gc.grace.ms": 0, **MERGED}
USERS = {"segment.bytes": 1024, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "gc.grace.ms": 0}


class Primary:
    """An open log that uploads to a store in memory, and the maintainer of its bucket."""

    def __init__(self, path: Path) -> None:
        name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
        self.url, self.store, self.path = f"memory://{name}", MemoryStore(name), path
        self.log = tiered.open(path, self.url)
        self.log.topic("flights", create=True, config=FLIGHTS)
        self.log.topic("users", create=True, config=USERS)
        self.count = 0

    def append(self, count: int = 12, *, sync: bool = True) -> None:
        for _ in range(count):
            self.count += 1
            for topic in ("flights", "users"):
                key = b"%d" % (self.count % 5)
                self.log.topic(topic).append(b"%06d" % self.count * 30, key=key, partition=0)
        if sync:
            self.log.sync(timeout=60)

    def maintain(self, topic: str, *kinds: MaintenanceKind, begin_at: int | None = None) -> int:
        """Carry out what is due, and return the number of actions."""
        run = Runner(self.store).run
        entry = run(load_topic(topic))
        assert entry is not None
        maintainer = Maintainer(TopicPartition(topic, 0), entry.topic_id, entry.settings, owner="m")
        plan = run(maintainer.plan(kinds, begin_at=begin_at))
        assert plan is not None
        return len([run(maintainer.run(action, run(probe()))) for action in plan.actions])

    def delete(self, topic: str) -> None:
        run = Runner(self.store).run
        entry = run(load_topic(topic))
        assert entry is not None
        run(start_deletion(entry, "m"))

    def records(self, directory: Path | None = None) -> dict[TopicPartition, list[tuple[int, bytes | None]]]:
        """Return the records of a directory, by default of the bucket."""
        with tiered.open_reader(self.url) if directory is None else tiered.open_reader(log_dir=directory) as reader:
            found: dict[TopicPartition, list[tuple[int, bytes | None]]] = {}
            for name in reader.topics():
                for number in range(reader.topic(name).partitions):
                    found[TopicPartition(name, number)] = [
                        (each.offset, each.value) for each in reader.topic(name).read(number)
                    ]
            return found

    def pull(self, directory: Path, *, store: Store | None = None, files: Files | None = None) -> PullReport:
        """Pull once, as a process of its own."""
        files, store = files or PosixFiles(), store or self.store
        with Standby(self.url, directory, clock=CLOCK, ids=IDS, files=files) as standby:
            return Runner(store, CLOCK, IDS).run(standby.pull(), lambda _: None)

    def promote(self, directory: Path, *, files: Files | None = None, store: Store | None = None) -> dict:
        files, store = files or PosixFiles(), store or self.store
        return promote(store, directory, clock=CLOCK, ids=IDS, files=files, take=lambda _: None).ends

    def commit(self) -> dict[TopicPartition, int]:
        """Read all flights as a group, and return its positions once the bucket has their copy."""
        with self.log.consumer("billing", "flights", stop_at="end") as consumer:
            for _ in consumer:
                pass
            consumer.commit()
            committed = {tp: at.offset for tp, at in consumer.committed().items()}
        self.log.sync(timeout=60)
        return committed

    def matches(self, directory: Path) -> None:
        """Assert that a standby has what the bucket has, and that nothing is left to be pulled."""
        assert self.records(directory) == self.records()
        assert self.pull(directory).is_empty
        assert check(directory, self.store).findings == ()


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Primary]:
    made = Primary(tmp_path / "primary")
    try:
        made.append()
        yield made
    finally:
        with contextlib.suppress(TieredError):
            made.log.close()
        MemoryStore.forget(made.url.removeprefix("memory://"))


def positions_of_group(log: tiered.Log) -> dict[TopicPartition, int]:
    with log.consumer("billing", "flights") as consumer:
        return {tp: at.offset for tp, at in consumer.committed().items()}


def rewrite(primary: Primary) -> None:
    """Merge, compact and trim, and append more: the next pull exchanges, fetches and drops segments."""
    primary.append(40)
    assert primary.maintain("flights", MaintenanceKind.MERGE) > 0
    assert primary.maintain("users", MaintenanceKind.COMPACT) > 0
    assert primary.maintain("flights", MaintenanceKind.RETENTION, begin_at=5) > 0
    assert primary.maintain("users", MaintenanceKind.COLLECT) > 0


def test_one_process_follows_every_change(primary: Primary, tmp_path: Path) -> None:
    run, directory = Runner(primary.store, CLOCK, IDS).run, tmp_path / "standby"
    with Standby(primary.url, directory, clock=CLOCK, ids=IDS, files=PosixFiles()) as standby:
        assert run(standby.pull(), lambda _: None).segments > 0
        assert primary.records(directory) == primary.records()
        rewrite(primary)
        assert run(standby.pull(), lambda _: None).segments > 0
        assert primary.records(directory) == primary.records()
        primary.log.topic("flights").add_partitions(2)
        primary.log.topic("flights").append(b"new partition", partition=1)
        primary.log.topic("third", create=True).append(b"new topic")
        primary.log.sync(timeout=60)
        assert run(standby.pull(), lambda _: None).segments == 2
        assert primary.records(directory) == primary.records()
        primary.delete("third")
        assert run(standby.pull(), lambda _: None).dropped == ("third",)
        assert not (directory / "third-0").exists()
        assert run(standby.pull(), lambda _: None).is_empty
        assert [path.name for path in directory.rglob("*.deleted")] == []
    assert sorted(map(str, primary.records(directory))) == ["flights-0", "flights-1", "flights-2", "users-0"]


def test_a_quiet_bucket_costs_one_conditional_get_for_each_root(primary: Primary, tmp_path: Path) -> None:
    store = FaultStore(primary.store)
    with Standby(primary.url, tmp_path / "standby", clock=CLOCK, ids=IDS, files=PosixFiles()) as standby:
        Runner(store, CLOCK, IDS).run(standby.pull(), lambda _: None)
        store.calls.clear()
        Runner(store, CLOCK, IDS).run(standby.pull(), lambda _: None)
    assert sorted(key.rpartition("/")[2] for _, key in store.calls) == ["", "flights", "root", "root", "users"]


@pytest.mark.long
@pytest.mark.parametrize("is_first", [True, False])
def test_a_pull_that_is_killed_at_any_effect_is_ended_by_the_next(
    primary: Primary, tmp_path: Path, *, is_first: bool
) -> None:
    """Readers see at each instant, after the kill too, what one root says: never a gap inside a partition."""
    template = tmp_path / "template"
    before = {} if is_first else primary.records()
    if not is_first:
        primary.pull(template)
        rewrite(primary)
    counting = FaultyFiles()
    primary.pull(_copied(template, tmp_path / "whole"), files=counting)
    after = primary.records()
    for number in range(1, len(counting.effects) + 1, 1 if is_first else 3):
        directory = _copied(template, tmp_path / f"killed-{number}")
        files = FaultyFiles(on_nth(number, "*", PowerCut))
        with contextlib.suppress(PowerCut):
            primary.pull(directory, files=files)
        _free(directory)
        _between(primary, directory, before, after)
        primary.pull(directory)
        assert primary.records(directory) == after, (number, counting.effects[number - 1])
    primary.matches(directory)


def _copied(template: Path, directory: Path) -> Path:
    if template.exists():
        shutil.copytree(template, directory)
    return directory


def _free(directory: Path) -> None:
    """Release the locks of a killed process, which are this process's."""
    for each in list(lock._HELD):
        if each.path.parent == directory:
            each.release()


def _between(primary: Primary, directory: Path, before: dict, after: dict) -> None:
    """Assert that a reader gets a state between two pulls, or an error of an exchange."""
    with contextlib.suppress(TieredError):
        for tp, records in primary.records(directory).items():
            for offset, value in records:
                assert (offset, value) in [*before.get(tp, ()), *after.get(tp, ())]


@pytest.mark.parametrize("nth", [1, 2, 4, 7, 9, 12])
def test_an_outage_in_the_middle_leaves_a_standby_that_goes_on(primary: Primary, tmp_path: Path, nth: int) -> None:
    directory = tmp_path / "standby"
    primary.pull(directory)
    rewrite(primary)
    store = FaultStore(primary.store, [Fault(FaultKind.ERROR, "get", nth=nth, times=-1)])
    with Standby(primary.url, directory, clock=CLOCK, ids=IDS, files=PosixFiles()) as standby:
        with pytest.raises(RemoteUnavailableError):
            Runner(store, CLOCK, IDS).run(standby.pull(), lambda _: None)
        store.clear()
        Runner(store, CLOCK, IDS).run(standby.pull(), lambda _: None)
    primary.matches(directory)


def test_one_damaged_object_does_not_delay_the_other_partitions(primary: Primary, tmp_path: Path) -> None:
    directory = tmp_path / "standby"
    primary.pull(directory)
    noted = read_standby(directory, PosixFiles())
    primary.append()
    damaged = FaultStore(primary.store, [Fault(FaultKind.FLIPPED, "get", "*.log", times=2)])
    report = primary.pull(directory, store=damaged)
    assert [error.code for error in report.errors] == ["corruption"]
    assert report.segments > 0
    assert read_standby(directory, PosixFiles()) == noted
    primary.pull(directory)
    primary.matches(directory)


def test_a_lost_entry_is_no_deletion(primary: Primary, tmp_path: Path) -> None:
    directory = tmp_path / "standby"
    primary.pull(directory)
    before = primary.records(directory)
    primary.store.execute(Delete((topic_key("flights"),)))
    report = primary.pull(directory)
    assert [type(error) for error in report.errors] == [LogDestroyedError]
    assert primary.records(directory) == before
    with pytest.raises(LogDestroyedError):
        primary.promote(directory)


def test_a_topic_that_is_made_again_replaces_the_old_one(primary: Primary, tmp_path: Path) -> None:
    directory = tmp_path / "standby"
    primary.pull(directory)
    primary.store.execute(Delete((topic_key("flights"),)))
    primary.log.close()
    with tiered.open(tmp_path / "other", primary.url) as other:
        other.topic("flights", create=True).append(b"another topic")
        other.sync(timeout=60)
    assert primary.pull(directory).dropped == ("flights",)
    assert [value for _, value in primary.records(directory)[TopicPartition("flights", 0)]] == [b"another topic"]


def test_it_is_refused_for_writing_until_it_is_promoted(primary: Primary, tmp_path: Path) -> None:
    directory = tmp_path / "standby"
    primary.pull(directory)
    with pytest.raises(ConfigError, match="read-only") as refused:
        tiered.open(directory, primary.url)
    assert "--promote" in refused.value.hint
    with pytest.raises(ConfigError, match="read-only"):
        LogDirectory(directory, clock=CLOCK, ids=IDS).acquire()
    with pytest.raises(ConfigError, match="read-only"), RepairDirectory(directory, PosixFiles()).locked(CLOCK):
        pass
    with pytest.raises(ConfigError, match="follows memory"):
        Standby("memory://other", directory, clock=CLOCK, ids=IDS, files=PosixFiles()).__enter__()
    with pytest.raises(ConfigError, match="cannot follow"):
        primary.pull(tmp_path / "primary")
    with pytest.raises(ConfigError, match="follows no bucket"):
        primary.promote(tmp_path / "primary")


def test_a_first_pull_that_is_refused_leaves_nothing(primary: Primary, tmp_path: Path) -> None:
    directory, store = tmp_path / "standby", FaultStore(primary.store, [Fault(FaultKind.PERMISSION, "list", times=-1)])
    with pytest.raises(RemotePermissionError):
        primary.pull(directory, store=store)
    assert not directory.exists()
    primary.pull(directory)
    with pytest.raises(RemotePermissionError):
        primary.pull(directory, store=store)
    primary.matches(directory)


def test_a_promotion_fences_the_primary_and_names_what_only_its_disk_has(primary: Primary, tmp_path: Path) -> None:
    directory = tmp_path / "standby"
    primary.pull(directory)
    primary.append()
    positions = primary.commit()
    primary.append(3, sync=False)
    ends = primary.promote(directory)
    committed = {tp: records[-1][0] + 1 for tp, records in primary.records().items()}
    assert ends == committed
    with pytest.raises(FencedError, match=rf"offsets {committed['flights', 0]}\.\.{committed['flights', 0] + 3} of"):
        primary.log.sync(timeout=60)
    primary.log.close()
    with pytest.raises(ConfigError, match="cannot follow"):
        primary.pull(directory)
    with tiered.open(directory, primary.url) as log:
        assert positions_of_group(log) == positions
        assert log.topic("flights").append(b"first", partition=0).offset == committed["flights", 0]
        log.sync(timeout=60)
    aside = tiered.admin.rejoin(primary.path)
    aside.apply()
    assert {each.tp: each.end_offset - each.committed_end for each in aside.details.partitions} == dict.fromkeys(
        ends, 3
    )


def test_a_primary_that_commits_in_between_wins(primary: Primary, tmp_path: Path) -> None:
    """The claim is refused, the directory is a standby still, and the next promotion succeeds."""
    directory = tmp_path / "standby"
    primary.pull(directory)

    class Racing(FaultStore):
        def execute(self, request: object) -> object:
            if type(request).__name__ == "Put" and not self.raced:
                self.raced = True
                primary.append(1)
            return super().execute(request)  # type: ignore[arg-type]

        raced = False

    with pytest.raises(FencedError) as refused:
        primary.promote(directory, store=Racing(primary.store))
    assert "promote again" in refused.value.hint
    assert read_standby(directory, PosixFiles()) is not None
    primary.promote(directory)
    with tiered.open(directory, primary.url) as log:
        log.topic("flights").append(b"x", partition=0)
        log.sync(timeout=60)


def test_a_promotion_that_is_killed_before_its_end_has_positions_and_can_be_repeated(
    primary: Primary, tmp_path: Path
) -> None:
    positions, directory = primary.commit(), tmp_path / "standby"
    primary.log.close()
    primary.pull(directory)

    def cut(operation: str, path: Path) -> int:
        if (operation, path.name) == ("unlink", STANDBY_NAME):
            raise PowerCut
        return 0

    with pytest.raises(PowerCut):
        primary.promote(directory, files=FaultyFiles(cut))
    _free(directory)
    assert primary.pull(directory).is_empty  # the topic of positions is not taken for one that the bucket lost
    primary.promote(directory)
    with tiered.open(directory, primary.url) as log:
        assert positions_of_group(log) == positions


@pytest.mark.long
def test_a_promotion_that_is_killed_at_any_effect_can_be_repeated(primary: Primary, tmp_path: Path) -> None:
    primary.log.close()
    template = tmp_path / "template"
    primary.pull(template)
    bucket = primary.store._bucket
    state = dict(bucket.objects)
    counting = FaultyFiles()
    primary.promote(_copied(template, tmp_path / "whole"), files=counting)
    for number in range(1, len(counting.effects) + 1):
        bucket.objects = dict(state)
        directory = _copied(template, tmp_path / f"killed-{number}")
        with contextlib.suppress(PowerCut):
            primary.promote(directory, files=FaultyFiles(on_nth(number, "*", PowerCut)))
        _free(directory)
        if read_standby(directory, PosixFiles()) is not None:
            primary.promote(directory)
        with tiered.open(directory, primary.url) as log:
            log.topic("flights").append(b"%d" % number, partition=0)
            log.sync(timeout=60)
