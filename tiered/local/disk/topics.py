"""``tiered-topics.json``: the topics of a log directory, their ids, sizes and settings. Brokers ignore the file.

::

    {"version": 1,
     "topics": {"flights": {"topic_id": "32 hex digits", "partitions": 6, "config": {...},
                            "held": [0, 2, 4],          only where the others lie in another log directory
                            "adopted": true}},          a broker's: the directories show which partitions exist
     "leaving": ["weather"]}                            being deleted: its directories are still being renamed
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from tiered.config import MAX_PARTITIONS, TopicConfig
from tiered.errors import CorruptionError, LocalIOError, NewerFormatError, NotFoundError, TieredError
from tiered.local.disk.checkpoints import refuse_newer
from tiered.local.disk.files import Files

TOPICS_NAME = "tiered-topics.json"
VERSION = 1

_WITHOUT_TOPICS = (
    "put it back from a copy. Without one, move it away: topics, ids and records are then what the directories tell. "
    "Lost with it are the topics' settings (`tiered topic set` sets them again), the knowledge that a missing "
    "segment or partition is damage, and deletions that had begun"
)


class TopicInfo(NamedTuple):
    """One topic as this log directory knows it; ``held``: the partitions of this directory, None for all.

    ``adopted``: a broker created it, and may since have deleted, recreated or compacted it.
    """

    name: str
    topic_id: UUID
    partitions: int
    config: TopicConfig
    held: frozenset[int] | None = None
    adopted: bool = False

    @property
    def here(self) -> Iterable[int]:
        """Return the numbers of the partitions that this directory holds, ascending."""
        return range(self.partitions) if self.held is None else sorted(self.held)


def read_topics(directory: Path, files: Files) -> dict[str, TopicInfo]:
    """Return all topics of the file; empty without one (a broker's directory). Raises CorruptionError, LocalIOError."""
    path = directory / TOPICS_NAME
    try:
        value = json.loads(files.read(path))
        refuse_newer(path, value, VERSION)
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']}")
        return {
            str(name): TopicInfo(
                str(name),
                UUID(hex=entry["topic_id"]),
                _partitions(entry["partitions"]),
                TopicConfig.from_properties(entry["config"]),
                frozenset(_held(entry)) if "held" in entry else None,
                bool(entry.get("adopted", False)),
            )
            for name, entry in value["topics"].items()
        }
    except NotFoundError:
        return {}
    except (NewerFormatError, LocalIOError):  # the file may be whole: it must not be made again
        raise
    except (ValueError, KeyError, TypeError, AttributeError, TieredError) as error:
        raise CorruptionError(
            f"{path} cannot be read: {error}",
            path_or_key=str(path),
            hint=_WITHOUT_TOPICS,
        ) from error


def _partitions(value: object) -> int:
    """Return a number of partitions from the file. Raises ValueError if it is out of range: it bounds loops."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_PARTITIONS:
        raise ValueError(f"{value!r} is no number of partitions from 1 to {MAX_PARTITIONS}")
    return value


def _held(entry: Mapping[str, Any]) -> Iterable[int]:
    numbers = [_partitions(number) for number in entry["held"]]
    if any(number >= entry["partitions"] for number in numbers):
        raise ValueError(f"it holds partition {max(numbers)} of {entry['partitions']}")
    return numbers


def read_leaving(directory: Path, files: Files) -> frozenset[str]:
    """Return the topics whose deletion had begun. Damage of the file is reported by :func:`read_topics`."""
    try:
        return frozenset(str(name) for name in json.loads(files.read(directory / TOPICS_NAME)).get("leaving", ()))
    except (NotFoundError, ValueError, TypeError, AttributeError):
        return frozenset()


def write_topics(directory: Path, files: Files, topics: Mapping[str, TopicInfo], leaving: Collection[str] = ()) -> None:
    """Replace the file, durably."""
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
