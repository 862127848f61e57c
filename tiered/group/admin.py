"""Administration of the groups of a bucket: list, show, reset and delete them. The caller is no member."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

from tiered.errors import ConfigError, NotFoundError, RemotePermissionError, RemoteUnavailableError, TieredError
from tiered.format.keys import (
    GROUPS_PREFIX,
    check_group_name,
    group_members_prefix,
    group_partition_key,
    group_prefix,
    parse_group_key,
)
from tiered.format.root import STATE_OPEN
from tiered.group.member import EPOCH_BITS
from tiered.group.objects import MAX_OWNERSHIP_BYTES, Ownership, decode_ownership, encode_ownership, ownership_cell
from tiered.local.transactions.group_positions import GroupLag
from tiered.model import Position, TopicPartition
from tiered.remote.conditional_put import NextBody, Planned, Tagged, deadline_after, update
from tiered.remote.positions import load_positions
from tiered.remote.reader import RemotePartition
from tiered.remote.topics import TopicEntry, load_topic_to_read
from tiered.store.base import Get, List, ListPage, NewId, Now, Object, Steps, Time
from tiered.store.steps import delete_keys, in_turns, list_all

LOGGER = logging.getLogger("tiered.group")
T = TypeVar("T")

CHANGE_MS = 60_000
"""Longest time of the attempts to set one position."""
GROUPS_END = "\U0010ffff"
"""Text after all others, to skip the objects of one group in a listing."""


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """Owner and position of a group in one partition. ``found``: its object, or the error of an unreadable one."""

    topic_id: UUID
    partition: int
    found: Ownership | TieredError


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """State of a group. ``members``: ids of its members, and of dead ones that no member has removed yet."""

    name: str
    members: tuple[str, ...]
    partitions: tuple[GroupPartition, ...]


def list_groups() -> Steps[list[str]]:
    """Return the names of all groups of the bucket. Costs one LIST for each group."""
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
    """Return a group with its members and all its positions. Raises NotFoundError if the bucket has no such group."""
    parsed = [parse_group_key(entry.key) for entry in (yield from list_all(group_prefix(check_group_name(group))))]
    if not parsed:
        raise NotFoundError(f"the bucket holds no group {group!r}", hint="`tiered group list` lists the groups")
    members = tuple(key.member for key in parsed if key is not None and key.member is not None)
    places = [key.partition for key in parsed if key is not None and key.partition is not None]
    found = yield from _in_turns([_load_ownership(group, *place) for place in places])
    partitions = [GroupPartition(*at, end) for at, end in zip(places, found, strict=True) if end is not None]
    return GroupInfo(group, members, tuple(partitions))


def load_committed(group: str, topic_ids: Mapping[TopicPartition, UUID]) -> Steps[dict[TopicPartition, Position]]:
    """Return the positions of a group in these partitions. Partitions without one are left out.

    ``topic_ids``: the partitions, each with the id of its topic. If the bucket has no position of the group in any
    of them, return those that the group of this name in a log directory has uploaded. One or two GETs for each
    partition. Raises CorruptionError for a damaged object, ConfigError for one of a newer format.
    """
    places = [(topic_id, tp.partition) for tp, topic_id in topic_ids.items()]
    owned = yield from _in_turns([_load_ownership(group, *place) for place in places])
    found = {tp: _checked(each).position for tp, each in zip(topic_ids, owned, strict=True) if each is not None}
    for tp, each in zip(topic_ids, () if found else (yield from load_positions(places)), strict=False):
        if each is not None and group in (copy := _checked(each)).groups:
            found[tp] = copy.groups[group]
    return found


def _checked(each: T | TieredError) -> T:
    if isinstance(each, TieredError):
        raise each
    return each


def _load_ownership(group: str, topic_id: UUID, partition: int) -> Steps[Ownership | None]:
    key = group_partition_key(group, topic_id, partition)
    got = yield Get(key, max_bytes=MAX_OWNERSHIP_BYTES)
    return decode_ownership(got.data, key=key) if isinstance(got, Object) else None


def load_lags(info: GroupInfo) -> Steps[list[GroupLag | TieredError | None]]:
    """Return for each of ``info.partitions``, in order, the lag, None or an error.

    None: the topic was deleted, or the position cannot be read. An error: the registry entry or the catalog is damaged.
    One GET for each topic and partition, and one for a page of a long catalog.
    """
    names = sorted({each.found.topic for each in info.partitions if isinstance(each.found, Ownership)})
    loaded = yield from _in_turns([load_topic_to_read(name) for name in names])
    entries = dict(zip(names, loaded, strict=True))
    return (yield from _in_turns([_load_lag(info.name, each, entries) for each in info.partitions]))


def _in_turns(several: Sequence[Steps[T]]) -> Steps[list[T | TieredError]]:
    """Run all steps. Return the result or the error of each, in order.

    Raises RemoteUnavailableError or RemotePermissionError, instead of returning it, if one of the steps raised it.
    """
    ends = yield from in_turns(several)
    for end in ends:
        if isinstance(end, (RemoteUnavailableError, RemotePermissionError)):
            raise end
    return ends


def _load_lag(
    group: str, each: GroupPartition, entries: Mapping[str, TopicEntry | TieredError | None]
) -> Steps[GroupLag | None]:
    if isinstance(each.found, TieredError):
        return None
    entry, position = entries[each.found.topic], each.found.position
    if isinstance(entry, TieredError):
        raise entry
    if entry is None or entry.topic_id != each.topic_id or entry.state != STATE_OPEN:
        return None
    tp = TopicPartition(each.found.topic, each.partition)
    view = yield from RemotePartition(tp, each.topic_id).snapshot()
    row = None if view is None else (yield from view.at(position.offset))
    time: Time = yield Now()
    since_ms = time.now_ms if row is None else row.appended_ms if row.appended_ms >= 0 else row.max_ts
    end = 0 if view is None else view.next_offset
    return GroupLag(group, tp, position, end, max(0, time.now_ms - since_ms) / 1000)


def load_all_lags() -> Steps[list[GroupLag]]:
    """Return the lags of all groups of the bucket. A group or partition that cannot be read is logged and left out."""
    found: list[GroupLag] = []
    for name in (yield from list_groups()):
        try:
            lags = yield from load_lags((yield from load_group(name)))
        except NotFoundError:
            continue  # deleted meanwhile
        for lag in lags:
            if isinstance(lag, GroupLag):
                found.append(lag)
            elif lag is not None:
                LOGGER.warning("lag_unknown group=%s error=%s", name, lag.message)
    return found


def need_no_members(group: str) -> Steps[None]:
    """Raise ConfigError while a group has members."""
    members = yield from list_all(group_members_prefix(group))
    if members:
        names = [parsed.member for entry in members if (parsed := parse_group_key(entry.key)) and parsed.member]
        raise ConfigError(
            f"group {group} is in use by {len(members)} member(s): {', '.join(names[:3])}",
            hint=f"stop its consumers first; if a member was killed, run `tiered group reset {group} TOPIC --to WHERE "
            "--force`",
        )


def reset_group(
    group: str, positions: Mapping[TopicPartition, tuple[UUID, int]], *, force: bool = False
) -> Steps[None]:
    """Set the positions of a group. ``positions``: (topic id, offset).

    Each partition gets a new ownership epoch, so that a late commit of a dead member is refused. Raises ConfigError
    while the group has members, unless ``force``.
    """
    if not force:
        yield from need_no_members(group)
    for tp, (topic_id, offset) in positions.items():
        yield from _reset_one(group, tp, topic_id, offset)


def _reset_one(group: str, tp: TopicPartition, topic_id: UUID, offset: int) -> Steps[None]:
    time: Time = yield Now()
    position = Position(offset, committed_ms=time.now_ms)

    def change(seen: Tagged[Ownership | None]) -> Planned[Ownership | None]:
        commit, found = int((yield NewId()), 16), seen.value
        if found is None:
            wanted = Ownership(tp.topic, "", int((yield NewId()), 16) >> (128 - EPOCH_BITS), position, commit)
        else:
            wanted = replace(found, owner="", epoch=found.epoch + 1, position=position, commit=commit)
        return NextBody(encode_ownership(wanted), wanted)

    yield from update(ownership_cell(group, tp, topic_id), change, (yield from deadline_after(CHANGE_MS)))


def delete_group(group: str) -> Steps[None]:
    """Delete all objects of a group. Raises ConfigError while it has members, or for a failed deletion."""
    yield from need_no_members(group)
    keys = [entry.key for entry in (yield from list_all(group_prefix(group)))]
    failed = yield from delete_keys(keys)
    if failed:
        raise ConfigError(
            f"group {group}: {len(failed)} of its {len(keys)} objects could not be deleted: {failed[0][1]}",
            hint="correct the cause, such as a missing permission to delete, and delete the group again",
        )
