"""Rounds of compaction beside the timers: on workers, stopped between two batches, never in the way of the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.faulty_files import FaultyFiles
from tests.unit.local.cleaning.cleaning_bench import CLEAN, CLEANED, DIRTY, KEYED_BYTES
from tests.unit.local.opening import run_task
from tiered.config import LogConfig, TopicConfig
from tiered.errors import ConfigError, LocalIOError, LockedError
from tiered.format.batch import decode_records
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.tasks import InlineWorkers, ThreadWorkers, Workers
from tiered.local.disk.directory_files import CLEANER_NAME, OffsetsFile
from tiered.local.disk.files import PosixFiles
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock, SeededIds

TPS = [TopicPartition("t", 0), TopicPartition("t", 1)]


class HeldWorkers:
    """Keeps the work until the test runs it."""

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] = []

    def start(self, name: str, work: Callable[[], None]) -> None:
        self.held.append(work)

    def join(self, timeout_seconds: float) -> bool:
        while self.held:
            self.held.pop(0)()
        return True


class Gate:
    """A disk that holds the thread that creates the first ``.cleaned`` file until the test opens."""

    def __init__(self, files: FaultyFiles) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self._files = files
        files.fail = self._ask

    def _ask(self, operation: str, path: Path) -> int:
        if operation == "open" and path.name.endswith(".log.cleaned") and not self.reached.is_set():
            self.held = TPS[int(path.parent.name[-1])]
            self.reached.set()
            self.open.wait()
        return 0


def opened(path: Path, workers: Workers, files: FaultyFiles | None = None, **config: int) -> tuple[LocalLog, FakeClock]:
    clock = FakeClock()
    settings = LogConfig(disk_reserve_bytes=0, **config)  # type: ignore[arg-type]  # numbers only
    log = LocalLog.open(path, clock=clock, ids=SeededIds(1), files=files, config=settings, workers=workers)
    if "t" not in log.topics():
        log.create_topic("t", 2, TopicConfig(segment_bytes=3 * KEYED_BYTES, **CLEAN))  # type: ignore[arg-type]  # dict
        for tp in TPS:
            for pair in DIRTY:
                log.partition(tp).append([NewRecord(pair[1:].encode(), pair[:1].encode())])
            log.partition(tp).roll()
    return log, clock


def pairs(log: LocalLog, tp: TopicPartition) -> list[str]:
    records = (r for batch in log.partition(tp).read_batches(0) for r in decode_records(batch))
    return [f"{(r.key or b'').decode()}{(r.value or b'').decode()}" for r in records]


def test_a_round_delays_no_timer(tmp_path: Path) -> None:
    workers = HeldWorkers()
    log, clock = opened(tmp_path, workers)
    clock.advance(15)
    log.tick()
    assert len(workers.held) == 1
    status = {task.name: task for task in log.tasks.status()}
    assert (status["cleaning"].running, status["cleaning"].runs, status["flush"].runs) == (True, 0, 1)
    clock.advance(15)
    log.tick()
    assert len(workers.held) == 1  # it is at work still: no second one beside it
    assert {task.name: task.runs for task in log.tasks.status()}["seal"] == 2
    assert pairs(log, TPS[0]) == [*DIRTY]
    workers.join(0)
    status = {task.name: task for task in log.tasks.status()}
    cleaning = status["cleaning"]
    assert (cleaning.running, cleaning.runs, cleaning.partitions, cleaning.last_duration_ms) == (False, 1, 2, 15_000)
    assert cleaning.bytes > 18 * KEYED_BYTES
    assert [pairs(log, tp) for tp in TPS] == [CLEANED, CLEANED]
    log.close()


def test_two_workers_never_take_the_same_partition(tmp_path: Path) -> None:
    files = FaultyFiles()
    log, clock = opened(tmp_path, ThreadWorkers(), files, cleaner_threads=2)
    gate = Gate(files)
    clock.advance(15)
    log.tick()
    assert gate.reached.wait(30)
    with pytest.raises(ConfigError, match="another round is cleaning it now"):
        log.cleaner.clean(gate.held)
    gate.open.set()
    assert log._workers.join(30)
    assert [pairs(log, tp) for tp in TPS] == [CLEANED, CLEANED]
    assert {task.name: task.partitions for task in log.tasks.status()}["cleaning"] == 2
    log.close()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_the_end_stops_a_round_between_two_batches(tmp_path: Path) -> None:
    files = FaultyFiles()
    log, clock = opened(tmp_path, ThreadWorkers(), files)
    gate = Gate(files)
    clock.advance(15)
    log.tick()
    assert gate.reached.wait(30)
    log.cleaner.stop()  # as close does before it waits
    gate.open.set()
    log.close()
    assert not list(tmp_path.glob("*/*.cleaned"))
    log, clock = opened(tmp_path, InlineWorkers())
    assert [pairs(log, tp) for tp in TPS] == [[*DIRTY], [*DIRTY]]
    assert log.cleaner.uncleanable == {}
    run_task(log.tasks, "cleaning")
    assert [pairs(log, tp) for tp in TPS] == [CLEANED, CLEANED]
    log.close()


def test_a_round_that_hangs_in_the_disk_keeps_the_lock_and_nothing_else(tmp_path: Path) -> None:
    files = FaultyFiles()
    log, clock = opened(tmp_path, ThreadWorkers(), files, close_timeout_ms=1)
    other = log.partition(TPS[1])
    other.append([NewRecord(b"1", b"z")])
    gate = Gate(files)
    clock.advance(15)
    log.tick()
    assert gate.reached.wait(30)
    with pytest.raises(LocalIOError, match="has not ended for 1 ms"):
        log.close()
    with pytest.raises(LockedError):
        opened(tmp_path, InlineWorkers())
    assert other.positions().flushed_offset == 10  # the partitions were closed all the same
    gate.open.set()
    assert log._workers.join(30)
    log._directory_lock.release()
    log, clock = opened(tmp_path, InlineWorkers())
    assert [pairs(log, tp)[:9] for tp in TPS] == [[*DIRTY], [*DIRTY]]
    assert not list(tmp_path.glob("*/*.cleaned"))
    log.close()


def test_a_topic_that_is_deleted_waits_for_its_round_to_end(tmp_path: Path) -> None:
    files = FaultyFiles()
    log, clock = opened(tmp_path, ThreadWorkers(), files)
    gate = Gate(files)
    clock.advance(15)
    log.tick()
    assert gate.reached.wait(30)
    log.cleaner._config = LogConfig(close_timeout_ms=1)
    with pytest.raises(LocalIOError, match="has not stopped its work on t-0, t-1"):
        log.delete_topic("t")
    log.cleaner._config = log.config
    assert pairs(log, TPS[0]) == [*DIRTY]
    gate.open.set()
    log.delete_topic("t")
    assert not list(tmp_path.glob("*/*.cleaned"))
    log.close()


def test_what_was_cleaned_is_noted_by_every_worker(tmp_path: Path) -> None:
    log, _ = opened(tmp_path, InlineWorkers(), cleaner_threads=4)
    run_task(log.tasks, "cleaning")
    assert OffsetsFile(tmp_path, CLEANER_NAME, PosixFiles()).read() == dict.fromkeys(TPS, 9)
    log.close()
