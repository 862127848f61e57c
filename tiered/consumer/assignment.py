"""Assignment of partitions to a consumer, and the positions of its group.

A group of a log reads all partitions of its topics in the process that has the log open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from tiered import arguments
from tiered.errors import ConfigError, LogDestroyedError, TieredError, UnknownTopicError
from tiered.local.disk.topics import TopicInfo
from tiered.model import Position, TopicPartition

if TYPE_CHECKING:  # a reader imports no writer
    from tiered.local.transactions.group_positions import GroupPositions

__all__ = ["Assignment", "Changes", "Position"]


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of an assignment since the last poll.

    ``assigned``: partitions to read from now on, with their positions. None: begin at the committed position, or at
    ``start=`` without one. ``lost``: partitions to close now: another member reads them, the topic was deleted, or the
    caller chose others. Their positions are not committed. ``stop``: partitions to give up: none of their records may
    be returned any more. ``wait``: True if no record at all may be returned until a later poll returns False.
    ``incomplete``: True if other members still own partitions of this member's share, so a read with ``stop_at`` must
    not end.
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

    outlives_topics: bool
    """True if the deletion of a topic makes its partitions ``lost``. False if it is an error."""

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


class PositionStore(Protocol):
    """Store of the positions of one group."""

    def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """Return the stored positions of these partitions. Partitions without one are left out."""

    def store(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Store positions, all or none."""


class LoggedPositions:
    """Positions of one group, stored in ``__consumer_offsets`` of the log."""

    def __init__(self, positions: GroupPositions, group: str) -> None:
        self.positions = positions
        self._group = group

    def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        return self.positions.committed(self._group, partitions)

    def store(self, positions: Mapping[TopicPartition, Position]) -> None:
        self.positions.commit(self._group, positions)


class ProgramPositions:
    """Positions that the application stores in its own mapping, or by its own functions.

    Exceptions of these functions reach the caller of the consumer.
    """

    def __init__(self, given: CallersPositions) -> None:
        if isinstance(given, tuple):
            if not all(map(callable, given)):
                raise arguments.wrong("positions", given, "a mapping, or a pair of functions (load, store)")
            self._load, self._store = given
        else:
            mapping = arguments.has("positions", given, ("update", "get"), "a mapping, or a pair of functions")
            self._load = lambda partitions: {tp: mapping[tp] for tp in partitions if tp in mapping}
            self._store = mapping.update

    def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        found = self._load(partitions).items()
        return {TopicPartition(*tp): at if isinstance(at, Position) else Position(at) for tp, at in found}

    def store(self, positions: Mapping[TopicPartition, Position]) -> None:
        self._store(positions)


class LogAssignment:
    """Assignment of a log's consumer: all partitions of its topics, or those that the application names."""

    poll_interval_s = 1.0
    commit_interval_s = 0.0
    outlives_topics = False

    def __init__(
        self,
        group: str,
        store: PositionStore,
        *,
        readers: GroupPositions,
        find: Callable[[str], object],
        topics: Callable[[], Mapping[str, TopicInfo]],
    ) -> None:
        """Make an assignment without partitions. ``store``: store of the group's positions.

        ``readers``: register of the consumers in this log, so that two of a group never read the same partition.
        ``find``: opens a topic by name, or raises UnknownTopicError. ``topics``: returns all topics of this log.
        """
        self.group = arguments.text_of("group", group, most_bytes=MAX_GROUP_BYTES)
        self.store = store
        self.logged = store.positions if isinstance(store, LoggedPositions) else None
        self._readers = readers
        self._find = find
        self._topics = topics
        self._names: tuple[str, ...] = ()
        self._chosen: frozenset[TopicPartition] | None = None
        self._ids: dict[TopicPartition, UUID] = {}

    def subscribe(self, topics: Collection[str]) -> None:
        """Read all partitions of these topics from the next poll on. Raises UnknownTopicError if one does not exist."""
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        for name in names:
            self._find(name)
        self._names, self._chosen = names, None

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions instead of the present ones, from the next poll on.

        Raises UnknownTopicError if one does not exist.
        """
        chosen = frozenset(map(TopicPartition._make, partitions))
        for topic, number in chosen:
            self._find(topic)
            count = self._topics()[topic].partitions
            if not 0 <= number < count:
                raise UnknownTopicError(
                    f"topic {topic} has no partition {number}", hint=f"its partitions are 0 to {count - 1}"
                )
        self._names, self._chosen = (), chosen

    def poll(self, busy: Collection[TopicPartition]) -> Changes:
        """Return the partitions that were added or removed since the last call.

        A partition of a topic that was created again is both. ``busy`` is not used. Raises ConfigError while another
        consumer of this log reads a partition for the same group.
        """
        wanted = dict(self._wanted())
        if wanted == self._ids:
            return Changes()
        lost = [tp for tp, topic_id in self._ids.items() if wanted.get(tp) != topic_id]
        new = [tp for tp, topic_id in wanted.items() if self._ids.get(tp) != topic_id]
        try:
            for tp in new:
                self._readers.hold(self.group, tp, self)
        except ConfigError:
            self._readers.release(self.group, set(new) - self._ids.keys(), self)
            raise
        self._readers.release(self.group, [tp for tp in lost if tp not in wanted], self)
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
        """Store positions. Return the error of each partition whose position was not stored.

        A position is refused if its partition is not assigned here, or if its topic was deleted: a new topic of that
        name has other records.
        """
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
            self.store.store(rest)
        except TieredError as error:
            errors.update(dict.fromkeys(rest, error))
        return errors

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """Return the stored positions of ``partitions``. Partitions without one are left out.

        Raises CorruptionError if one is damaged, ConfigError if another protocol uses the group, and errors of the
        application's own store.
        """
        return self.store.load(partitions)

    def close(self) -> None:
        """Release the partitions, so that another consumer of this log may read them for the group."""
        self._readers.release(self.group, self._ids, self)
        self._ids = {}
