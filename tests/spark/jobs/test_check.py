"""The check on Spark says what ``tiered check --read-data`` says, and what fails in a task is an error in its words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spark.jobs.building import bucket, inline, log, records, rows, run
from tests.support.admin import check
from tiered.check.check import CheckOptions
from tiered.cli.main import run as tiered_run
from tiered.errors import RemoteUnavailableError
from tiered.format.keys import segment_key
from tiered.remote.topics import load_topic
from tiered.spark.jobs import check as checking
from tiered.store.base import Get, Match, Object, Put, Store
from tiered.store.driver import drive
from tiered.store.location import open_store
from tiered.store.steps import list_all

__all__ = ["inline"]


def fill(folder: Path) -> Path:
    with log(folder, {"flights": {}, "empty": {}}, partitions=2) as opened:
        for at in range(0, 300, 20):
            opened.topic("flights").append_many(records(at, 20), partition=at // 20 % 2)
        with opened.topic("flights").transaction("billing") as txn:
            txn.append(b"", key=None, partition=1)
            txn.abort()
    return folder


def small(folder: Path, *words: str) -> Any:
    return run("check", *words, "--remote", bucket(folder), "--task-bytes", "4KiB", "--json")


def hurt(store: Store, key: str) -> None:
    """Change one bit near the end of an object."""
    found = store.execute(Get(key))
    assert isinstance(found, Object)
    store.execute(Put(key, found.data[:-200] + bytes([found.data[-200] ^ 1]) + found.data[-199:], Match(found.etag)))


def test_it_says_what_one_machine_says(tmp_path: Path, inline: None) -> None:
    place = fill(tmp_path)
    whole = check(None, open_store(bucket(place)), CheckOptions(read_data=True))
    done = small(place)
    assert (done.code, done.summary["errors"], done.summary["warnings"]) == (0, 0, 0)
    assert (done.summary["data_bytes_read"], done.summary["partitions"]) == (whole.remote_bytes, 4)
    store = open_store(bucket(place))
    hurt(store, next(entry.key for entry in drive(store, list_all("")) if entry.key.endswith(".log")))
    done = small(place, "--read-data")
    whole = check(None, store, CheckOptions(read_data=True))
    found = [line for line in map(json.loads, done.out.splitlines()) if "severity" in line]
    assert (done.code, len(found)) == (13, len(whole.findings))
    assert {each["message"] for each in found} == {each.message for each in whole.findings}


def test_parts_of_the_segments_are_those_of_one_machine(tmp_path: Path, inline: None) -> None:
    place = fill(tmp_path)
    store = open_store(bucket(place))
    read = [small(place, "--read-data-subset", f"{part}/3").summary["data_bytes_read"] for part in (1, 2, 3)]
    whole = [check(None, store, CheckOptions(read_data=True, subset=(part, 3))).data_bytes_read for part in (1, 2, 3)]
    assert read == whole
    assert sum(read) == small(place).summary["data_bytes_read"]


def test_words_that_are_wrong(tmp_path: Path, inline: None) -> None:
    place = fill(tmp_path / "log")
    assert small(place, "nobody").code == 10
    assert run("check", "--remote", f"file://{tmp_path / 'none'}").code == 10
    assert run("check").code == 2
    assert "--conf 'x' is not K=V" in run("check", "--remote", bucket(place), "--conf", "x").err


def test_what_goes_wrong_in_a_task_is_said_in_its_words(
    tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = fill(tmp_path)
    work = checking.check_part

    def failing(store: Store, task: Any) -> Any:
        if task["part"]["topic"] == "flights":
            raise RemoteUnavailableError("the store does not answer", hint="look at its network")
        return work(store, task)

    monkeypatch.setattr(checking, "check_part", failing)
    done = small(place)
    assert done.code == RemoteUnavailableError.exit_code
    assert "tasks of" in done.err
    assert "the store does not answer" in done.err
    assert "look at its network; run the same command again: it does the rest" in done.err


def test_it_reads_what_only_a_snapshot_names(tmp_path: Path, inline: None) -> None:
    with log(tmp_path, {"latest": {"cleanup.policy": "compact", "gc.grace.ms": "0"}}) as opened:
        for at in range(0, 200, 20):
            opened.topic("latest").append_many(records(at, 20))
    url, store = bucket(tmp_path), open_store(bucket(tmp_path))
    taken = {row.id_lo: row for row in rows(url, "latest", 0)}
    assert tiered_run(["snapshot", "create", "before", "latest", "--remote", url]) == 0
    assert tiered_run(["maintain", "latest", "--only", "compact", "--remote", url, "--yes"]) == 0
    left = [row for id_lo, row in taken.items() if id_lo not in {row.id_lo for row in rows(url, "latest", 0)}]
    assert run("check", "--remote", url, "--json").code == 0
    entry = drive(store, load_topic("latest"))
    assert entry is not None
    key = segment_key(entry.topic_id, 0, left[-1])
    hurt(store, key)
    done = run("check", "--remote", url, "--json")
    assert done.code == 13
    assert f"snapshot before: {key}" in done.out
