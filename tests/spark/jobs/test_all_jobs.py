"""All jobs have one shape: the same options, a plan that changes nothing, an end that programs can read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.spark.jobs.building import bucket, inline, log, records, rows, run
from tiered.cli.main import run as tiered_run
from tiered.format.keys import segment_key
from tiered.remote.topics import load_topic
from tiered.spark.commands import jobs
from tiered.spark.jobs.kinds import JOBS, SPECULATIVE, TASK_JOBS
from tiered.store.base import Get, Match, Object, Put, list_all
from tiered.store.driver import drive
from tiered.store.location import open_store

__all__ = ["inline"]

SHARED = {"--job", "--plan", "--master", "--conf", "--remote", "--json"}


@dataclass(frozen=True)
class Case:
    """A job's own words on the line, its plan in the JSON of ``--plan``, and whether its tasks may run twice."""

    words: tuple[str, ...] = ()
    facts: frozenset[str] = frozenset({"notes"})
    speculative: bool = False


CASES = {
    "compact": Case(facts=frozenset({"notes", "two_phase"})),
    "merge": Case(),
    "scrub": Case(speculative=True, facts=frozenset()),
    "erase": Case(("flights", "--key", "key-1", "--now", "--yes"), frozenset({"partitions"})),
    "retention": Case(),
    "reencode": Case(("--codec", "zstd")),
}


def keys(folder: Path) -> set[str]:
    return {entry.key for entry in drive(open_store(bucket(folder)), list_all(""))}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with log(tmp_path, {"flights": {"retention.ms": "1000"}}) as opened:
        for at in range(0, 100, 20):
            opened.topic("flights").append_many(records(at, 20))
    return tmp_path


def test_each_has_a_command_and_a_case() -> None:
    assert set(jobs.commands) == set(JOBS) == set(CASES)
    assert set(JOBS) == set(TASK_JOBS)
    assert {name for name, case in CASES.items() if case.speculative} == SPECULATIVE


@pytest.mark.parametrize("job", CASES)
def test_help_names_the_options_that_all_have(job: str) -> None:
    done = run(job, "--help")
    assert done.code == 0
    words = set(done.out.replace(",", " ").split())
    assert words >= SHARED - {"--remote", "--json"}
    assert f"tiered spark {job}" in done.out  # an example


@pytest.mark.parametrize("job", CASES)
def test_a_plan_is_told_to_people_and_programs_and_changes_nothing(job: str, place: Path) -> None:
    case, before = CASES[job], keys(place)
    words = [word.format(folder=place) for word in case.words]
    told = run(job, *words, "--plan", "--job", "planned", "--remote", bucket(place))
    assert (told.code, told.err) == (0, "")
    assert told.out.strip()
    done = run(job, *words, "--plan", "--remote", bucket(place), "--json")
    assert (done.code, done.summary["tasks"] >= 0, done.summary["command"]) == (0, True, f"spark {job}")
    assert set(done.summary["plan"]) >= case.facts
    assert keys(place) == before


@pytest.mark.parametrize("job", sorted(CASES))
def test_a_job_ends_with_a_receipt_and_gives_it_again(job: str, place: Path, inline: None) -> None:
    words = [word.format(folder=place) for word in CASES[job].words]
    line = (job, *words, "--remote", bucket(place), "--job", "one", "--json")
    done = run(*line)
    assert done.code == 0, done.err
    assert (done.summary["job"], done.summary["job_id"]) == (job, "one")
    assert {"jobs/one/plan.json", "jobs/one/receipt.json"} <= keys(place)
    assert run(*line).summary == done.summary


@pytest.mark.parametrize(
    "words", [("--codec", "snappy", "--level", "3"), ("--level", "3"), ("--codec", "zstd", "--level", "99")]
)
def test_a_level_that_a_codec_does_not_have(words: tuple[str, ...], place: Path) -> None:
    assert run("reencode", *words, "--remote", bucket(place)).code == 2


def test_scrub_reads_what_only_a_snapshot_names(tmp_path: Path, inline: None) -> None:
    with log(tmp_path, {"latest": {"cleanup.policy": "compact", "gc.grace.ms": "0"}}) as opened:
        for at in range(0, 200, 20):
            opened.topic("latest").append_many(records(at, 20))
    url, store = bucket(tmp_path), open_store(bucket(tmp_path))
    taken = {row.id_lo: row for row in rows(url, "latest", 0)}
    assert tiered_run(["snapshot", "create", "before", "latest", "--remote", url]) == 0
    assert tiered_run(["maintain", "run", "latest", "--only", "compact", "--remote", url, "--yes"]) == 0
    left = [row for id_lo, row in taken.items() if id_lo not in {row.id_lo for row in rows(url, "latest", 0)}]
    assert run("scrub", "--remote", url, "--json").done["findings"] == []
    entry = drive(store, load_topic("latest"))
    assert entry is not None
    key = segment_key(entry.topic_id, 0, left[-1])
    found = store.execute(Get(key))
    assert isinstance(found, Object)
    store.execute(Put(key, found.data[:-1] + bytes([found.data[-1] ^ 1]), Match(found.etag)))
    done = run("scrub", "--remote", url, "--json")
    (finding,) = done.done["findings"]
    assert (done.code, finding["code"], finding["offset"]) == (13, "snapshot", left[-1].base)
    assert f"snapshot before: {key}" in finding["message"]
