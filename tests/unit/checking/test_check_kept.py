"""What is kept beside the newest catalog: each kind of damage to it is found, by its key."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from tests.unit.checking.building import TOPIC, Scenario, scenario
from tests.unit.remote.paged.model import TINY
from tiered.checking.check import CheckOptions
from tiered.checking.kept import SnapshotNames
from tiered.checking.run import check
from tiered.errors import CorruptionError, RemotePermissionError
from tiered.findings import MAX_SAME_FINDINGS, Finding, Severity
from tiered.format.keys import (
    gc_audit_key,
    gc_audit_prefix,
    hist_key,
    hist_prefix,
    index_key,
    parse_gc_audit_key,
    pin_key,
    segment_key,
    snap_key,
)
from tiered.format.root import encode_root
from tiered.format.rows import Rows
from tiered.format.trash import TRASH_LIST
from tiered.model import Row
from tiered.remote.audit import write_line
from tiered.remote.catalog import Catalog, CommitLimits
from tiered.remote.collect import Collector, page_key_of
from tiered.remote.past import create_snapshot, delete_snapshot
from tiered.remote.root_view import RootView
from tiered.remote.snapshot import Snapshot
from tiered.store.base import ABSENT, Get, Head, List, Object, Outcome, Put, Steps, StoreRequest, list_all
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

pytestmark = pytest.mark.usefixtures("both_catalogs")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path) as built:
        yield built


def seen(log: Scenario, *, read_data: bool = False) -> list[Finding]:
    report = check(None, log.store, CheckOptions(read_data=read_data))
    return [one for one in report.findings if one.severity is not Severity.INFO]


def trimmed(log: Scenario, **shape: int) -> Catalog:
    """The first two segments leave the newest catalog."""
    limits = CommitLimits(shape=replace(TINY, leaf_rows=2, tail_rows=3, **shape))
    catalog = Catalog(log.root().topic_id, 0, TOPIC, limits=limits, persist=lambda *_: None)
    drive(log.store, catalog.claim("m", "test"))
    drive(log.store, catalog.trim(log.rows()[1].next))
    return catalog


def kept(log: Scenario) -> tuple[str, Row]:
    """A snapshot, and the row of a segment that nothing else names."""
    root, row = log.root(), log.rows()[0]
    drive(log.store, create_snapshot(RootView(root.topic_id, 0, TOPIC), "kept"))
    trimmed(log)
    return snap_key(root.topic_id, 0, "kept"), row


def hurt(log: Scenario, key: str) -> None:
    data = bytearray(log.read(key))
    data[len(data) // 2] ^= 1
    log.replace(key, bytes(data))


@pytest.mark.parametrize("read_data", [False, True])
def test_a_whole_one_is_clean(log: Scenario, read_data: bool) -> None:
    kept(log)
    assert seen(log, read_data=read_data) == []


@pytest.mark.parametrize("damage", ["lost", "cut", "flipped"])
@pytest.mark.parametrize("side", [".log", ".idx"])
def test_what_only_a_snapshot_names_is_looked_at(log: Scenario, damage: str, side: str) -> None:
    """What a bundle held the ``.log`` tells: a warning."""
    snapshot, row = kept(log)
    key = (segment_key if side == ".log" else index_key)(log.root().topic_id, 0, row)
    data = log.read(key)
    log.delete(key)
    if damage != "lost":
        log.replace(key, data[:-1] if damage == "cut" else data[:300] + bytes([data[300] ^ 1]) + data[301:])
    (found,) = seen(log, read_data=True)
    if side == ".log":
        assert (found.severity, found.code, found.where) == (Severity.ERROR, "snapshot", snapshot)
    else:
        assert (found.severity, found.code, found.where) == (Severity.WARNING, "snapshot_index", snapshot)
        assert "`tiered restore --as-of kept`" in found.message
    assert (found.message.startswith("snapshot kept: "), key in found.message) == (True, True)
    assert "or delete the snapshot: `tiered snapshot delete kept flights:0`" in found.message


@pytest.mark.parametrize("read_data", [False, True])
def test_a_bundle_of_another_segment_is_told_that_only_a_snapshot_names(log: Scenario, read_data: bool) -> None:
    """It is whole, and of the same size."""
    rows, topic_id = log.rows(), log.root().topic_id
    snapshot, row = kept(log)
    other = next(each for each in rows[1:] if each.idx_len == row.idx_len)
    key = index_key(topic_id, 0, row)
    log.replace(key, log.read(index_key(topic_id, 0, other)))
    (found,) = seen(log, read_data=read_data)
    assert (found.severity, found.code, found.where) == (Severity.WARNING, "snapshot_index", snapshot)
    assert f"{key}, with offsets {row.base} to {row.next}, describes other bytes" in found.message


@pytest.mark.parametrize("read_data", [False, True])
def test_bytes_that_rot_below_the_checksum_of_a_store_are_read(log: Scenario, read_data: bool) -> None:
    """The store goes on telling the checksum that it was given: who reads the bytes sees that they are others."""
    snapshot, row = kept(log)
    key = segment_key(log.root().topic_id, 0, row)
    data = log.read(key)
    log.replace(key, data[:300] + bytes([data[300] ^ 1]) + data[301:])

    class Believes:
        """What its HEAD tells is from before."""

        url = log.store.url

        def execute(self, request: StoreRequest) -> Outcome:
            """One request."""
            outcome = log.store.execute(request)
            of_it = isinstance(request, Head) and request.key == key
            return replace(outcome, crc32c=row.crc) if of_it and isinstance(outcome, Object) else outcome

        def close(self) -> None:
            """Nothing is open."""

    report = check(None, Believes(), CheckOptions(read_data=read_data))
    found = [(one.code, one.where) for one in report.findings if one.severity is Severity.ERROR]
    assert found == ([("snapshot", snapshot)] if read_data else [])


def held(log: Scenario, segments: int) -> tuple[str, list[Row]]:
    """A snapshot, and the rows of so many segments that nothing else names."""
    root, rows = log.root(), log.rows()[:segments]
    drive(log.store, create_snapshot(RootView(root.topic_id, 0, TOPIC), "kept"))
    catalog = Catalog(root.topic_id, 0, TOPIC, persist=lambda *_: None)
    drive(log.store, catalog.claim("m", "test"))
    drive(log.store, catalog.trim(rows[-1].next))
    return snap_key(root.topic_id, 0, "kept"), rows


@pytest.mark.parametrize("named", [1, 2, 8])
def test_all_that_a_snapshot_has_lost_is_named_up_to_a_limit(
    log: Scenario, named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three ``.log``s and two bundles of others, each in its own way; the bundle of a lost ``.log`` is passed over."""
    monkeypatch.setattr("tiered.checking.kept.NAMED_OBJECTS", named)
    snapshot, rows = held(log, 5)
    topic_id = log.root().topic_id
    logs = [segment_key(topic_id, 0, row) for row in rows]
    bundles = [index_key(topic_id, 0, row) for row in rows]
    for key in (logs[0], bundles[0], bundles[2]):
        log.delete(key)
    log.replace(logs[1], log.read(logs[1])[:-1])
    hurt(log, logs[3])
    hurt(log, bundles[4])
    error, warning = seen(log)
    assert (error.severity, error.code, error.where) == (Severity.ERROR, "snapshot", snapshot)
    assert (warning.severity, warning.code, warning.where) == (Severity.WARNING, "snapshot_index", snapshot)
    assert error.offset == rows[0].base
    for finding, wrong in ((error, [logs[0], logs[1], logs[3]]), (warning, [bundles[2], bundles[4]])):
        assert [key for key in (*logs, *bundles) if key in finding.message] == wrong[:named]
        more = len(wrong) - named
        assert (f"; {more} more are gone or wrong; " in finding.message) == (more > 0)
        assert "`tiered snapshot delete kept flights:0`" in finding.message


def test_behind_a_page_that_is_lost_nothing_is_looked_at(log: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """What precedes it is named, too."""
    snapshot, rows = held(log, 4)
    whole = Snapshot.piece

    def piece(self: Snapshot, at: int) -> Steps[Rows]:
        found = yield from whole(self, at)
        if self.start_offset:
            return found
        if at:
            raise CorruptionError("the page with these rows is gone", offset=at)
        return found.slice(0, 2)

    monkeypatch.setattr(Snapshot, "piece", piece)
    lost = [segment_key(log.root().topic_id, 0, rows[number]) for number in (1, 3)]
    for key in lost:
        log.delete(key)
    (found,) = seen(log)
    assert (found.code, found.where, found.offset) == ("snapshot", snapshot, rows[1].base)
    assert f"{lost[0]}, with offsets {rows[1].base} to {rows[1].next}, is gone; the page with these" in found.message
    assert lost[1] not in found.message


@pytest.mark.parametrize("source", ["root", "hist"])
def test_a_root_that_was_copied_over_a_snapshot_is_told(log: Scenario, source: str) -> None:
    """It is a whole root of this partition, and what the snapshot held goes with the next collection."""
    snapshot, _ = kept(log)
    right, topic_id = log.read(snapshot), log.root().topic_id
    copies = [entry.key for entry in drive(log.store, list_all(hist_prefix(topic_id, 0)))]
    key = copies[-1] if source == "hist" else log.root_key()
    log.replace(snapshot, log.read(key))
    (found,) = seen(log)
    assert (found.severity, found.code, found.where) == (Severity.ERROR, "snapshot", snapshot)
    assert "is no snapshot: a root was copied there" in found.message
    assert "put the object back from a version or a backup of the bucket, or delete the snapshot" in found.message
    log.replace(snapshot, right)
    assert seen(log) == []


def partitioned(log: Scenario, *partitions: int, name: str = "kept") -> list[str]:
    """A snapshot of these; its keys."""
    topic_id = log.root().topic_id
    for partition in partitions:
        drive(log.store, create_snapshot(RootView(topic_id, partition, TOPIC), name))
    return [snap_key(topic_id, partition, name) for partition in partitions]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path, partitions=3) as built:
        yield built


@pytest.mark.parametrize("partition", [0, 1, 2])
def test_a_snapshot_that_one_partition_lost_is_told(three: Scenario, partition: int) -> None:
    keys = partitioned(three, 0, 1, 2)
    assert seen(three) == []
    right = three.read(keys[partition])
    three.delete(keys[partition])
    (found,) = seen(three)
    told = (found.severity, found.code, found.where, found.topic, found.partition)
    assert told == (Severity.WARNING, "snapshot_missing", keys[partition], TOPIC, partition)
    others = ", ".join(str(each) for each in range(3) if each != partition)
    assert f"kept is there of partitions {others} of {TOPIC}, and not of partition {partition}, where" in found.message
    three.replace(keys[partition], right)
    assert seen(three) == []


def test_a_snapshot_that_was_taken_of_few_or_deleted_of_some_is_no_warning(three: Scenario) -> None:
    (key,) = partitioned(three, 1)
    assert seen(three) == []
    told = [one for one in check(None, three.store).findings if one.code == "snapshot_missing"]
    assert [(one.severity, one.partition) for one in told] == [(Severity.INFO, 0)]
    assert "of partition 1 of flights, and not of partitions 0, 2, where" in told[0].message
    three.delete(key)
    partitioned(three, 0, 1, 2)
    drive(three.store, delete_snapshot(RootView(three.root().topic_id, 2, TOPIC), "kept"))
    assert [one.code for one in check(None, three.store).findings] == []


@pytest.mark.parametrize("later", [False, True])
def test_a_partition_that_was_added_later_lacks_no_snapshot(three: Scenario, later: bool) -> None:
    partitioned(three, 0, 1)
    root = three.root(2)
    created_ms = time.time_ns() // 1_000_000 + 1_000_000
    changed = replace(root, created_ms=created_ms, commit=replace(root.commit, ts_ms=created_ms))
    if later:
        three.replace(three.root_key(2), encode_root(changed))
    assert [one.code for one in seen(three)] == [] if later else ["snapshot_missing"]


def test_a_snapshot_that_is_taken_while_it_is_looked_for_is_missing_nowhere(three: Scenario) -> None:
    class Meanwhile:
        """It is taken once the first partition was looked at."""

        url = three.store.url
        taken = False

        def execute(self, request: StoreRequest) -> Outcome:
            """One request."""
            if isinstance(request, List) and request.prefix.endswith("-1/snap/") and not self.taken:
                self.taken = True
                partitioned(three, 0, 1, 2)
            return three.store.execute(request)

        def close(self) -> None:
            """Nothing is open."""

    store = Meanwhile()
    assert [one.code for one in check(None, store).findings] == []
    assert store.taken


def test_of_many_partitions_some_are_named() -> None:
    names = SnapshotNames()
    topic_id = UUID(int=1)
    for partition in range(50):
        names.note(partition, {"kept": 5} if partition > 19 else {}, 1)
    store = MemoryStore("names")
    (found,) = drive(store, names.missing("t", topic_id))
    MemoryStore.forget("names")
    assert "of partitions 20, 21, 22, 23, 24, 25, 26, 27 and 22 more of t" in found.message
    assert "not of partitions 0, 1, 2, 3, 4, 5, 6, 7 and 12 more, where" in found.message


def test_a_pin_that_cannot_be_read_is_told(log: Scenario) -> None:
    key = pin_key(log.root().topic_id, 0, "1" * 32)
    log.replace(key, b"")
    (found,) = seen(log)
    assert (found.code, found.where) == ("pin", key)
    assert "expires 6 hours after its last write" in found.message


def test_a_garbage_page_that_cannot_be_read_is_told_and_may_go(log: Scenario) -> None:
    catalog = trimmed(log, trash_entries=1, trash_page=1)
    entry = next(entry for entry in log.root().trash if entry.what == TRASH_LIST)
    key = page_key_of(log.root(), entry)
    assert seen(log) == []
    hurt(log, key)
    (found,) = seen(log)
    assert (found.severity, found.code, found.where) == (Severity.ERROR, "garbage", key)
    assert "or delete the one object" in found.message
    log.delete(key)
    assert seen(log) == []
    drive(log.store, Collector(catalog, 0).run())
    assert seen(log) == []


@pytest.mark.parametrize("again", [False, True])
def test_a_snapshot_that_is_deleted_while_it_is_looked_at_is_no_damage(log: Scenario, again: bool) -> None:
    """``again``: another one has its name by then, which holds nothing of what it held."""
    _, row = kept(log)
    root = log.root()
    view = RootView(root.topic_id, 0, TOPIC)

    class Meanwhile:
        """It goes, and what it held, before the segments are listed."""

        url = log.store.url
        gone = False

        def execute(self, request: StoreRequest) -> Outcome:
            """One request."""
            if isinstance(request, List) and request.prefix.endswith("/s/") and not self.gone:
                self.gone = True
                drive(log.store, delete_snapshot(view, "kept"))
                for key in (segment_key(root.topic_id, 0, row), index_key(root.topic_id, 0, row)):
                    log.delete(key)
                if again:
                    drive(log.store, create_snapshot(RootView(root.topic_id, 0, TOPIC), "kept"))
            return log.store.execute(request)

        def close(self) -> None:
            """Nothing to close."""

    store = Meanwhile()
    report = check(None, store)
    assert store.gone
    assert [one for one in report.findings if one.severity is not Severity.INFO] == []


def test_copies_that_cannot_be_read_or_changed_places_are_one_warning(log: Scenario) -> None:
    root = log.root()
    for version in (3, 4, 5):
        log.replace(hist_key(root.topic_id, 0, version), encode_root(replace(root, version=min(version, 4))))
    hurt(log, hist_key(root.topic_id, 0, 3))
    log.replace(log.root_key(), encode_root(replace(root, version=9)))
    (found,) = seen(log, read_data=True)
    assert (found.severity, found.code, found.where) == (Severity.WARNING, "hist", hist_key(root.topic_id, 0, 5))
    assert found.message.startswith("2 of 4 copies cannot be read, the newest of them: ")
    assert "it is of version 4" in found.message
    log.delete(hist_key(root.topic_id, 0, 5))
    assert seen(log) == []  # all but the newest are read with the data
    (found,) = seen(log, read_data=True)
    assert (found.where, found.message[:30]) == (hist_key(root.topic_id, 0, 3), "1 of 3 copies cannot be read, ")


def test_the_newest_copy_is_looked_at_without_the_data(log: Scenario) -> None:
    """A rebuild goes on from it."""
    root = log.root()
    for version in (3, 4):
        log.replace(hist_key(root.topic_id, 0, version), encode_root(replace(root, version=version)))
    log.replace(log.root_key(), encode_root(replace(root, version=9)))
    assert seen(log) == []
    key = hist_key(root.topic_id, 0, 4)
    hurt(log, key)
    (found,) = seen(log)
    assert (found.severity, found.code, found.where) == (Severity.WARNING, "hist", key)
    assert found.message.startswith(f"the newest copy cannot be read: {key}: checksum is ")
    assert "put them back from a version or a backup of the bucket" in found.message
    log.delete(key)  # as it says
    assert seen(log) == []


def lines(log: Scenario) -> list[str]:
    """Three audit lines of this partition, the newest last."""
    root = log.root()
    for version in (1, 2, 3):
        drive(log.store, write_line(replace(root, version=version), {"objects": 1}))
    found = drive(log.store, list_all(gc_audit_prefix(root.topic_id, 0)))
    assert [parse_gc_audit_key(entry.key) for entry in found] == [1, 2, 3]
    return [entry.key for entry in found]


@pytest.mark.parametrize("read_data", [False, True])
def test_an_audit_line_that_cannot_be_read_is_a_warning_with_what_to_do(log: Scenario, read_data: bool) -> None:
    keys = lines(log)
    assert seen(log, read_data=read_data) == []
    whole = log.read(keys[0])
    other = whole.replace(b'"partition": 0', b'"partition": 1')
    assert other != whole
    for wrong in (
        b"",
        b"{nothing",
        b"[]",
        b'{"topic_id": 1}',
        other,
        whole.replace(b'"at_ms": ', b'"at_ms": "x", "y": '),
    ):
        for key in (keys[0], keys[-1]):
            before = log.read(key)
            log.replace(key, wrong)
            found = seen(log, read_data=read_data)
            expected = [key] if read_data or key == keys[-1] else []
            assert [(one.severity, one.code, one.where) for one in found] == [
                (Severity.WARNING, "audit_line", each) for each in expected
            ]
            for one in found:
                assert "no record is lost" in one.message
                assert "put it back from a version or a backup" in one.message
            log.replace(key, before)
    assert check(None, log.store, CheckOptions()).exit_code == 0


def test_of_many_audit_lines_that_cannot_be_read_some_are_named(log: Scenario) -> None:
    for version in range(1, MAX_SAME_FINDINGS + 5):
        log.store.execute(Put(gc_audit_key(log.root().topic_id, 0, 1, f"{version:032x}"), b"{", ABSENT))
    found = seen(log, read_data=True)
    assert [one.code for one in found] == ["audit_line"] * (MAX_SAME_FINDINGS + 1)
    assert found[-1].message == "more of the same kind are not listed"


def test_who_may_not_read_audit_lines_is_told_that_nobody_looked(log: Scenario) -> None:
    keys = lines(log)

    class Refusing:
        """Lists them, and gives none."""

        url = log.store.url

        def execute(self, request: StoreRequest) -> Outcome:
            """One request."""
            if isinstance(request, Get) and request.key in keys:
                raise RemotePermissionError("403")
            return log.store.execute(request)

        def close(self) -> None:
            """Nothing is open."""

    told = [one for one in check(None, Refusing(), CheckOptions()).findings if one.where.startswith("jobs/gc/")]
    assert [(one.severity, one.code) for one in told] == [(Severity.INFO, "not_listed")]
    assert "jobs/gc/ is not looked at" in told[0].message
