"""The one walk over the batches of a segment: what it holds each of them, and their end, to."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.unit.local.bench import batch
from tiered.errors import CorruptionError
from tiered.format.batch_scanner import Offsets
from tiered.format.local_names import log_name
from tiered.local.disk.files import PosixFiles
from tiered.local.segment.scan import LogFile

DELTA_AT = 23
"""Byte of a v2 batch at which its last offset delta stands."""


def written(directory: Path, *offsets: int, base: int = 0) -> tuple[Path, int]:
    """A ``.log`` with one batch of one record at each of ``offsets``, and its size."""
    path = directory / log_name(base)
    path.write_bytes(b"".join(batch(offset) for offset in offsets))
    return path, path.stat().st_size


def walked(path: Path, size: int, offsets: Offsets, *, dense: bool = False, reach: int = -1) -> list[int]:
    """Base offsets of the batches of a segment."""
    with LogFile(PosixFiles(), path) as log:
        return [span.base_offset for span, _ in log.segment(0, size, offsets, dense=dense, reach=reach)]


def test_a_segment_is_walked_as_it_is(tmp_path: Path) -> None:
    path, size = written(tmp_path, 0, 1, 4)
    assert walked(path, size, Offsets(0, 5), reach=5) == [0, 1, 4]
    path, size = written(tmp_path, 3, 4, base=3)
    assert walked(path, size, Offsets(3, 5), dense=True, reach=5) == [3, 4]


def test_a_negative_last_offset_delta_is_damage(tmp_path: Path) -> None:
    path, size = written(tmp_path, 0, 1, 2)
    data = bytearray(path.read_bytes())
    second = size // 3
    struct.pack_into(">i", data, second + DELTA_AT, -1)
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="the last offset delta is -1") as error:
        walked(path, size, Offsets(0, 3))
    assert (error.value.position, error.value.offset) == (second, 1)


@pytest.mark.parametrize(("offsets", "missing", "place"), [((0, 2), (1, 2), 1), ((1, 2), (0, 1), 0)])
def test_offsets_that_are_left_out_of_a_dense_segment_are_damage(
    tmp_path: Path, offsets: tuple[int, ...], missing: tuple[int, int], place: int
) -> None:
    path, size = written(tmp_path, *offsets)
    assert walked(path, size, Offsets(0, 3)) == list(offsets)
    with pytest.raises(CorruptionError, match=f"offsets {missing[0]} to {missing[1]} are missing") as error:
        walked(path, size, Offsets(0, 3), dense=True)
    assert (error.value.position, error.value.offset) == (place * size // 2, missing[0])


def test_a_segment_that_ends_below_what_was_safe_is_damaged(tmp_path: Path) -> None:
    path, size = written(tmp_path, 0, 1)
    assert walked(path, size, Offsets(0, 9), reach=2) == [0, 1]
    with pytest.raises(CorruptionError, match="offsets 2 to 3 are missing") as error:
        walked(path, size, Offsets(0, 9), reach=3)
    assert (error.value.position, error.value.offset) == (size, 2)


@pytest.mark.parametrize(
    ("base", "length", "magic", "message"),
    [
        (0, 13, 2, r"no batch starts here \(offset 0, length 13, magic 2\)"),
        (-1, 49, 2, r"no batch starts here \(offset -1, length 49, magic 2\)"),
        (0, 49, 3, r"no batch starts here \(offset 0, length 49, magic 3\)"),
        (0, 49, -1, r"no batch starts here \(offset 0, length 49, magic -1\)"),
        (0, 48, 2, "a batch of 48 bytes is shorter than its header"),
    ],
)
def test_bytes_that_begin_no_batch_are_damage_and_no_tail(
    tmp_path: Path, base: int, length: int, magic: int, message: str
) -> None:
    path = tmp_path / log_name(0)
    path.write_bytes(struct.pack(">qiib", base, length, 0, magic) + bytes(80))
    with LogFile(PosixFiles(), path) as log, pytest.raises(CorruptionError, match=message) as error:
        list(log.batches(0, path.stat().st_size))
    assert (error.value.position, error.value.offset) == (0, base)


def test_stretches_are_the_batches_of_a_segment_as_many_at_once_as_fit(tmp_path: Path) -> None:
    path, size = written(tmp_path, 0, 1, 2, 3, 4)
    each = size // 5
    with LogFile(PosixFiles(), path) as log:
        for start, expected in ((0, [(0, 2, True), (2, 2, True), (4, 1, True)]), (3, [(3, 1, True), (4, 1, True)])):
            found = log.stretches(0, size, Offsets(0, 5), start, buffer_bytes=2 * each)
            told = [(span, bytes(view), verified) for span, view, verified in found]
            assert [(span.base_offset, span.size // each, verified) for span, _, verified in told] == expected
            for span, data, _ in told:
                assert data == path.read_bytes()[span.position : span.position + span.size]
                assert span.last_offset == span.base_offset + span.size // each - 1
