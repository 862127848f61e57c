"""Objects of a group: members, the plan, the owner and position of each partition. JSON, changed by compare-and-swap.

::

    groups/{group}/members/{name}~{uid}
        {"format": 1, "member": "host-1~<32 hex>", "topics": ["orders"], "beat": 17, "commit": "<32 hex>"}
    groups/{group}/plan
        {"format": 1, "commit": "<32 hex>", "topics": [["orders", "<topic id>", 8, 8]],
         "members": [["host-1~<32 hex>", ["orders"], [["orders", [0, 1, 2, 3]]]]]}
    groups/{group}/partitions/{topic id}-{partition}
        {"format": 1, "topic": "orders", "owner": "host-1~<32 hex>", "epoch": 4611686018427387904,
         "offset": 1000, "leader_epoch": 3, "metadata": "", "committed_ms": 1700000000000, "owned_ms": 1700000000000,
         "commit": "<32 hex>"}

``commit`` is new in each body, so that ETags never repeat, and a read shows whether a PUT without an answer was stored.
A member exists as long as its object does. A body with ``dead`` was written by the member that found it dead, and is
deleted next. Fields of newer releases are kept.

The next plan is a pure function of the plan before it. Owners keep their partitions, unless another member has at least
two fewer. Sizes then differ by at most one between members of the same topics. When one of M members leaves, only its
own P/M partitions move.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar
from uuid import UUID

from tiered.config import MAX_PARTITIONS
from tiered.errors import ConfigError, CorruptionError
from tiered.format.json_schema import HEX_128, INT64_MAX, NUMBER, TEXT, TIME_MS, JsonObject, ListOf, Shape, ValueType
from tiered.format.keys import group_member_key, group_partition_key, group_plan_key, parse_group_key
from tiered.model import Position, TopicPartition
from tiered.remote.conditional_put import Cell, read_cell
from tiered.store.base import Steps

FORMAT = 1
MAX_MEMBERS = 10_000
MAX_TOPICS = 1_000
MAX_MEMBER_BYTES = 256 * 1024
MAX_PLAN_BYTES = 8 * 1024 * 1024
MAX_OWNERSHIP_BYTES = 64 * 1024
MAX_METADATA_CHARS = 4096
"""Limit of a position's metadata, Kafka's default (``offset.metadata.max.bytes``)."""

_INT32 = ValueType(int, -1, 2**31 - 1)
_FORMAT: Shape = {"format": ValueType(int, 1, INT64_MAX)}
_MEMBER: Shape = {**_FORMAT, "member": TEXT, "topics": ListOf(TEXT, MAX_TOPICS), "beat": NUMBER, "commit": HEX_128}
_PLAN: Shape = {
    **_FORMAT,
    "commit": HEX_128,
    "topics": ListOf(
        {
            "topic": TEXT,
            "topic_id": HEX_128,
            "partitions": ValueType(int, 0, MAX_PARTITIONS),
            "first": ValueType(int, 0, MAX_PARTITIONS),
        },
        MAX_TOPICS,
    ),
    "members": ListOf(
        {
            "member": TEXT,
            "topics": ListOf(TEXT, MAX_TOPICS),
            "shares": ListOf({"topic": TEXT, "partitions": ListOf(NUMBER, MAX_PARTITIONS)}, MAX_TOPICS),
        },
        MAX_MEMBERS,
    ),
}
_OWNERSHIP: Shape = {
    **_FORMAT,
    "topic": TEXT,
    "owner": TEXT,
    "epoch": NUMBER,
    "offset": NUMBER,
    "leader_epoch": _INT32,
    "metadata": ValueType(str, 0, MAX_METADATA_CHARS),
    "committed_ms": TIME_MS,
    "owned_ms": TIME_MS,
    "commit": HEX_128,
}
_HINT = "put a version of the object back, or delete the group with `tiered group delete`: its positions are lost then"


@dataclass(frozen=True, slots=True)
class MemberBeat:
    """Object of a member. ``beat``: number of its heartbeats. ``dead``: True if another member found it dead.

    ``topics``: names of its topics. ``commit``: random number, new in each body of the object.
    """

    member: str
    topics: tuple[str, ...]
    beat: int
    commit: int
    dead: bool = False


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """Topic in a plan. ``partitions``: number of its partitions. ``first``: that number when the group first read it.

    Partitions from number ``first`` on are read from their start. ``first`` is 0 for a topic that was created again.
    """

    topic_id: UUID
    partitions: int
    first: int


class GroupTopics(Protocol):
    """Source of the bucket's topics, for a member."""

    def find_topics(self, names: Sequence[str]) -> Steps[Mapping[str, PlannedTopic]]:
        """Return the topics among ``names`` that exist, with their number of partitions. Callers ignore ``first``."""

    def resolve(self, tp: TopicPartition, topic_id: UUID, *, from_start: bool) -> Steps[Position]:
        """Return the position at which the group begins in a partition without a committed position.

        ``from_start``: True for the earliest offset, False for the consumer's ``start``. Raises LogDestroyedError or
        UnknownTopicError if the topic was deleted or created again.
        """


@dataclass(frozen=True, slots=True)
class Seat:
    """Member in a plan: the topics that it subscribed to, and the partitions assigned to it."""

    topics: tuple[str, ...]
    partitions: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Plan of a group: which member shall own which partitions. Each member adds itself, and others remove it.

    ``topics``: topics by name. ``members``: seats by member id. ``commit``: random number, new in each body of the
    object. ``extra``: fields of newer releases. ``commit`` and ``extra`` do not count in comparisons.
    """

    topics: Mapping[str, PlannedTopic] = field(default_factory=dict)
    members: Mapping[str, Seat] = field(default_factory=dict)
    commit: int = field(default=0, compare=False)
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def owners(self) -> dict[TopicPartition, str]:
        """Return the member to which each partition is assigned."""
        return {tp: member for member, seat in self.members.items() for tp in seat.partitions}


@dataclass(frozen=True, slots=True)
class Ownership:
    """Owner and position of a partition. ``owner``: member id, ``""`` if it is free. ``epoch``: rises with each owner.

    ``commit``: random number, new in each body of the object. ``owned_ms``: time at which the owner claimed the
    partition, -1 if unknown. ``extra``: fields of newer releases.
    """

    topic: str
    owner: str
    epoch: int
    position: Position
    commit: int
    owned_ms: int = -1
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)


def encode_member(beat: MemberBeat) -> bytes:
    """Encode the object of a member."""
    fields = {"format": FORMAT, "member": beat.member, "topics": list(beat.topics), "beat": beat.beat}
    return _encode(fields | ({"dead": True} if beat.dead else {}) | {"commit": f"{beat.commit:032x}"})


def decode_member(data: bytes, *, key: str) -> MemberBeat:
    """Decode the object of a member. Raises CorruptionError if ``key`` names another member."""
    fields, values = _parse(data, key, _MEMBER, MAX_MEMBER_BYTES)
    parsed = parse_group_key(key)
    if parsed is None or parsed.member != values["member"]:
        fields.refuse("member", "belongs to another member, whose object was copied over this one")
    dead = fields.values.get("dead") is True
    return MemberBeat(values["member"], tuple(values["topics"]), values["beat"], values["commit"], dead)


def encode_plan(plan: GroupPlan) -> bytes:
    """Encode a plan. Raises ConfigError if it has too many topics, members or bytes."""
    topics = [[name, each.topic_id.hex, each.partitions, each.first] for name, each in sorted(plan.topics.items())]
    members = [[member, list(seat.topics), _shares(seat)] for member, seat in sorted(plan.members.items())]
    body = _encode(
        {**plan.extra, "format": FORMAT, "commit": f"{plan.commit:032x}", "topics": topics, "members": members}
    )
    if len(body) > MAX_PLAN_BYTES or len(topics) > MAX_TOPICS or len(members) > MAX_MEMBERS:
        raise ConfigError(
            f"the plan of the group is too large: {len(body)} bytes, {len(topics)} topics, {len(members)} members",
            hint=f"use several groups: the limits are {MAX_PLAN_BYTES} bytes, {MAX_TOPICS} topics and "
            f"{MAX_MEMBERS} members",
        )
    return body


def _shares(seat: Seat) -> list[list[Any]]:
    shares: dict[str, list[int]] = {}
    for tp in sorted(seat.partitions):
        shares.setdefault(tp.topic, []).append(tp.partition)
    return [[topic, partitions] for topic, partitions in shares.items()]


def decode_plan(data: bytes, *, key: str) -> GroupPlan:
    """Decode a plan. Raises CorruptionError if a partition has two members."""
    fields, values = _parse(data, key, _PLAN, MAX_PLAN_BYTES)
    topics = {name: PlannedTopic(UUID(int=id_), count, first) for name, id_, count, first in values["topics"]}
    members = {
        member: Seat(
            tuple(subscribed),
            frozenset(TopicPartition(topic, number) for topic, numbers in shares for number in numbers),
        )
        for member, subscribed, shares in values["members"]
    }
    plan = GroupPlan(topics, members, values["commit"], _extra(fields, _PLAN))
    if len(plan.owners()) != sum(len(seat.partitions) for seat in members.values()):
        fields.refuse("members", "gives one partition to two members")
    return plan


def encode_ownership(found: Ownership) -> bytes:
    """Encode the object with owner and position of a partition."""
    fields = {"format": FORMAT, "topic": found.topic, "owner": found.owner, "epoch": found.epoch}
    own = {"owned_ms": found.owned_ms, "commit": f"{found.commit:032x}"}
    return _encode({**found.extra, **fields, **asdict(found.position), **own})


def decode_ownership(data: bytes, *, key: str) -> Ownership:
    """Decode the object with owner and position of a partition."""
    fields, values = _parse(data, key, _OWNERSHIP, MAX_OWNERSHIP_BYTES)
    _, topic, owner, epoch, offset, leader_epoch, metadata, committed_ms, owned_ms, commit = values.values()
    position = Position(offset, leader_epoch, metadata, committed_ms)
    return Ownership(topic, owner, epoch, position, commit, owned_ms, _extra(fields, _OWNERSHIP))


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _parse(data: bytes, key: str, shape: Shape, limit: int) -> tuple[JsonObject, dict[str, Any]]:
    """Decode the object ``key``. Raises CorruptionError for damage, ConfigError for a newer format."""
    try:
        if len(data) > limit:
            raise CorruptionError(
                f"{key}: the object has {len(data)} bytes, more than the limit of {limit}", path_or_key=key, position=0
            )
        fields = JsonObject(data, key=key)
        fields.check_format(FORMAT)
        return fields, fields.checked_fields(shape)
    except CorruptionError as damage:
        damage.hint = _HINT
        raise


def _extra(fields: JsonObject, shape: Shape) -> Mapping[str, Any]:
    return {name: value for name, value in fields.values.items() if name not in shape}


# -- compare-and-swap --------------------------------------------------------------------------------------------------

T = TypeVar("T", MemberBeat, GroupPlan, Ownership)


def member_cell(group: str, member: str) -> Cell[MemberBeat | None]:
    key = group_member_key(group, member)
    return _cell(key, f"group {group}: member {member}", decode_member, MAX_MEMBER_BYTES)


def plan_cell(group: str) -> Cell[GroupPlan | None]:
    return _cell(group_plan_key(group), f"group {group}: its plan", decode_plan, MAX_PLAN_BYTES)


def ownership_cell(group: str, tp: TopicPartition, topic_id: UUID) -> Cell[Ownership | None]:
    key = group_partition_key(group, topic_id, tp.partition)
    return _cell(key, f"group {group}: position of {tp}", decode_ownership, MAX_OWNERSHIP_BYTES)


def _cell(key: str, what: str, decode: Callable[..., T], limit: int) -> Cell[T | None]:
    """Return the object ``key`` for compare-and-swap. Makes no request."""

    def is_ours(found: T | None, sent: T | None) -> bool:
        return found is not None and sent is not None and found.commit == sent.commit

    hint = "try again: the next attempt finds out whether this one was stored"
    return Cell(key, what, read_cell(key, lambda got: decode(got.data, key=key), limit), is_ours, hint)


# -- the next plan -----------------------------------------------------------------------------------------------------


def assign(
    partitions: Iterable[TopicPartition],
    subscribed: Mapping[str, Collection[str]],
    owners: Mapping[TopicPartition, str],
) -> dict[str, frozenset[TopicPartition]]:
    """Return the partitions that each member shall own, in shares of nearly equal size with few moves.

    ``subscribed``: topics of each member. ``owners``: present owners of partitions. A partition is left out if no
    member subscribes to its topic.
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
    """Return a move (giver, taker, partition) to a share that is smaller by two or more; None if none is possible."""
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
    """Return ``plan`` without the members ``gone`` and with those in ``joining``, and with all partitions assigned.

    ``joining``: topics of members to add or to update. ``found``: topics as the registry has them. A topic never loses
    partitions. A topic with another id was created again, and the group reads it from its start.
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
