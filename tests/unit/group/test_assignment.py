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


def test_shares_of_fifty_members_are_equal() -> None:
    assert {len(share) for share in assign(PARTITIONS, FIFTY, {}).values()} == {4}


def test_a_member_that_leaves_moves_only_its_own_partitions() -> None:
    before = owners_of(assign(PARTITIONS, FIFTY, {}))
    for gone in FIFTY:
        left = {member: topics for member, topics in FIFTY.items() if member != gone}
        after = assign(PARTITIONS, left, before)
        moved = {tp for tp, member in owners_of(after).items() if before[tp] != member}
        assert moved == {tp for tp, member in before.items() if member == gone}
        assert {len(share) for share in after.values()} == {4, 5}


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


def test_a_topic_that_was_made_again_is_read_from_its_start() -> None:
    plan = next_plan(GroupPlan(), [], {"m": ("t",)}, {"t": PlannedTopic(ONE, 5, 5)})
    plan = next_plan(plan, [], {"m": ("t",)}, {"t": PlannedTopic(OTHER, 2, 2)})
    assert plan.topics == {"t": PlannedTopic(OTHER, 2, 0)}
    assert len(plan.members["m"].partitions) == 2
