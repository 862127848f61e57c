"""``tiered local move``: a partition from one log directory to another."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click

from tiered.errors import ConfigError, DiskFullError
from tiered.local.directory.directories import LocalLogs
from tiered.local.directory.manager import LocalLog
from tiered.model import TopicPartition
from tiered.program.application import Application, Command, pass_application
from tiered.program.confirming import confirm, destructive, one_partition
from tiered.program.doors import folder, need_directory
from tiered.program.output import counted, human_bytes


@click.command("move", cls=Command, short_help="Move a partition to another log directory.")
@click.argument("partition", metavar="TOPIC:P")
@click.argument("target", metavar="DIR", type=click.Path(file_okay=False))
@destructive
@pass_application
def move_command(app: Application, *, partition: str, target: str, dry_run: bool, yes: bool) -> int:
    """Move a partition from --log-dir to DIR; neither may have a writer. The old files are kept for a minute.

    DIR is made where it does not exist. A log over several directories is opened with all of them from then on. A
    partition that is tiered stays.

    \b
    Examples:
      tiered local move flights:0 /mnt/disk2/log --log-dir data --dry-run
      tiered local move flights:0 /mnt/disk2/log --log-dir data --yes
    """
    source, tp = app.need_log_dir(), one_partition(partition)
    need_directory(app)
    return _move(app, source, tp, folder("DIR", target), dry_run=dry_run, yes=yes)


def _move(app: Application, source: Path, tp: TopicPartition, target: Path, *, dry_run: bool, yes: bool) -> int:
    with LocalLog.open(source, clock=app.clock, ids=app.ids, read_only=True) as log:
        _check(log, tp, target)
        positions = log.partition(tp).positions()
    size_bytes = sum(path.stat().st_size for path in (source / str(tp)).iterdir() if path.is_file())
    _check_space(target, size_bytes)
    fields: dict[str, Any] = {
        "dry_run": dry_run,
        "topic": tp.topic,
        "partition": tp.partition,
        "from": str(source),
        "to": str(target),
        "start_offset": positions.local_start_offset,
        "end_offset": positions.end_offset,
        "size_bytes": size_bytes,
    }
    made = "" if target.is_dir() else ", which would be made" if dry_run else ", which is made"
    if not dry_run:
        app.out.say(f"{tp}: {human_bytes(size_bytes)} from {source} to {target}{made}")
        confirm(app, "local move", f"Move {tp} to {target}?", yes=yes)
        with LocalLogs.open([source, target], clock=app.clock, ids=app.ids) as logs:
            logs.move(tp, target)
            fields["end_offset"] = logs.partition(tp).positions().end_offset
    count = counted(fields["end_offset"] - fields["start_offset"], "offset")
    verb = "dry run: {} would move" if dry_run else "{} moved"
    line = f"{verb.format(tp)} to {target}{made if dry_run else ''}: {count}, {human_bytes(size_bytes)}"
    return app.out.result("local move", fields, [line])


def _check(log: LocalLog, tp: TopicPartition, target: Path) -> None:
    """All that a move would refuse, before anything is asked or made."""
    source, place = log.directory.resolve(), target.resolve()
    if (target / str(tp)).is_dir():
        raise ConfigError(f"{tp} is in {target} already", hint="name another directory")
    log.partition(tp)
    if place.is_relative_to(source) or source.is_relative_to(place):
        raise ConfigError(f"{target} and {log.directory} lie one in the other", hint="name a directory beside it")
    if tp in log.claims.read() or tp in log.uploads.read():
        raise ConfigError(f"{tp} is tiered: the bucket knows it by its volume", hint="`tiered restore` moves it")


def _check_space(target: Path, size_bytes: int) -> None:
    existing = next(path for path in (target.absolute(), *target.absolute().parents) if path.is_dir())
    free_bytes = shutil.disk_usage(existing).free
    if size_bytes > free_bytes:
        raise DiskFullError(
            f"{target} has {human_bytes(free_bytes)} free, the partition needs {human_bytes(size_bytes)}",
            hint="free space there, or name a directory of another disk",
        )
