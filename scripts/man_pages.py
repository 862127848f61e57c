"""Write man pages of both programs and all their commands from ``--help`` into a folder: ``make man``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from tiered import __version__
from tiered.cli.main import tiered
from uploader.cli import program

PROGRAMS = {"tiered": tiered, "tiered-uploader": program}


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield each command with its whole name, the program first."""
    yield context.command_path.replace(" ", "-"), command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from commands(found, click.Context(found, parent=context, info_name=name))


def page(name: str, command: click.Command, context: click.Context) -> str:
    """Return one page in roff: the name, then the help with its indentation."""
    about = command.get_short_help_str(200).rstrip(".")
    lines = [f'.TH "{name.upper()}" 1 "" "tieredlog {__version__}"', ".SH NAME", f"{_plain(name)} \\- {_plain(about)}"]
    lines += [".SH SYNOPSIS", ".nf"]
    for line in command.get_help(context).splitlines():
        title = line.rstrip(":")
        if line.endswith(":") and line[:1].isupper():
            lines += [".fi", f".SH {title.upper()}", ".nf"]
        elif line.startswith("Usage: "):
            lines += [_plain(line.removeprefix("Usage: ")), ".fi", ".SH DESCRIPTION", ".nf"]
        else:
            lines.append(_plain(line.removeprefix("  ")))
    lines += [".fi", ".SH SEE ALSO", ", ".join(f"{_plain(each)}(1)" for each in PROGRAMS)]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Return text without the characters that roff reads."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def pages() -> dict[str, str]:
    """Return all pages by file name."""
    found = {}
    for name, top in PROGRAMS.items():
        for whole, command, context in commands(top, click.Context(top, info_name=name, max_content_width=80)):
            found[f"{whole}.1"] = page(whole, command, context)
    return found


def main(folder: Path) -> None:
    """Write the pages."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for name, text in made.items():
        (folder / name).write_text(text)
    print(f"{len(made)} man pages in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
