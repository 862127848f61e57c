"""What a copy of a segment refuses: batches that cannot follow, and offsets that no index entry can hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.local.bench import batch
from tiered.errors import CorruptionError
from tiered.local.disk.files import PosixFiles
from tiered.local.segment.replacement import SegmentCopy

BASE = 4
FARTHEST = BASE + 2**31 - 1


def made(directory: Path, *offsets: int) -> SegmentCopy:
    copy = SegmentCopy(PosixFiles(), directory, BASE, interval_bytes=100)
    for offset in offsets:
        copy.append(batch(offset))
    return copy


@pytest.mark.parametrize("offset", [7, 6, 5, BASE])
def test_a_batch_that_ends_below_the_one_before_is_not_copied(tmp_path: Path, offset: int) -> None:
    copy = made(tmp_path, 5, 7)
    size = copy.size_bytes
    with pytest.raises(CorruptionError) as error:
        copy.append(batch(offset))
    assert (error.value.position, error.value.offset) == (size, offset)
    assert f"ends at offset {offset} cannot follow 8" in error.value.message
    copy.append(batch(8))
    found = copy.finish()
    assert (found.base_offset, found.end_offset, found.size_bytes) == (BASE, 9, size + len(batch(8)))
    assert (tmp_path / f"{BASE:020d}.log.cleaned").read_bytes() == batch(5) + batch(7) + batch(8)


@pytest.mark.parametrize("offset", [0, BASE - 1, FARTHEST + 1])
def test_a_batch_that_does_not_fit_the_base_is_not_copied(tmp_path: Path, offset: int) -> None:
    copy = made(tmp_path)
    with pytest.raises(CorruptionError) as error:
        copy.append(batch(offset))
    assert (error.value.position, error.value.offset) == (0, offset)
    copy.append(batch(FARTHEST))
    assert copy.finish().end_offset == FARTHEST + 1
