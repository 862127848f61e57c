"""What ``sync`` and ``tiered status`` say and how they end: beside a daemon, when fenced, when called wrongly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.integration.uploader.daemons import Daemon, call, status
from tests.integration.uploader.logs import T0, append, judge, make_log, open_log, read_root
from tiered.clock import SystemClock, SystemIds
from tiered.engine.disk import LogDirectory
from tiered.engine.wait import follow
from tiered.store.location import open_store


def test_sync_says_in_one_line_what_it_committed(tmp_path: Path) -> None:
    directory, url = tmp_path / "log", f"file://{tmp_path / 'store'}"
    make_log(directory, records=2_000)
    place = ("--log-dir", str(directory), "--remote", url)
    planned = call("sync", *place, "--dry-run")
    assert (planned.returncode, planned.stderr) == (0, "dry run: would upload 2,000 offsets\n")
    assert [line.split() for line in planned.stdout.splitlines()[1:]] == [
        ["t-0", "0", "1,000", "1,000"],
        ["t-1", "0", "1,000", "1,000"],
    ]
    assert not (tmp_path / "store").exists()
    done = call("sync", *place)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "2,000 records committed in t-0, t-1\n")
    again = call("sync", *place)
    noted = "nothing to commit: this disk notes that the bucket holds all; `tiered check` asks the bucket\n"
    assert (again.returncode, again.stderr) == (0, noted)
    machine = call("sync", *place, "--log-format", "json")
    assert [json.loads(line)["event"] for line in machine.stderr.splitlines()][-1] == "ended"


def test_a_sync_to_which_nothing_is_left_ends_well_beside_a_store_that_is_down(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    make_log(directory, records=10, partitions=1)
    assert call("sync", "--log-dir", str(directory), "--remote", f"file://{tmp_path / 'store'}").returncode == 0
    place = ("--log-dir", str(directory), "--remote", "s3://bucket/log?endpoint=http://127.0.0.1:9")
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    down = call("sync", *place, "--timeout", "5s", **keys)
    assert (down.returncode, "nothing to commit" in down.stderr) == (0, True)
    with open_log(directory) as log:
        append(log, T0, 10)
    assert call("sync", *place, "--timeout", "1s", **keys).returncode == 75


@pytest.mark.parametrize("wait", ["--wait", "--no-wait"])
def test_sync_waits_for_a_running_daemon(tmp_path: Path, wait: str) -> None:
    directory, url = tmp_path / "log", f"file://{tmp_path / 'store'}"
    make_log(directory, records=10, partitions=1)
    place = ("--log-dir", str(directory), "--remote", url)
    with Daemon(*place, "--http", "off", "--scan", "100ms") as daemon:
        daemon.wait_for("claimed")
        with open_log(directory) as log:
            for number in range(90):
                append(log, T0, number)
            log.partition(T0).roll()
        done = call("sync", wait, *place, "--timeout", "30s")
        assert done.returncode == 0, done.stderr
        assert f"process {daemon.process.pid}" in done.stderr
        root = read_root(open_store(url), directory, T0)
        assert root is not None
        assert root.next_offset == 100
        assert daemon.stop() == 0
    assert judge(url, directory, [T0]) >= 4


def test_an_uploader_that_goes_is_not_waited_for(tmp_path: Path) -> None:
    make_log(tmp_path / "log", records=10, partitions=1)
    clock = SystemClock()
    directory = LogDirectory(tmp_path / "log", clock=clock, ids=SystemIds())
    assert follow(directory, clock=clock, timeout_ms=None) is None


def fence(tmp_path: Path) -> tuple[str, ...]:
    """A copy of a log that went on elsewhere."""
    directory, url = tmp_path / "log", f"file://{tmp_path / 'store'}"
    make_log(directory, records=20)
    assert call("sync", "--log-dir", str(directory), "--remote", url).returncode == 0
    shutil.copytree(directory, tmp_path / "copy")
    for one in (directory, tmp_path / "copy"):
        with open_log(one) as log:
            append(log, T0, 1)
    assert call("sync", "--log-dir", str(directory), "--remote", url).returncode == 0
    return "--log-dir", str(tmp_path / "copy"), "--remote", url


def test_a_fenced_partition_is_told_once_and_by_the_status_too(tmp_path: Path) -> None:
    place = fence(tmp_path)
    fenced = call("sync", *place)
    assert fenced.returncode == 11
    assert fenced.stderr.count("it is a copy") == 1
    error, hint = fenced.stderr.splitlines()
    assert error.startswith("error: t-0 from offset 10 is only on this disk: ")
    assert hint.startswith("  next: ")
    first = "NOT SAFE: another volume owns the partition"
    code, lines, told = status(*place)
    assert (code, lines[0].startswith(first), told["reason"]) == (3, True, "fenced")
    with Daemon(*place) as daemon:
        daemon.wait_for("failed")
        code, lines, told = status(*place)
        assert (code, lines[0].startswith(first), told["reason"]) == (3, True, "fenced")


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (("sync", "--uplods", "3"), "error: no such option", "did you mean --uploads?"),
        (("snyc",), "error: there is no command tiered-uploader snyc", "did you mean sync?"),
        (("sync", "surplus"), "error: got unexpected extra argument (surplus)", "see tiered-uploader sync --help"),
        (("run", "--uploads", "x"), "error: --uploads: 'x' is not a whole number of at least 1", ""),
        (("sync", "--timeout", "-5s"), "error: --timeout: '-5s' is less than 0", "for example 60s"),
    ],
)
def test_a_wrong_command_line_is_told_as_everywhere(arguments: tuple[str, ...], error: str, hint: str) -> None:
    wrong = call(*arguments)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    lines = wrong.stderr.splitlines()
    assert lines[0].startswith(error)
    assert (lines[1] if len(lines) > 1 else "").startswith(f"  next: {hint}" if hint else "")
