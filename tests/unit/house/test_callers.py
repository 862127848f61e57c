"""Nothing public stands in the product that no product code uses: what only tests use is not part of the house."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

import tiered
import tiered.admin
import tiered.aio
import tiered.spark
from tests.unit.house.sources import PACKAGES, ROOT, modules, walk

PRODUCT = (*PACKAGES, "demo", "bench")
KIT = "tiered/testing/"
"""The test kit that users get: its callers are their tests."""

TRANSPARENT = {"property", "staticmethod", "classmethod", "cached_property", "cache", "lru_cache", "contextmanager"}
TRANSPARENT |= {"asynccontextmanager", "abstractmethod", "override", "setter", "overload", "wraps"}
"""Decorators that hand a function to nobody; any other registers it somewhere, as click's do."""

FACES = (tiered.aio, tiered.spark, tiered.admin, tiered.aio.admin)

PROMISED = {
    *tiered.__all__,
    "Consumer",
    "TopicReads",
    *(getattr(getattr(tiered.aio, name), "__name__", name) for name in tiered.aio.__all__),
}
"""Public names of both faces, and what their methods return; a class of ``tiered.aio`` by its own name."""

WITHOUT_CALLERS = {
    # What tests look at, where nothing else shows it.
    "tiered/local/disk/fd_pool.py: PooledFiles.open_count",
    "tiered/plan/producer_state.py: ProducerState.producer",
}

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Public:
    """A public function, class or constant, or a method with the name of its class in front."""

    path: str
    name: str
    own_uses: Counter[str]

    def __str__(self) -> str:
        return f"{self.path}: {self.name}"


@dataclass(frozen=True)
class Uses:
    """What one file reads: ``names`` bare or imported, ``attributes`` of anything, ``of_modules`` as ``module.x``."""

    names: Counter[str]
    attributes: Counter[str]
    imports: frozenset[tuple[str, str]]
    of_modules: frozenset[tuple[str, str]]


def uses_in(tree: ast.AST) -> Uses:
    nodes = walk(tree)
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    return Uses(
        Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)),
        Counter(node.attr for node in attributes),
        frozenset(
            (node.module or "", alias.name)
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        ),
        frozenset((node.value.id, node.attr) for node in attributes if isinstance(node.value, ast.Name)),
    )


def decorators(function: Definition) -> Iterator[str]:
    for node in function.decorator_list:
        target = node.func if isinstance(node, ast.Call) else node
        yield target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")


def is_public(node: Definition) -> bool:
    return not node.name.startswith("_") and all(name in TRANSPARENT for name in decorators(node))


def defined_in(path: str, tree: ast.Module) -> Iterator[Public]:
    for node in tree.body:
        if isinstance(node, Definition) and is_public(node):
            yield Public(path, node.name, uses_in(node).names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            yield from (Public(path, name, Counter()) for name in names if not name.startswith("_"))
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield Public(path, node.name, uses_in(node).names)
        if isinstance(node, ast.ClassDef) and not any(getattr(base, "id", "") == "Protocol" for base in node.bases):
            for part in node.body:
                if isinstance(part, Definition) and is_public(part):
                    yield Public(path, f"{node.name}.{part.name}", uses_in(part).attributes)


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def is_called(public: Public, uses: dict[str, Uses]) -> bool:
    """A method by its name alone, whoever has it; a function by its module."""
    holder, _, name = public.name.rpartition(".")
    if holder:
        return sum(one.attributes[name] for one in uses.values()) > public.own_uses[name]
    module = module_of(public.path)
    stem = module.rpartition(".")[2]
    return uses[public.path].names[name] > public.own_uses[name] or any(
        (module, name) in one.imports or (stem, name) in one.of_modules for one in uses.values()
    )


def product() -> dict[str, ast.Module]:
    callers = [path for folder in ("demo", "bench") for path in sorted((ROOT / folder).rglob("*.py"))]
    return {module.path: module.tree for module in modules()} | {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in callers
    }


def without_callers(trees: dict[str, ast.Module]) -> list[Public]:
    uses = {path: uses_in(tree) for path, tree in trees.items()}
    found = [public for path, tree in trees.items() if not path.startswith(KIT) for public in defined_in(path, tree)]
    return [public for public in found if not is_called(public, uses)]


def is_for_users(public: Public) -> bool:
    """What ``import tiered``, ``tiered.aio`` and ``tiered.spark`` promise, whether we call it or not."""
    holder, _, name = public.name.rpartition(".")
    module = importlib.import_module(module_of(public.path))
    return (holder or name) in (module.__all__ if module in FACES else PROMISED)


def is_for_others(public: Public) -> bool:
    """A method that a class of somebody else's library has too: that library calls it."""
    holder, _, name = public.name.rpartition(".")
    if not holder:
        return False
    kind = getattr(importlib.import_module(module_of(public.path)), holder)
    if issubclass(kind, BaseHTTPRequestHandler) and re.fullmatch("do_[A-Z]+", name):
        return True  # called by the name of the request's method
    return any(name in vars(base) for base in kind.__mro__[1:] if not base.__module__.startswith(PRODUCT))


def test_8_everything_public_has_a_caller_in_the_product() -> None:
    """A method by its name: one that shares it with something that is called is not found."""
    left = {
        str(public) for public in without_callers(product()) if not is_for_users(public) and not is_for_others(public)
    }
    assert left == WITHOUT_CALLERS
