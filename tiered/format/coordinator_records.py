"""Records of Kafka's internal topics, by one table: values for our coordinator, JSON as Kafka's own tool prints them.

``__transaction_state`` holds the state of each transactional id. ``__consumer_offsets`` holds committed offsets of
groups and their members. A key begins with the type of the record, a value with its version. The newest record of a
key is its state; a null value deletes it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiered.errors import ConfigError, CorruptionError
from tiered.format.kafka_struct import FOREVER, Layout, as_json, read_struct, write_struct
from tiered.format.kernels import Record
from tiered.format.wire import WireReader, WireWriter
from tiered.model import Position, TopicPartition

TRANSACTION_STATE_TOPIC = "__transaction_state"
"""Kafka's internal topic of transaction coordinators. Each log directory has its own; it is never tiered."""

OFFSETS_TOPIC = "__consumer_offsets"
"""Kafka's internal topic of groups. Each log directory has its own; it is never tiered, its positions are copied."""


def is_state_log(topic: str) -> bool:
    """Return True for the state logs of transactions and groups, which are no user's topics and are never tiered."""
    return topic in {TRANSACTION_STATE_TOPIC, OFFSETS_TOPIC}


NO_ID = NO_TIME = -1

_TRANSACTION = 0
_TRANSACTION_VERSION = 1
_STATE_POSITION = 16
_POSITION = 1
_POSITION_VERSION = 3
_CLASSIC_GROUP = 2
_GROUP_EPOCHS = {3: "consumer", 11: "share", 17: "streams"}
"""Protocols of the newer groups, by the type of the record that each one has."""
_CONSUMER_PROTOCOL = "consumer"

_TASKS = "[{subtopologyId:str partitions:[i32]}]"
_TOPIC_PARTITIONS = "[{topicId:uuid partitions:[i32]}]"
_TOPICS_BY_ID = "[{topicId:uuid topicName:str partitions:[i32]}]"
_INTERNAL_TOPICS = "[{name:str partitions:i32 replicationFactor:i16 topicConfigs:[{key:str value:str}]}]"
_MEMBER_KEY = "groupId:str memberId:str"
_GROUP_KEY = "groupId:str"

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
"""Records of ``__transaction_state`` by the type that their key begins with."""

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
"""Bytes that Kafka's own consumers store in a classic group's member."""


class TxnState(enum.IntEnum):
    """Kafka's numbers. A broker never stores ``DEAD``: a null value deletes the id instead."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


@dataclass(frozen=True, slots=True)
class TxnValue:
    """State of one transactional id. ``partitions`` by topic, as stored; None if it never had a transaction, as in
    Kafka.

    ``client_version`` 2: the producer's epoch rises with the end of each transaction.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TxnState
    partitions: tuple[TopicPartition, ...] | None = None
    last_update_ms: int = NO_TIME
    start_ms: int = NO_TIME
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    client_version: int = 0
    unknown_tags: tuple[tuple[int, bytes], ...] = ()


def state_partition(transactional_id: str, partitions: int) -> int:
    """Return which of ``partitions`` of ``__transaction_state`` holds this id, by Java's hash of its text."""
    return _java_hash(transactional_id) % partitions


def group_partition(group: str, partitions: int) -> int:
    """Return which of ``partitions`` of ``__consumer_offsets`` holds this group, by Java's hash of its name."""
    return _java_hash(group) % partitions


def _java_hash(text: str) -> int:
    """Return the absolute value of ``String.hashCode``, 0 for the least number: Kafka's ``Utils.abs``."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed = value - (value >> 31 << 32)
    return 0 if signed == -(2**31) else abs(signed)


def encode_position_key(group: str, tp: TopicPartition) -> bytes:
    """Return the key of a position.

    ::

        0  version 1  i16  |  group  i16 length, UTF-8  |  topic  i16 length, UTF-8  |  partition  i32
    """
    writer = WireWriter()
    writer.int16(_POSITION)
    values = {"group": group, "topic": tp.topic, "partition": tp.partition}
    write_struct(writer, GROUP_RECORDS[_POSITION].key, values, 0)
    return writer.to_bytes()


def encode_position(position: Position, *, version: int = _POSITION_VERSION) -> bytes:
    """Return the value of a position. Brokers since 2.1 read version 3.

    ::

        0   version 3     i16
        2   offset        i64
        10  leader epoch  i32   -1 if it is not known
        14  metadata      i16 length, UTF-8
        ..  commit time   i64   ms since 1970
    """
    values = {
        "offset": position.offset,
        "leaderEpoch": position.leader_epoch,
        "metadata": position.metadata,
        "commitTimestamp": position.committed_ms,
    }
    return GROUP_RECORDS[_POSITION].encode(values, version)


def decode_group_key(key: bytes) -> tuple[int, str, TopicPartition | None]:
    """Return the type of a record of ``__consumer_offsets``, its group, and the partition if it is a position.

    The group of an unknown type is "". Raises CorruptionError.
    """
    reader = WireReader(key, "group key")
    number = reader.int16()
    layout = GROUP_RECORDS.get(number)
    if layout is None:
        return number, "", None
    data = read_struct(reader, layout.key, 0)
    reader.end()
    if number > _POSITION:
        return number, str(data.get("groupId", data.get("group", ""))), None
    return number, str(data["group"]), TopicPartition(str(data["topic"]), data["partition"])


def decode_position(value: bytes) -> Position:
    """Return a position. Raises CorruptionError, UnknownRecordError for the version of a newer broker."""
    reader, version = GROUP_RECORDS[_POSITION].open(value, "position")
    layout = GROUP_RECORDS[_POSITION]
    if not 0 <= version <= layout.highest:
        raise UnknownRecordError(f"a position has the unknown version {version}", "")
    data = read_struct(reader, layout.value, version, {})
    reader.end()
    return Position(data["offset"], data.get("leaderEpoch", NO_ID), data["metadata"], data["commitTimestamp"])


def group_protocol(number: int, value: bytes | None) -> str | None:
    """Return the protocol of the group that a record describes, "" for none. None: it describes no whole group.

    Kafka's consumers have the protocol "consumer". Others are "share", "streams", or a name such as "connect".
    """
    if number == _CLASSIC_GROUP:
        if value is None:
            return ""
        reader, version = GROUP_RECORDS[number].open(value, "group")
        data = read_struct(reader, GROUP_RECORDS[number].value, min(version, GROUP_RECORDS[number].highest), {})
        return str(data["protocolType"])
    name = _GROUP_EPOCHS.get(number)
    return name if name is None or value is not None else ""


def encode_transaction_key(transactional_id: str) -> bytes:
    """Return the key. Raises ConfigError for an id that is empty, not Unicode, or longer than 32767 bytes."""
    if not transactional_id:
        raise ConfigError("a transactional id is empty")
    try:
        transactional_id.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"transactional id {transactional_id!r} is no Unicode text: {error.reason}") from error
    writer = WireWriter()
    writer.int16(_TRANSACTION)
    write_struct(writer, TRANSACTION_RECORDS[_TRANSACTION].key, {"transactionalId": transactional_id}, 0)
    return writer.to_bytes()


def decode_transaction_key(key: bytes) -> str:
    """Return the transactional id. Raises CorruptionError, also for key versions above 0, which mean something else."""
    reader = WireReader(key, "transaction key")
    number = reader.int16()
    if number != _TRANSACTION:
        raise reader.error(f"version {number} is not {_TRANSACTION}")
    data = read_struct(reader, TRANSACTION_RECORDS[_TRANSACTION].key, 0)
    reader.end()
    return str(data["transactionalId"])


def encode_transaction(value: TxnValue, *, version: int = _TRANSACTION_VERSION) -> bytes:
    """Return the value, with tags where they differ from their default. Version 0 has no tags."""
    if version not in (0, _TRANSACTION_VERSION):
        raise ConfigError(f"transaction values have version 0 or 1, not {version}")
    topics: dict[str, list[int]] = {}
    for topic, partition in value.partitions or ():
        topics.setdefault(topic, []).append(partition)
    partitions = [{"topic": topic, "partitionIds": numbers} for topic, numbers in topics.items()]
    data: dict[str, Any] = {
        "producerId": value.producer_id,
        "producerEpoch": value.producer_epoch,
        "transactionTimeoutMs": value.timeout_ms,
        "transactionStatus": value.state,
        "transactionPartitions": None if value.partitions is None else partitions,
        "transactionLastUpdateTimestampMs": value.last_update_ms,
        "transactionStartTimestampMs": value.start_ms,
    }
    if value.previous_producer_id != NO_ID:
        data["previousProducerId"] = value.previous_producer_id
    if value.next_producer_id != NO_ID:
        data["nextProducerId"] = value.next_producer_id
    if value.client_version:
        data["clientTransactionVersion"] = value.client_version
    return TRANSACTION_RECORDS[_TRANSACTION].encode(data, version, value.unknown_tags)


def decode_transaction(value: bytes) -> TxnValue:
    """Decode a value of ``__transaction_state``. Raises CorruptionError for an unknown version or odd bytes."""
    layout = TRANSACTION_RECORDS[_TRANSACTION]
    reader, version = layout.open(value, "transaction value")
    if version not in (0, _TRANSACTION_VERSION):
        raise reader.error(f"version {version} is neither 0 nor 1")
    others: dict[int, bytes] = {}
    data = read_struct(reader, layout.value, version, others)
    reader.end()
    topics = data["transactionPartitions"]
    return TxnValue(
        data["producerId"],
        data["producerEpoch"],
        data["transactionTimeoutMs"],
        _state(data["transactionStatus"]),
        None if topics is None else tuple(TopicPartition(t["topic"], n) for t in topics for n in t["partitionIds"]),
        data["transactionLastUpdateTimestampMs"],
        data["transactionStartTimestampMs"],
        data.get("previousProducerId", NO_ID),
        data.get("nextProducerId", NO_ID),
        data.get("clientTransactionVersion", 0),
        tuple(others.items()),
    )


def _state(number: int) -> TxnState:
    try:
        return TxnState(number)
    except ValueError as error:
        raise CorruptionError(f"transaction value: {number} is no state", position=_STATE_POSITION) from error


class UnknownRecordError(CorruptionError):
    """Error for a type or version that no layout describes (perhaps a newer Kafka), with the text of Kafka's tool."""

    def __init__(self, message: str, told: str) -> None:
        super().__init__(message)
        self.told = told


def record_as_json(record: Record, layouts: Mapping[int, Layout]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return key and value, None for a null value. Raises ``CorruptionError`` for what cannot be read."""
    if record.key is None:
        raise CorruptionError(f"the record at offset {record.offset} has no key", offset=record.offset)
    reader = WireReader(record.key, "key")
    number = reader.int16()
    layout = layouts.get(number)
    if layout is None:
        told = f"Unknown record type {number} at offset {record.offset}, skipping."
        raise UnknownRecordError(f"unknown record type {number} at offset {record.offset}", told)
    key = {"type": str(number), "data": as_json(read_struct(reader, layout.key, 0))}
    reader.end()
    if record.value is None:
        return key, None
    reader, version = layout.open(record.value, "value")
    if not 0 <= version <= layout.highest:
        told = f"Error at offset {record.offset}, skipping. Found an unknown record version {version} for {number} type"
        raise UnknownRecordError(f"unknown version {version} of record type {number} at offset {record.offset}", told)
    data = read_struct(reader, layout.value, version)
    reader.end()
    if layouts is GROUP_RECORDS and number == _CLASSIC_GROUP and data["protocolType"] == _CONSUMER_PROTOCOL:
        for member in data["members"]:
            for name, part in MEMBER_FIELDS.items():
                member[name] = _member_field(member[name], part)
    return key, {"version": str(version), "data": as_json(data)}


def _member_field(content: bytes, layout: Layout) -> dict[str, Any] | bytes:
    """Decode bytes of Kafka's own consumers; return other bytes unchanged."""
    try:
        reader, version = layout.open(content, layout.title)
        reader.flexible = False
        return read_struct(reader, layout.value, max(0, min(version, layout.highest)))
    except CorruptionError:
        return content
