"""Driver of a group member: its heartbeat thread, the calls of its consumer, and the topics of its bucket.

Heartbeats run on a thread, also for asyncio: a handler that blocks the event loop must not end a lease.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from tiered import arguments
from tiered.clock import SystemClock
from tiered.consumer.assignment import Changes
from tiered.errors import ClosedError, ConfigError, LogDestroyedError, TieredError
from tiered.format.kernels import PlainLock
from tiered.format.keys import check_group_name
from tiered.format.locks import SafeEvent
from tiered.format.root import STATE_OPEN
from tiered.group.member import GroupSettings, Member
from tiered.group.objects import PlannedTopic
from tiered.model import Position, TopicPartition
from tiered.plan.root_lower_bounds import NOTHING_KNOWN
from tiered.read.bucket import BucketReads
from tiered.read.stream import TierStream
from tiered.remote.topics import TopicEntry, load_topic_to_read
from tiered.store.base import Steps
from tiered.store.driver import Runner

LOGGER = logging.getLogger("tiered.group")

POLL_INTERVAL_S = 1.0
"""Longest time between two polls of a caller that waits for records. A handover waits for the next poll."""
COMMIT_INTERVAL_S = 1.0
"""Time between two commits without a waiting caller: each costs a PUT for each partition."""

T = TypeVar("T")


def open_member(
    bucket: BucketReads,
    runner: Runner,
    group: str,
    names: Collection[str],
    *,
    member: str | None,
    times: GroupSettings | None,
    start: tuple[str, int | None],
) -> GroupMember:
    """Start a member of ``group`` that shares the partitions of the topics ``names``. Return the member.

    ``member``: its name; None: host and process id. ``times``: None for the defaults. ``start``: where to begin in
    partitions without a position. ("earliest" or "latest", None), or a time in ms as the second value: then begin at
    the earliest record of that time or later. Raises ConfigError for an invalid name of the group or member,
    UnknownTopicError for a topic that does not exist.
    """
    check_group_name(arguments.text("group", group))
    name = f"{socket.gethostname()}-{os.getpid()}" if member is None else arguments.text("member", member)
    topics = BucketTopics(bucket, *start)
    found = Member(group, check_group_name(name, "member"), (), topics, times or GroupSettings())
    runner.run(found.subscribe(names))  # before the first round: a member without topics would get its share of none
    return GroupMember(found, topics, runner)


class GroupMember:
    """Source of partitions, and store of positions, of a consumer that is a member of a group in a bucket.

    Thread-safe.
    """

    outlives_topics = True
    commit_interval_s = COMMIT_INTERVAL_S

    def __init__(self, member: Member, topics: BucketTopics, runner: Runner) -> None:
        """Start the heartbeat thread of ``member``."""
        self._member, self._topics, self._runner = member, topics, runner
        self._clock = runner.clock or SystemClock()
        self.poll_interval_s = min(POLL_INTERVAL_S, member.settings.heartbeat_ms / 1000)
        self._memory = PlainLock()
        self._turn = threading.Lock()
        self._wake = SafeEvent()
        self._closed = SafeEvent()
        self._crash: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"tiered-group-{member.group}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<GroupMember {self._member.name} of {self._member.group}>"

    def poll(self, busy: Collection[TopicPartition]) -> Changes:
        """Return the changes since the last call. ``busy``: partitions with returned records that are not committed.

        Raises ClosedError after :meth:`close`, and PartitionLostError after ``max_poll_interval_ms`` without a poll.
        Raises errors of heartbeats that only a person can correct, and the error that ended the heartbeat thread.
        """
        if self._closed.is_set():
            raise ClosedError(
                f"the member {self._member.name} has left the group {self._member.group}", hint="make a new consumer"
            )
        if self._crash is not None:
            raise self._crash
        try:
            with self._memory:
                return self._member.poll(busy, self._clock.monotonic(), self.poll_interval_s)
        finally:
            if self._member.has_work:
                self._wake.set()

    def subscribe(self, topics: Collection[str]) -> None:
        """Share the partitions of these topics instead of the present ones, from the next heartbeat on.

        Raises UnknownTopicError if a topic does not exist.
        """
        self._steps(self._member.subscribe(topics))

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Raise ConfigError, because the group assigns the partitions to its members."""
        raise ConfigError(
            f"group {self._member.group} assigns partitions to its members itself, but {len(partitions)} were named",
            hint="subscribe to topics, or read named partitions without a group",
        )

    def commit(self, positions: Mapping[TopicPartition, Position]) -> Mapping[TopicPartition, TieredError]:
        """Store positions in the bucket. Return the error of each partition whose position was not stored."""
        return self._steps(self._member.commit(positions))

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """Return the stored positions. Partitions without a position are left out."""
        return self._steps(self._member.committed(partitions))

    def open_stream(self, tp: TopicPartition) -> Steps[TierStream]:
        """Open a stream of a partition that this member owns, at the newest root.

        Raises PartitionLostError if this member does not own it, LogDestroyedError if the topic was deleted.
        """
        return (yield from self._topics.open_stream(tp, self._member.topic_id(tp)))

    def close(self) -> None:
        """Leave the group, without a commit. Safe to call again.

        If the bucket is unreachable, other members take over after the end of the lease.
        """
        if self._closed.is_set():
            return
        self._closed.set()
        self._wake.set()
        self._thread.join()
        try:
            self._steps(self._member.leave())
        except TieredError as error:
            LOGGER.warning("group_not_left group=%s error=%s", self._member.group, error.message)

    def _steps(self, steps: Steps[T]) -> T:
        """Run a steps function of the member. Calls of several threads run one after the other."""
        with self._turn:
            return self._runner.run(self._guarded(steps))

    def _guarded(self, steps: Steps[T]) -> Steps[T]:
        """Run steps with the member's lock held between their requests, so that a poll never sees half of a change."""
        outcome: object = None
        try:
            while True:
                try:
                    with self._memory:
                        request = steps.throw(outcome) if isinstance(outcome, TieredError) else steps.send(outcome)
                except StopIteration as stop:
                    value: T = stop.value
                    return value
                try:
                    outcome = yield request
                except TieredError as error:
                    outcome = error
        finally:
            steps.close()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                due_s = self._steps(self._member.round()) + self._clock.monotonic()
                while (left_s := due_s - self._clock.monotonic()) > 0 and not self._closed.is_set():
                    if not self._clock.wait(self._wake, left_s):
                        break
                    self._wake.clear()
                    if self._member.joins_now:
                        break
                    self._steps(self._member.release_due())
        except Exception as error:  # the caller gets it, whatever it is
            LOGGER.exception("group_thread_failed group=%s", self._member.group)
            self._crash = error


class BucketTopics:
    """Source of the topics and streams of one bucket, for a member of a group.

    ``start``: "earliest" or "latest", for partitions without a position. ``start_ms``: None, or a time in place of
    ``start``: begin at the earliest record of that time or later.
    """

    def __init__(self, bucket: BucketReads, start: str, start_ms: int | None) -> None:
        self._bucket, self._start, self._start_ms = bucket, start, start_ms
        self._entries: dict[str, TopicEntry] = {}

    def find_topics(self, names: Sequence[str]) -> Steps[Mapping[str, PlannedTopic]]:
        """Return the topics among ``names`` that exist. A topic that is being deleted is left out. One GET for each."""
        found = {}
        for name in names:
            entry = yield from load_topic_to_read(name)
            if entry is not None and entry.state == STATE_OPEN:
                self._entries[name] = entry
                found[name] = PlannedTopic(entry.topic_id, entry.partitions, entry.partitions)
        return found

    def open_stream(self, tp: TopicPartition, topic_id: UUID) -> Steps[TierStream]:
        """Open a stream of one partition at the newest root. ``topic_id``: id of the topic when the group chose it.

        Raises LogDestroyedError if the topic was deleted, and perhaps created again.
        """
        entry = self._entries.get(tp.topic)
        if entry is None or entry.topic_id != topic_id or tp.partition >= entry.partitions:
            yield from self.find_topics([tp.topic])
            entry = self._entries.get(tp.topic)
        if entry is None or entry.topic_id != topic_id or tp.partition >= entry.partitions:
            raise LogDestroyedError(
                f"topic {tp.topic} ({topic_id}) was deleted, and perhaps created again",
                hint="poll again: the group reads a new topic of this name from its start",
            )
        stream = TierStream(tp, local=None, remote=self._bucket.partition(tp, entry, NOTHING_KNOWN))
        yield from stream.refresh()
        return stream

    def resolve(self, tp: TopicPartition, topic_id: UUID, *, from_start: bool) -> Steps[Position]:
        """Return the position at which the group begins in a partition without a committed position.

        ``from_start``: True for the earliest offset, False for the consumer's ``start``. Raises LogDestroyedError if
        the topic was deleted, and perhaps made again.
        """
        stream = yield from self.open_stream(tp, topic_id)
        offset = yield from self._offset(stream, from_start=from_start)
        yield from stream.release()
        return Position(offset)

    def _offset(self, stream: TierStream, *, from_start: bool) -> Steps[int]:
        if from_start:
            return (yield from stream.earliest())
        if self._start_ms is None:
            return (yield from stream.offset(self._start))
        found = yield from stream.offset_for_time(self._start_ms)
        return (yield from stream.latest()) if found is None else found[0]
