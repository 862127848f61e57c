"""Records of Kafka's internal topics that our coordinators write and read.

``__transaction_state`` holds the state of each transactional id. ``__consumer_offsets`` holds committed offsets of
groups, and members of groups, of which we read the protocol alone. The newest record of a key is its state; a null
value deletes it. A key begins with the type of the record, a value with its version::

    transaction  key    0 i16 | transactional id string
                 value  version i16 = 0 or 1 | producer id i64 | producer epoch i16 | timeout ms i32 | state i8
                        | array of (topic string, array of partition i32), null if it never had a transaction
                        | last update ms i64 | start ms i64
                        | tags (version 1): 0 previous producer id i64, 1 next producer id i64, 2 client version i16
    position     key    0 or 1 i16 | group string | topic string | partition i32
                 value  version i16 = 0..4 | offset i64 | leader epoch i32 (from 3 on) | metadata string
                        | commit time ms i64 | expiry ms i64 (version 1 alone) | tags (version 4)
    group        key    2 classic, 3 consumer, 11 share, 17 streams i16 | group string
                 value  of a classic one: version i16 | protocol string | its members

Values of transactions from version 1 on, and those of positions and classic groups from version 4 on, are *flexible*.
These are Kafka's wire types; every length is checked before anything is allocated:

==================== ======================================================================================
int8 ... int64       big-endian
string               length i16, -1 for null, then UTF-8
array                count i32, -1 for null
flexible: string,    the same with length + 1 as unsigned varint, 0 for null
array
flexible: tags       at the end of a struct: count, then (tag, size, bytes) each, tags rising
==================== ======================================================================================
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tiered.errors import ConfigError, CorruptionError
from tiered.model import Position, TopicPartition

TRANSACTION_STATE_TOPIC = "__transaction_state"
"""Kafka's internal topic of transaction coordinators. Each log directory has its own; it is never tiered."""

OFFSETS_TOPIC = "__consumer_offsets"
"""Kafka's internal topic of groups. Each log directory has its own; it is never tiered, its positions are copied."""


def is_state_log(topic: str) -> bool:
    """Return True for ``__transaction_state`` and ``__consumer_offsets``. They are never tiered."""
    return topic in {TRANSACTION_STATE_TOPIC, OFFSETS_TOPIC}


NO_ID = NO_TIME = -1

_TRANSACTION = 0
_TRANSACTION_VERSION = 1
_STATE_POSITION = 16
_PREVIOUS_ID_TAG, _NEXT_ID_TAG, _CLIENT_VERSION_TAG = 0, 1, 2
_ID_BYTES, _CLIENT_VERSION_BYTES = 8, 2
_MIN_TOPIC_BYTES, _PARTITION_BYTES = 2, 4
_POSITION = 1
_POSITION_VERSION = 3
_NEWEST_POSITION_VERSION = 4
_CLASSIC_GROUP = 2
_FLEXIBLE_GROUP_VERSION = 4
_GROUP_PROTOCOLS = {3: "consumer", 11: "share", 17: "streams"}
"""Protocols of the newer groups, by the type of the record that each one has."""


class TxnState(enum.IntEnum):
    """State of a transaction, with Kafka's numbers. ``DEAD`` is never stored: a null value deletes the id instead."""

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
    """State of one transactional id.

    ``partitions``: those of the current transaction; None: the id never had a transaction. ``client_version`` 2: the
    producer's epoch rises with the end of each transaction. Ids and times are -1 if there are none. ``unknown_tags``:
    (number, bytes) of tagged fields that this release does not know. They are written back.
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

    def by_topic(self) -> dict[str, list[int]]:
        """Return the numbers of the partitions of each topic."""
        topics: dict[str, list[int]] = {}
        for topic, partition in self.partitions or ():
            topics.setdefault(topic, []).append(partition)
        return topics


def state_partition(transactional_id: str, partitions: int) -> int:
    """Return the partition of ``__transaction_state`` for this id, by Java's hash of the id.

    ``partitions``: number of partitions of that topic.
    """
    return _java_hash(transactional_id) % partitions


def group_partition(group: str, partitions: int) -> int:
    """Return the partition of ``__consumer_offsets`` for this group, by Java's hash of its name.

    ``partitions``: number of partitions of that topic.
    """
    return _java_hash(group) % partitions


def _java_hash(text: str) -> int:
    """Return the absolute value of Java's ``text.hashCode()``, 0 for -2**31, like Kafka's ``Utils.abs``."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed = value - (value >> 31 << 32)
    return 0 if signed == -(2**31) else abs(signed)


def encode_position_key(group: str, tp: TopicPartition) -> bytes:
    writer = WireWriter()
    writer.int16(_POSITION)
    writer.string(group)
    writer.string(tp.topic)
    writer.int32(tp.partition)
    return writer.to_bytes()


def encode_position(position: Position) -> bytes:
    """Return the record value of a group's committed position, in version 3, which brokers since 2.1 read."""
    writer = WireWriter()
    writer.int16(_POSITION_VERSION)
    writer.int64(position.offset)
    writer.int32(position.leader_epoch)
    writer.string(position.metadata)
    writer.int64(position.committed_ms)
    return writer.to_bytes()


def decode_group_key(key: bytes) -> tuple[int, str, TopicPartition | None]:
    """Return (type number, group, partition) of the key of a record in ``__consumer_offsets``.

    The partition is None unless the record is a committed position. The group is "" if the record describes neither a
    position nor a whole group. Raises CorruptionError for damaged bytes.
    """
    reader = WireReader(key, "group key")
    number = reader.int16()
    if number in {0, _POSITION}:
        group, tp = reader.string(), TopicPartition(reader.string(), reader.int32())
        reader.end()
        return number, group, tp
    if number != _CLASSIC_GROUP and number not in _GROUP_PROTOCOLS:
        return number, "", None
    group = reader.string()
    reader.end()
    return number, group, None


def decode_position(value: bytes) -> Position:
    """Decode the value of a committed position. Raises CorruptionError for damage, or a newer broker's version."""
    reader = WireReader(value, "position")
    version = reader.int16()
    if not 0 <= version <= _NEWEST_POSITION_VERSION:
        raise reader.error(f"version {version} is not in 0..{_NEWEST_POSITION_VERSION}")
    reader.flexible = version == _NEWEST_POSITION_VERSION
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= _POSITION_VERSION else NO_ID
    found = Position(offset, leader_epoch, reader.string(), reader.int64())
    if version == 1:
        reader.int64()  # the expiry
    reader.tagged()
    reader.end()
    return found


def group_protocol(number: int, value: bytes | None) -> str | None:
    """Return the protocol of the group that a record of ``__consumer_offsets`` describes. ``number``: type of the
    record.

    ``""``: the group has no protocol, or the record deletes it. None: the record describes a position or a member, not
    a group. Kafka's consumers have the protocol "consumer". Others are "share", "streams", or a name such as "connect".
    Raises CorruptionError for damaged bytes.
    """
    if number == _CLASSIC_GROUP and value is not None:
        reader = WireReader(value, "group")
        reader.flexible = reader.int16() >= _FLEXIBLE_GROUP_VERSION
        return reader.string()
    if number == _CLASSIC_GROUP or (number in _GROUP_PROTOCOLS and value is None):
        return ""
    return _GROUP_PROTOCOLS.get(number)


def encode_transaction_key(transactional_id: str) -> bytes:
    """Return the key of an id in ``__transaction_state``.

    Raises ConfigError for an id that is empty, not Unicode, or longer than 32767 bytes.
    """
    if not transactional_id:
        raise ConfigError("a transactional id is empty", hint="use a text of 1 to 32767 bytes")
    writer = WireWriter()
    writer.int16(_TRANSACTION)
    try:
        writer.string(transactional_id)
    except UnicodeEncodeError as error:
        raise ConfigError(f"transactional id {transactional_id!r} is not valid Unicode: {error.reason}") from error
    return writer.to_bytes()


def decode_transaction_key(key: bytes) -> str:
    """Return the transactional id in a key of ``__transaction_state``.

    Raises CorruptionError for damaged bytes, and for key versions above 0, which are other types of records.
    """
    reader = WireReader(key, "transaction key")
    number = reader.int16()
    if number != _TRANSACTION:
        raise reader.error(f"version {number} is not {_TRANSACTION}")
    transactional_id = reader.string()
    reader.end()
    return transactional_id


def encode_transaction(value: TxnValue) -> bytes:
    """Return a value of ``__transaction_state``, in version 1. Raises ConfigError if a number is too large."""
    topics = value.by_topic()
    writer = WireWriter(flexible=True)
    writer.int16(_TRANSACTION_VERSION)
    writer.int64(value.producer_id)
    writer.int16(value.producer_epoch)
    writer.int32(value.timeout_ms)
    writer.int8(value.state)
    writer.length(-1 if value.partitions is None else len(topics))
    for topic, numbers in topics.items():
        writer.string(topic)
        writer.length(len(numbers))
        for number in numbers:
            writer.int32(number)
        writer.tagged({})
    writer.int64(value.last_update_ms)
    writer.int64(value.start_ms)
    tags = dict(value.unknown_tags)
    for tag, number, size in (
        (_PREVIOUS_ID_TAG, value.previous_producer_id, _ID_BYTES),
        (_NEXT_ID_TAG, value.next_producer_id, _ID_BYTES),
        (_CLIENT_VERSION_TAG, value.client_version, _CLIENT_VERSION_BYTES),
    ):
        if number != (0 if tag == _CLIENT_VERSION_TAG else NO_ID):
            tags[tag] = number.to_bytes(size, "big", signed=True)
    writer.tagged(tags)
    return writer.to_bytes()


def decode_transaction(value: bytes) -> TxnValue:
    """Decode a value of ``__transaction_state``. Raises CorruptionError for an unknown version or damaged bytes."""
    reader = WireReader(value, "transaction value")
    version = reader.int16()
    if version not in (0, _TRANSACTION_VERSION):
        raise reader.error(f"version {version} is neither 0 nor 1")
    reader.flexible = version == _TRANSACTION_VERSION
    producer_id, epoch, timeout_ms, number = reader.int64(), reader.int16(), reader.int32(), reader.int8()
    try:
        state = TxnState(number)
    except ValueError as error:
        raise CorruptionError(f"transaction value: {number} is no state", position=_STATE_POSITION) from error
    topics = reader.nullable_array(lambda: _topic(reader), item_bytes=_MIN_TOPIC_BYTES)
    last_update_ms, start_ms = reader.int64(), reader.int64()
    tags = reader.tagged()
    reader.end()

    def tagged(tag: int, size: int, default: int) -> int:
        data = tags.pop(tag, None)
        if data is not None and len(data) != size:
            raise reader.error(f"tag {tag} has {len(data)} bytes, not {size}")
        return default if data is None else int.from_bytes(data, "big", signed=True)

    return TxnValue(
        producer_id,
        epoch,
        timeout_ms,
        state,
        None if topics is None else tuple(tp for partitions in topics for tp in partitions),
        last_update_ms,
        start_ms,
        tagged(_PREVIOUS_ID_TAG, _ID_BYTES, NO_ID),
        tagged(_NEXT_ID_TAG, _ID_BYTES, NO_ID),
        tagged(_CLIENT_VERSION_TAG, _CLIENT_VERSION_BYTES, 0),
        tuple(tags.items()),
    )


def _topic(reader: WireReader) -> tuple[TopicPartition, ...]:
    """Read and return the partitions of one topic in the value of a transaction."""
    topic = reader.string()
    numbers = reader.array(reader.int32, item_bytes=_PARTITION_BYTES)
    reader.tagged()
    return tuple(TopicPartition(topic, number) for number in numbers)


MAX_TAGGED_FIELDS = 64
_MAX_VARINT_BYTES = 5
_SHORT, _INT, _LONG, _BYTE = (struct.Struct(f) for f in (">h", ">i", ">q", ">b"))

T = TypeVar("T")


class WireReader:
    """Reader of the fields of one key or value, in order. Each method reads one field, or raises CorruptionError.

    ``what``: name of the key or value in errors. ``flexible``: lengths are varints, and structs end with tags.
    """

    __slots__ = ("_data", "flexible", "position", "what")

    def __init__(self, data: bytes | memoryview, what: str, *, flexible: bool = False) -> None:
        self._data = memoryview(data)
        self.what = what
        self.position = 0
        self.flexible = flexible

    def error(self, message: str) -> CorruptionError:
        return CorruptionError(f"{self.what}: {message}", position=self.position)

    @property
    def left(self) -> int:
        return len(self._data) - self.position

    def _number(self, form: struct.Struct) -> int:
        if self.left < form.size:
            raise self.error(f"{self.left} bytes left where {form.size} are needed")
        (value,) = form.unpack_from(self._data, self.position)
        self.position += form.size
        return int(value)

    def int8(self) -> int:
        return self._number(_BYTE)

    def int16(self) -> int:
        return self._number(_SHORT)

    def int32(self) -> int:
        return self._number(_INT)

    def int64(self) -> int:
        return self._number(_LONG)

    def varint(self) -> int:
        """Read and return an unsigned varint of at most 32 bits."""
        value = 0
        for i in range(_MAX_VARINT_BYTES):
            byte = self._number(_BYTE) & 0xFF
            value |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                if value >= 2**32:
                    break
                return value
        raise self.error("a varint of more than 32 bits")

    def raw(self, count: int) -> bytes:
        if not 0 <= count <= self.left:
            raise self.error(f"{self.left} bytes left where {count} are needed")
        self.position += count
        return bytes(self._data[self.position - count : self.position])

    def _length(self, short: bool) -> int:
        if self.flexible:
            return self.varint() - 1
        return self.int16() if short else self.int32()

    def nullable_string(self) -> str | None:
        length = self._length(short=True)
        if length == -1:
            return None
        data = self.raw(length)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"a string is not UTF-8: {error.reason}") from error

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise self.error("a string is null")
        return text

    def nullable_array(self, item: Callable[[], T], *, item_bytes: int) -> tuple[T, ...] | None:
        """Return an array's elements, each read by ``item``; None for null. ``item_bytes``: least size of one
        element.
        """
        count = self._length(short=False)
        if count == -1:
            return None
        # an absurd count is refused before anything is allocated
        if count < 0 or count * item_bytes > self.left:
            raise self.error(f"{count} items cannot be in {self.left} bytes")
        return tuple(item() for _ in range(count))

    def array(self, item: Callable[[], T], *, item_bytes: int) -> tuple[T, ...]:
        items = self.nullable_array(item, item_bytes=item_bytes)
        if items is None:
            raise self.error("an array is null")
        return items

    def tagged(self) -> dict[int, bytes]:
        """Read the tagged fields of a struct, and return their bytes by tag; empty unless the format is flexible."""
        if not self.flexible:
            return {}
        count = self.varint()
        if count > MAX_TAGGED_FIELDS:
            raise self.error(f"{count} tagged fields exceed {MAX_TAGGED_FIELDS}")
        fields: dict[int, bytes] = {}
        for _ in range(count):
            tag, size = self.varint(), self.varint()
            if fields and tag <= next(reversed(fields)):
                raise self.error(f"tag {tag} does not rise")
            fields[tag] = self.raw(size)
        return fields

    def end(self) -> None:
        """Raise CorruptionError unless all bytes were read."""
        if self.left:
            raise self.error(f"{self.left} bytes too many")


class WireWriter:
    """Writer of the fields of one key or value. Raises ConfigError for a number that does not fit its field.

    ``flexible``: lengths are varints, and structs end with tags.
    """

    __slots__ = ("_parts", "flexible")

    def __init__(self, *, flexible: bool = False) -> None:
        self._parts: list[bytes] = []
        self.flexible = flexible

    def _number(self, form: struct.Struct, value: int) -> None:
        try:
            self._parts.append(form.pack(value))
        except struct.error as error:
            raise ConfigError(f"a number is too large: {value} does not fit {form.size} bytes") from error

    def int8(self, value: int) -> None:
        self._number(_BYTE, value)

    def int16(self, value: int) -> None:
        self._number(_SHORT, value)

    def int32(self, value: int) -> None:
        self._number(_INT, value)

    def int64(self, value: int) -> None:
        self._number(_LONG, value)

    def varint(self, value: int) -> None:
        while value >= 0x80:
            self._parts.append(bytes((value & 0x7F | 0x80,)))
            value >>= 7
        self._parts.append(bytes((value,)))

    def raw(self, data: bytes) -> None:
        self._parts.append(data)

    def length(self, count: int, *, short: bool = False) -> None:
        """Write the length ``count``; -1 stands for null. ``short``: the length of a string, otherwise of bytes or an
        array.
        """
        if self.flexible:
            self.varint(count + 1)
        elif short:
            self.int16(count)
        else:
            self.int32(count)

    def string(self, text: str | None) -> None:
        data = None if text is None else text.encode("utf-8")
        self.length(-1 if data is None else len(data), short=True)
        self.raw(data or b"")

    def tagged(self, fields: Mapping[int, bytes]) -> None:
        if not self.flexible:
            return
        self.varint(len(fields))
        for tag, data in sorted(fields.items()):
            self.varint(tag)
            self.varint(len(data))
            self.raw(data)

    def to_bytes(self) -> bytes:
        return b"".join(self._parts)
