"""The figures of reads that follow: how late a record comes in one process, and what a quiet topic costs."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import tiered
from bench.gate import AT_MOST
from bench.measure import Figure, seconds

RECORDS = 400
"""Records of one round of latencies; one is sent when the last one was received."""
START_S, QUIET_S = 2.0, 6.0
"""Wall seconds after which a follower counts as quiet, and over which its CPU time counts then."""
LATENCY_RATIO = 3.0
"""Allowed 99th percentile, in those of a bare condition variable."""
QUIET_PERCENT = 0.1
"""Allowed CPU time of a follower of a quiet topic on a disk, in percent of a core."""


def follow(rounds: int) -> list[Figure]:
    """Measure both, each in rounds whose median counts."""
    with tempfile.TemporaryDirectory() as folder, tiered.open(Path(folder) / "log") as log:
        topic = log.topic("t", create=True)
        pairs = [(_p99(_bare()), _p99(_followed(topic))) for _ in range(rounds)]
        bare, ours = (statistics.median(each) for each in zip(*pairs, strict=True))
        with tiered.open_reader(log_dir=Path(folder) / "log") as reader:
            own = _quiet(partial(topic.read, 0, start="latest", follow=True))
            other = _quiet(partial(reader.topic("t").read, 0, start="latest", follow=True))
    return [
        _limit("follow: 99th percentile of the latency in one process", "us", ours * 1e6, LATENCY_RATIO * bare * 1e6),
        _limit("follow: a quiet topic of this process, CPU", "% of a core", own, QUIET_PERCENT),
        _limit("follow: a quiet topic of another process, CPU", "% of a core", other, QUIET_PERCENT),
    ]


def _limit(what: str, unit: str, ours: float, limit: float) -> Figure:
    return Figure(what, unit, ours, AT_MOST, limit, limit / max(ours, 1e-9))


def _p99(latencies: list[float]) -> float:
    return statistics.quantiles(latencies, n=100)[98]


def _bare() -> list[float]:
    """Return the seconds from a change under a condition variable to the thread that waits for it."""
    changed, seen, found = threading.Condition(), threading.Semaphore(0), []
    sent = [0.0]

    def wait() -> None:
        for number in range(1, RECORDS + 1):
            with changed:
                changed.wait_for(lambda number=number: len(sent) > number)  # type: ignore[misc]
            found.append(time.perf_counter() - sent[number])
            seen.release()

    thread = threading.Thread(target=wait)
    thread.start()
    for _ in range(RECORDS):
        with changed:
            sent.append(time.perf_counter())
            changed.notify()
        seen.acquire()
    thread.join()
    return found


def _followed(topic: tiered.Topic) -> list[float]:
    """Return the seconds from the beginning of an append to the record at a read that follows."""
    seen, found = threading.Semaphore(0), []
    sent: list[float] = []
    first = topic.positions(0).end_offset
    read = topic.read(0, start=first, end=first + RECORDS, follow=True)
    ready = threading.Event()

    def wait() -> None:
        ready.set()
        for record in read:
            found.append(time.perf_counter() - sent[record.offset - first])
            seen.release()

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    for _ in range(RECORDS):
        sent.append(time.perf_counter())
        topic.append(b"v", partition=0)
        seen.acquire()
    thread.join()
    return found


def _quiet(read: Callable[..., Iterable[object]]) -> float:
    """Return the CPU time of a read that gets no record, with the open log, in percent of a core."""
    short, long = (seconds(partial(list, read(idle_timeout=after_s))) for after_s in (START_S, START_S + QUIET_S))
    return max(long - short, 0.0) / QUIET_S * 100
