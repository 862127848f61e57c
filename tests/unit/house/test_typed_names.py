"""Checkers see the public names, and that a misspelt one is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import tiered
import uploader
from tiered import arrow

tiered.opne("x")
uploader.Uplaoder()
arrow.ArrowDecodre
tiered.admin.chekc("data/log")
tiered.open("x", remote="file:///y", uploader=tiered.uploader.Uploader())
reveal_type(tiered.uploader.Uploader())
"""


def test_a_misspelt_name_is_an_error_and_the_uploader_has_a_type(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    errors = [line.partition("error: ")[2] for line in done.stdout.splitlines() if "error: " in line]
    assert [error.partition(";")[0].split("  [")[0] for error in errors] == [
        'Module has no attribute "opne"',
        'Module has no attribute "Uplaoder"',
        'Module has no attribute "ArrowDecodre"',
        'Module has no attribute "chekc"',
    ], done.stdout
    assert 'Revealed type is "uploader.component.Uploader"' in done.stdout
