"""What the command line says of a bucket that lost something, or is another one."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tiered.errors import FencedError


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
    before = cli("cat", "t", *alone)
    root_file(place).unlink()
    for line, code in (
        (("cat", "t"), 10),
        (("status",), 13),
        (("check",), 13),
        (("topic", "show", "t", "--segments"), 10),
    ):
        seen = cli(*line, *both)
        assert seen.code == code, line
        assert "offset 40 committed in it" in seen.text + seen.err, line
    for line, code in ((("cat", "t"), 13), (("status",), 13), (("check",), 13), (("topic", "show", "t"), 13)):
        seen = cli(*line, *alone)
        assert seen.code == code, line
        assert "made with its topic" in seen.text + seen.err, line
    assert cli("repair", "t:0", *alone).code == 2  # the question has no answer here
    assert cli("repair", "t:0", *alone, "--yes").code == 0
    assert cli("cat", "t", *alone) == before
    assert cli("check", *alone, "--read-data").code == 0
    with tiered.open(place / "log", f"file://{place / 'store'}") as log:
        log.topic("t").append(b"only here")
        with pytest.raises(FencedError):
            log.sync(timeout=30)
    assert cli("repair", "rejoin", "t:0", "--log-dir", place / "log", "--yes").code == 0
    with tiered.open(place / "log", f"file://{place / 'store'}") as log:
        assert log.topic("t").append(b"more").offset == 40
        log.sync(timeout=30)


def test_a_damaged_root_names_its_repair(cli: Cli, place: Path) -> None:
    data = root_file(place).read_bytes()
    root_file(place).write_bytes(data[:120] + bytes([data[120] ^ 1]) + data[121:])
    seen = cli("cat", "t", "--remote", f"file://{place / 'store'}")
    assert (seen.code, "next: `tiered repair TOPIC --dry-run` shows its repair" in seen.err) == (13, True)


def test_nothing_is_done_under_an_older_root_that_was_put_back(cli: Cli, place: Path) -> None:
    """A disk that is gone was all that had seen a newer one; a copy proves it."""
    alone = ("--remote", f"file://{place / 'store'}")
    older = root_file(place).read_bytes()
    assert cli("maintain", "t:0", "--start-offset", 10, *alone, "--yes").code == 0
    assert cli("maintain", "t:0", "--start-offset", 20, *alone, "--yes").code == 0
    before = cli("cat", "t", *alone)
    root_file(place).write_bytes(older)
    checked = cli("check", *alone)
    assert (checked.code, "`hist/` has a copy of version " in checked.text) == (13, True)
    for line in (("maintain", "--only", "collect", "--orphans"), ("maintain", "t:0", "--start-offset", 30)):
        refused = cli(*line, *alone, "--yes")
        assert (refused.code, "`hist/` has a copy of version" in refused.err) == (13, True)
    assert cli("repair", "t:0", *alone, "--yes").code == 0
    assert cli("cat", "t", *alone).text.endswith(before.text)
    assert cli("check", *alone, "--read-data").code == 0


def test_another_prefix(cli: Cli, place: Path) -> None:
    (place / "other").mkdir()
    both = ("--log-dir", place / "log", "--remote", f"file://{place / 'other'}")
    for line, code in ((("cat", "t"), 10), (("status",), 13)):
        seen = cli(*line, *both)
        assert (seen.code, seen.out.startswith(b"0")) == (code, False), line
        assert "offset 40 committed" in seen.text + seen.err, line


def test_a_folder_that_is_no_store(cli: Cli, place: Path) -> None:
    for line in (("cat", "t"), ("status",), ("check",), ("topic", "list"), ("repair", "t")):
        seen = cli(*line, "--remote", f"file://{place}")
        assert (seen.code, "is not a store" in seen.err) == (10, True), line
