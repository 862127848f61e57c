"""Groups of a bucket from outside: list, show, reset and delete them. No member is needed, and reset wants none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from tiered.errors import ConfigError, NotFoundError, TieredError
from tiered.format.keys import (
    GROUPS_PREFIX,
    check_group_name,
    group_members_prefix,
    group_partition_key,
    group_prefix,
    parse_group_key,
)
from tiered.group.objects import MAX_OWNERSHIP_BYTES, Ownership, decode_ownership, encode_ownership
from tiered.model import Position, TopicPartition
from tiered.remote.conditional_put import Cell, NextBody, Planned, Tagged, deadline_after, read_cell, update
from tiered.store.base import Get, List, ListPage, NewId, Now, Object, Steps, Time, Together, delete_keys, list_all

CHANGE_MS = 60_000
"""Longest time that one position is tried to be set."""
GETS_AT_ONCE = 16
GROUPS_END = "\U0010ffff"
"""Text after all others, to skip the objects of one group in a listing."""


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """Owner and position of a group in one partition. ``damage``: why its object cannot be read."""

    topic_id: UUID
    partition: int
    found: Ownership | None
    damage: TieredError | None = None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """Group of a bucket. ``members``: ids of those that have not left, dead ones too until another member notices."""

    name: str
    members: tuple[str, ...] = ()
    partitions: tuple[GroupPartition, ...] = field(default=())


def list_groups() -> Steps[list[str]]:
    """Return the names of all groups of the bucket, with one LIST for each."""
    names: list[str] = []
    after = ""
    while True:
        page: ListPage = yield List(GROUPS_PREFIX, start_after=after, limit=1)
        if not page.entries:
            return names
        parsed = parse_group_key(page.entries[0].key)
        if parsed is None:
            after = page.entries[0].key  # a foreign object
            continue
        names.append(parsed.group)
        after = group_prefix(parsed.group) + GROUPS_END


def load_group(group: str) -> Steps[GroupInfo]:
    """Return a group with all its positions. Raises NotFoundError if the bucket holds nothing of it."""
    members: list[str] = []
    keys: list[tuple[str, tuple[UUID, int]]] = []
    entries = yield from list_all(group_prefix(check_group_name(group)))
    for entry in entries:
        parsed = parse_group_key(entry.key)
        if parsed is not None and parsed.member is not None:
            members.append(parsed.member)
        elif parsed is not None and parsed.partition is not None:
            keys.append((entry.key, parsed.partition))
    if not entries:
        raise NotFoundError(
            f"the bucket holds no group {group!r}", hint="`tiered group list` shows the groups that there are"
        )
    partitions: list[GroupPartition] = []
    for first in range(0, len(keys), GETS_AT_ONCE):
        some = keys[first : first + GETS_AT_ONCE]
        answers = yield Together(tuple(Get(key, max_bytes=MAX_OWNERSHIP_BYTES) for key, _ in some), errors=True)
        partitions += [_decoded(key, number, got) for (key, number), got in zip(some, answers, strict=True)]
    return GroupInfo(group, tuple(members), tuple(partitions))


def _decoded(key: str, number: tuple[UUID, int], got: object) -> GroupPartition:
    if isinstance(got, TieredError):
        return GroupPartition(*number, None, got)
    if not isinstance(got, Object):  # deleted meanwhile
        return GroupPartition(*number, None)
    try:
        return GroupPartition(*number, decode_ownership(got.data, key=key))
    except TieredError as damage:
        return GroupPartition(*number, None, damage)


def need_no_members(group: str) -> Steps[None]:
    """Raise ConfigError while a group has members."""
    members = yield from list_all(group_members_prefix(group))
    if members:
        names = [parsed.member for entry in members if (parsed := parse_group_key(entry.key)) and parsed.member]
        raise ConfigError(
            f"group {group} has {len(members)} members: {', '.join(names[:3])}",
            hint="stop its consumers first; one that was killed counts until another member joins, "
            "or `tiered group reset --force` takes its place",
        )


def reset_group(
    group: str, positions: Mapping[TopicPartition, tuple[UUID, int]], *, force: bool = False
) -> Steps[dict[TopicPartition, int]]:
    """Set positions, by partition a topic id and an offset. Return the offsets before, -1 for none.

    Each gets a new ownership epoch, so that a commit of a member that was thought to be dead is refused. Raises
    ConfigError while there are members, unless ``force``.
    """
    if not force:
        yield from need_no_members(group)
    before: dict[TopicPartition, int] = {}
    for tp, (topic_id, offset) in positions.items():
        before[tp] = yield from _reset_one(group, tp, topic_id, offset)
    return before


def _reset_one(group: str, tp: TopicPartition, topic_id: UUID, offset: int) -> Steps[int]:
    key = group_partition_key(group, topic_id, tp.partition)
    earlier = -1
    time: Time = yield Now()
    position = Position(offset, committed_ms=time.now_ms)

    def change(seen: Tagged[Ownership | None]) -> Planned[Ownership | None]:
        nonlocal earlier
        commit = int((yield NewId()), 16)
        found = seen.value
        earlier = -1 if found is None else found.position.offset
        if found is None:
            epoch = int((yield NewId()), 16) >> 66
            wanted = Ownership(tp.topic, "", epoch, position, commit)
        else:
            wanted = replace(found, owner="", epoch=found.epoch + 1, position=position, commit=commit)
        return NextBody(encode_ownership(wanted), wanted)

    look = read_cell(key, lambda got: decode_ownership(got.data, key=key), MAX_OWNERSHIP_BYTES)
    cell = Cell(key, f"group {group}: position of {tp}", look, _same_commit, "reset it again")
    seen = yield from cell.look()
    yield from update(cell, change, (yield from deadline_after(CHANGE_MS)), seen=seen)
    return earlier


def _same_commit(found: Ownership | None, sent: Ownership | None) -> bool:
    return found is not None and sent is not None and found.commit == sent.commit


def delete_group(group: str) -> Steps[int]:
    """Delete all objects of a group, the members' last. Return their number. Raises ConfigError for a group in use."""
    yield from need_no_members(group)
    keys = [entry.key for entry in (yield from list_all(group_prefix(group)))]
    failed = yield from delete_keys(keys)
    if failed:
        raise ConfigError(f"group {group}: {len(failed)} of {len(keys)} objects were not deleted: {failed[0][1]}")
    return len(keys)
