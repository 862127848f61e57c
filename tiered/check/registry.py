"""Search for partitions in a bucket or on a disk that no registry entry names, for ``check`` and ``restore``.

::

    keys of the bucket, listed first ──┐
    entries, read after the listing  ──┼── a topic id without an entry, a partition beyond its entry
    what this disk has uploaded      ──┘

A topic's roots are made before its entry. Roots that were never claimed are thus no finding, because a running or
interrupted registration leaves them. Objects of a destroyed topic are no finding either, if an audit line names the
topic. The listing comes first, so that topics registered meanwhile are named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from tiered.check.findings import Finding, Findings, Severity
from tiered.check.local import LocalFacts
from tiered.errors import ConfigError, CorruptionError, RemotePermissionError, TieredError
from tiered.format.keys import TOPICS_PREFIX, root_key, topic_key
from tiered.format.root import Root, decode_root
from tiered.model import TopicPartition
from tiered.remote.gc.audit import was_destroyed
from tiered.remote.roots import list_partitions
from tiered.remote.topics import TopicEntry
from tiered.store.base import Get, Object, Steps, Together

GETS_AT_ONCE = 16
NAMED_PARTITIONS = 10
"""Partitions that one finding names; the rest is a number."""


@dataclass(frozen=True, slots=True)
class Unnamed:
    """Partitions of one topic id without a registry entry.

    ``topic``: its name in their roots or on the disk, or ``""``. ``in_use``: True if they had records or a claim;
    otherwise they are roots that wait for their entry. ``destroyed``: True if an audit line shows that the partitions
    were destroyed, so that their objects are strays.
    """

    topic_id: UUID
    topic: str
    partitions: tuple[int, ...]
    in_use: bool
    destroyed: bool = False


def survey(
    notes: list[str], refusals: type[TieredError] | tuple[type[TieredError], ...] = RemotePermissionError
) -> Steps[set[tuple[UUID, int]]]:
    """List the bucket, and return the (topic id, partition) of all its objects.

    If it cannot be listed, add a sentence to ``notes`` and return an empty set.
    ``refusals``: errors that count as "cannot be listed".
    """
    try:
        return (yield from list_partitions())
    except refusals as error:
        notes.append(f"the bucket cannot be listed, so that a lost registry entry would not be seen: {error.message}")
        return set()


def unregistered(
    listed: Collection[tuple[UUID, int]],
    entries: Mapping[str, TopicEntry],
    unreadable: Collection[str],
    local: LocalFacts,
    topics: Collection[str],
) -> Steps[tuple[list[Finding], set[TopicPartition]]]:
    """Return findings for partitions without a registry entry, and these partitions.

    ``listed``: (topic id, partition) of all objects. ``entries`` were read after it. ``unreadable``: topics whose entry
    is damaged; their partitions are unknown and not reported. ``local``: facts of the log directory, whose uploads need
    an entry, too. ``topics``: report only these, empty: all.
    """
    findings = list(_on_disk(entries, unreadable, local))
    partitions: set[TopicPartition] = set()
    known = {facts.topic_id: tp.topic for tp, facts in local.partitions.items() if facts.topic_id}
    for unnamed in (yield from find_unnamed(listed, list(entries.values()), known)):
        if unnamed.topic in unreadable or (topics and unnamed.topic not in topics):
            continue
        partitions.update(TopicPartition(unnamed.topic, number) for number in unnamed.partitions)
        found = Findings(topic_key(unnamed.topic) if unnamed.topic else "topics/")
        if unnamed.destroyed:
            text = f"topic id {unnamed.topic_id}: {_listed(unnamed.partitions)} were destroyed with their topic"
            found.add(
                Severity.INFO,
                "strays",
                f"{text}, and something came later; `tiered maintain --only collect --orphans` deletes it",
            )
        elif unnamed.in_use:
            found.error("unregistered", describe(unnamed))
        else:
            text = f"topic id {unnamed.topic_id}: {_listed(unnamed.partitions)} wait for a registry entry"
            found.add(Severity.INFO, "unregistered_roots", f"{text}: a registration did not end")
        findings += found.about(unnamed.topic, -1)
    return findings, partitions


def _on_disk(entries: Mapping[str, TopicEntry], unreadable: Collection[str], local: LocalFacts) -> Iterator[Finding]:
    for tp, facts in sorted(local.partitions.items()):
        entry = entries.get(tp.topic)
        named = tp.topic in unreadable or (entry is not None and tp.partition < entry.partitions)
        if named or not facts.known.by_disk:
            continue
        found = Findings(topic_key(tp.topic))
        names = "there is no registry entry" if entry is None else f"it names {entry.partitions} partitions"
        found.error("unregistered", f"{names}, and {facts.known.absent()}; see `tiered repair {tp.topic} --dry-run`")
        yield from found.about(*tp)


def find_unnamed(
    listed: Collection[tuple[UUID, int]], entries: Collection[TopicEntry], names: Mapping[UUID, str]
) -> Steps[list[Unnamed]]:
    """Return the listed partitions that no entry names, by topic id. ``names``: topic names on a disk.

    ``entries`` were read after the listing. Roots of each topic id are read until one is in use.
    """
    named = {entry.topic_id: entry for entry in entries}
    groups: defaultdict[UUID, list[int]] = defaultdict(list)
    for topic_id, partition in sorted(listed, key=lambda owner: (owner[0].hex, owner[1])):
        entry = named.get(topic_id)
        if entry is None or partition >= entry.partitions:
            groups[topic_id].append(partition)
    found: list[Unnamed] = []
    for topic_id, partitions in groups.items():
        entry = named.get(topic_id)
        known_name = entry.name if entry is not None else names.get(topic_id, "")
        strays = set() if entry is not None else (yield from _destroyed(topic_id, partitions))
        if strays:
            found.append(Unnamed(topic_id, known_name, tuple(sorted(strays)), in_use=False, destroyed=True))
        if left := [partition for partition in partitions if partition not in strays]:
            topic, in_use = yield from _topic_in_roots(topic_id, left)
            found.append(Unnamed(topic_id, topic or known_name, tuple(left), in_use))
    return found


def _destroyed(topic_id: UUID, partitions: Sequence[int]) -> Steps[set[int]]:
    """Return the partitions that an audit line calls destroyed; none if the lines cannot be listed."""
    found: set[int] = set()
    try:
        for partition in partitions:
            if (yield from was_destroyed(topic_id, partition)):
                found.add(partition)
    except RemotePermissionError:
        return set()
    return found


def _topic_in_roots(topic_id: UUID, partitions: Sequence[int]) -> Steps[tuple[str, bool]]:
    """Return the topic's name in the roots, ``""`` without one, and True if a root is in use.

    Roots are read in groups of ``GETS_AT_ONCE``, up to the first group with a root in use.
    """
    topic = ""
    for at in range(0, len(partitions), GETS_AT_ONCE):
        keys = [root_key(topic_id, number) for number in partitions[at : at + GETS_AT_ONCE]]
        answers = yield Together(tuple(Get(key) for key in keys))
        roots = [_decoded(got, key) for key, got in zip(keys, answers, strict=True)]
        topic = topic or next((root.topic for root in roots if root is not None), "")
        if any(root is None or root.version > 1 for root in roots):  # an unreadable root is one that was in use
            return topic, True
    return topic, False


def describe(unnamed: Unnamed) -> str:
    """Return one sentence about partitions that no registry entry names."""
    return (
        f"the bucket holds {_listed(unnamed.partitions)} of topic {unnamed.topic or 'of unknown name'}, id "
        f"{unnamed.topic_id}, and no registry entry names them; see `tiered repair {unnamed.topic or ''} --dry-run`"
    )


def need_all_named(
    listed: Collection[tuple[UUID, int]], entries: Sequence[TopicEntry], topics: Collection[str]
) -> Steps[None]:
    """Raise CorruptionError if a partition in ``listed`` is in use and has no entry.

    ``topics``: only these, empty: all.
    """
    for unnamed in (yield from find_unnamed(listed, entries, {})):
        if unnamed.in_use and (not topics or unnamed.topic in topics):
            raise CorruptionError(
                describe(unnamed),
                path_or_key=topic_key(unnamed.topic) if unnamed.topic else TOPICS_PREFIX,
                hint="" if topics else "to leave this topic out, name the other topics",
            )


def _decoded(got: object, key: str) -> Root | None:
    try:
        return decode_root(got.data, key=key) if isinstance(got, Object) else None
    except (CorruptionError, ConfigError):
        return None


def _listed(partitions: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in partitions[:NAMED_PARTITIONS])
    more = len(partitions) - NAMED_PARTITIONS
    return f"partition{'s' if len(partitions) > 1 else ''} {shown}" + (f" and {more} more" if more > 0 else "")
