"""``tiered-topics.json``: the topics of a log directory, their ids, sizes and settings. Brokers ignore the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tiered.config import TopicConfig
from tiered.errors import CorruptionError, NotFoundError, TieredError
from tiered.local.files import Files

TOPICS_NAME = "tiered-topics.json"
VERSION = 1


class TopicInfo(NamedTuple):
    """One topic as this log directory knows it."""

    name: str
    topic_id: UUID
    partitions: int
    config: TopicConfig


def read_topics(directory: Path, files: Files) -> dict[str, TopicInfo]:
    """All topics of the file; empty if there is none (a broker's directory). Raises CorruptionError."""
    path = directory / TOPICS_NAME
    try:
        value = json.loads(files.read(path))
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']}")
        return {
            str(name): TopicInfo(
                str(name),
                UUID(hex=entry["topic_id"]),
                int(entry["partitions"]),
                TopicConfig.from_properties(entry["config"]),
            )
            for name, entry in value["topics"].items()
        }
    except NotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, TieredError) as error:
        raise CorruptionError(
            f"{path} cannot be read: {error}",
            path_or_key=str(path),
            hint="put the file back, or remove it and create the topics again with their ids",
        ) from error


def write_topics(directory: Path, files: Files, topics: Mapping[str, TopicInfo]) -> None:
    """Replaces the file, durably."""
    entries = {
        topic.name: {
            "topic_id": topic.topic_id.hex,
            "partitions": topic.partitions,
            "config": topic.config.to_properties(changed_only=True),
        }
        for topic in topics.values()
    }
    data = json.dumps({"version": VERSION, "topics": entries}, indent=1, sort_keys=True)
    files.replace(directory / TOPICS_NAME, data.encode() + b"\n")
