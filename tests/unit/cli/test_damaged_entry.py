"""One entry of the registry that cannot be read: what walks over all topics says so, and goes on with the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.uploaded import RETAINED, upload_topics
from tests.unit.cli.conftest import Cli
from tiered.remote.topics import load_topic
from tiered.store.base import ABSENT, Delete, Put
from tiered.store.driver import drive
from tiered.store.location import open_store

DAMAGE, NEWER = b"{nothing", b'{"format": 9}'


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """``log`` and ``store`` with topics a, b and c of which retention takes the beginning, and a snapshot of all."""
    upload_topics(tmp_path, {**RETAINED, "merge.min.bytes": 0, "gc.grace.ms": 0}, "abc")
    return tmp_path


def damage(place: Path, data: bytes | None = DAMAGE) -> None:
    """The entry of b holds ``data``, or (None) its file is cut short."""
    store = open_store(f"file://{place / 'store'}")
    if data is None:
        path = place / "store" / "topics" / "b.obj"
        path.write_bytes(path.read_bytes()[:9])
        return
    store.execute(Delete(("topics/b",)))
    store.execute(Put("topics/b", data, ABSENT))


def held(place: Path, topic_hex: str) -> dict[str, bytes]:
    """Objects of one topic id, by key."""
    store = place / "store"
    return {str(path): path.read_bytes() for path in store.glob(f"??/{topic_hex}-*/**/*") if path.is_file()}


@pytest.mark.parametrize(("data", "code"), [(DAMAGE, 13), (b"", 13), (None, 13), (NEWER, 2)])
def test_topics_list_shows_the_others_and_names_it(cli: Cli, place: Path, data: bytes | None, code: int) -> None:
    damage(place, data)
    alone = ("--remote", f"file://{place / 'store'}")
    seen = cli("topic", "list", *alone)
    told = [line.split() for line in seen.text.splitlines()[1:]]
    assert (seen.code, [(line[0], line[-1]) for line in told]) == (
        code,
        [("a", "remote"), ("b", "unreadable"), ("c", "remote")],
    )
    assert "warning: topics/b cannot be read: " in seen.err
    assert ("upgrade" if code == 2 else "`tiered repair TOPIC --dry-run`") in seen.err
    summary = cli("topic", "list", *alone, "--json").summary
    assert [entry["topic"] for entry in summary["topics"]] == ["a", "c"]
    assert [(each["topic"], each["error"]["exit_code"]) for each in summary["unreadable"]] == [("b", code)]
    both = cli("topic", "list", *alone, "--log-dir", place / "log").text.splitlines()
    assert [line.split()[-1] for line in both[1:]] == ["local+remote", "local+unreadable", "local+remote"]


@pytest.mark.parametrize(("data", "code"), [(DAMAGE, 13), (None, 13), (NEWER, 3)])
def test_status_shows_the_others_and_names_it(cli: Cli, place: Path, data: bytes | None, code: int) -> None:
    damage(place, data)
    alone = ("--remote", f"file://{place / 'store'}")
    seen = cli("status", *alone)
    lines = seen.text.splitlines()
    assert (seen.code, [line[:3] for line in lines if "end 40" in line]) == (code, ["a-0", "c-0"])
    (problem,) = [line for line in lines if line.startswith("problem: ")]
    assert problem.startswith("problem: topics/b cannot be read: ")
    assert ("upgrade" if code == 3 else "`tiered repair TOPIC --dry-run`") in problem
    summary = cli("status", *alone, "--json").summary
    assert [entry["topic"] for entry in summary["partitions"]] == ["a", "c"]
    assert ([each["topic"] for each in summary["unreadable"]], summary["safe"]) == (["b"], False)


def test_what_the_disk_has_of_its_topic_is_told_and_not_taken_for_lost(cli: Cli, place: Path) -> None:
    damage(place)
    seen = cli("status", "--log-dir", place / "log", "--remote", f"file://{place / 'store'}", "--json")
    assert seen.code == 13
    parts = {entry["topic"]: entry for entry in seen.summary["partitions"]}
    assert {name: (entry["end_offset"], entry["uploaded_offset"]) for name, entry in parts.items()} == dict.fromkeys(
        "abc", (40, 40)
    )
    assert (parts["b"]["problems"], parts["b"]["remote"], len(seen.summary["problems"])) == ([], None, 1)


def test_snapshots_of_the_others_are_listed_and_none_is_made_of_a_part(cli: Cli, place: Path) -> None:
    alone = ("--remote", f"file://{place / 'store'}")
    assert cli("snapshot", "create", "kept", *alone).code == 0
    damage(place)
    seen = cli("snapshot", "list", *alone, "--json")
    assert (seen.code, [each["topic"] for each in seen.summary["snapshots"]]) == (13, ["a", "c"])
    assert "topics/b cannot be read" in seen.err
    assert cli("snapshot", "list", "b", *alone).code == 13
    for line in (("create", "more"), ("delete", "kept", "--yes")):
        assert cli("snapshot", *line, *alone).code == 13
    found = cli("snapshot", "list", *alone, "--json").summary["snapshots"]
    assert [(each["topic"], each["name"]) for each in found] == [("a", "kept"), ("c", "kept")]


@pytest.mark.parametrize("data", [DAMAGE, NEWER])
def test_maintenance_of_the_others_goes_on_and_its_topic_stays_whole(cli: Cli, place: Path, data: bytes) -> None:
    alone = ("--remote", f"file://{place / 'store'}")
    entry = drive(open_store(alone[1]), load_topic("b"))
    assert entry is not None
    code = 13 if data == DAMAGE else 2
    damage(place, data)
    before = held(place, entry.topic_id.hex)
    planned = cli("maintain", "--dry-run", *alone, "--json")
    assert (planned.code, [each["topic"] for each in planned.summary["partitions"]]) == (code, ["a", "c"])
    done = cli("maintain", *alone, "--yes", "--json")
    assert (done.code, [each["action"] for each in done.summary["done"]]) == (code, ["retention", "retention"])
    for line in (
        ("maintain", "--only", "collect", "--dry-run", "--orphans"),
        ("maintain", "--only", "collect", "--orphans", "--yes"),
    ):
        seen = cli(*line, *alone, "--json")
        assert (seen.code, [each["topic"] for each in seen.summary["partitions"]]) == (code, ["a", "c"]), line
        assert "strays" not in seen.summary
        assert any("nothing of deleted topics is swept" in each for each in seen.summary["warnings"])
    assert held(place, entry.topic_id.hex) == before
    assert cli("maintain", "b", *alone, "--yes").code == code


def test_who_mistypes_a_topic_is_told_so(cli: Cli, place: Path) -> None:
    damage(place)
    alone = ("--remote", f"file://{place / 'store'}")
    for line in (("cat", "ab"), ("topic", "show", "ab"), ("topic", "show", "ab", "--segments")):
        seen = cli(*line, *alone)
        assert (seen.code, "there is no topic" in seen.err) == (10, True), line
    for line in (("cat", "a-0"), ("cat", "b-0")):  # b is a topic, if its entry is damaged
        assert f"did you mean partition {line[1].replace('-', ':')}?" in cli(*line, *alone).err, line
    assert cli("topic", "show", "a", *alone).code == 0
    assert cli("topic", "show", "b", *alone).code == 13
    assert cli("doctor", *alone).code == 0
