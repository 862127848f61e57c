"""Plan, tasks, receipts: a job is done once, whoever starts it how often, and goes on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.jobs.building import bucket, log, records, run
from tiered.care.check import CheckOptions
from tiered.care.run import check
from tiered.plan.statistics import LogStatistics
from tiered.spark.jobs.receipts import JobFolder
from tiered.store.base import ABSENT, Delete, Get, Object, Put, list_all
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


def test_stats_counts_every_record(place: Path) -> None:
    done = run("stats", "--keys", "--remote", bucket(place), "--task-bytes", "4KiB", "--json")
    assert done.code == 0
    (flights,) = (each for each in done.done["topics"] if each["topic"] == "flights")
    assert flights["records"] == 301
    assert (flights["null_keys"], flights["tombstones"], flights["distinct_keys"]) == (1, 0, 10)
    assert (flights["control_batches"], flights["transactional_batches"]) == (1, 1)
    assert flights["value_bytes"] == 300 * 60
    assert flights["key_bytes"] == 300 * 5
    whole = check(None, open_store(bucket(place)), CheckOptions(read_data=True))
    assert sum(each["size_bytes"] for each in done.done["topics"]) == whole.remote_bytes
    assert [(each["partition"], each["records"]) for each in done.done["partitions"]] == [(0, 160), (1, 141)]


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
    first = run("stats", "flights", "--remote", bucket(place), "--json", "--job", "twice")
    again = run("stats", "flights", "--remote", bucket(place), "--json", "--job", "twice")
    assert "it has ended" in again.err
    assert again.summary == first.summary
    other = run("stats", "--remote", bucket(place), "--job", "twice")
    assert (other.code, "is another one" in other.err) == (2, True)
    assert run("scrub", "flights", "--remote", bucket(place), "--job", "twice").code == 2
    assert run("stats", "--remote", bucket(place), "--job", "a/b").code == 2


def test_tasks_that_have_a_receipt_are_not_done_again(place: Path) -> None:
    url, store = bucket(place), open_store(bucket(place))
    first = run("stats", "flights", "--remote", url, "--task-bytes", "4KiB", "--json", "--job", "resumed")
    folder = JobFolder(store, "resumed")
    numbers = sorted(folder.done("tasks"))
    assert len(numbers) > 3
    told = LogStatistics(records=1000).as_json()
    store.execute(
        Delete((folder.key("receipt.json"), folder.key("tasks/000001.json"), folder.key("tasks/000002.json")))
    )
    assert folder.keep_receipt("tasks", 2, told) == told
    again = run("stats", "flights", "--remote", url, "--task-bytes", "4KiB", "--json", "--job", "resumed")
    lost = folder.task_receipts("tasks", [1])
    assert len(lost) == 1  # the one that had none was done again
    assert again.done["topics"][0]["records"] > first.done["topics"][0]["records"]
    assert folder.task_receipts("tasks", [2])[2] == told


def test_what_goes_wrong_in_a_task_is_told_in_its_words_and_the_rest_is_kept(tmp_path: Path) -> None:
    with log(tmp_path, {"t": {}}) as opened:
        for at in range(0, 200, 20):
            opened.topic("t").append_many(records(at, 20))
    url = bucket(tmp_path)
    store = open_store(url)
    victim = next(key for key in all_keys(url) if key.endswith(".log"))
    found = store.execute(Get(victim))
    assert isinstance(found, Object)
    hurt = found.data[:-200] + bytes([found.data[-200] ^ 1]) + found.data[-199:]
    store.execute(Delete((victim,)))
    store.execute(Put(victim, hurt, ABSENT))
    failed = run("stats", "--remote", url, "--task-bytes", "1KiB", "--json", "--job", "hurt")
    assert failed.code == 13
    assert "1 task of" in failed.err
    assert "--job hurt goes on with what is left" in failed.err
    folder = JobFolder(open_store(url), "hurt")
    plan = folder.plan()
    assert plan is not None
    assert len(folder.done("tasks")) == len(plan.tasks) - 1
    store.execute(Delete((victim,)))
    store.execute(Put(victim, found.data, ABSENT))
    assert run("stats", "--remote", url, "--task-bytes", "1KiB", "--json", "--job", "hurt").code == 0


def test_an_unknown_topic_and_no_bucket(place: Path, tmp_path: Path) -> None:
    assert run("stats", "nobody", "--remote", bucket(place)).code == 10
    assert run("scrub", "--remote", f"file://{tmp_path / 'none'}").code == 10
    assert run("scrub").code == 2
    assert "--conf 'x' is not K=V" in run("scrub", "--remote", bucket(place), "--conf", "x").err
