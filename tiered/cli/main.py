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
from collections.abc import Sequence
from typing import NamedTuple

import click

from tiered.program.application import Group
from tiered.program.command_line import run_command


class CommandEntry(NamedTuple):
    """A command of the list: its module and its line in the help."""

    module: str
    about: str


COMMANDS = {
    "append": CommandEntry("tiered.cli.append", "Append records from standard input."),
    "cat": CommandEntry("tiered.cli.cat", "Print records: what is on S3 first, then what is on this disk."),
    "tail": CommandEntry("tiered.cli.tail", "Print the last records of a topic."),
    "topics": CommandEntry("tiered.cli.topics", "List, create, describe, alter, delete and hand over topics."),
    "offsets": CommandEntry(
        "tiered.cli.offsets",
        "Print offsets: the earliest, the latest (where the next record goes), and the first at or after a time.",
    ),
    "status": CommandEntry("tiered.cli.status", "Say whether the records are safe, and where every partition stands."),
    "segments": CommandEntry("tiered.cli.segments", "List segments: offsets, sizes, times, and which tier holds them."),
    "dump-segment": CommandEntry(
        "tiered.cli.dump_segment",
        "Print batches, records, index entries, snapshots and checkpoints; works on any Kafka log directory.",
    ),
    "doctor": CommandEntry(
        "tiered.cli.doctor",
        "Check the program, the settings, the log directory and the store, and say what to change.",
    ),
    "iam-policy": CommandEntry(
        "tiered.cli.iam_policy",
        "Print the policy for one kind of program: exactly the keys of --remote, and no action that it does without.",
    ),
    "check": CommandEntry(
        "tiered.cli.check",
        "Verify a log: every local byte, the catalog's invariants, every object and index of the bucket.",
    ),
    "restore": CommandEntry(
        "tiered.cli.restore",
        "Build a log directory from the bucket alone, ready to be opened for writing.",
    ),
    "repair": CommandEntry("tiered.cli.repair", "Repair a log. What is replaced is kept."),
    "maintain": CommandEntry("tiered.cli.maintain", "Retention, merging and compaction of what is in the bucket."),
    "gc": CommandEntry("tiered.cli.gc", "Delete what the catalog names no more, once nobody can need it."),
    "erase": CommandEntry("tiered.cli.erase", "Take the records of some keys out of the bucket, for good."),
    "spark": CommandEntry(
        "tiered.cli.spark",
        "Maintenance, checks, erasures and exports of a bucket on Spark, for what outgrows one machine.",
    ),
    "snapshot": CommandEntry(
        "tiered.cli.snapshot",
        "Keep a version of the bucket readable: nothing that it names is collected.",
    ),
    "local": CommandEntry("tiered.cli.local", "Background tasks and log directories of this machine."),
    "transactions": CommandEntry(
        "tiered.cli.transactions",
        "Transactions of a log directory: by id, by partition, and those that hang.",
    ),
    "truncate": CommandEntry("tiered.cli.truncate", "Remove the records of a partition from an offset on."),
    "config": CommandEntry("tiered.cli.config", "Settings of the command line."),
}
"""Commands by name. A command's module is imported only when the command is used."""


class Commands(Group):
    """The top group, which imports a command's module when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of daily work, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the module's ``command``."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = importlib.import_module(entry.module).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands from the list, so that the help imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.about) for name, entry in COMMANDS.items()])


@click.group(cls=Commands, name="tiered")
def tiered() -> None:
    """A log in Kafka's file format: the hot tail on this disk, everything older on S3.

    Data goes to stdout, talk to stderr. Settings: flag, then TIERED_*, then --config FILE, then default.
    """


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Never raises, never prints a traceback without ``--debug``."""
    if "_TIERED_COMPLETE" in os.environ:
        tiered.main(args=list(arguments), prog_name="tiered")
    return run_command(tiered, "tiered", arguments)
