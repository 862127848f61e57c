"""What sinks staged reads as if a log had written it: offset for offset, time for time, damage for damage."""

from __future__ import annotations

import random

import pytest

from tests.support.remote_face import RemoteFace
from tests.unit.remote.building import FIRST_MS, TRUSTED, RemoteLog, batches, other_batches, seal
from tests.unit.remote.staging import stage, twins
from tiered.errors import ConfigError, CorruptionError
from tiered.format.batch import decode_records, encode_batch
from tiered.format.bundle import decode_bundle
from tiered.format.keys import FLAG_STAGED, index_key
from tiered.model import NewRecord
from tiered.plan.read import READ_LIMITS, ReadLimits
from tiered.remote.fetch import ByteCache
from tiered.remote.reader import SharedCaches
from tiered.remote.sink_commit import upload_staged
from tiered.store.base import Get, Object
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

pytestmark = pytest.mark.usefixtures("both_catalogs")
INDEXED = ReadLimits(chunk_bytes=512, request_bytes=2048, unindexed_bytes=0)
"""The index is asked, and pieces end inside batches."""


def face(log: RemoteLog, limits: ReadLimits = READ_LIMITS) -> RemoteFace:
    return RemoteFace(log.store, log.topic, log.topic_id, log.partition, limits=limits)


@pytest.mark.parametrize("limits", [READ_LIMITS, INDEXED], ids=["whole", "indexed"])
def test_every_range_and_every_time_reads_as_in_a_log(limits: ReadLimits) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    staged, plain = twins(MemoryStore(), MemoryStore(), seed)
    assert staged.root is not None
    assert plain.root is not None
    assert {row.flags for row in staged.root.rows} == {FLAG_STAGED}
    ours, theirs = face(staged, limits), face(plain, limits)
    end = plain.root.next_offset
    assert (ours.start_offset, ours.next_offset) == (0, end)
    rng = random.Random(seed)
    for start, stop in [(0, end), *((rng.randrange(end), rng.randrange(end + 1)) for _ in range(60))]:
        got = [bytes(batch) for batch in ours.read_batches(start, stop)]
        assert got == [bytes(batch) for batch in theirs.read_batches(start, stop)]
    for _ in range(80):
        at = FIRST_MS + rng.randrange(-500, end * 10 + 500)
        assert ours.offset_for_time(at) == theirs.offset_for_time(at)
    assert (ours.aborted_txns(0, end), ours.last_stable_offset()) == ([], end)


def test_the_bytes_carry_the_leader_epoch_of_the_row() -> None:
    log = RemoteLog(MemoryStore())
    stage(log, [seal([encode_batch([NewRecord(b"v", None, 5)], base_offset=0, leader_epoch=9)])], 0)
    (batch,) = face(log).read_batches(0)
    assert int.from_bytes(bytes(batch[12:16]), "big") == 0


def test_damage_is_named_by_the_offsets_of_the_log() -> None:
    log = RemoteLog(MemoryStore())
    rows = stage(log, [seal(batches(0, 100)), seal(batches(0, 100))], 0)
    log.damage(log.log_key(rows[1]), 3000)
    with pytest.raises(CorruptionError) as error:
        list(face(log).read_batches(0))
    assert error.value.path_or_key == log.log_key(rows[1])
    assert 100 < error.value.offset < 200
    assert "flights-0" in str(error.value)
    assert [r.offset for b in face(log).read_batches(0, 100) for r in decode_records(b)] == list(range(100))


def test_a_batch_out_of_order_says_from_where_its_offsets_count() -> None:
    log = RemoteLog(MemoryStore())
    (row,) = stage(log, [seal(batches(0, 100))], 0)
    (more,) = stage(log, [seal(batches(0, 100))], 1)
    found = log.store.execute(Get(log.log_key(more)))
    assert isinstance(found, Object)
    log.replace(log.log_key(more), found.data[: len(found.data) // 2] * 2)
    with pytest.raises(CorruptionError, match="counted from its base 100"):
        list(face(log).read_batches(row.next))


def test_another_segments_bundle_is_refused() -> None:
    log = RemoteLog(MemoryStore())
    rows = stage(log, [seal(batches(0, 100)), seal(other_batches(0, 100))], 0)
    found = log.store.execute(Get(index_key(log.topic_id, 0, rows[1])))
    assert isinstance(found, Object)
    assert decode_bundle(found.data).txn == "query"
    log.replace(index_key(log.topic_id, 0, rows[0]), found.data)
    with pytest.raises(CorruptionError, match="catalog names"):
        list(face(log, INDEXED).read_batches(50, 60))


def test_bundles_are_kept_under_names_of_their_own() -> None:
    log = RemoteLog(MemoryStore())
    rows = stage(log, [seal(batches(0, 100)), seal(batches(0, 100))], 0)
    cache = ByteCache()
    reader = RemoteFace(log.store, log.topic, log.topic_id, 0, limits=INDEXED, shared=SharedCaches(cache))
    for row in rows:
        assert len(list(reader.read_batches(row.base + 40, row.base + 50))) == 1
    held = [cache.get((index_key(log.topic_id, 0, row), 0)) for row in rows]
    assert [data is not None and len(data) for data in held] == [row.idx_len for row in rows]


def test_a_segment_that_knows_its_offsets_or_its_producers_cannot_be_staged() -> None:
    store = MemoryStore()
    for segment in (seal(batches(10, 20)), seal(batches(0, 20), snapshot=b"x")):
        with pytest.raises(ConfigError, match="cannot be staged"):
            drive(store, upload_staged(segment, "q", 0, TRUSTED))
