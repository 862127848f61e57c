"""Views of a log with many segments: what one costs, and how a segment is found by offset and by time."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.local.bench import CaseBench
from tiered.local.segment.read_view import Extent, SealedExtents

START_MS = 1_700_000_000_000
SEED = 8


def sealed(base: int, largest: int, *, damaged: bool = False) -> Extent:
    """A sealed segment of ten offsets; the indexes tell its largest timestamp."""
    segment: Any = SimpleNamespace(base_offset=base, lookup=SimpleNamespace(last_time=(largest, base), damaged=damaged))
    return Extent(base, base + 10, 100, None, segment)


def test_a_segment_is_found_by_its_offset() -> None:
    extents = SealedExtents(sealed(base, 0) for base in (5, 10, 30))
    wanted = {0: 0, 5: 0, 9: 0, 10: 1, 29: 1, 30: 2, 99: 2}
    assert {offset: extents.at_offset(offset) for offset in wanted} == wanted
    assert SealedExtents().at_offset(7) == 0


@pytest.mark.parametrize("damaged", [(), (4,), (0, 7)])
def test_a_segment_is_found_by_time_whatever_the_order_of_times(damaged: tuple[int, ...]) -> None:
    dice = random.Random(SEED)
    largest = [dice.randrange(20) for _ in range(12)]
    extents = SealedExtents(sealed(10 * i, time, damaged=i in damaged) for i, time in enumerate(largest))
    asked = [(time, first) for time in range(-1, 22) for first in range(13)]
    for time, first in dice.sample(asked, len(asked)):
        may = [i for i in range(first, 12) if largest[i] >= time or i in damaged]
        assert extents.at_time(time, first) == min(may, default=12), (SEED, time, first)


def test_what_is_known_of_times_stays_known_when_a_segment_is_sealed() -> None:
    extents = SealedExtents([sealed(0, 3), sealed(10, 9)])
    assert extents.at_time(9, 0) == 1
    longer = extents.with_last(sealed(20, 12))
    assert [longer.at_time(time, 0) for time in (3, 4, 10, 13)] == [0, 1, 2, 3]
    assert [extents.at_time(time, 0) for time in (3, 4, 10)] == [0, 1, 2]


def calls(what: Callable[[], object]) -> int:
    """How many functions of Python it calls."""
    count = 0

    def seen(*event: object) -> None:
        nonlocal count
        count += event[1] == "call"

    gc.disable()  # others may have callbacks of the collector
    sys.setprofile(seen)
    try:
        what()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def reads(bench: CaseBench) -> list[Callable[[], object]]:
    """One of each kind, from the middle of the log."""
    partition, middle = bench.partition, bench.partition.end_offset // 2
    return [
        lambda: next(partition.read_batches(middle, middle + 1)),
        lambda: partition.offset_for_time(START_MS + middle),
        partition.view,
        lambda: partition.aborted_txns(middle, middle + 1),
        lambda: partition.sealed_segments(middle)[0],
        partition.positions,
    ]


def test_no_read_costs_more_with_more_segments(tmp_path: Path) -> None:
    costs = []
    for segments in (4, 200):
        bench = CaseBench(tmp_path / str(segments), per_segment=2, index_interval_bytes=1)
        for i in range(2 * segments):
            bench.append(b"v", timestamp=START_MS + i)
        bench.log.flush()
        assert len(bench.bases) == segments
        for read in reads(bench):
            read()  # loads what is loaded once
        costs.append([calls(read) for read in reads(bench)])
        bench.log.close()
    assert costs[0] == costs[1]


def test_views_share_the_sealed_segments_until_these_change(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=2)
    bench.fill(5)
    before = bench.partition.view()
    bench.fill(1)
    assert bench.partition.view().sealed is before.sealed
    bench.fill(1)
    assert [extent.base_offset for extent in bench.partition.view().extents] == [0, 2, 4, 6]
    assert [extent.base_offset for extent in before.extents] == [0, 2, 4]
    bench.log.flush()
    bench.partition.delete_local_before(4)
    assert [extent.base_offset for extent in bench.partition.view().extents] == [4, 6]
    bench.partition.truncate_to(5)
    assert [extent.base_offset for extent in bench.partition.view().extents] == [4]
