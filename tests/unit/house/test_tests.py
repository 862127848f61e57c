"""Rules of the tests themselves."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]


def imported(source: str) -> set[str]:
    """The modules that a source names in its imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_nothing_is_imported_from_a_test_module() -> None:
    modules = {
        ".".join(path.with_suffix("").parts)
        for path in ((p.relative_to(TESTS.parent)) for p in TESTS.rglob("test_*.py"))
    }
    breaches = {
        (str(path.relative_to(TESTS)), name)
        for path in TESTS.rglob("*.py")
        for name in imported(path.read_text()) & modules
    }
    assert breaches == set()
