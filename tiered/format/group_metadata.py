"""Records of ``__consumer_offsets``: committed offsets and classic consumer groups.

::

    key version 0, 1  offset   group string | topic string | partition i32
    key version 2     group    group string
    value of an offset, version 0 to 4 (4 is flexible)
           offset i64 | leader epoch i32 (3+) | metadata string | commit time ms i64 | expire time ms i64 (1 only)
           tag 0, version 4: topic id, 16 bytes
    value of a group, version 0 to 4 (4 is flexible)
           protocol type string | generation i32 | protocol string? | leader string? | state time ms i64 (2+)
           members: member id string | instance id string? (3+) | client id string | client host string
                    rebalance timeout i32 (1+) | session timeout i32 | subscription bytes | assignment bytes

A null value deletes. Keys of other versions (the newer group protocols) are handed back as they are. Tags that are not
known are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tiered.errors import ConfigError
from tiered.format.wire import WireReader, WireWriter

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
MAX_VALUE_VERSION = 4
_FLEXIBLE_FROM = 4
_TOPIC_ID_TAG = 0
_MEMBER_BYTES = 12
_UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """Whose position, and where."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A classic consumer group."""

    group: str


@dataclass(frozen=True, slots=True)
class OtherKey:
    """A record of a newer group protocol: its type number and its bytes."""

    version: int
    data: bytes


@dataclass(frozen=True, slots=True)
class OffsetValue:
    """A committed position: the next offset to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1
    expire_ms: int = -1
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """``subscription`` and ``assignment`` are the client protocol's own bytes."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupValue:
    """A generation of a group."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_ms: int = -1
    members: tuple[Member, ...] = ()


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    """The key of an offset (version 1) or of a group (version 2)."""
    writer = WireWriter()
    if isinstance(key, GroupKey):
        writer.int16(GROUP_KEY_VERSION)
        writer.string(key.group)
    else:
        writer.int16(OFFSET_KEY_VERSION)
        writer.string(key.group)
        writer.string(key.topic)
        writer.int32(key.partition)
    return writer.to_bytes()


def decode_key(data: bytes) -> OffsetKey | GroupKey | OtherKey:
    """Raises CorruptionError for a key cut short, or with bytes left over."""
    reader = WireReader(data, "group key")
    version = reader.int16()
    key: OffsetKey | GroupKey
    if version in (0, OFFSET_KEY_VERSION):
        key = OffsetKey(reader.string(), reader.string(), reader.int32())
    elif version == GROUP_KEY_VERSION:
        key = GroupKey(reader.string())
    elif version < 0:
        raise reader.error(f"version {version}")
    else:
        return OtherKey(version, bytes(data))
    reader.end()
    return key


def encode_offset(value: OffsetValue, *, version: int = 3) -> bytes:
    """Version 1 alone keeps ``expire_ms``, 3 and 4 the leader epoch, 4 the topic id."""
    writer = _begin(version)
    writer.int64(value.offset)
    if version >= 3:
        writer.int32(value.leader_epoch)
    writer.string(value.metadata)
    writer.int64(value.commit_ms)
    if version == 1:
        writer.int64(value.expire_ms)
    writer.tagged({} if value.topic_id is None else {_TOPIC_ID_TAG: value.topic_id.bytes})
    return writer.to_bytes()


def decode_offset(data: bytes) -> OffsetValue:
    """Raises CorruptionError."""
    reader, version = _open(data, "offset value")
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata, commit_ms = reader.string(), reader.int64()
    expire_ms = reader.int64() if version == 1 else -1
    topic_id = reader.tagged().get(_TOPIC_ID_TAG)
    if topic_id is not None and len(topic_id) != _UUID_BYTES:
        raise reader.error(f"a topic id of {len(topic_id)} bytes")
    reader.end()
    return OffsetValue(
        offset, leader_epoch, metadata, commit_ms, expire_ms, None if topic_id is None else UUID(bytes=topic_id)
    )


def encode_group(value: GroupValue, *, version: int = 3) -> bytes:
    """What a version does not know is left out."""
    writer = _begin(version)
    writer.string(value.protocol_type)
    writer.int32(value.generation)
    writer.string(value.protocol)
    writer.string(value.leader)
    if version >= 2:
        writer.int64(value.state_ms)
    writer.length(len(value.members))
    for member in value.members:
        writer.string(member.member_id)
        if version >= 3:
            writer.string(member.instance_id)
        writer.string(member.client_id)
        writer.string(member.client_host)
        if version >= 1:
            writer.int32(member.rebalance_timeout_ms)
        writer.int32(member.session_timeout_ms)
        writer.blob(member.subscription)
        writer.blob(member.assignment)
        writer.tagged({})
    writer.tagged({})
    return writer.to_bytes()


def decode_group(data: bytes) -> GroupValue:
    """Raises CorruptionError."""
    reader, version = _open(data, "group value")
    protocol_type, generation = reader.string(), reader.int32()
    protocol, leader = reader.nullable_string(), reader.nullable_string()
    state_ms = reader.int64() if version >= 2 else -1
    members = reader.array(lambda: _read_member(reader, version), item_bytes=_MEMBER_BYTES)
    reader.tagged()
    reader.end()
    return GroupValue(protocol_type, generation, protocol, leader, state_ms, members)


def _read_member(reader: WireReader, version: int) -> Member:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    subscription, assignment = reader.blob(), reader.blob()
    reader.tagged()
    return Member(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


def _begin(version: int) -> WireWriter:
    if not 0 <= version <= MAX_VALUE_VERSION:
        raise ConfigError(f"value version {version} is not in 0..{MAX_VALUE_VERSION}")
    writer = WireWriter(flexible=version >= _FLEXIBLE_FROM)
    writer.int16(version)
    return writer


def _open(data: bytes, what: str) -> tuple[WireReader, int]:
    reader = WireReader(data, what)
    version = reader.int16()
    if not 0 <= version <= MAX_VALUE_VERSION:
        raise reader.error(f"version {version} is not in 0..{MAX_VALUE_VERSION}")
    reader.flexible = version >= _FLEXIBLE_FROM
    return reader, version
