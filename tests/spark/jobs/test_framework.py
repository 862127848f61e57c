"""Plan, tasks, receipts: a job is done once, whoever starts it how often, and goes on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.jobs.building import bucket, log, records, run
from tiered.care.check import CheckOptions
from tiered.care.run import check
from tiered.spark.jobs.receipts import JobFolder
from tiered.store.base import Delete, list_all
from tiered.store.driver import drive
from tiered.store.location import open_store

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    del spark
    folder = tmp_path_factory.mktemp("jobs")
    with log(folder, {"flights": {}, "empty": {}}, partitions=2) as opened:
        for at in range(0, 300, 20):
            opened.topic("flights").append_many(records(at, 20), partition=at // 20 % 2)
        with opened.topic("flights").transaction("billing") as txn:
            txn.append(b"", key=None, partition=1)
            txn.abort()
    return folder


def all_keys(url: str, prefix: str = "") -> list[str]:
    return sorted(entry.key.removeprefix(prefix) for entry in drive(open_store(url), list_all(prefix)))


def keys_of(url: str, job_id: str) -> list[str]:
    return all_keys(url, f"jobs/{job_id}/")


def test_scrub_says_what_check_says(place: Path) -> None:
    done = run("scrub", "--remote", bucket(place), "--task-bytes", "4KiB", "--json", "--job", "nightly")
    whole = check(None, open_store(bucket(place)), CheckOptions(read_data=True))
    assert (done.code, done.done["errors"], done.done["findings"]) == (0, 0, [])
    assert (done.done["data_bytes_read"], done.done["partitions"]) == (whole.remote_bytes, 4)
    assert keys_of(bucket(place), "nightly")[:2] == ["plan.json", "receipt.json"]
    assert len(keys_of(bucket(place), "nightly")) == 2 + done.summary["tasks"]


def test_a_plan_changes_nothing(place: Path) -> None:
    done = run("scrub", "--plan", "--remote", bucket(place), "--task-bytes", "4KiB", "--job", "planned")
    assert done.code == 0
    assert done.out.splitlines()[0].split() == ["partition", "tasks", "segments", "read"]
    assert keys_of(bucket(place), "planned") == []
    as_json = run("scrub", "--plan", "--remote", bucket(place), "--json").summary
    assert as_json["tasks"] == 4


def test_a_job_that_has_ended_gives_its_receipt_again(place: Path) -> None:
    first = run("scrub", "flights", "--remote", bucket(place), "--json", "--job", "twice")
    again = run("scrub", "flights", "--remote", bucket(place), "--json", "--job", "twice")
    assert "it has ended" in again.err
    assert again.summary == first.summary
    other = run("scrub", "--remote", bucket(place), "--job", "twice")
    assert (other.code, "is another one" in other.err) == (2, True)
    assert run("merge", "flights", "--remote", bucket(place), "--job", "twice").code == 2
    assert run("scrub", "--remote", bucket(place), "--job", "a/b").code == 2


def test_tasks_that_have_a_receipt_are_not_done_again(place: Path) -> None:
    url, store = bucket(place), open_store(bucket(place))
    run("scrub", "flights", "--remote", url, "--task-bytes", "4KiB", "--json", "--job", "resumed")
    folder = JobFolder(store, "resumed")
    assert len(folder.done("tasks")) > 3
    told = {**folder.task_receipts("tasks", [2])[2], "data_bytes_read": 10**9}
    store.execute(
        Delete((folder.key("receipt.json"), folder.key("tasks/000001.json"), folder.key("tasks/000002.json")))
    )
    assert folder.keep_receipt("tasks", 2, told) == told
    again = run("scrub", "flights", "--remote", url, "--task-bytes", "4KiB", "--json", "--job", "resumed")
    assert len(folder.task_receipts("tasks", [1])) == 1  # the one that had none was done again
    assert again.done["data_bytes_read"] > 10**9
    assert folder.task_receipts("tasks", [2])[2] == told


def test_an_unknown_topic_and_no_bucket(place: Path, tmp_path: Path) -> None:
    assert run("scrub", "nobody", "--remote", bucket(place)).code == 10
    assert run("scrub", "--remote", f"file://{tmp_path / 'none'}").code == 10
    assert run("scrub").code == 2
    assert "--conf 'x' is not K=V" in run("scrub", "--remote", bucket(place), "--conf", "x").err
