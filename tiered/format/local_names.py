"""Names of the disk: the files of a segment, and the directory of a partition.

Parsers follow Kafka and raise ``ConfigError`` where Kafka refuses to start.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import NamedTuple

from tiered.config import MAX_PARTITIONS
from tiered.errors import ConfigError
from tiered.format.keys import MAX_INT32, MAX_INT64, TOPIC_NAME, bounded, check_partition, check_topic_name, check_uid
from tiered.model import TopicPartition

MAX_DIR_CHARS = 255

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
SEGMENT_SUFFIXES = (LOG_SUFFIX, *INDEX_SUFFIXES)
"""Suffixes of the files that hold or index the records of one segment."""

_LOCAL_FILE = re.compile(
    r"(?P<base>[0-9]{20})(?P<suffix>\.(?:log|index|timeindex|txnindex|snapshot))(?P<work>\.(?:deleted|cleaned|swap))?"
)
_RENAMED_DIR = re.compile(r"\S+-\S+\.\S+-(?P<kind>delete|future|stray)")


class LocalFile(NamedTuple):
    """Parts of the name of a segment's local file. ``suffix``: for example ``.log``.

    ``work``: ``.deleted``, ``.cleaned`` or ``.swap`` during a deletion or replacement, otherwise ``""``.
    """

    base: int
    suffix: str
    work: str = ""


class PartitionDir(NamedTuple):
    """Parts of the name of a partition directory. ``kind``: ``delete``, ``future`` or ``stray`` for a renamed
    directory, otherwise ``""``.
    """

    tp: TopicPartition
    kind: str = ""


def local_name(base: int, suffix: str, work: str = "") -> str:
    """Return a local file name: the base offset as 20 digits, ``suffix`` and ``work``. Raises ConfigError for a bad
    offset.
    """
    if not 0 <= base <= MAX_INT64:
        bounded(base, MAX_INT64, "base offset")  # raises
    return f"{base:020d}{suffix}{work}"


log_name = functools.partial(local_name, suffix=LOG_SUFFIX)
"""Return the name of a segment's log, such as ``00000000000000000042.log``."""
index_name = functools.partial(local_name, suffix=INDEX_SUFFIX)
"""Return the name of the offset index."""
time_index_name = functools.partial(local_name, suffix=TIME_INDEX_SUFFIX)
"""Return the name of the time index."""
txn_index_name = functools.partial(local_name, suffix=TXN_INDEX_SUFFIX)
"""Return the name of the index of aborted transactions."""
snapshot_name = functools.partial(local_name, suffix=SNAPSHOT_SUFFIX)
"""Return the name of the producer snapshot; its number is the exclusive end offset of the state."""


def parse_local_name(name: str) -> LocalFile | None:
    """Return the parts of a segment file's name; None for any other file, which is ignored, as in Kafka."""
    match = _LOCAL_FILE.fullmatch(name)
    if match is None or int(match["base"]) > MAX_INT64:
        return None
    return LocalFile(int(match["base"]), match["suffix"], match["work"] or "")


def partition_dir(tp: TopicPartition) -> str:
    """Return ``topic-partition``. Raises ConfigError for a bad topic name or partition."""
    check_topic_name(tp.topic)
    check_partition(tp.partition)
    return f"{tp.topic}-{tp.partition}"


def renamed_dir(tp: TopicPartition, uid: str, kind: str) -> str:
    """Return ``topic-partition.uid-kind``, Kafka's name of a partition directory that is not in use.

    ``kind``: ``delete``, ``future`` (the target of a move) or ``stray``. For ``delete`` and ``stray`` the topic is cut
    so that the name has at most 255 characters. Raises ConfigError for another kind or a bad name.
    """
    if kind not in {"delete", "future", "stray"}:
        raise ConfigError(f"directory kind {kind!r} is not delete, future or stray")
    tail = f"-{tp.partition}.{check_uid(uid)}-{kind}"
    partition_dir(tp)
    topic = tp.topic if kind == "future" else tp.topic[: MAX_DIR_CHARS - len(tail)]
    return topic + tail


def parse_partition_dir(name: str) -> PartitionDir:
    """Parse the name of a directory: split at the last ``-``, a renamed one cut at the last ``.`` first.

    Raises ConfigError, as Kafka refuses to start, for a name without ``-``, a bad topic name, a partition that
    is not a plain decimal below ``MAX_PARTITIONS``, or a malformed renamed directory.
    """
    stem, kind = name, ""
    if name.endswith(("-delete", "-future", "-stray")):
        match = _RENAMED_DIR.fullmatch(name)
        if match is None:
            raise _bad_dir(name)
        stem, kind = name[: name.rindex(".")], match["kind"]
    topic, dash, partition = stem.rpartition("-")
    if not dash or not TOPIC_NAME.fullmatch(topic) or not re.fullmatch(r"0|[1-9][0-9]{0,9}", partition):
        raise _bad_dir(name)
    if int(partition) > MAX_INT32 or topic in {".", ".."}:
        raise _bad_dir(name)
    if int(partition) >= MAX_PARTITIONS:
        raise ConfigError(
            f"directory {name!r} names partition {partition}, which is too high",
            hint=f"move it out of the log directory: a topic has at most {MAX_PARTITIONS} partitions",
        )
    return PartitionDir(TopicPartition(sys.intern(topic), int(partition)), kind)


def _bad_dir(name: str) -> ConfigError:
    return ConfigError(
        f"directory {name[:300]!r} is not named topic-partition",
        hint="name it topic-partition if it belongs to this log; otherwise move it out of the log directory",
    )
