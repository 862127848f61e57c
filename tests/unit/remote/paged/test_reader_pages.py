"""A reader whose catalog is older than what was collected since: it looks at a newer root, once, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import tiered
from tests.unit.check.building import RECORDS, TOPIC, Scenario, scenario
from tests.unit.remote.paged.model import TINY
from tiered.format.bundle import decode_bundle, encode_bundle
from tiered.format.keys import FLAG_MAINTAINER, index_key, segment_key
from tiered.model import Row
from tiered.plan.catalog_edit import ReplaceIntent
from tiered.plan.commit import GcFloorIntent
from tiered.remote.catalog import Catalog
from tiered.remote.catalog_view import CatalogView
from tiered.remote.gc.garbage import Collector
from tiered.remote.reader import RemotePartition
from tiered.store.base import ABSENT, Put, Steps
from tiered.store.driver import drive
from tiered.testing.clock import START_MS

CASES = [{}, {"since": START_MS}, {"isolation": "read_committed"}]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path) as built:
        drive(built.store, maintaining(built).commit(GcFloorIntent(1)))
        yield built


class Race:
    """Once ``armed``, it comes between the next look at a root and what is done with it. ``seen``: all versions."""

    def __init__(self) -> None:
        self.armed: Callable[[], None] | None = None
        self.seen: list[int] = []

    def after(self, version: int) -> None:
        self.seen.append(version)
        armed, self.armed = self.armed, None
        if armed is not None:
            armed()


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch) -> Race:
    found = Race()
    inner = RemotePartition.refresh

    def refresh(self: RemotePartition) -> Steps[CatalogView | None]:
        snapshot = yield from inner(self)
        found.after(snapshot.version if snapshot is not None else 0)
        return snapshot

    monkeypatch.setattr(RemotePartition, "refresh", refresh)
    return found


def maintaining(log: Scenario) -> Catalog:
    """A maintainer's catalog with pages of two rows, claimed."""
    small = replace(TINY, leaf_rows=2, tail_rows=3)
    catalog = Catalog(log.root().topic_id, 0, TOPIC, shape=small)
    drive(log.store, catalog.claim("m", "test"))
    return catalog


def rewrite(log: Scenario) -> None:
    """Every leaf made anew, its segments uploaded anew; the old ones are deleted."""
    catalog = maintaining(log)
    snapshot = drive(log.store, catalog.pin())
    assert snapshot is not None
    assert len(snapshot.root.leaves) > 1
    end = snapshot.root.leaves.pointer(-1).next
    at = 0
    while at < end:
        rows = list(drive(log.store, snapshot.piece(at)))
        drive(log.store, catalog.commit(ReplaceIntent(tuple(rows), tuple([again(log, catalog, row) for row in rows]))))
        at = rows[-1].next
    assert drive(log.store, Collector(catalog, 0).run()).objects > 2 * len(snapshot.root.leaves)


def again(log: Scenario, catalog: Catalog, row: Row) -> Row:
    """The segment of ``row`` under another name."""
    new = row._replace(id_lo=row.id_lo ^ 1, claim_epoch=catalog.claim_epoch, flags=row.flags | FLAG_MAINTAINER)
    bundle = decode_bundle(log.read(index_key(catalog.topic_id, 0, row)))
    body = encode_bundle(bundle.descriptor, bundle.indexes, new.claim_epoch)
    log.store.execute(Put(index_key(catalog.topic_id, 0, new), body, ABSENT))
    log.store.execute(
        Put(segment_key(catalog.topic_id, 0, new), log.read(segment_key(catalog.topic_id, 0, row)), ABSENT)
    )
    return new


@pytest.mark.parametrize("options", CASES)
def test_it_reads_on_behind_a_newer_root(log: Scenario, race: Race, options: dict[str, object]) -> None:
    with tiered.open_reader(log.url) as reader:
        topic = reader.topic(TOPIC)
        old, race.armed = log.root().version, partial(rewrite, log)
        found = list(topic.read(**options))  # type: ignore[arg-type]  # keywords of each case
    assert [record.offset for record in found] == list(range(RECORDS))
    assert race.seen == [old, log.root().version]


def test_a_lookup_by_time_goes_on_where_the_log_begins_now(log: Scenario, race: Race) -> None:
    offset = log.root().leaves.pointer(0).next

    def retain() -> None:
        catalog = maintaining(log)
        drive(log.store, catalog.trim(offset))
        drive(log.store, Collector(catalog, 0).run())

    with tiered.open_reader(log.url) as reader:
        race.armed = retain
        (found,) = reader.topic(TOPIC).offsets_for_times(START_MS).values()
        assert found == (offset, START_MS + offset * 1000)
        assert len(race.seen) == 2
