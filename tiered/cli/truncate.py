"""``tiered truncate``: cuts a local log at an offset."""

from __future__ import annotations

import click

from tiered.cli.application import Application, Command, pass_application
from tiered.cli.confirming import confirm, destructive, one_partition
from tiered.errors import ConfigError, NotFoundError
from tiered.local.directory.manager import LocalLog


@click.command("truncate", cls=Command)
@click.argument("partition", metavar="TOPIC:P")
@click.argument("offset", type=click.IntRange(min=0))
@destructive
@pass_application
def command(app: Application, *, partition: str, offset: int, dry_run: bool, yes: bool) -> int:
    """Remove the records of a partition from OFFSET on; never what a bucket holds. There must be no writer.

    A batch that holds OFFSET goes whole.

    \b
    Example:
      tiered truncate flights:0 4711 --log-dir data --yes
    """
    directory, tp = app.need_log_dir(), one_partition(partition)
    if not directory.is_dir():
        raise NotFoundError(f"there is no log directory {directory}", hint="correct --log-dir")
    with LocalLog.open(directory, clock=app.clock, ids=app.ids) as log:
        before = log.partition(tp).positions()
        if offset > before.end_offset:
            raise ConfigError(f"{tp} ends at offset {before.end_offset}: there is nothing to cut at {offset}")
        app.out.say(f"{tp}: records {offset} to {before.end_offset} go; {before.uploaded_offset} is in the bucket")
        if not dry_run:
            confirm(app, "truncate", f"Remove {before.end_offset - offset:,} offsets of {tp}?", yes=yes)
            log.partition(tp).truncate_to(offset)
        after = offset if dry_run else log.partition(tp).positions().end_offset
    fields = {
        "dry_run": dry_run,
        "topic": tp.topic,
        "partition": tp.partition,
        "end_offset_before": before.end_offset,
        "end_offset": after,
    }
    line = f"{'dry run: ' if dry_run else ''}{tp} {'would end' if dry_run else 'ends'} at offset {after}"
    return app.out.result("truncate", fields, [line])
