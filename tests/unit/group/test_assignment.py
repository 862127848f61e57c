"""Assignment of partitions: fair, steady, and equal for all who see the same."""

from __future__ import annotations

import random
from collections.abc import Mapping
from uuid import UUID

from tiered.group.objects import GroupPlan, PlannedTopic, assign, next_plan
from tiered.model import TopicPartition

PARTITIONS = [TopicPartition("t", number) for number in range(200)]
FIFTY = {f"m{number:02}": ("t",) for number in range(50)}
ONE, OTHER = UUID(int=1), UUID(int=2)


def owners_of(shares: Mapping[str, frozenset[TopicPartition]]) -> dict[TopicPartition, str]:
    return {tp: member for member, share in shares.items() for tp in share}


def test_a_member_that_joins_moves_only_what_it_gets() -> None:
    before = owners_of(assign(PARTITIONS, FIFTY, {}))
    after = assign(PARTITIONS, FIFTY | {"new": ("t",)}, before)
    assert {tp for tp, member in owners_of(after).items() if before[tp] != member} == after["new"]
    assert len(after["new"]) == 3


def test_random_histories_are_fair_whole_and_equal_for_all() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    partitions = [TopicPartition(topic, number) for topic in "abc" for number in range(7)]
    owners: dict[TopicPartition, str] = {}
    for _ in range(300):
        members = {
            f"m{number}": tuple(dice.sample("abc", dice.randrange(1, 4))) for number in range(dice.randrange(1, 6))
        }
        shares = assign(partitions, members, owners)
        turned = assign(partitions[::-1], dict(reversed(members.items())), owners)
        assert shares == turned
        subscribed = {topic for topics in members.values() for topic in topics}
        assert set(owners_of(shares)) == {tp for tp in partitions if tp.topic in subscribed}
        assert all(tp.topic in members[member] for member, share in shares.items() for tp in share)
        sizes = [len(share) for share in shares.values()]
        if len(set(members.values())) == 1:
            assert max(sizes) - min(sizes) <= 1
        assert assign(partitions, members, owners_of(shares)) == shares  # nothing moves without a cause
        owners = owners_of(shares)


def test_partitions_that_are_added_are_read_from_their_start() -> None:
    plan = next_plan(GroupPlan(), [], {"m": ("t",)}, {"t": PlannedTopic(ONE, 2, 2)})
    plan = next_plan(plan, [], {"m": ("t",)}, {"t": PlannedTopic(ONE, 5, 5)})
    assert plan.topics == {"t": PlannedTopic(ONE, 5, 2)}
    assert len(plan.members["m"].partitions) == 5
