"""Records of ``__transaction_state``: what a transaction coordinator remembers of one transactional id.

::

    key    version i16 = 0 | transactional id string
    value  version i16 = 0 or 1 (1 is flexible; a null value forgets the id)
           producer id i64 | producer epoch i16 | timeout ms i32 | state i8
           partitions: null, or array of (topic string | partition i32 array)
           last update ms i64 | start ms i64
           tags, version 1: 0 previous producer id i64, 1 next producer id i64, 2 transaction version i16

The newest record of an id is its state. Tags that are not known are kept.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from tiered.errors import ConfigError, CorruptionError
from tiered.format.wire import WireReader, WireWriter, read_long, read_short
from tiered.model import TopicPartition

TRANSACTION_STATE_TOPIC = "__transaction_state"
"""Kafka's internal topic of transaction coordinators; it is of its log directory and is never tiered."""

KEY_VERSION = 0
VALUE_VERSION = 1
NO_ID = NO_TIME = -1

_PREVIOUS, _NEXT, _CLIENT = 0, 1, 2


class TxnState(enum.IntEnum):
    """Kafka's numbers. ``DEAD`` is never stored by a broker: the id is forgotten with a null value instead."""

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
    """One value. ``partitions`` by topic, as stored; None as Kafka writes it for an id without any transaction.

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
    """Which of ``partitions`` of ``__transaction_state`` keeps this id: as a broker, by Java's hash of the text."""
    units = transactional_id.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % partitions


def encode_key(transactional_id: str) -> bytes:
    """Raises ConfigError for an id that is empty, no Unicode text, or longer than 32767 bytes."""
    if not transactional_id:
        raise ConfigError("a transactional id is empty")
    try:
        transactional_id.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"transactional id {transactional_id!r} is no Unicode text: {error.reason}") from error
    writer = WireWriter()
    writer.int16(KEY_VERSION)
    writer.string(transactional_id)
    return writer.to_bytes()


def decode_key(key: bytes) -> str:
    """The transactional id. Raises CorruptionError; also for key versions above 0, which mean something else."""
    reader = WireReader(key, "transaction key")
    version = reader.int16()
    if version != KEY_VERSION:
        raise reader.error(f"version {version} is not {KEY_VERSION}")
    transactional_id = reader.string()
    reader.end()
    return transactional_id


def encode_value(value: TxnValue, *, version: int = VALUE_VERSION) -> bytes:
    """Tags are written where they differ from their default. Version 0 has none."""
    if version not in (0, VALUE_VERSION):
        raise ConfigError(f"transaction values have version 0 or 1, not {version}")
    writer = WireWriter(flexible=version > 0)
    writer.int16(version)
    writer.int64(value.producer_id)
    writer.int16(value.producer_epoch)
    writer.int32(value.timeout_ms)
    writer.int8(value.state)
    _write_partitions(writer, value.partitions)
    writer.int64(value.last_update_ms)
    writer.int64(value.start_ms)
    tags = dict(value.unknown_tags)
    if value.previous_producer_id != NO_ID:
        tags[_PREVIOUS] = struct.pack(">q", value.previous_producer_id)
    if value.next_producer_id != NO_ID:
        tags[_NEXT] = struct.pack(">q", value.next_producer_id)
    if value.client_version:
        tags[_CLIENT] = struct.pack(">h", value.client_version)
    writer.tagged(tags)
    return writer.to_bytes()


def _write_partitions(writer: WireWriter, partitions: tuple[TopicPartition, ...] | None) -> None:
    if partitions is None:
        writer.length(-1)
        return
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    writer.length(len(topics))
    for topic, numbers in topics.items():
        writer.string(topic)
        writer.length(len(numbers))
        for number in numbers:
            writer.int32(number)
        writer.tagged({})


def decode_value(value: bytes) -> TxnValue:
    """Raises CorruptionError for an unknown version or state, and for anything cut short or left over."""
    reader = WireReader(value, "transaction value")
    version = reader.int16()
    if version not in (0, VALUE_VERSION):
        raise reader.error(f"version {version} is neither 0 nor 1")
    reader.flexible = version > 0
    producer_id, producer_epoch, timeout_ms, number = reader.int64(), reader.int16(), reader.int32(), reader.int8()
    try:
        state = TxnState(number)
    except ValueError as error:
        raise CorruptionError(f"transaction value: {number} is no state", position=reader.position - 1) from error
    topics = reader.nullable_array(lambda: _read_topic(reader), item_bytes=3)
    last_update_ms, start_ms = reader.int64(), reader.int64()
    tags = reader.tagged()
    reader.end()
    known = {tag: tags.pop(tag) for tag in (_PREVIOUS, _NEXT, _CLIENT) if tag in tags}
    return TxnValue(
        producer_id,
        producer_epoch,
        timeout_ms,
        state,
        None if topics is None else tuple(tp for topic in topics for tp in topic),
        last_update_ms,
        start_ms,
        read_long(known[_PREVIOUS], "previous producer id") if _PREVIOUS in known else NO_ID,
        read_long(known[_NEXT], "next producer id") if _NEXT in known else NO_ID,
        read_short(known[_CLIENT], "transaction version") if _CLIENT in known else 0,
        tuple(tags.items()),
    )


def _read_topic(reader: WireReader) -> list[TopicPartition]:
    topic = reader.string()
    numbers = reader.array(reader.int32, item_bytes=4)
    reader.tagged()
    return [TopicPartition(topic, number) for number in numbers]
