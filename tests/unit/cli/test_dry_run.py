"""``--dry-run``: each command that changes something shows its plan, and changes no byte of the disk or the bucket."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tiered.cli.main import run

BOTH = "--log-dir {d} --remote {b}"
CHANGES = [
    f"append t {BOTH}",
    f"topic create new --partitions 3 --set segment.ms=1h {BOTH}",
    "topic create new --remote {b}",
    f"topic set t retention.ms=1d --partitions 4 {BOTH}",
    "topic delete t --remote {b} --force",
    "topic delete t --log-dir {d} --local-only",
    "topic transfer t spark --remote {b}",
    "maintain --remote {b} --orphans",
    "maintain t:0 --start-offset 2 --only retention --remote {b}",
    "snapshot create second --remote {b}",
    "snapshot delete first --remote {b}",
    "restore --remote {b} --log-dir {x}/new",
    "repair --remote {b}",
    "erase t --key k --remote {b}",
    "disk drop t --log-dir {d} --remote {b}",
    "disk move plain:0 {x}/other --log-dir {d}",
    "disk truncate plain:0 1 --log-dir {d}",
    "doctor --write-probe --remote {b}",
    "export t {x}/t.csv --remote {b}",
]


def content(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("dry")
    with tiered.open(base / "log", f"file://{base / 'bucket'}") as log:
        topic = log.topic("t", create=True, config={"cleanup.policy": "compact"})
        for value in (b"1", b"2", b"3", b"4"):
            topic.append(value, key=b"k")
            log.sync(timeout=60)
    with tiered.open(base / "log") as log:
        log.topic("plain", create=True).append_many([b"1", b"2"])
    assert run(["snapshot", "create", "first", "--remote", f"file://{base / 'bucket'}"]) == 0
    return base


@pytest.mark.parametrize("line", CHANGES)
def test_a_plan_changes_nothing(cli: Cli, folder: Path, line: str) -> None:
    names = {"d": str(folder / "log"), "b": f"file://{folder / 'bucket'}", "x": str(folder)}
    before = content(folder)
    words = [word.format(**names) for word in line.split()]
    for at in (0, len(words)):  # a global option stands anywhere
        seen = cli(*words[:at], "--dry-run", *words[at:], "--yes", stdin=b"5\n")
        assert (seen.code, content(folder) == before) == (0, True), seen.err
        assert seen.text + seen.err
