"""The pure steps of a compaction in parts: pairs of keys and codes, bitmaps."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tiered.errors import ConfigError, CorruptionError
from tiered.format.batch import encode_batch
from tiered.model import NewRecord
from tiered.plan.offset_map import TxnsBefore
from tiered.plan.survivors import (
    CHUNK_OFFSETS,
    MAX_PART_OFFSETS,
    OFFSET_BITS,
    KeyScan,
    Pairs,
    Survivors,
    SurvivorsBuilder,
    code_of,
    txns_before,
)

NUMBER, START = 3, 1000
FIRST = NUMBER << OFFSET_BITS


def bitmap(offsets: list[int], end: int, *, each: int = 1000) -> bytes:
    builder = SurvivorsBuilder(NUMBER, START, end)
    codes = np.array([FIRST + offset - START for offset in offsets], dtype=np.int64)
    for at in range(0, len(codes), each):
        builder.add(codes[at : at + each])
    return builder.finish()


def opened(data: bytes, end: int, start: int = START) -> Survivors:
    return Survivors(data, start, end, key="jobs/j/round-live/3", latest_offset=end - 1)


@pytest.mark.parametrize("seed", range(6))
def test_a_bitmap_knows_exactly_what_was_put_into_it(seed: int) -> None:
    dice = random.Random(seed)
    end = START + 3 * CHUNK_OFFSETS + 17
    share = [0, 0.00001, 0.01, 0.2, 0.9, 1][seed]
    alive = [offset for offset in range(START, end) if dice.random() < share]
    found = opened(bitmap(alive, end, each=dice.choice([1000, 70_000])), end)
    assert found.count == len(alive)
    assert [offset for offset in range(START, end) if not found.is_superseded(b"", offset)] == alive


def test_a_bitmap_without_survivors_is_none_that_is_missing() -> None:
    found = opened(bitmap([], START + 10), START + 10)
    assert found.is_superseded(b"", START)
    for data in (b"", bitmap([], START + 10)[:-1], bitmap([START], START + 10)[:-1]):
        with pytest.raises(CorruptionError, match="jobs/j/round-live/3"):
            opened(data, START + 10)


def test_a_bitmap_of_other_offsets_is_refused() -> None:
    data = bitmap([START], START + 10)
    with pytest.raises(CorruptionError, match="is one of offsets 1000 to 1010"):
        opened(data, START + 11)
    with pytest.raises(CorruptionError, match="is one of offsets 1000 to 1010"):
        opened(data, START + 10, START + 1)


@pytest.mark.parametrize("offset", [START - 1, START + 10])
def test_a_bitmap_says_nothing_of_what_it_does_not_know(offset: int) -> None:
    found = opened(bitmap([START], START + 10), START + 10)
    with pytest.raises(CorruptionError, match=f"is asked for offset {offset}"):
        found.is_superseded(b"", offset)


def test_a_flipped_bit_is_damage() -> None:
    data = bytearray(bitmap([START + 3, START + 5], START + 10))
    data[-1] ^= 1
    with pytest.raises(CorruptionError, match="is not what was written"):
        opened(bytes(data), START + 10)


@pytest.mark.parametrize("codes", [[5, 4], [4, 4], [-1], [10]])
def test_survivors_out_of_order_or_of_another_part_are_refused(codes: list[int]) -> None:
    builder = SurvivorsBuilder(NUMBER, START, START + 10)
    with pytest.raises(CorruptionError, match="do not follow"):
        builder.add(np.array(codes, dtype=np.int64) + FIRST)
    builder = SurvivorsBuilder(NUMBER, START, START + 10)
    for code in codes[:-1]:
        builder.add(np.array([code + FIRST], dtype=np.int64))
    with pytest.raises(CorruptionError, match="do not follow"):
        builder.add(np.array([codes[-1] + FIRST], dtype=np.int64))


def test_a_part_has_no_more_offsets_than_a_code_holds() -> None:
    SurvivorsBuilder(0, 0, MAX_PART_OFFSETS)
    with pytest.raises(ConfigError, match="of a compaction is too large"):
        SurvivorsBuilder(0, 0, MAX_PART_OFFSETS + 1)


def scan(records: list[NewRecord], *, first_dirty: int) -> Pairs:
    found = KeyScan(NUMBER, START, first_dirty=first_dirty, most_keys=100)
    found.add(encode_batch(records, base_offset=START))
    return found.drain()


def test_of_a_key_the_newest_is_named_and_all_of_the_clean_range() -> None:
    """Two records of a key in the clean range: a round that finds no newer one drops neither."""
    records = [NewRecord(b"v", key, 1) for key in (b"a", b"a", b"b", b"a", b"a", None)]
    assert sorted(scan(records, first_dirty=START).codes.tolist()) == [FIRST + 2, FIRST + 4]
    assert sorted(scan(records, first_dirty=START + 3).codes.tolist()) == [FIRST, FIRST + 1, FIRST + 2, FIRST + 4]


def test_codes_rise_with_offsets() -> None:
    starts = [0, 100, 101, 5000]
    codes = [code_of(offset, starts) for offset in range(6000)]
    assert codes == sorted(set(codes))
    assert [code >> OFFSET_BITS for code in (codes[99], codes[100], codes[101], codes[5000])] == [0, 1, 2, 3]
    assert code_of(-1, [10, 20]) == 0


def test_what_a_group_takes_over() -> None:
    """States: nothing, a committed transaction's batch seen, an aborted one's, both."""
    begun, over = {"7": [1, 1, 3, 3]}, {"7": [0, 0, 2, 2]}
    before = txns_before([0, 10, 20, 30], [begun, {}, over, begun])
    assert before == [
        TxnsBefore(0, (), ()),
        TxnsBefore(10, (7,), ()),
        TxnsBefore(20, (7,), ()),
        TxnsBefore(30, (), ()),
    ]
