"""The sources of the product as trees, and what the rules of the house ask of them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("tiered", "uploader", "pyspark_tiered")


class Module(NamedTuple):
    """One file. ``path`` begins at the root of the repository, ``name`` is what is imported."""

    path: str
    name: str
    tree: ast.Module

    def within(self, *places: str) -> bool:
        """Whether it lies in one of these folders (``tiered/plan/``) or is one of these files."""
        return any(self.path == place or (place.endswith("/") and self.path.startswith(place)) for place in places)


@functools.cache
def modules() -> tuple[Module, ...]:
    """Every file of the product; ``tiered.testing`` is for tests."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            place = path.relative_to(ROOT)
            parts = place.with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module(str(place), name, ast.parse(path.read_text())))
    return tuple(found)


@functools.cache
def walk(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a tree; a tree is gone through once, however many rules look at it."""
    return tuple(ast.walk(tree))


def last_name(node: ast.AST) -> str:
    """``c`` of ``a.b.c``, ``a.b.c()`` and ``c``; empty for anything else."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    """The calls of functions or methods with one of these names."""
    for node in walk(tree):
        if isinstance(node, ast.Call) and last_name(node) in names:
            yield node


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All of them, inner ones too."""
    for node in walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imports(module: Module) -> dict[str, str]:
    """What each imported name stands for: ``{"Rows": "tiered.format.rows.Rows"}``."""
    found: dict[str, str] = {}
    for node in walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
    return found
