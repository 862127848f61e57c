"""``tiered snapshot``, and reading as of one: what it names stays, whatever becomes of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tests.unit.cli.conftest import Cli

SETTINGS = {"segment.bytes": 1000, "cleanup.policy": "compact", "gc.grace.ms": 0, "merge.min.bytes": 0}


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    """Forty records of four keys, in small segments of a topic that keeps nothing in the trash."""
    url = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", create=True, config=SETTINGS)
        for number in range(40):
            topic.append(b"%02d" % number + b"x" * 100, key=b"%d" % (number % 4))
        log.sync(timeout=60)
    return url


def objects(tmp_path: Path) -> set[Path]:
    """All segments."""
    return set((tmp_path / "store").rglob("*.log.obj"))


def live(cli: Cli, bucket: str, end: str = "20") -> None:
    """All that takes away: compaction, a trim, the collection of what they left."""
    assert cli("maintain", "run", "t:0", "--only", "compact", "--remote", bucket, "--yes").code == 0
    trim = ("maintain", "run", "t:0", "--only", "retention", "--start-offset", end)
    assert cli(*trim, "--remote", bucket, "--yes").code == 0
    assert cli("gc", "run", "--remote", bucket, "--yes").code in (0, 3)


def test_what_a_snapshot_names_stays_until_it_is_deleted(cli: Cli, bucket: str, tmp_path: Path) -> None:
    before = objects(tmp_path)
    made = cli("snapshot", "create", "release-1", "--remote", bucket, "--json")
    (one,) = made.summary["snapshots"]
    assert (made.code, one["name"], one["start_offset"], one["end_offset"]) == (0, "release-1", 0, 40)
    live(cli, bucket)
    assert before <= objects(tmp_path)
    assert cli("snapshot", "list", "--remote", bucket, "--json").summary["snapshots"] == [one]
    assert cli("snapshot", "delete", "release-1", "--remote", bucket).code == 2  # nobody can answer
    assert cli("snapshot", "delete", "release-1", "--remote", bucket, "--yes").code == 0
    assert cli("gc", "run", "--remote", bucket, "--yes").code == 0
    assert not before & objects(tmp_path)
    assert cli("snapshot", "list", "--remote", bucket).text == "no snapshots\n"


def test_a_name_is_made_once_and_is_a_name(cli: Cli, bucket: str) -> None:
    remote = ("--remote", bucket)
    assert cli("snapshot", "create", "a", "t:0", *remote).code == 0
    again = cli("snapshot", "create", "a", *remote)
    assert (again.code, "there is a snapshot a of t-0 already" in again.err) == (2, True)
    for name in ("now", "now-1h", "12", "3d", "2026-01-01", "a/b", "..", "", "a" * 101):
        assert cli("snapshot", "create", name, *remote).code == 2, name
    assert cli("snapshot", "create", "b", "u", *remote).code == 10
    assert cli("snapshot", "delete", "b", "--yes", *remote).code == 10
    assert [one["name"] for one in cli("snapshot", "list", *remote, "--json").summary["snapshots"]] == ["a"]
