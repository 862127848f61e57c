#!/usr/bin/env python
"""Drops one safety check at a time from a copy of the tree, to see a test object: ``scripts/mutants.py [part ...]``.

A ``part`` is a part of the names of mutants; several choose all whose names hold one of them.

Each mutant names one line of one file, what stands there instead, and the tests that have to object (``mutants.toml``).
A line that is not there exactly once "does not apply": the table has to follow the code. ``--list`` shows the table,
``--check`` only whether every line is there, ``--quick`` leaves the slow selections out (simulation, sweeps, crash
matrix, bucket). Mutants of ``[[explore]]`` name scenes instead of tests: an exploration of these has to find a
violation; ``--explore`` runs them alone. Those of ``[[sim]]`` name seeds of a world of the simulation, of which one has
to fail; ``--sim`` runs them alone. A part of the compiled kernels is compiled with its line left out.
Ends with 1 if a mutant survives or does not apply, with 2 for a part that is in no name.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("tiered", "uploader", "pyspark_tiered", "tests", "scripts", "demo", "bench")
SECONDS = 900
"""Of one selection; a mutant that does not end is caught."""
COMPILED = (".pyx", ".pxi")
BUILD = """
from pathlib import Path
from sysconfig import get_config_var
from tempfile import TemporaryDirectory
from hatch_build import SOURCE, compile_extension
name = SOURCE.with_suffix("").name + get_config_var("EXT_SUFFIX")
with TemporaryDirectory() as folder:
    SOURCE.with_name(name).write_bytes(compile_extension(SOURCE, Path(folder) / name).read_bytes())
"""
MEMORY_BYTES = 4 << 30
"""What a folder in memory must have free."""


@dataclass(frozen=True)
class Mutant:
    """``new`` empty: an ``if`` never holds, any other line does nothing."""

    name: str
    file: str
    old: str
    tests: str
    new: str = ""

    @property
    def replacement(self) -> str:
        """The line that stands there instead."""
        return self.new or ("if False:" if self.old.startswith("if ") else "pass")


EXPLORE, SIM = "tests.explore", "tests.sim"
SLOW = ("tests/crash", "tests/sim", "tests/sweeps", "tests/damage")


def table(tier: str) -> list[Mutant]:
    """The mutants of one tier, as ``mutants.toml`` has them."""
    groups = tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text())[tier]
    return [
        Mutant(f"{group['file']}: {name}", group["file"], old, selection(group), *new)
        for group in groups
        for name, old, *new in group["mutants"]
    ]


def selection(group: dict[str, Any]) -> str:
    """The tests of a group, or the arguments of an exploration or a simulation."""
    if "seeds" in group:
        return f"{SIM} {group['seeds']} --world {group['world']} --workers 1 --first"
    if "scenes" not in group:
        return " ".join(group["tests"])
    return " ".join([EXPLORE, f"--faults={group['faults']}", *[f"--scene={scene}" for scene in group["scenes"]]])


def mutated(text: str, mutant: Mutant) -> str | None:
    """The file with the other line; None if the line is not there exactly once."""
    lines = text.split("\n")
    places = [number for number, line in enumerate(lines) if line.strip() == mutant.old]
    if len(places) != 1:
        return None
    indent = lines[places[0]][: len(lines[places[0]]) - len(lines[places[0]].lstrip())]
    lines[places[0]] = indent + mutant.replacement
    return "\n".join(lines)


def tests_of(mutant: Mutant, tree: Path, *, quick: bool) -> list[str]:
    """Those of its selection whose files are there; one may be ``file::test``."""
    if mutant.tests.startswith((EXPLORE, SIM)):
        return mutant.tests.split()
    chosen = [name for name in mutant.tests.split() if (tree / name.partition("::")[0]).exists()]
    return [name for name in chosen if not quick or not name.startswith(SLOW)] or chosen


def object_to(tree: Path, tests: list[str]) -> bool:
    """Whether a test fails, or an exploration, or a seed."""
    pytest = ["pytest", "-x", "-q", "-m", "not servers", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", *([] if tests[0] in {EXPLORE, SIM} else pytest), *tests]
    files = tree.parent / "files"
    files.mkdir(exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(files)}
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def at_work(tree: Path, mutant: Mutant) -> bool:
    """Whether what the file says is what runs: a part of the kernels is compiled anew, into the tree."""
    if not mutant.file.endswith(COMPILED):
        return True
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=tree, env=env, capture_output=True, check=False)
    return done.returncode == 0


def run(mutants: list[Mutant], tree: Path, *, quick: bool = False) -> Iterator[tuple[Mutant, str]]:
    """Each with what became of it. A selection that fails without a mutant proves nothing."""
    sound: dict[str, bool] = {}
    for mutant in mutants:
        path = tree / mutant.file
        text = path.read_text() if path.exists() else ""
        other = mutated(text, mutant)
        if other is None:
            yield mutant, "does not apply"
            continue
        if mutant.tests not in sound:
            sound[mutant.tests] = not object_to(tree, tests_of(mutant, tree, quick=quick))
        if not sound[mutant.tests]:
            yield mutant, "its tests fail by themselves"
            continue
        path.write_text(other)
        fate = "SURVIVED"
        if not at_work(tree, mutant):
            fate = "does not compile"
        elif object_to(tree, tests_of(mutant, tree, quick=quick)):
            fate = "caught"
        path.write_text(text)
        at_work(tree, mutant)
        yield mutant, fate


def memory() -> Path | None:
    """A folder without a disk behind it, if there is one with room: tests fsync, and no mutant needs a real fsync."""
    folder = Path("/dev/shm")  # noqa: S108  # a random name below it
    if not os.access(folder, os.W_OK) or shutil.disk_usage(folder).free < MEMORY_BYTES:
        return None
    return folder


def asked(arguments: list[str]) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Drop one safety check at a time, to see a test object.")
    parser.add_argument("part", nargs="*", help="only the mutants whose names hold one of these")
    parser.add_argument("--list", action="store_true", help="show the table, run nothing")
    parser.add_argument("--check", action="store_true", help="show the lines that are not there, run nothing")
    parser.add_argument("--explore", action="store_true", help="only those that the exploration has to catch")
    parser.add_argument("--sim", action="store_true", help="only those that the simulation has to catch")
    parser.add_argument("--quick", action="store_true", help=f"leave out {', '.join(SLOW)}")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Prints one line each, then the sums."""
    wanted = asked(arguments)
    hot, cold, explored, simulated = table("hot"), table("cold"), table("explore"), table("sim")
    alone = (*(explored if wanted.explore else ()), *(simulated if wanted.sim else ()))
    every = alone or (*hot, *cold, *explored, *simulated)
    mutants = [mutant for mutant in every if not wanted.part or any(part in mutant.name for part in wanted.part)]
    unknown = [part for part in wanted.part if not any(part in mutant.name for mutant in every)]
    if unknown:
        print(
            f"no mutant has {unknown[0]!r} in its name: --list shows them (quote a part that has blanks)",
            file=sys.stderr,
        )
        return 2
    if wanted.list or wanted.check:
        gone = [mutant for mutant in mutants if mutated((ROOT / mutant.file).read_text(), mutant) is None]
        for mutant in mutants if wanted.list else gone:
            print(mutant.name, "(does not apply)" if mutant in gone else "")
        sizes = f"{len(hot)} of the hot tier, {len(cold)} of the cold one, {len(explored)} for the exploration"
        sizes += f", {len(simulated)} for the simulation"
        print(f"{sizes}; {len(gone)} do not apply")
        return bool(gone)
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="tiered-mutants-", dir=memory()) as name:
        tree = Path(name) / "tree"
        tree.mkdir()
        for folder in COPIED:
            shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ROOT.iterdir():
            if file.is_file():
                shutil.copy(file, tree)
        for mutant, fate in run(mutants, tree, quick=wanted.quick):
            counts[fate] = counts.get(fate, 0) + 1
            print(f"{time.strftime('%H:%M:%S')} {fate:12} {mutant.name}", flush=True)
    print(", ".join(f"{count} {fate}" for fate, count in sorted(counts.items())))
    return counts.get("caught", 0) != len(mutants)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
