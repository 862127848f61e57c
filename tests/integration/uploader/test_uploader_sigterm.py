"""SIGTERM right after an append: the daemon sends what it has not seen yet, or owns up to it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.integration.uploader.daemons import Daemon
from tests.integration.uploader.logs import SMALL, T0, append, judge, make_log, open_log, read_root
from tiered.local.directory.log_directory import LocalLog
from tiered.store.location import open_store

RARELY = ("--scan", "1h", "--http", "off")


class Roller:
    """A writer that only looks whether it is asked to roll."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self._log.tick()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize("drain", ["all", "sealed"])
def test_an_append_that_no_scan_has_seen_is_drained(tmp_path: Path, drain: str) -> None:
    directory, url = tmp_path / "log", f"file://{tmp_path / 'store'}"
    make_log(directory, records=10, partitions=1)
    with Daemon("--log-dir", str(directory), "--remote", url, *RARELY, "--drain", drain) as daemon:
        daemon.wait_for("claimed")
        with open_log(directory) as log:
            for number in range(90):
                append(log, T0, number)
            if drain == "sealed":
                log.partition(T0).roll()
        assert daemon.stop() == 0, daemon.talk
    assert judge(url, directory, [T0]) >= 4
    root = read_root(open_store(url), directory, T0)
    assert root is not None
    assert root.next_offset == 100


def test_the_same_beside_a_writer_that_lives(tmp_path: Path) -> None:
    directory, url = tmp_path / "log", f"file://{tmp_path / 'store'}"
    log = open_log(directory)
    log.create_topic("t", 1, SMALL)
    append(log, T0, 0)
    writer = Roller(log)
    try:
        with Daemon("--log-dir", str(directory), "--remote", url, *RARELY) as daemon:
            daemon.wait_for("claimed")
            for number in range(90):
                append(log, T0, number)
            assert daemon.stop() == 0, daemon.talk
        root = read_root(open_store(url), directory, T0)
        assert root is not None
        assert root.next_offset == log.partition(T0).positions().end_offset == 91
    finally:
        writer.close()
        log.close()


def test_a_signal_before_the_first_scan_is_not_lost(tmp_path: Path) -> None:
    directory, url = tmp_path / "log", f"file://{tmp_path / 'store'}"
    make_log(directory, records=60, partitions=1)
    with Daemon("--log-dir", str(directory), "--remote", url, *RARELY) as daemon:
        daemon.wait_for("started")
        assert daemon.stop() == 0, daemon.talk
    assert judge(url, directory, [T0]) == 3
