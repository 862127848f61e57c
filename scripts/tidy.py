"""House rules that no linter knows: function lengths, and text that must not be in the repository."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

FUNCTION_LINES_MAX = 70
PRODUCT = ("tiered/", "uploader/", "pyspark_tiered/", "demo/", "bench/")
MACHINE = re.compile(r"(?<![\w.])/(?:work|root|home)/")
# Where packages come from is the business of the machine, not of the repository: no option that names an index with its
# address, and no address at all in a lock.
INDEX = re.compile(r"(?:index|extra|find|registry)[-_]?(?:urls?|links|host)?[\"']?\s*[=:\s]\s*[\"']?\w+://")
ADDRESS = re.compile(r"\w+://")


def tracked() -> list[Path]:
    """Files that git knows, or would add."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True, check=True
    )
    return [Path(name) for name in done.stdout.splitlines() if Path(name).is_file()]


def main() -> int:
    """Prints one line per breach; 1 if there is any."""
    breaches = []
    for path in tracked():
        if path.suffix in {".gz", ".xz", ".png"} or path == Path("scripts/tidy.py"):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        breaches += _places(path, text)
        if path.suffix == ".py" and str(path).startswith(PRODUCT):
            breaches += _lengths(path, text)
    print("\n".join(breaches) or "tidy: nothing to say", file=sys.stderr if breaches else sys.stdout)
    return 1 if breaches else 0


def _places(path: Path, text: str) -> list[str]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if MACHINE.search(line):
            found.append(f"{path}:{number}: a path of one machine")
        if (ADDRESS if path.suffix == ".lock" else INDEX).search(line):
            found.append(f"{path}:{number}: an address that packages come from")
    return found


def _lengths(path: Path, text: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                found.append(f"{path}:{node.lineno}: {node.name} has {length} lines (at most {FUNCTION_LINES_MAX})")
    return found


if __name__ == "__main__":
    sys.exit(main())
