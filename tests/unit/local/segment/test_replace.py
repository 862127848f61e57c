"""``Files.replace``: whole or not at all, from any number of threads, and nothing left beside."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import tiered
from tests.support.faulty_files import FaultyFiles, PowerCut, on_nth
from tiered.clock import SystemClock, SystemIds
from tiered.engine.disk import LogDirectory
from tiered.errors import DiskFullError, LocalIOError, TieredError
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk import files as files_module
from tiered.local.disk.files import PosixFiles

THREADS, ROUNDS = 8, 60


def test_threads_that_replace_one_file_do_not_collide(tmp_path: Path) -> None:
    """With one temporary name the second rename finds nothing, or a half-written file gets the name."""
    files, path = PosixFiles(), tmp_path / "note"
    contents = [bytes([65 + i]) * (1000 * (i + 1)) for i in range(THREADS)]
    barrier, errors = threading.Barrier(THREADS), list[TieredError]()

    def work(data: bytes) -> None:
        barrier.wait()
        for _ in range(ROUNDS):
            try:
                files.replace(path, data)
                if files.read(path) not in contents:
                    raise LocalIOError("torn")
            except TieredError as error:
                errors.append(error)

    threads = [threading.Thread(target=work, args=(data,)) for data in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert files.names(tmp_path) == ["note"]


def leave_over(path: Path) -> Path:
    """What a process with our number left when it died over the file that the next ``replace`` writes aside."""
    turn = next(files_module._TURN) + 1
    left = path.with_name(f"{path.name}.{os.getpid()}-{turn}.tmp")
    left.write_bytes(b"longer than what is written now")
    return left


def test_what_a_dead_process_of_our_number_left_is_no_part_of_the_file(tmp_path: Path) -> None:
    files, path = PosixFiles(), tmp_path / "note"
    left = leave_over(path)
    state = files.replace(path, b"new")
    assert (path.read_bytes(), left.exists()) == (b"new", False)
    assert state == files.state(path)


@pytest.mark.parametrize("operation", ["open", "truncate", "write", "sync", "rename"])
def test_what_fails_leaves_the_old_content_and_nothing_beside(tmp_path: Path, operation: str) -> None:
    files = FaultyFiles()
    files.replace(tmp_path / "note", b"old")
    leave_over(tmp_path / "note")
    files.fail = lambda name, _: 28 if name == operation else 0
    with pytest.raises(DiskFullError):
        files.replace(tmp_path / "note", b"new")
    files.fail = None
    assert files.read(tmp_path / "note") == b"old"
    assert files.names(tmp_path) == ["note"]


def test_what_a_crash_left_is_swept_by_the_next_open(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    with LocalLog.open(directory) as log:
        log.create_topic("t", 1)
    files = FaultyFiles(on_nth(1, "rename", PowerCut))
    for path in (directory / "meta.properties", directory / "t-0" / "partition.metadata"):
        files.fail = on_nth(1, "rename", PowerCut)
        with pytest.raises(PowerCut):
            files.replace(path, b"never")
    theirs = ["tiered-offset-checkpoint.7-1.tmp", "tiered-claims.json.7-2.tmp", "tiered-seal-request.7-3.tmp"]
    strangers = ["notes.tmp", "t-0/mine.tmp"]
    for name in (*theirs, *strangers):
        (directory / name).write_bytes(b"")
    (directory / ".kafka_cleanshutdown").unlink()  # a partition that sleeps is swept when it is opened after a crash
    LocalLog.open(directory).close()
    left = sorted(str(path.relative_to(directory)) for path in directory.rglob("*.tmp"))
    assert left == sorted([*theirs, *strangers])  # an uploader may be at work on its own
    uploader = LogDirectory(directory, clock=SystemClock(), ids=SystemIds())
    uploader.acquire()
    uploader.release()
    left = sorted(str(path.relative_to(directory)) for path in directory.rglob("*.tmp"))
    assert left == strangers


def test_an_inline_sync_sweeps_what_a_crash_left_of_the_uploaders_files(tmp_path: Path) -> None:
    """Without a daemon nobody else may: each crash would leave a file for ever."""
    left = [f"{name}.77-3.tmp" for name in ("tiered-offset-checkpoint", "tiered-claims.json")]
    with tiered.open(tmp_path / "log", remote=f"file://{tmp_path / 'bucket'}") as log:
        log.topic("t", create=True).append(b"v")
        log.sync()
    for name in left:
        (tmp_path / "log" / name).write_bytes(b"half")
    with tiered.open(tmp_path / "log", remote=f"file://{tmp_path / 'bucket'}") as log:
        log.topic("t").append(b"w")
        assert {each.name for each in (tmp_path / "log").glob("*.tmp")} == set(left)
        log.sync()
        assert list((tmp_path / "log").glob("*.tmp")) == []
