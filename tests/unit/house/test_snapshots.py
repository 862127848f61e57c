"""Rows of a root are for ``format``, ``plan`` and ``remote``: everybody else asks a snapshot."""

from __future__ import annotations

import ast
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
ALLOWED = ("tiered/format/", "tiered/plan/", "tiered/remote/")


def _is_a_root(node: ast.expr) -> bool:
    """``root``, ``x.root``, ``x.root()``: what this code calls a root."""
    if isinstance(node, ast.Call):
        node = node.func
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name == "root" or name.endswith("_root")


def test_rows_of_a_root_stand_nowhere_else() -> None:
    found = []
    for folder in ("tiered", "uploader", "pyspark_tiered", "demo"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            where = path.relative_to(REPOSITORY).as_posix()
            if where.startswith(ALLOWED):
                continue
            found += [
                f"{where}:{node.lineno}"
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Attribute) and node.attr == "rows" and _is_a_root(node.value)
            ]
    assert found == []
