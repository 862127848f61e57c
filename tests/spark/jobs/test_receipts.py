"""What a job keeps: created once, by who comes first; torn or strange objects are errors."""

from __future__ import annotations

import pytest

from tiered.errors import ConfigError, CorruptionError
from tiered.format.crc import crc32c
from tiered.spark.jobs.plan import JobPlan
from tiered.spark.jobs.receipts import JobFolder
from tiered.store.base import ABSENT, Put
from tiered.store.memory import MemoryStore


def test_the_first_one_wins() -> None:
    folder = JobFolder(MemoryStore(), "nightly")
    plan = JobPlan("scrub", {"topics": []}, 1, ({"a": 1}, {"a": 2}))
    assert folder.plan() is None
    assert folder.keep_plan(plan) == plan
    assert folder.keep_plan(JobPlan("scrub", {"topics": ["t"]}, 2)) == plan
    assert folder.plan() == plan
    assert folder.keep_receipt("tasks", 1, {"rows": 1}) == {"rows": 1}
    assert folder.keep_receipt("tasks", 1, {"rows": 2}) == {"rows": 1}
    assert (folder.done("tasks"), folder.done("files")) == ({1}, set())
    assert folder.task_receipts("tasks", [0, 1]) == {1: {"rows": 1}}
    assert folder.keep_tasks("files", [{"b": 1}]) == ({"b": 1},)
    assert folder.keep_tasks("files", []) == ({"b": 1},)
    assert folder.tasks("files", plan) == ({"b": 1},)
    assert (folder.receipt(), folder.conclude({"exit_code": 0})) == (None, {"exit_code": 0})
    assert folder.conclude({"exit_code": 3}) == {"exit_code": 0}


def test_jobs_do_not_see_each_other() -> None:
    store = MemoryStore()
    JobFolder(store, "one").keep_receipt("tasks", 0, {})
    assert JobFolder(store, "on").done("tasks") == set()
    for name in ("gc", "a/b", "", "1", "x" * 101):
        with pytest.raises(ConfigError):
            JobFolder(store, name)


def test_what_is_no_plan_is_an_error() -> None:
    store = MemoryStore()
    folder = JobFolder(store, "torn")
    body = b'{"format":1,"job":'
    store.execute(Put(folder.key("plan.json"), body, ABSENT, crc32c(body)))
    with pytest.raises(CorruptionError, match=r"jobs/torn/plan\.json is no JSON object of a job"):
        folder.plan()
    newer = JobFolder(store, "newer")
    body = b'{"format":2,"job":"scrub","tasks":[]}'
    store.execute(Put(newer.key("plan.json"), body, ABSENT, crc32c(body)))
    with pytest.raises(ConfigError, match="newer release"):
        newer.plan()


def test_a_plan_of_too_many_tasks_is_refused() -> None:
    with pytest.raises(ConfigError, match="a larger --task-bytes"):
        JobPlan("scrub", {}, 1, tuple({} for _ in range(100_001))).to_bytes()
