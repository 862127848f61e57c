"""``check`` of a catalog with pages: clean where all are there; one that is lost or damaged is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.check.building import TOPIC, Scenario, scenario
from tests.unit.paged.model import TINY
from tiered.care.run import check
from tiered.dump.small_files import small_items
from tiered.findings import Severity
from tiered.model import BytesSource
from tiered.plan.housekeeping import GcFloorIntent
from tiered.remote.catalog import Catalog, CommitLimits
from tiered.store.driver import drive


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path) as built:
        root = built.root()
        shape = replace(TINY, leaf_rows=2, tail_rows=3)
        catalog = Catalog(root.topic_id, 0, TOPIC, limits=CommitLimits(shape=shape))
        drive(built.store, catalog.claim("m", "test"))
        drive(built.store, catalog.commit(GcFloorIntent(1)))
        yield built


def errors(log: Scenario) -> list[tuple[str, str]]:
    return [(one.code, one.where) for one in check(None, log.store).findings if one.severity is Severity.ERROR]


def test_it_is_clean(log: Scenario) -> None:
    assert len(log.root().leaves)
    assert errors(log) == []


@pytest.mark.parametrize("damage", ["lost", "flipped", "cut"])
def test_a_page_that_is_lost_or_damaged_is_named(log: Scenario, damage: str) -> None:
    root = log.root()
    key = root.page_key(root.leaves.pointer(-1))
    if damage == "lost":
        log.delete(key)
    else:
        data = bytearray(log.read(key))
        data[-10] ^= 1
        log.replace(key, bytes(data if damage == "flipped" else data[:-1]))
    assert errors(log) == [("page", key)]


def test_a_dump_of_the_root_names_its_pages(log: Scenario) -> None:
    root = log.root()
    head, *rest = [entry.fields() for entry in small_items("root", BytesSource(log.read(log.root_key())))]
    assert (head["segments"], head["pages"]) == (root.added.segments, len(root.leaves))
    assert [entry["key"] for entry in rest if "key" in entry] == [root.page_key(pointer) for pointer in root.leaves]
    assert sum(entry.get("rows", 1) for entry in rest) == root.added.segments
