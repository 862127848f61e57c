"""Plan the repair of a topic's registry entry that is missing, damaged or older, from the roots of the topic.

::

    LIST ── topic ids that no other entry names ── their roots name the topic ──> entry ──> PUT (compare-and-swap)
    versions of the entry ── the newest that is of this topic id ── settings ──────┘
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from tiered.check.registry import Unnamed, find_unnamed
from tiered.errors import ConfigError, CorruptionError, TieredError, UnknownTopicError
from tiered.format.kernels import crc32c
from tiered.format.keys import partition_prefix, topic_key
from tiered.model import TopicPartition
from tiered.remote.roots import list_partitions
from tiered.remote.topics import (
    MAX_ENTRY_BYTES,
    STATE_DELETED,
    TopicEntry,
    confirm_topic,
    decode_topic,
    encode_topic,
    list_topics,
)
from tiered.repair.plan import RepairAction, Workbench
from tiered.repair.versions import Stored, put_back
from tiered.store.base import Get, NewId, Object, Steps
from tiered.store.steps import list_page, list_versions


class RegistryObject(NamedTuple):
    """Object under a registry key. ``entry`` is None if it cannot be read; ``problem`` is ``""`` if it is right."""

    entry: TopicEntry | None
    problem: str
    etag: str


def find_unregistered() -> Steps[list[str]]:
    """Return the names of topics that have roots with records or a claim, but no registry entry."""
    return sorted({one.topic for one in (yield from _unnamed("")) if one.topic and one.in_use})


def plan_entry(topic: str) -> Steps[tuple[TopicEntry, list[RepairAction]]]:
    """Return a topic's registry entry, and the action that writes it (an empty list if the stored one is right).

    Raises UnknownTopicError for a topic that was deleted or has no entry and no root. Raises CorruptionError if roots
    of several topic ids have this name, or if the entry is damaged and no root has it.
    """
    there = yield from _read_object(topic)
    if there.entry is not None and not there.problem:
        there = yield from _compared(there, there.entry)
    if there.entry is not None and not there.problem:
        return there.entry, []
    chosen = _chosen(topic, (yield from _unnamed(topic)), there)
    known = there.entry if there.entry is not None and there.entry.topic_id == chosen.topic_id else None
    known = known or (yield from _settings(topic, chosen))
    config: Mapping[str, str] = known.config if known is not None else {}
    count = max(chosen.partitions[-1] + 1, known.partitions if known is not None else 0)
    number = known.version + 1 if known is not None else 1
    entry = TopicEntry(topic, chosen.topic_id, count, config, version=number, changes=((yield NewId()),))
    notes = () if known is not None else (f"the settings are lost: `tiered topic set {topic}` sets them again",)
    remedy = f"write it from the roots: {count} partitions of topic id {chosen.topic_id}"
    action = RepairAction(
        TopicPartition(topic, -1), topic_key(topic), there.problem, remedy, notes=notes,
        act=partial(_put_entry, entry, there.etag),
    )  # fmt: skip
    return entry, [action]


def _read_object(topic: str) -> Steps[RegistryObject]:
    key = topic_key(topic)
    got = yield Get(key, 0, MAX_ENTRY_BYTES + 1)
    if not isinstance(got, Object):
        return RegistryObject(None, "the registry entry is missing", "")
    entry: TopicEntry | None = None
    try:
        entry = decode_topic(got.data, key=key)
        if entry.state == STATE_DELETED:
            raise UnknownTopicError(f"topic {topic} was deleted", hint="`tiered topic list` lists the topics")
        return RegistryObject((yield from confirm_topic(entry)), "", got.etag)
    except CorruptionError as damage:
        return RegistryObject(entry, damage.message, got.etag)


def _compared(there: RegistryObject, entry: TopicEntry) -> Steps[RegistryObject]:
    """Return ``there``, with a problem if its topic id has no objects and another id of this name is in use."""
    prefix = partition_prefix(entry.topic_id, 0)
    if (yield from list_page(prefix, limit=1)).entries:
        return there
    used = [one for one in (yield from _unnamed(entry.name)) if one.topic == entry.name and one.in_use]
    others = [one for one in used if one.topic_id != entry.topic_id]
    return there._replace(problem=f"it names topic id {entry.topic_id}, which holds nothing") if others else there


def _unnamed(topic: str) -> Steps[list[Unnamed]]:
    """Return the partitions in the bucket, grouped by topic id, that no registry entry names.

    The entry of ``topic`` itself is ignored. Partitions of destroyed topics are left out.
    """
    listed = yield from list_partitions()  # before the registry is read, so that topics registered meanwhile are named
    unreadable: dict[str, TieredError] = {}
    entries = [entry for entry in (yield from list_topics(unreadable)) if entry.name != topic]
    return [one for one in (yield from find_unnamed(listed, entries, {})) if not one.destroyed]


def _chosen(topic: str, unnamed: list[Unnamed], there: RegistryObject) -> Unnamed:
    found = [one for one in unnamed if one.topic == topic]
    used = [one for one in found if one.in_use] or found
    if not used and not there.etag:
        raise UnknownTopicError(f"topic {topic} is not in the registry", hint="`tiered topic list` lists the topics")
    if not used:
        raise CorruptionError(
            f"{topic_key(topic)}: {there.problem}; it cannot be rebuilt, because the bucket has no "
            "partition of this topic",
            path_or_key=topic_key(topic),
            hint="put the entry back from a backup; if the topic never existed, delete this object",
        )
    if len(used) > 1:
        raise CorruptionError(
            f"the entry of topic {topic} cannot be rebuilt, because {len(used)} topic ids have this name: "
            f"{', '.join(str(one.topic_id) for one in used)}",
            path_or_key=topic_key(topic),
            hint="put the entry back from a version or a backup of the bucket; nothing was changed",
        )
    return used[0]


def _settings(topic: str, chosen: Unnamed) -> Steps[TopicEntry | None]:
    """Return the newest version of the entry that is of this topic id, None without one."""
    key = topic_key(topic)
    for each in (yield from list_versions(key)):
        got = yield Get(key, 0, MAX_ENTRY_BYTES + 1, version=each.version)
        try:
            entry = decode_topic(got.data, key=key) if isinstance(got, Object) else None
        except (CorruptionError, ConfigError):
            continue
        if entry is not None and entry.topic_id == chosen.topic_id and entry.state != STATE_DELETED:
            return entry
    return None


def _put_entry(entry: TopicEntry, etag: str, _: Workbench) -> Steps[None]:
    body = encode_topic(entry)
    stored = Stored(entry.topic_id, 0, topic_key(entry.name), len(body), crc32c(body), etag)
    yield from put_back(stored, body)
