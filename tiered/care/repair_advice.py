"""What can be done about a root or a registry entry that is lost or went back: looked for, and said. Changes nothing.

An object comes back from a version or a backup of the bucket; this release rebuilds none. Nothing that the objects
below a lost root hold is deleted by anybody meanwhile, and a disk that has records of it is readable by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from tiered.care.check_registry import describe, find_unnamed, survey
from tiered.errors import CorruptionError, LogDestroyedError
from tiered.format.keys import partition_prefix, root_key, topic_key
from tiered.local.directory.manager import LocalLog
from tiered.local.disk.uploads import known_partitions
from tiered.model import Positions, TopicPartition
from tiered.plan.known import NOTHING_KNOWN, Known
from tiered.remote.root_view import RootView
from tiered.remote.topics import TopicEntry, check_entry, encode_topic, list_topics
from tiered.store.base import Store
from tiered.store.driver import drive
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
class _Disk:
    """What a log directory has seen and holds."""

    directory: Path | None
    known: Mapping[TopicPartition, Known]
    ids: Mapping[UUID, str]
    held: Mapping[TopicPartition, Positions]
    counts: Mapping[str, int]


def advise(store: Store, local: LocalLog | None, topics: Collection[str] = ()) -> list[Advice]:
    """Everything that is lost, of ``topics`` or of all. Lists the bucket; raises what the store raises."""
    disk = _disk(local)
    listed = survey(store)  # before the registry is read
    entries = {entry.name: entry for entry in drive(store, list_topics())}
    found = list(_entries(store, disk, listed, entries))
    for entry in entries.values():
        for partition in range(entry.partitions):
            advice = _root(store, disk, entry, partition)
            if advice is not None:
                found.append(advice)
    return [advice for advice in found if not topics or advice.topic in topics]


def _disk(local: LocalLog | None) -> _Disk:
    if local is None:
        return _Disk(None, {}, {}, {}, {})
    infos, broken = local.topics(), local.out_of_service
    return _Disk(
        local.directory,
        known_partitions(local.uploads.read(), local.claims.read()),
        {info.topic_id: name for name, info in infos.items()},
        {tp: local.partition(tp).positions() for tp in local.partitions() if tp not in broken},
        {name: info.partitions for name, info in infos.items()},
    )


def _entries(
    store: Store, disk: _Disk, listed: Collection[tuple[UUID, int]], entries: Mapping[str, TopicEntry]
) -> Iterator[Advice]:
    """Registry entries that are gone, name another topic id, or name too few partitions."""
    told: set[str] = set()
    for unnamed in find_unnamed(store, listed, list(entries.values()), disk.ids):
        if not unnamed.in_use:
            continue
        told.add(unnamed.topic)
        key = topic_key(unnamed.topic) if unnamed.topic else "topics/"
        count = max(unnamed.partitions[-1] + 1, disk.counts.get(unnamed.topic, 0))
        steps = [*_put_back(store, key)]
        if unnamed.topic:
            before = entries.get(unnamed.topic)
            config = before.config if before is not None and before.topic_id == unnamed.topic_id else {}
            body = encode_topic(TopicEntry(unnamed.topic, unnamed.topic_id, count, config, roots=True))
            steps.append(f"it is JSON; with the settings that the topic had besides, it held: {_one_line(body)}")
        yield Advice(key, unnamed.topic, -1, describe(unnamed, entries), tuple(steps))
    for topic in sorted({tp.topic for tp in disk.known} - told):
        known = {tp.partition: what for tp, what in disk.known.items() if tp.topic == topic}
        try:
            check_entry(topic, entries.get(topic), known, where=store.url)
        except (CorruptionError, LogDestroyedError) as error:
            steps = ["if this is another bucket or prefix than the log was uploaded to, correct the URL"]
            yield Advice(topic_key(topic), topic, -1, error.message, (*steps, *_put_back(store, topic_key(topic))))


def _root(store: Store, disk: _Disk, entry: TopicEntry, partition: int) -> Advice | None:
    tp = TopicPartition(entry.name, partition)
    seen = disk.known.get(tp, NOTHING_KNOWN)
    known = Known(entry.roots, seen.version, seen.start_offset, seen.next_offset, seen.writer_epoch, seen.tokens)
    try:
        drive(store, RootView(entry.topic_id, partition, entry.name, known).load())
    except (CorruptionError, LogDestroyedError) as error:
        key = root_key(entry.topic_id, partition)
        steps = [*_put_back(store, key), *_without_root(entry, disk, tp)]
        return Advice(key, entry.name, partition, error.message, tuple(steps))
    return None


def _put_back(store: Store, key: str) -> Iterator[str]:
    """How an object comes back that somebody kept."""
    place = StoreLocation.parse(store.url, environ={})
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
        yield f"copy {key} back from a backup of {store.url}"
    yield "take the newest that there is, then run `tiered check` with --log-dir: it says if it is older than the disk"


def _without_root(entry: TopicEntry, disk: _Disk, tp: TopicPartition) -> Iterator[str]:
    """What is left if nobody kept the root."""
    yield (
        f"if nobody kept it: the objects below {partition_prefix(entry.topic_id, tp.partition)}s/ stay, nothing "
        f"deletes them; this release cannot make a root from them"
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
