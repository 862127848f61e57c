"""One member of a group as a state machine: steps that send its requests, and a poll that sends none.

::

    round    every heartbeat.ms: renew ── read the plan ── list members ── judge ── agree on the plan ── release ── take
    poll     the caller's thread, no request: what was assigned, what to stop, what is lost
    commit   one compare-and-swap per partition, all together
    leave    release all ── out of the plan ── delete the member's object

Steps of one member run one after the other. :meth:`Member.poll` may run while they wait for an answer.

A member is in the group as long as its object exists. Another member that finds it dead replaces the object by a death
note, with compare-and-swap on the version that did not change, and deletes the note. So a successful renewal proves
that the member still owns its partitions, and a failed one that it owns none. An owner without an object is dead.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

from tiered.consumer.assignment import Changes
from tiered.errors import (
    CommitUnknownError,
    ConfigError,
    NotFoundError,
    PartitionLostError,
    RemoteUnavailableError,
    TieredError,
    UnknownTopicError,
)
from tiered.format.keys import group_member_key, group_members_prefix, group_plan_key, parse_group_key
from tiered.group.objects import (
    MAX_PLAN_BYTES,
    GroupPlan,
    GroupTopics,
    MemberBeat,
    Ownership,
    PlannedTopic,
    decode_plan,
    encode_member,
    encode_ownership,
    encode_plan,
    member_cell,
    next_plan,
    ownership_cell,
    plan_cell,
)
from tiered.model import Position, TopicPartition
from tiered.plan.pacing import backoff_bound_seconds
from tiered.remote.conditional_put import (
    NextBody,
    Planned,
    Tagged,
    conditional_put,
    deadline_after,
    replace_once,
    update,
)
from tiered.store.base import (
    Delete,
    Get,
    ListEntry,
    Match,
    NewId,
    NotModified,
    Now,
    Object,
    Put,
    PutStatus,
    Steps,
    Time,
)
from tiered.store.steps import in_turns, list_all

LOGGER = logging.getLogger("tiered.group")

BEATS_UNTIL_DEAD = 3
"""Number of own heartbeats during which another member's object does not change until that member counts as dead."""
FIRST_ROUND = 0.25
"""Share of a heartbeat that a new member waits for others that start at the same time."""
TOPICS_EVERY = 6
"""Rounds between two reads of the registry for new partitions."""
EPOCH_BITS = 62
"""Size of the random number with which the ownership epochs of a partition begin."""

_PASSING = (RemoteUnavailableError, CommitUnknownError)
"""Errors that the next round may cure."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Times of a group in milliseconds. All members must use the same. ``heartbeat_ms``: time between two heartbeats.

    ``lease_ms``: after this time without an acknowledged heartbeat a member returns no records. ``handover_ms``:
    longest wait for a handler to finish records of a partition that must move. ``max_poll_interval_ms``: after this
    time without a poll a member leaves the group.
    """

    heartbeat_ms: int = 10_000
    lease_ms: int = 30_000
    handover_ms: int = 60_000
    max_poll_interval_ms: int = 300_000

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ms * BEATS_UNTIL_DEAD <= self.lease_ms:
            raise ConfigError(
                f"heartbeat_ms={self.heartbeat_ms} does not go with lease_ms={self.lease_ms}",
                hint=f"set heartbeat_ms above 0, and lease_ms to at least {BEATS_UNTIL_DEAD} times heartbeat_ms",
            )


@dataclass(slots=True)
class _HeldPartition:
    """Partition that this member owns. ``owned``, ``etag``: its object in the bucket, as last read or written.

    ``known``: ids of own writes, one of which is the object's last unless another member changed it. ``stopping_s``:
    time when the plan gave the partition to another member. ``reported``: a poll has returned the partition in
    ``stop``. ``idle``: a later poll found no unfinished records of the partition, so it can be released.
    """

    topic_id: UUID
    owned: Ownership
    etag: str
    known: set[int]
    stopping_s: float = math.inf
    reported: bool = False
    idle: bool = False

    def is_last_of(self, found: Ownership | None) -> bool:
        """Return True if ``found`` is of this ownership, and its last commit is one of ``known``."""
        if found is None or (found.owner, found.epoch) != (self.owned.owner, self.owned.epoch):
            return False
        return found.commit in self.known


@dataclass(slots=True)
class _Observed:
    """Version of another member's object. ``since_s``: when it was first seen. ``beats``: own heartbeats since then."""

    etag: str
    since_s: float
    beats: int = 0


class Member:
    """Member ``name`` of ``group``, which joins with its first :meth:`round`. ``topics``: names of its topics.

    ``id``: name and a random number; ``""`` while the member is not in the group. ``failure``: error that the next
    :meth:`poll` raises, or None.
    """

    def __init__(
        self, group: str, name: str, names: Iterable[str], topics: GroupTopics, settings: GroupSettings
    ) -> None:
        self.group, self.name, self.topics = group, name, tuple(sorted(set(names)))
        self.settings = settings
        self.id = ""
        self.failure: TieredError | None = None
        self._source = topics
        self._own: Tagged[MemberBeat | None] = Tagged(None)
        self._beats: set[int] = set()
        self._acknowledged_s = -math.inf
        self._observed: dict[str, _Observed] = {}
        self._alive: frozenset[str] = frozenset()
        self._killed: set[str] = set()
        self._plan: Tagged[GroupPlan | None] = Tagged(None)
        self._planned_s = math.inf
        self._registry: Mapping[str, PlannedTopic] = {}
        self._rounds = self._failures = 0
        self._held: dict[TopicPartition, _HeldPartition] = {}
        self._doubtful: set[tuple[TopicPartition, UUID]] = set()
        self._polled_s = math.inf
        self._idle = self._left = self._is_incomplete = False
        self._assigned: dict[TopicPartition, Position | None] = {}
        self._lost: set[TopicPartition] = set()
        self._stop: set[TopicPartition] = set()

    # -- the caller's side ---------------------------------------------------------------------------------------------

    def poll(self, busy: Collection[TopicPartition], now_s: float, ahead_s: float = 0.0) -> Changes:
        """Return the changes of the assignment since the last poll, without a request.

        ``busy``: partitions with returned records that are not committed. ``ahead_s``: seconds until the caller polls
        again. Raises PartitionLostError once if the caller did not poll for ``max_poll_interval_ms``.
        """
        self._polled_s = now_s
        if self._idle:
            self._idle = False
            raise PartitionLostError(
                f"group {self.group}: member {self.name} left the group, because it did not poll for "
                f"{self.settings.max_poll_interval_ms} ms",
                hint="poll more often, or raise max_poll_interval_ms; the next poll joins again",
            )
        if self.failure is not None:
            error, self.failure = self.failure, None
            raise error
        for tp, held in self._held.items():
            # mutant handler-finishes-before-release
            held.idle = held.reported and tp not in busy
            held.reported |= tp in self._stop
        assigned, lost, stop = self._assigned, self._lost, self._stop
        self._assigned, self._lost, self._stop = {}, set(), set()
        # mutant expired-lease-hands-out-nothing
        wait = now_s + ahead_s - self._acknowledged_s >= self.settings.lease_ms / 1000
        return Changes(assigned, lost, stop, wait=wait, incomplete=self._is_incomplete)

    @property
    def has_work(self) -> bool:
        """Return True if the next round should come at once, to release a partition or to join again."""
        return self.joins_now or any(held.idle for held in tuple(self._held.values()))

    @property
    def joins_now(self) -> bool:
        """Return True if the member left because its caller was idle, and the caller has polled again."""
        return self._left and not self._idle

    def topic_id(self, tp: TopicPartition) -> UUID:
        """Return the topic id of a partition. Raises PartitionLostError if this member does not own the partition."""
        held = self._held.get(tp)
        if held is None:
            raise self._lost_error(tp)
        return held.topic_id

    def subscribe(self, names: Collection[str]) -> Steps[None]:
        """Share the partitions of these topics from the next round on. Raises UnknownTopicError if one is missing."""
        wanted = tuple(sorted(set(names)))
        found = yield from self._source.find_topics(wanted)
        for name in wanted:
            if name not in found:
                raise UnknownTopicError(f"there is no topic {name}", hint="`tiered topic list` lists the topics")
        self.topics, self._registry = wanted, found

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    def round(self) -> Steps[float]:
        """Run one heartbeat. Return the seconds until the next one.

        Errors are logged, not raised. :meth:`poll` raises errors that only a person can correct.
        """
        began: Time = yield Now()
        try:
            wait_s = yield from self._round(began.monotonic)
            self._failures = 0
        except TieredError as error:
            # mutant failed-heartbeat-restarts-count
            self._observed.clear()
            self._failures += 1
            if not isinstance(error, _PASSING):
                self.failure = error
            LOGGER.warning("group_round_failed group=%s member=%s error=%s", self.group, self.name, error.message)
            return backoff_bound_seconds(self._failures, max_seconds=self.settings.heartbeat_ms / 1000)
        ended: Time = yield Now()
        return max(began.monotonic + wait_s - ended.monotonic, 0.0)

    def _round(self, now_s: float) -> Steps[float]:
        heartbeat_s = self.settings.heartbeat_ms / 1000
        # mutant idle-caller-leaves
        if now_s - self._polled_s >= self.settings.max_poll_interval_ms / 1000:
            if not self._idle:
                LOGGER.warning("group_member_idle group=%s member=%s", self.group, self.id)
            self._idle = self._left = True
            yield from self.leave()
        if self._idle:
            return heartbeat_s
        if not self.id:
            return (yield from self._join(now_s))
        if not (yield from self._renew()):
            LOGGER.warning("group_member_lost group=%s member=%s", self.group, self.id)
            self._forget()
            return (yield from self._join(now_s))
        LOGGER.debug("group_renewed group=%s member=%s sent=%.3f", self.group, self.id, now_s)
        if self._acknowledged_s > -math.inf:
            self._acknowledged_s = now_s  # when it was sent, not when it was answered
        yield from self._read_plan()  # before the listing: a member in it that is not listed is gone
        yield from self._observe()
        yield from self._judge()
        yield from self._agree()
        self._stop_surplus(now_s)
        yield from self.release_due()
        if (yield from self._claim_share(now_s)):
            self._acknowledged_s = now_s  # of a new member from here on: its caller knows its share
        return heartbeat_s

    def _join(self, now_s: float) -> Steps[float]:
        """Create the member's object. Return the seconds until the first round, in which it enters the plan."""
        self._left = False
        self._polled_s = min(self._polled_s, now_s)  # a caller that never asks is idle, too
        uid, commit = (yield NewId()), int((yield NewId()), 16)
        member = f"{self.name}~{uid}"
        beat = MemberBeat(member, self.topics, 0, commit)
        deadline = yield from deadline_after(self.settings.heartbeat_ms)
        done = yield from replace_once(
            member_cell(self.group, member), "", NextBody(encode_member(beat), beat), deadline
        )
        self._own, self._beats = Tagged(done.value, done.etag), {commit}
        self.id, self._planned_s, self._rounds = member, math.inf, 0
        yield from self._observe()
        share = int(uid[:8], 16) / 2**32 if len(self._alive) > 1 else 0.0
        return self.settings.heartbeat_ms / 1000 * (FIRST_ROUND + share)

    def _renew(self) -> Steps[bool]:
        """Renew the member's object. Return False if it is gone, or another process changed it."""

        def change(seen: Tagged[MemberBeat | None]) -> Planned[MemberBeat | None]:
            found = seen.value
            # mutant lost-renewal-ends-membership
            if found is None or found.dead or found.commit not in self._beats:
                return None
            beat = MemberBeat(self.id, self.topics, found.beat + 1, int((yield NewId()), 16))
            self._beats.add(beat.commit)
            return NextBody(encode_member(beat), beat)

        deadline = yield from deadline_after(self.settings.heartbeat_ms)
        done = yield from update(member_cell(self.group, self.id), change, deadline, seen=self._own)
        if done.written and done.value is not None:
            self._own, self._beats = Tagged(done.value, done.etag), {done.value.commit}
        return done.written

    def _read_plan(self) -> Steps[None]:
        key = group_plan_key(self.group)
        got = yield Get(key, if_none_match=self._plan.etag or None, max_bytes=MAX_PLAN_BYTES)
        if isinstance(got, Object):
            self._plan = Tagged(decode_plan(got.data, key=key), got.etag)
        elif not isinstance(got, NotModified):
            self._plan = Tagged(None)

    # -- who is alive --------------------------------------------------------------------------------------------------

    def _observe(self) -> Steps[None]:
        """List the members, and count for how many own heartbeats each object did not change."""
        asked: Time = yield Now()
        listed = yield from self._list()
        answered: Time = yield Now()
        observed = {}
        for member, entry in listed.items():
            before = self._observed.get(member)
            if before is not None and before.etag == entry.etag:
                observed[member] = replace(before, beats=before.beats + 1)
            else:
                observed[member] = _Observed(entry.etag, answered.monotonic)
        self._observed = observed
        self._listed_s = asked.monotonic

    def _list(self) -> Steps[dict[str, ListEntry]]:
        entries = yield from list_all(group_members_prefix(self.group))
        parsed = [(parse_group_key(entry.key), entry) for entry in entries]
        listed = {key.member: entry for key, entry in parsed if key is not None and key.member is not None}
        self._killed.intersection_update(listed)
        self._alive = frozenset(listed).difference(self._killed)
        return listed

    def _judge(self) -> Steps[None]:
        """Mark the objects of dead members as dead by compare-and-swap, then delete them.

        A member is dead if its object did not change for three own heartbeats and ``lease_ms``.
        """
        for member, each in self._observed.items():
            if member == self.id or member in self._killed:
                continue
            # mutant dead-after-three-heartbeats
            if each.beats < BEATS_UNTIL_DEAD or self._listed_s - each.since_s < self.settings.lease_ms / 1000:
                continue
            body = encode_member(MemberBeat(member, (), 0, int((yield NewId()), 16), dead=True))
            put = Put(group_member_key(self.group, member), body, Match(each.etag))
            deadline = yield from deadline_after(self.settings.heartbeat_ms)
            done = yield from conditional_put(put, deadline, f"group {self.group}: the note that {member} is dead")
            if done.status is PutStatus.LANDED:
                LOGGER.warning("group_member_dead group=%s member=%s by=%s", self.group, member, self.id)
                self._killed.add(member)
        if self._killed:
            self._alive = self._alive.difference(self._killed)
            # mutant notes-are-deleted
            yield Delete(tuple(group_member_key(self.group, member) for member in sorted(self._killed)))

    # -- the plan ------------------------------------------------------------------------------------------------------

    def _agree(self) -> Steps[None]:
        """Add this member and new partitions to the plan, and remove members that are gone."""
        yield from self._refresh_topics()
        first = self._plan

        def change(seen: Tagged[GroupPlan | None]) -> Planned[GroupPlan | None]:
            plan = seen.value or GroupPlan()
            if seen is not first and not self._alive.issuperset(plan.members):
                yield from self._list()  # a member of a newer plan may have joined after the listing
            gone = [member for member in plan.members if member not in self._alive and member != self.id]
            wanted = next_plan(plan, gone, {self.id: self.topics}, self._registry)
            if wanted == seen.value:
                return None
            wanted = replace(wanted, commit=int((yield NewId()), 16))
            return NextBody(encode_plan(wanted), wanted)

        deadline = yield from deadline_after(self.settings.heartbeat_ms)
        done = yield from update(plan_cell(self.group), change, deadline, seen=first)
        self._plan = Tagged(done.value, done.etag)
        if math.isinf(self._planned_s):
            self._planned_s = (yield Now()).monotonic

    def _refresh_topics(self) -> Steps[None]:
        """Read the topics every ``TOPICS_EVERY`` rounds, and at once if the plan has a topic in another state."""
        planned = (self._plan.value or GroupPlan()).topics
        self._rounds += 1
        differs = any(
            name not in self._registry
            or (name in planned and planned[name].topic_id != self._registry[name].topic_id)
            or (name in planned and planned[name].partitions > self._registry[name].partitions)
            for name in self.topics
        )
        if differs or self._rounds % TOPICS_EVERY == 1:
            self._registry = yield from self._source.find_topics(self.topics)

    def _share(self) -> dict[TopicPartition, UUID]:
        """Return the partitions that the plan gives to this member, with the ids of their topics."""
        plan = self._plan.value
        if plan is None or self.id not in plan.members:
            return {}
        return {tp: plan.topics[tp.topic].topic_id for tp in sorted(plan.members[self.id].partitions)}

    def _stop_surplus(self, now_s: float) -> None:
        share = self._share()
        for tp, held in self._held.items():
            # mutant surplus-is-given-up
            if share.get(tp) != held.topic_id and math.isinf(held.stopping_s):
                held.stopping_s = now_s
                self._stop.add(tp)

    # -- partitions ----------------------------------------------------------------------------------------------------

    def release_due(self) -> Steps[None]:
        """Release partitions of other members' shares, once their records are handled or after ``handover_ms``."""
        now: Time = yield Now()
        longest_s = self.settings.handover_ms / 1000
        due = [tp for tp, held in self._held.items() if held.idle or now.monotonic - held.stopping_s >= longest_s]
        yield from self._at_once([self._release(tp) for tp in due])

    def _release(self, tp: TopicPartition) -> Steps[None]:
        """Make a partition free, unless another member owns it, and remove it from this member's partitions."""
        held = self._held[tp]

        def change(seen: Tagged[Ownership | None]) -> Planned[Ownership | None]:
            if seen.value is None or not held.is_last_of(seen.value):
                return None
            free = replace(seen.value, owner="", commit=int((yield NewId()), 16))
            held.known.add(free.commit)
            return NextBody(encode_ownership(free), free)

        deadline = yield from deadline_after(self.settings.heartbeat_ms)
        cell = ownership_cell(self.group, tp, held.topic_id)
        yield from update(cell, change, deadline, seen=Tagged(held.owned, held.etag))
        self._lose(tp)

    def _claim_share(self, now_s: float) -> Steps[bool]:
        """Claim the partitions of the share that are free or whose owner is dead.

        Return False if a new member must wait, because other members join at the same time.
        """
        plan = self._plan.value or GroupPlan()
        settled = now_s - self._planned_s >= self.settings.heartbeat_ms / 1000
        # mutant new-member-waits
        if not settled and not self._alive.issubset(plan.members):
            return False  # others start at the same time, and will change the plan
        wanted = {each for each in self._share().items() if each[0] not in self._held} | self._doubtful
        chosen = sorted(each for each in wanted if each[0] not in self._held)
        looked = yield from self._at_once([ownership_cell(self.group, *each).look() for each in chosen])
        found = {each: seen for each, seen in zip(chosen, looked, strict=True) if seen is not None}
        owners = {seen.value.owner for seen in found.values() if seen.value is not None}.difference(("", self.id))
        if not self._alive.issuperset(owners):
            yield from self._list()  # an owner may have joined after the listing; one that is still absent is dead
        # mutant only-free-partitions-are-taken
        taken = {each: seen for each, seen in found.items() if self._is_free(seen.value)}
        yield from self._at_once([self._claim_partition(tp, topic_id, seen) for (tp, topic_id), seen in taken.items()])
        self._is_incomplete = any(tp not in self._held for tp, _ in wanted)
        return True

    def _is_free(self, found: Ownership | None) -> bool:
        # This member is the owner after a claim whose outcome was unknown.
        return found is None or not found.owner or found.owner == self.id or found.owner not in self._alive

    def _claim_partition(self, tp: TopicPartition, topic_id: UUID, seen: Tagged[Ownership | None]) -> Steps[None]:
        owners = frozenset([seen.value.owner] if seen.value is not None else [])
        me, time = self.id, (yield Now())

        def change(now: Tagged[Ownership | None]) -> Planned[Ownership | None]:
            found = now.value
            if found is not None and found.owner not in owners.union(("", me)):
                return None  # another member was first
            commit = int((yield NewId()), 16)
            if found is None:
                # mutant start-is-resolved-once
                position = yield from self._start(tp, topic_id, time.now_ms)
                epoch = int((yield NewId()), 16) >> (128 - EPOCH_BITS)
                taken = Ownership(tp.topic, me, epoch, position, commit, time.now_ms)
            else:
                # mutant epochs-are-never-reused
                taken = replace(found, owner=me, epoch=found.epoch + 1, commit=commit, owned_ms=time.now_ms)
            self._doubtful.add((tp, topic_id))
            return NextBody(encode_ownership(taken), taken)

        deadline = yield from deadline_after(self.settings.heartbeat_ms)
        done = yield from update(ownership_cell(self.group, tp, topic_id), change, deadline, seen=seen)
        self._doubtful.discard((tp, topic_id))
        if done.written and done.value is not None:
            self._held[tp] = _HeldPartition(topic_id, done.value, done.etag, {done.value.commit})
            self._assigned[tp] = done.value.position

    def _start(self, tp: TopicPartition, topic_id: UUID, now_ms: int) -> Steps[Position]:
        topic = (self._plan.value or GroupPlan()).topics.get(tp.topic)
        from_start = topic is not None and tp.partition >= topic.first
        try:
            found = yield from self._source.resolve(tp, topic_id, from_start=from_start)
        except NotFoundError:
            self._registry = {}  # the next round looks at the topic again
            raise
        return replace(found, committed_ms=now_ms)

    # -- commits -------------------------------------------------------------------------------------------------------

    def commit(self, positions: Mapping[TopicPartition, Position]) -> Steps[dict[TopicPartition, TieredError]]:
        chosen = sorted(positions)
        ends = yield from in_turns([self._commit_one(tp, positions[tp]) for tp in chosen])
        return {tp: end for tp, end in zip(chosen, ends, strict=True) if isinstance(end, TieredError)}

    def _commit_one(self, tp: TopicPartition, position: Position) -> Steps[None]:
        held = self._held.get(tp)
        # mutant commit-follows-assignment
        if held is None or tp in self._assigned:  # it was lost and taken again, and the caller has not heard of it
            raise self._lost_error(tp)

        def change(seen: Tagged[Ownership | None]) -> Planned[Ownership | None]:
            # mutant commit-checks-owner
            if seen.value is None or not held.is_last_of(seen.value):
                return None
            now: Time = yield Now()
            stored = replace(position, committed_ms=now.now_ms)
            wanted = replace(seen.value, position=stored, commit=int((yield NewId()), 16))
            held.known.add(wanted.commit)  # before the PUT: its answer may be lost
            return NextBody(encode_ownership(wanted), wanted)

        deadline = yield from deadline_after(self.settings.heartbeat_ms)
        cell = ownership_cell(self.group, tp, held.topic_id)
        done = yield from update(cell, change, deadline, seen=Tagged(held.owned, held.etag))
        if done.written and done.value is not None:
            held.owned, held.etag, held.known = done.value, done.etag, {done.value.commit}
            return
        self._lose(tp)
        found = done.value
        if found is not None and (found.owner, found.epoch) == (held.owned.owner, held.owned.epoch):
            raise ConfigError(
                f"group {self.group}: another process commits {tp} under the same member name {held.owned.owner}",
                hint="a machine was copied while it ran: stop one of the two processes, and start it again",
            )
        raise self._lost_error(tp)

    def _lost_error(self, tp: TopicPartition) -> PartitionLostError:
        return PartitionLostError(
            f"group {self.group}: {tp} belongs to another member now, and its position was not stored",
            hint="continue with the next poll: the other member reads the uncommitted records again",
        )

    def committed(self, partitions: Collection[TopicPartition]) -> Steps[dict[TopicPartition, Position]]:
        """Return the stored positions. A partition of another member costs one GET."""
        found = {tp: held.owned.position for tp, held in self._held.items() if tp in partitions}
        topics = yield from self._source.find_topics(sorted({tp.topic for tp in partitions if tp not in found}))
        others = sorted(tp for tp in partitions if tp not in found and tp.topic in topics)
        ends = yield from in_turns([ownership_cell(self.group, tp, topics[tp.topic].topic_id).look() for tp in others])
        for tp, end in zip(others, ends, strict=True):
            if isinstance(end, TieredError):
                raise end
            if end.value is not None:
                found[tp] = end.value.position
        return found

    # -- the end -------------------------------------------------------------------------------------------------------

    def leave(self) -> Steps[None]:
        """Release all partitions, leave the plan, and delete the member's object.

        Failed releases are logged. Others take over, as from a dead member.
        """
        if not self.id:
            return
        yield from self._at_once([self._release(tp) for tp in tuple(self._held)])
        member = self.id
        self._forget()
        yield from self._at_once([self._leave_plan(member)])
        # mutant leaver-deletes-its-object
        yield Delete((group_member_key(self.group, member),))

    def _leave_plan(self, member: str) -> Steps[None]:
        def change(seen: Tagged[GroupPlan | None]) -> Planned[GroupPlan | None]:
            if seen.value is None or member not in seen.value.members:
                return None
            wanted = replace(next_plan(seen.value, [member], {}, {}), commit=int((yield NewId()), 16))
            return NextBody(encode_plan(wanted), wanted)

        deadline = yield from deadline_after(self.settings.heartbeat_ms)
        seen = self._plan if self._plan.etag else None
        done = yield from update(plan_cell(self.group), change, deadline, seen=seen)
        self._plan = Tagged(done.value, done.etag)

    def _forget(self) -> None:
        for tp in tuple(self._held):
            self._lose(tp)
        self.id, self._own, self._beats = "", Tagged(None), set()
        self._acknowledged_s, self._planned_s = -math.inf, math.inf
        self._doubtful.clear()  # what still lands belongs to a member without an object
        self._observed.clear()

    def _lose(self, tp: TopicPartition) -> None:
        del self._held[tp]
        self._stop.discard(tp)
        if tp in self._assigned:
            del self._assigned[tp]  # the caller has never heard of it
        else:
            self._lost.add(tp)

    def _at_once(self, several: Sequence[Steps[T]]) -> Steps[list[T | None]]:
        """Run steps of several partitions. Return their results, None for a failed one: the next round retries."""
        ends = yield from in_turns(several)
        for end in ends:
            if isinstance(end, TieredError):
                LOGGER.warning("group_partition_failed group=%s member=%s error=%s", self.group, self.name, end.message)
                if not isinstance(end, (*_PASSING, NotFoundError)):
                    self.failure = end
        return [None if isinstance(end, TieredError) else end for end in ends]
