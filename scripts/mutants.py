#!/usr/bin/env python
"""Break one guard at a time in a copy of the tree and see a test fail: ``scripts/mutants.py [PART ...]``.

A guard is the line after a comment ``# mutant NAME``. ``mutants.toml`` has one row for each way to break it: the line
that replaces it, and the simulation, exploration or tests that must fail then. ``PART`` selects the rows whose guard or
file holds it. ``--list`` shows the table. ``--check`` compares the table with the comments and runs nothing.
Exits with 1 if a mutant survives or the table and the comments differ, with 2 for a ``PART`` that selects nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("tiered", "uploader", "pyspark_tiered")
COPIED = (*PRODUCT, "tests", "scripts", "demo", "bench")
MARKER = re.compile(r"# mutant ([a-z-]+)$")
MOST_MUTANTS = 120
SECONDS = 900
"""Time limit of one run of a selection; a mutant that hangs is caught."""
MEMORY_BYTES = 4 << 30
"""Free space that a folder in memory must have."""
COMMANDS = {
    "sim": ["-m", "tests.sim", "--workers=1", "--first"],
    "explore": ["-m", "tests.explore"],
    "pytest": ["-m", "pytest", "-x", "-q", "-m", "not servers", "-p", "no:cacheprovider"],
}


@dataclass(frozen=True)
class Guard:
    """The line ``number`` (from 0) of ``file``, a path below the root."""

    name: str
    file: Path
    number: int


@dataclass(frozen=True)
class Mutant:
    """One way to break ``guard``. ``becomes`` is empty where the guard is only dropped."""

    guard: str
    caught_by: str
    becomes: str = ""


def find_guards(root: Path) -> list[Guard]:
    """Return the guards that comments in the product name, in the order of files and lines."""
    return [
        Guard(found[1], path.relative_to(root), number + 1)
        for folder in PRODUCT
        for path in sorted((root / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().split("\n"))
        if (found := MARKER.fullmatch(line.strip()))
    ]


def read_table() -> list[Mutant]:
    """Return the rows of ``mutants.toml``."""
    rows = tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text())["mutant"]
    return [Mutant(row["guard"], row["caught_by"], row.get("becomes", "")) for row in rows]


def find_mismatches(guards: list[Guard], mutants: list[Mutant]) -> list[str]:
    """Return one sentence for each difference between comments and table."""
    marked, listed = [guard.name for guard in guards], {mutant.guard for mutant in mutants}
    twice = sorted({name for name in marked if marked.count(name) > 1})
    return [
        *(f"{name}: two comments have this name" for name in twice),
        *(f"{name}: the table has no row for this comment" for name in sorted(set(marked) - listed)),
        *(f"{name}: no comment has this name" for name in sorted(listed - set(marked))),
        *([f"{len(mutants)} mutants, at most {MOST_MUTANTS}"] if len(mutants) > MOST_MUTANTS else []),
    ]


def mutate(text: str, number: int, becomes: str) -> str:
    """Return ``text`` with another line at ``number``: ``becomes``, else ``if False:`` or ``pass``."""
    lines = text.split("\n")
    old = lines[number].lstrip()
    indent = lines[number][: len(lines[number]) - len(old)]
    lines[number] = indent + (becomes or ("if False:" if old.startswith("if ") else "pass"))
    return "\n".join(lines)


def fails(tree: Path, selection: str) -> bool:
    """Return whether the simulation, exploration or tests of ``selection`` fail in ``tree``."""
    kind, *arguments = selection.split()
    files = tree.parent / "files"
    files.mkdir(exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(files)}
    command = [sys.executable, *COMMANDS[kind], *arguments]
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def run_mutants(mutants: list[Mutant], guards: dict[str, Guard], tree: Path) -> bool:
    """Run each mutant, print its result, and return whether all were caught."""
    sound: dict[str, bool] = {}
    counts = {"caught": 0, "SURVIVED": 0, "its tests fail without it": 0}
    for mutant in mutants:
        if mutant.caught_by not in sound:
            sound[mutant.caught_by] = not fails(tree, mutant.caught_by)
        guard = guards[mutant.guard]
        path = tree / guard.file
        text = path.read_text()
        path.write_text(mutate(text, guard.number, mutant.becomes))
        result = "caught" if fails(tree, mutant.caught_by) else "SURVIVED"
        result = result if sound[mutant.caught_by] else "its tests fail without it"
        path.write_text(text)
        counts[result] += 1
        print(f"{time.strftime('%H:%M:%S')} {result:9} {describe(mutant, guard)}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in counts.items()))
    return counts["caught"] == len(mutants)


def describe(mutant: Mutant, guard: Guard) -> str:
    """Return one line for people."""
    return f"{mutant.guard} ({guard.file}:{guard.number + 1}) by {mutant.caught_by}: {mutant.becomes or 'dropped'}"


def memory() -> Path | None:
    """Return a folder in memory with enough room, or None. No mutant needs a real fsync."""
    folder = Path("/dev/shm")  # noqa: S108  # a random name below it
    if not os.access(folder, os.W_OK) or shutil.disk_usage(folder).free < MEMORY_BYTES:
        return None
    return folder


def main(arguments: list[str]) -> int:
    """Select rows, then list, check or run them."""
    parser = argparse.ArgumentParser(description="Break one guard at a time and see a test fail.")
    parser.add_argument("part", nargs="*", help="only the rows whose guard, file or selection holds one of these")
    parser.add_argument("--list", action="store_true", help="show the table, run nothing")
    parser.add_argument("--check", action="store_true", help="compare the table with the comments, run nothing")
    wanted = parser.parse_args(arguments)
    mutants, found = read_table(), find_guards(ROOT)
    mismatches = find_mismatches(found, mutants)
    for mismatch in mismatches:
        print(mismatch, file=sys.stderr)
    if mismatches or wanted.check:
        print(f"{len(mutants)} mutants of {len(found)} guards, {len(mismatches)} mismatches")
        return bool(mismatches)
    guards = {guard.name: guard for guard in found}
    lines = {mutant: describe(mutant, guards[mutant.guard]) for mutant in mutants}
    chosen = [each for each in mutants if not wanted.part or any(part in lines[each] for part in wanted.part)]
    if not chosen:
        print(f"no mutant matches {' '.join(wanted.part)}: --list shows them", file=sys.stderr)
        return 2
    if wanted.list:
        print("\n".join(lines[mutant] for mutant in chosen))
        return 0
    with tempfile.TemporaryDirectory(prefix="tiered-mutants-", dir=memory()) as name:
        tree = Path(name) / "tree"
        tree.mkdir()
        for folder in COPIED:
            shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ROOT.iterdir():
            if file.is_file():
                shutil.copy(file, tree)
        return not run_mutants(chosen, guards, tree)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
