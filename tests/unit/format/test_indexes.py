"""Offset, time and transaction index, producer snapshot: layouts, rules of appending, look-ups, damage."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import ConfigError, CorruptionError
from tiered.format.kernels import crc32c
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from tiered.format.segment_indexes import (
    OffsetIndex,
    TimeIndex,
    decode_txns,
    encode_txns,
    txns_below,
)
from tiered.model import AbortedTxn
from tiered.plan.visibility import aborted_within

RELATIVE_MAX = 2**31 - 1


# --- offset index ---------------------------------------------------------------------------------------------


def offset_index(*entries: tuple[int, int], base: int = 0) -> OffsetIndex:
    index = OffsetIndex(base)
    for offset, position in entries:
        index.append(offset, position)
    return index


def test_case_14_upper_bound_of_positions() -> None:
    assert OffsetIndex(0).upper_bound(0, 5) is None
    index = offset_index((45, 0), (46, 10), (47, 23), (48, 37))
    asked = ((0, 0), (0, 5), (0, 10), (0, 22), (0, 23), (10, 24), (37, 1), (0, 200), (10, 200))
    found = [(45, 0), (46, 10), (46, 10), (47, 23), (47, 23), (48, 37), None, None, None]
    assert [index.upper_bound(start, size) for start, size in asked] == found


def test_offset_entries_must_rise_and_fit() -> None:
    index = offset_index((45, 0), base=40)
    for offset, position, message in (
        (45, 10, "not above the last indexed one, 45"),
        (39, 10, "does not fit"),
        (40 + 2**31, 10, "does not fit"),
        (50, 2**31, "does not fit"),
        (50, -1, "does not fit"),
    ):
        with pytest.raises(ConfigError, match=message):
            index.append(offset, position)
    index.append(40 + RELATIVE_MAX, RELATIVE_MAX)
    assert index.last_offset == 40 + RELATIVE_MAX


def test_truncation_of_the_offset_index() -> None:
    entries = [(1, 10), (3, 30), (5, 50)]
    for at, left in ((0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3)):
        index = offset_index(*entries)
        index.truncate_to(at)
        assert index.entries == entries[:left]


def test_zero_padding_is_dropped_only_at_the_tail() -> None:
    data = offset_index((1, 10), (3, 30)).to_bytes()
    assert len(OffsetIndex.from_bytes(data + bytes(80), 0)) == 12
    assert OffsetIndex.from_bytes(data + bytes(80), 0, drop_padding=True).to_bytes() == data
    assert len(OffsetIndex.from_bytes(bytes(8) + data, 0, drop_padding=True)) == 3
    assert len(OffsetIndex.from_bytes(bytes(80), 0, drop_padding=True)) == 0


def test_sanity_of_the_offset_index() -> None:
    def sane(*pairs: tuple[int, int], size: int | None = 100) -> bool:
        data = b"".join(struct.pack(">ii", *p) for p in pairs)
        return OffsetIndex.from_bytes(data, 0).is_sane(size)

    assert sane()
    assert sane((0, 0), (4, 40), (9, 99))
    assert not sane((4, 40), (9, 100))
    assert sane((4, 40), (9, 100), size=None)
    assert not sane((4, 40), (4, 50))
    assert not sane((4, 40), (5, 40))
    assert not sane((-1, 0))
    assert not sane((4, 40), (0, 0))
    with pytest.raises(CorruptionError, match="multiple of 8") as caught:
        OffsetIndex.from_bytes(bytes(11), 0)
    assert caught.value.position == 8


@given(
    relatives=st.sets(st.integers(0, RELATIVE_MAX), max_size=40),
    base=st.integers(0, 2**62),
    target=st.integers(-5, 2**32),
)
def test_case_13_offset_lookup_equals_a_linear_search(relatives: set[int], base: int, target: int) -> None:
    entries = [(base + r, i) for i, r in enumerate(sorted(relatives))]
    index = offset_index(*entries, base=base)
    expected = [e for e in entries if e[0] <= base + target]
    assert index.lookup(base + target) == (expected[-1] if expected else (base, 0))
    assert OffsetIndex.from_bytes(index.to_bytes(), base).entries == entries
    assert index.is_sane()


# --- time index -----------------------------------------------------------------------------------------------


def time_index(*entries: tuple[int, int], base: int = 0) -> TimeIndex:
    index = TimeIndex(base)
    for timestamp, offset in entries:
        index.maybe_append(timestamp, offset)
    return index


def test_case_15_time_lookup_takes_the_entry_at_or_below() -> None:
    index = time_index((1633072800000, 0), (1633072900000, 100), (1633073000000, 200))
    assert index.lookup(1633072950000) == (1633072900000, 100)
    assert index.lookup(1633072900000) == (1633072900000, 100)
    assert index.lookup(1633072799999) == (-1, 0)
    assert index.lookup(2**62) == (1633073000000, 200)
    assert TimeIndex(5).lookup(0) == TimeIndex(5).last_entry == (-1, 5)


def test_case_16_time_entries_rise_equal_timestamps_are_skipped() -> None:
    index = time_index((10, 45), base=40)
    assert index.maybe_append(10, 50) == b""
    assert index.entries == [(10, 45)]
    for timestamp, offset, message in (
        (9, 46, "below the last one of the index"),
        (11, 44, "below the last one of the time index"),
        (11, 39, "does not fit"),
        (11, 40 + 2**31, "does not fit"),
    ):
        with pytest.raises(ConfigError, match=message):
            index.maybe_append(timestamp, offset)
    assert index.maybe_append(11, 45) != b""
    assert index.last_entry == (11, 45)


def test_case_15_truncation_padding_and_sanity_of_the_time_index() -> None:
    entries = [(10, 1), (20, 3), (30, 3), (40, 5)]
    for at, left in ((0, 0), (1, 0), (2, 1), (3, 1), (4, 3), (5, 3), (6, 4)):
        index = time_index(*entries)
        index.truncate_to(at)
        assert index.entries == entries[:left]
    data = time_index(*entries).to_bytes()
    assert TimeIndex.from_bytes(data + bytes(120), 0, drop_padding=True).to_bytes() == data
    assert TimeIndex.from_bytes(data, 0).is_sane(6)
    assert not TimeIndex.from_bytes(data, 0).is_sane(5)
    assert not TimeIndex.from_bytes(data + bytes(12), 0).is_sane()
    assert not TimeIndex.from_bytes(struct.pack(">qi", 5, -1), 0).is_sane()
    assert TimeIndex(0).is_sane()
    with pytest.raises(CorruptionError, match="multiple of 12") as caught:
        TimeIndex.from_bytes(bytes(30), 0)
    assert caught.value.position == 24


# --- transaction index ----------------------------------------------------------------------------------------


def test_damaged_txn_indexes_are_refused() -> None:
    one, two = AbortedTxn(1, 0, 5, 6), AbortedTxn(2, 3, 9, 10)
    assert decode_txns(encode_txns([one, two]), 5) == [one, two]
    assert decode_txns(encode_txns([one, two])[:-1]) == [one]  # a torn write
    with pytest.raises(CorruptionError, match="not above 5"):
        decode_txns(encode_txns([one, one]))
    with pytest.raises(CorruptionError, match="not above 5"):
        decode_txns(encode_txns([one]), 6)
    with pytest.raises(CorruptionError, match="version 1") as caught:
        decode_txns(encode_txns([one]) + b"\0\1" + encode_txns([two])[2:])
    assert caught.value.position == 34


def test_case_17_collecting_stops_when_nothing_later_can_matter() -> None:
    txns = [AbortedTxn(0, 0, 10, 11), AbortedTxn(1, 5, 15, 13), AbortedTxn(2, 18, 35, 25), AbortedTxn(3, 32, 50, 40)]
    assert aborted_within(txns, 0, 100) == (txns, False)
    assert aborted_within(txns, 0, 32) == (txns[:3], True)
    assert aborted_within(txns, 0, 35) == (txns, True)
    assert aborted_within(txns, 10, 35) == (txns, True)
    assert aborted_within(txns, 11, 35) == (txns[1:], True)
    assert aborted_within(txns, 20, 41) == (txns[2:], False)
    assert aborted_within(txns, 26, 40) == (txns[2:], True)
    assert aborted_within(txns, 26, 31) == (txns[2:3], True)
    assert aborted_within(txns, 0, 10) == (txns[:1], True)
    assert aborted_within([], 0, 10) == ([], False)
    assert txns_below(txns, 35) == txns[:2]


# --- producer snapshot ----------------------------------------------------------------------------------------


def test_a_producer_without_a_batch_is_written_without_sequence() -> None:
    (entry,) = decode_snapshot(encode_snapshot([ProducerEntry(7, 2, 11, -1, 5, 1005, 3, 40)]))
    assert entry == ProducerEntry(7, 2, -1, -1, 0, 1005, 3, 40)


def test_every_flipped_or_missing_byte_of_a_snapshot_is_noticed() -> None:
    data = bytearray(encode_snapshot([ProducerEntry(i, 2, 11, 6, 1, 1005) for i in range(3)]))
    for i in range(len(data)):
        data[i] ^= 0x01
        with pytest.raises(CorruptionError):
            decode_snapshot(data)
        data[i] ^= 0x01
    for size in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_snapshot(data[:size])
    with pytest.raises(CorruptionError):
        decode_snapshot(data + b"\0")


@pytest.mark.parametrize("count", [-1, 2, 2**31 - 1])
def test_a_hostile_count_under_a_right_crc_is_refused(count: int) -> None:
    body = struct.pack(">i", count) + bytes(46)
    with pytest.raises(CorruptionError, match=f"claims {count} producers"):
        decode_snapshot(struct.pack(">hI", 1, crc32c(body)) + body)
