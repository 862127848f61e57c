"""Threads that wait for the disk: whose turn it is, who shares an fsync, who is told what, and when."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.local.bench import TP, Bench, started
from tiered.errors import LocalIOError, TieredError
from tiered.format import kernels
from tiered.format.kernels import PlainLock, TurnLock
from tiered.model import NewRecord

needs_compiled = pytest.mark.skipif(kernels.KERNELS_IN_USE == kernels.PURE, reason="threading.Lock keeps no order")
WAITERS = 8
WAIT_S = 60.0
ANY_LOCK: Any = TurnLock


def wait_for(lock: Any, count: int) -> None:
    """Until so many are in line; who asks in vain is the last of them meanwhile."""
    while lock.waiting < count:
        assert not lock.acquire(timeout=0.001)


class Line:
    """A lock that the test holds, and threads that ask for it, each once the one before is in line."""

    def __init__(self) -> None:
        self.lock = ANY_LOCK()
        self.had: list[str] = []
        self.threads: list[threading.Thread] = []
        self.lock.acquire()

    def ask(self, name: str, timeout: float = WAIT_S) -> threading.Thread:
        def work() -> None:
            if self.lock.acquire(timeout=timeout):
                self.had.append(name)
                self.lock.release()

        before = self.lock.waiting
        thread = started(work)
        self.threads.append(thread)
        if timeout == WAIT_S:
            wait_for(self.lock, before + 1)
        return thread

    def end(self) -> list[str]:
        self.lock.release()
        for thread in self.threads:
            thread.join()
        assert (self.lock.locked(), self.lock.waiting) == (False, 0)
        return self.had


@needs_compiled
def test_the_lock_goes_to_those_in_line_before_the_one_who_dropped_it_has_it_again() -> None:
    line = Line()
    for name in "abcde":
        line.ask(name)
    line.lock.release()
    line.lock.acquire()
    assert line.had == list("abcde")
    assert line.end() == list("abcde")


@needs_compiled
@pytest.mark.parametrize("leaves", ["first", "second", "last", "all"])
def test_whoever_does_not_wait_longer_leaves_the_line(leaves: str) -> None:
    line = Line()
    for name in ("first", "second", "third", "last"):
        if leaves in (name, "all"):
            line.ask(name, timeout=0.001).join()
        else:
            line.ask(name)
    assert line.end() == [name for name in ("first", "second", "third", "last") if leaves not in (name, "all")]


@contextmanager
def on_signal(handler: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """``handler`` runs in this thread, within whatever it waits for, when another one calls what is given."""
    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    main = threading.get_ident()
    try:
        yield lambda: signal.pthread_kill(main, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    raise KeyboardInterrupt


@needs_compiled
@pytest.mark.parametrize(("before", "behind"), [("", ""), ("", "ab"), ("a", ""), ("a", "bc")])
def test_an_interrupt_takes_whoever_waits_out_of_the_line(before: str, behind: str) -> None:
    line = Line()
    line.lock.release()
    ready, left = threading.Event(), threading.Event()

    def hold() -> None:
        with line.lock:
            for name in before:
                line.ask(name)
            ready.set()
            wait_for(line.lock, len(before) + 1)
            for name in behind:
                line.ask(name)
            send()
            left.wait()

    with on_signal(interrupt) as send:
        holder = started(hold)
        ready.wait()
        with pytest.raises(KeyboardInterrupt):
            line.lock.acquire()
        assert (line.lock.locked(), line.lock.waiting) == (True, len(before + behind))
        left.set()
        holder.join()
    line.lock.acquire()
    assert line.end() == list(before + behind)


@pytest.mark.parametrize("kind", [PlainLock, TurnLock])
def test_the_lock_keeps_threads_apart(kind: Any) -> None:
    lock, most = kind(), [0]

    def count() -> None:
        for _ in range(2000):
            with lock:
                before = most[0]
                str(before)
                most[0] = before + 1

    threads = [started(count) for _ in range(4)]
    for each in threads:
        each.join()
    assert most == [8000]


class HeldDisk:
    """Holds the first fsync of a ``.log`` until the test opens it; it ends with ``number``."""

    def __init__(self, bench: Bench, number: int = 0) -> None:
        self.syncs = 0
        self.reached, self.open = threading.Event(), threading.Event()
        self._number = number
        bench.files.fail = self._ask

    def _ask(self, operation: str, path: Path) -> int:
        if operation != "sync" or path.suffix != ".log":
            return 0
        self.syncs += 1
        if self.syncs > 1:
            return 0
        self.reached.set()
        self.open.wait()
        return self._number


class Waiters:
    """A thread whose fsync the disk holds, and others that append meanwhile and wait for the disk, too."""

    def __init__(self, bench: Bench, disk: HeldDisk) -> None:
        self.told: list[int] = []
        self.refused: list[TieredError] = []
        self._partition = bench.partition
        self._appended = threading.Semaphore(0)
        self._threads = [started(self._work)]
        disk.reached.wait()
        self._threads += [started(self._work) for _ in range(WAITERS)]
        for _ in range(WAITERS + 1):
            self._appended.acquire()

    def _work(self) -> None:
        offset = self._partition.append([NewRecord(b"v")]).offset
        self._appended.release()
        try:
            self._partition.flush()
        except TieredError as error:
            self.refused.append(error)
        else:
            self.told.append(offset)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path / "log")
    made.append(b"before")
    made.partition.flush()
    return made


def test_all_that_append_during_one_fsync_share_the_next_and_nobody_is_told_before(bench: Bench) -> None:
    disk = HeldDisk(bench)
    waiters = Waiters(bench, disk)
    assert (waiters.told, bench.partition.positions().flushed_offset, disk.syncs) == ([], 1, 1)
    disk.open.set()
    waiters.join()
    assert (sorted(waiters.told), waiters.refused, disk.syncs) == (list(range(1, WAITERS + 2)), [], 2)
    assert bench.partition.positions().flushed_offset == WAITERS + 2


def test_what_is_appended_during_an_fsync_is_not_safe_after_it(bench: Bench) -> None:
    disk = HeldDisk(bench)
    bench.append(b"within")
    flush = started(bench.partition.flush)
    disk.reached.wait()
    bench.append(b"meanwhile")
    disk.open.set()
    flush.join()
    positions = bench.partition.positions()
    assert (positions.flushed_offset, positions.end_offset) == (2, 3)


def test_a_failed_fsync_is_told_to_all_who_wait_and_nobody_begins_another(bench: Bench) -> None:
    disk = HeldDisk(bench, errno.EIO)
    waiters = Waiters(bench, disk)
    assert (waiters.told, waiters.refused) == ([], [])
    disk.open.set()
    waiters.join()
    assert (waiters.told, len(waiters.refused), disk.syncs) == ([], WAITERS + 1, 1)
    assert {type(error) for error in waiters.refused} == {LocalIOError}
    assert all(f"{TP} is offline" in error.message for error in waiters.refused)
    assert bench.partition.positions().flushed_offset == 1
    with pytest.raises(LocalIOError, match="is offline"):
        bench.append(b"after")
    with pytest.raises(LocalIOError):
        bench.log.close()


def test_a_seal_beside_threads_that_wait_is_durable_for_whoever_sealed(bench: Bench) -> None:
    disk = HeldDisk(bench)
    waiters = Waiters(bench, disk)
    roll = started(bench.partition.roll)
    disk.open.set()
    roll.join()
    waiters.join()
    assert [(s.base_offset, s.end_offset) for s in bench.partition.sealed_segments()] == [(0, WAITERS + 2)]
    assert (bench.log.roster.logs[TP].segments.closing, len(waiters.told)) == ([], WAITERS + 1)
