"""What can be done about a root, a registry entry or a decision that is lost or went back: looked for, and said.
Changes nothing.

An object comes back from a version or a backup of the bucket; a root that nobody kept is rebuilt from the objects
(``care.rebuild``). Nothing that the objects
below a lost root hold is deleted by anybody meanwhile, and a disk that has records of it is readable by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

from tiered.care.check_registry import NAMED_PARTITIONS, Unnamed, describe, find_unnamed, survey
from tiered.care.decision_advice import damaged_decisions, steps_for
from tiered.errors import ConfigError, CorruptionError, LogDestroyedError, RemotePermissionError, TieredError
from tiered.format.keys import partition_prefix, root_key, topic_key
from tiered.format.root import Root
from tiered.local.directory.manager import LocalLog
from tiered.local.disk.uploads import known_partitions
from tiered.model import Positions, TopicPartition
from tiered.plan.known import NOTHING_KNOWN, Known
from tiered.remote.root_view import RootView
from tiered.remote.topics import TopicEntry, check_entry, encode_topic, list_topics, load_topic
from tiered.remote.torn import find_torn
from tiered.remote.traces import find_traces, left_without_root
from tiered.store.base import Steps, blocking
from tiered.store.location import StoreLocation


@dataclass(frozen=True, slots=True)
class Advice:
    """One object that is lost or older than it was. ``partition`` -1 for a registry entry; ``steps`` in order."""

    key: str
    topic: str
    partition: int
    problem: str
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Advised:
    """What is ``lost``, and why some things were ``not_looked_at``. ``topics``: those that there are, or may be."""

    lost: tuple[Advice, ...]
    not_looked_at: tuple[str, ...]
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Disk:
    """What a log directory has seen and holds."""

    directory: Path | None
    known: Mapping[TopicPartition, Known]
    ids: Mapping[UUID, str]
    held: Mapping[TopicPartition, Positions]
    counts: Mapping[str, int]


@dataclass(slots=True)
class _Registry:
    """What it tells. ``damaged`` and ``passed_over`` by name: entries that cannot be read, and those that may not be,
    or that a newer release wrote: what these name is not known. ``listed``: there are no topics but these."""

    entries: dict[str, TopicEntry] = field(default_factory=dict)
    damaged: dict[str, CorruptionError] = field(default_factory=dict)
    passed_over: dict[str, TieredError] = field(default_factory=dict)
    listed: bool = True

    def keep(self, name: str, error: TieredError) -> None:
        """An entry that is not known."""
        if isinstance(error, CorruptionError):
            self.damaged[name] = error
        else:
            self.passed_over[name] = error

    def unseen(self) -> list[str]:
        """Where something may be that the entries do not name."""
        names = sorted({*self.damaged, *self.passed_over})
        return [f"partitions of topic {name}" for name in names] + (
            [] if self.listed else ["topics that are not listed"]
        )


def advise_steps(url: str, local: LocalLog | None, topics: Collection[str]) -> Steps[Advised]:
    """Everything that is lost, of ``topics`` or of all, as far as the store at ``url`` may be looked at. Lists it.

    What a newer release wrote is not looked at, and said to be.
    """
    disk = yield from blocking(partial(_disk, local))
    notes: list[str] = []
    listed = yield from survey(notes)  # before the registry is read
    registry = yield from _load(disk, topics, notes)
    entries, passed_over = registry.entries, registry.passed_over
    unnamed = yield from find_unnamed(listed, list(entries.values()), disk.ids)
    found = list(_unreadable(url, registry.damaged, unnamed))
    if passed_over:  # what nothing tells the name of may be of one of these
        nameless = [each for each in unnamed if each.in_use and not each.topic]
        notes += [f"topic id {each.topic_id}: nothing tells its name, it may be one of these" for each in nameless]
        unnamed = [each for each in unnamed if each not in nameless]
    known = {*passed_over, *registry.damaged}
    found += [advice for advice in _entries(url, disk, unnamed, entries) if advice.topic not in known]
    for entry in entries.values():
        for partition in range(entry.partitions):
            try:
                found += yield from _root(url, disk, entry, partition)
            except (RemotePermissionError, ConfigError) as error:
                notes.append(_not_read(root_key(entry.topic_id, partition), error))
            if found and found[-1].key == topic_key(entry.name):
                break  # it names the roots of another topic
    found += yield from _decisions(url, registry, notes)
    told = {advice.key: advice for advice in reversed(found)}.values()  # of each object what was told first
    lost = tuple(each for each in reversed(told) if not topics or not each.topic or each.topic in topics)
    names = {*entries, *disk.counts, *known, *(advice.topic for advice in found if advice.topic)}
    return Advised(lost, tuple(notes), frozenset(names))


def _load(disk: _Disk, topics: Collection[str], notes: list[str]) -> Steps[_Registry]:
    """The registry, or, for who may not list it, the entries of ``topics``, or of those that the disk has.

    Raises RemotePermissionError if all is refused.
    """
    registry = _Registry()
    try:
        unreadable: dict[str, TieredError] = {}
        registry.entries = {entry.name: entry for entry in (yield from list_topics(unreadable))}
        for name, error in unreadable.items():
            registry.keep(name, error)
    except RemotePermissionError as refusal:
        registry.listed = False
        notes.append(f"the registry cannot be listed, so that other topics are not seen: {refusal.message}")
        if not (yield from _load_named(registry, set(topics) or {*disk.counts, *(tp.topic for tp in disk.known)})):
            refusal.hint = (
                "without the right to list, only topics that are named, or that --log-dir holds, are looked at"
            )
            raise
    notes += [_not_read(topic_key(name), error) for name, error in registry.passed_over.items()]
    return registry


def _load_named(registry: _Registry, names: Collection[str]) -> Steps[bool]:
    """Each by itself. Whether one may be read, or is known not to be there."""
    known = False
    for name in sorted(names):
        try:
            entry = yield from load_topic(name)
        except (RemotePermissionError, CorruptionError, ConfigError) as error:
            registry.keep(name, error)
            known = known or not isinstance(error, RemotePermissionError)
        else:
            registry.entries |= {} if entry is None else {name: entry}
            known = True
    return known


def _not_read(key: str, error: TieredError) -> str:
    """A note of an object that is not looked at."""
    told = error.message if error.message.startswith(key) else f"{key}: {error.message}"
    return f"{told}; {error.hint}" if isinstance(error, ConfigError) and error.hint else told


def _unreadable(url: str, unread: Mapping[str, CorruptionError], unnamed: Collection[Unnamed]) -> Iterator[Advice]:
    """Entries that cannot be read: of a topic that has roots, or of nothing at all."""
    for name, damage in unread.items():
        key = topic_key(name)
        if any(each.topic == name and not each.destroyed for each in unnamed):
            mend = f"or `tiered repair registry {name}`: the topic's roots tell what it named, but for its settings"
        else:
            mend = (
                "no root below any topic id is of a topic of that name: if nobody kept it, copy the object elsewhere "
                "and delete it, there is nothing that it could name"
            )
        yield Advice(key, name, -1, damage.message, (*_put_back(url, key), mend))


def _decisions(url: str, registry: _Registry, notes: list[str]) -> Steps[list[Advice]]:
    """Of sinks, those that cannot be read."""
    try:
        damaged = yield from damaged_decisions(list(registry.entries.values()), registry.unseen())
    except RemotePermissionError as error:
        notes.append(f"decisions of sinks are not looked at: {error.message}")
        return []
    return [Advice(each.key, "", -1, each.problem, (*_put_back(url, each.key), *steps_for(each))) for each in damaged]


def _disk(local: LocalLog | None) -> _Disk:
    if local is None:
        return _Disk(None, {}, {}, {}, {})
    infos = local.topics()
    return _Disk(
        local.directory,
        known_partitions(local.uploads.read(), local.claims.read()),
        {info.topic_id: name for name, info in infos.items()},
        local.positions()[0],  # what the others lack is told by `check`
        {name: info.partitions for name, info in infos.items()},
    )


def _entries(
    url: str, disk: _Disk, unnamed_partitions: Collection[Unnamed], entries: Mapping[str, TopicEntry]
) -> Iterator[Advice]:
    """Registry entries that are gone, name another topic id, or name too few partitions."""
    told: set[str] = set()
    for unnamed in unnamed_partitions:
        if not unnamed.in_use:
            continue
        told.add(unnamed.topic)
        key = topic_key(unnamed.topic) if unnamed.topic else "topics/"
        count = max(unnamed.partitions[-1] + 1, disk.counts.get(unnamed.topic, 0))
        steps = [*_put_back(url, key)]
        if unnamed.topic:
            before = entries.get(unnamed.topic)
            config = before.config if before is not None and before.topic_id == unnamed.topic_id else {}
            body = encode_topic(TopicEntry(unnamed.topic, unnamed.topic_id, count, config, roots=True))
            steps.append(f"it is JSON; with the settings that the topic had besides, it held: {_one_line(body)}")
            steps += _from_roots(unnamed, before)
        else:
            steps.append(
                "its roots would tell its name: put one of them back, too, then `tiered repair registry NAME`; or, if "
                f"you know it: `tiered repair registry NAME --id {unnamed.topic_id}`"
            )
        yield Advice(key, unnamed.topic, -1, describe(unnamed, entries), tuple(steps))
    for topic in sorted({tp.topic for tp in disk.known} - told):
        known = {tp.partition: what for tp, what in disk.known.items() if tp.topic == topic}
        try:
            check_entry(topic, entries.get(topic), known, where=url)
        except (CorruptionError, LogDestroyedError) as error:
            steps = ["if this is another bucket or prefix than the log was uploaded to, correct the URL"]
            if topic not in entries:
                drop = f"`tiered topics delete {topic} --log-dir {disk.directory} --local-only`"
                steps.append(f"if the topic was deleted from the bucket: {drop} deletes what this disk has of it, too")
            yield Advice(topic_key(topic), topic, -1, error.message, (*steps, *_put_back(url, topic_key(topic))))


def _from_roots(unnamed: Unnamed, before: TopicEntry | None) -> Iterator[str]:
    """How an entry is made anew; or, where ``before`` names another topic id, what may lie there by mistake."""
    name = unnamed.topic
    if before is None or before.topic_id == unnamed.topic_id:
        yield f"or `tiered repair registry {name}`: the topic's roots tell what it named, but for lost settings"
        return
    yield (
        f"or, if {unnamed.topic_id} is the topic that belongs here: `tiered repair registry {name} --id "
        f"{unnamed.topic_id}` makes the entry anew from its roots, and {before.topic_id} is named no more"
    )
    prefixes = [partition_prefix(unnamed.topic_id, number) for number in unnamed.partitions[:NAMED_PARTITIONS]]
    more = len(unnamed.partitions) - len(prefixes)
    yield (
        f"or, if somebody copied it here from another bucket: nothing names it; copy what lies below "
        f"{', '.join(prefixes)}{f' and {more} more' if more else ''} elsewhere, and delete it here"
    )


def _root(url: str, disk: _Disk, entry: TopicEntry, partition: int) -> Steps[list[Advice]]:
    tp = TopicPartition(entry.name, partition)
    known = entry.known_with(disk.known.get(tp, NOTHING_KNOWN))
    try:
        root = yield from RootView(entry.topic_id, partition, entry.name, known).load()
        torn = None if root is None else (yield from find_torn(root))
        older = "" if root is None else (yield from _older(root))
    except (CorruptionError, LogDestroyedError) as error:
        key = root_key(entry.topic_id, partition)
        if isinstance(error, CorruptionError) and error.path_or_key == topic_key(tp.topic):  # the entry is wrong
            key = error.path_or_key
            return [Advice(key, tp.topic, -1, error.message, (*_put_back(url, key), error.hint))]
        steps = [*_put_back(url, key), *_without_root(entry, disk, tp)]
        return [Advice(key, entry.name, partition, error.message, tuple(steps))]
    if root is not None and older:
        mend = f"or `tiered repair rebuild-catalog {tp.topic}:{partition}`: it goes on from the newest that was kept"
        text = f"{root.where}: an older root was put back: {older}"
        return [Advice(root.key, entry.name, partition, text, (*_put_back(url, root.key), mend))]
    if root is None and (left := (yield from left_without_root(entry.topic_id, partition))):
        key = root_key(entry.topic_id, partition)
        text = f"{tp}: the root is gone: {left} is there, and comes after it"
        return [Advice(key, entry.name, partition, text, (*_put_back(url, key), *_without_root(entry, disk, tp)))]
    if root is None or torn is None:
        return []
    problem = f"{root.where} is whole, and its page of offsets {{}} to {{}} is gone or another one"
    mend = f"or `tiered repair rebuild-catalog {tp.topic}:{partition}`: the objects tell what it held"
    return [
        Advice(key, entry.name, partition, problem.format(pointer.base, pointer.next), (*_put_back(url, key), mend))
        for pointer in torn.lost
        for key in [root.page_key(pointer)]
    ]


def _older(root: Root) -> Steps[str]:
    """What proves that ``root`` is an older one, ``""`` if nothing does, or nothing that may be listed."""
    traces = yield from find_traces(root, [])
    if not traces.older(root):
        return ""
    newest = yield from RootView(root.topic_id, root.partition, root.topic).load()
    return "" if newest is None else traces.older(newest)


def _put_back(url: str, key: str) -> Iterator[str]:
    """How an object comes back that somebody kept."""
    place = StoreLocation.parse(url, environ={})
    if place.path is not None:
        yield f"copy the file of {key} back from a backup of {place.path} (keys are paths, with .obj behind)"
    elif place.scheme == "s3":
        whole = f"{place.prefix}/{key}" if place.prefix else key
        at = f"--bucket {place.bucket} --key {whole}"
        yield (
            f"on a bucket with versions: `aws s3api list-object-versions --bucket {place.bucket} --prefix {whole}` "
            f"shows what was there; `aws s3api delete-object {at} --version-id ID` with the id of the delete marker "
            f"brings it back, `aws s3api copy-object {at} --copy-source '{place.bucket}/{whole}?versionId=ID'` an "
            f"overwritten one"
        )
        yield f"without versions: copy {key} back from a replica or a backup of the bucket"
    else:
        yield f"copy {key} back from a backup of {url}"
    yield "take the newest that there is, then run `tiered check` with --log-dir: it says if it is older than the disk"


def _without_root(entry: TopicEntry, disk: _Disk, tp: TopicPartition) -> Iterator[str]:
    """What is left if nobody kept the root."""
    yield (
        f"if nobody kept it: the objects below {partition_prefix(entry.topic_id, tp.partition)}s/ stay, nothing "
        f"deletes them; `tiered repair rebuild-catalog {tp.topic}:{tp.partition} --dry-run` says what root can be made "
        f"from them"
    )
    held = disk.held.get(tp)
    if held is None or disk.directory is None or held.end_offset == held.local_start_offset:
        return
    yield (
        f"{disk.directory} holds offsets {held.local_start_offset} to {held.end_offset}: `tiered cat {tp.topic}:"
        f"{tp.partition} --log-dir {disk.directory}`, without --remote, reads them"
    )
    yield (
        f"to have them in a bucket again: `tiered repair rejoin {tp.topic}:{tp.partition} --log-dir {disk.directory}` "
        f"sets them aside in a directory of their own, which can be uploaded like any log, to a prefix of its own"
    )


def _one_line(body: bytes) -> str:
    return " ".join(body.decode().split())
