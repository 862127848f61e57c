"""Members on threads: what the caller calls while heartbeats run."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pytest

from tests.unit.group.group_world import GroupWorld
from tiered.group.driver import GroupMember
from tiered.group.member import GroupSettings, Member
from tiered.group.objects import PlannedTopic
from tiered.model import Position, TopicPartition
from tiered.store.base import Outcome, Steps, StoreRequest
from tiered.store.driver import Runner
from tiered.store.memory import MemoryStore

T0 = TopicPartition("t", 0)
QUICK = GroupSettings(heartbeat_ms=40, lease_ms=120, handover_ms=60_000, max_poll_interval_ms=600_000)
SECONDS = 30.0


class Announcing(MemoryStore):
    """Sets ``changed`` after each request."""

    changed = threading.Event()

    def execute(self, request: StoreRequest) -> Outcome:
        try:
            return super().execute(request)
        finally:
            self.changed.set()


class Owner:
    """A caller that polls until it has what it waits for."""

    def __init__(self, name: str, store: Announcing, partitions: int) -> None:
        topics = GroupWorld(partitions)
        self.member = GroupMember(Member("g", name, ["t"], topics, QUICK), topics, Runner(store))  # type: ignore[arg-type]
        self.store = store
        self.owned: set[TopicPartition] = set()

    def poll_until(self, count: int) -> None:
        while len(self.owned) != count:
            self.store.changed.clear()
            changes = self.member.poll([])
            self.owned = (self.owned - set(changes.lost)) | set(changes.assigned)
            if len(self.owned) != count:
                assert self.store.changed.wait(SECONDS)


def test_two_members_share_and_one_that_closes_hands_over() -> None:
    store = Announcing()
    a = Owner("a", store, 4)
    a.poll_until(4)
    b = Owner("b", store, 4)
    threads = [threading.Thread(target=each.poll_until, args=(2,)) for each in (a, b)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert (len(a.owned), len(b.owned), a.owned & b.owned) == (2, 2, set())
    a.member.close()
    b.poll_until(4)
    assert b.member.commit({T0: Position(3)}) == {}
    assert b.member.committed([T0])[T0].offset == 3
    b.member.close()
    assert not [key for key in store._bucket.objects if "/members/" in key]


def test_an_error_of_the_thread_reaches_the_caller() -> None:
    class Broken(GroupWorld):
        def find_topics(self, names: Sequence[str]) -> Steps[Mapping[str, PlannedTopic]]:
            raise RuntimeError("broken")

    store = Announcing()
    topics = Broken(1)
    member = GroupMember(Member("g", "a", ["t"], topics, QUICK), topics, Runner(store))  # type: ignore[arg-type]
    member._thread.join(SECONDS)
    with pytest.raises(RuntimeError, match="broken"):
        member.poll([])
    member.close()
