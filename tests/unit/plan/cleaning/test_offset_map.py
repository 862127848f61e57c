"""The offset map: bounded, stops in mid-segment, goes on from there."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.unit.format.twins import compiled, needs_both
from tests.unit.plan.cleaning.building import LogBuilder
from tiered.errors import ConfigError
from tiered.format.pure_kernels import KeyTable
from tiered.plan.offset_map import DEDUPE_BUFFER_BYTES, ENTRY_BYTES, OffsetMap, OffsetMapBuilder

ALLOCATOR_BYTES = 15 + 4  # a digest of 49 bytes takes 64, an offset of 28 takes 32; tracemalloc does not see it


def _peak_bytes(table: KeyTable, keys: int) -> int:
    tracemalloc.start()
    try:
        for i in range(keys):
            table.put(b"%d" % i, 2**33 + i)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak


def test_memory_stays_within_the_bound_while_the_table_grows() -> None:
    growth = 2**16 * 2 // 3 + 1  # one entry more than a table of 2^16 slots takes
    peak = _peak_bytes(KeyTable(10**6, bytes(16)), growth)
    assert 130 < peak / growth + ALLOCATOR_BYTES < ENTRY_BYTES


@needs_both
def test_the_compiled_table_takes_half_of_that() -> None:
    growth = 2**16 * 13 // 16 + 1
    peak = _peak_bytes(compiled.KeyTable(10**6, bytes(16)), growth)
    assert 3 * 2**16 * 24 <= peak < min(89 * growth, ENTRY_BYTES * growth // 2)


@pytest.mark.parametrize(
    ("memory_bytes", "capacity"), [(DEDUPE_BUFFER_BYTES, 603_979), (ENTRY_BYTES, 1), (20 * ENTRY_BYTES, 18)]
)
def test_capacity_follows_the_memory(memory_bytes: int, capacity: int) -> None:
    assert OffsetMap(memory_bytes).capacity == capacity


@pytest.mark.parametrize(("memory_bytes", "load"), [(ENTRY_BYTES - 1, 0.9), (1000, 0.0), (1000, 1.1)])
def test_a_map_without_room_is_refused(memory_bytes: int, load: float) -> None:
    with pytest.raises(ConfigError, match="has no room for a key"):
        OffsetMap(memory_bytes, load_factor=load)


@pytest.mark.parametrize(("capacity", "end"), [(1, 1), (2, 3), (3, 5), (4, 6), (5, 10)])
def test_a_full_map_stops_at_the_next_key_known_or_not(capacity: int, end: int) -> None:
    build = LogBuilder()
    build.keys(1, 1, 2, 2, 3)
    build.keys(4, 4, 4, 4, 4)
    build.roll()
    offset_map = OffsetMap(capacity * ENTRY_BYTES, load_factor=1)
    builder = OffsetMapBuilder(offset_map, start_offset=0)
    stopped = [builder.add(batch) for batch in build.build().batches]
    assert offset_map.end_offset == end
    assert any(stopped) == (len(offset_map) == capacity) == (capacity < 5)
