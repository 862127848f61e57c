"""Colour marks problems on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

RED = "\x1b[31merror: \x1b[0mno log was named"


@pytest.mark.parametrize(
    ("arguments", "variable", "shown"),
    [
        ([], {}, RED),
        (["--json"], {}, RED),  # stdout has the JSON
        ([], {"NO_COLOR": "1"}, "error: no log was named"),
        ([], {"TERM": "dumb"}, "error: no log was named"),
    ],
)
def test_an_error_on_a_terminal(arguments: list[str], variable: dict[str, str], shown: str) -> None:
    master, slave = pty.openpty()
    environ = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    command = [sys.executable, "-m", "tiered", "status", *arguments]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=slave,
        text=True,
        check=False,
        env=environ | {"TERM": "xterm"} | variable,
    )
    os.close(slave)
    assert os.read(master, 10_000).decode().startswith(shown)
    os.close(master)
    assert "\x1b" not in done.stdout


def test_an_error_in_a_pipe_is_plain() -> None:
    command = [sys.executable, "-m", "tiered", "status"]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr.startswith("error: no log was")
