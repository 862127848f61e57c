"""Compaction in two phases: what one task leaves, batch for batch, whatever is killed or changed in between."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tiered
from tests.spark.jobs import shuffling
from tests.spark.jobs.building import Result, bucket, inline, log, records, rows, run, shape
from tests.spark.jobs.shuffling import inline_shuffle
from tests.support.admin import check
from tiered.check.check import CheckOptions
from tiered.config import TopicConfig
from tiered.errors import CorruptionError, FencedError
from tiered.format.kernels import ConsumerRecord
from tiered.model import NewRecord, TopicPartition
from tiered.plan.maintenance import MaintenanceAction, MaintenanceKind
from tiered.remote.maintain import Maintainer
from tiered.remote.topics import load_topic, update_topic
from tiered.spark.jobs import two_phase
from tiered.spark.jobs.two_phase import _NOTE_LENGTH, PlannedRound, Rewriting, Shuffled, rewrite_part_of
from tiered.store.base import CompleteUpload, Delete, Outcome, Put, Store, StoreRequest
from tiered.store.capabilities import probe
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive
from tiered.store.location import open_store

__all__ = ["inline", "inline_shuffle"]

SMALL = ("--two-phase-above", "1", "--task-bytes", "3KiB", "--memory", "2KiB")
TOPIC = "latest"


KEYS = 30
"""Keys that come again and again; every third record has one of its own."""


def updates(start: int, count: int) -> list[NewRecord]:
    found = records(start, count, keys=KEYS)
    return [each._replace(key=b"own-%d" % (start + at)) if at % 3 == 0 else each for at, each in enumerate(found)]


def write(opened: tiered.Log, start: int, end: int) -> None:
    for at in range(start, end, 20):
        opened.topic(TOPIC).append_many(updates(at, 20), partition=0)


def fill(folder: Path, end: int = 400) -> Path:
    with log(folder, {TOPIC: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}) as opened:
        write(opened, 0, end)
    return folder


def by_the_library(url: str) -> None:
    store = open_store(url)
    entry = drive(store, load_topic(TOPIC))
    assert entry is not None
    config = TopicConfig.from_properties(entry.config)
    maintainer = Maintainer(TopicPartition(TOPIC, 0), entry.topic_id, config, owner="test")
    plan = drive(store, maintainer.plan((MaintenanceKind.COMPACT,)))
    for action in plan.actions if plan is not None else ():
        drive(store, maintainer.run(action, drive(store, probe())))


def compact(folder: Path, *more: str) -> Result:
    words = ("--only", "compact", "--remote", bucket(folder), *SMALL, "--json")
    return run("maintain", *words, *(more or ("--yes",)))


def same(one: Path, other: Path) -> None:
    """What a bucket holds is what the library's own compaction left in the other, and nothing is wrong with it."""
    assert shape(rows(bucket(one), TOPIC, 0)) == shape(rows(bucket(other), TOPIC, 0))
    found = check(None, open_store(bucket(one)), CheckOptions(read_data=True)).findings
    assert found == ()


def test_it_leaves_what_one_task_leaves(tmp_path: Path, inline_shuffle: None) -> None:
    one, other = fill(tmp_path / "one"), fill(tmp_path / "other")
    done = compact(one)
    assert done.code == 0, done.err
    (action,) = done.summary["partitions"][0]["actions"]
    assert (action["survivors"], action["groups"], action["rows_in"]) == (170, 19, 20)  # the last one stays as it is
    by_the_library(bucket(other))
    same(one, other)
    again = compact(one)
    assert (again.code, again.summary["partitions"]) == (0, [])


@pytest.mark.spark
def test_in_a_session(tmp_path: Path, spark: SparkSession) -> None:
    one, other = fill(tmp_path / "one"), fill(tmp_path / "other")
    done = compact(one)
    assert done.code == 0, done.err
    by_the_library(bucket(other))
    same(one, other)


@pytest.mark.parametrize("end", [400, 800])
def test_its_requests(end: int, tmp_path: Path, inline_shuffle: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are those of ``docs/costs.md``: one wave, one piece of rows, one probe for each process."""
    place, execute, bill = fill(tmp_path, end), DirectoryStore.execute, Counter[str]()

    def counted(store: DirectoryStore, request: StoreRequest) -> Outcome:
        bill[type(request).__name__] += 1
        return execute(store, request)

    monkeypatch.setattr(DirectoryStore, "execute", counted)
    done = compact(place)
    (action,) = done.summary["partitions"][0]["actions"]
    n, g, p = action["rows_in"], action["groups"], action["groups"] // 2
    assert (n, g) == (end // 20, end // 20 - 1)
    assert bill == {"Put": 4 * g + 7, "Get": 3 * n + g + 4 * p + 14, "List": 3, "Head": 1, "Delete": 1}


@pytest.fixture(scope="module")
def buckets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One bucket as it was filled, at ``filled``, and as the library's own compaction leaves it, at ``wanted``."""
    place = tmp_path_factory.mktemp("buckets")
    for name in ("filled", "wanted"):
        fill(place / name)
    by_the_library(bucket(place / "wanted"))
    return place


def copy_of(buckets: Path, folder: Path) -> Path:
    shutil.copytree(buckets / "filled" / "bucket", folder / "bucket")
    return folder


class Killer:
    """Ends the process, as far as a test can, once the store has carried out its ``at``-th change."""

    def __init__(self, at: int) -> None:
        self.left = at

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        execute = DirectoryStore.execute

        def watched(store: DirectoryStore, request: StoreRequest) -> Outcome:
            outcome = execute(store, request)
            if isinstance(request, (Put, Delete, CompleteUpload)) and "probe" not in str(request):
                self.left -= 1
                if not self.left:
                    raise KeyboardInterrupt
            return outcome

        monkeypatch.setattr(DirectoryStore, "execute", watched)


@pytest.mark.parametrize("at", [1, 2, 3, 5, 8, 13, 20, 27, 33, 40, 50, 60, 70, 75])
def test_a_driver_that_is_killed_and_started_again_ends_right(
    at: int, buckets: Path, tmp_path: Path, inline_shuffle: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that it committed stay, so that the next round may cut others. What records are left is the same."""
    monkeypatch.setattr(two_phase, "WAVE_PARTS", 3)
    place = copy_of(buckets, tmp_path)
    with monkeypatch.context() as patch:
        Killer(at).watch(patch)
        assert compact(place).code == 130
    committed = rows(bucket(place), TOPIC, 0) != rows(bucket(buckets / "filled"), TOPIC, 0)
    done = compact(place)
    assert done.code == 0, done.err
    sweep(bucket(place))
    assert content(bucket(place)) == content(bucket(buckets / "wanted"))
    assert check(None, open_store(bucket(place)), CheckOptions(read_data=True)).findings == ()
    if not committed:
        same(place, buckets / "wanted")


def sweep(url: str) -> None:
    """What a killed run has left goes."""
    store = open_store(url)
    entry = drive(store, load_topic(TOPIC))
    assert entry is not None
    config = TopicConfig.from_properties(entry.config)
    maintainer = Maintainer(TopicPartition(TOPIC, 0), entry.topic_id, config, owner="test")
    drive(store, maintainer.sweep(delete=True))


def maintainer_of(store: Store) -> Maintainer:
    entry = drive(store, load_topic(TOPIC))
    assert entry is not None
    config = TopicConfig.from_properties(entry.config)
    return Maintainer(TopicPartition(TOPIC, 0), entry.topic_id, config, owner="other")


def trims(folder: Path) -> None:
    """Another maintainer takes the beginning, in the middle of a segment."""
    store = open_store(bucket(folder))
    maintainer = maintainer_of(store)
    plan = drive(store, maintainer.plan((), begin_at=105))
    for action in plan.actions if plan is not None else ():
        drive(store, maintainer.run(action, drive(store, probe())))


def compacts(folder: Path) -> None:
    by_the_library(bucket(folder))


def merges(folder: Path) -> None:
    """Another maintainer makes one segment of two, in the middle of the log."""
    store, url = open_store(bucket(folder)), bucket(folder)
    found = rows(url, TOPIC, 0)[4:6]
    action = MaintenanceAction(MaintenanceKind.MERGE, found[0].base, found[-1].next, "test", rows=tuple(found))
    assert drive(store, maintainer_of(store).run(action, drive(store, probe()))).note == ""


RACES = {"trim": trims, "compact": compacts, "merge": merges}
MOMENTS = {
    "before phase 1": "notes",
    "before the claim": "__init__",
    "before a wave": "_wave",
    "before a commit": "_commit",
}


@pytest.mark.parametrize("moment", list(MOMENTS))
@pytest.mark.parametrize("race", list(RACES))
def test_another_maintainer_meanwhile(
    race: str, moment: str, buckets: Path, tmp_path: Path, inline_shuffle: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one fences an existing claim; without a claim the round finds the change."""
    monkeypatch.setattr(two_phase, "WAVE_PARTS", 3)
    place = copy_of(buckets, tmp_path)
    begin = 105 if race == "trim" else 0
    wanted = {record.key: record.offset for record in content(bucket(place)) if record.offset >= begin}
    at = Shuffled if moment == "before phase 1" else Rewriting
    call, calls = getattr(at, MOMENTS[moment]), list[None]()

    def raced(self: Any, *args: Any) -> Any:
        calls.append(None)
        if len(calls) == 2 or (len(calls) == 1 and moment in ("before phase 1", "before the claim")):
            RACES[race](place)
        return call(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(at, MOMENTS[moment], raced)
        first = compact(place)
    fenced = moment == "before a commit" or (moment == "before a wave" and race != "compact")  # else planned anew
    assert first.code == (FencedError.exit_code if fenced else 0), first.err
    done = compact(place)
    assert done.code == 0, done.err
    found = content(bucket(place))
    assert {record.key: record.offset for record in found} == wanted
    assert len(found) == len(wanted)
    sweep(bucket(place))
    assert check(None, open_store(bucket(place)), CheckOptions(read_data=True)).findings == ()


def content(url: str) -> list[ConsumerRecord]:
    with tiered.open_reader(url) as reader:
        return list(reader.topic(TOPIC).read(partition=0))


def test_a_bitmap_that_was_made_again_over_other_rows_is_not_used(tmp_path: Path) -> None:
    """Spark makes a lost one again. A part whose rows are gone by then names too few survivors."""
    note = json.dumps({"changed": "the catalog holds other rows", "survivors": 0}).encode()
    live = _NOTE_LENGTH.pack(len(note)) + note
    assert rewrite_part_of(open_store(bucket(fill(tmp_path))), {"part": 2}, live) == {
        "changed": "the catalog holds other rows"
    }


@pytest.mark.parametrize("what", ["missing", "of another part", "cut short"])
def test_a_bitmap_that_is_lost_or_damaged_is_never_taken_for_an_empty_one(
    what: str, buckets: Path, tmp_path: Path, inline_shuffle: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = copy_of(buckets, tmp_path)
    before = rows(bucket(place), TOPIC, 0)
    find = shuffling.live_of

    def damaged(shuffled: Shuffled) -> dict[int, bytes]:
        live = find(shuffled)
        head = _NOTE_LENGTH.size + _NOTE_LENGTH.unpack_from(live[2])[0]
        other = live[1][_NOTE_LENGTH.size + _NOTE_LENGTH.unpack_from(live[1])[0] :]
        live[2] = live[2][:head] + other if what == "of another part" else live[2][:-1]
        return {number: each for number, each in live.items() if number != 2 or what != "missing"}

    monkeypatch.setattr(shuffling, "live_of", damaged)
    done = compact(place)
    assert done.code == CorruptionError.exit_code
    assert rows(bucket(place), TOPIC, 0) == before


def test_appends_go_on_meanwhile(tmp_path: Path, inline_shuffle: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer records of the same keys come behind what is compacted, and stay."""
    place = fill(tmp_path)
    monkeypatch.setattr(two_phase, "WAVE_PARTS", 3)
    wave = Rewriting._wave

    def appended(self: Rewriting, numbers: Sequence[int]) -> None:
        at = 400 + 20 * (numbers[0] // 3)
        with tiered.open(place / "log", remote=bucket(place)) as opened:
            write(opened, at, at + 20)
            opened.sync(timeout=60)
        wave(self, numbers)

    with monkeypatch.context() as patch:
        patch.setattr(Rewriting, "_wave", appended)
        done = compact(place)
    assert done.code == 0, done.err
    found = [(record.key, record.offset) for record in content(bucket(place))]
    assert [offset for _, offset in found if offset >= 400] == list(range(400, 460))
    below = [key for key, offset in found if offset < 400]
    assert len(below) == len(set(below)) == 170


ALTERED = {
    "before its plan": (PlannedRound, "plan"),
    "before phase 1": (Shuffled, "notes"),
    "before the claim": (Rewriting, "__init__"),
    "before phase 2": (Rewriting, "_wave"),
}


@pytest.mark.parametrize("moment", list(ALTERED))
def test_a_topic_that_is_compacted_no_more_keeps_its_records(
    moment: str, buckets: Path, tmp_path: Path, inline_shuffle: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its policy was altered while the job was at work, or before one that was killed went on."""
    place = copy_of(buckets, tmp_path)
    before = rows(bucket(place), TOPIC, 0)
    at, name = ALTERED[moment]
    call = getattr(at, name)

    def altered(*args: Any, **kwargs: Any) -> Any:
        set_policy(place, "delete")
        return call(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(at, name, altered)
        done = compact(place)
    assert (done.code, done.summary["partitions"][0]["actions"]) == (0, []), done.err
    assert rows(bucket(place), TOPIC, 0) == before
    set_policy(place, "compact")
    assert compact(place).code == 0
    assert len(content(bucket(place))) == 170


def set_policy(folder: Path, policy: str) -> None:
    steps = update_topic(TOPIC, lambda entry: replace(entry, config={**entry.config, "cleanup.policy": policy}))
    drive(open_store(bucket(folder)), steps)


def test_a_plan_says_which_logs_are_done_so(buckets: Path, tmp_path: Path, inline_shuffle: None) -> None:
    place = copy_of(buckets, tmp_path)
    words = ("maintain", "--only", "compact", "--dry-run", "--remote", bucket(place))
    (one,) = run(*words, "--json").summary["partitions"]
    assert not one["in_two_phases"]
    (large,) = run(*words, *SMALL, "--json").summary["partitions"]
    assert (large["in_two_phases"], large["records"]) == (True, 400)
    assert "at most" in run(*words, *SMALL).out.splitlines()[1]
