"""Assignment of partitions to the members of a group, as a pure function of the plan before it.

Owners keep what they have, unless another member has two fewer. Sizes then differ by at most one between members of
the same topics, and when one of M members leaves only its own P/M partitions move.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tiered.group.objects import GroupPlan, PlannedTopic, Seat
from tiered.model import TopicPartition


def assign(
    partitions: Iterable[TopicPartition],
    subscribed: Mapping[str, Collection[str]],
    owners: Mapping[TopicPartition, str],
) -> dict[str, frozenset[TopicPartition]]:
    """Return the partitions of each member.

    ``subscribed``: topics of each member. ``owners``: members that have the partitions now. A partition whose topic
    has no subscriber is assigned to none.
    """
    shares: dict[str, set[TopicPartition]] = {member: set() for member in sorted(subscribed)}
    free = []
    for tp in sorted(partitions):
        owner = owners.get(tp)
        if owner is not None and tp.topic in subscribed.get(owner, ()):
            shares[owner].add(tp)
        else:
            free.append(tp)

    def by_size() -> list[str]:
        return sorted(shares, key=lambda member: (len(shares[member]), member))

    for tp in free:
        taker = next((member for member in by_size() if tp.topic in subscribed[member]), None)
        if taker is not None:
            shares[taker].add(tp)
    while (move := _next_move(by_size(), shares, subscribed)) is not None:
        giver, taker, tp = move
        shares[giver].remove(tp)
        shares[taker].add(tp)
    return {member: frozenset(share) for member, share in shares.items()}


def _next_move(
    by_size: list[str], shares: Mapping[str, set[TopicPartition]], subscribed: Mapping[str, Collection[str]]
) -> tuple[str, str, TopicPartition] | None:
    """Return the next move from the largest to the smallest share; None when sizes differ by at most one."""
    for giver in reversed(by_size):
        for taker in by_size:
            if len(shares[giver]) - len(shares[taker]) <= 1:
                break  # the following ones are larger
            fitting = [tp for tp in shares[giver] if tp.topic in subscribed[taker]]
            if fitting:
                return giver, taker, max(fitting)
    return None


def next_plan(
    plan: GroupPlan,
    gone: Collection[str],
    joining: Mapping[str, tuple[str, ...]],
    found: Mapping[str, PlannedTopic],
) -> GroupPlan:
    """Return the plan without the members ``gone``, and with those that are ``joining`` by their topics.

    ``found``: topics as the registry has them. A topic never loses partitions. One with another id was made again, and
    the group reads it from its start.
    """
    topics = dict(plan.topics)
    for name, topic in found.items():
        before = plan.topics.get(name)
        if before is None:
            topics[name] = PlannedTopic(topic.topic_id, topic.partitions, topic.partitions)
        elif before.topic_id != topic.topic_id:
            topics[name] = PlannedTopic(topic.topic_id, topic.partitions, 0)
        elif topic.partitions > before.partitions:
            # mutant added-partitions-from-start
            topics[name] = PlannedTopic(before.topic_id, topic.partitions, before.first)
    subscribed = {member: seat.topics for member, seat in plan.members.items() if member not in gone} | dict(joining)
    partitions = [TopicPartition(name, number) for name, topic in topics.items() for number in range(topic.partitions)]
    shares = assign(partitions, subscribed, plan.owners())
    members = {member: Seat(subscribed[member], share) for member, share in shares.items()}
    return GroupPlan(topics, members, plan.commit, plan.extra)
