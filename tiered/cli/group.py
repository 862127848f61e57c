"""``tiered group``: list groups, show their lag, set their positions, delete them; of a log and of a bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

import click

from tiered import arguments
from tiered.errors import ConfigError, NotFoundError, TieredError
from tiered.group.admin import GroupPartition, delete_group, list_groups, load_group, load_lags, reset_group
from tiered.local.partition.read_log import ReadLog
from tiered.local.transactions.group_positions import GroupLag, GroupPositions, GroupTable
from tiered.model import Position, TopicPartition
from tiered.plan.root_lower_bounds import NOTHING_KNOWN
from tiered.program.application import Application, Command, Group, confirm, pass_application, topic_or_partition
from tiered.program.open_log import Tiers, TopicFacts, open_directory, open_tiers, open_view
from tiered.program.output import Problem, columns, counted, human_duration
from tiered.program.places import LogPlace, place
from tiered.read.topic import PartitionStream
from tiered.remote.positions import load_positions
from tiered.remote.reader import RemotePartition
from tiered.store.driver import Runner
from tiered.times import format_time

EXIT_DAMAGED = 3


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
    lags = _lags_of_log(app) if app.log_dir is not None else []
    found = _sums((lag.group, lag.records) for lag in lags)
    if app.remote is not None:
        known = {lag.group for lag in lags}
        with open_tiers(app, with_local=False) as tiers:
            found += _sums(pair for pair in _copied_lags(app, tiers) if pair[0] not in known)
            for name in tiers.run(list_groups()):
                info = tiers.run(load_group(name))
                behind = sum(lag.records for lag in tiers.run(load_lags(info)) if isinstance(lag, GroupLag))
                fields = {"partitions": len(info.partitions), "lag_records": behind, "members": len(info.members)}
                found.append({"group": name, "where": "bucket", **fields})
    names = ["group", "where", "partitions", "lag_records"]
    rows = [[each[name] for name in names] for each in found]
    text = columns(["group", "where", "partitions", "lag"], rows) if found else ["no group has committed a position"]
    return app.out.result("group list", {"groups": found}, text)


def _sums(lags: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    """Return the fields of each group of a log. ``lags``: group and lag in records of each position."""
    of_group: dict[str, list[int]] = {}
    for group, records in lags:
        of_group.setdefault(group, []).append(records)
    return [
        {"group": group, "where": "log", "partitions": len(found), "lag_records": sum(found)}
        for group, found in sorted(of_group.items())
    ]


def _copied_lags(app: Application, tiers: Tiers) -> Iterator[tuple[str, int]]:
    """Yield group and lag in records of each copied position of a log. Warn about a copy that cannot be read."""
    topics = [facts for facts in tiers.topics(unreadable={}).values() if facts.remote_id is not None]
    places = [(facts, number) for facts in topics for number in range(facts.partitions)]
    copies = tiers.run(load_positions([(facts.remote_id, number) for facts, number in places if facts.remote_id]))
    for (facts, number), copy in zip(places, copies, strict=True):
        if isinstance(copy, TieredError):
            app.out.warn(copy.message)
        elif copy is not None and copy.groups:
            view = tiers.snapshot(facts, number)
            end = 0 if view is None else view.next_offset
            yield from ((group, max(end - at.offset, 0)) for group, at in copy.groups.items())


def _lags_of_log(app: Application) -> list[GroupLag]:
    with open_view(app) as view:
        return GroupTable(view).lags(app.clock.now_ms(), partial=False)


def _is_in_bucket(app: Application, group: str) -> bool:
    """Return True if the bucket's group is meant: without a log directory, or if the directory has no such group.

    Without a bucket return False. Raises ConfigError if neither is set.
    """
    if app.log_dir is None or app.remote is None:
        return app.log_dir is None and app.need_remote() != ""
    with open_view(app) as view:
        return group not in GroupTable(view).groups()


# -- show --------------------------------------------------------------------------------------------------------------


@command.command("show", cls=Command)
@click.argument("group")
@pass_application
def show_command(app: Application, *, group: str) -> int:
    """Print the positions of a group, and the ends of their partitions.

    \b
    Example:
      tiered group show billing --log-dir data
    """
    fields: dict[str, Any] = {"group": group}
    if _is_in_bucket(app, group):
        with open_tiers(app, with_local=False) as tiers:
            info = tiers.run(load_group(group))
            pairs = list(zip(info.partitions, tiers.run(load_lags(info)), strict=True))
        pairs.sort(key=lambda pair: (str(pair[0].topic_id), pair[0].partition))
        entries = [_fields_of_bucket(app, each, lag) for each, lag in pairs]
        total = sum(entry["lag_records"] or 0 for entry in entries)
        fields |= {"members": list(info.members), "lag_records": total}
        summary = [f"{counted(len(info.members), 'member')}, lag {total}"]
    else:
        entries = [_fields(lag.tp, lag.position, lag) for lag in _lags_of_log(app) if lag.group == group]
        summary = []
        if not entries:
            raise _unknown(group)
    names = {title: name for title, name in _SHOWN.items() if any(entry[name] is not None for entry in entries)}
    table = columns(list(names), [[_shown(entry, name) for name in names.values()] for entry in entries])
    code = EXIT_DAMAGED if any(entry["state"] == "damaged" for entry in entries) else 0
    return app.out.result("group show", {**fields, "positions": entries}, [*table, *summary], code)


_SHOWN = {
    "topic": "topic",
    "partition": "partition",
    "position": "position",
    "end": "end_offset",
    "lag": "lag_records",
    "lag in time": "lag_seconds",
    "committed": "committed_ms",
    "owner": "owner",
    "since": "owned_since",
    "state": "state",
}
"""Columns of ``group show``, each with its field. A column without any value is left out."""


def _shown(entry: dict[str, Any], name: str) -> Any:
    value = entry[name]
    if name in ("owned_since", "committed_ms") and value is not None:
        return format_time(value)
    if name == "lag_seconds" and value is not None:
        return human_duration(int(value * 1000))
    return Problem(value) if value == "damaged" else "" if value is None else value


def _fields(tp: TopicPartition, at: Position | None, lag: GroupLag | None, state: str | None = None) -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "position": at and at.offset,
        "leader_epoch": at and at.leader_epoch,
        "metadata": at and at.metadata,
        "committed_ms": at and at.committed_ms,
        "end_offset": lag and lag.end_offset,
        "lag_records": lag and lag.records,
        "lag_seconds": lag and lag.seconds,
        "owner": None,
        "owned_since": None,
        "state": state,
    }


def _fields_of_bucket(app: Application, each: GroupPartition, lag: GroupLag | TieredError | None) -> dict[str, Any]:
    """Return the fields of one partition. Warns about an object or a catalog that cannot be read.

    ``lag``: the lag, the error that hides it, or None if the topic was deleted.
    """
    found = each.found
    if isinstance(found, TieredError):
        why = f"{found.message}; {found.hint}"
        app.out.warn(f"the position in partition {each.partition} of {each.topic_id} cannot be read: {why}")
        return _fields(TopicPartition(str(each.topic_id), each.partition), None, None, "damaged")
    tp = TopicPartition(found.topic, each.partition)
    owner = {"owner": found.owner or None, "owned_since": found.owned_ms if found.owner else None}
    if isinstance(lag, TieredError):
        app.out.warn(f"the end of partition {each.partition} of {found.topic} is unknown: {lag.message}; {lag.hint}")
        return _fields(tp, found.position, None, "damaged") | owner
    state = "topic deleted" if lag is None else "owned" if found.owner else "free"
    return _fields(tp, found.position, lag, state) | owner


# -- reset and delete --------------------------------------------------------------------------------------------------


@command.command("reset", cls=Command)
@click.argument("group")
@click.argument("selected", nargs=-1, metavar="[TOPIC[:P]]...")
@click.option(
    "--to", "to", required=True, metavar="WHERE", help="where the group goes on: beginning, end, an offset or a time"
)
@click.option("--force", is_flag=True, help="in a bucket: also while there are members, such as one that was killed")
@pass_application
def reset_command(app: Application, *, group: str, selected: tuple[str, ...], to: str, force: bool) -> int:
    """Set the positions of a group in topics or partitions. No program may write to the directory meanwhile.

    A time means the first record at or after it. In a bucket, stop the consumers of the group first. A new
    group is created, with --remote in the bucket. Without a topic all positions of the group are set.

    \b
    Examples:
      tiered group reset billing orders --to beginning --log-dir data --dry-run
      tiered group reset billing orders:0 --to -1h --log-dir data --yes
    """
    at = place("--to", to, app.clock.now_ms())
    in_bucket = _is_in_bucket(app, arguments.text("group", group))
    with open_tiers(app, with_local=not in_bucket, with_remote=in_bucket) as tiers:
        targets = _targets(tiers, group, selected, at)
        if not app.dry_run:
            confirm(app, "group reset", f"Set {counted(len(targets), 'position')} of group {group} to {at.text}?")
        if in_bucket and not app.dry_run:
            tiers.run(reset_group(group, targets, force=force))
    if not in_bucket and not app.dry_run:
        now_ms = app.clock.now_ms()
        positions = {tp: Position(offset, committed_ms=now_ms) for tp, (_, offset) in targets.items()}
        _change_log(app, group, lambda stored: stored.commit(group, positions))
    moved = [{"topic": tp.topic, "partition": tp.partition, "position": offset} for tp, (_, offset) in targets.items()]
    fields = {"group": group, "positions": moved, "dry_run": app.dry_run}
    rows = [[tp, offset] for tp, (_, offset) in targets.items()]
    return app.out.result("group reset", fields, columns(["partition", "position"], rows))


def _targets(tiers: Tiers, group: str, selected: Sequence[str], at: LogPlace) -> dict[TopicPartition, tuple[UUID, int]]:
    """Return topic id and offset of the place ``at``, in each selected partition of the only tier of ``tiers``.

    ``selected``: texts ``TOPIC`` or ``TOPIC:P``; none: the topics in which the group has positions. Raises
    NotFoundError for a partition that the tier does not have, ConfigError for an offset outside of the log.
    """
    named = [topic_or_partition(text) for text in selected]
    names = [each if isinstance(each, str) else each.topic for each in named]
    targets: dict[TopicPartition, tuple[UUID, int]] = {}
    for facts in [tiers.need_topic(name) for name in names] or _topics_of(tiers, group):
        for tp in [TopicPartition(facts.name, number) for number in range(facts.partitions)]:
            if facts.topic_id is None or (named and tp not in named and tp.topic not in named):
                continue
            log: ReadLog | PartitionStream
            if tiers.local is None:
                remote = RemotePartition(tp, facts.topic_id, known=NOTHING_KNOWN)
                log = PartitionStream.open(tp, local=None, remote=remote, runner=Runner(tiers.store))
            elif tp.partition in tiers.local.topics()[tp.topic].here:
                log = tiers.local.partition(tp)
            else:
                continue
            start, end = log.positions().start_offset, log.positions().end_offset
            offset = at.offset_in(start, end, log.offset_for_time)
            if not start <= offset <= end:
                raise ConfigError(f"{tp} has no offset {offset}", hint=f"it has {start} to {end}")
            targets[tp] = facts.topic_id, offset
    if not targets:
        raise NotFoundError(
            f"there is no partition {', '.join(selected)} here", hint="`tiered topic show TOPIC` names the partitions"
        )
    return targets


def _topics_of(tiers: Tiers, group: str) -> list[TopicFacts]:
    """Return the existing topics in which a group has positions. Raises NotFoundError if there are none."""
    if tiers.local is not None:
        names = {tp.topic for tp in GroupTable(tiers.local).groups().get(group, ())}
        found = [facts for facts in tiers.topics().values() if facts.name in names]
    else:
        ids = {each.topic_id for each in tiers.run(load_group(group)).partitions}
        found = [facts for facts in tiers.topics(unreadable={}).values() if facts.remote_id in ids]
    if not found:
        raise _unknown(group)
    return found


@command.command("delete", cls=Command)
@click.argument("group")
@pass_application
def delete_command(app: Application, *, group: str) -> int:
    """Delete all positions of a group. No program may write to the directory meanwhile.

    \b
    Example:
      tiered group delete billing --log-dir data --yes
    """
    in_bucket = _is_in_bucket(app, group)
    with open_tiers(app, with_local=not in_bucket, with_remote=in_bucket) as tiers:
        if tiers.local is None:
            count = len(tiers.run(load_group(group)).partitions)
        else:
            known = list(GroupTable(tiers.local).groups().get(group, ()))
            count = len(known)
            if not known:
                raise _unknown(group)
        if not app.dry_run:
            confirm(app, "group delete", f"Delete group {group} with {counted(count, 'position')}?")
            if in_bucket:
                tiers.run(delete_group(group))
    if not in_bucket and not app.dry_run:
        _change_log(app, group, lambda stored: stored.delete(group, known, app.clock.now_ms()))
    done = "would be deleted" if app.dry_run else "deleted"
    fields = {"group": group, "positions": count, "dry_run": app.dry_run}
    return app.out.result("group delete", fields, [f"group {group}, {counted(count, 'position')}: {done}"])


def _change_log(app: Application, group: str, change: Callable[[GroupPositions], None]) -> None:
    """Change the stored positions of a group of the log, and fsync them."""
    with open_directory(app) as log:
        positions: GroupPositions = log.transactions.positions
        change(positions)
        positions.log(positions.partition_of(group)).flush()


def _unknown(group: str) -> NotFoundError:
    return NotFoundError(f"group {group!r} has committed no position here", hint="`tiered group list` names the groups")
