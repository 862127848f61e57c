"""What a copy of a segment refuses: batches that cannot follow, and offsets that no index entry can hold."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.local.bench import batch
from tiered.errors import CorruptionError
from tiered.format.batch import encode_batch
from tiered.local.disk.files import PosixFiles
from tiered.local.segment.replacement import SegmentCopy
from tiered.model import NewRecord

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
    assert f"is at offset 8: a batch that ends at {offset} cannot follow" in error.value.message
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


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(-1, 9)), min_size=1, max_size=12), st.data()
)
def test_batches_in_a_row_are_copied_as_one_by_one(
    given_batches: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    at, parts = BASE, list[bytes]()
    for gap, count, time in given_batches:
        parts.append(encode_batch([NewRecord(b"v" * 30, b"k", time)] * count, base_offset=at + gap))
        at += gap + count
    cut = data.draw(st.integers(0, len(parts)))
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for name, runs in (("each", parts), ("run", [b"".join(parts[:cut]), b"".join(parts[cut:])])):
            directory = Path(folder) / name
            directory.mkdir()
            copy = SegmentCopy(PosixFiles(), directory, BASE, interval_bytes=100)
            for run in runs:
                copy.append(run) if name == "each" else copy.append_run(run)
            done = copy.finish()
            files = {path.name: path.read_bytes() for path in directory.iterdir()}
            found.append((done.end_offset, done.size_bytes, done.first_timestamp, files))
    assert found[0] == found[1]


def test_a_run_whose_offsets_go_back_is_not_copied(tmp_path: Path) -> None:
    copy = made(tmp_path, 5)
    with pytest.raises(CorruptionError, match="is at offset 8: a batch that ends at 7 cannot follow"):
        copy.append_run(batch(6) + batch(7) + batch(7))
    assert copy.size_bytes == len(batch(5)) + len(batch(6)) + len(batch(7))


def test_a_large_run_is_written_behind_what_waits(tmp_path: Path) -> None:
    copy = made(tmp_path, 5)
    large = [encode_batch([NewRecord(b"v" * 2**18, b"k", 5)], base_offset=at) for at in (6, 7)]
    for run in large:
        copy.append_run(run)
    copy.append(batch(8))
    copy.finish()
    assert (tmp_path / f"{BASE:020d}.log.cleaned").read_bytes() == batch(5) + b"".join(large) + batch(8)
