"""``tiered check`` of a damaged bucket names what is wrong and the verb that is for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tiered
from tests.unit.access.work import write_by_spark
from tests.unit.cli.conftest import Cli
from tiered.format.keys import parse_segment_key
from tiered.store.base import ABSENT, Delete, Get, Object, Put, Store, list_all
from tiered.store.driver import drive
from tiered.store.location import StoreLocation

Hurt = Callable[[bytes], bytes]


@pytest.fixture
def url(tmp_path: Path, cli: Cli) -> str:
    place = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=place) as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 1000})
        for number in range(30):
            topic.append(b"%03d" % number + b"x" * 100)
        log.sync(timeout=60)
    assert cli("snapshot", "create", "kept", "--remote", place).code == 0
    return place


@contextlib.contextmanager
def opened(url: str) -> Iterator[Store]:
    with contextlib.closing(StoreLocation.parse(url).open()) as store:
        yield store


def hurt(url: str, part: str, change: Hurt) -> None:
    """The first object whose key has ``part``."""
    with opened(url) as store:
        key = next(entry.key for entry in drive(store, list_all("")) if part in entry.key)
        got = store.execute(Get(key))
        assert isinstance(got, Object)
        store.execute(Delete((key,)))
        store.execute(Put(key, change(bytes(got.data)), ABSENT))


@pytest.mark.parametrize("change", [lambda data: b"", lambda data: data[:40] + b"?" + data[41:]])
def test_a_damaged_snapshot_is_told_and_can_be_let_go_of(cli: Cli, url: str, change: Hurt) -> None:
    assert cli("check", "--remote", url).code == 0
    hurt(url, "/snap/kept", change)
    checked = cli("check", "--remote", url)
    assert checked.code == 13
    assert "`tiered snapshot delete kept t:0`" in checked.text
    for command in ("gc run --orphans --yes", "cat t --as-of kept"):
        stopped = cli(*command.split(), "--remote", url)
        assert (stopped.code, "`tiered snapshot delete kept t:0`" in stopped.err) == (13, True), command
    assert cli("check", "--remote", url, "--json").summary["errors"] == 1  # nothing was taken meanwhile
    done = cli("snapshot", "delete", "kept", "t:0", "--yes", "--remote", url)
    assert done.code == 0
    assert "cannot be read" in done.err
    assert cli("check", "--remote", url).code == 0
    assert cli("snapshot", "list", "--remote", url, "--json").summary["snapshots"] == []


def test_a_damaged_snapshot_is_marked_and_the_others_are_listed(cli: Cli, url: str) -> None:
    assert cli("snapshot", "create", "later", "--remote", url).code == 0
    hurt(url, "/snap/kept", lambda data: data[:40] + b"?" + data[41:])
    listed = cli("snapshot", "list", "--remote", url, "--json")
    assert listed.code == 13
    found = {each["name"]: each["state"] for each in listed.summary["snapshots"]}
    assert found == {"kept": "damaged", "later": "kept"}
    seen = cli("snapshot", "list", "--remote", url)
    assert (seen.code, "damaged" in seen.text, "later" in seen.text) == (13, True, True)
    assert "`tiered snapshot delete kept t:0`" in seen.err


def test_a_segment_that_only_a_snapshot_names_is_looked_for(cli: Cli, url: str, tmp_path: Path) -> None:
    assert cli("erase", "t", "--before", "2999-01-01", "--yes", "--remote", url).code == 3
    assert cli("check", "--remote", url).code == 0
    with opened(url) as store:
        keys = [entry.key for entry in drive(store, list_all("")) if parse_segment_key(entry.key) is not None]
        old = next(key for key in keys if "/w0" in key and key.endswith(".log"))
        store.execute(Delete((old,)))
    checked = cli("check", "--remote", url)
    assert checked.code == 13
    assert f"snapshot kept: {old}, with offsets 0 to " in checked.text
    assert "is gone" in checked.text


def test_the_verbs_for_roots_and_segments_are_named(cli: Cli, url: str) -> None:
    hurt(url, ".idx", lambda data: data[:-1])
    checked = cli("check", "--remote", url)
    assert checked.code == 13
    assert "next: t-0: `tiered repair index t:0` mends" in checked.text
    assert cli("repair", "index", "t:0", "--yes", "--remote", url).code == 0
    assert cli("check", "--remote", url).code == 0
    hurt(url, "/root", lambda data: data[:-1])
    told = cli("check", "--remote", url, "--json").summary["remedies"]
    assert told == [
        "t-0: `tiered repair advice t` says how a kept root is put back, "
        "`tiered repair rebuild-catalog t:0` makes one anew"
    ]
    assert cli("repair", "rebuild-catalog", "t:0", "--yes", "--remote", url).code == 0
    assert cli("check", "--remote", url).code == 0


@pytest.mark.parametrize("change", [lambda data: b"", lambda data: data[:40] + b"?" + data[41:]])
def test_a_damaged_decision_is_told_and_ends_nothing_else(cli: Cli, url: str, change: Hurt) -> None:
    write_by_spark(url)
    assert cli("check", "--remote", url).code == 0
    with opened(url) as store:
        before = {entry.key for entry in drive(store, list_all("txn/"))}
    assert before == {f"txn/nightly/{batch}" for batch in range(3)}
    hurt(url, "txn/nightly/2", change)
    checked = cli("check", "--remote", url, "--json")
    assert checked.code == 13
    (told,) = [each for each in checked.messages if each.get("severity") == "error"]
    assert (told["code"], told["where"]) == ("decision", "txn/nightly/2")
    assert "put the decision back from a version or a backup of the bucket" in told["message"]
    assert cli("check", "t", "--remote", url).code == 0  # decisions are of no topic
    for command in ("gc plan --orphans", "gc run --orphans --yes"):
        swept = cli(*command.split(), "--remote", url)
        assert (swept.code, "orphan" in swept.text) == (13, True), command
        assert "txn/nightly/2 cannot be read" in swept.err
        assert "put the decision back from a version" in swept.err
    with opened(url) as store:
        assert {entry.key for entry in drive(store, list_all("txn/"))} == before
