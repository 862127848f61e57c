"""The rules of the house (``ARCHITECTURE.md``), each as a test over the sources."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import tiered
import tiered.aio
import tiered.program.output
import tiered.read.topic
from tests.unit.house.sources import (
    calls,
    functions,
    imports,
    last_name,
    modules,
    walk,
)
from tiered.consumer.consumer import Consumer

PROGRAMS = ("tiered/program/", "tiered/cli/", "tiered/inspect/", "tiered/spark/", "uploader/", "pyspark_tiered/")
FACES = (
    "tiered/log.py",
    "tiered/topic.py",
    "tiered/read/topic.py",
    "tiered/appending/appender.py",
    "tiered/appending/receipt.py",
    "tiered/transaction.py",
    "tiered/reader.py",
    "tiered/aio/",
)
ENGINE = ("tiered/engine/bucket.py", "tiered/engine/sync_run.py", "tiered/engine/tiering.py", "tiered/engine/worker.py")
DRIVERS = ("drive", "adrive", "drive_stream", "adrive_stream")


# --- 1: the list of rows is the catalog's own -----------------------------------------------------------------------


def holds_a_root(node: ast.AST, roots: set[str]) -> bool:
    """``root``, ``self._root``, ``load_root()``, or a name that is annotated so."""
    name = last_name(node)
    return name.lower().endswith("root") or (isinstance(node, ast.Name) and name in roots)


def rows_of_roots(tree: ast.AST) -> Iterator[int]:
    annotated = {
        node.arg if isinstance(node, ast.arg) else last_name(node.target)
        for node in walk(tree)
        if isinstance(node, ast.arg | ast.AnnAssign)
        and node.annotation is not None
        and re.fullmatch(r"Root( \| None)?", ast.unparse(node.annotation))
    }
    for node in walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "rows" and holds_a_root(node.value, annotated):
            yield node.lineno


def test_1_only_formats_planners_and_the_catalog_know_the_rows_of_a_root() -> None:
    outside = (m for m in modules() if not m.within("tiered/format/", "tiered/plan/", "tiered/remote/"))
    assert sorted({m.path for m in outside if any(rows_of_roots(m.tree))}) == []


# --- 2: who drives steps --------------------------------------------------------------------------------------------


def test_2_only_the_engine_the_faces_and_the_programs_drive_steps() -> None:
    allowed = ("tiered/store/", "tiered/testing/", *ENGINE, *FACES, *PROGRAMS)
    drivers = {m.path for m in modules() if not m.within(*allowed) and any(calls(m.tree, *DRIVERS))}
    assert sorted(drivers) == []


# --- 3: no layers of inheritance ------------------------------------------------------------------------------------


def own_bases() -> dict[str, list[str]]:
    """The bases of each class of the product that are classes of the product."""
    classes: dict[str, list[str]] = {}
    for module in modules():
        known = imports(module)
        for node in walk(module.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            bases = [ast.unparse(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases]
            resolved = []
            for base in bases:
                first, _, rest = base.partition(".")
                resolved.append(
                    f"{known[first]}{'.' if rest else ''}{rest}" if first in known else f"{module.name}.{base}"
                )
            classes[f"{module.name}.{node.name}"] = resolved
    return {name: [base for base in bases if base in classes] for name, bases in classes.items()}


def depth(name: str, bases: dict[str, list[str]]) -> int:
    """How many classes of the product stand above this one."""
    return max((1 + depth(base, bases) for base in bases[name]), default=0)


def is_an_error(name: str, bases: dict[str, list[str]]) -> bool:
    """Errors are a tree on purpose."""
    return name.startswith("tiered.errors.") or any(is_an_error(base, bases) for base in bases[name])


def test_3_no_class_of_ours_inherits_deeper_than_one() -> None:
    bases = own_bases()
    deep = {name for name in bases if depth(name, bases) > 1 and not is_an_error(name, bases)}
    assert sorted(deep) == []


# --- 4: once, not many times ----------------------------------------------------------------------------------------


def test_4_batches_are_walked_in_one_place() -> None:
    walkers = {
        module.path
        for module in modules()
        if not module.within("tiered/format/", "tiered/testing/")
        for node in walk(module.tree)
        if isinstance(node, ast.While) and any(calls(node, "read_header", "header_at", "verify_batch"))
    }
    assert sorted(walkers) == []


def test_4_what_read_committed_hides_is_decided_in_one_place() -> None:
    rooms = (
        "tiered/read/",
        "tiered/remote/",
        "tiered/local/segment/",
        "tiered/check/",
        "tiered/erase/",
        "tiered/restore/",
        "tiered/repair/",
        "tiered/spark/",
    )
    readers = (*rooms, *FACES)
    deciders = {
        module.path
        for module in modules()
        if module.within(*readers)
        for node in walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr == "is_transactional"
    }
    assert sorted(deciders) == []


def test_4_a_directory_is_looked_at_in_one_place() -> None:
    lookers = {
        module.path
        for module in modules()
        if not module.within("tiered/local/directory/", "tiered/format/", "tiered/testing/")
        and any(calls(module.tree, "parse_partition_dir"))
    }
    assert sorted(lookers) == []


def test_4_one_engine_uploads() -> None:
    assert {m.path for m in modules() if any(calls(m.tree, "upload_segment"))} == {"tiered/engine/steps.py"}


# --- 5: nothing is uploaded that is not written down ----------------------------------------------------------------


def is_journalled(function: ast.FunctionDef | ast.AsyncFunctionDef, upload: ast.Call) -> bool:
    """The journal's ``put`` is named above the upload, and each multipart upload is told to it."""
    puts = [
        node.lineno
        for node in walk(function)
        if isinstance(node, ast.Attribute) and node.attr == "put" and last_name(node.value).endswith("journal")
    ]
    return min(puts, default=upload.lineno) < upload.lineno and "on_multipart" in {k.arg for k in upload.keywords}


def test_5_every_upload_is_journalled_before_its_first_byte() -> None:
    breaches = {
        module.path
        for module in modules()
        for function in functions(module.tree)
        for upload in calls(function, "upload_segment")
        if not is_journalled(function, upload)
    }
    assert sorted(breaches) == []


# --- 6: two faces, one set of signatures ----------------------------------------------------------------------------


def shape(function: Any) -> list[tuple[str, str, object]]:
    """Names, kinds and defaults of the parameters."""
    return [(p.name, p.kind.name, p.default) for p in inspect.signature(function).parameters.values()]


def public(cls: type[Any]) -> dict[str, Any]:
    """Methods and properties by name; ``async with`` and ``async for`` are spelled with other dunders."""
    return {
        name: member
        for name in dir(cls)
        if not name.startswith("_")
        and (callable(member := inspect.getattr_static(cls, name)) or isinstance(member, property))
    }


def differences(name: str, sync: type[Any], aio: type[Any]) -> Iterator[str]:
    ours, theirs = public(sync), public(aio)
    for member in sorted(ours.keys() ^ theirs.keys()):
        yield f"{name}.{member}"
    for member in sorted(ours.keys() & theirs.keys()):
        one, other = ours[member], theirs[member]
        if isinstance(one, property) or isinstance(other, property):
            if type(one) is not type(other):
                yield f"{name}.{member}"
        elif shape(one) != shape(other):
            yield f"{name}.{member}"


def test_6_both_faces_have_the_same_signatures() -> None:
    found = set()
    for name in ("Log", "Topic", "Appender", "Receipt", "Transaction", "Reader"):
        found |= set(differences(name, getattr(tiered, name), getattr(tiered.aio, name)))
    for name in ("PartitionStream", "TopicReads"):
        found |= set(differences(name, getattr(tiered.read.topic, name), getattr(tiered.aio, name)))
    found |= set(differences("Consumer", Consumer, tiered.aio.Consumer))
    for name in ("open", "open_reader"):
        if shape(getattr(tiered, name)) != shape(getattr(tiered.aio, name)):
            found.add(name)
    for name in tiered.admin.__all__:
        if shape(getattr(tiered.admin, name)) != shape(getattr(tiered.aio.admin, name)):
            found.add(name)
    assert sorted(found) == []


# --- 7: what is promised is there ------------------------------------------------------------------------------------


def only_raises(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether its body is ``raise NotImplementedError`` and perhaps a docstring."""
    last = function.body[-1]
    return (
        len(function.body) - (ast.get_docstring(function, clean=False) is not None) == 1
        and isinstance(last, ast.Raise)
        and last.exc is not None
        and last_name(last.exc) == "NotImplementedError"
    )


def test_7_no_function_only_says_that_it_is_not_there() -> None:
    (empty,) = functions(ast.parse("def work():\n    'Nothing.'\n    raise NotImplementedError"))
    assert only_raises(empty)
    every = [(module.path, each) for module in modules() for each in functions(module.tree)]
    assert [f"{path}: {each.name}" for path, each in every if only_raises(each)] == []


# --- 9: at most eight parameters ------------------------------------------------------------------------------------

KEYWORDS = ("check", "erase", "open", "read", "read_batches", "restore")
"""Functions of the public faces. Their keywords are the documented options of one call."""


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the names of the parameters, without the first one of a method."""
    given = function.args
    named = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    gathered = [each.arg for each in (given.vararg, given.kwarg) if each is not None]
    return [*named[bool(named) and named[0] in ("self", "cls") :], *gathered]


def is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True for a command: its parameters are its options."""
    return any("option" in ast.unparse(each) for each in function.decorator_list)


def test_9_no_function_takes_nine_parameters() -> None:
    (many,) = functions(ast.parse("def f(self, a, /, b, *c, d, **e): pass"))
    assert parameters(many) == ["a", "b", "d", "c", "e"]
    found = set()
    for module in modules():
        public = KEYWORDS if module.within(*FACES, "tiered/admin/") else ()
        for each in functions(module.tree):
            if len(parameters(each)) > 8 and each.name not in public and not is_command(each):
                found.add(f"{module.path}: {each.name}")
    # The fields of a record, and the twin of a compiled function.
    assert found == {"tiered/format/records.py: __init__", "tiered/format/pure_kernels.py: scan"}
