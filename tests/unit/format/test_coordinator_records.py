"""Keys and values of the two internal topics: versions, tags, hostile bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import ConfigError, CorruptionError
from tiered.format.coordinator_records import (
    MAX_TAGGED_FIELDS,
    TxnState,
    TxnValue,
    WireReader,
    decode_group_key,
    decode_position,
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
    encode_transaction_key,
    group_protocol,
)
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


@given(txn_values)
def test_transaction_values_round_trip(value: TxnValue) -> None:
    assert decode_transaction(encode_transaction(value)) == value


@given(text.filter(bool))
def test_keys_round_trip(name: str) -> None:
    assert decode_transaction_key(encode_transaction_key(name)) == name


def test_a_transaction_of_version_0_is_read() -> None:
    data = bytes.fromhex(
        "0000" "0000000000000001" "0002" "00000003" "01"
        "00000001" "000174" "00000002" "00000000" "00000004"
        "0000000000000005" "0000000000000006"
    )  # fmt: skip
    both = (TopicPartition("t", 0), TopicPartition("t", 4))
    assert decode_transaction(data) == TxnValue(1, 2, 3, TxnState.ONGOING, both, 5, 6)


@pytest.mark.parametrize(
    ("key", "value", "group", "protocol"),
    [
        ("0002000167", "00030008636f6e73756d657200000001", "g", "consumer"),
        ("0002000167", "000409636f6e73756d657200000001", "g", "consumer"),
        ("0002000167", None, "g", ""),
        ("0003000167", "000000000001", "g", "consumer"),
        ("000b000167", "000000000001", "g", "share"),
        ("0011000167", "000000000001", "g", "streams"),
        ("0011000167", None, "g", ""),
        ("000500016700016d", "0000", "", None),
        ("0063ff", "0000", "", None),
    ],
    ids=["classic", "flexible", "deleted", "consumer", "share", "streams", "gone", "member", "unknown"],
)
def test_groups_of_every_protocol(key: str, value: str | None, group: str, protocol: str | None) -> None:
    number, name, tp = decode_group_key(bytes.fromhex(key))
    assert (name, tp, group_protocol(number, None if value is None else bytes.fromhex(value))) == (
        group,
        None,
        protocol,
    )


GOOD = encode_transaction(TxnValue(1, 0, 1, TxnState.EMPTY))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x00\x02" + GOOD[2:], "version 2"),
        (b"\xff\xff" + GOOD[2:], "version -1"),
        (GOOD[:16] + b"\x09" + GOOD[17:], "9 is no state"),
        (GOOD[:17] + b"\xff\xff\xff\xff\x0f" + GOOD[18:], "items cannot be in"),
        (GOOD[:17] + b"\xff\xff\xff\xff\x7f" + GOOD[18:], "more than 32 bits"),
        (GOOD[:17] + b"\x80\x80\x80\x80\x80" + GOOD[18:], "more than 32 bits"),
        (GOOD[:-1] + b"\x01\x02\x01\x00", "tag 2 has 1 bytes, not 2"),
    ],
)
def test_hostile_transactions(data: bytes, what: str) -> None:
    with pytest.raises(CorruptionError, match=what):
        decode_transaction(data)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x00\x01\x00\x01x", "version 1 is not 0"),
        (b"\x00\x00\xff\xff", "a string is null"),
        (b"\x00\x00\xff\xfe", "-2 are needed"),
        (b"\x00\x00\x00\x02\xff\xfe", "not UTF-8"),
        (b"\x00\x00\x00\x01xy", "1 bytes too many"),
        (b"\x00", "1 bytes left"),
    ],
)
def test_hostile_keys(data: bytes, what: str) -> None:
    with pytest.raises(CorruptionError, match=what):
        decode_transaction_key(data)


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


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: encode_transaction(TxnValue(1, 2**15, 1, TxnState.EMPTY)), "32768 does not fit 2 bytes"),
        (lambda: encode_transaction_key(""), "is empty"),
        (lambda: encode_transaction_key("\ud800"), "is not valid Unicode"),
        (lambda: encode_transaction_key("x" * 32768), "32768 does not fit 2 bytes"),
    ],
    ids=["epoch", "empty", "surrogate", "long"],
)
def test_values_that_do_not_fit(call: object, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        call()  # type: ignore[operator]  # each is a function


@given(st.binary(max_size=60))
def test_noise_is_refused_or_read_but_never_anything_else(data: bytes) -> None:
    for decode in (decode_transaction_key, decode_transaction, decode_group_key, decode_position):
        for version in (b"", b"\x00\x00", b"\x00\x01", b"\x00\x02", b"\x00\x04"):
            with contextlib.suppress(CorruptionError):
                decode(version + data)
