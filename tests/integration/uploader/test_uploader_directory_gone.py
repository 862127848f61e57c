"""A log directory that is removed under a daemon: SIGTERM ends it with an error, and nothing is made again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tiered
from tests.integration.uploader.daemons import Daemon, call


def take_away(path: Path) -> None:
    """Removes a directory in which the daemon may write a file meanwhile."""
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_the_log_directory(tmp_path: Path, committed: bool, replaced: bool) -> None:
    directory, url = tmp_path / "log", f"file://{tmp_path / 'store'}"
    with tiered.open(directory, remote=url) as log:
        log.topic("t", create=True).append(b"1")
        if committed:
            log.sync()
    with Daemon("--log-dir", str(directory), "--remote", url, "--scan", "100ms") as daemon:
        daemon.wait_for("claimed")
        take_away(directory)
        if replaced:
            with tiered.open(directory) as log:
                log.topic("t", create=True).append(b"another")
        assert daemon.stop() == 75
    assert "the directory was removed while it was open" in "".join(daemon.talk) or replaced
    if replaced:
        assert {path.name for path in directory.iterdir() if path.name.startswith("tiered-")} == {
            "tiered-tasks.json",
            "tiered-topics.json",
        }
    else:
        assert not directory.exists()


def test_a_partition_whose_records_no_bucket_has(tmp_path: Path) -> None:
    directory, url = tmp_path / "log", f"file://{tmp_path / 'store'}"
    with tiered.open(directory, remote=url) as log:
        log.topic("t", create=True).append(b"1")
    place = ("--log-dir", str(directory), "--remote", url)
    with Daemon(*place, "--scan", "100ms") as daemon:
        daemon.wait_for("claimed")
        take_away(directory / "t-0")
        assert daemon.stop() == 13
    assert "t-0 is gone or has no .log file; it held records up to offset 1" in daemon.talk[-1]
    assert call("sync", *place).returncode == 13
    assert not (directory / "t-0").exists()
