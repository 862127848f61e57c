"""Prints the part of requirements.lock that ``tieredlog[EXTRA ...]`` needs: ``locked.py spark > subset``.

Runs in the environment that was made from the whole lock file, whose packages say what they need themselves.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"


def needed(package: str, extras: frozenset[str]) -> set[str]:
    """Names of all packages that ``package[extras]`` needs, itself included."""
    found: set[str] = set()
    waiting: set[tuple[str, frozenset[str]]] = {(package, extras)}
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, wanted = one = waiting.pop()
        seen.add(one)
        found.add(canonicalize_name(name))
        for line in metadata.requires(name) or ():
            each = Requirement(line)
            marker = each.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*wanted, "")):
                waiting |= {(each.name, frozenset(each.extras))} - seen
    return found


def main() -> int:
    """Refuses a package that is needed and not locked."""
    names = needed("tieredlog", frozenset(sys.argv[1:])) - {"tieredlog"}
    entries = re.split(r"^(?=[A-Za-z0-9])", LOCK.read_text(), flags=re.MULTILINE)
    held: dict[str, str] = {}
    for entry in entries:
        if "==" in entry:  # several of one name are for several versions of Python
            name = canonicalize_name(re.split(r"[=\[ ]", entry, maxsplit=1)[0])
            held[name] = held.get(name, "") + entry
    missing = names - held.keys()
    if missing:
        print(f"locked: not in {LOCK.name}: {', '.join(sorted(missing))}", file=sys.stderr)
        return 1
    print("".join(held[name] for name in sorted(names)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
