"""A member on a thread of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.unit.group.group_world import SETTINGS, GroupWorld
from tiered.group.driver import GroupMember
from tiered.group.member import Member
from tiered.group.objects import PlannedTopic
from tiered.store.base import Steps
from tiered.store.driver import Runner


def test_an_error_of_the_thread_reaches_the_caller() -> None:
    class Broken(GroupWorld):
        def find_topics(self, names: Sequence[str]) -> Steps[Mapping[str, PlannedTopic]]:
            raise RuntimeError("broken")

    topics = Broken(1)
    member = Member("g", "a", ["t"], topics, SETTINGS)
    driven = GroupMember(member, topics, Runner(topics.store, clock=topics.clock))  # type: ignore[arg-type]
    driven._thread.join(30)
    with pytest.raises(RuntimeError, match="broken"):
        driven.poll([])
    driven.close()
