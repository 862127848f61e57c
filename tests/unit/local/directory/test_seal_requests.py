"""``tiered-seal-request``: carried out once, whoever asks at the same time, and not again after an open."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support.faulty_files import FaultyFiles, PowerCut, on_nth
from tests.unit.local.bench import TP, CaseBench
from tiered.errors import LocalIOError, TieredError
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import SEAL_ANSWER_NAME, SEAL_REQUEST_NAME, SealRequest


def tick(bench: CaseBench) -> int:
    """Sealed segments after the task that looks at requests."""
    bench.log.tasks.run("uploads")
    return len(bench.partition.sealed_segments())


def test_a_request_is_carried_out_once_also_over_an_open(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=100)
    bench.fill(3)
    SealRequest(bench.directory, PosixFiles()).write("r1", [TP])
    assert tick(bench) == 1
    bench.fill(3)
    assert tick(bench) == 1
    bench.reopen()
    assert tick(bench) == 1
    SealRequest(bench.directory, PosixFiles()).write("r2")
    assert tick(bench) == 2


def test_a_request_that_was_not_seen_before_the_end_is_carried_out_by_the_next_open(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=100)
    bench.fill(3)
    SealRequest(bench.directory, PosixFiles()).write("r1")
    bench.reopen()
    assert tick(bench) == 1


def test_an_answer_that_cannot_be_noted_costs_a_second_roll_after_the_next_open_only(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=100)
    bench.fill(3)
    SealRequest(bench.directory, PosixFiles()).write("r1")
    bench.files.fail = lambda _, path: errno.ENOSPC if path.name.startswith(SEAL_ANSWER_NAME) else 0
    with pytest.raises(TieredError):
        bench.log.tasks.run("uploads")
    bench.files.fail = None
    bench.fill(3)
    assert tick(bench) == 1


@pytest.mark.parametrize("nth", range(1, 12))
def test_two_who_ask_at_the_same_time_never_write_one_file(tmp_path: Path, nth: int) -> None:
    first = FaultyFiles()
    other = SealRequest(tmp_path, PosixFiles())

    def meanwhile(operation: str, path: Path) -> int:
        if len(first.effects) == nth:
            other.write("r2", [TP])
        return 0

    first.fail = meanwhile
    SealRequest(tmp_path, first).write("r1")
    found = SealRequest(tmp_path, PosixFiles()).read()
    assert found in {("r1", None), ("r2", frozenset([TP])), None}
    assert found is not None
    assert [path.name for path in tmp_path.iterdir()] == [SEAL_REQUEST_NAME]


def test_what_a_crash_of_one_who_asked_left_is_swept(tmp_path: Path) -> None:
    files = FaultyFiles(on_nth(1, "rename", PowerCut))
    with pytest.raises(PowerCut):
        SealRequest(tmp_path, files).write("r1")
    [left] = tmp_path.iterdir()
    os.utime(left, (0, 0))
    request = SealRequest(tmp_path, PosixFiles())
    request.write("r2")
    assert request.pending() == ("r2", None)
    assert not left.exists()
    request.answer("r2")
    assert request.pending() is None
    failing = SealRequest(tmp_path, FaultyFiles(lambda *_: errno.EIO))
    with pytest.raises(LocalIOError):
        failing.write("r3")
