"""``check`` of a catalog with pages: clean where all are there; one that is lost or damaged is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.admin import check
from tests.unit.check.building import TOPIC, Scenario, scenario
from tests.unit.remote.paged.model import TINY
from tiered.check.check import CheckOptions
from tiered.format.keys import snap_key
from tiered.inspect.small_files import small_items
from tiered.model import BytesSource, Row
from tiered.plan.commit import GcFloorIntent
from tiered.remote.catalog import Catalog
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import create_snapshot
from tiered.repair import copies
from tiered.store.base import Get, Outcome, StoreAround, StoreRequest
from tiered.store.driver import drive


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path) as built:
        drive(built.store, maintaining(built).commit(GcFloorIntent(1)))
        yield built


def maintaining(log: Scenario, **changes: int) -> Catalog:
    """A maintainer's catalog with tiny pages, claimed."""
    small = replace(TINY, leaf_rows=2, tail_rows=3, **changes)
    catalog = Catalog(log.root().topic_id, 0, TOPIC, shape=small, persist=lambda *_: None)
    drive(log.store, catalog.claim("m", "test"))
    return catalog


def test_a_dump_of_the_root_names_its_pages(log: Scenario) -> None:
    root = log.root()
    head, *rest = [entry.fields() for entry in small_items("root", BytesSource(log.read(log.root_key())))]
    assert (head["segments"], head["pages"]) == (root.added.segments, len(root.leaves))
    assert [entry["key"] for entry in rest if "key" in entry] == [root.page_key(pointer) for pointer in root.leaves]
    assert sum(entry.get("rows", 1) for entry in rest) == root.added.segments


def test_a_page_that_a_collection_deletes_meanwhile_is_no_damage(log: Scenario) -> None:
    """The check goes on with the newest root."""
    leaf = log.root().leaves.pointer(0)
    key = log.root().page_key(leaf)

    class Collecting(StoreAround):
        def execute(self, request: StoreRequest) -> Outcome:
            if isinstance(request, Get) and request.key == key and log.root().start_offset < leaf.next:
                drive(log.store, maintaining(log).trim(leaf.next))
                log.delete(key)
            return self.inner.execute(request)

    report = check(None, Collecting(log.store), CheckOptions(read_data=True))
    assert (report.findings, report.remote_bytes) == ((), sum(row.size for row in rows_of(log)))


def test_a_lost_page_of_a_snapshot_is_named(log: Scenario) -> None:
    root, leaf = log.root(), log.root().leaves.pointer(0)
    drive(log.store, create_snapshot(RootView(root.topic_id, 0, TOPIC), "kept"))
    drive(log.store, maintaining(log).trim(leaf.next))
    log.delete(root.page_key(leaf))
    (found,) = check(None, log.store).findings
    assert (found.code, found.where) == ("snapshot", snap_key(root.topic_id, 0, "kept"))
    assert root.page_key(leaf) in found.message


def rows_of(log: Scenario) -> list[Row]:
    return drive(log.store, copies.rows_of(log.root()))
