"""Entry point: find the command, run it, and turn its end into an exit code.

::

    0    done, complete                      12       credentials or permission
    1    failed                              13       corruption
    2    usage or configuration              14       offsets that are in no tier
    3    finished with warnings, incomplete  75       try again: store unreachable, data still local, disk full
    4    the input was empty (append)        130/143  stopped by Ctrl-C / SIGTERM before it finished
    10   no such log, topic or bucket
    11   locked, fenced
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click

from tiered.program.application import Group
from tiered.program.command_line import run_command


class CommandEntry(NamedTuple):
    """A command of the list: its section and its line in the help. Its module has its name."""

    section: str
    about: str


COMMANDS = {
    "append": CommandEntry("Records", "Append records from standard input."),
    "cat": CommandEntry("Records", "Print records: those in the bucket first, then those on this disk."),
    "topic": CommandEntry("Records", "List, create, show, change, delete and transfer topics."),
    "export": CommandEntry("Records", "Write the records of a topic to a Parquet, CSV or JSON lines file."),
    "maintain": CommandEntry("Run", "Expire, merge and compact in the bucket, and delete garbage."),
    "status": CommandEntry("Run", "Print whether the records are safe, and where they are."),
    "snapshot": CommandEntry("Keep", "Create, list and delete versions of the bucket that stay readable."),
    "restore": CommandEntry("Keep", "Build a log directory from the bucket alone."),
    "check": CommandEntry("Keep", "Verify a log: bytes, indexes, catalog and objects."),
    "repair": CommandEntry("Keep", "Repair a log. Copies of replaced objects and files stay."),
    "erase": CommandEntry("Keep", "Delete the records of some keys from the bucket for good."),
    "inspect": CommandEntry("Look", "Print what the files of any Kafka log directory hold."),
    "doctor": CommandEntry("Look", "Check program, settings, disk and store, and advise."),
    "cost": CommandEntry("Look", "Print what a log costs at its store, or will cost in a month."),
    "config": CommandEntry("Look", "Print every setting, its value and its origin."),
    "iam-policy": CommandEntry("Look", "Print the smallest IAM policy for one kind of program."),
    "metrics": CommandEntry("Look", "Print the metrics of a log directory, as Prometheus reads them."),
    "disk": CommandEntry("Look", "Compact, drop, move and truncate partitions on this disk."),
    "group": CommandEntry("Look", "List groups of consumers, show their lag, set their positions, delete them."),
    "transaction": CommandEntry("Look", "List transactions of a log directory, and abort one that hangs."),
    "completion": CommandEntry("Look", "Print the code with which a shell completes commands and options."),
    "spark": CommandEntry("Spark", "Maintain, check, erase and export a bucket on Spark."),
}
"""Commands by name, in the order of daily work. A command's module is imported only when the command is used."""
SECTIONS = ("Records", "Run", "Keep", "Look", "Spark")


class Commands(Group):
    """Group of all commands. It imports a command's module when that command is needed."""

    exits: Mapping[int, str] = {**Group.exits, 4: "empty input (append)"}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of daily use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return its ``command``, None for an unknown name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = importlib.import_module(f"tiered.cli.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands from the list into the help, without importing them."""
        for section in SECTIONS:
            with formatter.section(section):
                formatter.write_dl([(name, each.about) for name, each in COMMANDS.items() if each.section == section])


@click.group(cls=Commands, name="tiered")
def tiered() -> None:
    """A log in Kafka's file format: the hot tail on this disk, everything older on S3.

    Data goes to stdout, messages to stderr. A flag has precedence over TIERED_*, that over --config FILE. The daemon is
    a program of its own: tiered-uploader run, sync, pause, resume.
    """


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Never prints a traceback without ``--debug``."""
    if "_TIERED_COMPLETE" in os.environ:
        tiered.main(args=list(arguments), prog_name="tiered")
    return run_command(tiered, "tiered", arguments)
