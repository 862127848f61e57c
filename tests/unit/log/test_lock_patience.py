"""Who is waited for at the door of a log directory: an uploader that seals, and nobody else."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tiered
from tests.support.faulty_files import FaultyFiles
from tiered.clock import SystemClock, SystemIds
from tiered.engine.disk import LogDirectory
from tiered.errors import LockedError, NotFoundError
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.lock import _HELD, UNNAMED_HOLDER_SECONDS, DirectoryLock, LockTerms
from tiered.log import LOCK_PATIENCE_S
from tiered.testing.clock import FakeClock


class TellingClock(FakeClock):
    """Calls ``then`` at the n-th sleep."""

    def __init__(self, n: int = 0, then: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._n, self._then = n, then

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if len(self.sleeps) == self._n:
            self._then()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True).append(b"v")
    return tmp_path / "log"


def holder(directory: Path, *, passing: bool) -> DirectoryLock:
    lock = DirectoryLock(directory, PosixFiles())
    lock.acquire(SystemClock(), LockTerms(passing=passing))
    _HELD.discard(lock)  # as if it were another process's
    return lock


def test_an_uploader_that_seals_is_waited_for(directory: Path) -> None:
    lock = holder(directory, passing=True)
    clock = TellingClock(3, lock.release)
    with tiered.open(directory, clock=clock) as log:
        assert log.topic("t").append(b"w").offset == 1
    assert len(clock.sleeps) == 3


def test_not_for_ever(directory: Path) -> None:
    lock, clock = holder(directory, passing=True), TellingClock()
    with pytest.raises(LockedError, match=f"is held by process {os.getpid()}") as caught:
        tiered.open(directory, clock=clock)
    assert "try again in a moment" in caught.value.hint
    assert LOCK_PATIENCE_S <= sum(clock.sleeps) < LOCK_PATIENCE_S + 0.1
    lock.release()


def test_another_application_is_refused_at_once(directory: Path) -> None:
    lock, clock = holder(directory, passing=False), TellingClock()
    with pytest.raises(LockedError, match="is held by process"):
        tiered.open(directory, clock=clock)
    assert clock.sleeps == []
    lock.release()


def test_one_that_does_not_say_who_it_is_is_given_a_moment(directory: Path) -> None:
    """A broker's lock has no note; that of an application has none until it is written."""
    lock = holder(directory, passing=False)
    (directory / ".lock").write_bytes(b"")
    clock = TellingClock()
    with pytest.raises(LockedError, match="is held by another process"):
        tiered.open(directory, clock=clock)
    assert UNNAMED_HOLDER_SECONDS <= sum(clock.sleeps) < UNNAMED_HOLDER_SECONDS + 0.1
    lock.release()


def test_a_full_disk_gives_the_lock_without_its_note(directory: Path) -> None:
    """``tiered disk drop`` takes the lock to make room. The note follows once there is room."""
    files = FaultyFiles(lambda operation, _: errno.ENOSPC if operation == "write" else 0)
    lock = DirectoryLock(directory, files)
    lock.acquire(SystemClock())
    lock.add_note(http="127.0.0.1:9464")
    assert (lock.is_held, lock.note(), str(lock.holder())) == (True, {}, "another process")
    files.fail = None
    lock.add_note(trouble="")
    assert (lock.holder().pid, lock.note()["http"], lock.note()["trouble"]) == (os.getpid(), "127.0.0.1:9464", "")
    lock.release()


def test_what_the_uploader_does_says_that_it_passes(directory: Path) -> None:
    found = []
    uploader = LogDirectory(directory, clock=SystemClock(), ids=SystemIds())
    with uploader._open():
        found.append(DirectoryLock(directory, PosixFiles()).holder())
        with pytest.raises(LockedError):  # the uploader itself asks the writer to seal: it waits for nobody
            uploader._open()
    assert [(each.pid, each.passing) for each in found] == [(os.getpid(), True)]


def test_a_directory_that_this_process_has_open_names_the_open_log(directory: Path) -> None:
    with tiered.open(directory) as log:
        with pytest.raises(LockedError, match="is open in this process already") as caught:
            tiered.open(directory)
        assert caught.value.hint.startswith(f"tiered.Log.opened({str(directory)!r}) returns the open log")
        assert tiered.Log.opened(directory) is log
        assert tiered.Log.opened(str(directory / ".." / directory.name)) is log
    with pytest.raises(NotFoundError, match="no log of this process has"):
        tiered.Log.opened(directory)
    with tiered.open(directory) as again:
        assert tiered.Log.opened(directory) is again


async def test_on_an_event_loop_too(directory: Path) -> None:
    async with tiered.aio.open(directory) as log:
        with pytest.raises(LockedError, match="is open in this process already"):
            await tiered.aio.open(directory)
        assert tiered.aio.Log.opened(directory) is log
    with pytest.raises(NotFoundError):
        tiered.aio.Log.opened(directory)
    with tiered.open(directory), pytest.raises(NotFoundError, match="not for asyncio"):
        tiered.aio.Log.opened(directory)


def test_another_process_is_named_as_before(directory: Path) -> None:
    code = "import sys, tiered; log = tiered.open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    line = [sys.executable, "-c", code, str(directory)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(LockedError, match=f"is held by process {other.pid}") as caught:
            tiered.open(directory)
        assert caught.value.hint.startswith("stop that process")
        other.communicate()
