"""Positions of a group, and the interface that assigns partitions to a consumer and keeps its positions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tiered.errors import TieredError
from tiered.model import Position, TopicPartition

__all__ = ["Assignment", "Changes", "Position"]


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of an assignment since the last poll.

    ``assigned``: partitions to read from now on, each with its position. None: begin at the committed position, or at
    ``start=`` if there is none. ``lost``: partitions that another member reads now. Their positions are dropped.
    ``stop``: partitions to give up. No further record of them is handed out. ``wait``: hand out nothing until a poll
    returns it as False; what was assigned stays. ``incomplete``: another member still owns partitions of
    this member's share, so a read with ``stop_at`` has not ended.
    """

    assigned: Mapping[TopicPartition, Position | None] = field(default_factory=dict)
    lost: Collection[TopicPartition] = ()
    stop: Collection[TopicPartition] = ()
    wait: bool = False
    incomplete: bool = False


class Assignment(Protocol):
    """Source of the partitions that a consumer reads, and store of their positions.

    All calls come from one thread at a time. :meth:`poll` only looks at memory. The others may wait for a disk or a
    bucket: the face for asyncio calls them on a thread.
    """

    poll_interval_s: float
    """Seconds after which a consumer that waits for records calls :meth:`poll` again."""

    commit_interval_s: float
    """Least seconds between two commits without a waiting caller. What comes sooner is stored together."""

    outlives_topics: bool
    """True if a topic that is gone makes its partitions ``lost``, and is no error."""

    def subscribe(self, topics: Collection[str]) -> None:
        """Read these topics from the next poll on, in place of those before."""

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions from the next poll on. Raises ConfigError where members share the partitions."""

    def poll(self, busy: Collection[TopicPartition]) -> Changes:
        """Return the changes since the last call. ``busy``: partitions with records that were handed out and are not
        committed.
        """

    def commit(self, positions: Mapping[TopicPartition, Position]) -> Mapping[TopicPartition, TieredError]:
        """Store positions. Return the error of each partition whose position was not stored."""

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """Return the stored positions. A partition without one is left out."""

    def close(self) -> None:
        """Leave the group. Commits nothing."""
