"""Buckets for the jobs, and a job run as its command line runs it, in the session that is there."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BooleanType, IntegerType, StringType, StructType

import tiered
from tiered.model import NewRecord, Row
from tiered.program.command_line import run_command
from tiered.remote.root_view import RootView
from tiered.remote.topics import load_topic
from tiered.spark.commands import PROGRAM, jobs
from tiered.spark.jobs.plan import Receipt
from tiered.spark.jobs.receipts import JobFolder
from tiered.spark.jobs.runner import JobRun
from tiered.spark.jobs.source import TaskReader
from tiered.store.driver import drive
from tiered.store.location import open_store
from tiered.testing.clock import START_MS

SCHEMA_TYPE = StructType().add("task", IntegerType()).add("receipt", StringType()).add("failed", BooleanType())


@dataclass(frozen=True)
class Result:
    """What a job left."""

    code: int
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        """The last JSON line."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found

    @property
    def done(self) -> dict[str, Any]:
        """What its receipt says was done."""
        found: dict[str, Any] = self.summary["done"]
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
    """The tasks of a job one after the other in this process: the source's own code, without a session."""

    def collect(self: JobRun, phase: str, show: Any) -> list[tuple[int, str, bool]]:
        words = {"url": self._where.url, "job": self.job_id, "phase": phase, "run": self._run}
        reader = TaskReader(words, self._where.s3, SCHEMA_TYPE)
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        show(len(rows))
        return [(row["task"], row["receipt"], row["failed"]) for row in rows]

    monkeypatch.setattr(JobRun, "_collect", collect)


@pytest.fixture
def in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As :func:`inline`, but of each task two attempts run side by side, and both have done their work before either
    keeps its receipt; the second to end is the one that Spark does not hear of."""

    def collect(self: JobRun, phase: str, show: Any) -> list[tuple[int, str, bool]]:
        words = {"url": self._where.url, "job": self.job_id, "phase": phase, "run": self._run}
        reader = TaskReader(words, self._where.s3, SCHEMA_TYPE)
        rows: list[tuple[int, str, bool]] = []
        keep = JobFolder.keep_receipt
        for part in reader.partitions():
            both = threading.Barrier(2)

            def kept(self: JobFolder, phase: str, number: int, receipt: Receipt, both: Any = both) -> Receipt:
                both.wait(60)
                return keep(self, phase, number, receipt)

            ended: list[dict[str, Any]] = []

            def attempt(part: Any = part, ended: list[dict[str, Any]] = ended) -> None:
                ended.extend(row for batch in reader.read(part) for row in batch.to_pylist())

            with monkeypatch.context() as patch:
                patch.setattr(JobFolder, "keep_receipt", kept)
                attempts = [threading.Thread(target=attempt) for _ in range(2)]
                for each in attempts:
                    each.start()
                for each in attempts:
                    each.join()
            assert len(ended) == 2
            rows.append((ended[0]["task"], ended[0]["receipt"], ended[0]["failed"]))
        show(len(rows))
        return rows

    monkeypatch.setattr(JobRun, "_collect", collect)
