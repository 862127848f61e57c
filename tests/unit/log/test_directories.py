"""A log over several directories, and topics that are deleted, through the facade."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiered
from tiered.cli.main import run
from tiered.errors import ConfigError, NotFoundError, UnknownTopicError


def test_several_paths_are_one_log(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(NotFoundError):
        tiered.open(paths, create=False)
    with tiered.open(paths) as log:
        topic = log.topic("t", partitions=4, create=True)
        for p in range(4):
            topic.append(b"%d" % p, partition=p)
        log.flush()
        assert [len(list(path.glob("t-*"))) for path in paths] == [2, 2]
    with tiered.open([str(path) for path in paths], create=False) as log:
        topic = log.topic("t", partitions=4)
        assert [record.value for p in range(4) for record in topic.read(p)] == [b"0", b"1", b"2", b"3"]
        assert len(log.positions()) == 4


def test_a_topic_is_deleted_and_made_again(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True).append(b"x")
        log.delete_topic("t")
        assert log.topics() == {}
        with pytest.raises(UnknownTopicError):
            log.delete_topic("t")
        assert log.topic("t", create=True).append(b"y").offset == 0
    with tiered.open(tmp_path / "tiered", remote=f"file://{tmp_path}/store") as log:
        log.topic("t", create=True)
        with pytest.raises(ConfigError, match="is tiered"):
            log.delete_topic("t")


def over_two(tmp_path: Path) -> tuple[list[int], int]:
    """A topic of three partitions over the directories x and y: those that lie in x, and the one in y."""
    with tiered.open([tmp_path / "x", tmp_path / "y"]) as log:
        topic = log.topic("t", partitions=3, create=True)
        for partition in range(3):
            topic.append(b"%d" % partition, partition=partition)
    here = sorted(int(path.name[2:]) for path in (tmp_path / "x").glob("t-*"))
    (away,) = {0, 1, 2} - set(here)
    return here, away


def test_a_reader_of_one_directory_says_that_a_partition_lies_in_another(tmp_path: Path) -> None:
    here, away = over_two(tmp_path)
    with tiered.open_reader(log_dir=tmp_path / "x") as reader:
        reads = reader.topic("t")
        assert [record.value for each in here for record in reads.read(each)] == [b"%d" % each for each in here]
        for look in (
            lambda: list(reads.read(away)),
            lambda: list(reads.read()),
            lambda: list(reader.find("t", key=b"k")),
            lambda: reader.to_arrow("t"),
            reads.end_offsets,
        ):
            with pytest.raises(UnknownTopicError, match=f"holds no partition t-{away}"):
                look()
    with tiered.open_reader(log_dir=tmp_path / "y") as reader:
        assert [record.value for record in reader.topic("t").read(away)] == [b"%d" % away]


def test_commands_over_one_directory_tell_of_each_partition_that_lies_in_another(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here, away = over_two(tmp_path)
    shown = "".join(f"{each}\n" for each in here)
    place = ["--log-dir", str(tmp_path / "x")]
    for more in ((), ("--last", "3")):
        assert run(["cat", *more, f"t:{away}", *place]) == 10
        assert capfd.readouterr().out == ""
        assert run(["cat", *more, f"t:{here[1]}", *place]) == 0
        assert capfd.readouterr().out == f"{here[1]}\n"
        assert run(["cat", *more, "t", *place]) == 10
        seen = capfd.readouterr()
        assert (seen.out, f"holds no partition t-{away} " in seen.err) == (shown, True)
        assert run(["cat", *more, "t", *place, "--json"]) == 10
        summary = json.loads(capfd.readouterr().out.splitlines()[-1])
        assert (summary["records"], summary.get("complete", False), len(summary["warnings"])) == (2, False, 1)
    place += ["--at", "1970-01-01"]
    assert run(["topic", "show", f"t:{away}", *place]) == 10
    capfd.readouterr()
    assert run(["topic", "show", "t", *place, "--json"]) == 10
    shown = json.loads(capfd.readouterr().out.splitlines()[-1])["partitions"]
    assert [(each["partition"], each["offset_at"]) for each in shown] == [
        (each, 0 if each in here else None) for each in range(3)
    ]
