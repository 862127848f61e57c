"""What happens to single batches: horizons, old formats, markers without data, what is reported."""

from __future__ import annotations

import pytest

from tests.unit.format.legacy import message, wrapper
from tiered.config import DAY_MS
from tiered.format.batch import BatchProducer, decode_records, encode_batch, least_timestamp, read_header, verify_batch
from tiered.format.codecs import Codec
from tiered.format.control import ControlType, marker
from tiered.format.header import Buffer
from tiered.format.producer_snapshot import ProducerEntry
from tiered.model import AbortedTxn, NewRecord
from tiered.plan.batch_filter import BatchFilter
from tiered.plan.cleaning import SegmentState, legacy_delete_horizon
from tiered.plan.offset_map import CleanedTxns, OffsetMap

END = 100


def _filter(newest: dict[bytes, int], *, now_ms: int = 0, legacy_horizon_ms: int = 0) -> BatchFilter:
    offset_map = OffsetMap()
    for key, offset in sorted(newest.items(), key=lambda item: item[1]):
        offset_map.put(key, offset)
    offset_map.latest_offset = END - 1
    return BatchFilter(
        offset_map,
        first_uncleanable=END,
        now_ms=now_ms,
        delete_retention_ms=DAY_MS,
        legacy_horizon_ms=legacy_horizon_ms,
    )


def test_the_last_record_of_the_map_is_decided_and_the_next_is_not() -> None:
    batch = encode_batch([NewRecord(b"v", None, 1)] * 3)
    kept = _filter({})
    kept._newest.latest_offset = 1
    cleaned = kept.clean(batch)
    assert cleaned is not None
    assert [r.offset for r in decode_records(cleaned)] == [2]


def test_a_tombstone_behind_the_map_gets_its_horizon_too() -> None:
    kept = _filter({}, now_ms=5)
    kept._newest.latest_offset = -1
    cleaned = kept.clean(encode_batch([NewRecord(None, b"k", 1)]))
    assert cleaned is not None
    assert read_header(cleaned).delete_horizon_ms == 5 + DAY_MS


def test_an_unchanged_batch_is_the_buffer_that_came_in() -> None:
    batch = memoryview(encode_batch([NewRecord(b"v", b"k", 7), NewRecord(b"v", b"l", 3)], leader_epoch=4))
    cleaned = _filter({b"k": 0, b"l": 1}).clean(batch)
    assert cleaned is not None
    assert cleaned is batch


def _times(batch: Buffer) -> tuple[int, int, int]:
    """Records of a batch, and the least and the greatest of their timestamps."""
    header = verify_batch(batch)
    return header.records_count, least_timestamp(header, batch), header.max_timestamp


def test_the_last_batch_of_the_range_stays_without_records() -> None:
    batch = encode_batch([NewRecord(b"v", b"k", 5)], base_offset=END - 1)
    kept = _filter({b"k": END + 1})
    kept._newest.latest_offset = END - 1
    cleaned = kept.clean(batch)
    assert cleaned is not None
    assert (len(cleaned), *_times(cleaned)) == (61, 0, -1, 5)
    assert _filter({b"k": END + 1}).clean(encode_batch([NewRecord(b"v", b"k", 5)], base_offset=END - 2)) is None


def _control(kind: ControlType, *, epoch: int = 0, base_offset: int = 0) -> bytes:
    record = marker(kind, 0, 1_000)
    return encode_batch(
        [record], base_offset=base_offset, producer=BatchProducer(1, epoch, transactional=True, control=True)
    )


def test_the_marker_of_a_producer_without_data_keeps_its_epoch() -> None:
    stamped = _filter({}).clean(_control(ControlType.COMMIT, epoch=3))
    assert stamped is not None
    assert read_header(stamped).delete_horizon_ms == DAY_MS
    for epoch, stays in ((3, True), (2, False)):
        entry = ProducerEntry(1, epoch, -1, -1, 0, 1_000)
        kept = BatchFilter(OffsetMap(), first_uncleanable=END, now_ms=DAY_MS, delete_retention_ms=0, producers=[entry])
        emptied = kept.clean(stamped)
        assert (emptied is not None) == stays
        if emptied is not None:
            header = read_header(emptied)
            assert (header.records_count, header.producer_epoch, header.is_control) == (0, 3, True)
    data = encode_batch([NewRecord(b"v", b"k", 1)], producer=BatchProducer(1, 3, 0))
    offset_map = OffsetMap()
    offset_map.put(b"k", 5)
    entry = ProducerEntry(1, 3, -1, -1, 0, 1_000)
    kept = BatchFilter(offset_map, first_uncleanable=END, now_ms=0, delete_retention_ms=0, producers=[entry])
    assert kept.clean(data) is None  # it is the marker that tells the epoch, not data of it


def test_other_control_records_stay() -> None:
    for kind in (ControlType.LEADER_CHANGE, ControlType.SNAPSHOT_HEADER):
        batch = _control(kind)
        cleaned = _filter({}, now_ms=10**15).clean(batch)
        assert cleaned is not None
        assert cleaned is batch


def _txn_header(base_offset: int, producer: int = 1) -> bytes:
    return encode_batch(
        [NewRecord(b"v", b"k", 1)],
        base_offset=base_offset,
        producer=BatchProducer(producer, 0, base_offset, transactional=True),
    )


def test_data_of_an_abort_that_the_index_forgot_holds_its_marker() -> None:
    txns = CleanedTxns()
    abort = _control(ControlType.ABORT, base_offset=1)
    assert not txns.is_aborted(read_header(_txn_header(0)))
    assert not txns.marker_is_unneeded(read_header(abort), next(decode_records(abort)))
    assert txns.marker_is_unneeded(read_header(abort), next(decode_records(abort)))
    assert txns.drain_retained() == ()


@pytest.mark.parametrize("later", [[], [AbortedTxn(1, 20, 21, 22)]])
def test_an_entry_without_its_marker_swallows_no_later_transaction(later: list[AbortedTxn]) -> None:
    txns = CleanedTxns([AbortedTxn(1, 0, 5, 6), *later])
    assert txns.is_aborted(read_header(_txn_header(3)))
    assert not txns.is_aborted(read_header(_txn_header(7)))
    assert txns.is_aborted(read_header(_txn_header(20))) == bool(later)


def test_an_entry_that_was_overtaken_makes_room_for_the_next() -> None:
    txns = CleanedTxns([AbortedTxn(1, 0, 5, 6), AbortedTxn(1, 20, 21, 22)])
    assert not txns.is_aborted(read_header(_txn_header(19, producer=2)))
    assert txns.is_aborted(read_header(_txn_header(20)))
    abort = _control(ControlType.ABORT, base_offset=21)
    assert not txns.marker_is_unneeded(read_header(abort), next(decode_records(abort)))
    assert txns.drain_retained() == (AbortedTxn(1, 20, 21, 22),)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_pass_unchanged_or_go(magic: int) -> None:
    kept = _filter({b"k": 1, b"t": 2})
    old, new, tombstone = (message(magic, i, key, value) for i, (key, value) in enumerate(_OLD))
    assert kept.clean(old) is None
    for batch in (new, tombstone):
        cleaned = kept.clean(batch)
        assert cleaned is not None
        assert cleaned is batch


_OLD: list[tuple[bytes, bytes | None]] = [(b"k", b"1"), (b"k", b"2"), (b"t", None)]


@pytest.mark.parametrize(("modified_ms", "stays"), [(1_000, False), (1_001, True)])
def test_old_tombstones_go_by_the_age_of_their_segment(modified_ms: int, stays: bool) -> None:
    kept = _filter({b"t": 0}, legacy_horizon_ms=1_000)
    kept.start_segment(modified_ms)
    assert (kept.clean(message(1, 0, b"t", None)) is not None) == stays


@pytest.mark.parametrize(("first_dirty", "horizon"), [(0, 0), (10, 400), (11, 900), (20, 900)])
def test_the_age_counts_from_the_last_clean_segment(first_dirty: int, horizon: int) -> None:
    segments = [SegmentState(0, 10, 1, modified_ms=500), SegmentState(10, 20, 1, modified_ms=1_000)]
    assert legacy_delete_horizon(segments, first_dirty, 100) == horizon


@pytest.mark.parametrize(("magic", "codec"), [(0, Codec.GZIP), (1, Codec.SNAPPY), (1, Codec.LZ4)])
def test_an_old_wrapper_that_loses_a_message_becomes_a_batch_of_today(magic: int, codec: Codec) -> None:
    inner = b"".join(message(magic, i, key, value, 50 + i) for i, (key, value) in enumerate(_OLD))
    batch = wrapper(magic, 2, inner, codec, 52)
    kept = _filter({b"k": 1, b"t": 2})
    cleaned = kept.clean(batch)
    assert cleaned is not None
    header = verify_batch(cleaned)
    assert (header.magic, header.base_offset, header.last_offset, header.codec) == (2, 0, 2, codec)
    assert header.delete_horizon_ms == DAY_MS
    stamps = [51, 52] if magic else [-1, -1]
    records = [(r.offset, r.timestamp, r.key, r.value) for r in decode_records(cleaned)]
    assert records == [(1, stamps[0], b"k", b"2"), (2, stamps[1], b"t", None)]
    unchanged = _filter({b"k": 0, b"t": 2}).clean(wrapper(magic, 2, inner, codec, 52))
    assert unchanged is not None
    assert read_header(unchanged).magic == magic


def test_an_empty_old_message_can_end_the_range() -> None:
    kept = _filter({b"k": END + 1})
    cleaned = kept.clean(message(1, END - 1, b"k", b"v", 50))
    assert cleaned is not None
    header = verify_batch(cleaned)
    assert (header.magic, header.records_count, header.last_offset) == (2, 0, END - 1)
