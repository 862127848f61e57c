"""An exception at any instruction: the log is right or offline afterwards, never damaged after a clean close.

A trace function raises at one bytecode of a call, or at two (the second one meets the clean-up), a disk at one of its
calls, a signal handler at a random instant. Then the log is used again, closed, checked and opened again: what was
acknowledged is there, no offset is missing, nothing is there twice.

``TIERED_INSTANTS=all`` tries every bytecode and 5,000 signals, else a sample. ``TIERED_CRASH_SEED`` repeats one.
"""

from __future__ import annotations

import contextlib
import logging
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.crash.striking import (
    CALLS,
    KINDS,
    SAMPLE,
    SEED,
    VALUE,
    WHOLE,
    Interrupt,
    Striker,
    World,
    append,
    append_batches,
    append_many,
    append_with_headers,
    close,
    flush,
    strike_each,
    sync,
    use_appender,
)
from tests.support.faulty_files import FaultyFiles
from tiered.clock import SystemClock
from tiered.config import LogConfig, TopicConfig
from tiered.errors import ClosedError, LocalIOError, ReentrantCallError, TieredError
from tiered.format.batch import decode_records
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.lock import DirectoryLock
from tiered.model import NewRecord, TopicPartition

SIGNALS = 5000 if WHOLE else 300
DEPTH = 3
"""Handlers that interrupt each other: chains of exceptions grow with their square."""

pytestmark = [
    # Coverage holds a lock of its own in each traced call: an exception there leaves it locked for ever.
    pytest.mark.no_cover,
    # The signals of these tests come from the timer that the other method of the time limit uses.
    pytest.mark.timeout(0 if WHOLE else 300, method="thread"),
]


# A file that is opened and not entered yet is closed by its finalizer, which says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.crash
@pytest.mark.parametrize("nested", [False, True], ids=["single", "nested"])
@pytest.mark.parametrize("name", CALLS)
def test_an_exception_at_any_bytecode_leaves_the_log_right_or_offline(tmp_path: Path, name: str, nested: bool) -> None:
    print(f"TIERED_CRASH_SEED={SEED}")
    dice = random.Random(f"{SEED} {name} {nested}")
    call, config = CALLS[name]
    world = World(tmp_path / "log", config)
    strike_each(world, lambda striker: striker.run(lambda: call(world)), dice, nested=nested)
    world.log.close()


@pytest.mark.crash
def test_an_exception_at_any_bytecode_of_an_acquire_leaves_the_lock_to_the_next(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path, PosixFiles())
    count = Striker(Interrupt)
    count.run(lambda: lock.acquire(SystemClock()))
    lock.release()
    for at in range(1, count.seen + 1):
        striker = Striker(Interrupt, at)
        striker.run(lambda: lock.acquire(SystemClock()))
        lock.release()
        following = DirectoryLock(tmp_path, PosixFiles())
        assert following.try_acquire(SystemClock()), striker.places
        following.release()


@pytest.mark.crash
def test_a_handler_that_uses_the_lock_during_its_release_closes_no_other_file(tmp_path: Path) -> None:
    class Files(PosixFiles):
        def close(self, handle: int) -> None:
            for call in (lock.release, lambda: lock.try_acquire(SystemClock())):
                with pytest.raises(ReentrantCallError):
                    call()
            super().close(handle)

    lock = DirectoryLock(tmp_path, Files())
    lock.acquire(SystemClock())
    lock.release()
    assert not lock.is_held
    assert DirectoryLock(tmp_path, PosixFiles()).try_acquire(SystemClock())


def in_transaction(world: World) -> None:
    with world.topic.transaction("t") as txn:
        txn.append(VALUE)
        txn.append(b"after")


@pytest.mark.crash
@pytest.mark.parametrize("nested", [False, True], ids=["single", "nested"])
def test_a_transaction_is_seen_whole_or_not_at_all(tmp_path: Path, nested: bool) -> None:
    print(f"TIERED_CRASH_SEED={SEED}")
    dice = random.Random(f"{SEED} transaction {nested}")
    world = World(tmp_path / "log", {})
    count = Striker(Interrupt)
    count.run(lambda: in_transaction(world))
    places = range(1, count.seen + 1)
    for at in places if WHOLE else sorted(dice.sample(places, SAMPLE)):
        striker = Striker(Interrupt, at, *([at + dice.randrange(1, 80)] if nested else []))
        striker.run(lambda: in_transaction(world))
        with contextlib.suppress(LocalIOError):
            world.log.close()
        world.open()
        values = [record.value for record in world.topic.read(isolation="read_committed")]
        assert values == [VALUE, b"after"] * (len(values) // 2), striker.places
        assert world.log._local.partition(TopicPartition("a", 0)).open_txns() == []
    world.log.close()


class Alarm:
    """Runs ``handle`` in this thread at random instants while :meth:`during` is at work."""

    def __init__(self, handle: Callable[[], None], dice: random.Random) -> None:
        self.handle, self.dice = handle, dice
        self.heard = self.depth = 0
        self.armed = False

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self.armed and self.depth < DEPTH and not _is_spared(frame):
            self.heard += 1
            self.depth += 1
            try:
                self.handle()
            finally:
                self.depth -= 1

    def during(self, call: Callable[[], None], *, until: int) -> None:
        """Calls ``call`` again and again until so many signals came; what the handler raises ends one call."""
        before = signal.signal(signal.SIGALRM, self._ring)
        hook, sys.unraisablehook = sys.unraisablehook, _unraised
        logging.disable(logging.CRITICAL)  # nested handlers make chains of exceptions that take minutes to print
        try:
            while self.heard < until:
                signal.setitimer(signal.ITIMER_REAL, self.dice.uniform(2e-5, 1e-3), self.dice.uniform(1e-4, 2e-3))
                try:
                    self.armed = True
                    while True:
                        call()
                        if self.heard >= until:
                            break
                except (LocalIOError, ClosedError):
                    raise
                except (Interrupt, TieredError):
                    pass  # an appender says what it met: a call inside another, or a batch whose write was interrupted
                finally:
                    self.armed = False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            sys.unraisablehook = hook
            logging.disable(logging.NOTSET)


def _is_spared(frame: FrameType | None) -> bool:
    """Return whether ``frame`` is inside a call of the interpreter that no exception may interrupt.

    The lock of its logging stays taken for ever where an exception comes between ``acquire`` and ``try``. A thread dies
    at its begin where one comes out of ``Thread.start``.
    """
    while frame is not None:
        if frame.f_code.co_filename == logging.__file__ or frame.f_code is threading.Thread.start.__code__:
            return True
        frame = frame.f_back
    return False


def _unraised(found: Any) -> None:
    """Passes over a handler's exception in a weak reference's callback, which the interpreter only reports."""
    assert issubclass(found.exc_type, (Interrupt, TieredError))


def interrupt() -> None:
    raise Interrupt


# What a handler raises in the callback of a weak reference is only reported.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.crash
def test_signals_at_random_instants_leave_the_log_right_or_offline(tmp_path: Path) -> None:
    print(f"TIERED_CRASH_SEED={SEED}")
    dice = random.Random(f"{SEED} signals")
    world = World(tmp_path / "log", {"segment.bytes": 200_000})
    offline = 0
    calls = [append, append, append_with_headers, append_many, append_batches, use_appender, flush]
    for _ in range(SIGNALS // 100):
        alarm = Alarm(interrupt, dice)
        try:
            alarm.during(lambda: dice.choice(calls)(world), until=100)
        except LocalIOError:
            offline += 1
        right = world.recover()
        clean = world.end()
        assert right or not clean
    print(f"{SIGNALS} signals, {len(world.acked)} acknowledged, {offline} times offline")
    world.log.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.crash
@pytest.mark.parametrize("inner", [append, append_with_headers, use_appender, flush, sync, close])
def test_a_handler_that_calls_the_log_raises_at_once_or_works(tmp_path: Path, inner: Callable[[World], None]) -> None:
    print(f"TIERED_CRASH_SEED={SEED}")
    dice = random.Random(f"{SEED} {inner.__name__}")
    world = World(tmp_path / "log", {"segment.bytes": 200_000})
    calls = [append, append_with_headers, append_many, use_appender, flush]
    for _ in range(1 + SIGNALS // 300):
        alarm = Alarm(lambda: inner(world), dice)
        with contextlib.suppress(LocalIOError, ClosedError):
            alarm.during(lambda: dice.choice(calls)(world), until=20)
        right = world.recover()
        clean = world.end()
        assert right or not clean
    world.log.close()


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", [{}, {"segment.bytes": 510}, {"index.interval.bytes": 100}], ids=repr)
def test_an_exception_at_any_call_of_the_disk_leaves_the_log_right_or_offline(
    tmp_path: Path, kind: type[BaseException], config: dict[str, Any]
) -> None:
    files = FaultyFiles()
    acked: list[bytes | None] = []
    number = 0
    while True:
        number += 1
        left = [number]

        def strike(operation: str, path: Path, left: list[int] = left) -> int:
            left[0] -= 1
            if left[0] == 0:
                raise kind
            return 0

        log = LocalLog.open(tmp_path, files=files, config=LogConfig(disk_reserve_bytes=0))
        if "a" not in log.topics():
            log.create_topic("a", 1, TopicConfig.from_properties(config))
        partition = log.partition(TopicPartition("a", 0))
        files.fail = strike
        with contextlib.suppress(kind):
            partition.append([NewRecord(VALUE)])
            acked.append(VALUE)
            partition.flush()
            log.close()
        files.fail = None
        with contextlib.suppress(LocalIOError):
            log.close()
        with LocalLog.open(tmp_path, files=files) as again:
            partition = again.partition(TopicPartition("a", 0))
            values = [r.value for batch in partition.read_batches(0) for r in decode_records(batch)]
            assert len(acked) <= len(values) <= len(acked) + 1
            acked = list(values)
        if left[0] > 0:
            break
