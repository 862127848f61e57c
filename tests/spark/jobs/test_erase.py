"""Erasure as a job: it leaves what ``tiered erase`` leaves, whoever is killed, and tells nobody a key."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

import tiered
from tests.spark.jobs.building import Result, Stream, bucket, inline, log, records, rows, run, shape
from tiered.care.check import CheckOptions
from tiered.care.erase_parts import Committer
from tiered.care.run import check
from tiered.cli.main import run as run_tiered
from tiered.config import TopicConfig
from tiered.errors import FencedError
from tiered.format.kernels import Record
from tiered.format.keys import Role
from tiered.model import TopicPartition
from tiered.plan.erasure import BlindSelection, Selection
from tiered.plan.maintenance import Kind
from tiered.remote.catalog import Catalog
from tiered.remote.maintain import Maintainer
from tiered.remote.topics import TopicEntry, load_topic
from tiered.spark.jobs.erase import Erase
from tiered.spark.jobs.receipts import JobFolder
from tiered.store.base import Get, Object, list_all
from tiered.store.driver import drive
from tiered.store.location import open_store
from tiered.store.probe import probe
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
    assert told(done.done) == told(alone.summary)
    assert done.done["proven"] == alone.summary["proven"] == bool(now)
    assert sum(one["records"] for one in done.done["partitions"]) == 24
    whole(one)
    again = erase(one, *KEY, "--yes")
    assert sum(each["records_now"] for each in again.done["partitions"]) == 0


def test_no_key_is_kept_or_told(tmp_path: Path, inline: None) -> None:
    fill(tmp_path)
    for line in (("--key", "key-3"), ("--key-prefix", "key-4"), ("--hex", "--key", b"key-5".hex())):
        done = erase(tmp_path, "users", *line, "--now", "--yes", "--job", "secret")
        assert done.code in {0, 2}
        assert erase(tmp_path, "users", *line, "--now", "--yes").code == 0
    store = open_store(bucket(tmp_path))
    keys = [entry.key for entry in drive(store, list_all("jobs/"))]
    assert len(keys) > 20
    for key in keys:
        found = store.execute(Get(key))
        assert isinstance(found, Object)
        for secret in (b"key-3", b"key-4", b"key-5", b"key-5".hex().encode()):
            assert secret not in found.data, key
    assert {record.key for record in content(tmp_path)} == {b"key-%d" % at for at in (0, 1, 2, 6, 7, 8, 9)}


def test_a_plan_reads_nothing_and_a_dry_run_is_gone_on_with(tmp_path: Path, inline: None) -> None:
    fill(tmp_path)
    before = content(tmp_path)
    planned = erase(tmp_path, *KEY, "--plan")
    assert (planned.code, planned.summary["tasks"]) == (0, 4)
    dry = erase(tmp_path, *KEY, "--dry-run", "--job", "mine")
    assert dry.code == 0, dry.err
    assert sum(each["records"] for each in dry.done["partitions"]) == 24
    assert content(tmp_path) == before
    folder = JobFolder(open_store(bucket(tmp_path)), "mine")
    looked = folder.done("tasks")
    assert (len(looked), folder.receipt()) == (planned.summary["tasks"], None)
    refused = erase(tmp_path, *KEY, "--job", "mine")
    assert (refused.code, "asks before it acts" in refused.err) == (2, True)
    assert content(tmp_path) == before
    done = erase(tmp_path, *KEY, "--yes", "--job", "mine")
    assert done.code == 3
    assert [record for record in before if not meant(record)] == content(tmp_path)
    assert erase(tmp_path, *KEY, "--job", "mine").summary == done.summary


@contextlib.contextmanager
def killed(where: str) -> Iterator[list[int]]:
    """Ends the driver at the second call of one of its steps."""
    calls: list[int] = []

    def counted(original: Callable[..., Any], after: bool) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            if len(calls) == 2 and not after:
                raise KeyboardInterrupt
            result = yield from original(*args, **kwargs)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        name, _, when = where.partition(" ")
        patch.setattr(Committer, name, counted(getattr(Committer, name), when == "after"))
        yield calls


@pytest.mark.parametrize(
    "where", ["claim before", "commit before", "commit after", "others before", "ended before", "collect after"]
)
def test_a_driver_that_is_killed_goes_on(where: str, tmp_path: Path, inline: None) -> None:
    fill(tmp_path)
    before = content(tmp_path)
    line = (*KEY, "--now", "--yes", "--job", "mine")
    with killed(where) as calls:
        assert erase(tmp_path, *line).code == 130
    assert len(calls) == 2
    done = erase(tmp_path, *line)
    assert done.code == 0, done.err
    assert content(tmp_path) == [record for record in before if not meant(record)]
    assert [one["records"] for one in done.done["partitions"]] == [12, 12]
    whole(tmp_path)


def test_one_that_is_killed_in_a_task_goes_on(tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    before, work, calls = content(tmp_path), Erase.work, list[str]()

    def cut(self: Erase, store: Any, plan: Any, task: Any) -> Any:
        calls.append(task["do"])
        if calls.count("rewrite") == 2:
            raise KeyboardInterrupt
        return work(self, store, plan, task)

    with monkeypatch.context() as patch:
        patch.setattr(Erase, "work", cut)
        assert erase(tmp_path, *KEY, "--now", "--yes", "--job", "mine").code == 130
        looks = calls.count("look")
        calls.clear()
        done = erase(tmp_path, *KEY, "--now", "--yes", "--job", "mine")
        assert done.code == 130  # killed again, behind what the first run had looked at
        assert calls.count("look") == 0 < looks
    assert erase(tmp_path, *KEY, "--now", "--yes", "--job", "mine").code == 0
    assert content(tmp_path) == [record for record in before if not meant(record)]
    whole(tmp_path)


def claim_by_another(place: Path, partition: int) -> None:
    store = open_store(bucket(place))
    catalog = Catalog(entry_of(place).topic_id, partition, "users")
    drive(store, catalog.claim(Role.MAINTAINER, "other"))


def merge(place: Path, partition: int) -> None:
    store, entry = open_store(bucket(place)), entry_of(place)
    config = TopicConfig.from_properties(entry.config)
    maintainer = Maintainer(TopicPartition("users", partition), entry.topic_id, config, owner="other")
    plan = drive(store, maintainer.plan((Kind.MERGE,)))
    assert plan is not None
    assert plan.actions
    for action in plan.actions:
        drive(store, maintainer.run(action, drive(store, probe())))


@pytest.mark.parametrize("meanwhile", [claim_by_another, merge])
def test_another_maintainer_takes_the_partition_and_it_goes_on_when_asked(
    meanwhile: Callable[[Path, int], None], tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    before, commit, work, written = content(tmp_path), Committer.commit, Erase.work, list[tuple[int, int]]()

    def noted(self: Erase, store: Any, plan: Any, task: Any) -> Any:
        written.extend((task["partition"], row[0]) for row in task.get("rows", ()))
        return work(self, store, plan, task)

    def raced(self: Committer, made: Any) -> Any:
        if self.tp.partition == 1:
            meanwhile(tmp_path, 1)
        return (yield from commit(self, made))

    with monkeypatch.context() as patch:
        patch.setattr(Committer, "commit", raced)
        patch.setattr(Erase, "work", noted)
        fenced = erase(tmp_path, *KEY, "--now", "--yes", "--job", "mine")
    assert fenced.code == FencedError.exit_code, fenced.err
    assert len(written) == len(set(written)) == 12  # what cannot be committed is not written again
    done = erase(tmp_path, *KEY, "--now", "--yes", "--job", "mine")
    assert done.code == 0, done.err
    assert content(tmp_path) == [record for record in before if not meant(record)]
    whole(tmp_path)


def test_what_is_merged_between_look_and_claim_is_looked_at_again(
    tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    before, claim = content(tmp_path), Committer.claim

    def raced(self: Committer) -> Any:
        if not self.claim_epoch and self.tp.partition == 0:
            merge(tmp_path, 0)
        yield from claim(self)

    monkeypatch.setattr(Committer, "claim", raced)
    done = erase(tmp_path, *KEY, "--now", "--yes")
    assert done.code == 3, done.err
    left = [each for one in done.done["partitions"] for each in one["left"]]
    assert {each["why"] for each in left} == {"it waits for gc.grace.ms: `tiered gc run` deletes it then"}
    assert sum(each["records"] for each in left) == 12  # in what the other maintainer replaced
    assert content(tmp_path) == [record for record in before if not meant(record)]
    whole(tmp_path)


def test_what_is_appended_meanwhile_is_left_to_the_next_one(
    tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    claim = Committer.claim

    def busy(self: Committer) -> Any:
        with tiered.open(tmp_path / "log", remote=bucket(tmp_path)) as opened:
            opened.topic("users").append_many(records(1000, 20), partition=0)
            opened.sync(timeout=60)
        yield from claim(self)

    with monkeypatch.context() as patch:
        patch.setattr(Committer, "claim", busy)
        assert erase(tmp_path, *KEY, "--yes").code == 3
    assert sum(map(meant, content(tmp_path))) == 4  # two of each of the two appends
    assert erase(tmp_path, *KEY, "--yes").code == 3
    assert sum(map(meant, content(tmp_path))) == 0


def test_what_is_meanwhile_rewritten_again_and_again_is_an_error(
    tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    monkeypatch.setattr("tiered.spark.jobs.erase.MAX_LOOKS", 1)
    done = erase(tmp_path, *KEY, "--yes", "--job", "mine")
    assert (done.code, "--job mine" in done.err) == (2, True)


def test_words_that_are_wrong(tmp_path: Path, inline: None) -> None:
    fill(tmp_path, 40)
    assert erase(tmp_path, "nobody", "--key", "a", "--yes").code == 10
    assert erase(tmp_path, "users:7", "--key", "a", "--yes").code == 10
    assert "nothing says what is to be erased" in erase(tmp_path, "users", "--yes").err


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
        blind = BlindSelection.of_json(BlindSelection.of(plain, topic_id).as_json())
        assert blind.hashed(topic_id) == plain.hashed(topic_id)
        for key in (None, *keys, *prefixes, *(rng.randbytes(rng.randrange(4)) for _ in range(50))):
            for timestamp in (-1, START_MS - 1, START_MS):
                assert blind.takes(key, timestamp) == plain.takes(key, timestamp), (key, keys, prefixes)


@pytest.mark.spark
def test_in_a_session(tmp_path: Path, spark: SparkSession) -> None:
    del spark
    fill(tmp_path)
    done = erase(tmp_path, *KEY, "--now", "--yes")
    assert (done.code, done.done["proven"]) == (0, True), done.err
    assert sum(map(meant, content(tmp_path))) == 0
