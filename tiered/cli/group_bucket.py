"""``tiered group`` on the groups of a bucket, whose members share its partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from tiered.errors import ConfigError, NotFoundError, TieredError
from tiered.group.admin import GroupPartition, delete_group, list_groups, load_group, load_lags, reset_group
from tiered.local.transactions.group_positions import GroupLag
from tiered.model import TopicPartition
from tiered.plan.root_lower_bounds import NOTHING_KNOWN
from tiered.program.application import Application, confirm, topic_or_partition
from tiered.program.open_log import Tiers, TopicFacts, open_tiers
from tiered.program.output import Problem, columns, counted, human_duration
from tiered.remote.positions import load_positions
from tiered.remote.reader import RemotePartition
from tiered.store.base import Steps
from tiered.times import format_time, parse_time

EXIT_DAMAGED = 3
OFFSETS_BELOW = 10**11
"""Smallest number that is a time in milliseconds and no offset."""


def group_fields(app: Application) -> list[dict[str, Any]]:
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


def copied_fields(app: Application, known: Collection[str]) -> list[dict[str, Any]]:
    """Return the fields of each group of a log that has copies of its positions in the bucket, but of those ``known``.

    Warns about a copy that cannot be read.
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


def show_group(app: Application, group: str) -> int:
    """Print position, end, lag and owner of each partition of a group."""
    with open_tiers(app, with_local=False) as tiers:
        info = tiers.run(load_group(group))
        pairs = zip(info.partitions, tiers.run(load_lags(info)), strict=True)
    chosen = sorted(pairs, key=lambda pair: (str(pair[0].topic_id), pair[0].partition))
    entries = [_entry(app, each, lag) for each, lag in chosen]
    total = sum(entry["lag_records"] or 0 for entry in entries)
    lines = columns(list(_HEADER), [[_cell(entry, name) for name in _HEADER.values()] for entry in entries])
    lines = [*(lines if entries else ["no positions"]), f"{counted(len(info.members), 'member')}, lag {total}"]
    fields = {"group": group, "members": list(info.members), "lag_records": total, "positions": entries}
    damaged = any(entry["state"] == "damaged" for entry in entries)
    return app.out.result("group show", fields, lines, EXIT_DAMAGED if damaged else 0)


_HEADER = {
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


def _cell(entry: Mapping[str, Any], name: str) -> Any:
    value = entry[name]
    if name == "owned_since" and value is not None:
        return format_time(value)
    if name == "lag_seconds" and value is not None:
        return human_duration(int(value * 1000))
    return Problem(value) if value == "damaged" else "" if value is None else value


def _entry(app: Application, each: GroupPartition, lag: GroupLag | TieredError | None) -> dict[str, Any]:
    """Return the fields of one partition. Warns about an object or a catalog that cannot be read."""
    found = each.found
    if found is None:
        why = "it was deleted just now" if each.damage is None else f"{each.damage.message}; {each.damage.hint}"
        app.out.warn(f"the position in partition {each.partition} of {each.topic_id} cannot be read: {why}")
        entry: dict[str, Any] = dict.fromkeys((*_HEADER.values(), "leader_epoch", "metadata", "committed_ms"))
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


def reset_positions(app: Application, group: str, selected: Sequence[str], to: str, *, force: bool) -> int:
    """Set the positions of a group, in all its topics or those that are named."""
    with open_tiers(app, with_local=False) as tiers:
        named = [topic_or_partition(text) for text in selected]
        names = [each if isinstance(each, str) else each.topic for each in named]
        wanted: dict[TopicPartition, tuple[UUID, int]] = {}
        for facts in [tiers.need_topic(name) for name in names] or _topics_of(tiers, group):
            for tp in [TopicPartition(facts.name, number) for number in range(facts.partitions)]:
                if facts.remote_id is not None and (not named or tp in named or facts.name in named):
                    wanted[tp] = facts.remote_id, tiers.run(_target(app, tp, facts.remote_id, to))
        if not wanted:
            raise NotFoundError(f"{', '.join(selected)} names no partition of the bucket", hint="`tiered topic show`")
        if not app.dry_run:
            question = f"Set the positions of group {group} in {counted(len(wanted), 'partition')} to {to}?"
            confirm(app, "group reset", question)
            tiers.run(reset_group(group, wanted, force=force))
    moved = [{"topic": tp.topic, "partition": tp.partition, "position": offset} for tp, (_, offset) in wanted.items()]
    rows = [[tp, offset] for tp, (_, offset) in wanted.items()]
    fields = {"group": group, "dry_run": app.dry_run, "positions": moved}
    return app.out.result("group reset", fields, columns(["partition", "position"], rows))


def delete_positions(app: Application, group: str) -> int:
    """Delete a group with all its positions."""
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
    """Return the topics in which a group has positions. Raises NotFoundError."""
    ids = {each.topic_id for each in tiers.run(load_group(group)).partitions}
    chosen = [facts for facts in tiers.topics(unreadable={}).values() if facts.remote_id in ids]
    if not chosen:
        raise NotFoundError(f"group {group} has no position in a topic that exists", hint="name the topics to set")
    return chosen


def _target(app: Application, tp: TopicPartition, topic_id: UUID, target: str) -> Steps[int]:
    """Return the offset that ``target`` means in one partition. Raises ConfigError."""
    partition = RemotePartition(tp, topic_id, known=NOTHING_KNOWN)
    view = yield from partition.snapshot()
    start, end = (0, 0) if view is None else (view.start_offset, view.next_offset)
    if target in ("beginning", "end"):
        return start if target == "beginning" else end
    if target.isdecimal() and int(target) < OFFSETS_BELOW:
        if not start <= int(target) <= end:
            raise ConfigError(f"{tp}: offset {target} is not in {start} to {end}", hint="name an offset of the log")
        return int(target)
    found = yield from partition.offset_for_time(parse_time(target, now_ms=app.clock.now_ms()))
    return end if found is None else found[0]
