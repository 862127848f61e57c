"""``tiered group``: list groups, show their lag, set their positions, delete them; of a log and of a bucket."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import click

from tiered import arguments
from tiered.errors import ConfigError, NotFoundError, TieredError
from tiered.group.admin import GroupPartition, delete_group, list_groups, load_group, load_lags, reset_group
from tiered.local.directory.log_directory import LocalLog
from tiered.local.transactions.group_positions import GroupLag, GroupPositions, GroupTable
from tiered.model import Position, TopicPartition
from tiered.plan.root_lower_bounds import NOTHING_KNOWN
from tiered.program.application import Application, Command, Group, confirm, pass_application, topic_or_partition
from tiered.program.open_log import Tiers, TopicFacts, open_directory, open_tiers, open_view
from tiered.program.output import Problem, columns, counted, human_duration
from tiered.program.places import LogPlace, place
from tiered.remote.positions import load_positions
from tiered.remote.reader import RemotePartition
from tiered.times import format_time


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
        found += _copied_groups(app, groups.keys()) + _groups_of_bucket(app)
    names = ["group", "where", "partitions", "lag_records"]
    rows = [[each[name] for name in names] for each in found]
    text = columns(["group", "where", "partitions", "lag"], rows) if found else ["no group has committed a position"]
    return app.out.result("group list", {"groups": found}, text)


@command.command("show", cls=Command)
@click.argument("group")
@pass_application
def show_command(app: Application, *, group: str) -> int:
    """Print the positions of a group, and the ends of their partitions.

    \b
    Example:
      tiered group show billing --log-dir data
    """
    if _is_in_bucket(app, group):
        return _show_in_bucket(app, group)
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
@click.option(
    "--to", "to", required=True, metavar="WHERE", help="where the group goes on: beginning, end, an offset or a time"
)
@click.option("--force", is_flag=True, help="in a bucket: also while there are members, such as one that was killed")
@pass_application
def reset_command(app: Application, *, group: str, selected: tuple[str, ...], to: str, force: bool) -> int:
    """Set the positions of a group in topics or partitions. No program may write to the directory meanwhile.

    A time means the first record at or after it. In a bucket, stop the consumers of the group first. A new
    group is created, with --remote in the bucket. Only there the topics may be left out: then all are set.

    \b
    Examples:
      tiered group reset billing orders --to beginning --log-dir data --dry-run
      tiered group reset billing orders:0 --to -1h --log-dir data --yes
    """
    at = place("--to", to, app.clock.now_ms())
    arguments.text("group", group)
    if _is_in_bucket(app, group):
        return _reset_in_bucket(app, group, selected, at, force=force)
    if not selected:
        where = "" if app.log_dir is None else f" --log-dir {app.log_dir}"
        raise ConfigError("no topic was named", hint=f"name one: tiered group reset {group} TOPIC --to {to}{where}")
    targets: dict[TopicPartition, int] = {}
    for each in selected:
        targets |= _targets(app, each, at)
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
        return _delete_in_bucket(app, group)
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
    """Return True if the bucket's group is meant: without a log directory, or if the directory has no such group.

    Without a bucket return False. Raises ConfigError if neither is set.
    """
    if app.log_dir is None or app.remote is None:
        return app.log_dir is None and app.need_remote() != ""
    with open_view(app) as view:
        return group not in GroupTable(view).groups()


def _targets(app: Application, selected: str, at: LogPlace) -> dict[TopicPartition, int]:
    """Return the offset of the place ``at`` in each partition of a topic, or in one, on this disk.

    ``selected``: ``TOPIC`` or ``TOPIC:P``. Raises NotFoundError if it is not on this disk.
    """
    wanted = topic_or_partition(selected)
    with open_view(app) as view:
        topics = view.topics()
        name = wanted if isinstance(wanted, str) else wanted.topic
        if name not in topics:
            raise NotFoundError(f"there is no topic {name} here", hint="`tiered topic list` names the topics")
        here = [TopicPartition(name, number) for number in topics[name].here]
        logs = [view.partition(tp) for tp in here if wanted in (name, tp)]
        targets = {
            log.tp: _target(log.tp, at, log.positions().start_offset, log.positions().end_offset, log.offset_for_time)
            for log in logs
        }
    if not targets:
        raise NotFoundError(
            f"partition {selected} is not on this disk", hint=f"`tiered topic show {name}` names the partitions"
        )
    return targets


def _flush(log: LocalLog, group: str) -> None:
    positions: GroupPositions = log.transactions.positions
    positions.log(positions.partition_of(group)).flush()


def _lags(app: Application) -> list[GroupLag]:
    with open_view(app) as view:
        return GroupTable(view).lags(app.clock.now_ms(), partial=False)


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


def _target(
    tp: TopicPartition, at: LogPlace, start: int, end: int, for_time: Callable[[int], tuple[int, int] | None]
) -> int:
    """Return the offset of the place ``at``. Raises ConfigError unless it is ``start`` to ``end`` (inclusive).

    ``for_time``: function from a time in ms to the first record's (offset, timestamp) from then on, None without.
    """
    offset = at.offset_in(start, end, for_time)
    if not start <= offset <= end:
        raise ConfigError(f"{tp} has no offset {offset}", hint=f"it has {start} to {end}")
    return offset


EXIT_DAMAGED = 3


def _groups_of_bucket(app: Application) -> list[dict[str, Any]]:
    """Return the fields of each group of the bucket."""
    with open_tiers(app, with_local=False) as tiers:
        groups = [tiers.run(load_group(name)) for name in tiers.run(list_groups())]
        lags = [tiers.run(load_lags(info)) for info in groups]
    return [
        {
            "group": info.name,
            "where": "bucket",
            "partitions": len(info.partitions),
            "lag_records": sum(lag.records for lag in found if isinstance(lag, GroupLag)),
            "members": len(info.members),
        }
        for info, found in zip(groups, lags, strict=True)
    ]


def _copied_groups(app: Application, known: Collection[str]) -> list[dict[str, Any]]:
    """Return the fields of the groups of a log, from the copies of their positions in the bucket.

    ``known``: groups to leave out. A copy that cannot be read gives a warning.
    """
    lags: dict[str, list[int]] = {}
    with open_tiers(app, with_local=False) as tiers:
        topics = [facts for facts in tiers.topics(unreadable={}).values() if facts.remote_id is not None]
        places = [(facts, number) for facts in topics for number in range(facts.partitions)]
        copies = tiers.run(load_positions([(facts.remote_id, number) for facts, number in places if facts.remote_id]))
        for (facts, number), copy in zip(places, copies, strict=True):
            if isinstance(copy, TieredError):
                app.out.warn(copy.message)
            elif copy is not None and copy.groups.keys() - known:
                view = tiers.snapshot(facts, number)
                end = 0 if view is None else view.next_offset
                for group in copy.groups.keys() - known:
                    lags.setdefault(group, []).append(max(end - copy.groups[group].offset, 0))
    return [
        {"group": group, "where": "log", "partitions": len(found), "lag_records": sum(found)}
        for group, found in sorted(lags.items())
    ]


def _show_in_bucket(app: Application, group: str) -> int:
    """Print position, end, lag and owner of each partition of a group. Return the exit code."""
    with open_tiers(app, with_local=False) as tiers:
        info = tiers.run(load_group(group))
        pairs = zip(info.partitions, tiers.run(load_lags(info)), strict=True)
    chosen = sorted(pairs, key=lambda pair: (str(pair[0].topic_id), pair[0].partition))
    entries = [_position_fields(app, each, lag) for each, lag in chosen]
    total = sum(entry["lag_records"] or 0 for entry in entries)
    lines = columns(list(_SHOWN), [[_shown(entry, name) for name in _SHOWN.values()] for entry in entries])
    lines = [*(lines if entries else ["no positions"]), f"{counted(len(info.members), 'member')}, lag {total}"]
    fields = {"group": group, "members": list(info.members), "lag_records": total, "positions": entries}
    damaged = any(entry["state"] == "damaged" for entry in entries)
    return app.out.result("group show", fields, lines, EXIT_DAMAGED if damaged else 0)


_SHOWN = {
    "topic": "topic",
    "partition": "partition",
    "position": "position",
    "end": "end_offset",
    "lag": "lag_records",
    "lag in time": "lag_seconds",
    "owner": "owner",
    "since": "owned_since",
    "state": "state",
}
"""Columns of ``group show``, each with its field."""


def _shown(entry: Mapping[str, Any], name: str) -> Any:
    value = entry[name]
    if name == "owned_since" and value is not None:
        return format_time(value)
    if name == "lag_seconds" and value is not None:
        return human_duration(int(value * 1000))
    return Problem(value) if value == "damaged" else "" if value is None else value


def _position_fields(app: Application, each: GroupPartition, lag: GroupLag | TieredError | None) -> dict[str, Any]:
    """Return the fields of one partition. Warns about an object or a catalog that cannot be read.

    ``lag``: the lag, the error that hides it, or None if the topic was deleted.
    """
    found = each.found
    if found is None:
        why = "it was deleted just now" if each.damage is None else f"{each.damage.message}; {each.damage.hint}"
        app.out.warn(f"the position in partition {each.partition} of {each.topic_id} cannot be read: {why}")
        entry: dict[str, Any] = dict.fromkeys((*_SHOWN.values(), "leader_epoch", "metadata", "committed_ms"))
        return entry | {"topic": str(each.topic_id), "partition": each.partition, "state": "damaged"}
    place = lag if isinstance(lag, GroupLag) else None
    state = "topic deleted" if place is None else "owned" if found.owner else "free"
    if isinstance(lag, TieredError):
        state = "damaged"
        app.out.warn(f"the end of partition {each.partition} of {found.topic} is unknown: {lag.message}; {lag.hint}")
    return {
        "topic": found.topic,
        "partition": each.partition,
        "position": found.position.offset,
        "end_offset": None if place is None else place.end_offset,
        "lag_records": None if place is None else place.records,
        "lag_seconds": None if place is None else place.seconds,
        "owner": found.owner or None,
        "owned_since": found.owned_ms if found.owner else None,
        "leader_epoch": found.position.leader_epoch,
        "metadata": found.position.metadata,
        "committed_ms": found.position.committed_ms,
        "state": state,
    }


def _reset_in_bucket(app: Application, group: str, selected: Sequence[str], at: LogPlace, *, force: bool) -> int:
    """Set the positions of a group in all its topics, or in ``selected``, to the place ``at``. Return the exit code.

    ``force``: also while the group has members. Raises NotFoundError if there is no such partition in the bucket.
    """
    with open_tiers(app, with_local=False) as tiers:
        named = [topic_or_partition(text) for text in selected]
        names = [each if isinstance(each, str) else each.topic for each in named]
        wanted: dict[TopicPartition, tuple[UUID, int]] = {}
        for facts in [tiers.need_topic(name) for name in names] or _topics_of(tiers, group):
            for tp in [TopicPartition(facts.name, number) for number in range(facts.partitions)]:
                if facts.remote_id is not None and (not named or tp in named or facts.name in named):
                    wanted[tp] = facts.remote_id, _target_in_bucket(tiers, tp, facts.remote_id, at)
        if not wanted:
            raise NotFoundError(
                f"{', '.join(selected)} is not a topic or partition of the bucket",
                hint="`tiered topic list` names the topics",
            )
        if not app.dry_run:
            question = f"Set the positions of group {group} in {counted(len(wanted), 'partition')} to {at.text}?"
            confirm(app, "group reset", question)
            tiers.run(reset_group(group, wanted, force=force))
    moved = [{"topic": tp.topic, "partition": tp.partition, "position": offset} for tp, (_, offset) in wanted.items()]
    rows = [[tp, offset] for tp, (_, offset) in wanted.items()]
    fields = {"group": group, "dry_run": app.dry_run, "positions": moved}
    return app.out.result("group reset", fields, columns(["partition", "position"], rows))


def _delete_in_bucket(app: Application, group: str) -> int:
    """Delete a group with all its positions. Return the exit code."""
    with open_tiers(app, with_local=False) as tiers:
        info = tiers.run(load_group(group))
        partitions = counted(len(info.partitions), "partition")
        if not app.dry_run:
            confirm(app, "group delete", f"Delete group {group} with its positions in {partitions}?")
            tiers.run(delete_group(group))
    done = "would be deleted" if app.dry_run else "deleted"
    fields = {"group": group, "dry_run": app.dry_run, "positions": len(info.partitions)}
    return app.out.result("group delete", fields, [f"group {group}, positions in {partitions}: {done}"])


def _topics_of(tiers: Tiers, group: str) -> Sequence[TopicFacts]:
    """Return the topics in which a group has positions. Raises NotFoundError if it has none in an existing topic."""
    ids = {each.topic_id for each in tiers.run(load_group(group)).partitions}
    chosen = [facts for facts in tiers.topics(unreadable={}).values() if facts.remote_id in ids]
    if not chosen:
        raise NotFoundError(f"group {group} has no position in any existing topic", hint="name the topics to reset")
    return chosen


def _target_in_bucket(tiers: Tiers, tp: TopicPartition, topic_id: UUID, at: LogPlace) -> int:
    partition = RemotePartition(tp, topic_id, known=NOTHING_KNOWN)
    view = tiers.run(partition.snapshot())
    start, end = (0, 0) if view is None else (view.start_offset, view.next_offset)
    return _target(tp, at, start, end, lambda time_ms: tiers.run(partition.offset_for_time(time_ms)))
