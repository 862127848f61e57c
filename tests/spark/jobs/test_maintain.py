"""Maintenance on Spark: what the library's maintainer leaves, however often a task is begun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.spark.jobs.building import Result, bucket, inline, log, records, rows, run, shape
from tests.spark.jobs.shuffling import inline_shuffle
from tests.support.admin import check
from tiered.check.check import CheckOptions
from tiered.cli.main import run as tiered_run
from tiered.config import TopicConfig
from tiered.errors import FencedError
from tiered.format.kernels import Record
from tiered.format.keys import Role, root_key
from tiered.model import TopicPartition
from tiered.plan.jobs import groups_by_size
from tiered.plan.maintenance import MaintenanceKind
from tiered.remote.catalog import Catalog
from tiered.remote.maintain import Maintainer
from tiered.remote.topics import load_topic
from tiered.spark.jobs import maintain
from tiered.spark.jobs.run import Receipt, Task
from tiered.store.base import Get, Match, Object, Put, Store
from tiered.store.capabilities import probe
from tiered.store.driver import drive
from tiered.store.location import open_store

__all__ = ["inline", "inline_shuffle"]

SETTINGS = {
    "latest": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
    "small": {"merge.min.bytes": "10000", "merge.target.bytes": "100000"},
    "old": {"retention.ms": "1000"},
}
KINDS = {
    "compact": MaintenanceKind.COMPACT,
    "merge": MaintenanceKind.MERGE,
    "retention": MaintenanceKind.RETENTION,
    "reencode": MaintenanceKind.REENCODE,
}


def only(kind: str, folder: Path, *more: str) -> Result:
    return run("maintain", "--only", kind, "--remote", bucket(folder), "--json", *(more or ("--yes",)))


def fill(folder: Path, end: int = 240) -> Path:
    with log(folder, SETTINGS, partitions=2) as opened:
        for name in SETTINGS:
            for at in range(0, end, 20):
                opened.topic(name).append_many(records(at, 20), partition=at // 20 % 2)
    return folder


def content(url: str, topic: str) -> list[list[Record]]:
    with tiered.open_reader(url) as reader:
        return [list(reader.topic(topic).read(partition=partition)) for partition in range(2)]


def by_the_library(url: str, kind: MaintenanceKind) -> None:
    """One kind of work alone, like ``tiered maintain --only``."""
    store = open_store(url)
    for topic in SETTINGS:
        entry = drive(store, load_topic(topic))
        assert entry is not None
        config = TopicConfig.from_properties(entry.config)
        for partition in range(entry.partitions):
            maintainer = Maintainer(TopicPartition(topic, partition), entry.topic_id, config, owner="test")
            plan = drive(store, maintainer.plan((kind,)))
            for action in plan.actions if plan is not None else ():
                drive(store, maintainer.run(action, drive(store, probe())))


@pytest.mark.parametrize("job", list(KINDS))
def test_a_job_leaves_what_the_maintainer_leaves(job: str, tmp_path: Path, inline: None) -> None:
    one, other = fill(tmp_path / "one"), fill(tmp_path / "other")
    before = {topic: sum(map(len, content(bucket(one), topic))) for topic in SETTINGS}
    stored = {topic: sum(row.size for row in rows(bucket(one), topic, 0)) for topic in SETTINGS}
    for place in (one, other) if job == "reencode" else ():
        for topic in SETTINGS:
            assert tiered_run(["topic", "set", topic, "compression.type=zstd", "--remote", bucket(place)]) == 0
    done = only(job, one)
    assert done.code == 0, done.err
    by_the_library(bucket(other), KINDS[job])
    for topic in SETTINGS:
        for partition in range(2):
            assert shape(rows(bucket(one), topic, partition)) == shape(rows(bucket(other), topic, partition))
        assert content(bucket(one), topic) == content(bucket(other), topic)
    counts = {topic: sum(map(len, content(bucket(one), topic))) for topic in SETTINGS}
    touched = {"compact": "latest", "merge": "small", "retention": "old", "reencode": "old"}[job]
    assert {each["topic"] for each in done.summary["partitions"]} >= {touched}
    if job in ("merge", "reencode"):
        assert counts == before
        assert len(rows(bucket(one), "small", 0)) == (1 if job == "merge" else 6)
        shrunk = {topic: sum(row.size for row in rows(bucket(one), topic, 0)) < stored[topic] for topic in SETTINGS}
        assert all(shrunk.values()) == (job == "reencode")
    else:
        assert counts[touched] < before[touched]
    assert check(None, open_store(bucket(one)), CheckOptions(read_data=True)).findings == ()
    again = only(job, one)
    written = [each["bytes_written"] for one in again.summary["partitions"] for each in one["actions"]]
    assert (again.code, written) == (0, [0] * 6 if job == "reencode" else [])  # reencode reads all, to know


@pytest.mark.parametrize(
    ("job", "topic", "options"),
    [
        ("compact", "latest", ()),
        ("compact", "latest", ("--two-phase-above", "1", "--task-bytes", "3KiB", "--memory", "2KiB")),
        ("merge", "small", ()),
        ("retention", "old", ()),
    ],
)
def test_nothing_is_done_under_an_older_root_that_was_put_back(
    job: str, topic: str, options: tuple[str, ...], tmp_path: Path, inline_shuffle: None
) -> None:
    """A commit of the job would be newer than all evidence of the newer root."""
    place = fill(tmp_path)
    store = open_store(bucket(place))
    entry = drive(store, load_topic(topic))
    assert entry is not None
    key = root_key(entry.topic_id, 0)
    older = store.execute(Get(key))
    trimmer = Maintainer(TopicPartition(topic, 0), entry.topic_id, TopicConfig(), owner="test")
    plan = drive(store, trimmer.plan((MaintenanceKind.RETENTION,), begin_at=20))
    assert plan is not None
    drive(store, trimmer.run(plan.actions[0], drive(store, probe())))
    newer = store.execute(Get(key))
    assert isinstance(older, Object)
    assert isinstance(newer, Object)
    store.execute(Put(key, older.data, Match(newer.etag)))
    done = run("maintain", topic, "--only", job, "--remote", bucket(place), "--json", "--yes", *options)
    assert (done.code, "has a copy of version" in done.out + done.err) == (13, True)
    kept = store.execute(Get(key))
    assert isinstance(kept, Object)
    assert kept.data == older.data


def test_a_driver_that_is_killed_and_started_again_does_what_is_left(
    tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = fill(tmp_path)
    work, calls = maintain.maintain_partitions, list[Any]()

    def killed(store: Store, task: Task) -> Receipt:
        calls.append(work(store, task))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return calls[-1]  # type: ignore[no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(maintain, "maintain_partitions", killed)
        assert only("merge", place, "--task-bytes", "1KiB", "--yes").code == 130
    merged = [(each["topic"], each["partition"]) for receipt in calls for each in receipt["partitions"]]
    done = only("merge", place, "--task-bytes", "1KiB", "--yes")
    assert done.code == 0, done.err
    assert not [each for each in done.summary["partitions"] if (each["topic"], each["partition"]) in merged]
    assert all(len(rows(bucket(place), "small", partition)) == 1 for partition in range(2))
    assert check(None, open_store(bucket(place)), CheckOptions(read_data=True)).findings == ()


def test_it_asks_before_it_acts_and_a_dry_run_changes_nothing(tmp_path: Path, inline: None) -> None:
    place = fill(tmp_path)
    before = rows(bucket(place), "small", 0)
    assert "asks before it acts" in only("merge", place, "--memory", "1MiB").err
    shown = only("merge", place, "--dry-run")
    assert (shown.code, {each["topic"] for each in shown.summary["partitions"]}) == (0, {"small"})
    assert rows(bucket(place), "small", 0) == before
    assert run("maintain", "--only", "tidy", "--remote", bucket(place)).code == 2


def test_another_maintainer_is_left_alone_and_said(tmp_path: Path, inline: None, monkeypatch: Any) -> None:
    place = fill(tmp_path)
    store = open_store(bucket(place))
    entry = drive(store, load_topic("small"))
    assert entry is not None
    trim, catalog_run = Maintainer.run, Catalog(entry.topic_id, 0, "small")

    def raced(self: Maintainer, action: Any, *args: Any, **kwargs: Any) -> Any:
        if self._tp == TopicPartition("small", 0):
            yield from self._claimed()
            drive(store, catalog_run.claim(Role.MAINTAINER, "other"))
        return (yield from trim(self, action, *args, **kwargs))

    monkeypatch.setattr(Maintainer, "run", raced)
    done = only("merge", place)
    assert done.code == FencedError.exit_code
    failed = [each for each in done.summary["partitions"] if "error" in each]
    assert [(each["topic"], each["partition"]) for each in failed] == [("small", 0)]
    assert len(rows(bucket(place), "small", 1)) == 1


def test_an_unknown_topic(tmp_path: Path) -> None:
    fill(tmp_path, 40)
    assert run("maintain", "nobody", "--remote", bucket(tmp_path), "--yes").code == 10


def test_large_ones_begin_first_and_small_ones_share_a_task() -> None:
    assert groups_by_size([5, 100, 1, 2, 3], 10, 3) == [[1], [0, 4, 3], [2]]
    assert groups_by_size([0] * 5, 10, 2) == [[0, 1], [2, 3], [4]]
    assert groups_by_size([], 10, 2) == []
