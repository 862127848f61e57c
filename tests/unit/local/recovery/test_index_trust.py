"""Index files of a sealed segment that are not those of its log are rebuilt: a lying one would be uploaded as it is."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.local.bench import batch
from tiered.format.local_names import index_name, log_name, time_index_name
from tiered.local.disk.files import PosixFiles
from tiered.local.segment.indexes import load_growing, load_indexes, rebuild_indexes, store_indexes
from tiered.local.segment.scan import LogFile

COUNT = 20
LARGEST = 100 + COUNT - 1


def lie_of_a_batch(directory: Path) -> None:
    """The last entry names the batch before its own."""
    path = directory / index_name(0)
    data = bytearray(path.read_bytes())
    offset, position = struct.unpack_from(">ii", data, len(data) - 8)
    struct.pack_into(">ii", data, len(data) - 8, offset - 1, position)
    path.write_bytes(data)


def lose_a_time(directory: Path) -> None:
    path = directory / time_index_name(0)
    path.write_bytes(path.read_bytes()[:-12])


def lie_of_a_time(directory: Path) -> None:
    path = directory / time_index_name(0)
    data = bytearray(path.read_bytes())
    timestamp, offset = struct.unpack_from(">qi", data, len(data) - 12)
    struct.pack_into(">qi", data, len(data) - 12, timestamp + 1, offset)
    path.write_bytes(data)


def leave_a_hole(directory: Path) -> None:
    """The first entry was never written."""
    path = directory / time_index_name(0)
    path.write_bytes(bytes(12) + path.read_bytes()[12:])


def nothing(_: Path) -> None:
    pass


@pytest.mark.parametrize("repair", [True, False])
@pytest.mark.parametrize(
    ("damage", "largest"),
    [
        (nothing, LARGEST),
        (lie_of_a_batch, None),
        (lose_a_time, LARGEST),
        (lie_of_a_time, None),
        (leave_a_hole, LARGEST),
        (lambda directory: (directory / time_index_name(0)).write_bytes(b""), None),
    ],
)
def test_indexes_are_those_of_the_log(
    tmp_path: Path, damage: Callable[[Path], object], largest: int | None, repair: bool
) -> None:
    files, path = PosixFiles(), tmp_path / log_name(0)
    path.write_bytes(b"".join(batch(at, 100 + at, value=b"." * 50) for at in range(COUNT)))
    size = path.stat().st_size
    with LogFile(files, path) as log:
        right = rebuild_indexes(log, 0, size, 200)
        store_indexes(files, tmp_path, 0, right)
        assert (right.offset_count > 3, right.last_time) == (True, (LARGEST, COUNT - 1))
        damage(tmp_path)
        found = load_indexes(files, log, 0, size, 200, repair=repair, largest=largest)
    assert (found.offset_bytes(), found.time_bytes()) == (right.offset_bytes(), right.time_bytes())
    on_disk = (tmp_path / index_name(0)).read_bytes(), (tmp_path / time_index_name(0)).read_bytes()
    assert (on_disk == (right.offset_bytes(), right.time_bytes())) == (repair or damage is nothing)


def test_entries_behind_the_end_of_a_file_leave_those_before_them(tmp_path: Path) -> None:
    """The size that a reader knows is older than the index: what lies below it is still so."""
    files, path = PosixFiles(), tmp_path / log_name(0)
    path.write_bytes(b"".join(batch(at, 100 + at, value=b"." * 50) for at in range(COUNT)))
    with LogFile(files, path) as log:
        size = path.stat().st_size
        right = rebuild_indexes(log, 0, size, 200)
        store_indexes(files, tmp_path, 0, right)
        half = right.offset_bytes()[: right.offset_count // 2 * 8]
        last_offset, position = struct.unpack_from(">ii", half, len(half) - 8)
        end = position + size // COUNT
        path.write_bytes(path.read_bytes()[:end])
        found = load_growing(files, log, 0, end)
    assert (found.offset_bytes(), found.last_indexed) == (half, (last_offset, position))
