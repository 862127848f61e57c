"""Buckets for the verbs, and a verb run as its command line runs it, in the session that is there."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tiered
from tiered.model import NewRecord, Row
from tiered.program.command_line import run_command
from tiered.remote.root_view import RootView
from tiered.remote.topics import load_topic
from tiered.spark.commands import PROGRAM, jobs
from tiered.spark.jobs.run import JobRunner, Task, TaskCall, Work
from tiered.store.driver import drive
from tiered.store.location import open_store
from tiered.testing.clock import START_MS


@dataclass(frozen=True)
class Result:
    """What a verb left."""

    code: int
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        """The last JSON line."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found


class Stream(io.TextIOWrapper):
    """A standard stream over memory."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, encoding="utf-8", write_through=True)

    def content(self) -> str:
        """What was written."""
        self.flush()
        return self._bytes.getvalue().decode()


def run(*arguments: str | Path) -> Result:
    """``tiered spark``, in this process."""
    out, err = Stream(), Stream()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command(jobs, PROGRAM, [str(each) for each in arguments])
    return Result(code, out.content(), err.content())


def records(start: int, count: int, keys: int = 10) -> list[NewRecord]:
    """``count`` records from ``start`` on, whose keys repeat."""
    return [
        NewRecord(b"value-%06d" % at * 5, b"key-%d" % (at % keys), START_MS + at) for at in range(start, start + count)
    ]


@contextlib.contextmanager
def log(folder: Path, topics: Mapping[str, Mapping[str, Any]], partitions: int = 1) -> Iterator[tiered.Log]:
    """A log of small segments, and its bucket beside it at ``folder/bucket``; synced at the end of the block."""
    with tiered.open(folder / "log", remote=bucket(folder)) as opened:
        for name, config in topics.items():
            small = {"segment.bytes": 2000, "index.interval.bytes": 200}
            opened.topic(name, create=True, partitions=partitions, config={**small, **config})
        yield opened
        opened.sync(timeout=60)


def bucket(folder: Path) -> str:
    """The URL of its bucket."""
    return f"file://{folder / 'bucket'}"


def rows(url: str, topic: str, partition: int) -> list[Row]:
    """All rows of a partition's catalog."""
    store = open_store(url)
    entry = drive(store, load_topic(topic))
    assert entry is not None
    pinned = drive(store, RootView(entry.topic_id, partition, topic).pin())
    assert pinned is not None
    found: list[Row] = []
    while len(piece := drive(store, pinned.piece(found[-1].next if found else 0))):
        found += list(piece)
    return found


def shape(found: list[Row]) -> list[tuple[int, int, int, int, int, int]]:
    """Everything of a row but its names."""
    return [(row.base, row.next, row.size, row.crc, row.records, row.leader_epoch) for row in found]


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks of a verb one after the other in this process: what a worker calls, without a session."""

    def collect(self: JobRunner, title: str, work: Work, tasks: Sequence[Task]) -> list[tuple[int, str]]:
        del title
        call = TaskCall(work, self.url, self.s3)
        return [(number, call(json.dumps(task))) for number, task in enumerate(tasks)]

    monkeypatch.setattr(JobRunner, "_collect", collect)
