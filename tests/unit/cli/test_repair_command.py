"""``tiered repair TOPIC[:P]`` shows the plan, asks and repairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.buckets import Bucket, bucket, write
from tests.unit.cli.conftest import Cli


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Bucket]:
    with bucket("directory", tmp_path) as made:
        write(made, steps=40)
        yield made


def test_a_dry_run_shows_the_plan_and_changes_nothing(cli: Cli, place: Bucket) -> None:
    key = place.log_key(place.rows()[1])
    place.delete(key)
    done = cli("repair", "t:0", "--from-dir", str(place.directory), "--remote", place.store.url, "--dry-run")
    assert done.code == 0
    assert f"{key}: the .log is missing: put offsets" in done.err
    assert "dry run: 1 object would be repaired, 0 left" in done.text
    assert len(place.plan().actions) == 1


def test_it_repairs_and_says_what_is_left(cli: Cli, place: Bucket) -> None:
    before, row = place.committed(), place.rows()[1]
    place.delete(place.log_key(row))
    left = cli("repair", "t", "--remote", place.store.url, "--yes", "--json")
    assert left.code == 3
    assert left.summary["actions"][0]["lost"] == [[row.base, row.next]]
    done = cli("repair", "t:0", "--from-dir", str(place.directory), "--remote", place.store.url, "--yes")
    assert done.code == 0
    assert place.committed() == before
    assert "nothing is damaged" in cli("repair", "t:0", "--remote", place.store.url).text


def test_the_log_directory_is_a_source_if_it_is_of_this_bucket(cli: Cli, place: Bucket, tmp_path: Path) -> None:
    row, other = place.rows()[1], tmp_path / "other"
    cli("topic", "create", "t", "--log-dir", other)
    place.delete(place.log_key(row))
    plans = [
        cli("repair", "t:0", "--log-dir", directory, "--remote", place.store.url, "--dry-run")
        for directory in (place.directory, other)
    ]
    assert f"put offsets {row.base} to {row.next} back from {place.directory}" in plans[0].err + plans[0].text
    assert f"no copy in the bucket holds offsets {row.base} to {row.next}" in plans[1].err


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("t", "--to-version", "3"), 2, "--to-version and --from-version need a single partition"),
        (("t:0", "--to-version", "2", "--from-version", "3"), 2, "--to-version and --from-version exclude each other"),
        (("t:0", "--to-version", "999"), 2, "cannot go back to version 999, which is not older"),
        (("t:0", "--to-version", "0"), 10, "versions that are kept"),
    ],
)
def test_a_wrong_version_is_refused(cli: Cli, place: Bucket, words: tuple[str, ...], code: int, sentence: str) -> None:
    refused = cli("repair", *words, "--remote", place.store.url)
    assert (refused.code, sentence in refused.err) == (code, True)


def test_help_after_a_topic_is_the_repair_s(cli: Cli) -> None:
    for line, usage in ((("t:0", "--help"), "TOPIC[:P] [OPTIONS]"), (("-h",), "[OPTIONS] COMMAND")):
        assert cli("repair", *line).text.startswith(f"Usage: tiered repair {usage}")


def test_it_asks(cli: Cli, place: Bucket) -> None:
    place.delete(place.index_key(place.rows()[1]))
    refused = cli("repair", "t:0", "--remote", place.store.url)
    assert refused.code == 2
    assert "--yes" in refused.err


def test_it_repairs_the_bucket_of_the_environment(cli: Cli, place: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_REMOTE", place.store.url)
    assert cli("repair").text == "nothing is damaged\n"


def test_a_topic_that_the_disk_does_not_have_is_refused(cli: Cli, place: Bucket) -> None:
    refused = cli("repair", "typo", "--log-dir", str(place.directory))
    assert (refused.code, "has no topic typo" in refused.err) == (10, True)
    assert cli("repair", "t", "--log-dir", str(place.directory)).text == "nothing is damaged\n"
