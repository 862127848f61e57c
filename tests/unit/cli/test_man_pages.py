"""A man page for each command, with all options of its help."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.pages import ROOT

MADE: dict[str, str] = runpy.run_path(str(ROOT / "scripts" / "man_pages.py"))["pages"]()


def test_each_command_and_option_has_its_place() -> None:
    assert {"tiered.1", "tiered-uploader.1", "tiered-uploader-run.1", "tiered-repair-rejoin.1"} <= set(MADE)
    text = MADE["tiered-check.1"]
    assert "tiered\\-check \\- Verify a log: bytes, indexes, catalog and objects" in text
    for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "GLOBAL OPTIONS", "EXIT CODES", "SEE ALSO"):
        assert f".SH {section}\n" in text
    assert "\\-\\-read\\-data\\-subset PART" in text
    for unit in (ROOT / "deploy" / "systemd").glob("*.service"):
        assert re.findall(r"^Documentation=man:(.*)\(1\)$", unit.read_text(), re.MULTILINE)[0] + ".1" in MADE


def test_roff_reads_them_without_a_warning(tmp_path: Path) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not installed (apt-get install groff)")
    for name, text in MADE.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [groff, "-man", "-ww", "-z", "-T", "utf8", *sorted(MADE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
