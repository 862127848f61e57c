"""Acceptance cases of the remote tier; the number in a name is the case's own. Ends are exclusive here."""

from __future__ import annotations

import pytest

from tests.support.remote_face import RemoteFace
from tests.unit.remote.building import TOPIC_ID, RemoteLog, batches, seal
from tests.unit.remote.catalog.script import Desk, World
from tests.unit.remote.recording import RecordingStore
from tiered.config import TopicConfig
from tiered.format.root import encode_root
from tiered.format.rows import ROW_BYTES
from tiered.plan.retention import plan_remote_expiry
from tiered.remote.fetch import ByteCache
from tiered.remote.reader import SharedCaches
from tiered.store.layers import LayeredStore
from tiered.store.limit import Limits
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def desk(world: World) -> Desk:
    """A writer with a claim on an empty partition."""
    desk = world.desk("w")
    desk.claim()
    return desk


@pytest.mark.parametrize(
    ("setting", "reason"), [("retention_ms", "retention.ms"), ("retention_bytes", "retention.bytes")]
)
def test_case_84_nothing_is_kept_of_what_is_committed(world: World, desk: Desk, setting: str, reason: str) -> None:
    """One that is being copied is in no root: it stays in this pass and goes in the next."""
    config = TopicConfig(**{setting: 0})
    first, second = desk.row(0, 100), desk.row(100, 200)
    root = world.run(desk.catalog.append([first]))
    now_ms = second.max_ts + 1
    plan = plan_remote_expiry(root.rows, config=config, now_ms=now_ms, start_offset=root.start_offset)
    assert (plan.start_offset, plan.segments, plan.reasons) == (100, 1, (setting.replace("_", "."),))
    root = world.run(desk.catalog.append([second]))
    root = world.run(desk.catalog.trim(plan.start_offset))
    assert ([row.base for row in root.rows], root.start_offset) == ([100], 100)
    plan = plan_remote_expiry(root.rows, config=config, now_ms=now_ms, start_offset=root.start_offset)
    root = world.run(desk.catalog.trim(plan.start_offset))
    assert (len(root.rows), root.start_offset, root.next_offset) == (0, 200, 200)
    assert [entry.base for entry in root.trash] == [0, 100]


def test_case_85_what_the_catalog_keeps_of_a_segment_has_one_size() -> None:
    """There is no metadata of a plug-in's own that could grow: a row has 96 bytes whatever the segment, and no more."""
    log = RemoteLog(MemoryStore())
    sizes = []
    for at, count in ((0, 1), (1, 10), (11, 500), (511, 1)):
        log.add(seal(batches(at, at + count)))
        root = log.root
        assert root is not None
        sizes.append(len(root.rows.canonical_bytes()))
    assert sizes == [ROW_BYTES * (i + 1) for i in range(4)]
    assert len(encode_root(root)) < 4096


def test_case_86_the_quota_holds_the_second_segment_back() -> None:
    clock = FakeClock()
    first, second = seal(batches(0, 100)), seal(batches(100, 200))
    quota = first.descriptor.size_bytes + 1  # a second; spent by the first segment and its indexes
    store = LayeredStore(MemoryStore(), Limits(bytes_per_second=quota, clock=clock))
    log = RemoteLog(store, clock=clock)
    assert log.root is None
    began = clock.monotonic()
    log.add(first)
    root = log.root
    assert root is not None
    assert root.next_offset - 1 == 99
    waited = clock.monotonic() - began
    assert waited < 2
    log.add(second)
    root = log.root
    assert root is not None
    assert root.next_offset - 1 == 199
    assert clock.monotonic() - began - waited > 0.9


# -- the index cache ---------------------------------------------------------------------------------------------------


def indexed(store: RecordingStore) -> RemoteLog:
    """Three segments, too large to be read without an index."""
    log = RemoteLog(store)
    for at in range(3):
        log.add(seal(batches(at * 1000, (at + 1) * 1000, size=1500), interval_bytes=4096))
    return log


def bundles(store: RecordingStore) -> int:
    return sum(1 for request in store.requests if getattr(request, "key", "").endswith(".idx"))


def reader(store: RecordingStore, indexes: ByteCache) -> RemoteFace:
    return RemoteFace(store, "flights", TOPIC_ID, 0, clock=FakeClock(), shared=SharedCaches(indexes=indexes))


def look(store: RecordingStore, indexes: ByteCache, *segments: int) -> None:
    """One lookup each, by streams that share nothing but the cache."""
    for at in segments:
        found = next(reader(store, indexes).read_batches(at * 1000 + 990))
        assert int.from_bytes(found[:8], "big") == at * 1000 + 990


def test_case_87_a_cache_for_two_keeps_two() -> None:
    """Ours is in memory, and streams share it: a restart fetches again (docs/deviations.md)."""
    store = RecordingStore(MemoryStore())
    log = indexed(store)
    root = log.root
    assert root is not None
    room = 2 * max(row.idx_len for row in root.rows) + 10
    cache = ByteCache(room)
    store.requests.clear()
    asked = []
    for segments in ((0, 1, 2), (1, 2), (0,), (0, 2), (1,)):
        look(store, cache, *segments)
        asked.append(bundles(store))
        assert cache.size_bytes <= room
    assert asked == [3, 3, 4, 4, 5]
    look(store, ByteCache(1), 0, 0)
    assert bundles(store) == 7


def test_a_damaged_bundle_in_the_cache_is_fetched_again() -> None:
    store, cache = RecordingStore(MemoryStore()), ByteCache()
    indexed(store)
    look(store, cache, 0)
    ((entry, good),) = cache._held.items()
    for damaged in (b"", good[:50], bytes(len(good))):
        cache.put(entry, damaged)
        store.requests.clear()
        look(store, cache, 0)
        assert (bundles(store), cache.get(entry)) == (1, good)
