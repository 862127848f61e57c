"""What is kept beside the newest catalog: each kind of damage to it is found, by its key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.admin import check
from tests.unit.check.building import TOPIC, Scenario, scenario
from tests.unit.remote.paged.model import TINY
from tiered.check.check import CheckOptions
from tiered.check.findings import Finding, Severity
from tiered.format.keys import (
    hist_key,
    hist_prefix,
    index_key,
    segment_key,
    snap_key,
)
from tiered.format.root import encode_root
from tiered.model import TRASH_LIST, Row
from tiered.remote.catalog import Catalog
from tiered.remote.gc.garbage import Collector, page_key_of
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import create_snapshot, delete_snapshot
from tiered.store.base import Head, Object, Outcome, StoreAround, StoreRequest
from tiered.store.driver import drive
from tiered.store.steps import list_all

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
    small = replace(TINY, leaf_rows=2, tail_rows=3, **shape)
    catalog = Catalog(log.root().topic_id, 0, TOPIC, shape=small, persist=lambda *_: None)
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


@pytest.mark.parametrize("read_data", [False, True])
def test_bytes_that_rot_below_the_checksum_of_a_store_are_read(log: Scenario, read_data: bool) -> None:
    """The store goes on telling the checksum that it was given: who reads the bytes sees that they are others."""
    snapshot, row = kept(log)
    key = segment_key(log.root().topic_id, 0, row)
    data = log.read(key)
    log.replace(key, data[:300] + bytes([data[300] ^ 1]) + data[301:])

    class Believes(StoreAround):
        """What its HEAD tells is from before."""

        def execute(self, request: StoreRequest) -> Outcome:
            outcome = self.inner.execute(request)
            of_it = isinstance(request, Head) and request.key == key
            return replace(outcome, crc32c=row.crc) if of_it and isinstance(outcome, Object) else outcome

    report = check(None, Believes(log.store), CheckOptions(read_data=read_data))
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


def test_all_that_a_snapshot_has_lost_is_named(log: Scenario) -> None:
    """Three ``.log``s and two bundles of others, each in its own way; the bundle of a lost ``.log`` is passed over."""
    snapshot, rows = held(log, 5)
    topic_id = log.root().topic_id
    logs = [segment_key(topic_id, 0, row) for row in rows]
    bundles = [index_key(topic_id, 0, row) for row in rows]
    for key in (logs[0], bundles[0], bundles[2]):
        log.delete(key)
    log.replace(logs[1], log.read(logs[1])[:-1])
    hurt(log, logs[3])
    hurt(log, bundles[4])
    found = seen(log)
    wrong = [logs[0], logs[1], bundles[2], logs[3], bundles[4]]
    assert [(one.where, one.offset) for one in found] == [(snapshot, row.base) for row in rows]
    for one, key in zip(found, wrong, strict=True):
        expected = (Severity.ERROR, "snapshot") if key in logs else (Severity.WARNING, "snapshot_index")
        assert (one.severity, one.code) == expected
        assert [each for each in (*logs, *bundles) if each in one.message] == [key]
        assert "`tiered snapshot delete kept flights:0`" in one.message


@pytest.mark.parametrize("source", ["root", "hist"])
def test_a_root_that_was_copied_over_a_snapshot_is_told(log: Scenario, source: str) -> None:
    """The copy is a whole root of this partition. Objects of the snapshot are deleted by the next collection."""
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

    class Meanwhile(StoreAround):
        """Store that deletes the snapshot and its segments before the check reads them."""

        gone = False

        def execute(self, request: StoreRequest) -> Outcome:
            if isinstance(request, Head) and "/s/" in request.key and not self.gone:
                self.gone = True
                drive(log.store, delete_snapshot(view, "kept"))
                for key in (segment_key(root.topic_id, 0, row), index_key(root.topic_id, 0, row)):
                    log.delete(key)
                if again:
                    drive(log.store, create_snapshot(RootView(root.topic_id, 0, TOPIC), "kept"))
            return self.inner.execute(request)

    store = Meanwhile(log.store)
    report = check(None, store)
    assert store.gone
    assert [one for one in report.findings if one.severity is not Severity.INFO] == []


def test_copies_that_cannot_be_read_or_changed_places_are_warnings(log: Scenario) -> None:
    root = log.root()
    keys = [hist_key(root.topic_id, 0, version) for version in (3, 4, 5)]
    for version, key in zip((3, 4, 5), keys, strict=True):
        log.replace(key, encode_root(replace(root, version=min(version, 4))))
    hurt(log, keys[0])
    log.replace(log.root_key(), encode_root(replace(root, version=9)))
    found = seen(log, read_data=True)
    assert [(one.severity, one.code, one.where) for one in found] == [
        (Severity.WARNING, "hist", key) for key in (keys[0], keys[2])
    ]
    assert "contains version 4" in found[1].message
    log.delete(keys[2])
    assert seen(log) == []  # all but the newest are read with the data
    assert [one.where for one in seen(log, read_data=True)] == [keys[0]]


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
    assert found.message.startswith(f"the copy cannot be read: {key}: checksum is ")
    assert "put it back from a version or a backup of the bucket" in found.message
    log.delete(key)  # as it says
    assert seen(log) == []
