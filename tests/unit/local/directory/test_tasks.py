"""Background tasks: each in its own time, run by name, and one failure stops nobody else."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from tests.support.faulty_files import FaultyFiles
from tests.unit.local.opening import opened
from tiered.config import TopicConfig
from tiered.errors import LocalIOError
from tiered.local.directory.figures import TASKS_NAME, UpkeepReport, read_report
from tiered.local.directory.tasks import Task, Tasks
from tiered.local.disk.files import PosixFiles
from tiered.model import NewRecord
from tiered.testing.clock import START_MS, FakeClock, SeededIds


def test_each_runs_within_its_period_and_not_much_earlier() -> None:
    clock, ran = FakeClock(), []
    tasks = Tasks(clock, SeededIds(5), [Task("slow", 10_000, ran.append), Task("quick", 0, lambda _: None)])
    for _ in range(100):
        clock.advance(1)
        tasks.tick()
    gaps = [b - a for a, b in itertools.pairwise(ran)]
    assert {9000, 10_000} >= set(gaps)
    assert [task.runs for task in tasks.status()] == [len(ran), 100]


def test_a_clock_that_jumps_back_makes_a_task_due() -> None:
    clock, ran = FakeClock(), []
    tasks = Tasks(clock, SeededIds(5), [Task("slow", 10_000, ran.append)])
    clock.jump(-3600)
    tasks.tick()
    assert len(ran) == 1


def test_one_partition_that_fails_stops_neither_the_others_nor_the_next_task(tmp_path: Path) -> None:
    clock, files = FakeClock(), FaultyFiles()
    log = opened(tmp_path, clock, files)
    log.create_topic("t", 3, TopicConfig(flush_ms=5000, seal_ms=-1))
    for tp in log.partitions():
        log.partition(tp).append([NewRecord(b"x")])
    files.fail = lambda operation, path: errno.EMFILE if operation == "sync" and path.parent.name == "t-0" else 0
    clock.advance(60)
    with pytest.raises(LocalIOError):
        log.tick()
    assert [log.partition(tp).positions().flushed_offset for tp in log.partitions()] == [0, 1, 1]
    status = {task.name: task for task in log.tasks.status()}
    flush = status["flush"]
    assert "EMFILE" in flush.last_error
    assert (flush.partitions, flush.failures, flush.last_run_ms) == (2, 1, START_MS + 60_000)
    assert (status["recovery-point-checkpoint"].runs, status["log-start-checkpoint"].runs) == (1, 1)
    log.tick()
    clock.advance(60)
    log.tick()
    noted = {task.name: task for task in read_report(tmp_path, PosixFiles()).tasks}
    assert (noted["flush"].failures, noted["flush"].last_error) == (1, "")
    with pytest.raises(LocalIOError, match="not everything is durable"):
        log.close()


def test_notes_that_cannot_be_read_are_no_tasks(tmp_path: Path) -> None:
    assert read_report(tmp_path, PosixFiles()) == UpkeepReport()
    (tmp_path / TASKS_NAME).write_text('{"tasks": [{"nonsense": 1}]}')
    assert read_report(tmp_path, PosixFiles()) == UpkeepReport()
