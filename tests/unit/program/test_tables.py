"""Tables fit a terminal without a broken word, and are one line a row everywhere else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import tiered
from tests.unit.cli.conftest import Cli, Stream
from tiered.program.output import Problem, columns, fitted

HEADER = ["partition", "from", "state", "why"]
WHY = "100% are dirty, 50% may be, and the newest of them is from yesterday"
ROWS = [["flights-0", 4711, Problem("damaged"), WHY], ["a-topic-of-a-long-name-0", 1_000_000, "kept", "-"]]


def use_terminal(monkeypatch: pytest.MonkeyPatch, room: int, *, colours: bool = False) -> None:
    monkeypatch.setattr(sys, "stdout", Stream(terminal=True))
    monkeypatch.setenv("NO_COLOR", "" if colours else "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(room))


def test_a_pipe_has_one_line_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys, "stdout", Stream())
    assert columns(HEADER, ROWS) == [
        "partition                      from  state    why",
        f"flights-0                     4,711  damaged  {WHY}",
        "a-topic-of-a-long-name-0  1,000,000  kept     -",
    ]


def test_columns_that_do_not_fit_stand_below_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch, 60)
    assert columns(HEADER, ROWS) == [
        "partition                      from  state",
        "    why",
        "flights-0                     4,711  damaged",
        "    100% are dirty, 50% may be, and the newest of them is",
        "    from yesterday",
        "a-topic-of-a-long-name-0  1,000,000  kept",
        "    -",
    ]
    use_terminal(monkeypatch, 200)
    assert len(columns(HEADER, ROWS)) == 3


@pytest.mark.parametrize("room", [1, 5, 20, 40, 61, 80])
def test_no_word_is_broken(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    use_terminal(monkeypatch, room)
    words = " ".join(columns(HEADER, ROWS)).split()
    first = [*HEADER, "flights-0", "4,711", "damaged", *WHY.split()]
    assert words == [*first, "a-topic-of-a-long-name-0", "1,000,000", "kept", "-"]
    assert all(len(line) <= room or " " not in line.strip() for line in columns(HEADER, ROWS))
    assert " ".join(fitted([f"  {WHY}", "short"])).split() == [*WHY.split(), "short"]


def test_a_problem_has_a_colour_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch, 200, colours=True)
    assert columns(HEADER, ROWS)[1] == f"flights-0                     4,711  \x1b[31mdamaged\x1b[0m  {WHY}"
    assert [line for line in columns(HEADER, ROWS) if "\x1b" in line] == [columns(HEADER, ROWS)[1]]
    monkeypatch.setattr(sys, "stdout", Stream())
    assert "\x1b" not in "".join(columns(HEADER, ROWS))


@pytest.mark.parametrize(
    "command",
    [
        "topic list",
        "topic show t --at 1970-01-01",
        "topic show t --segments",
        "status",
        "snapshot list",
        "maintain --dry-run",
    ],
)
def test_a_command_on_a_terminal_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    url = f"file://{tmp_path}/bucket"
    with tiered.open(tmp_path / "log", url) as log:
        topic = log.topic("t", create=True, config={"cleanup.policy": "compact"})
        for value in (b"v", b"w"):
            topic.append(value, key=b"k")
            log.sync(timeout=60)
    assert cli("snapshot", "create", "before-the-release-of-a-long-name", "--remote", url).code == 0
    wide = cli(*command.split(), "--remote", url)
    narrow = cli(*command.split(), "--remote", url, terminal=True)
    assert narrow.code == wide.code
    assert [line for line in narrow.text.splitlines() if len(line) > 80 and " " in line.strip()] == []
    whole = {word for word in wide.text.split() if ":" not in word and not word.endswith("s")}  # but times, and ages
    assert whole <= set(narrow.text.split())
    plain = cli(*command.split(), "--remote", url, "--json", terminal=True)
    assert all(json.loads(line) for line in plain.text.splitlines())
