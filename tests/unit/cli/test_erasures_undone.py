"""Erasures under any name are named by each command that goes back to a catalog from before them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tiered.erase.erase import erase_steps, plan_erase_steps
from tiered.model import TopicPartition
from tiered.plan.erasure import Selection
from tiered.remote.root_view import RootView
from tiered.remote.topics import load_topic
from tiered.store.driver import drive
from tiered.store.location import StoreLocation

TP = TopicPartition("t", 0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Forty records of seven keys, and a snapshot of them."""
    url = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 600})
        for number in range(40):
            topic.append(b"%02d" % number + b"x" * 60, key=b"%d" % (number % 7))
        log.sync(timeout=60)
    return url


def erase(url: str, job: str, key: bytes = b"3") -> int:
    """Erase one key under the name ``job``; return the catalog's version before that."""
    selection = Selection(frozenset([key]))
    with contextlib.closing(StoreLocation.parse(url).open()) as store:
        entry = drive(store, load_topic("t"))
        assert entry is not None
        pinned = drive(store, RootView(entry.topic_id, 0, "t").pin())
        plan = drive(store, plan_erase_steps(TP, entry, selection))
        assert pinned is not None
        assert plan is not None
        drive(store, erase_steps(plan, selection, "m:1", job))
        return pinned.version


def keys_of(**where: str | Path) -> list[bytes | None]:
    with tiered.open_reader(**where) as reader:  # type: ignore[arg-type]
        return [record.key for record in reader.topic("t").read(0)]


@pytest.mark.parametrize("job", ["mine", "gc-1"])
def test_a_catalog_from_before_an_erasure_names_it(cli: Cli, url: str, tmp_path: Path, job: str) -> None:
    assert cli("snapshot", "create", "before", "t", "--remote", url).code == 0
    version = erase(url, job)
    assert b"3" not in keys_of(remote=url)
    folder = next((tmp_path / "store" / "erasures").iterdir())
    assert [path.name for path in folder.iterdir()] == [job]
    copy = cli("restore", "t", "--as-of", "before", "--log-dir", tmp_path / "copy", "--remote", url, "--json")
    (one,) = copy.summary["partitions"]
    assert keys_of(log_dir=tmp_path / "copy").count(b"3") == 6
    assert (copy.code, [(told["job"], told["records"]) for told in one["undone"]]) == (3, [(job, 6)])
    assert f"6 records that {job} erased" in copy.err
    again = cli("repair", "t:0", "--to-version", str(version), "--remote", url, "--yes", "--json")
    (action,) = again.summary["actions"]
    assert (again.code, len(action["undone"])) == (3, 1)
    assert f"6 records that {job} erased" in action["undone"][0]
    assert keys_of(remote=url).count(b"3") == 6


def test_what_came_after_an_erasure_undoes_nothing(cli: Cli, url: str, tmp_path: Path) -> None:
    erase(url, "mine")
    assert cli("snapshot", "create", "after", "t", "--remote", url).code == 0
    erase(url, "later", b"5")
    copy = cli("restore", "t", "--as-of", "after", "--log-dir", tmp_path / "copy", "--remote", url, "--json")
    assert [told["job"] for told in copy.summary["partitions"][0]["undone"]] == ["later"]
    newest = cli("restore", "t", "--log-dir", tmp_path / "newest", "--remote", url, "--json")
    assert (newest.code, newest.summary["partitions"][0]["undone"]) == (0, [])


def test_a_damaged_note_is_refused_until_it_is_deleted(cli: Cli, url: str, tmp_path: Path) -> None:
    assert cli("snapshot", "create", "before", "t", "--remote", url).code == 0
    version = erase(url, "mine")
    note = min((tmp_path / "store" / "erasures").rglob("segments/*"))
    note.write_bytes(b"{")
    again = ("repair", "t:0", "--to-version", str(version), "--remote", url, "--yes", "--json")
    refused = cli(*again)
    assert refused.code == 13
    assert "the erasure's note of a segment, cannot be read" in refused.text
    assert "delete it, and erase again" in refused.text
    note.unlink()
    assert len(cli(*again).summary["actions"]) == 1
    assert keys_of(remote=url).count(b"3") == 6
