"""The topics of a log directory: ``tiered-topics.json``, which brokers ignore, and the topic ids of the partitions.

::

    {"version": 1,
     "topics": {"flights": {"topic_id": "32 hex digits", "partitions": 6, "config": {...},
                            "held": [0, 2, 4],          only where the others lie in another log directory
                            "adopted": true}},          a broker's: the directories show which partitions exist
     "leaving": ["weather"]}                            being deleted: its directories are still being renamed

Each partition directory names its topic's id in ``partition.metadata``, a file of Kafka's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from tiered.config import MAX_PARTITIONS, TopicConfig
from tiered.errors import (
    ConfigError,
    CorruptionError,
    LocalIOError,
    NewerFormatError,
    NotFoundError,
    TieredError,
    message_of,
)
from tiered.format.checkpoint import (
    decode_partition_metadata,
    encode_partition_metadata,
    encode_uuid,
)
from tiered.format.coordinator_records import is_state_log
from tiered.format.local_names import partition_dir
from tiered.local.disk.directory_files import META_PROPERTIES_NAME, NO_ID, VERSION, read_json
from tiered.local.disk.files import Files
from tiered.model import TopicPartition

TOPICS_NAME = "tiered-topics.json"
_WITHOUT_TOPICS = (
    "put it back from a copy. Without one, move it away: topics and records are then read from the directories. "
    "Settings of topics are lost; `tiered topic set` sets them again. Missing partitions are no longer noticed"
)
_PUT_BACK = (
    "put the file back (the one of another partition of the topic has the same content), or move the directory away; "
    "then open the log again"
)
PARTITION_METADATA_NAME = "partition.metadata"
BROKER_OWN_DIRS = frozenset({"remote-log-index-cache", "__cluster_metadata-0"})
"""Directories that other parts of a broker own: never loaded as partitions."""

BROKER_FILE = "bootstrap.checkpoint"
"""File in every log directory of a KRaft broker."""


class TopicInfo(NamedTuple):
    """Entry of one topic in this log directory. ``held``: numbers of the partitions in this directory, None for all.

    ``partitions``: number of the topic's partitions, also those in other directories of the log.
    ``adopted``: True if a broker created the topic. The broker may since have deleted, recreated or compacted it.
    """

    name: str
    topic_id: UUID
    partitions: int
    config: TopicConfig
    held: frozenset[int] | None = None
    adopted: bool = False

    @property
    def here(self) -> Iterable[int]:
        """Return the numbers of the topic's partitions in this directory, ascending."""
        return range(self.partitions) if self.held is None else sorted(self.held)


def read_topics(directory: Path, files: Files) -> dict[str, TopicInfo]:
    """Return the topics in ``tiered-topics.json``, by name; an empty dict without the file (a broker's directory).

    Raises CorruptionError if the file is damaged, LocalIOError if it cannot be read.
    """
    return read_json(directory / TOPICS_NAME, files, _decode_topics, _WITHOUT_TOPICS) or {}


def _decode_topics(value: Mapping[str, Any]) -> dict[str, TopicInfo]:
    return {
        name: TopicInfo(
            name,
            UUID(hex=entry["topic_id"]),
            _partitions(entry["partitions"]),
            TopicConfig.from_properties(entry["config"]),
            frozenset(map(_partitions, entry["held"])) if "held" in entry else None,
            bool(entry.get("adopted", False)),
        )
        for name, entry in value["topics"].items()
    }


def _partitions(value: object) -> int:
    """Return ``value``, a number of partitions from the file. Raises ValueError if it is out of range."""
    if type(value) is not int or not 0 <= value <= MAX_PARTITIONS:
        raise ValueError(f"{value!r} is not a number of partitions from 1 to {MAX_PARTITIONS}")
    return value


def read_leaving(directory: Path, files: Files) -> frozenset[str]:
    """Return the names of the topics whose deletion has begun and not ended.

    A missing or damaged file gives an empty set. :func:`read_topics` raises for a damaged one.
    """
    try:
        return frozenset(str(name) for name in json.loads(files.read(directory / TOPICS_NAME)).get("leaving", ()))
    except (NotFoundError, ValueError, TypeError, AttributeError):
        return frozenset()


def write_topics(directory: Path, files: Files, topics: Mapping[str, TopicInfo], leaving: Collection[str] = ()) -> None:
    """Replace ``tiered-topics.json``, durably. ``leaving``: names of topics that are being deleted."""
    entries = {
        topic.name: {
            "topic_id": topic.topic_id.hex,
            "partitions": topic.partitions,
            "config": topic.config.to_properties(changed_only=True),
            **({} if topic.held is None else {"held": sorted(topic.held)}),
            **({"adopted": True} if topic.adopted else {}),
        }
        for topic in topics.values()
    }
    value = {"version": VERSION, "topics": entries, **({"leaving": sorted(leaving)} if leaving else {})}
    data = json.dumps(value, indent=1, sort_keys=True)
    files.replace(directory / TOPICS_NAME, data.encode() + b"\n")


def refuse_partition(directory: Path, files: Files) -> None:
    """Raise ConfigError if ``directory`` is the directory of a partition, and not of a log."""
    if (
        files.state(directory / PARTITION_METADATA_NAME) is not None
        and files.state(directory / META_PROPERTIES_NAME) is None
    ):
        raise ConfigError(
            f"{directory} is the directory of a partition, not of a log", hint=f"name {directory.absolute().parent}"
        )


def read_topic_id(path: Path, files: Files) -> UUID | None:
    """Return the topic id in ``partition.metadata`` of the partition directory ``path``, None without the file.

    Raises CorruptionError if the file is damaged, LocalIOError if it cannot be read.
    """
    file = path / PARTITION_METADATA_NAME
    try:
        return decode_partition_metadata(files.read(file).decode())
    except NotFoundError:
        return None
    except NewerFormatError as newer:
        raise NewerFormatError(
            f"{path.name} is out of service: {file} was written by a newer release: {newer.message}",
            path_or_key=str(file),
            hint="upgrade tieredlog; nothing was changed",
        ) from newer
    except (CorruptionError, UnicodeDecodeError) as error:
        raise CorruptionError(
            f"{path.name} is out of service: {file} cannot be read: {message_of(error)}",
            path_or_key=str(file),
            hint=_PUT_BACK,
        ) from error


def read_topic_ids(
    directory: Path, files: Files, tps: Iterable[TopicPartition], broken: dict[TopicPartition, TieredError]
) -> dict[str, dict[int, UUID | None]]:
    """Return the topic id of each partition in ``tps``, by topic and partition number.

    The id is None without ``partition.metadata``. If the file is unreadable, the id is None and the error is added to
    ``broken``. Within a topic, known ids come before None.
    """
    ids: dict[str, dict[int, UUID | None]] = {}
    unknown: list[TopicPartition] = []
    for tp in tps:
        found: UUID | None = None
        try:
            found = read_topic_id(directory / partition_dir(tp), files)
        except (CorruptionError, LocalIOError) as error:
            broken[tp] = error
        if found is None:
            unknown.append(tp)
        else:
            ids.setdefault(tp.topic, {})[tp.partition] = found
    for tp in unknown:
        ids.setdefault(tp.topic, {})[tp.partition] = None
    return ids


def find_wrong_ids(
    directory: Path,
    ids: dict[str, dict[int, UUID | None]],
    known: Mapping[str, UUID],
    broken: dict[TopicPartition, TieredError],
) -> None:
    """Add to ``broken`` an error for each partition that has the id of another topic. Its id in ``ids`` becomes None.

    ``known``: ids of topics by name. The id of any other topic is that of most of its partitions, because a broker may
    have been down while a topic was deleted and created again.
    """
    for name, here in ids.items():
        held = [topic_id for _, topic_id in sorted(here.items()) if topic_id is not None]
        right = known.get(name) or max(held, key=held.count, default=NO_ID)  # the lowest partition's of equals
        for number, topic_id in here.items():
            if topic_id not in (None, right):
                tp = TopicPartition(name, number)
                broken[tp] = another_topic(directory, tp, topic_id, right)
                here[number] = None


def another_topic(directory: Path, tp: TopicPartition, found: UUID, right: UUID) -> CorruptionError:
    """Return the error of a partition with the topic id ``found``, whose topic has the id ``right``."""
    file = directory / partition_dir(tp) / PARTITION_METADATA_NAME
    return CorruptionError(
        f"{tp} is out of service: {file} names topic id {encode_uuid(found)}, but its topic has {encode_uuid(right)}",
        path_or_key=str(file),
        hint=_PUT_BACK,
    )


def known_ids(topics: Mapping[str, TopicInfo], tiered: Collection[TopicPartition] = ()) -> dict[str, UUID]:
    """Return the ids of those ``topics`` that no broker can have created again: ours, and those that a bucket knows.

    ``tiered``: partitions that a bucket knows.
    """
    names = {tp.topic for tp in tiered}
    return {
        name: topic.topic_id
        for name, topic in topics.items()
        if topic.topic_id.int and (not topic.adopted or name in names)
    }


def ensure_topic_id(path: Path, files: Files, topic_id: UUID) -> None:
    """Write ``partition.metadata`` with the topic id, unless the file exists or the id is zero (unknown).

    Call it before the first record of the partition directory ``path``.
    """
    if topic_id.int and files.state(path / PARTITION_METADATA_NAME) is None:
        files.replace(path / PARTITION_METADATA_NAME, encode_partition_metadata(topic_id).encode())
        files.sync_directory(path.parent)


def expected_topics(directory: Path, files: Files) -> dict[str, TopicInfo]:
    """Return the topics in ``tiered-topics.json``, with the partitions that must exist in this directory.

    An adopted topic, one that a broker created, has none: only the disk shows which partitions exist. In a broker's
    directory every topic counts as adopted, because Kafka's controller creates and deletes topics.
    """
    brokers = files.state(directory / BROKER_FILE) is not None
    topics = read_topics(directory, files)
    return {
        name: topic._replace(held=frozenset(), adopted=True) if brokers or topic.adopted else topic
        for name, topic in topics.items()
    }


def discovered(known: TopicInfo | None, name: str, ids: Mapping[int, UUID | None]) -> TopicInfo:
    """Return the topic ``name`` as the disk shows it. ``ids``: the topic id of each of its partitions on disk.

    ``known``: its entry in ``tiered-topics.json``; without one (None) a broker created the topic. A broker's topic has
    only the partitions on disk. If its id has changed, the broker deleted and created it again.
    """
    found = next((topic_id for topic_id in ids.values() if topic_id is not None), NO_ID)
    if known is None or (found.int and known.topic_id.int and found != known.topic_id):
        config = TopicConfig(cleanup_policy="compact" if is_state_log(name) else "delete")
        known = TopicInfo(name, found, 0, config, frozenset(), adopted=True)
    here = {*known.here, *ids}
    partitions = max(known.partitions, max(here) + 1)
    return known._replace(partitions=partitions, held=None if len(here) == partitions else frozenset(here))


def find_topics(
    directory: Path, files: Files, present: Iterable[TopicPartition], *, tiered: Collection[TopicPartition] = ()
) -> tuple[dict[str, TopicInfo], dict[TopicPartition, TieredError]]:
    """Return the topics of a directory by name, and the error of each partition that is out of service.

    ``present``: partitions that have a directory. ``tiered``: partitions that a bucket knows. Raises CorruptionError if
    ``tiered-topics.json`` is damaged, LocalIOError if it cannot be read.
    """
    topics, broken = expected_topics(directory, files), dict[TopicPartition, TieredError]()
    ids = read_topic_ids(directory, files, present, broken)
    find_wrong_ids(directory, ids, known_ids(topics, tiered), broken)
    for name, here in ids.items():
        topics[name] = discovered(topics.get(name), name, here)
    # An adopted topic without a partition here was removed by its broker.
    return {name: topic for name, topic in topics.items() if not topic.adopted or topic.here}, broken
