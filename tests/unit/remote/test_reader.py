"""The remote tier as one stream: what it reads, how little it asks, and what it does about damage and loss."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.remote_face import RemoteFace
from tests.unit.remote.building import FIRST_MS, RemoteLog, batches, offsets, other_batches, records, seal
from tests.unit.remote.recording import RecordingStore
from tiered.errors import (
    CorruptionError,
    LogDestroyedError,
    OffsetOutOfRangeError,
)
from tiered.format.batch import encode_batch
from tiered.format.keys import Role
from tiered.format.producer_snapshot import ProducerEntry, encode_snapshot
from tiered.format.root import Root, encode_root
from tiered.format.rows import Rows
from tiered.format.segment_indexes import OffsetIndex
from tiered.model import AbortedTxn, NewRecord, Row, TopicPartition
from tiered.plan.commit import DeletionIntent, Stamp
from tiered.plan.read import READ_LIMITS, ReadLimits
from tiered.remote.assembly import SegmentDiffers, SegmentScan
from tiered.remote.fetch import ByteCache
from tiered.remote.reader import MAX_REFRESHES
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import AsOf, Past
from tiered.store.base import Get, Match, Missing, Object, Outcome, Put, StoreRequest
from tiered.store.memory import MemoryStore

pytestmark = pytest.mark.usefixtures("both_catalogs")
Inner = Callable[[], Outcome]


@pytest.fixture
def store() -> RecordingStore:
    return RecordingStore(MemoryStore())


@pytest.fixture
def log(store: RecordingStore) -> RemoteLog:
    return RemoteLog(store)


INDEXED = ReadLimits(unindexed_bytes=0)
"""The index is asked, however small a segment is."""
SMALL = ReadLimits(chunk_bytes=512, request_bytes=2048, unindexed_bytes=0)


def partition(log: RemoteLog, limits: ReadLimits = READ_LIMITS, *, cache: ByteCache | None = None) -> RemoteFace:
    return RemoteFace(log.store, log.topic, log.topic_id, log.partition, limits=limits, cache=cache)


def unverified(log: RemoteLog, row: Row) -> int:
    """How many batches of a segment are right but for CRCs."""
    found = log.store.execute(Get(log.log_key(row)))
    assert isinstance(found, Object)
    tp = TopicPartition(log.topic, log.partition)
    scan = SegmentScan(tp, log.log_key(row), row, position=0, start=row.base, end=row.next, verify_crc=False)
    count = len(list(scan.feed(found.data)))
    scan.finish()
    return count


class TestReading:
    def test_the_end_is_empty_and_outside_is_an_error(self, log: RemoteLog) -> None:
        log.fill(50, start=20)
        reader = partition(log)
        assert list(reader.read_batches(50)) == []
        assert list(reader.read_batches(30, 30)) == []
        for outside in (19, 51):
            with pytest.raises(OffsetOutOfRangeError) as error:
                list(reader.read_batches(outside))
            assert (error.value.requested, error.value.earliest, error.value.latest) == (outside, 20, 50)

    def test_nothing_committed_is_an_empty_tier(self, log: RemoteLog) -> None:
        reader = partition(log)
        assert reader.snapshot() is None
        assert (reader.start_offset, reader.next_offset, reader.segments()) == (0, 0, [])
        assert list(reader.read_batches(0)) == []
        assert reader.offset_for_time(0) is None
        assert (reader.aborted_txns(0, 10), reader.last_stable_offset()) == ([], 0)

    def test_holes_and_offsets_that_compaction_took(self, log: RemoteLog) -> None:
        log.add(seal([batches(0, 10)[0], encode_batch(records(40, 5), base_offset=40)], end=60))
        hole = log.upload(seal(batches(60, 80)))._replace(flags=2, size=0, records=0, idx_len=0)
        log.put_root(Rows.from_rows([*(log.root.rows if log.root else []), hole]), next_offset=80)
        log.add(seal(batches(80, 90)))
        reader = partition(log)
        assert offsets(reader.read_batches(0)) == [*range(10), *range(40, 45), *range(80, 90)]
        assert offsets(reader.read_batches(20, 41)) == list(range(40, 45))
        assert offsets(reader.read_batches(50, 70)) == []
        assert offsets(reader.read_batches(65)) == list(range(80, 90))

    def test_the_root_stays_pinned_until_refreshed(self, log: RemoteLog) -> None:
        log.fill(100)
        reader = partition(log)
        assert reader.next_offset == 100
        log.fill(200, start=100)
        assert offsets(reader.read_batches(90)) == list(range(90, 100))
        root = reader.refresh()
        assert root is not None
        assert (root.next_offset, len(reader.segments())) == (200, 2)


class TestRequests:
    def test_pieces_double_and_cover_each_byte_once(self, store: RecordingStore, log: RemoteLog) -> None:
        row = log.add(seal(batches(0, 400)))
        store.forget()
        assert offsets(partition(log, SMALL).read_batches(0)) == list(range(400))
        ranges = sorted((g.start, g.end or 0) for g in store.gets(".log"))
        assert [end - start for start, end in ranges[:4]] == [512, 1024, 2048, 2048]
        assert ranges[0][0] == 0
        assert ranges[-1][1] == row.size
        assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
        assert store.gets(".idx") == []  # the whole segment is wanted: no index is needed

    def test_a_seek_reads_the_bundle_once_and_one_chunk(self, store: RecordingStore, log: RemoteLog) -> None:
        segment = seal(batches(0, 400))
        log.add(segment)
        entries = OffsetIndex.from_bytes(segment.sealed_indexes.offset_index, 0).entries
        last = next(  # the last offset of a batch that does not lie across two chunks
            offset
            for (offset, position), (_, behind) in itertools.pairwise(entries)
            if position // 512 == (behind - 1) // 512
        )
        reader = partition(log, SMALL)
        reader.snapshot()
        store.forget()
        for _ in range(2):  # the second time all of it is in the cache
            assert offsets(reader.read_batches(last, last + 1)) == list(range(last - 9, last + 1))
            assert len(store.gets(".idx")) == 1
            assert [(g.start % 512, (g.end or 0) - g.start) for g in store.gets(".log")] == [(0, 512)]

    def test_nothing_behind_the_last_wanted_batch_is_fetched(self, store: RecordingStore, log: RemoteLog) -> None:
        log.add(seal(batches(0, 400)))
        reader = partition(log, replace(SMALL, unindexed_bytes=1 << 30))  # no index: where to stop is not known
        assert offsets(reader.read_batches(0, 10)) == list(range(10))
        assert len(store.gets(".log")) == 1

    def test_of_a_large_bundle_only_head_and_section(self, store: RecordingStore, log: RemoteLog) -> None:
        row = log.add(seal(batches(0, 400), interval_bytes=1))
        reader = partition(log, replace(SMALL, bundle_bytes=512))
        assert offsets(reader.read_batches(205, 206)) == list(range(200, 210))
        (head, section) = store.gets(".idx")
        assert (head.start, head.end) == (0, 512)
        assert section.start == 512
        assert (section.end or 0) < row.idx_len  # the time index behind it was not fetched
        assert reader.offset_for_time(FIRST_MS + 2051) == (206, FIRST_MS + 2060)
        assert len(store.gets(".idx")) == 3

    def test_a_consumer_that_stops_stops_the_reading(self, store: RecordingStore, log: RemoteLog) -> None:
        log.fill(4000, per_segment=1000)
        store.forget()
        with contextlib.closing(partition(log, SMALL).read_batches(0)) as stream:
            next(stream)
            assert len(store.gets(".log")) == 1  # the first read is alone: nothing is read ahead yet
        assert len(store.gets(".log")) == 1

    def test_batches_larger_than_any_request(self, log: RemoteLog) -> None:
        parts = [encode_batch(records(at, 40, size=500), base_offset=at) for at in (0, 40, 80)]
        assert len(parts[0]) > 4 * 2048
        log.add(seal(parts))
        assert [bytes(part) for part in partition(log, SMALL).read_batches(0)] == parts


class TestTimes:
    def test_out_of_order_timestamps_against_a_plain_scan(self, log: RemoteLog) -> None:
        times = [(at * 7919) % 500 for at in range(300)]
        for base in (0, 100, 200):
            log.add(
                seal(
                    [
                        encode_batch([NewRecord(b"v", None, times[at]) for at in range(b, b + 5)], base_offset=b)
                        for b in range(base, base + 100, 5)
                    ]
                )
            )
        reader = partition(log)
        for wanted in range(-1, 502, 7):
            expected = next(((at, ms) for at, ms in enumerate(times) if ms >= wanted), None)
            assert reader.offset_for_time(wanted) == expected

    def test_records_below_the_log_start_do_not_count(self, log: RemoteLog) -> None:
        late = [NewRecord(b"v", None, 9000)] + [NewRecord(b"v", None, at) for at in range(1, 60)]
        rows = [
            log.add(seal([encode_batch(late[b : b + 10], base_offset=b) for b in range(0, 60, 10)], interval_bytes=1)),
            log.add(seal([encode_batch([NewRecord(b"v", None, 9500)], base_offset=60)])),
        ]
        reader = partition(log)
        assert reader.offset_for_time(100) == (0, 9000)
        log.put_root(Rows.from_rows(rows), start_offset=15)
        reader.refresh()
        assert reader.offset_for_time(100) == (60, 9500)
        assert reader.offset_for_time(40) == (40, 40)
        assert reader.offset_for_time(3) == (15, 15)


class TestTransactions:
    def test_only_bundles_that_have_aborts_are_read_and_only_as_far_as_needed(
        self, store: RecordingStore, log: RemoteLog
    ) -> None:
        first = AbortedTxn(producer_id=1, first_offset=5, last_offset=120, last_stable_offset=121)
        second = AbortedTxn(producer_id=2, first_offset=210, last_offset=230, last_stable_offset=231)
        log.add(seal(batches(0, 100)))
        log.add(seal(batches(100, 200), aborted=[first]))
        log.add(seal(batches(200, 300), aborted=[second]))
        reader = partition(log)
        reader.snapshot()
        store.forget()
        assert reader.aborted_txns(0, 100) == [first]
        assert len(store.gets(".idx")) == 1
        assert reader.aborted_txns(0, 300) == [first, second]
        assert reader.aborted_txns(121, 300) == [second]
        assert reader.aborted_txns(121, 210) == []

    def test_the_last_stable_offset_is_where_the_oldest_open_transaction_begins(self, log: RemoteLog) -> None:
        log.add(seal(batches(0, 100)))
        reader = partition(log)
        assert reader.last_stable_offset() == 100
        entries = [ProducerEntry(1, 0, 5, 190, 5, 0, -1, -1), ProducerEntry(2, 0, 5, 150, 5, 0, -1, 145)]
        log.add(seal(batches(100, 200), snapshot=encode_snapshot(entries)))
        reader.refresh()
        assert reader.last_stable_offset() == 145


class TestDamage:
    def test_each_flipped_byte_of_a_segment_is_noticed(self, log: RemoteLog) -> None:
        parts = batches(0, 30)
        row = log.add(seal(parts))
        key, starts = log.log_key(row), [0, len(parts[0]), len(parts[0]) + len(parts[1])]
        for position in range(row.size):
            log.damage(key, position)
            with pytest.raises(CorruptionError) as error:
                list(partition(log).read_batches(0))
            assert error.value.path_or_key == key
            assert error.value.position in starts
            assert "flights-0" in str(error.value)
            log.damage(key, position)
        assert offsets(partition(log).read_batches(0)) == list(range(30))

    def test_damage_on_the_way_is_read_again_past_the_cache(self, store: RecordingStore, log: RemoteLog) -> None:
        log.add(seal(batches(0, 30)))
        damaged: list[str] = []

        def once(request: StoreRequest, inner: Inner) -> Outcome:
            outcome = inner()
            if isinstance(request, Get) and request.key.endswith(".log") and not damaged:
                assert isinstance(outcome, Object)
                damaged.append(request.key)
                return Object(outcome.data[:-1] + b"\xff", outcome.etag, outcome.size)
            return outcome

        store.answer = once
        assert offsets(partition(log).read_batches(0)) == list(range(30))
        assert len(damaged) == 1

    def test_a_damaged_bundle_is_read_again_then_named(self, log: RemoteLog) -> None:
        row = log.add(seal(batches(0, 30)))
        log.damage(log.idx_key(row), 520)
        log.damage(log.idx_key(row), row.idx_len - 1)
        with pytest.raises(CorruptionError) as error:
            list(partition(log, INDEXED).read_batches(15))
        assert error.value.path_or_key == log.idx_key(row)
        with pytest.raises(CorruptionError):
            partition(log, INDEXED).offset_for_time(FIRST_MS + 50)

    def test_without_crc_the_order_is_still_checked(self, log: RemoteLog) -> None:
        parts = batches(0, 30)
        row = log.add(seal(parts))
        log.damage(log.log_key(row), len(parts[0]) + 70)
        assert unverified(log, row) == 3
        log.damage(log.log_key(row), len(parts[0]) + 7)  # base offset 10 becomes 26
        with pytest.raises(CorruptionError, match="stands where"):
            unverified(log, row)

    @pytest.mark.parametrize("more", [-200, -30, -1, 4])
    def test_an_object_that_is_too_short_or_too_long(self, log: RemoteLog, more: int) -> None:
        row = log.add(seal(batches(0, 30)))
        log.replace(log.log_key(row), (b"".join(batches(0, 30)) + b"more")[: row.size + more])
        with pytest.raises(CorruptionError, match=f"the object has {row.size + more} bytes"):
            list(partition(log).read_batches(0))

    def test_a_segment_of_the_same_shape_is_another_one(self, log: RemoteLog) -> None:
        """Every batch is right by itself: only the checksum of the whole tells; nothing of it is handed on."""
        row = log.add(seal(batches(0, 30)))
        log.replace(log.log_key(row), b"".join(other_batches(0, 30)))
        stream = partition(log).read_batches(0)
        with pytest.raises(SegmentDiffers, match="has CRC32C") as error:
            next(stream)
        assert (error.value.path_or_key, error.value.offset) == (log.log_key(row), 0)
        assert unverified(log, row) == 3

    def test_a_segment_of_several_pieces_differs_at_its_end(self, store: RecordingStore, log: RemoteLog) -> None:
        """Bytes before the last piece were handed on; going on after them would avoid the check."""
        row = log.add(seal(batches(0, 100)))
        log.replace(log.log_key(row), b"".join(other_batches(0, 100)))
        store.forget()
        reader = partition(log, ReadLimits(chunk_bytes=300, request_bytes=300, unindexed_bytes=0))
        found: list[int] = []
        with pytest.raises(SegmentDiffers):
            found.extend(offset for batch in reader.read_batches(0) for offset in offsets([batch]))
        assert found
        assert found == list(range(len(found)))
        assert found[-1] < 99
        reads = [get.start for get in store.gets(".log")]
        assert reads.count(0) == 2

    def test_a_timestamp_above_that_of_the_row(self, log: RemoteLog) -> None:
        """Reads by time pass such a segment over: whoever meets it by offset says so."""
        row = log.upload(seal(batches(0, 30)))
        log.put_root(Rows.from_rows([row._replace(min_ts=5, max_ts=5)]), next_offset=30)
        with pytest.raises(CorruptionError, match="the catalog says that none is above 5"):
            list(partition(log).read_batches(0))

    def test_the_bundle_tells_other_times_than_the_row(self, log: RemoteLog) -> None:
        row = log.upload(seal(batches(0, 30)))
        log.put_root(Rows.from_rows([row._replace(max_ts=FIRST_MS + 500)]), next_offset=30)
        with pytest.raises(CorruptionError, match="times"):
            partition(log).offset_for_time(FIRST_MS + 50)


class TestLoss:
    def test_a_trimmed_offset_is_out_of_range_with_the_new_earliest(self, log: RemoteLog) -> None:
        rows = log.fill(200)
        reader = partition(log)
        reader.snapshot()
        log.put_root(Rows.from_rows(rows[1:]), start_offset=100)
        log.delete(rows[0])
        with pytest.raises(OffsetOutOfRangeError) as error:
            list(reader.read_batches(50))
        assert (error.value.requested, error.value.earliest, error.value.latest) == (50, 100, 200)
        assert reader.start_offset == 100

    @pytest.mark.parametrize("as_of", [None, AsOf(version=2)])
    def test_an_object_of_a_topic_that_is_being_deleted(self, log: RemoteLog, as_of: AsOf | None) -> None:
        """Its root goes last and names them all until then: nothing is damaged, and no person has to look."""
        rows = log.fill(100)
        past = None if as_of is None else Past(RootView(log.topic_id, log.partition, log.topic), as_of)
        reader = RemoteFace(log.store, log.topic, log.topic_id, log.partition, past=past)
        pinned = reader.snapshot()
        assert pinned is not None
        assert pinned.version == 2
        found = log.store.execute(Get(log.root_key))
        assert isinstance(found, Object)
        stamp = Stamp("deletes", 1_000, Role.MAINTAINER, 0, "test")
        deleting = DeletionIntent().apply(pinned.root, stamp)
        assert isinstance(deleting, Root)
        log.store.execute(Put(log.root_key, encode_root(deleting), Match(found.etag)))
        log.delete(rows[0])
        with pytest.raises(LogDestroyedError, match=f"{log.topic}-0 .* is being deleted"):
            list(reader.read_batches(0))

    def test_an_object_that_the_newest_root_still_names(self, store: RecordingStore, log: RemoteLog) -> None:
        rows = log.fill(200)
        log.delete(rows[1])
        with pytest.raises(CorruptionError, match="still names it") as error:
            offsets(partition(log).read_batches(0))
        assert (error.value.path_or_key, error.value.offset) == (log.log_key(rows[1]), 100)
        assert len(store.gets("root")) > 0

    def test_a_store_whose_objects_keep_vanishing_ends(self, store: RecordingStore, log: RemoteLog) -> None:
        log.fill(50)
        reader = partition(log)
        reader.snapshot()

        def vanish(request: StoreRequest, inner: Inner) -> Outcome:
            if isinstance(request, Get) and request.key.endswith(".log"):
                log.put_root(Rows.from_rows([log.upload(seal(batches(0, 50)))]))
                return Missing()
            return inner()

        store.answer = vanish
        store.forget()
        with pytest.raises(CorruptionError, match="is gone"):
            list(reader.read_batches(0))
        assert len(store.gets(".log")) == MAX_REFRESHES + 1


class TestCache:
    def test_least_recently_used_goes_first(self) -> None:
        cache = ByteCache(10)
        cache.put(("a", 0), b"1234")
        cache.put(("b", 0), b"1234")
        assert cache.get(("a", 0)) == b"1234"
        cache.put(("c", 0), b"1234")
        assert (cache.get(("b", 0)), cache.get(("a", 0))) == (None, b"1234")
        assert cache.size_bytes == 8

    def test_large_entries_are_not_kept_and_dropped_keys_are_gone(self) -> None:
        cache = ByteCache(10)
        cache.put(("a", 0), b"123456")
        assert cache.get(("a", 0)) is None
        cache.put(("a", 0), b"12")
        cache.put(("a", 5), b"12")
        cache.put(("b", 0), b"12")
        cache.put(("b", 0), b"123")
        cache.drop("a")
        assert (cache.size_bytes, cache.get(("b", 0))) == (3, b"123")
