"""Assignment of partitions to a consumer, and the positions of its group.

A group of a log reads all partitions of its topics in the process that has the log open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from tiered import arguments
from tiered.errors import ConfigError, LogDestroyedError, TieredError
from tiered.local.disk.topics import TopicInfo
from tiered.model import Position, TopicPartition

if TYPE_CHECKING:  # a reader imports no writer
    from tiered.local.transactions.group_positions import GroupPositions

__all__ = ["Assignment", "Changes", "Position"]


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of an assignment since the last poll.

    ``assigned``: partitions to read from now on, with their positions. None: the committed one, or that of ``start=``.
    ``lost``: partitions to close now, without a commit. ``stop``: partitions of which no record may be returned any
    more. ``wait``: True if no record at all may be returned until a later poll returns False. ``incomplete``: True if
    other members still own partitions of this member's share, so a read with ``stop_at`` must not end.
    """

    assigned: Mapping[TopicPartition, Position | None] = field(default_factory=dict)
    lost: Collection[TopicPartition] = ()
    stop: Collection[TopicPartition] = ()
    wait: bool = False
    incomplete: bool = False


class Assignment(Protocol):
    """Source of the partitions that a consumer reads, and store of their positions.

    Calls come from one thread at a time. :meth:`poll` only reads memory. Other methods may wait for a disk or a bucket,
    so the asyncio consumer calls them on a thread.
    """

    poll_interval_s: float
    """Seconds after which a consumer that waits for records calls :meth:`poll` again."""

    commit_interval_s: float
    """Least seconds between two commits for which no caller waits. Positions that come sooner are stored together."""

    kept_in: object
    """The ``GroupPositions`` of a log that stores the positions of this group. None: another place does."""

    def subscribe(self, topics: Collection[str]) -> None:
        """Read the partitions of ``topics`` instead of the present ones, from the next poll on."""

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions instead of the present ones, from the next poll on.

        Raises ConfigError if the members of a group share the partitions.
        """

    def poll(self, busy: Collection[TopicPartition]) -> Changes:
        """Return the changes since the last call. ``busy``: partitions with returned records that are not committed."""

    def commit(self, positions: Mapping[TopicPartition, Position]) -> Mapping[TopicPartition, TieredError]:
        """Store positions. Return the error of each partition whose position was not stored."""

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """Return the stored positions. Partitions without one are left out."""

    def close(self) -> None:
        """Leave the group, without a commit."""


MAX_GROUP_BYTES = 249
"""Longest name of a group."""
Load = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, "Position | int"]]
Store = Callable[[Mapping[TopicPartition, Position]], object]
CallersPositions = MutableMapping[TopicPartition, Position] | tuple[Load, Store]
"""Positions that the application stores: a mapping, or a pair of functions (load, store)."""


class LogAssignment:
    """Assignment of a log's consumer: all partitions of its topics, or those that the application names."""

    poll_interval_s = 1.0
    commit_interval_s = 0.0

    def __init__(
        self,
        group: str,
        logged: GroupPositions,
        given: CallersPositions | None,
        *,
        find: Callable[[str], object],
        topics: Callable[[], Mapping[str, TopicInfo]],
    ) -> None:
        """Make an assignment without partitions. ``given``: store of the application. None: ``logged`` stores them.

        ``logged`` also registers the consumers of this log, so that two of a group never read the same partition.
        ``find``: opens a topic by name, or raises UnknownTopicError. ``topics``: returns all topics of this log.
        """
        self.group = arguments.text_of("group", group, most_bytes=MAX_GROUP_BYTES)
        self.kept_in: object = logged if given is None else None
        self._load: Load
        self._store: Store
        if given is None:
            self._load, self._store = partial(logged.committed, group), partial(logged.commit, group)
        elif isinstance(given, tuple):
            if not all(map(callable, given)):
                raise arguments.wrong("positions", given, "a mapping, or a pair of functions (load, store)")
            self._load, self._store = given
        else:
            mapping = arguments.has("positions", given, ("update", "get"), "a mapping, or a pair of functions")
            self._load = lambda partitions: {tp: mapping[tp] for tp in partitions if tp in mapping}
            self._store = mapping.update
        self._readers = logged
        self._find = find
        self._topics = topics
        self._names: tuple[str, ...] = ()
        self._chosen: frozenset[TopicPartition] | None = None
        self._ids: dict[TopicPartition, UUID] = {}

    def subscribe(self, topics: Collection[str]) -> None:
        for name in topics:
            self._find(name)
        self._names, self._chosen = tuple(topics), None

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        chosen = frozenset(map(TopicPartition._make, partitions))
        for topic, number in chosen:
            self._find(topic)
            arguments.chosen_partitions(topic, self._topics()[topic].partitions, number)
        self._names, self._chosen = (), chosen

    def poll(self, busy: Collection[TopicPartition]) -> Changes:
        """Return the partitions that were added or removed. A partition of a topic that was created again is both.

        Raises ConfigError while another consumer of this log reads a partition for the same group.
        """
        wanted = dict(self._wanted())
        if wanted == self._ids:
            return Changes()
        lost = [tp for tp, topic_id in self._ids.items() if wanted.get(tp) != topic_id]
        new = [tp for tp, topic_id in wanted.items() if self._ids.get(tp) != topic_id]
        self._readers.hold(self.group, new, self)
        self._readers.release(self.group, [tp for tp in lost if tp not in wanted])
        self._ids = wanted
        return Changes(dict.fromkeys(new), lost)

    def _wanted(self) -> Iterable[tuple[TopicPartition, UUID]]:
        topics = self._topics()
        if self._chosen is not None:
            yield from ((tp, topics[tp.topic].topic_id) for tp in sorted(self._chosen) if tp.topic in topics)
            return
        for name in self._names:
            if name in topics:
                info = topics[name]
                yield from ((TopicPartition(name, number), info.topic_id) for number in range(info.partitions))

    def commit(self, positions: Mapping[TopicPartition, Position]) -> Mapping[TopicPartition, TieredError]:
        """Store positions, all or none of those whose partition is assigned here and has the same topic as then."""
        topics = self._topics()
        errors: dict[TopicPartition, TieredError] = {}
        for tp in positions:
            info = topics.get(tp.topic)
            if tp not in self._ids:
                errors[tp] = ConfigError(
                    f"{tp} is not assigned to this consumer of group {self.group!r}",
                    hint="commit only partitions that assignment() returns",
                )
            elif info is None or info.topic_id != self._ids[tp]:
                errors[tp] = LogDestroyedError(
                    f"the position of {tp} is not stored: its topic was deleted",
                    hint="poll again: the consumer then drops the partition, or reads the new topic of this name",
                )
        rest = {tp: position for tp, position in positions.items() if tp not in errors}
        try:
            self._store(rest)
        except TieredError as error:
            errors.update(dict.fromkeys(rest, error))
        return errors

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        found = self._load(partitions).items()
        return {TopicPartition(*tp): at if isinstance(at, Position) else Position(at) for tp, at in found}

    def close(self) -> None:
        self._readers.release(self.group, self._ids)
        self._ids = {}
