"""``tiered check`` of a damaged bucket names what is wrong and the verb that is for it."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tests.unit.plan.iam_policy.work import write_by_spark
from tiered.store.base import ABSENT, Delete, Get, Object, Put, Store
from tiered.store.driver import drive
from tiered.store.location import StoreLocation
from tiered.store.steps import list_all

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


def test_the_verb_for_a_registry_entry_is_named(cli: Cli, url: str) -> None:
    hurt(url, "topics/t", lambda data: data[:-1])
    told = cli("check", "--remote", url, "--json").summary["remedies"]
    assert told == ["t: `tiered repair t --dry-run` shows what can be repaired, and from what"]
    made = cli("repair", "t", "--yes", "--remote", url)
    assert (made.code, "the settings are lost: `tiered topic set t`" in made.err) == (0, True)
    assert cli("check", "--remote", url).code == 0


@pytest.mark.parametrize("change", [lambda data: b"", lambda data: data[:40] + b"?" + data[41:]])
def test_a_damaged_snapshot_is_told_and_can_be_let_go_of(cli: Cli, url: str, change: Hurt) -> None:
    assert cli("check", "--remote", url).code == 0
    hurt(url, "/snap/kept", change)
    checked = cli("check", "--remote", url)
    assert checked.code == 13
    assert "`tiered snapshot delete kept t:0`" in checked.text
    for command in ("maintain --only collect --orphans --yes", "cat t --as-of kept"):
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


def test_the_verbs_for_roots_and_segments_are_named(cli: Cli, url: str) -> None:
    hurt(url, ".idx", lambda data: data[:-1])
    checked = cli("check", "--remote", url)
    assert checked.code == 13
    assert "next: t:0: `tiered repair t:0 --dry-run` shows" in checked.text
    assert cli("repair", "t:0", "--yes", "--remote", url).code == 0
    mended = cli("check", "--remote", url)
    assert mended.code == 3  # the snapshot goes on naming the damaged one
    assert "snapshot kept: " in mended.text
    verb = next(word for word in mended.text.split("`") if word.startswith("tiered snapshot "))
    assert verb == "tiered snapshot delete kept t:0"
    assert cli(*verb.split()[1:], "--yes", "--remote", url).code == 0
    assert cli("check", "--remote", url).code == 0
    hurt(url, "/root", lambda data: data[:-1])
    told = cli("check", "--remote", url, "--json").summary["remedies"]
    assert told == ["t:0: `tiered repair t:0 --dry-run` shows what can be repaired, and from what"]
    assert cli("repair", "t:0", "--yes", "--remote", url).code == 0
    assert cli("check", "--remote", url).code == 0


def test_the_verb_for_a_torn_tail_on_the_disk_is_named(cli: Cli, url: str, tmp_path: Path) -> None:
    directory = tmp_path / "a log"
    with tiered.open(directory, remote=url) as log, log.consumer("g", "t") as consumer:
        consumer.poll(1)
        consumer.commit()
        log.topic("t").append(b"torn")
    tail = max(directory.glob("t-0/*.log"))
    assert cli("check", "--log-dir", directory, "--json").summary["remedies"] == []
    tail.write_bytes(tail.read_bytes()[:-1])
    for options in (("--log-dir", directory), ("--log-dir", directory, "--remote", url)):
        told = cli("check", *options, "--json")
        (line,) = told.summary["remedies"]
        words = shlex.join(map(str, options))
        assert line == f"t:0: `tiered repair t:0 {words} --dry-run` shows what can be repaired, and from what"
        assert (told.code, f"next: {line}" in cli("check", *options).text) == (13, True)
        shown = cli(*shlex.split(line.split("`")[1])[1:])
        assert (shown.code, f"{tail}: " in shown.err) == (3, True)
    (positions,) = (each for each in directory.glob("__consumer_offsets-*/*.log") if each.stat().st_size)
    positions.write_bytes(positions.read_bytes()[:-1])
    remedies = cli("check", *options, "__consumer_offsets", "--json").summary["remedies"]
    name = positions.parent.name.replace("-", ":")
    assert [line.split("`")[1] for line in remedies] == [f"tiered repair {name} --log-dir '{directory}' --dry-run"]


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
    assert "`tiered repair` puts a version of it back" in told["message"]
    assert cli("check", "t", "--remote", url).code == 0  # decisions are of no topic
    for command in ("maintain --only collect --orphans --dry-run", "maintain --only collect --orphans --yes"):
        swept = cli(*command.split(), "--remote", url)
        assert (swept.code, "orphan" in swept.text) == (13, True), command
        assert "txn/nightly/2 cannot be read" in swept.err
        assert "`tiered repair` puts a version of it back" in swept.err
    with opened(url) as store:
        assert {entry.key for entry in drive(store, list_all("txn/"))} == before


def test_two_names_of_one_topic_are_told_and_neither_destroys(cli: Cli, url: str) -> None:
    """A copy of an entry under another name: whoever deletes it would delete the records of the other."""
    before = cli("cat", "t", "--remote", url)
    with opened(url) as store:
        got = store.execute(Get("topics/t"))
        assert isinstance(got, Object)
        copy = json.loads(got.data) | {"topic": "u"}
        store.execute(Put("topics/u", json.dumps(copy).encode(), ABSENT))
        keys = {entry.key for entry in drive(store, list_all(""))}
    checked = cli("check", "--remote", url)
    assert checked.code == 13
    assert "belongs to topic t, but the entry of topic u in the bucket has the same id" in checked.text
    assert "if topics/u is a copy of topics/t, delete that copy" in checked.text
    for line in (
        ("topic", "delete", "u", "--yes", "--force"), ("erase", "u", "--to", "2999-01-01", "--yes"),
        ("cat", "u"), ("repair", "u:0", "--yes"),
        ("maintain", "--only", "collect", "u", "--orphans", "--yes"), ("snapshot", "create", "more", "u"),
    ):  # fmt: skip
        refused = cli(*line, "--remote", url)
        assert (refused.code, "belongs to topic t" in refused.text + refused.err) == (13, True), line
    with opened(url) as store:
        assert {entry.key for entry in drive(store, list_all(""))} >= keys
        store.execute(Delete(("topics/u",)))
    assert cli("check", "--remote", url).code == 0
    assert cli("cat", "t", "--remote", url) == before


@pytest.mark.parametrize(
    ("before", "after", "setting"),
    [(b'"segment.bytes"', b'"segmenu.bytes"', "segmenu.bytes"), (b'"1000"', b'"1x00"', "segment.bytes")],
)
def test_a_setting_that_nobody_can_go_by_is_told_and_taken_out(
    cli: Cli, url: str, tmp_path: Path, before: bytes, after: bytes, setting: str
) -> None:
    """A flipped bit, or a newer release: the records are read, other topics are kept up, and a verb mends it."""
    seen = cli("cat", "t", "--remote", url)
    with tiered.open(tmp_path / "other", remote=url) as log:
        topic = log.topic("other", create=True, config={"segment.bytes": 1000, "retention.bytes": 2000})
        for number in range(30):
            topic.append(b"%03d" % number + b"x" * 100)
        log.sync(timeout=60)

    def damage(data: bytes) -> bytes:
        assert data.count(before) == 1, data
        return data.replace(before, after)

    hurt(url, "topics/t", damage)
    checked = cli("check", "--remote", url, "--json")
    assert checked.code == 13
    (told,) = [each for each in checked.messages if each.get("severity") == "error"]
    assert (told["code"], told["where"], told["topic"]) == ("topic_setting", "topics/t", "t")
    assert setting in told["message"]
    assert "`tiered topic set t --reset SETTING`" in told["message"]
    assert cli("cat", "t", "--remote", url) == seen
    described = cli("topic", "show", "t", "--remote", url)
    assert (described.code, "no number" in described.text) == (0, b"1x" in after)
    kept_up = cli("maintain", "--yes", "--remote", url, "--json")
    assert kept_up.code == 2
    assert "t-0: " in kept_up.err
    (planned,) = kept_up.summary["partitions"]
    assert planned["topic"] == "other"
    assert kept_up.summary["done"], kept_up.summary
    assert cli("topic", "set", "t", "--reset", setting, "--remote", url).code == 0
    assert cli("check", "--remote", url).code == 0
    assert cli("cat", "t", "--remote", url) == seen
    assert cli("maintain", "--yes", "--remote", url).code == 0


def test_a_setting_that_nobody_can_go_by_is_set_again(cli: Cli, url: str) -> None:
    hurt(url, "topics/t", lambda data: data.replace(b'"1000"', b'"1x00"'))
    assert cli("check", "--remote", url).code == 13
    refused = cli("topic", "set", "t", "retention.bytes=5000", "--remote", url)
    assert (refused.code, "segment.bytes" in refused.err) == (2, True)
    assert cli("topic", "set", "t", "segment.bytes=1000", "--remote", url).code == 0
    assert cli("check", "--remote", url).code == 0


def test_a_file_that_was_moved_onto_another_is_told_and_the_rest_is_checked(cli: Cli, url: str, tmp_path: Path) -> None:
    assert cli("snapshot", "create", "later", "--remote", url).code == 0
    kept, later = (next((tmp_path / "store").glob(f"*/*/snap/{name}.obj")) for name in ("kept", "later"))
    later.write_bytes(kept.read_bytes())
    (tmp_path / "store" / "topics" / "\udcff.obj").write_bytes(b"")  # a name that is not UTF-8 is nobody's
    checked = cli("check", "--remote", url)
    assert checked.code == 13
    assert "later.obj" in checked.text
    assert "`tiered snapshot delete later t:0`" in checked.text
    assert cli("snapshot", "delete", "later", "t:0", "--yes", "--remote", url).code == 0
    assert cli("check", "--remote", url).code == 0
