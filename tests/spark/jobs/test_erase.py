"""Erasure on Spark: it leaves what ``tiered erase`` leaves, whoever is killed, and Spark sees no key."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import tiered
from tests.spark.jobs.building import Result, Stream, bucket, inline, log, records, rows, run, shape
from tests.support.admin import check
from tiered.check.check import CheckOptions
from tiered.cli.main import run as run_tiered
from tiered.config import TopicConfig
from tiered.erase.erase import Eraser
from tiered.errors import FencedError
from tiered.format.kernels import Record
from tiered.format.keys import Role
from tiered.model import TopicPartition
from tiered.plan.erasure import BlindSelection, Selection
from tiered.plan.maintenance import MaintenanceKind
from tiered.remote.catalog import Catalog
from tiered.remote.maintain import Maintainer
from tiered.remote.topics import TopicEntry, load_topic
from tiered.spark.jobs import erase as erasing
from tiered.spark.jobs.run import JobRunner, Receipt, Task, Work
from tiered.store.base import Get, Object, Store
from tiered.store.capabilities import probe
from tiered.store.driver import drive
from tiered.store.location import open_store
from tiered.store.steps import list_all
from tiered.testing.clock import START_MS

__all__ = ["inline"]

PARTITIONS = 2
KEY = ("users", "--key", "key-3")
"""Every tenth record."""
SMALL = ("--task-bytes", "3KiB", "--json")


def fill(folder: Path, end: int = 240) -> Path:
    merging = {"merge.min.bytes": "10000", "merge.target.bytes": "100000"}
    with log(folder, {"users": merging, "others": {}}, partitions=PARTITIONS) as opened:
        for at in range(0, end, 20):
            opened.topic("users").append_many(records(at, 20), partition=at // 20 % PARTITIONS)
    return folder


def erase(place: Path, *arguments: str) -> Result:
    return run("erase", *arguments, "--remote", bucket(place), *SMALL)


def on_one_machine(place: Path, *arguments: str) -> Result:
    out, err = Stream(), Stream()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_tiered(["erase", *arguments, "--remote", bucket(place), "--json", "--yes"])
    return Result(code, out.content(), err.content())


def content(place: Path) -> list[Record]:
    with tiered.open_reader(bucket(place)) as reader:
        return [record for number in range(PARTITIONS) for record in reader.topic("users").read(partition=number)]


def meant(record: Record) -> bool:
    return record.key == b"key-3"


def entry_of(place: Path) -> TopicEntry:
    entry = drive(open_store(bucket(place)), load_topic("users"))
    assert entry is not None
    return entry


def whole(place: Path) -> None:
    report = check(None, open_store(bucket(place)), CheckOptions(read_data=True))
    assert (report.errors, report.warnings) == (0, 0), report.findings


def told(receipt: Any) -> list[dict[str, Any]]:
    """What a receipt says of each partition, without names and times."""
    return [
        {
            **{name: one[name] for name in ("partition", "records", "records_now")},
            "segments": sorted((each["start_offset"], each["end_offset"], each["records"]) for each in one["segments"]),
            "left": [(each["records"], each["why"]) for each in one["left"]],
        }
        for one in receipt["partitions"]
    ]


@pytest.mark.parametrize("now", [(), ("--now",)], ids=["grace", "now"])
def test_a_job_leaves_what_one_machine_leaves(now: tuple[str, ...], tmp_path: Path, inline: None) -> None:
    one, other = fill(tmp_path / "one"), fill(tmp_path / "other")
    before = content(one)
    assert sum(map(meant, before)) == 24
    done = erase(one, *KEY, *now, "--yes")
    alone = on_one_machine(other, *KEY, *now)
    assert done.code == alone.code == (0 if now else 3), done.err
    assert content(one) == content(other) == [record for record in before if not meant(record)]
    for partition in range(PARTITIONS):
        assert shape(rows(bucket(one), "users", partition)) == shape(rows(bucket(other), "users", partition))
    assert told(done.summary) == told(alone.summary)
    assert done.summary["proven"] == alone.summary["proven"] == bool(now)
    assert sum(one["records"] for one in done.summary["partitions"]) == 24
    whole(one)
    again = erase(one, *KEY, "--yes")
    assert sum(each["records_now"] for each in again.summary["partitions"]) == 0


def test_spark_and_the_bucket_see_hashes_alone(tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    collect, seen = JobRunner._collect, list[str]()

    def noted(self: JobRunner, title: str, work: Work, tasks: Any) -> Any:
        rows = collect(self, title, work, tasks)
        seen.extend([*map(json.dumps, tasks), *(receipt for _, receipt in rows)])
        return rows

    monkeypatch.setattr(JobRunner, "_collect", noted)
    for line in (("--key", "key-3"), ("--key-prefix", "key-4"), ("--hex", "--key", b"key-5".hex())):
        assert erase(tmp_path, "users", *line, "--now", "--yes").code == 0
    store = open_store(bucket(tmp_path))
    keys = [entry.key for entry in drive(store, list_all("erasures/"))]
    assert len(keys) > 5
    for key in keys:
        found = store.execute(Get(key))
        assert isinstance(found, Object)
        seen.append(found.data.decode())
    assert not [text for text in seen for secret in ("key-3", "key-4", "key-5", b"key-5".hex()) if secret in text]
    assert {record.key for record in content(tmp_path)} == {b"key-%d" % at for at in (0, 1, 2, 6, 7, 8, 9)}


def test_a_dry_run_shows_the_plan_of_one_machine_and_changes_nothing(tmp_path: Path, inline: None) -> None:
    fill(tmp_path)
    before = content(tmp_path)
    dry, alone = erase(tmp_path, *KEY, "--dry-run"), on_one_machine(tmp_path, *KEY, "--dry-run")
    assert dry.code == 0, dry.err
    assert dry.summary["partitions"] == alone.summary["partitions"]
    assert dry.summary["job"] == alone.summary["job"]
    refused = erase(tmp_path, *KEY)
    assert (refused.code, "asks before it acts" in refused.err) == (2, True)
    assert content(tmp_path) == before


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("step", ["claim", "_rewrite", "_note", "notes", "collect", "_prove"])
def test_a_driver_that_is_killed_and_started_again_ends_right(
    step: str, after: bool, tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    before, original, calls = content(tmp_path), getattr(Eraser, step), list[int]()

    def killed(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2 and not after:
            raise KeyboardInterrupt
        result = yield from original(*args, **kwargs)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Eraser, step, killed)
        assert erase(tmp_path, *KEY, "--now", "--yes").code == 130
    assert len(calls) == 2
    done = erase(tmp_path, *KEY, "--now", "--yes")
    assert done.code == 0, done.err
    assert content(tmp_path) == [record for record in before if not meant(record)]
    assert [one["records"] for one in done.summary["partitions"]] == [12, 12]
    whole(tmp_path)


def claim_by_another(place: Path, partition: int) -> None:
    store = open_store(bucket(place))
    catalog = Catalog(entry_of(place).topic_id, partition, "users")
    drive(store, catalog.claim(Role.MAINTAINER, "other"))


def merge(place: Path, partition: int) -> None:
    store, entry = open_store(bucket(place)), entry_of(place)
    config = TopicConfig.from_properties(entry.config)
    maintainer = Maintainer(TopicPartition("users", partition), entry.topic_id, config, owner="other")
    plan = drive(store, maintainer.plan((MaintenanceKind.MERGE,)))
    assert plan is not None
    assert plan.actions
    for action in plan.actions:
        drive(store, maintainer.run(action, drive(store, probe())))


@pytest.mark.parametrize("meanwhile", [claim_by_another, merge])
def test_another_maintainer_takes_the_partition_and_the_same_command_goes_on(
    meanwhile: Callable[[Path, int], None], tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    before, rewritten, calls = content(tmp_path), Eraser.rewritten, list[int]()

    def raced(self: Eraser, row: Any) -> Any:
        made = yield from rewritten(self, row)
        if self.tp.partition == 1 and not calls:
            calls.append(1)
            meanwhile(tmp_path, 1)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(Eraser, "rewritten", raced)
        fenced = erase(tmp_path, *KEY, "--now", "--yes")
    assert fenced.code == FencedError.exit_code, fenced.err
    done = erase(tmp_path, *KEY, "--now", "--yes")
    assert done.code == (0 if meanwhile is claim_by_another else 3), done.err
    left = [each for one in done.summary["partitions"] for each in one["left"]]  # what the other one replaced
    assert {each["why"] for each in left} <= {
        "it waits for gc.grace.ms: `tiered maintain --only collect` deletes it then"
    }
    assert content(tmp_path) == [record for record in before if not meant(record)]
    whole(tmp_path)


@pytest.mark.parametrize("when", ["before its look", "between look and claim"])
def test_what_is_merged_meanwhile_is_looked_at_again(
    when: str, tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    before = content(tmp_path)
    name = "find_in_part" if when == "before its look" else "erase_partition"
    work, calls = getattr(erasing, name), list[int]()

    def raced(store: Store, task: Task) -> Receipt:
        if not calls:
            calls.append(1)
            merge(tmp_path, 0)
        return work(store, task)  # type: ignore[no-any-return]

    monkeypatch.setattr(erasing, name, raced)
    done = erase(tmp_path, *KEY, "--now", "--yes")
    assert done.code == 3, done.err
    left = [each for one in done.summary["partitions"] for each in one["left"]]
    assert {each["why"] for each in left} == {
        "it waits for gc.grace.ms: `tiered maintain --only collect` deletes it then"
    }
    assert sum(each["records"] for each in left) == 12  # in what the other maintainer replaced
    assert content(tmp_path) == [record for record in before if not meant(record)]
    whole(tmp_path)


def test_what_others_rewrite_again_and_again_is_an_error(
    tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    monkeypatch.setattr("tiered.erase.topic.MAX_LOOKS", 0)
    done = erase(tmp_path, *KEY, "--yes")
    assert (done.code, "run the same command again" in done.err) == (2, True)


def test_hashes_choose_what_their_keys_choose() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    topic_id = UUID(int=rng.getrandbits(128))
    for _ in range(200):
        keys = [rng.randbytes(rng.randrange(4)) for _ in range(rng.randrange(3))]
        prefixes = [rng.randbytes(1 + rng.randrange(2)) for _ in range(rng.randrange(3))]
        before = rng.choice([None, START_MS])
        if not keys and not prefixes and before is None:
            continue
        plain = Selection(frozenset(keys), tuple(prefixes), before)
        blind = BlindSelection.from_json(BlindSelection.from_selection(plain, topic_id).as_json())
        assert blind.hashed(topic_id) == plain.hashed(topic_id)
        for key in (None, *keys, *prefixes, *(rng.randbytes(rng.randrange(4)) for _ in range(50))):
            for timestamp in (-1, START_MS - 1, START_MS):
                assert blind.takes(key, timestamp) == plain.takes(key, timestamp), (key, keys, prefixes)
