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
from tiered.errors import ConfigError, LogDestroyedError, TieredError
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
    """Start a member of ``group`` that shares the partitions of the topics ``names``.

    ``member``: its name; None: host and process id. ``start``: where to begin in partitions without a position:
    "earliest" or "latest", and a time in ms or None. Raises ConfigError for an invalid name of the group or member,
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

    kept_in: object = None
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

    def poll(self, busy: Collection[TopicPartition]) -> Changes:
        """Return the changes since the last call. ``busy``: partitions with returned records that are not committed.

        Raises PartitionLostError after ``max_poll_interval_ms`` without a poll, errors of heartbeats that only a person
        can correct, and the error that ended the heartbeat thread.
        """
        if self._crash is not None:
            raise self._crash
        try:
            with self._memory:
                return self._member.poll(busy, self._clock.monotonic(), self.poll_interval_s)
        finally:
            if self._member.has_work:
                self._wake.set()

    def subscribe(self, topics: Collection[str]) -> None:
        self._steps(self._member.subscribe(topics))

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        raise ConfigError(
            f"group {self._member.group} assigns partitions to its members itself, but {len(partitions)} were named",
            hint="subscribe to topics, or read named partitions without a group",
        )

    def commit(self, positions: Mapping[TopicPartition, Position]) -> Mapping[TopicPartition, TieredError]:
        return self._steps(self._member.commit(positions))

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        return self._steps(self._member.committed(partitions))

    def open_stream(self, tp: TopicPartition) -> Steps[TierStream]:
        """Open a stream of a partition at the newest root. Raises PartitionLostError unless this member owns it."""
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
    """Source of the topics and streams of one bucket, for a member of a group (``GroupTopics``)."""

    def __init__(self, bucket: BucketReads, start: str, start_ms: int | None) -> None:
        self._bucket, self._start, self._start_ms = bucket, start, start_ms
        self._entries: dict[str, TopicEntry] = {}

    def find_topics(self, names: Sequence[str]) -> Steps[Mapping[str, PlannedTopic]]:
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
            entry = yield from load_topic_to_read(tp.topic)
        if entry is None or entry.topic_id != topic_id or entry.state != STATE_OPEN:
            raise LogDestroyedError(
                f"topic {tp.topic} ({topic_id}) was deleted, and perhaps created again",
                hint="poll again: the group reads a new topic of this name from its start",
            )
        stream = TierStream(tp, local=None, remote=self._bucket.partition(tp, entry, NOTHING_KNOWN))
        yield from stream.refresh()
        return stream

    def resolve(self, tp: TopicPartition, topic_id: UUID, *, from_start: bool) -> Steps[Position]:
        stream = yield from self.open_stream(tp, topic_id)
        start = ("earliest", None) if from_start else (self._start, self._start_ms)
        offset = yield from stream.first_offset(*start)
        yield from stream.release()
        return Position(offset)
