"""``tiered group``: list groups, show their lag, set their positions, delete them. In a bucket: ``group_bucket``."""

from __future__ import annotations

from typing import Any

import click

from tiered.cli import group_bucket
from tiered.errors import ConfigError, NotFoundError
from tiered.local.directory.log_directory import LocalLog
from tiered.local.partition.read_log import ReadLog
from tiered.local.transactions.group_positions import GroupLag, GroupPositions, GroupTable
from tiered.model import Position, TopicPartition
from tiered.program.application import Application, Command, Group, confirm, pass_application, topic_or_partition
from tiered.program.open_log import open_directory, open_view
from tiered.program.output import columns, human_duration
from tiered.times import format_time, parse_time


@click.group(cls=Group, name="group")
def command() -> None:
    """List groups of consumers, show their lag, set their positions, delete them."""


@command.command("list", cls=Command)
@pass_application
def list_command(app: Application) -> int:
    """List the groups that have committed positions, with the offsets that they have not read.

    A group lives in a log or in a bucket. Without --log-dir a group of a log is as its last copy in the bucket.

    \b
    Example:
      tiered group list --log-dir data --remote s3://acme-logs/prod
    """
    app.need_a_tier()
    groups: dict[str, list[GroupLag]] = {}
    for lag in _lags(app) if app.log_dir is not None else ():
        groups.setdefault(lag.group, []).append(lag)
    found = [
        {"group": name, "where": "log", "partitions": len(lags), "lag_records": sum(lag.records for lag in lags)}
        for name, lags in groups.items()
    ]
    if app.remote is not None:
        found += group_bucket.copied_fields(app, groups.keys()) + group_bucket.group_fields(app)
    names = ["group", "where", "partitions", "lag_records"]
    rows = [[each[name] for name in names] for each in found]
    text = columns(["group", "where", "partitions", "lag"], rows) if found else ["no group has committed a position"]
    return app.out.result("group list", {"groups": found}, text)


@command.command("show", cls=Command)
@click.argument("group")
@pass_application
def show_command(app: Application, *, group: str) -> int:
    """Print the positions of a group beside the ends of their partitions on this disk.

    \b
    Example:
      tiered group show billing --log-dir data
    """
    if _is_in_bucket(app, group):
        return group_bucket.show_group(app, group)
    found = [_fields(lag) for lag in _lags(app) if lag.group == group]
    if not found:
        raise _unknown(group)
    names = ["topic", "partition", "position", "end_offset", "lag_records"]
    rows = [
        [
            *(each[name] for name in names),
            human_duration(int(each["lag_seconds"] * 1000)),
            format_time(each["committed_ms"]),
        ]
        for each in found
    ]
    text = columns(["topic", "partition", "position", "end", "lag", "lag in time", "committed"], rows)
    return app.out.result("group show", {"group": group, "positions": found}, text)


@command.command("reset", cls=Command)
@click.argument("group")
@click.argument("selected", nargs=-1, metavar="[TOPIC[:P]]...")
@click.option("--to", "to", required=True, metavar="beginning|end|OFFSET|TIME", help="where the group goes on")
@click.option("--force", is_flag=True, help="in a bucket: also while there are members, such as one that was killed")
@pass_application
def reset_command(app: Application, *, group: str, selected: tuple[str, ...], to: str, force: bool) -> int:
    """Set the positions of a group in topics or partitions. No program may write to the directory meanwhile.

    A time means the first record at or after it. In a bucket the consumers of the group have stopped first. A group
    that is in no log is made there, if its topics are named; otherwise all its topics are set.

    \b
    Examples:
      tiered group reset billing orders --to beginning --log-dir data --dry-run
      tiered group reset billing orders:0 --to -1h --log-dir data --yes
    """
    if _is_in_bucket(app, group):
        return group_bucket.reset_positions(app, group, selected, to, force=force)
    if not selected:
        where = "" if app.log_dir is None else f" --log-dir {app.log_dir}"
        raise ConfigError("no topic was named", hint=f"name one: tiered group reset {group} TOPIC --to {to}{where}")
    targets: dict[TopicPartition, int] = {}
    for each in selected:
        targets |= _targets(app, each, to)
    if not app.dry_run:
        confirm(app, "group reset", f"Set {len(targets)} positions of group {group}?")
        with open_directory(app) as log:
            now_ms = app.clock.now_ms()
            positions = {tp: Position(offset, committed_ms=now_ms) for tp, offset in targets.items()}
            log.transactions.positions.commit(group, positions)
            _flush(log, group)
    fields = [{"topic": tp.topic, "partition": tp.partition, "position": offset} for tp, offset in targets.items()]
    verb = "would be set" if app.dry_run else "set"
    text = [f"{tp}: the position of {group} {verb} to {offset}" for tp, offset in targets.items()]
    return app.out.result("group reset", {"group": group, "positions": fields, "dry_run": app.dry_run}, text)


@command.command("delete", cls=Command)
@click.argument("group")
@pass_application
def delete_command(app: Application, *, group: str) -> int:
    """Delete all positions of a group. No program may write to the directory meanwhile.

    \b
    Example:
      tiered group delete billing --log-dir data --yes
    """
    if _is_in_bucket(app, group):
        return group_bucket.delete_positions(app, group)
    with open_view(app) as view:
        known = GroupTable(view).groups().get(group)
    if known is None:
        raise _unknown(group)
    if not app.dry_run:
        confirm(app, "group delete", f"Delete {len(known)} positions of group {group}?")
        with open_directory(app) as log:
            log.transactions.positions.delete(group, list(known), app.clock.now_ms())
            _flush(log, group)
    verb = "would be deleted" if app.dry_run else "deleted"
    fields = {"group": group, "positions": len(known), "dry_run": app.dry_run}
    return app.out.result("group delete", fields, [f"{len(known)} positions of {group} {verb}"])


def _is_in_bucket(app: Application, group: str) -> bool:
    """Return True for a group of the bucket: no log directory is set, or the directory has no position of the group."""
    if app.log_dir is None or app.remote is None:
        return app.log_dir is None and app.need_remote() != ""
    with open_view(app) as view:
        return group not in GroupTable(view).groups()


def _targets(app: Application, selected: str, to: str) -> dict[TopicPartition, int]:
    """Return the new positions in a topic or a partition on this disk. Raises NotFoundError."""
    wanted = topic_or_partition(selected)
    with open_view(app) as view:
        topics = view.topics()
        name = wanted if isinstance(wanted, str) else wanted.topic
        if name not in topics:
            raise NotFoundError(f"there is no topic {name} here", hint="`tiered topic list` names the topics")
        here = [TopicPartition(name, number) for number in topics[name].here]
        targets = {tp: _target(app, view.partition(tp), to) for tp in here if wanted in (name, tp)}
    if not targets:
        raise NotFoundError(f"{selected} is not on this disk", hint=f"`tiered topic show {name}` names the partitions")
    return targets


def _flush(log: LocalLog, group: str) -> None:
    positions: GroupPositions = log.transactions.positions
    positions.log(positions.partition_of(group)).flush()


def _lags(app: Application) -> list[GroupLag]:
    with open_view(app) as view:
        return GroupTable(view).lags(app.clock.now_ms())


def _unknown(group: str) -> NotFoundError:
    return NotFoundError(f"group {group!r} has committed no position here", hint="`tiered group list` names the groups")


def _fields(lag: GroupLag) -> dict[str, Any]:
    return {
        "topic": lag.tp.topic,
        "partition": lag.tp.partition,
        "position": lag.position.offset,
        "leader_epoch": lag.position.leader_epoch,
        "metadata": lag.position.metadata,
        "committed_ms": lag.position.committed_ms,
        "end_offset": lag.end_offset,
        "lag_records": lag.records,
        "lag_seconds": lag.seconds,
    }


def _target(app: Application, log: ReadLog, to: str) -> int:
    """Return the offset that ``to`` means in one partition. Raises ConfigError for one outside of it."""
    at = log.positions()
    if to in ("beginning", "end"):
        return at.start_offset if to == "beginning" else at.end_offset
    if to.isascii() and to.isdigit() and len(to) < 13:
        if not at.start_offset <= int(to) <= at.end_offset:
            hint = f"it has {at.start_offset} to {at.end_offset}"
            raise ConfigError(f"{log.tp} has no offset {to}", hint=hint)
        return int(to)
    found = log.offset_for_time(parse_time(to, now_ms=app.clock.now_ms()))
    return at.end_offset if found is None else found[0]
