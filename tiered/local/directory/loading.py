"""Contents of a log directory at an open, and the end of operations that a crash interrupted."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from tiered.errors import ConfigError, TieredError
from tiered.local.directory.checkpoints import Noted
from tiered.local.directory.read_only_log import STRANGE_HINT, DirectoryView, gone_error, gone_partitions
from tiered.local.directory.registry import LeavingDirectories
from tiered.local.disk.files import Files, disk_failed
from tiered.local.disk.topics import TopicInfo, read_leaving, read_topics, write_topics
from tiered.local.disk.volume import discovered, expected_topics, read_topic_ids, set_apart, without_absent
from tiered.local.partition.open_partitions import Roster, Sleeper
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")


@dataclass(slots=True)
class Inventory:
    """Contents of a log directory at an open: topics by name, and ``present``, the partitions that have a directory.

    ``broken``: partitions that are out of service, with the error. ``leaving``: directories to be removed.
    """

    topics: dict[str, TopicInfo] = field(default_factory=dict)
    present: set[TopicPartition] = field(default_factory=set)
    broken: dict[TopicPartition, TieredError] = field(default_factory=dict)
    leaving: list[str] = field(default_factory=list)


def read_inventory(directory: Path, files: Files, tiered: Collection[TopicPartition] = ()) -> Inventory:
    """Read names and small files. ``tiered``: the partitions that a bucket knows.

    Raises ConfigError for directories that are no partitions or those of another topic, CorruptionError; LocalIOError
    for a disk that fails.
    """
    seen = read_strictly(directory, files)
    found = Inventory(
        topics=expected_topics(directory, files),
        leaving=[folder.name for folder in seen.renamed("delete")],
    )
    gone = read_leaving(directory, files)
    for tp in seen.partitions:
        if tp.topic not in gone or tp.topic in found.topics:
            found.present.add(tp)
    ids = read_topic_ids(directory, files, sorted(found.present), found.broken)
    for error in found.broken.values():
        if disk_failed(error):  # not an error of one partition: nothing is written there
            raise error
    known = {tp.topic for tp in tiered}  # one that a bucket knows is refused as a whole below
    set_apart(directory, {name: here for name, here in ids.items() if name not in known}, found.topics, found.broken)
    for topic, here in ids.items():
        found.topics[topic] = discovered(found.topics.get(topic), topic, here, tiered=tiered)
    found.topics = without_absent(found.topics)
    return found


def read_strictly(directory: Path, files: Files) -> DirectoryView:
    """Raise ConfigError that lists every directory of segments under a strange name, as Kafka refuses to start."""
    seen = DirectoryView.read(directory, files)
    bad = [folder.name for folder in seen.strange]
    if bad:
        raise ConfigError(
            f"{directory} holds segments in directories not named topic-partition: "
            + ", ".join(map(repr, bad[:20]))
            + (f" and {len(bad) - 20} more" if len(bad) > 20 else ""),
            hint=STRANGE_HINT,
        )
    stray = [folder.name for folder in seen.renamed("stray")]
    if stray:
        LOGGER.warning("stray_directories path=%s names=%s hint=kept, never loaded", directory, stray)
    return seen


def finish_deletions(directory: Path, files: Files, leaving: LeavingDirectories) -> list[TopicPartition]:
    """Finish interrupted deletions: rename directories that still have their name. Return their partitions."""
    gone = read_leaving(directory, files)
    if not gone:
        return []
    topics = read_topics(directory, files)
    moved = [tp for tp in read_strictly(directory, files).partitions if tp.topic in gone and tp.topic not in topics]
    for tp in moved:
        leaving.rename(tp, 0)
    write_topics(directory, files, topics)
    return moved


def put_gone_aside(directory: Path, found: Inventory, noted: Noted, tiered: Collection[TopicPartition]) -> None:
    """Take a partition out of service if it had records and its directory is missing.

    An empty directory in its place would assign the offsets of those records again. An interrupted deletion or move
    is not such a case: ``tiered-topics.json`` drops the partition before its directory is renamed. Neither is a
    rejoin, which drops the partition's end.
    """
    for tp, end in gone_partitions(found.topics.values(), found.present, noted.points).items():
        found.broken[tp] = gone_error(directory, tp, end, tiered=tp in tiered)


def open_partitions(
    roster: Roster, found: Inventory, noted: Noted, *, clean: bool, tiered: Collection[TopicPartition]
) -> None:
    """Open the partitions. After a clean shutdown, one whose end is in a checkpoint is opened at its first use."""
    put_gone_aside(roster.directory, found, noted, tiered)
    for topic in found.topics.values():
        for number in topic.here:
            tp = TopicPartition(topic.name, number)
            point, start = noted.point(tp), noted.starts.get(tp)
            if tp in found.broken:
                LOGGER.error("partition_out_of_service partition=%s error=%s", tp, found.broken[tp])
                roster.put_aside(tp, found.broken[tp], Sleeper(point, start))
            elif clean and tp in found.present and point >= 0:
                roster.put_to_sleep(tp, Sleeper(point, start))
            else:
                roster.adopt(tp, clean=clean, recovery_point=point, start=start)
