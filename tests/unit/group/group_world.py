"""Members on a store in memory, whose rounds run whole, each when it is due; time passes only here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from tiered.errors import UnknownTopicError
from tiered.format.keys import group_partition_key
from tiered.group.member import GroupSettings, Member
from tiered.group.objects import Ownership, PlannedTopic, decode_ownership
from tiered.model import Position, TopicPartition
from tiered.store.base import Outcome, Put, Steps, StoreRequest
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock, SeededIds
from tiered.testing.faults import FaultStore

T = TypeVar("T")
TOPIC_ID = UUID(int=7)
SETTINGS = GroupSettings()
HEARTBEAT_S = SETTINGS.heartbeat_ms / 1000


class CountingStore(MemoryStore):
    """Counts requests by kind, and PUTs by key."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.requests: Counter[str] = Counter()
        self.puts: Counter[str] = Counter()

    def execute(self, request: StoreRequest) -> Outcome:
        self.requests[type(request).__name__] += 1
        if isinstance(request, Put):
            self.puts[request.key] += 1
        return super().execute(request)


class GroupWorld:
    """One topic ``t`` and the members of group ``g``. ``faults`` stands before the store."""

    def __init__(self, partitions: int) -> None:
        self.clock = FakeClock()
        self.store = CountingStore(self.clock)
        self.faults = FaultStore(self.store)
        self.topics = {"t": PlannedTopic(TOPIC_ID, partitions, partitions)}
        self.start = 0
        self.members: dict[str, Member] = {}
        self._due_s: dict[str, float] = {}
        self._ids = SeededIds(1)

    def find_topics(self, names: Sequence[str]) -> Steps[Mapping[str, PlannedTopic]]:
        yield from ()
        return {name: self.topics[name] for name in names if name in self.topics}

    def resolve(self, tp: TopicPartition, topic_id: UUID, *, from_start: bool) -> Steps[Position]:
        yield from ()
        if self.topics[tp.topic].topic_id != topic_id:
            raise UnknownTopicError("another topic")
        return Position(0 if from_start else self.start)

    def join(self, name: str, *, after_s: float = 0.0) -> Member:
        member = Member("g", name, ["t"], self, SETTINGS)
        self.members[name] = member
        self._due_s[name] = self.clock.monotonic() + after_s
        return member

    def run(self, steps: Steps[T]) -> T:
        return drive(self.faults, steps, clock=self.clock, ids=self._ids)

    def pause(self, name: str) -> None:
        """The process stands still."""
        self._due_s[name] = float("inf")

    def resume(self, name: str) -> None:
        self._due_s[name] = self.clock.monotonic()

    def pass_time(self, seconds: float, *, polls: bool = True) -> None:
        """Run rounds as they come due. Callers poll after each, with nothing in their hands."""
        end_s = self.clock.monotonic() + seconds
        while (due := min(self._due_s, key=self._due_s.__getitem__, default=None)) and self._due_s[due] <= end_s:
            self.clock.advance(max(0.0, self._due_s[due] - self.clock.monotonic()))
            self._due_s[due] = self.run(self.members[due].round()) + self.clock.monotonic()
            if polls:
                self.poll_all()
        self.clock.advance(max(0.0, end_s - self.clock.monotonic()))

    def poll_all(self) -> None:
        for name, member in self.members.items():
            if self._due_s[name] != float("inf"):
                member.poll([], self.clock.monotonic())
                if member.has_work:
                    self.run(member.release_due())

    def leave(self, name: str) -> None:
        self.run(self.members.pop(name).leave())
        del self._due_s[name]

    def owners(self) -> dict[int, str]:
        """The name of the owner of each partition that has one."""
        owners = {number: self.stored(number).owner.partition("~")[0] for number in self.numbers()}
        return {number: owner for number, owner in owners.items() if owner}

    def numbers(self) -> list[int]:
        keys = self.store.puts
        return [number for number in range(self.topics["t"].partitions) if self.key(number) in keys]

    def key(self, number: int) -> str:
        return group_partition_key("g", self.topics["t"].topic_id, number)

    def stored(self, number: int) -> Ownership:
        key = self.key(number)
        return decode_ownership(self.store._bucket.objects[key].data, key=key)
