"""Message formats v0 and v1, written here by hand: we only read them. ``tests/golden`` has the answers of Kafka."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.legacy import message, wrapper
from tiered.errors import CorruptionError
from tiered.format.batch import decode_records, read_header, verify_batch
from tiered.format.batch_scanner import walk_headers
from tiered.format.codecs import Codec
from tiered.format.kernels import Record
from tiered.model import TimestampType

V1 = bytes.fromhex("000000000000000000000018e4e321bc010000000000000003e8000000016b0000000176")
V0 = bytes.fromhex("0000000000000000000000101fecd70a0000000000016b0000000176")


def test_golden_messages() -> None:
    assert message(1, 0, b"k", b"v", 1000) == V1
    assert message(0, 0, b"k", b"v") == V0
    assert list(decode_records(V1)) == [Record(0, 1000, b"k", b"v", [])]
    assert list(decode_records(V0)) == [Record(0, -1, b"k", b"v", [])]
    for data, magic in ((V0, 0), (V1, 1)):
        header = verify_batch(data)
        assert (header.magic, header.records_count, header.size_bytes) == (magic, 1, len(data))
        assert (header.leader_epoch, header.producer_id, header.base_sequence) == (-1, -1, -1)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@given(
    values=st.lists(st.tuples(st.none() | st.binary(max_size=50), st.integers(0, 2**40)), min_size=1, max_size=20),
    last=st.integers(100, 2**60),
)
def test_v1_wrappers_hold_relative_offsets(codec: Codec, values: list[tuple[bytes | None, int]], last: int) -> None:
    inner = b"".join(message(1, i, None, v, t) for i, (v, t) in enumerate(values))
    data = wrapper(1, last, inner, codec, max(t for _, t in values))
    base = last - len(values) + 1
    assert list(decode_records(data)) == [Record(base + i, t, None, v, []) for i, (v, t) in enumerate(values)]
    assert verify_batch(data).base_offset == base


def test_bits_that_mean_something_only_in_v2_are_dropped() -> None:
    header = read_header(message(1, 0, b"k", b"v", 1, attributes=0x70))
    assert (header.is_control, header.is_transactional, header.has_delete_horizon) == (False, False, False)
    assert read_header(message(0, 0, b"k", b"v", attributes=0x08)).timestamp_type is TimestampType.CREATE_TIME


def test_mixed_formats_are_walked() -> None:
    data = V0 + V1 + wrapper(1, 9, message(1, 0, None, b"x"), Codec.GZIP) + V0[:-1]
    assert [h.magic for _, h in walk_headers(data)] == [0, 1, 1]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (wrapper(0, 1, b"", Codec.GZIP), "without inner messages"),
        (wrapper(1, 1, V1[:-1], Codec.GZIP), "without inner messages"),
        (wrapper(1, 1, message(1, 7, None, b"a"), Codec.GZIP), "wrapper offset 1 is below"),
        (wrapper(0, 1, message(0, -3, None, b"a"), Codec.GZIP), "begin below zero"),
        (wrapper(1, 5, wrapper(1, 0, V1, Codec.GZIP), Codec.GZIP), "compressed message inside"),
        (message(1, 0, None, None, attributes=1), "without a value"),
        (message(1, 0, None, b"not gzip", attributes=1), "gzip data is damaged"),
        (message(1, 0, None, b"x", attributes=4), "zstd is not allowed in a v1 message"),
        (message(1, 0, None, b"x", attributes=6), "unknown compression codec 6"),
    ],
)
def test_damaged_wrappers_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(CorruptionError, match=text):
        list(decode_records(data))
    with pytest.raises(CorruptionError, match=text):
        verify_batch(data)


def test_lengths_inside_a_message_are_checked() -> None:
    for position, value in ((26, 2**31 - 1), (26, -2), (31, 2)):
        data = bytearray(V1)
        struct.pack_into(">i", data, position, value)
        with pytest.raises(CorruptionError):
            list(decode_records(data))


def test_sizes_below_the_minimum_of_the_format_are_refused() -> None:
    data = bytearray(V1)
    struct.pack_into(">i", data, 8, 21)
    with pytest.raises(CorruptionError, match="below the minimum 22 of v1"):
        read_header(data)


def test_every_flipped_byte_under_the_crc_is_noticed() -> None:
    data = bytearray(wrapper(1, 9, V1, Codec.SNAPPY, 1000))
    for i in range(12, len(data)):
        data[i] ^= 0x01
        with pytest.raises(CorruptionError):
            verify_batch(data)
        data[i] ^= 0x01


def test_inner_bombs_are_bounded() -> None:
    data = wrapper(1, 0, message(1, 0, None, bytes(1_000_000)), Codec.GZIP)
    with pytest.raises(CorruptionError, match="larger than 999999 bytes"):
        list(decode_records(data, max_bytes=999_999))


def test_the_crcs_of_the_messages_inside_are_checked() -> None:
    data = wrapper(1, 1, V1 + V1[:-1] + b"x", Codec.GZIP)
    assert [r.value for r in decode_records(data)] == [b"v", b"x"]
    with pytest.raises(CorruptionError, match="CRC mismatch in the message"):
        verify_batch(data)
