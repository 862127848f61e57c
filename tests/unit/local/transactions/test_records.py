"""Keys and values of the two internal topics: versions, tags, hostile bytes."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiered.errors import ConfigError, CorruptionError
from tiered.format.control import CONTROL_RECORDS
from tiered.format.coordinator_records import (
    GROUP_RECORDS,
    MEMBER_FIELDS,
    TRANSACTION_RECORDS,
    TxnState,
    TxnValue,
    UnknownRecordError,
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
    encode_transaction_key,
    record_as_json,
)
from tiered.format.kafka_struct import Field, FieldType, Layout, fields_of, read_struct
from tiered.format.kernels import Record
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
SIMPLE = {
    "i8": st.integers(-(2**7), 2**7 - 1),
    "i16": int16,
    "i32": int32,
    "i64": int64,
    "u16": st.integers(0, 2**16 - 1),
    "str": text,
    "bytes": st.binary(max_size=9),
    "uuid": st.uuids(),
}
LAYOUTS = [
    layout
    for layouts in (GROUP_RECORDS, TRANSACTION_RECORDS, CONTROL_RECORDS, MEMBER_FIELDS)
    for layout in layouts.values()
]
OFFSET, GROUP = GROUP_RECORDS[1], GROUP_RECORDS[2]


def struct_of(fields: tuple[Field, ...], version: int) -> st.SearchStrategy[dict[str, Any]]:
    plain = {field.name: kind_of(field.kind, version) for field in fields if field.is_plain(version)}
    tagged = {field.name: kind_of(field.kind, version) for field in fields if field.tag >= 0}
    return st.fixed_dictionaries(plain, optional=tagged)


def kind_of(kind: FieldType, version: int) -> st.SearchStrategy[Any]:
    if kind.item is not None:
        found: st.SearchStrategy[Any] = st.lists(kind_of(kind.item, version), max_size=2)
    else:
        found = struct_of(kind.fields, version) if kind.name == "{" else SIMPLE[kind.name]
    return st.none() | found if kind.nullable else found


def read(data: bytes, layout: Layout) -> dict[str, Any]:
    reader, version = layout.open(data, layout.title)
    found = read_struct(reader, layout.value, version)
    reader.end()
    return found


def shown(key: bytes, value: bytes | None = None) -> tuple[Any, Any]:
    return record_as_json(Record(7, 0, key, value, ()), GROUP_RECORDS)


@given(txn_values)
def test_transaction_values_round_trip(value: TxnValue) -> None:
    assert decode_transaction(encode_transaction(value)) == value


@given(text.filter(bool))
def test_keys_round_trip(name: str) -> None:
    assert decode_transaction_key(encode_transaction_key(name)) == name


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.title)
@settings(max_examples=40)  # of each layout, in each of its versions
@given(st.data())
def test_every_value_of_the_table_round_trips(layout: Layout, data: st.DataObject) -> None:
    for version in range(layout.highest + 1):
        values = data.draw(struct_of(fields_of(layout.value), version))
        if version < layout.flexible:
            values = {field.name: values[field.name] for field in fields_of(layout.value) if field.is_plain(version)}
        assert read(layout.encode(values, version), layout) == values


def test_older_versions_leave_out_what_they_do_not_know() -> None:
    offset = {
        "offset": 5,
        "leaderEpoch": 3,
        "metadata": "m",
        "commitTimestamp": 1000,
        "expireTimestamp": 2000,
        "topicId": UUID(int=9),
    }
    known = ("offset", "metadata", "commitTimestamp")
    extra = ((), ("expireTimestamp",), (), ("leaderEpoch",), ("leaderEpoch", "topicId"))
    for version, more in enumerate(extra):
        assert read(OFFSET.encode(offset, version), OFFSET) == {name: offset[name] for name in (*known, *more)}
    member = {
        "memberId": "m",
        "groupInstanceId": "i",
        "clientId": "c",
        "clientHost": "h",
        "rebalanceTimeout": 1,
        "sessionTimeout": 2,
        "subscription": b"s",
        "assignment": b"a",
    }
    group = {
        "protocolType": "consumer",
        "generation": 1,
        "protocol": "range",
        "leader": "m",
        "currentStateTimestamp": 7,
        "members": [member],
    }
    seen = [read(GROUP.encode(group, version), GROUP) for version in range(5)]
    assert [
        (
            v.get("currentStateTimestamp"),
            v["members"][0].get("groupInstanceId"),
            v["members"][0].get("rebalanceTimeout"),
        )
        for v in seen
    ] == [
        (None, None, None),
        (None, None, 1),
        (7, None, 1),
        (7, "i", 1),
        (7, "i", 1),
    ]
    value = TxnValue(1, 2, 3, TxnState.ONGOING, (TopicPartition("t", 0),), 4, 5, client_version=2)
    assert decode_transaction(encode_transaction(value, version=0)).client_version == 0


def test_tags_that_are_not_known_are_skipped() -> None:
    writer = WireWriter(flexible=True)
    writer.int16(4)
    writer.int64(5)
    writer.int32(-1)
    writer.string("")
    writer.int64(6)
    writer.tagged({3: b"later", 200: b""})
    assert read(writer.to_bytes(), OFFSET) == {"offset": 5, "leaderEpoch": -1, "metadata": "", "commitTimestamp": 6}


def test_records_of_newer_group_protocols_are_told_apart() -> None:
    with pytest.raises(UnknownRecordError, match="unknown record type 99 at offset 7"):
        shown(b"\x00\x63rest")


def test_bytes_that_are_not_what_they_seem() -> None:
    good = encode_transaction(TxnValue(1, 0, 1, TxnState.EMPTY))
    for data, what in (
        (b"\x00\x02" + good[2:], "version 2"),
        (b"\xff\xff" + good[2:], "version -1"),
        (good[:16] + b"\x09" + good[17:], "9 is no state"),
        (good[:17] + b"\xff\xff\xff\xff\x0f" + good[18:], "items cannot be in"),
        (good[:17] + b"\xff\xff\xff\xff\x7f" + good[18:], "more than 32 bits"),
        (good[:17] + b"\x80\x80\x80\x80\x80" + good[18:], "more than 32 bits"),
    ):
        with pytest.raises(CorruptionError, match=what):
            decode_transaction(data)
    for data, what in (
        (b"\x00\x01\x00\x01x", "version 1 is not 0"),
        (b"\x00\x00\xff\xff", "a string is null"),
        (b"\x00\x00\xff\xfe", "-2 are needed"),
        (b"\x00\x00\x00\x02\xff\xfe", "not UTF-8"),
        (b"\x00\x00\x00\x01xy", "1 bytes too many"),
    ):
        with pytest.raises(CorruptionError, match=what):
            decode_transaction_key(data)
    for data, what in ((b"\xff\xff", "type -1"), (b"\x00", "1 bytes left"), (b"\x00\x02\x00\x00x", "too many")):
        with pytest.raises(CorruptionError, match=what):
            shown(data)
    for key in (b"\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00", b"\x00\x02\x00\x00"):
        with pytest.raises(UnknownRecordError, match="unknown version 5 of record type"):
            shown(key, b"\x00\x05")
    empty = GROUP.encode(
        {
            "protocolType": "",
            "generation": 0,
            "protocol": None,
            "leader": None,
            "currentStateTimestamp": -1,
            "members": [],
        },
        3,
    )
    with pytest.raises(CorruptionError, match="2147483647 items"):
        read(empty[:-4] + b"\x7f\xff\xff\xff", GROUP)
    with pytest.raises(CorruptionError, match="an array is null"):
        read(empty[:-4] + b"\xff\xff\xff\xff", GROUP)


def test_a_topic_id_has_sixteen_bytes() -> None:
    offset = {"offset": 5, "leaderEpoch": -1, "metadata": "", "commitTimestamp": 6, "topicId": UUID(int=9)}
    good = OFFSET.encode(offset, 4)
    with pytest.raises(CorruptionError, match="topicId: 15 bytes left where 16 are needed"):
        read(good[:-17] + b"\x0f" + good[-16:-1], OFFSET)


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
        encode_transaction(TxnValue(1, 2**15, 1, TxnState.EMPTY))
    with pytest.raises(ConfigError, match="version 0 or 1"):
        encode_transaction(TxnValue(1, 0, 1, TxnState.EMPTY), version=2)


@given(st.binary(max_size=60))
def test_noise_is_refused_or_read_but_never_anything_else(data: bytes) -> None:
    decoders = (decode_transaction_key, decode_transaction, shown)
    for decode in decoders:
        for version in (b"", b"\x00\x00", b"\x00\x01", b"\x00\x04"):
            with contextlib.suppress(CorruptionError):
                decode(version + data)  # type: ignore[operator]  # each takes the bytes
    for layout in LAYOUTS:
        for version in range(layout.highest + 1):
            with contextlib.suppress(CorruptionError):
                read(version.to_bytes(2, "big") + data, layout)
