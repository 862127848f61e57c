"""Below the recovery point a recovery believes the indexes of a segment only as far as the log says the same."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.unit.local.bench import batch
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.control import ControlType, marker
from tiered.format.local_names import index_name, log_name, snapshot_name, time_index_name
from tiered.local.disk.files import PosixFiles
from tiered.local.recovery.segment_recovery import Prefix, known_prefix
from tiered.local.segment.indexes import rebuild_indexes, store_indexes
from tiered.local.segment.scan import LogFile

COUNT = 20
POINT = 12
FILES = PosixFiles()
OFFSET_ENTRY, TIME_ENTRY = struct.Struct(">ii"), struct.Struct(">qi")


def rising(offset: int) -> bytes:
    return batch(offset, 100 + offset)


def falling(offset: int) -> bytes:
    """Only the first batch raises the largest timestamp."""
    return batch(offset, 100 - offset)


def written(directory: Path, batches: list[bytes], *, interval_bytes: int = 0) -> list[int]:
    """A log with every batch but the first in its indexes, or fewer; where each begins."""
    path = directory / log_name(0)
    path.write_bytes(b"".join(batches))
    with LogFile(FILES, path) as log:
        store_indexes(FILES, directory, 0, rebuild_indexes(log, 0, log.size(), interval_bytes))
    return [sum(map(len, batches[:number])) for number in range(len(batches))]


def found(directory: Path, recovery_point: int = POINT) -> Prefix | None:
    with LogFile(FILES, directory / log_name(0)) as log:
        return known_prefix(FILES, log, 0, log.size(), recovery_point)


def entries(path: Path, layout: struct.Struct) -> list[tuple[int, int]]:
    return list(layout.iter_unpack(path.read_bytes()))


def store(path: Path, layout: struct.Struct, changed: list[tuple[int, int]]) -> None:
    path.write_bytes(b"".join(layout.pack(*entry) for entry in changed))


def test_what_the_log_says_too_is_not_read_again(tmp_path: Path) -> None:
    starts = written(tmp_path, [rising(offset) for offset in range(COUNT)])
    prefix = found(tmp_path)
    assert prefix is not None
    assert (prefix.position, prefix.base_offset, prefix.first_timestamp) == (starts[POINT - 1], POINT - 1, 100)
    assert prefix.indexes.last_indexed == (POINT - 1, starts[POINT - 1])


def test_an_entry_that_points_at_the_batch_before_is_not_believed(tmp_path: Path) -> None:
    starts = written(tmp_path, [rising(offset) for offset in range(COUNT)], interval_bytes=len(rising(0)))
    path = tmp_path / index_name(0)
    assert entries(path, OFFSET_ENTRY) == [(at, starts[at]) for at in range(2, COUNT, 2)]
    store(path, OFFSET_ENTRY, [(at, starts[at - (at == 10)]) for at in range(2, COUNT, 2)])
    assert found(tmp_path) is None


def test_an_entry_that_points_behind_the_recovery_point_is_not_believed(tmp_path: Path) -> None:
    """Records in between would count as read."""
    starts = written(tmp_path, [falling(offset) for offset in range(COUNT)])
    path = tmp_path / index_name(0)
    prefix = found(tmp_path)
    assert prefix is not None
    assert prefix.indexes.last_indexed == (1, starts[1])  # the only one that was written with a time
    told = entries(path, OFFSET_ENTRY)
    store(path, OFFSET_ENTRY, [(1, starts[POINT]), *told[1:]])
    assert found(tmp_path) is None
    store(path, OFFSET_ENTRY, [(1, starts[POINT - 1]), *told[1:]])
    prefix = found(tmp_path)
    assert prefix is not None
    assert prefix.base_offset == POINT - 1


@pytest.mark.parametrize(("later", "offset"), [(1, 0), (0, -1)])
def test_a_time_of_another_batch_is_not_believed(tmp_path: Path, later: int, offset: int) -> None:
    """A timestamp that its batch does not have, and an offset with which no batch ends."""
    starts = written(tmp_path, [batch(at, 100 + at, 100 + at) for at in range(0, COUNT, 2)])
    path = tmp_path / time_index_name(0)
    last = max(at for _, at in entries(path, TIME_ENTRY) if at < POINT)
    prefix = found(tmp_path)
    assert prefix is not None
    assert prefix.position == starts[last // 2]
    lie = [(ts + later, at + offset) if at == last else (ts, at) for ts, at in entries(path, TIME_ENTRY)]
    store(path, TIME_ENTRY, lie)
    assert found(tmp_path) is None


@pytest.mark.parametrize(("kind", "known"), [(ControlType.ABORT, False), (ControlType.COMMIT, True)])
def test_an_abort_without_its_index_is_read_again(tmp_path: Path, kind: ControlType, known: bool) -> None:
    batches = [rising(offset) for offset in range(COUNT)]
    batches[4] = encode_batch(
        [marker(kind, 0, 104)], base_offset=4, producer=BatchProducer(7, 0, transactional=True, control=True)
    )
    written(tmp_path, batches)
    assert found(tmp_path) is not None  # no snapshot: nobody says that there were producers
    (tmp_path / snapshot_name(COUNT)).write_bytes(b"state")
    assert (found(tmp_path) is not None) == known
