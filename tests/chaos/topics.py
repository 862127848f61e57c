"""The topics of a run: who uploads each, what its records are, and what readers ask for."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """What a topic promises: every record, the last of each key, or the records of committed transactions."""

    PLAIN = "plain"
    COMPACTED = "compacted"
    TRANSACTIONAL = "transactional"

    @property
    def isolation(self) -> str:
        """How readers read it."""
        return "read_committed" if self is Kind.TRANSACTIONAL else "read_uncommitted"


class Held(NamedTuple):
    """One record: the name in its value, and its key."""

    name: str
    key: str


PARTITIONS = 2
HOSTS = {"beside": "daemon", "within": "component", "alone": "inline", "newest": "component", "decided": "daemon"}
"""Topics, and how each is uploaded."""
_KINDS = {"newest": Kind.COMPACTED, "decided": Kind.TRANSACTIONAL}
_CONFIG: Mapping[str, object] = {
    "segment.bytes": 32 * 1024,
    "segment.index.bytes": 4096,
    "index.interval.bytes": 1024,
    "local.retention.bytes": 96 * 1024,
    "merge.min.bytes": 64 * 1024,
    "merge.target.bytes": 512 * 1024,
    "gc.grace.ms": 3000,
    "file.delete.delay.ms": 1000,
}
KEYS = 40
"""Of a compacted topic, a partition."""


def kind_of(topic: str) -> Kind:
    """Of a topic of :data:`HOSTS`."""
    return _KINDS.get(topic, Kind.PLAIN)


def config_of(topic: str) -> dict[str, object]:
    """Its settings: small segments, a short grace; one that is compacted is so as soon as anything can go."""
    if kind_of(topic) is Kind.COMPACTED:
        return {**_CONFIG, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}
    return dict(_CONFIG)


def name_of(value: bytes | None) -> str:
    """The name in a record's value."""
    return (value or b"").rstrip(b"~").decode()


def generation_of(name: str) -> int:
    """Which of the hosts of a topic gave a record its name: ``TOPIC-gN.rRUN...``."""
    return int(name.partition("-g")[2].partition(".")[0])
