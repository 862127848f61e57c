"""Errors: their table, and the commands that hints name."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tests.unit.house.sources import last_name, modules, walk
from tiered import errors
from tiered.cli.main import tiered as log_program
from uploader.cli import program as uploader_program

PROGRAMS: dict[str, click.Group] = {"tiered": log_program, "tiered-uploader": uploader_program}
COMMAND = re.compile(r"`((?:env -u \S+ )?(?:tiered|tiered-uploader) [^`]*)`")


def texts(tree: ast.AST) -> Iterator[str]:
    """All texts but docstrings; what a formatted one inserts is an X."""
    docs = {id(node.value) for node in walk(tree) if isinstance(node, ast.Expr)}
    for node in walk(tree):
        if id(node) in docs:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def commands() -> set[str]:
    """The commands between backticks in the messages of the product."""
    return {match for module in modules() for text in texts(module.tree) for match in COMMAND.findall(text)}


def parsed(line: str) -> tuple[list[str], click.Command, list[str]]:
    """The names of a command, the command, and the rest of the line."""
    words = shlex.split(line.replace("'", ""))
    words = words[3:] if words[0] == "env" else words
    command: click.Command = PROGRAMS[words[0]]
    names, rest = words[:1], words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        if (found := command.get_command(click.Context(command), rest[0])) is None:
            found = command.get_command(click.Context(command), "TOPIC[:P]")  # `tiered repair TOPIC`
            assert found is not None, f"`{line}` names no command"
            command = found
            break
        names, command, rest = [*names, rest[0]], found, rest[1:]
    return names, command, rest


@pytest.mark.parametrize("line", sorted(commands()))
def test_a_command_in_a_message_exists(line: str) -> None:
    names, command, rest = parsed(line)
    shown = CliRunner().invoke(PROGRAMS[names[0]], [*names[1:], "--help"], obj={})
    assert shown.exit_code == 0, shown.output
    if command is PROGRAMS[names[0]] and not rest:
        return
    known = {option for param in (*command.params, *PROGRAMS[names[0]].params) for option in param.opts}
    assert {word.partition("=")[0] for word in rest if word.startswith("-") and word != "-"} <= known | {"--help"}


def test_a_message_has_at_most_25_words() -> None:
    long = []
    for module in modules():
        for node in walk(module.tree):
            if isinstance(node, ast.Call) and last_name(node.func).endswith("Error") and node.args:
                long += [text for text in texts(node.args[0]) if len(text.split()) > 25]
    assert long == []


def test_each_error_is_complete() -> None:
    rows = errors.error_classes()
    assert {row.__name__ for row in rows} == {
        name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, errors.TieredError)
    }
    assert len({row.code for row in rows}) == len(rows)
    assert {row.exit_code for row in rows} <= {1, 2, 10, 11, 12, 13, 14, 75}
    page = errors.as_markdown()
    for row in rows:
        assert re.search(rf"\| `{row.__name__}` \| `{row.code}` \| [^|]+\. \| {re.escape(row.hint)} \|", page)
        assert row.hint
    again = {"LockedError", "RemoteUnavailableError", "CommitUnknownError", "DiskFullError", "DataLocalError"}
    assert {row.__name__ for row in rows if row.retriable} == again | {"AppendTimeoutError", "PartitionLostError"}
