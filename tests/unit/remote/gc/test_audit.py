"""Nothing is deleted before its audit line is stored, and a line that was refused is asked for again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.remote.building import TOPIC_ID, TRUSTED, RemoteLog, batches, seal
from tests.unit.remote.catalog.script import TOPIC_ID as PLACE_ID
from tests.unit.remote.paged.collecting import Place
from tests.unit.remote.staging import two_partitions
from tiered.config import TopicConfig
from tiered.errors import RemotePermissionError
from tiered.format.decision import COMMITTED, Decision
from tiered.format.keys import Role, SegmentName, pin_key, segment_key
from tiered.model import TopicPartition
from tiered.plan.maintenance import ORPHAN_MS, PIN_MS
from tiered.remote.gc.garbage import Collector
from tiered.remote.gc.orphans import sweep
from tiered.remote.gc.sink_orphans import DECISION_KEPT_MS, sweep_decisions
from tiered.remote.maintain import Maintainer
from tiered.remote.sink_commit import Sink, upload_staged
from tiered.store.base import Delete, Outcome, Put, StoreAround, StoreRequest
from tiered.store.driver import drive


class Lines(StoreAround):
    """A store that notes lines and deletions in their order, and refuses lines while ``refuses``."""

    refuses = True

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.seen: list[str] = []

    def execute(self, request: StoreRequest) -> Outcome:
        if isinstance(request, Put) and request.key.startswith("jobs/gc/"):
            if self.refuses:
                raise RemotePermissionError("403", operation="PutObject", resource=request.key)
            self.seen.append("line")
        if isinstance(request, Delete):
            self.seen.append("deletion")
        return self.inner.execute(request)


def orphan_of(place: Place) -> None:
    name = SegmentName(Role.WRITER, 0, 70, place.world.ids.uid())
    place.put(segment_key(PLACE_ID, 0, name), b"orphan")
    place.wait(ORPHAN_MS)


def stale_pin_of(place: Place) -> None:
    place.put(pin_key(PLACE_ID, 0, "0" * 32), b"{}")
    place.wait(PIN_MS + 1)


@pytest.mark.parametrize("left", [orphan_of, stale_pin_of])
def test_a_sweep(left: Callable[[Place], None]) -> None:
    place = Place()
    place.append(5)
    left(place)
    store = Lines(place.store)
    catalog = place.maintainer.catalog
    refused_then_done(store, lambda: drive(store, sweep(catalog, delete=True), clock=place.world.clock))


def test_a_collection() -> None:
    place = Place()
    place.append(5)
    place.trim(30)
    place.wait()
    store = Lines(place.store)
    collector, world = Collector(place.maintainer.catalog, 0), place.world
    refused_then_done(store, lambda: drive(store, collector.run(), clock=world.clock, ids=world.ids))


@pytest.fixture
def log() -> RemoteLog:
    return two_partitions()


def refused_then_done(store: Lines, act: Callable[[], Any]) -> None:
    """Act once where lines are refused, then where they are not."""
    with pytest.raises(RemotePermissionError, match="nothing was deleted"):
        act()
    assert store.seen == []
    store.refuses = False
    act()
    assert store.seen[:2] == ["line", "deletion"]


def staged(log: RemoteLog, batch: int) -> tuple[Any, ...]:
    segment = seal(batches(0, 20), partition=0)
    return (drive(log.store, upload_staged(segment, "q", batch, TRUSTED), clock=log.clock, ids=log.ids),)


def test_what_a_sink_staged(log: RemoteLog) -> None:
    staged(log, 0)
    log.clock.advance(3600)
    store = Lines(log.store)
    tp = TopicPartition(log.topic, 0)
    maintainer = Maintainer(tp, TOPIC_ID, TopicConfig(gc_grace_ms=3_600_000), owner="gc:1")
    refused_then_done(store, lambda: drive(store, maintainer.sweep(delete=True), clock=log.clock, ids=log.ids))


def test_decisions_of_sinks(log: RemoteLog) -> None:
    sink = Sink("driver:1", {TOPIC_ID: log.topic})
    for batch in range(2):
        decision = Decision("q", batch, COMMITTED, {(TOPIC_ID, 0): staged(log, batch)})
        decided = drive(log.store, sink.decide(decision), clock=log.clock, ids=log.ids)
        drive(log.store, sink.commit_staged(decided), clock=log.clock, ids=log.ids)
    log.clock.advance(DECISION_KEPT_MS / 1000)
    store = Lines(log.store)
    refused_then_done(store, lambda: drive(store, sweep_decisions(delete=True), clock=log.clock, ids=log.ids))
