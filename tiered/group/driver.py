"""Driver of a member: a thread for its heartbeats, and its caller's calls. For both faces.

Heartbeats run on a thread, also for asyncio: a handler that blocks the event loop must not end a lease.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Collection, Mapping
from typing import TypeVar

from tiered import arguments
from tiered.clock import SystemClock
from tiered.consumer.position import Changes
from tiered.errors import ClosedError, ConfigError, TieredError
from tiered.format.keys import check_group_name
from tiered.group.member import GroupSettings, Member
from tiered.group.topics import BucketTopics
from tiered.local.disk.plain_lock import PlainLock
from tiered.model import Position, TopicPartition
from tiered.read.bucket import BucketReads
from tiered.read.stream import TierStream
from tiered.store.base import Steps
from tiered.store.driver import Runner

LOGGER = logging.getLogger("tiered.group")

POLL_INTERVAL_S = 1.0
"""Longest time between two polls of a caller that waits for records: so long a handover waits for it at most."""
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
    """Begin a member that shares the topics ``names``. ``start``: a word, or a time in milliseconds.

    Raises ConfigError, UnknownTopicError.
    """
    check_group_name(arguments.text("group", group))
    name = f"{socket.gethostname()}-{os.getpid()}" if member is None else arguments.text("member", member)
    topics = BucketTopics(bucket, *start)
    found = Member(group, check_group_name(name, "member"), (), topics, times or GroupSettings())
    runner.run(found.subscribe(names))  # before the first round: a member without topics would get its share of none
    return GroupMember(found, topics, runner)


class GroupMember:
    """Assignment of a group over a bucket (``consumer.position.Assignment``). Thread-safe."""

    outlives_topics = True
    commit_interval_s = COMMIT_INTERVAL_S

    def __init__(self, member: Member, topics: BucketTopics, runner: Runner) -> None:
        """Begin the heartbeats of ``member``."""
        self._member, self._topics, self._runner = member, topics, runner
        self._clock = runner.clock or SystemClock()
        self.poll_interval_s = min(POLL_INTERVAL_S, member.settings.heartbeat_ms / 1000)
        self._memory = PlainLock()
        self._turn = threading.Lock()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._crash: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"tiered-group-{member.group}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<GroupMember {self._member.name} of {self._member.group}>"

    def poll(self, busy: Collection[TopicPartition]) -> Changes:
        """Return the changes since the last call. See :meth:`Member.poll`."""
        if self._closed.is_set():
            raise ClosedError(f"the member {self._member.name} has left the group {self._member.group}")
        if self._crash is not None:
            raise self._crash
        try:
            with self._memory:
                return self._member.poll(busy, self._clock.monotonic(), self.poll_interval_s)
        finally:
            if self._member.has_work:
                self._wake.set()

    def subscribe(self, topics: Collection[str]) -> None:
        """Share the partitions of these topics instead, from the next heartbeat on. Raises UnknownTopicError."""
        self._steps(self._member.subscribe(topics))

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Raise ConfigError: the members of a group agree on who reads what."""
        raise ConfigError(
            f"group {self._member.group} shares its partitions among its members: {len(partitions)} were named",
            hint="subscribe to topics, or read named partitions without a group",
        )

    def commit(self, positions: Mapping[TopicPartition, Position]) -> Mapping[TopicPartition, TieredError]:
        """Store positions. Return the error of each partition whose position was not stored."""
        return self._steps(self._member.commit(positions))

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """Return the stored positions. A partition without one is left out."""
        return self._steps(self._member.committed(partitions))

    def open_stream(self, tp: TopicPartition) -> Steps[TierStream]:
        """Open a refreshed stream of an owned partition. Raises PartitionLostError, LogDestroyedError."""
        return (yield from self._topics.open_stream(tp, self._member.topic_id(tp)))

    def close(self) -> None:
        """Leave the group. Commits nothing. A group that cannot be left now waits for the end of the lease."""
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
        """Run steps of the member, one after the other."""
        with self._turn:
            return self._runner.run(self._guarded(steps))

    def _guarded(self, steps: Steps[T]) -> Steps[T]:
        """Run steps with the lock of the memory between their requests, so that a poll sees no half of a change."""
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
