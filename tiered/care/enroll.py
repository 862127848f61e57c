"""``repair registry``: the entry of a topic that is gone, damaged or older, made anew from the topic's roots.

::

    LIST ── topic ids that no other entry names ── their roots say what topic they are of ── entry ── PUT (CAS)

Settings come from the entry that is there, if it can be read. What it replaces is copied below ``aside/`` of the
topic's first partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from tiered.care.aside import keep_copy
from tiered.care.check_registry import Unnamed, find_unnamed, need_own, root_states
from tiered.errors import ConfigError, CorruptionError, NotFoundError, RemotePermissionError
from tiered.format.crc import crc32c
from tiered.format.keys import aside_key, topic_key
from tiered.format.root import STATE_DELETING
from tiered.remote.settle import COMMIT_DEADLINE_MS, deadline_after, settle
from tiered.remote.survey import list_partitions
from tiered.remote.topics import (
    MAX_ENTRY_BYTES,
    STATE_DELETED,
    TopicEntry,
    decode_topic,
    encode_topic,
    list_topic_names,
    load_topic,
)
from tiered.store.base import ABSENT, Get, Match, NewId, Object, Put, PutStatus, Steps


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """The entry that would be written. ``etag`` is that of what lies there, ``""`` if nothing does.

    ``problem``: what is wrong with it. ``settings_lost``: nothing tells the topic's settings; it gets the defaults.
    """

    entry: TopicEntry
    problem: str
    etag: str
    settings_lost: bool


def plan_entry_steps(topic: str, topic_id: UUID | None = None) -> Steps[EntryPlan]:
    """Reads only; lists the bucket. ``topic_id`` chooses where several have been called so.

    Raises NotFoundError (no root is of this topic), ConfigError (the entry is right, or of a newer release),
    CorruptionError (several topic ids are in use under the name).
    """
    listed = yield from list_partitions()  # before the registry is read, so that what is registered meanwhile is named
    key = topic_key(topic)
    got = yield Get(key, 0, MAX_ENTRY_BYTES + 1)
    before, problem = _decoded(got, key)
    others: list[TopicEntry] = []
    for name in (yield from list_topic_names()):
        other = yield from _other(name) if name != topic else _nothing()
        others += [other] if other is not None else []
    others = yield from need_own(others)  # one that names the id of this topic keeps it from nobody
    unnamed = [one for one in (yield from find_unnamed(listed, others, {})) if not one.destroyed]
    chosen = _chosen(topic, unnamed, topic_id)
    count = chosen.partitions[-1] + 1
    is_deleted = STATE_DELETING in (yield from root_states(chosen))
    if before is not None:
        problem = _flaw(before, chosen, count, is_deleted=is_deleted)
        count = max(count, before.partitions) if before.topic_id == chosen.topic_id else count
    if not problem:
        raise ConfigError(f"the entry of topic {topic} is what its roots tell", hint="`tiered check` has the rest")
    entry = TopicEntry(
        topic,
        chosen.topic_id,
        count,
        before.config if before is not None else {},
        version=before.version + 1 if before is not None else 1,
        changes=((yield NewId()),),
        roots=True,
    )
    if is_deleted:
        entry = replace(entry, state=STATE_DELETING)
    return EntryPlan(entry, problem, got.etag if isinstance(got, Object) else "", before is None)


def entry_steps(plan: EntryPlan) -> Steps[None]:
    """Carries a plan out, by compare-and-swap. Raises ConfigError if the entry is another one by now, CommitUnknown."""
    deadline = yield from deadline_after(COMMIT_DEADLINE_MS)
    key, body = topic_key(plan.entry.name), encode_topic(plan.entry)
    if plan.etag and not (yield from keep_copy(key, aside_key(plan.entry.topic_id, 0, (yield NewId())))):
        raise ConfigError(f"{key} is gone by now; nothing was replaced", hint="plan again")
    condition = Match(plan.etag) if plan.etag else ABSENT
    settled = yield from settle(Put(key, body, condition, crc32c(body)), deadline, key)
    if settled.status is PutStatus.LANDED:
        return
    got = yield Get(key, max_bytes=MAX_ENTRY_BYTES)
    if not (isinstance(got, Object) and got.data == body):
        raise ConfigError(f"{key} is another entry by now; nothing was replaced", hint="plan again")


def _decoded(got: object, key: str) -> tuple[TopicEntry | None, str]:
    """The entry if it can be read, and what is wrong. Raises ConfigError for one of a newer release."""
    if not isinstance(got, Object):
        return None, "it is gone"
    if got.size > MAX_ENTRY_BYTES:
        return None, f"it has {got.size} bytes"
    try:
        return decode_topic(got.data, key=key), ""
    except CorruptionError as damage:
        return None, damage.message


def _other(name: str) -> Steps[TopicEntry | None]:
    try:
        return (yield from load_topic(name))
    except (CorruptionError, ConfigError, RemotePermissionError):
        return None  # what it would name calls itself by its own name


def _nothing() -> Steps[None]:
    return None
    yield


def _flaw(before: TopicEntry, chosen: Unnamed, count: int, *, is_deleted: bool) -> str:
    """What is wrong with an entry that can be read, ``""`` for nothing. ``is_deleted``: a root says so."""
    if before.topic_id != chosen.topic_id:
        return f"it names the topic id {before.topic_id}"
    if before.state == STATE_DELETED:
        return "it says that the topic was deleted, and its roots are there"
    if before.partitions < count:
        return f"it names {before.partitions} partitions, the bucket holds {count}"
    if before.state == STATE_DELETING and not is_deleted:
        return "it says that the topic is being deleted, and none of its roots does"
    return ""


def _chosen(topic: str, unnamed: Sequence[Unnamed], topic_id: UUID | None) -> Unnamed:
    """Of what no entry names, what is called so, or, by its id, what nothing tells the name of."""
    nameless = [one for one in unnamed if not one.topic]
    found = [one for one in unnamed if one.topic == topic]
    by_id: Mapping[UUID, Unnamed] = {one.topic_id: one for one in (*found, *nameless)}
    if topic_id is not None:
        if topic_id not in by_id:
            raise NotFoundError(f"no root of topic {topic} has the id {topic_id}", hint="`tiered check` shows the ids")
        return by_id[topic_id]
    used = [one for one in found if one.in_use] or list(found)
    if not used:
        hint = (
            f"put the entry back from a backup, or, if {topic_key(topic)} is no topic's, delete that one object by "
            f"hand: there is nothing that it could name"
        )
        if nameless:
            ids = ", ".join(str(one.topic_id) for one in nameless)
            hint = f"nothing tells the names of topic ids {ids}: if one of them is this topic's, choose it with --id"
        raise NotFoundError(f"the bucket holds no root of topic {topic}", hint=hint)
    if len(used) > 1:
        raise CorruptionError(
            f"{len(used)} topic ids are called {topic}: {', '.join(str(one.topic_id) for one in used)}",
            path_or_key=topic_key(topic),
            hint="choose one with --id; nothing was changed",
        )
    return used[0]
