"""Keys and values of the two internal topics: versions, tags, hostile bytes."""

from __future__ import annotations

import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import ConfigError, CorruptionError
from tiered.format import group_metadata as groups
from tiered.format import transaction_log as txns
from tiered.format.group_metadata import GroupKey, GroupValue, Member, OffsetKey, OffsetValue, OtherKey
from tiered.format.transaction_log import TxnState, TxnValue
from tiered.format.wire import MAX_TAGGED_FIELDS, WireReader, WireWriter
from tiered.model import TopicPartition

int16, int32, int64 = (st.integers(-(2**n), 2**n - 1) for n in (15, 31, 63))
text = st.text(max_size=12)
partitions = st.sets(st.tuples(text, int32), max_size=6).map(lambda s: tuple(TopicPartition(*tp) for tp in sorted(s)))
txn_values = st.builds(
    TxnValue,
    int64,
    int16,
    int32,
    st.sampled_from(TxnState),
    st.none() | partitions,
    int64,
    int64,
    int64,
    int64,
    int16,
    st.just(()) | st.just(((7, b"later"), (9, b""))),
)
members = st.builds(
    Member, text, st.none() | text, text, text, int32, int32, st.binary(max_size=9), st.binary(max_size=9)
)
group_values = st.builds(
    GroupValue, text, int32, st.none() | text, st.none() | text, int64, st.lists(members, max_size=3).map(tuple)
)


@given(txn_values)
def test_transaction_values_round_trip(value: TxnValue) -> None:
    assert txns.decode_value(txns.encode_value(value)) == value


@given(text.filter(bool))
def test_keys_round_trip(name: str) -> None:
    assert txns.decode_key(txns.encode_key(name)) == name
    assert groups.decode_key(groups.encode_key(GroupKey(name))) == GroupKey(name)
    key = OffsetKey(name, name, 5)
    assert groups.decode_key(groups.encode_key(key)) == key


@given(group_values, st.sampled_from((3, 4)))
def test_group_values_round_trip(value: GroupValue, version: int) -> None:
    assert groups.decode_group(groups.encode_group(value, version=version)) == value


@given(st.builds(OffsetValue, int64, int32, text, int64), st.sampled_from((3, 4)))
def test_offset_values_round_trip(value: OffsetValue, version: int) -> None:
    assert groups.decode_offset(groups.encode_offset(value, version=version)) == value


def test_older_versions_leave_out_what_they_do_not_know() -> None:
    offset = OffsetValue(5, 3, "m", 1000, 2000, UUID(int=9))
    decoded = [groups.decode_offset(groups.encode_offset(offset, version=v)) for v in range(5)]
    assert decoded == [
        OffsetValue(5, -1, "m", 1000),
        OffsetValue(5, -1, "m", 1000, 2000),
        OffsetValue(5, -1, "m", 1000),
        OffsetValue(5, 3, "m", 1000),
        OffsetValue(5, 3, "m", 1000, topic_id=UUID(int=9)),
    ]
    member = Member("m", "i", "c", "h", 1, 2, b"s", b"a")
    group = GroupValue("consumer", 1, "range", "m", 7, (member,))
    seen = [groups.decode_group(groups.encode_group(group, version=v)) for v in range(5)]
    assert [(v.state_ms, v.members[0].instance_id, v.members[0].rebalance_timeout_ms) for v in seen] == [
        (-1, None, -1),
        (-1, None, 1),
        (7, None, 1),
        (7, "i", 1),
        (7, "i", 1),
    ]
    value = TxnValue(1, 2, 3, TxnState.ONGOING, (TopicPartition("t", 0),), 4, 5, client_version=2)
    assert txns.decode_value(txns.encode_value(value, version=0)).client_version == 0


def test_tags_that_are_not_known_are_skipped() -> None:
    writer = WireWriter(flexible=True)
    writer.int16(4)
    writer.int64(5)
    writer.int32(-1)
    writer.string("")
    writer.int64(6)
    writer.tagged({3: b"later", 200: b""})
    assert groups.decode_offset(writer.to_bytes()) == OffsetValue(5, commit_ms=6)


def test_records_of_newer_group_protocols_are_handed_back() -> None:
    assert groups.decode_key(b"\x00\x05rest") == OtherKey(5, b"\x00\x05rest")


def test_bytes_that_are_not_what_they_seem() -> None:
    good = txns.encode_value(TxnValue(1, 0, 1, TxnState.EMPTY))
    for data, what in (
        (b"\x00\x02" + good[2:], "version 2"),
        (b"\xff\xff" + good[2:], "version -1"),
        (good[:16] + b"\x09" + good[17:], "9 is no state"),
        (good[:17] + b"\xff\xff\xff\xff\x0f" + good[18:], "items cannot be in"),
        (good[:17] + b"\xff\xff\xff\xff\x7f" + good[18:], "more than 32 bits"),
        (good[:17] + b"\x80\x80\x80\x80\x80" + good[18:], "more than 32 bits"),
    ):
        with pytest.raises(CorruptionError, match=what):
            txns.decode_value(data)
    for data, what in (
        (b"\x00\x01\x00\x01x", "version 1 is not 0"),
        (b"\x00\x00\xff\xff", "a string is null"),
        (b"\x00\x00\xff\xfe", "-2 are needed"),
        (b"\x00\x00\x00\x02\xff\xfe", "not UTF-8"),
        (b"\x00\x00\x00\x01xy", "1 bytes too many"),
    ):
        with pytest.raises(CorruptionError, match=what):
            txns.decode_key(data)
    for data, what in ((b"\xff\xff", "version -1"), (b"\x00", "1 bytes left"), (b"\x00\x02\x00\x00x", "too many")):
        with pytest.raises(CorruptionError, match=what):
            groups.decode_key(data)
    for decode in (groups.decode_offset, groups.decode_group):
        with pytest.raises(CorruptionError, match="version 5"):
            decode(b"\x00\x05")
    with pytest.raises(CorruptionError, match="2147483647 items"):
        groups.decode_group(groups.encode_group(GroupValue("", 0, None, None))[:-4] + b"\x7f\xff\xff\xff")
    with pytest.raises(CorruptionError, match="an array is null"):
        groups.decode_group(groups.encode_group(GroupValue("", 0, None, None))[:-4] + b"\xff\xff\xff\xff")


def test_a_topic_id_has_sixteen_bytes() -> None:
    good = groups.encode_offset(OffsetValue(5, topic_id=UUID(int=9)), version=4)
    with pytest.raises(CorruptionError, match="topic id of 15 bytes"):
        groups.decode_offset(good[:-17] + b"\x0f" + good[-16:-1])


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x41", f"65 tagged fields exceed {MAX_TAGGED_FIELDS}"),
        (b"\x02\x01\x00\x01\x00", "tag 1 does not rise"),
        (b"\x01\x01\x05ab", "2 bytes left where 5 are needed"),
    ],
)
def test_hostile_tags(data: bytes, what: str) -> None:
    with pytest.raises(CorruptionError, match=what):
        WireReader(data, "it", flexible=True).tagged()


def test_null_bytes() -> None:
    assert WireReader(b"\xff\xff\xff\xff", "it").nullable_bytes() is None
    with pytest.raises(CorruptionError, match="bytes are null"):
        WireReader(b"\x00", "it", flexible=True).blob()


def test_values_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="32768 does not fit 2 bytes"):
        txns.encode_value(TxnValue(1, 2**15, 1, TxnState.EMPTY))
    with pytest.raises(ConfigError, match="version 0 or 1"):
        txns.encode_value(TxnValue(1, 0, 1, TxnState.EMPTY), version=2)
    with pytest.raises(ConfigError, match=r"not in 0\.\.4"):
        groups.encode_offset(OffsetValue(1), version=5)


@given(st.binary(max_size=60))
def test_noise_is_refused_or_read_but_never_anything_else(data: bytes) -> None:
    decoders = (txns.decode_key, txns.decode_value, groups.decode_key, groups.decode_offset, groups.decode_group)
    for decode in decoders:
        for version in (b"", b"\x00\x00", b"\x00\x01", b"\x00\x04"):
            with contextlib.suppress(CorruptionError):
                decode(version + data)
