"""A file that all partitions of a log directory rest on is missing, empty, garbage or not to be read: each command says
which one it is and what to do, and goes on where nothing wrong can come of it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

import tiered
from tests.support.faulty_files import UnreadableFiles
from tests.support.given import move_start
from tests.unit.cli.conftest import Cli
from tiered.local.directory.log_directory import LocalLog
from tiered.model import TopicPartition

META, TOPICS = "meta.properties", "tiered-topics.json"
SHAPE = "a value in it has another type than this program writes"
POINTS, STARTS, MARKS = (f"{name}-offset-checkpoint" for name in ("recovery-point", "log-start", "replication"))
CLEANER = "cleaner-offset-checkpoint"
GARBAGE = b"\xff\x00?"

Refuse = Callable[[Path], object]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Twelve records, of which the first five were deleted: they are still in their segment."""
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", create=True)
        for number in range(12):
            topic.append(b"%d" % number)
    with LocalLog.open(tmp_path / "log") as local:
        move_start(local.partition(TopicPartition("t", 0)), 5)
    return tmp_path / "log"


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    def disk(path: Path) -> None:
        files = UnreadableFiles(path, number=errno.EACCES)
        for module in (
            "local.directory.log_directory",
            "local.directory.read_only_log",
            "admin",
        ):
            monkeypatch.setattr(f"tiered.{module}.PosixFiles", lambda: files)

    return disk


def hurt(path: Path, how: str, refuse: Refuse) -> None:
    if how == "missing":
        path.unlink(missing_ok=True)
    elif how == "denied":
        path.touch()
        refuse(path)
    else:
        path.write_bytes(b"" if how == "empty" else GARBAGE)


RECORDS = "\n".join(map(str, range(5, 12)))
ALL = "\n".join(map(str, range(12)))

# By file and damage: exit codes of status, check and cat, and what cat shows. A checkpoint of no byte has no
# entries, as a first start leaves it; one that is missing was never written.
EXPECTED = {
    (META, "missing"): (0, 0, 0, RECORDS),
    (META, "empty"): (0, 13, 0, RECORDS),
    (META, "garbage"): (0, 13, 0, RECORDS),
    (META, "denied"): (0, 12, 0, RECORDS),
    (TOPICS, "missing"): (0, 0, 0, RECORDS),
    (TOPICS, "empty"): (13, 13, 13, ""),
    (TOPICS, "garbage"): (13, 13, 13, ""),
    (TOPICS, "denied"): (12, 12, 12, ""),
    (POINTS, "missing"): (0, 0, 0, RECORDS),
    (POINTS, "empty"): (0, 0, 0, RECORDS),
    (POINTS, "garbage"): (0, 3, 0, RECORDS),
    (POINTS, "denied"): (0, 12, 0, RECORDS),
    (STARTS, "missing"): (0, 0, 0, ALL),
    (STARTS, "empty"): (0, 0, 0, ALL),
    (STARTS, "garbage"): (3, 3, 13, ""),
    (STARTS, "denied"): (3, 12, 12, ""),
    (MARKS, "missing"): (0, 0, 0, RECORDS),
    (MARKS, "empty"): (0, 0, 0, RECORDS),
    (MARKS, "garbage"): (0, 3, 0, RECORDS),
    (MARKS, "denied"): (0, 12, 0, RECORDS),
    (CLEANER, "missing"): (0, 0, 0, RECORDS),
    (CLEANER, "empty"): (0, 0, 0, RECORDS),
    (CLEANER, "garbage"): (0, 3, 0, RECORDS),
    (CLEANER, "denied"): (0, 12, 0, RECORDS),
}


@pytest.mark.parametrize(("name", "how"), EXPECTED)
def test_each_command_says_which_file_it_is(cli: Cli, directory: Path, refuse: Refuse, name: str, how: str) -> None:
    before = cli("status", "--log-dir", directory).text
    hurt(directory / name, how, refuse)
    at = ("--log-dir", directory)
    status, check, cat = cli("status", *at), cli("check", *at), cli("cat", "t", *at)
    found = (status.code, check.code, cat.code, cat.text.strip())
    assert found == EXPECTED[name, how]
    for seen in (status, check, cat):
        if seen.code in (12, 13):
            assert name in seen.text + seen.err
    if (cat.code, name) == (0, META) and how != "missing":
        assert (status.text, f"file_unreadable path={directory / name}" in cat.err) == (before, True)
    if how in ("garbage", "denied") and name == POINTS:
        assert (status.code, name in status.err) == (0, True)


@pytest.mark.parametrize(
    ("name", "way"), [(META, "another id"), (TOPICS, "topic set"), (STARTS, "the deleted records")]
)
def test_what_is_lost_without_it_is_said_and_the_way_on_is_one(cli: Cli, directory: Path, name: str, way: str) -> None:
    (directory / name).write_bytes(GARBAGE)
    answer = cli("append" if name == META else "cat", "t", "--log-dir", directory, stdin=b"12\n")
    text = " ".join((answer.text + answer.err).split())
    assert (answer.code, "put it back from a copy" in text, "move it away" in text, way in text) == (
        13,
        True,
        True,
        True,
    )
    (directory / name).unlink()
    if name == META:
        lost = cli("append", "t", "--log-dir", directory, stdin=b"12\n")
        assert (lost.code, f"{directory / META} is missing" in lost.err, "--create makes it" in lost.err) == (
            10,
            True,
            True,
        )
    assert cli("append", "t", "--create", "--log-dir", directory, stdin=b"12\n").code == 0
    records = RECORDS if name != STARTS else ALL
    assert cli("cat", "t", "--log-dir", directory).text.strip() == f"{records}\n12"
    assert cli("check", "--log-dir", directory).code == 0


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[]", SHAPE),
        ("null", SHAPE),
        ("{}", "'version' is missing"),
        ('{"version": 1, "topics": null}', SHAPE),
        ('{"version": 1, "topics": {"t": []}}', SHAPE),
        ('{"version": 1, "topics": {"t": {"topic_id": 3}}}', SHAPE),
        ('{"version": 1, "topics": {"t": {}}}', "'topic_id' is missing"),
    ],
)
def test_topics_of_another_shape_are_damage(cli: Cli, directory: Path, content: str, why: str) -> None:
    (directory / TOPICS).write_text(content)
    seen = cli("append", "t", "--log-dir", directory, stdin=b"12\n")
    assert (seen.code, seen.err.splitlines()[0]) == (13, f"error: {directory / TOPICS} cannot be read: {why}")
    assert "next: put it back from a copy" in seen.err


def test_a_brokers_log_is_read_to_its_end_whatever_is_noted_as_replicated(cli: Cli, directory: Path) -> None:
    (directory / TOPICS).unlink()
    for marks in (b"0\n1\nt 0 8\n", GARBAGE):
        (directory / MARKS).write_bytes(marks)
        assert cli("cat", "t", "--log-dir", directory).text.strip() == RECORDS


def test_a_file_of_a_newer_release_is_no_damage(cli: Cli, directory: Path) -> None:
    (directory / STARTS).write_text("1\n0\n")
    seen = cli("cat", "t", "--log-dir", directory)
    assert (seen.code, "upgrade" in seen.err, "move it away" in seen.err) == (2, True, False)
