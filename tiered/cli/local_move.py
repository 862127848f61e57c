"""``tiered local move``: a partition from one log directory to another."""

from __future__ import annotations

from pathlib import Path

import click

from tiered.cli.application import Application, Command, pass_application
from tiered.cli.confirming import confirm, destructive, one_partition
from tiered.errors import NotFoundError
from tiered.local.directory.directories import LocalLogs


@click.command("move", cls=Command)
@click.argument("partition", metavar="TOPIC:P")
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@destructive
@pass_application
def move_command(app: Application, *, partition: str, target: Path, dry_run: bool, yes: bool) -> int:
    """Move a partition from --log-dir to DIR; neither may have a writer. The old files are kept for a minute.

    A log over several directories is opened with all of them from then on. A partition that is tiered stays.

    \b
    Example:
      tiered local move flights:0 /mnt/disk2/log --log-dir data --yes
    """
    source, tp = app.need_log_dir(), one_partition(partition)
    if not source.is_dir():
        raise NotFoundError(f"there is no log directory {source}", hint="correct --log-dir")
    fields = {"dry_run": dry_run, "topic": tp.topic, "partition": tp.partition, "from": str(source), "to": str(target)}
    if not dry_run:
        app.out.say(f"{tp}: {source} -> {target}")
        confirm(app, "local move", f"Move {tp} to {target}?", yes=yes)
    elif not target.is_dir():  # opening it would make it
        return app.out.result("local move", fields, [f"dry run: {tp} would move to {target}, which would be made"])
    with LocalLogs.open([source, target], clock=app.clock, ids=app.ids) as logs:
        end = logs.partition(tp).positions().end_offset
        if not dry_run:
            logs.move(tp, target)
    verb = "would move" if dry_run else "moved"
    line = f"{'dry run: ' if dry_run else ''}{tp} {verb} to {target}, {end:,} offsets"
    return app.out.result("local move", {**fields, "end_offset": end}, [line])
