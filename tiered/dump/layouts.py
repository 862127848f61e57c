"""How the records of Kafka's internal topics and its control records are laid out, as one table in a small notation.

::

    name:type            read in this order; the name is the one of Kafka's JSON
    name+3:type          only in version 3 and above          name=1:type   only in version 1
    name~0:type          a tagged field (flexible versions only), shown where it stands here
    i8 i16 i32 i64 u16 str bytes uuid      a question mark behind a type: it may be null
    [type]  {name:type name:type}          array, struct

Values begin with their version; so do the values of control records, where it is a field of its own.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

FOREVER = 32767
"""Highest version of anything."""

_TASKS = "[{subtopologyId:str partitions:[i32]}]"
_TOPIC_PARTITIONS = "[{topicId:uuid partitions:[i32]}]"
_TOPICS_BY_ID = "[{topicId:uuid topicName:str partitions:[i32]}]"
_INTERNAL_TOPICS = "[{name:str partitions:i32 replicationFactor:i16 topicConfigs:[{key:str value:str}]}]"
_MEMBER_KEY = "groupId:str memberId:str"
_GROUP_KEY = "groupId:str"


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of the notation: ``name`` of a simple one, ``item`` of an array, ``fields`` of a struct."""

    name: str
    nullable: bool = False
    item: Kind | None = None
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True)
class Field:
    """One field: in versions ``since`` to ``until``; ``tag`` -1 for one that is not tagged."""

    name: str
    kind: Kind
    since: int = 0
    until: int = FOREVER
    tag: int = -1


@dataclass(frozen=True, slots=True)
class Layout:
    """A record: its key and its value, in the notation. Versions from ``flexible`` on are compact and have tags."""

    title: str
    key: str
    value: str
    highest: int = 0
    flexible: int = 0


GROUP_RECORDS = {
    0: Layout(
        "offset commit", "group:str topic:str partition:i32", "offset:i64 metadata:str commitTimestamp:i64", 0, 1
    ),
    1: Layout(
        "offset commit",
        "group:str topic:str partition:i32",
        "offset:i64 leaderEpoch+3:i32 metadata:str commitTimestamp:i64 expireTimestamp=1:i64 topicId~0:uuid",
        4,
        4,
    ),
    2: Layout(
        "group metadata",
        "group:str",
        "protocolType:str generation:i32 protocol:str? leader:str? currentStateTimestamp+2:i64 members:[{memberId:str "
        "groupInstanceId+3:str? clientId:str clientHost:str rebalanceTimeout+1:i32 sessionTimeout:i32 "
        "subscription:bytes assignment:bytes}]",
        4,
        4,
    ),
    3: Layout("consumer group", _GROUP_KEY, "epoch:i32 metadataHash~0:i64"),
    4: Layout(
        "consumer group partitions",
        _GROUP_KEY,
        "topics:[{topicId:uuid topicName:str numPartitions:i32 partitionMetadata:[{partition:i32 racks:[str]}]}]",
    ),
    5: Layout(
        "consumer group member",
        _MEMBER_KEY,
        "instanceId:str? rackId:str? clientId:str clientHost:str subscribedTopicNames:[str] subscribedTopicRegex:str? "
        "rebalanceTimeoutMs:i32 serverAssignor:str? classicMemberMetadata~0:{sessionTimeoutMs:i32 "
        "supportedProtocols:[{name:str metadata:bytes}]}?",
    ),
    6: Layout("consumer group target", _GROUP_KEY, "assignmentEpoch:i32"),
    7: Layout("consumer group target of a member", _MEMBER_KEY, f"topicPartitions:{_TOPIC_PARTITIONS}"),
    8: Layout(
        "consumer group assignment",
        _MEMBER_KEY,
        f"memberEpoch:i32 previousMemberEpoch:i32 state:i8 assignedPartitions:{_TOPIC_PARTITIONS} "
        f"partitionsPendingRevocation:{_TOPIC_PARTITIONS}",
    ),
    10: Layout("share group member", _MEMBER_KEY, "rackId:str? clientId:str clientHost:str subscribedTopicNames:[str]"),
    11: Layout("share group", _GROUP_KEY, "epoch:i32 metadataHash:i64"),
    12: Layout("share group target", _GROUP_KEY, "assignmentEpoch:i32"),
    13: Layout("share group target of a member", _MEMBER_KEY, f"topicPartitions:{_TOPIC_PARTITIONS}"),
    14: Layout(
        "share group assignment",
        _MEMBER_KEY,
        f"memberEpoch:i32 previousMemberEpoch:i32 state:i8 assignedPartitions:{_TOPIC_PARTITIONS}",
    ),
    15: Layout(
        "share group partitions",
        _GROUP_KEY,
        f"initializingTopics:{_TOPICS_BY_ID} initializedTopics:{_TOPICS_BY_ID} "
        "deletingTopics:[{topicId:uuid topicName:str}]",
    ),
    16: Layout(
        "consumer group regular expression",
        "groupId:str regularExpression:str",
        "topics:[str] version:i64 timestamp:i64",
    ),
    17: Layout("streams group", _GROUP_KEY, "epoch:i32 metadataHash:i64"),
    19: Layout(
        "streams group member",
        _MEMBER_KEY,
        "instanceId:str? rackId:str? clientId:str clientHost:str rebalanceTimeoutMs:i32 topologyEpoch:i32 "
        "processId:str userEndpoint:{host:str port:u16}? clientTags:[{key:str value:str}]",
    ),
    20: Layout("streams group target", _GROUP_KEY, "assignmentEpoch:i32"),
    21: Layout(
        "streams group target of a member",
        _MEMBER_KEY,
        f"activeTasks:{_TASKS} standbyTasks:{_TASKS} warmupTasks:{_TASKS}",
    ),
    22: Layout(
        "streams group assignment",
        _MEMBER_KEY,
        f"memberEpoch:i32 previousMemberEpoch:i32 state:i8 activeTasks:{_TASKS} standbyTasks:{_TASKS} "
        f"warmupTasks:{_TASKS} activeTasksPendingRevocation:{_TASKS} standbyTasksPendingRevocation:{_TASKS} "
        f"warmupTasksPendingRevocation:{_TASKS}",
    ),
    23: Layout(
        "streams group topology",
        _GROUP_KEY,
        f"epoch:i32 subtopologies:[{{subtopologyId:str sourceTopics:[str] sourceTopicRegex:[str] "
        f"stateChangelogTopics:{_INTERNAL_TOPICS} repartitionSinkTopics:[str] "
        f"repartitionSourceTopics:{_INTERNAL_TOPICS} copartitionGroups:[{{sourceTopics:[i16] "
        f"sourceTopicRegex:[i16] repartitionSourceTopics:[i16]}}]}}]",
    ),
}
"""Records of ``__consumer_offsets`` by the type that their key begins with."""

TRANSACTION_RECORDS = {
    0: Layout(
        "transaction",
        "transactionalId:str",
        "producerId:i64 previousProducerId~0:i64 nextProducerId~1:i64 producerEpoch:i16 transactionTimeoutMs:i32 "
        "transactionStatus:i8 transactionPartitions:[{topic:str partitionIds:[i32]}]? "
        "transactionLastUpdateTimestampMs:i64 transactionStartTimestampMs:i64 clientTransactionVersion~2:i16",
        1,
        1,
    )
}
"""Records of ``__transaction_state``, likewise."""

_VOTERS = "[{voterId:i32 voterDirectoryId+1:uuid}]"
CONTROL_RECORDS = {
    2: Layout("LeaderChange", "", f"leaderId:i32 voters:{_VOTERS} grantingVoters:{_VOTERS}", 1),
    3: Layout("SnapshotHeader", "", "lastContainedLogTimestamp:i64"),
    4: Layout("SnapshotFooter", "", ""),
    5: Layout("KRaftVersion", "", "kRaftVersion:i16"),
    6: Layout(
        "KRaftVoters",
        "",
        "voters:[{voterId:i32 voterDirectoryId:uuid endpoints:[{name:str host:str port:u16}] "
        "kRaftVersionFeature:{minSupportedVersion:i16 maxSupportedVersion:i16}}]",
    ),
}
"""Values of control records by the type in their key; transaction markers (0 and 1) are not among them."""

_OWNED = "[{topic:str partitions:[i32]}]"
MEMBER_FIELDS = {
    "subscription": Layout(
        "subscription",
        "",
        f"topics:[str] userData:bytes? ownedPartitions+1:{_OWNED} generationId+2:i32 rackId+3:str?",
        3,
        FOREVER,
    ),
    "assignment": Layout("assignment", "", f"assignedPartitions:{_OWNED} userData:bytes?", 3, FOREVER),
}
"""What Kafka's own consumers keep in the bytes of a classic group's member."""

_TOKEN = re.compile(r"[A-Za-z]\w*|[+=~]\d+|[:\[\]{}?]|\s+")


@functools.cache
def fields_of(text: str) -> tuple[Field, ...]:
    """The fields that ``text`` describes."""
    tokens = [token for token in _TOKEN.findall(text) if not token.isspace()]
    fields, left = _fields(tokens)
    if left or "".join(tokens) != "".join(text.split()):
        raise ValueError(f"cannot read the layout {text!r}")
    return fields


def _fields(tokens: list[str]) -> tuple[tuple[Field, ...], list[str]]:
    fields: list[Field] = []
    while tokens and tokens[0] != "}":
        name, tokens = tokens[0], tokens[1:]
        since, until, tag = 0, FOREVER, -1
        while tokens[0] != ":":
            mark, number = tokens[0][0], int(tokens[0][1:])
            since = number if mark in "+=" else since
            until = number if mark == "=" else until
            tag = number if mark == "~" else tag
            tokens = tokens[1:]
        kind, tokens = _kind(tokens[1:])
        fields.append(Field(name, kind, since, until, tag))
    return tuple(fields), tokens


def _kind(tokens: list[str]) -> tuple[Kind, list[str]]:
    opening, tokens = tokens[0], tokens[1:]
    item: Kind | None = None
    fields: tuple[Field, ...] = ()
    if opening == "[":
        item, tokens = _kind(tokens)
        tokens = tokens[1:]
    elif opening == "{":
        fields, tokens = _fields(tokens)
        tokens = tokens[1:]
    nullable = bool(tokens) and tokens[0] == "?"
    return Kind(opening, nullable, item, fields), tokens[1:] if nullable else tokens
