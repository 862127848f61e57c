"""Rules of wording for code, documentation and class names: ``scripts/words.py``. Exits with 1 after a breach.

A docstring begins with a verb or a noun phrase, not with a word of ``BAD_START``. Names, messages, comments,
docstrings and documentation use no word of ``BANNED``; code spans and code blocks of pages may. A docstring says more
than the name of its function or class. The name of a class stands once in the product. ``# words: REASON`` on the line
of a definition permits its breaches and says why. So does ``<!-- words: REASON -->`` on a line of documentation.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PRODUCT = ("tiered", "uploader", "pyspark_tiered")
CODE_SUFFIXES = frozenset({".py", ".pyx", ".pxi"})
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs")
BAD_START = re.compile(r"(?:What|Whether|Of|That|Where|As|It|Those|More)\b")
BANNED = re.compile(
    r"\b(?:tells?|told|anew|nobody|somebody|whoever|let(?:s|ting)? go of|what lies|as far as)\b", re.IGNORECASE
)
CODE = re.compile(r"(`+)[^`]+\1")
BLOCK = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
PERMITTED = re.compile(r"(?:#|<!--) words: \S")
FILLERS = frozenset(
    {"a", "an", "and", "for", "from", "in", "is", "its", "of", "or", "return", "the", "this", "to", "with"}
)
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def blank(match: re.Match[str]) -> str:
    """Replace a match by as many lines without words."""
    return " " + "\n" * match[0].count("\n")


def repeats_name(node: Definition, text: str) -> bool:
    """Return True if each word of a docstring is in the name that it explains."""
    if isinstance(node, ast.Module):
        return False
    name = set(re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.name).lower()))
    return {word.rstrip("s") for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in FILLERS} <= {
        word.rstrip("s") for word in name
    }


def docstring_breaches(path: Path, source: str) -> Iterator[str]:
    """Yield the breaches in the docstrings of one module."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, Definition) or not (text := ast.get_docstring(node)):
            continue
        number = getattr(node, "lineno", 1)
        if PERMITTED.search(lines[number - 1]):
            continue
        if start := BAD_START.match(text):
            yield f"{path}:{number}: a docstring begins with {start[0]!r}: begin with a verb, or name the thing"
        if repeats_name(node, text):
            yield f"{path}:{number}: a docstring that repeats the name: delete it"


def word_breaches(path: Path, source: str) -> Iterator[str]:
    """Yield the banned words in the lines of one file of code."""
    for number, line in enumerate(source.splitlines(), 1):
        for word in BANNED.finditer(line):
            if not PERMITTED.search(line):
                yield f"{path}:{number}: {word[0]!r}: use a word of the field"


def page_breaches(path: Path, text: str) -> Iterator[str]:
    """Yield the banned words in one page of documentation."""
    for number, line in enumerate(CODE.sub(blank, BLOCK.sub(blank, text)).splitlines(), 1):
        for word in BANNED.finditer(line):
            if not PERMITTED.search(line):
                yield f"{path}:{number}: {word[0]!r}: use a word of the field"


def main() -> int:
    """Print one line per breach. Return the exit code."""
    breaches: list[str] = []
    classes: dict[str, str] = {}
    files = (path for folder in PRODUCT for path in sorted(Path(folder).rglob("*")))
    for path in (path for path in files if path.suffix in CODE_SUFFIXES):
        source = path.read_text()
        breaches += word_breaches(path, source)
        if path.suffix != ".py":
            continue
        breaches += docstring_breaches(path, source)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                place = f"{path}:{node.lineno}"
                first = classes.setdefault(node.name, place)
                breaches += [f"{place}: class {node.name} stands in {first}, too"] if first != place else []
    for page in map(Path, PAGES):
        for path in sorted(page.rglob("*.md")) if page.is_dir() else [page]:
            breaches += page_breaches(path, path.read_text())
    print("\n".join(breaches) or "words: nothing to say", file=sys.stderr if breaches else sys.stdout)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
