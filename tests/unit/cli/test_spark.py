"""``tiered spark`` hands its line to a process of its own, and ends as that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Cli
from tiered.cli import spark

CHILD = """
import os, signal, sys
def heard(number, _frame):
    print("heard", number, flush=True)
    sys.exit(7)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, heard)
print(os.getpid(), flush=True)
signal.pause()
"""


def parent_of(child: Path) -> subprocess.Popen[str]:
    """Start a parent whose child is this file instead of the program on Spark."""
    text = (
        "import subprocess, sys\n"
        "from tiered.cli import spark\n"
        "popen = subprocess.Popen\n"
        f"spark.subprocess.Popen = lambda line, **how: popen([line[0], {str(child)!r}], **how)\n"
        "sys.exit(spark.start(['check']))\n"
    )
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)


def test_what_stood_before_the_verb_goes_behind_it(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def start(arguments: list[str]) -> int:
        seen.append(arguments)
        return 13

    monkeypatch.setattr(spark, "start", start)
    line = (
        "--json",
        "-v",
        "--yes",
        "--remote",
        "s3://b/p",
        "spark",
        "--progress",
        "none",
        "check",
        "t",
        "--task-bytes",
        "1KiB",
    )
    assert cli(*line).code == 13
    assert seen == [
        ["check", "t", "--task-bytes", "1KiB", "--remote", "s3://b/p", "--progress", "none", "--json", "--yes", "-v"]
    ]
    assert cli("spark", "chek").code == 2
    assert "did you mean check?" in cli("spark", "chek").err
    assert "maintain" in cli("spark", "--help").text


def test_the_exit_code_is_the_childs(cli: Cli) -> None:
    assert cli("spark", "check").code == 2
    assert cli("spark", "check", "--help").code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_handed_on_and_the_child_is_waited_for(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "tiered_spark.py").write_text(CHILD)
    with parent_of(tmp_path / "tiered_spark.py") as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert os.getpgid(child) == child  # a terminal's interrupt reaches it through the parent alone
        parent.send_signal(number)
        assert parent.stdout.read() == f"heard {int(number)}\n"
    assert parent.returncode == 7


def test_a_child_that_was_killed_is_128_and_the_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr(spark.subprocess, "Popen", lambda line, **how: popen([line[0], "-c", kill], **how))
    assert spark.start(["check"]) == 128 + 9


def test_the_child_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    """Its end of the pipe is all that the child has of the parent."""
    (tmp_path / "tiered_spark.py").write_text(
        "import os, runpy, sys, threading\n"
        "found = runpy.run_module('tiered.spark.__main__')\n"
        "print(os.getpid(), flush=True)\n"
        "found['_end_with_parent'](int(os.environ[found['PARENT_FD']]))\n"
    )
    with parent_of(tmp_path / "tiered_spark.py") as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) != parent.pid
        parent.kill()
        assert parent.stdout.read() == ""  # its end comes when the child is gone, too
    assert parent.returncode == -signal.SIGKILL
