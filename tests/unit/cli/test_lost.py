"""What the command line says of a bucket that lost something, or is another one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tiered.care.repair_advice import _put_back
from tiered.care.run import advise
from tiered.errors import FencedError
from tiered.store.base import ABSENT, Delete, Put
from tiered.store.location import open_store
from tiered.testing.faults import Fault, FaultKind, FaultStore


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """``log`` and ``store``; the disk holds only what came after the first segment."""
    with tiered.open(tmp_path / "log", remote=f"file://{tmp_path / 'store'}") as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 1000, "local.retention.bytes": 0})
        for number in range(40):
            topic.append(b"%02d" % number + b"x" * 100)
        log.sync(timeout=60)
        log._local.tick()
    return tmp_path


def root_file(place: Path) -> Path:
    return next((place / "store").glob("??/*/root.obj"))


def test_a_lost_root(cli: Cli, place: Path) -> None:
    both = ("--log-dir", place / "log", "--remote", f"file://{place / 'store'}")
    alone = both[2:]
    assert cli("status", *both).code == 0
    assert cli("repair", "advice", *both).text == "nothing is lost\n"
    root_file(place).unlink()
    for line, code in ((("cat", "t"), 10), (("status",), 13), (("check",), 13), (("segments", "t"), 10)):
        seen = cli(*line, *both)
        assert seen.code == code, line
        assert "offset 40 committed in it" in seen.text + seen.err, line
    for line, code in ((("cat", "t"), 13), (("status",), 13), (("check",), 13), (("topics", "describe", "t"), 13)):
        seen = cli(*line, *alone)
        assert seen.code == code, line
        assert "made with its topic" in seen.text + seen.err, line
    advice = cli("repair", "advice", *both)
    assert advice.code == 13
    held = f"`tiered cat t:0 --log-dir {place / 'log'}`, without --remote, reads them"
    for step in ("from a backup of", "nothing deletes them", "`tiered repair rebuild-catalog t:0 --dry-run`", held):
        assert step in advice.text
    (lost,) = cli("repair", "advice", *both, "--json").summary["lost"]
    assert (lost["topic"], lost["partition"], lost["key"][-5:]) == ("t", 0, "/root")


@pytest.mark.parametrize("damage", [None, b"garbage"])
def test_a_root_is_rebuilt_from_the_objects(cli: Cli, place: Path, damage: bytes | None) -> None:
    both = ("--log-dir", place / "log", "--remote", f"file://{place / 'store'}")
    alone = both[2:]
    before = cli("cat", "t", *alone)
    shutil.rmtree(root_file(place).parent / "hist")
    rebuild = ("repair", "rebuild-catalog", "t:0", *alone)
    assert cli(*rebuild, "--yes").code == 2
    store = open_store(f"file://{place / 'store'}")
    key = f"{root_file(place).parent.relative_to(place / 'store')}/root"
    store.execute(Delete((key,)))
    if damage is not None:
        store.execute(Put(key, damage, ABSENT))
    planned = cli(*rebuild, "--dry-run")
    assert (planned.code, "t-0: offsets 0 to 40 in " in planned.text + planned.err) == (0, True)
    assert cli("cat", "t", *alone).code == 13
    assert cli(*rebuild).code == 2  # nobody can answer
    done = cli(*rebuild, "--yes", "--json").summary
    assert (done["start_offset"], done["next_offset"], done["copy_version"], done["unused"]) == (0, 40, 0, [])
    assert cli("cat", "t", *alone) == before
    assert cli("check", *alone, "--read-data").code == 0
    with tiered.open(place / "log", store.url) as log:
        log.topic("t").append(b"only here")
        with pytest.raises(FencedError):
            log.sync(timeout=30)
    assert cli("repair", "rejoin", "t:0", "--log-dir", place / "log", "--yes").code == 0
    with tiered.open(place / "log", f"file://{place / 'store'}") as log:
        assert log.topic("t").append(b"more").offset == 40
        log.sync(timeout=30)


def test_an_older_root_that_was_put_back(cli: Cli, place: Path) -> None:
    """A disk that is gone was all that had seen a newer one; a snapshot tells of it."""
    store, alone = place / "store", ("--remote", f"file://{place / 'store'}")
    older = root_file(place).read_bytes()
    with tiered.open(place / "log", remote=f"file://{store}") as log:
        log.topic("t").append(b"more")
        log.sync(timeout=60)
    before = cli("cat", "t", *alone)
    assert cli("snapshot", "create", "kept", *alone).code == 0
    root_file(place).write_bytes(older)
    shutil.rmtree(root_file(place).parent / "hist")
    checked, advice = cli("check", *alone), cli("repair", "advice", *alone)
    for seen in (checked, advice):
        assert seen.code == 13
        assert "a snapshot tells of version " in seen.text + seen.err
        assert "`tiered repair rebuild-catalog t:0`" in seen.text + seen.err
    assert cli("maintain", "run", "t", "--start-offset", 10, *alone, "--yes").code == 2
    refused = cli("maintain", "run", "t:0", "--start-offset", 10, *alone, "--yes")
    assert (refused.code, "a snapshot tells of version" in refused.err) == (13, True)
    done = cli("repair", "rebuild-catalog", "t:0", *alone, "--yes", "--json").summary
    assert (done["next_offset"], "a snapshot tells of version " in done["older"]) == (41, True)
    assert cli("cat", "t", *alone) == before
    assert cli("check", *alone, "--read-data").code == 0


def test_of_a_topic_that_was_deleted_the_disk_is_told_to_let_go(cli: Cli, place: Path) -> None:
    """The bucket before the disk, as `topics delete` says; until the disk follows it looks like a lost entry."""
    alone = ("--remote", f"file://{place / 'store'}")
    both = ("--log-dir", place / "log", *alone)
    assert cli("topics", "alter", "t", "--set", "gc.grace.ms=0", *alone).code == 0
    assert cli("topics", "delete", "t", "--yes", *alone).code == 0
    assert cli("gc", "run", "--yes", *alone).code == 0
    assert cli("topics", "list", "--json", *alone).summary["topics"] == []
    advised = cli("repair", "advice", *both)
    assert advised.code == 13
    verb = next(word for word in advised.text.split("`") if word.startswith("tiered topics delete t "))
    assert cli(*verb.split()[1:], "--yes").code == 0
    assert cli("repair", "advice", *both).code == 0
    assert cli("check", *both).code == 0


def test_another_prefix(cli: Cli, place: Path) -> None:
    (place / "other").mkdir()
    both = ("--log-dir", place / "log", "--remote", f"file://{place / 'other'}")
    for line, code in ((("cat", "t"), 10), (("status",), 13), (("check",), 13), (("repair", "advice"), 13)):
        seen = cli(*line, *both)
        assert (seen.code, seen.out.startswith(b"0")) == (code, False), line
        assert "offset 40 committed" in seen.text + seen.err, line


def test_a_folder_that_is_no_store(cli: Cli, place: Path) -> None:
    for line in (("cat", "t"), ("status",), ("check",), ("topics", "list"), ("repair", "advice")):
        seen = cli(*line, "--remote", f"file://{place}")
        assert (seen.code, "is no store" in seen.err) == (10, True), line


def test_the_advice_for_a_lost_entry_is_what_it_held(place: Path) -> None:
    store = open_store(f"file://{place / 'store'}")
    with tiered.open_reader(store.url) as reader:
        before = list(reader.topic("t").read())
    store.execute(Delete(("topics/t",)))
    (lost,) = advise(store, None).lost
    (body,) = [step.partition("it held: ")[2].encode() for step in lost.steps if "it held: " in step]
    store.execute(Put("topics/t", body, ABSENT))
    with tiered.open_reader(store.url) as reader:
        assert list(reader.topic("t").read()) == before
    assert advise(store, None).lost == ()


def test_on_a_bucket_with_versions_the_commands_are_named(place: Path) -> None:
    steps = list(_put_back("s3://acme-logs/prod", "topics/t"))
    assert "aws s3api list-object-versions --bucket acme-logs --prefix prod/topics/t" in steps[0]
    assert "aws s3api delete-object --bucket acme-logs --key prod/topics/t --version-id ID" in steps[0]
    assert "--copy-source 'acme-logs/prod/topics/t?versionId=ID'" in steps[0]


def unlisted(place: Path, *more: Fault) -> FaultStore:
    return FaultStore(open_store(f"file://{place / 'store'}"), [Fault(FaultKind.PERMISSION, "list", times=-1), *more])


def test_without_the_right_to_list_the_advice_says_what_it_knows(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = ("--remote", f"file://{place / 'store'}")
    both = ("--log-dir", place / "log", *alone)
    more: list[Fault] = []
    monkeypatch.setattr("tiered.program.tiers.open_remote", lambda *_: unlisted(place, *more))
    refused = cli("repair", "advice", *alone)
    assert refused.code == 12
    assert "only topics that are named, or that --log-dir holds" in refused.err
    for line in (both, ("t", *alone)):
        seen = cli("repair", "advice", *line)
        assert (seen.code, seen.out) == (3, b"nothing that could be looked at is lost\n")
        assert "the registry cannot be listed" in seen.err
    root_file(place).unlink()
    lost = cli("repair", "advice", "t", *alone, "--json")
    assert (lost.code, [one["key"][-5:] for one in lost.summary["lost"]]) == (13, ["/root"])
    assert len(lost.summary["not_looked_at"]) == 3
    more.append(Fault(FaultKind.PERMISSION, "get", "*/root", times=-1))
    seen = cli("repair", "advice", *both)
    assert (seen.code, "/root: " in seen.err) == (3, True)
    more.append(Fault(FaultKind.PERMISSION, "get", "topics/*", times=-1))
    assert cli("repair", "advice", *both).code == 12
    more.clear()
    (place / "store" / "topics" / "t.obj").unlink()
    gone = cli("repair", "advice", *both)
    assert (gone.code, gone.text.splitlines()[0][:9]) == (13, "topics/t:")
    assert cli("repair", "advice", "none", *alone).code == 10
