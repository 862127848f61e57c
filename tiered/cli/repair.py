"""``tiered repair``: the way back for a log that another volume has fenced."""

from __future__ import annotations

import sys

import click

from tiered.cli.application import Application, Command, Group, pass_application
from tiered.cli.confirming import one_partition
from tiered.cli.doors import need_directory
from tiered.cli.output import columns, counted
from tiered.errors import ConfigError
from tiered.rejoin import plan_rejoin, rejoin


@click.group("repair", cls=Group)
def command() -> None:
    """Bring a log back to work; nothing is ever deleted."""


@command.command("rejoin", cls=Command)
@click.argument("selected", nargs=-1, metavar="[TOPIC:P...]")
@click.option("--dry-run", is_flag=True, help="print the plan only")
@click.option("--yes", is_flag=True, help="do not ask")
@pass_application
def rejoin_command(app: Application, *, selected: tuple[str, ...], dry_run: bool, yes: bool) -> int:
    """Let a fenced log start again where the bucket ends. Its own files are set aside beside the log directory.

    \b
    Examples:
      tiered repair rejoin --log-dir data --dry-run
      tiered repair rejoin flights:0 --log-dir data --yes
    """
    directory = app.need_log_dir()
    need_directory(app)
    plan = plan_rejoin(directory, [one_partition(text) for text in selected], clock=app.clock)
    rows = [[aside.tp, aside.committed_end, aside.end_offset] for aside in plan.partitions]
    text = columns(["partition", "committed end", "end on this disk"], rows)
    for line in text:
        app.out.say(line)
    if not dry_run:
        _confirm(app, f"Set these partitions aside in {plan.target}?", yes=yes)
        rejoin(plan, clock=app.clock)
    verb = "would be set aside" if dry_run else "set aside"
    fields = {
        "dry_run": dry_run,
        "target": str(plan.target),
        "partitions": [
            {
                "topic": aside.tp.topic,
                "partition": aside.tp.partition,
                "committed_end": aside.committed_end,
                "end_offset": aside.end_offset,
            }
            for aside in plan.partitions
        ],
    }
    done = f"{'dry run: ' if dry_run else ''}{counted(len(rows), 'partition')} {verb} in {plan.target}"
    return app.out.result("repair rejoin", fields, [done, "the next open claims and resumes at the bucket's end"])


def _confirm(app: Application, question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty() or app.out.json_mode:
        raise ConfigError("repair rejoin asks before it moves files, and nobody can answer here", hint="pass --yes")
    if not click.confirm(question, err=True):
        raise ConfigError("nothing was done", hint="--dry-run prints the plan only")
