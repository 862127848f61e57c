"""``python -OO`` drops docstrings: the help of both programs, and of every command, is the same without them."""

from __future__ import annotations

import subprocess
import sys

PRINT_ALL = """
import sys
import click
from tiered.cli.main import tiered
from uploader.cli import program

def show(command, parent):
    context = click.Context(command, info_name=command.name, parent=parent, terminal_width=200)
    print(context.command_path)
    print(command.get_help(context))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            show(command.get_command(context, name), context)

for each in (tiered, program):
    show(each, None)
"""


def shown(*flags: str) -> str:
    done = subprocess.run([sys.executable, *flags, "-c", PRINT_ALL], capture_output=True, text=True, check=True)
    return done.stdout


def test_the_help_is_the_same() -> None:
    expected = shown()
    assert expected.count("Usage:") > 40
    assert "Append records from standard input." in expected
    assert shown("-OO") == expected
