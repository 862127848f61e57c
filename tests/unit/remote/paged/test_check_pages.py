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
from tiered.inspect.small_files import small_items
from tiered.model import TRASH_LIST, TRASH_ROWS, TRASH_TREE, BytesSource
from tiered.plan.commit import GcFloorIntent
from tiered.plan.ownership import VolumeProof
from tiered.remote.catalog import Catalog
from tiered.remote.gc.garbage import page_key_of
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


@pytest.mark.parametrize("kind", [TRASH_TREE, TRASH_ROWS, TRASH_LIST])
def test_what_the_trash_names_by_a_page_is_no_orphan(log: Scenario, kind: int) -> None:
    """Segments of an epoch that is dead, which only a page names that an entry of the trash names."""
    catalog = maintaining(log, trash_entries=1 if kind == TRASH_LIST else 9, trash_page=1)
    leaf = log.root().leaves.pointer(0)
    drive(log.store, catalog.trim(leaf.next - 1 if kind == TRASH_ROWS else leaf.next))
    (entry,) = [entry for entry in log.root().trash if entry.what == kind]
    drive(log.store, catalog.claim("w", "another disk", VolumeProof("v", empty=True, end_offset=0)))
    options = CheckOptions(orphans=True)
    assert check(None, log.store, options).findings == ()
    log.replace(page_key_of(log.root(), entry), b"garbage")
    assert "orphans_unknown" in {finding.code for finding in check(None, log.store, options).findings}
