"""A process with one member of the group and its caller; it is killed, stands still, sleeps in its handler, leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from tests.sim.bucket.process import SteppedProcess
from tests.sim.bucket.violation import Violated
from tiered.errors import CommitUnknownError, PartitionLostError, RemotePermissionError, RemoteUnavailableError
from tiered.format.keys import group_partition_key
from tiered.group.member import Member
from tiered.model import Position, TopicPartition
from tiered.store.base import Steps

if TYPE_CHECKING:
    from tests.sim.groups.world import World

GROUP = "g"
WEATHER = (RemoteUnavailableError, RemotePermissionError, CommitUnknownError)


class Agent:
    """``member`` is None while the process does not run. ``read``: the next offset to hand out of each partition."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.name = world, f"m{number}"
        self.process = SteppedProcess(self.name, self.activity, world.bucket, world.clock, world.rng.getrandbits(64))
        self.member: Member | None = None
        self.frozen_until_s = self.asleep_until_s = self.due_s = 0.0
        self.read: dict[TopicPartition, int] = {}
        self.owned: dict[TopicPartition, tuple[UUID, str]] = {}
        self.stored: dict[TopicPartition, int] = {}
        self.stopped: dict[TopicPartition, float] = {}
        self.polled_s = 0.0
        self.committing = self.leaving = False

    @property
    def id(self) -> str:
        """Of the member; empty without one."""
        return "" if self.member is None else self.member.id

    def start(self) -> None:
        """A new process."""
        world = self.world
        self.member = Member(GROUP, self.name, world.subscription(), world, world.settings)
        self.due_s = self.polled_s = self.world.clock.monotonic()
        self.committing = self.leaving = False
        self._forget()

    def kill(self) -> None:
        """kill -9."""
        self.process.die()
        if self.member is not None:
            self.world.ledger.excuses.add(self.member.id)
            for _, owner in self.owned.values():
                self.world.ledger.excuses.add(owner)
        self.member = None
        self._forget()

    def _forget(self) -> None:
        self.read, self.owned, self.stored, self.stopped = {}, {}, {}, {}

    # -- the member's thread ---------------------------------------------------------------------------------------

    def activity(self, process: SteppedProcess) -> Steps[None]:
        """One round, commit or leave."""
        member = self.member
        if member is None:
            return
        if self.committing:
            yield from self._commit(member)
        elif self.leaving:
            yield from self._leave(member)
        elif self.world.clock.monotonic() >= self.due_s or member.joins_now:
            wait_s = yield from member.round()
            self.due_s = self.world.clock.monotonic() + wait_s
        elif member.has_work:
            yield from member.release_due()

    @property
    def uncommitted(self) -> list[TopicPartition]:
        """Partitions with records that the caller has and did not commit."""
        return [tp for tp, offset in self.read.items() if offset > self.stored[tp]]

    def _commit(self, member: Member) -> Steps[None]:
        wanted = {tp: Position(self.read[tp], metadata=self.name) for tp in self.uncommitted}
        resets = self.world.ledger.resets_of.copy()
        errors = yield from member.commit(wanted)
        self.committing = False
        for tp, position in wanted.items():
            error = errors.get(tp)
            if error is None:
                key = group_partition_key(GROUP, self.owned[tp][0], tp.partition)
                number = self.owned[tp][0], tp.partition
                if resets[number] == self.world.ledger.resets_of[number]:
                    self.world.ledger.committed(key, tp, position.offset)
                self.stored[tp] = position.offset
            elif isinstance(error, PartitionLostError):
                self._drop(tp)
            elif not isinstance(error, WEATHER):
                raise Violated(f"{self.name}: a commit of {tp} raised {error!r}")

    def _leave(self, member: Member) -> Steps[None]:
        for tp in self.uncommitted:
            self.world.ledger.excuses.add((self.owned[tp][1], tp))
        try:
            yield from member.leave()
        except WEATHER:
            self.world.note(self.name, "left in bad weather")
        self.member = None
        self._forget()

    # -- the caller's thread ---------------------------------------------------------------------------------------

    def turn(self) -> None:
        """The caller asks for records, after it has handled those that it has."""
        world, member = self.world, self.member
        if member is None or self.committing or self.leaving:
            return
        if self.uncommitted and world.rng.random() < 0.4:
            self.committing = True
            return
        now_s = world.clock.monotonic()
        try:
            changes = member.poll(self.uncommitted, now_s)
        except PartitionLostError:
            self.world.ledger.counts["idle"] += 1
            for tp, (_, owner) in self.owned.items():
                world.ledger.excuses.add((owner, tp))
            return
        except WEATHER:
            return
        for tp in changes.lost:
            self._drop(tp)
        for tp, position in changes.assigned.items():
            assert position is not None
            self.read[tp] = self.stored[tp] = position.offset
            self.owned[tp] = member._held[tp].topic_id, member.id
        for tp in changes.stop:
            self.stopped[tp] = self.polled_s
        self.polled_s = now_s
        if not changes.wait:
            for tp in [tp for tp in self.read if tp not in self.stopped and world.rng.random() < 0.5]:
                self._hand_out(tp)

    def _hand_out(self, tp: TopicPartition) -> None:
        topic_id, owner = self.owned[tp]
        number = topic_id, tp.partition
        end = min(self.world.ledger.logs[number].end, self.read[tp] + self.world.rng.randrange(1, 4))
        for offset in range(self.read[tp], end):
            self.world.ledger.hand_out(owner, tp, number, offset)
        self.read[tp] = max(self.read[tp], end)

    def _drop(self, tp: TopicPartition) -> None:
        """A partition is lost. Its records come again if the handler took too long to give it up."""
        if tp not in self.read:
            return
        if self.is_slow(tp):
            self.world.ledger.excuses.add((self.owned[tp][1], tp))
        for kept in (self.read, self.owned, self.stored, self.stopped):
            kept.pop(tp, None)

    def is_slow(self, tp: TopicPartition) -> bool:
        """Whether the handler took too long to give up a partition."""
        late_s = self.world.clock.monotonic() - self.stopped.get(tp, self.polled_s)
        return late_s >= self.world.settings.handover_ms / 1000
