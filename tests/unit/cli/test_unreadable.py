"""One file or folder that the disk, or its owner and mode, does not let anybody read: each command says so, goes on."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import tiered
from tests.support.admin import check
from tests.support.faulty_files import UnreadableFiles
from tests.unit.cli.conftest import Cli, Result
from tiered.check.check import CheckOptions, CheckReport
from tiered.check.findings import Findings, Severity
from tiered.local.directory.figures import read_metrics
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.files import PosixFiles

FIRST, LAST = f"{0:020d}", f"{22:020d}"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Topics a and b of two partitions, three segments in each."""
    with tiered.open(tmp_path / "log") as log:
        for name in ("a", "b"):
            topic = log.topic(name, partitions=2, create=True, config={"segment.bytes": 2000})
            for number in range(60):
                topic.append(b"x" * 100, partition=number % 2)
    return tmp_path / "log"


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> type[UnreadableFiles]:
    """Every program's disk is the one whose paths are named."""

    class Disk(UnreadableFiles):
        def __init__(self, *paths: Path, number: int = errno.EACCES) -> None:
            super().__init__(*paths, number=number)
            for module in (
                "local.directory.log_directory",
                "local.directory.read_only_log",
                "inspect.run",
                "admin",
            ):
                monkeypatch.setattr(f"tiered.{module}.PosixFiles", lambda: self)

    return Disk


def checked(directory: Path, files: PosixFiles) -> CheckReport:
    return check(directory, None, CheckOptions(), files=files)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize(
    ("name", "segments"),
    [
        (f"a-0/{FIRST}.log", 11),
        (f"a-0/{LAST}.log", 11),
        (f"a-0/{FIRST}.index", 12),
        (f"a-0/{FIRST}.timeindex", 12),
        (f"a-0/{11:020d}.snapshot", 12),
        (f"a-0/{30:020d}.snapshot", 12),
        (f"a-0/{FIRST}.seal", 12),
        ("a-0/partition.metadata", 12),
        ("a-0/leader-epoch-checkpoint", 12),
        ("a-0", 9),
        ("tiered-topics.json", 12),
        ("meta.properties", 12),
        ("recovery-point-offset-checkpoint", 12),
        ("log-start-offset-checkpoint", 12),
        ("cleaner-offset-checkpoint", 12),
        ("replication-offset-checkpoint", 12),
    ],
)
def test_check_names_it_and_looks_at_all_else(directory: Path, name: str, segments: int, number: int) -> None:
    report = checked(directory, UnreadableFiles(directory / name, number=number))
    (found,) = report.findings
    assert (found.severity, found.code) == (Severity.ERROR, "unreadable")
    assert f"{directory / name}: {'Permission denied' if number == errno.EACCES else 'Input/output error'}" in str(
        found
    )
    assert (found.topic, found.partition) == (("a", 0) if name.startswith("a-0") else ("", -1))
    code = 12 if number == errno.EACCES else 13
    assert (report.exit_code, report.partitions, report.local_segments) == (code, 4, segments)


@pytest.mark.parametrize("name", ["tiered-offset-checkpoint", "tiered-claims.json"])
def test_check_names_what_a_bucket_has_left(directory: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "bucket").mkdir()
    with tiered.open(directory, remote=f"file://{tmp_path / 'bucket'}") as log:
        log.topic("a")
        log.sync(timeout=60)
    (found,) = checked(directory, UnreadableFiles(directory / name)).findings
    assert (found.code, name in found.message) == ("unreadable", True)


def test_a_folder_that_lists_names_and_nothing_else(directory: Path) -> None:
    """``chmod 400`` leaves names, and no state of any file."""

    class Named(UnreadableFiles):
        def names(self, path: Path) -> list[str]:
            return PosixFiles.names(self, path)

    report = checked(directory, Named(directory / "a-0"))
    assert {(each.code, each.topic, each.partition) for each in report.findings} == {("unreadable", "a", 0)}
    assert (report.exit_code, report.local_segments) == (12, 9)


def test_what_follows_an_unreadable_segment_is_no_gap_and_what_is_missing_still_is(directory: Path) -> None:
    (directory / f"a-0/{11:020d}.log").unlink()
    report = checked(directory, UnreadableFiles(directory / f"b-0/{11:020d}.log"))
    codes = sorted((each.topic, each.code) for each in report.findings if each.severity is Severity.ERROR)
    assert codes == [("a", "log_gap"), ("b", "unreadable")]
    assert (report.errors, report.denied, report.exit_code) == (2, 1, 13)


LAST_LOG = f"a-0/{LAST}.log"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize(
    "name", [LAST_LOG, f"a-0/{LAST}.index", "a-0/partition.metadata", "a-0/leader-epoch-checkpoint"]
)
def test_every_command_says_so_and_goes_on(
    cli: Cli, directory: Path, refuse: type[UnreadableFiles], name: str, number: int
) -> None:
    refuse(directory / name, number=number)
    at, code = ("--log-dir", directory), 12 if number == errno.EACCES else 1
    text = f"{directory / name}: {'Permission denied' if code == 12 else 'Input/output error'}"
    status = cli("status", *at)
    lines = status.text.splitlines()
    assert (status.code, lines[1]) == (3, "a-0   out of service")
    assert lines[0].startswith("NOT SAFE: something on the disk cannot be read, ")
    assert [line[:10] for line in lines if " end 30 " in line] == ["a-1   end ", "b-0   end ", "b-1   end "]
    assert [line for line in lines if line.startswith("problem: a-0: ") and text in line]
    listed = cli("topic", "list", *at)
    assert (listed.code, [line.split()[:2] for line in listed.text.splitlines()[1:]]) == (0, [["a", "2"], ["b", "2"]])
    began = ("--at", "1970-01-01")
    offsets = cli("topic", "show", "a", *at, *began, "--json")
    assert (offsets.code, text in offsets.err) == (code, True)
    ends = [(each["partition"], each["offset_at"], each["end_offset"]) for each in offsets.summary["partitions"]]
    assert ends[1] == (1, 0, 30)
    assert cli("topic", "show", "a:0", *at, *began).code == code
    assert (cli("topic", "show", "a:1", *at, *began).code, cli("topic", "show", "b", *at, *began).code) == (0, 0)
    segments = cli("topic", "show", "a", "--segments", *at, "--json")
    assert (segments.code, text in segments.err) == (code, True)
    assert [(one["partition"], one["base_offset"]) for one in segments.summary["segments"]] == [
        (1, 0),
        (1, 11),
        (1, 22),
    ]
    told = cli("topic", "show", "a", *at)
    assert (told.code, "problem: a-0: cannot " in told.text, text in told.text) == (code, True, True)
    assert cli("topic", "show", "b", *at).code == 0
    assert cli("cat", "b", *at).out.count(b"\n") == 60
    assert cli("check", *at).code == (12 if code == 12 else 13)
    checked = cli("check", *at, "--json")
    found = next(each for each in checked.messages if each["message_type"] == "finding")
    assert (found["code"], found["denied"], checked.summary["remedies"]) == ("unreadable", code == 12, [])


def test_the_part_of_the_bucket_is_told(
    cli: Cli, directory: Path, tmp_path: Path, refuse: type[UnreadableFiles]
) -> None:
    (tmp_path / "bucket").mkdir()
    url = f"file://{tmp_path / 'bucket'}"
    with tiered.open(directory, remote=url) as log:
        log.topic("a")
        log.sync(timeout=60)
    refuse(max((directory / "a-0").glob("*.log")))
    seen: Result = cli("status", "--log-dir", directory, "--remote", url)
    lines = seen.text.splitlines()
    assert lines[0].startswith("NOT SAFE: something on the disk cannot be read: a-0: ")
    assert (seen.code, lines[2]) == (3, "  local    out of service")
    assert lines[1].startswith("a-0   end 30   uploaded 30 ")
    assert lines[3].startswith("  remote   ")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_dump_goes_on(cli: Cli, directory: Path, refuse: type[UnreadableFiles], number: int) -> None:
    refuse(directory / "a-0", number=number)
    code = 12 if number == errno.EACCES else 1
    for names in ((directory,), (directory / "a-0", directory / "a-1", directory / "b-0", directory / "b-1")):
        seen = cli("inspect", *names)
        assert (seen.code, seen.text.count("\nbatch ")) == (code, 90), names
        assert f"warning: cannot list {directory / 'a-0'}" in seen.err
    alone = cli("inspect", directory / "a-0")
    assert (alone.code, alone.out, "warning" in alone.err) == (code, b"", False)


def test_settings_that_cannot_be_read_are_not_to_be_made_anew(
    cli: Cli, directory: Path, refuse: type[UnreadableFiles]
) -> None:
    refuse(directory / "tiered-topics.json")
    seen = cli("status", "--log-dir", directory)
    assert (seen.code, "create the topics again" in seen.err, "owner and mode" in seen.err) == (12, False, True)


def test_figures_of_a_log_that_is_read_count_it(directory: Path) -> None:
    with LogView.open(directory, files=UnreadableFiles(directory / LAST_LOG)) as log:
        found = read_metrics(log, 0)
    values = {each.name: each.value for each in found}
    ends = [each.labels for each in found if each.name.endswith("end_offset")]
    assert [value for name, value in values.items() if "out_of_service" in name] == [1]
    assert all(dict(labels)["topic"] + dict(labels)["partition"] != "a0" for labels in ends)


def test_what_may_not_be_read_hides_nothing_that_cannot_be_read() -> None:
    found = Findings("log", limit=2)
    for _ in range(5):
        found.add(Severity.ERROR, "unreadable", "permission denied", denied=True)
    found.error("unreadable", "input/output error")
    assert [(one.message, one.denied) for one in found.items] == [
        ("permission denied", True),
        ("permission denied", True),
        ("more of the same kind are not listed", True),
        ("input/output error", False),
    ]
