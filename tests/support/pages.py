"""Runs the blocks of a page as a reader would: one after the other, in one folder, console and Python alike.

A console block shows commands after ``$`` and what they print. A printed line that is shown must be printed, in this
order; ``...`` stands for any text or lines. ``# exit code N`` behind a command is the status that it must end with. A
block below ``<!-- not run: reason -->`` is not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?:<!-- (?P<note>[^\n]*) -->\n)?```(?P<kind>python|console)\n(?P<text>.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.M)
EXIT_CODE = re.compile(r"# exit code (\d+)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fence of a page."""

    kind: str
    text: str
    note: str

    @property
    def runs(self) -> bool:
        return not self.note.startswith(("not run", "Spark"))

    def commands(self) -> list[tuple[str, str]]:
        """Each command of a console block, and the lines that are shown below it."""
        return COMMAND.findall(self.text)


def blocks(page: Path) -> list[Block]:
    return [Block(m["kind"], m["text"], m["note"] or "") for m in FENCE.finditer(page.read_text())]


def pages() -> list[Path]:
    """README.md and all pages of the site that are written by hand."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(slots=True)
class Reader:
    """A folder in which somebody tries what a page shows. ``places`` replaces names of buckets by others."""

    folder: Path
    places: dict[str, str]
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        binaries = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        self.environ = {"PATH": binaries, "HOME": str(self.folder), "LC_ALL": "C.UTF-8", **self.environ}

    def follow(self, page: Path) -> None:
        """Run each block of a page that is to be run. Raises AssertionError with the block and what it printed."""
        for block in blocks(page):
            if block.runs and block.kind == "console":
                for command, shown in block.commands():
                    self._command(page, self._placed(command), shown)
            elif block.runs:
                done = self._run([sys.executable, "-W", "error", "-c", self._placed(block.text)])
                assert (done.returncode, done.stderr) == (0, ""), f"{page}\n{block.text}\n{done.stderr}"

    def _command(self, page: Path, command: str, shown: str) -> None:
        if command.startswith(("make ", "pip ")):
            return  # the tests run in what these two make
        found = EXIT_CODE.search(command)
        script = f"set -o pipefail\n{command}\nended=$?\nenv -0 > .environ\nexit $ended"
        done = self._run(["bash", "-c", script], stderr=subprocess.STDOUT)  # as a terminal shows them
        self.environ = dict(each.split("=", 1) for each in (self.folder / ".environ").read_text().split("\0") if each)
        said = f"{page}\n$ {command}\n{done.stdout}"
        assert done.returncode == int(found[1] if found else 0), f"{said}\nended with {done.returncode}"
        pattern = ".*".join(re.escape(part) for part in self._placed(shown).split("..."))
        assert not shown or re.fullmatch(pattern, done.stdout, re.S), f"{said}\nis not what the page shows:\n{shown}"

    def _run(self, command: list[str], stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            check=False,
            timeout=120,
        )

    def _placed(self, text: str) -> str:
        for name, place in self.places.items():
            text = text.replace(name, place)
        return text


def python_blocks(page: Path) -> list[str]:
    return [block.text for block in blocks(page) if block.kind == "python"]


def shown_commands() -> list[str]:
    """Every ``tiered`` command that a page shows, also those that are not run."""
    shown = set[str]()
    for page in [*pages(), *sorted(ROOT.glob("*/README.md"))]:
        for block in blocks(page):
            if block.kind == "console":
                shown |= {command for command, _ in block.commands() if re.match(r"tiered(-uploader)? ", command)}
    return sorted(shown)


def environment() -> dict[str, str]:
    """Return the environment of a reader's shell beside the path: where Java is."""
    return {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
