"""Damaged bytes end in ``CorruptionError`` or a defined value: no other exception, no hang, no huge buffer."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.strategies import codecs, record_lists
from tiered.errors import CorruptionError
from tiered.format.batch import (
    HEADER_BYTES,
    assign_offsets,
    decode_records,
    encode_batch,
    read_header,
    verify_batch,
)
from tiered.format.batch_scanner import walk_headers
from tiered.format.codecs import Codec
from tiered.format.kernels import crc32c
from tiered.model import NewRecord

LIMIT = 1_000_000

RECORDS = [
    NewRecord(b"value" * 20, b"key", 1_700_000_000_000, [("name", b"header"), ("null", None)]),
    NewRecord(None, b"tombstone", 1_700_000_000_005),
    NewRecord(b"", None, 1_700_000_100_000, [("", b"")]),
    NewRecord(b"x" * 300, b"", 1_699_999_000_000),
]


def read_everything(data: bytes | bytearray) -> None:
    """All that a reader does with bytes from a disk; raises nothing but ``CorruptionError``."""
    for position, header in walk_headers(data):
        assert header.size_bytes > 0
        batch = memoryview(data)[position : position + header.size_bytes]
        try:
            count = sum(1 for _ in decode_records(batch, max_bytes=LIMIT))
        except CorruptionError:
            count = -1
        try:
            verify_batch(batch)
        except CorruptionError:
            continue
        # What passes the CRC also decodes.
        assert count == header.records_count


def survives(data: bytes | bytearray) -> None:
    with contextlib.suppress(CorruptionError):
        read_everything(data)


@pytest.mark.parametrize("codec", list(Codec))
def test_every_flipped_byte_is_noticed_or_defined(codec: Codec) -> None:
    data = bytearray(encode_batch(RECORDS, base_offset=7, leader_epoch=2, codec=codec))
    good = list(decode_records(data))
    for i in range(len(data)):
        for mask in (0x01, 0x10, 0x80, 0xFF):
            data[i] ^= mask
            if 8 <= i < 12 or i >= 16:
                with pytest.raises(CorruptionError):
                    verify_batch(data)
            else:  # base offset and leader epoch are outside the CRC: another offset, or a refused one
                try:
                    header = verify_batch(data)
                except CorruptionError:
                    assert i == 0
                else:
                    base = header.base_offset
                    assert [r.offset - base for r in decode_records(data)] == [r.offset - 7 for r in good]
            survives(data)
            data[i] ^= mask


@pytest.mark.parametrize("codec", list(Codec))
def test_every_truncation_is_noticed(codec: Codec) -> None:
    data = encode_batch(RECORDS, codec=codec)
    for size in range(len(data)):
        assert list(walk_headers(data[:size])) == []
        with pytest.raises(CorruptionError):
            verify_batch(data[:size])
        survives(data + data[:size])
        # A length that was shortened with the bytes: the CRC, or the records, tell.
        if size >= HEADER_BYTES:
            shorter = bytearray(data[:size])
            struct.pack_into(">i", shorter, 8, size - 12)
            with pytest.raises(CorruptionError):
                verify_batch(shorter)
            with pytest.raises(CorruptionError):
                list(decode_records(shorter, max_bytes=LIMIT))


@given(records=record_lists, codec=codecs, data=st.data())
def test_damage_under_a_right_crc_never_escapes(records: list[NewRecord], codec: Codec, data: st.DataObject) -> None:
    batch = bytearray(encode_batch(records, codec=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(21, len(batch) - 1))
        batch[position] = data.draw(st.integers(0, 255))
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    with contextlib.suppress(CorruptionError):
        verify_batch(batch)
        for record in decode_records(batch, max_bytes=LIMIT):
            assert -(2**63) <= record.timestamp < 2**63
            assert record.key is None or type(record.key) is bytes


@given(garbage=st.binary(max_size=300), magic=st.integers(0, 2), length=st.integers(0, 300))
def test_garbage_never_escapes(garbage: bytes, magic: int, length: int) -> None:
    survives(garbage)
    head = bytearray(garbage.ljust(HEADER_BYTES, b"\0"))
    head[16] = magic
    struct.pack_into(">i", head, 8, length)
    assign_offsets(head, 5, 1)
    survives(head)
    try:
        header = read_header(head, limit=len(head))
        list(decode_records(head[: header.size_bytes], max_bytes=LIMIT))
    except CorruptionError:
        return


@pytest.mark.parametrize("prefix", ["", "fe7f", "fe7f00", "fe7f0000", "fe7f000000", "fe7f00000000", "fe7f0000000000"])
def test_an_endless_varint_is_refused_at_once(prefix: str) -> None:
    records = bytes.fromhex(prefix) + b"\xff" * 2_000_000
    batch = bytearray(encode_batch([NewRecord(records)]))
    del batch[HEADER_BYTES : -len(records) - 1]
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    with pytest.raises(CorruptionError):
        list(decode_records(batch))


def test_hostile_counts_and_lengths_allocate_nothing() -> None:
    data = bytearray(encode_batch(RECORDS))
    tracemalloc.start()
    try:
        for position in range(HEADER_BYTES, len(data) - 5):
            kept = data[position : position + 5]
            data[position : position + 5] = b"\xfe\xff\xff\xff\x0f"  # 2^31-1 as a varint
            with pytest.raises(CorruptionError):
                verify_batch(data)
            with contextlib.suppress(CorruptionError):
                list(decode_records(data))
            data[position : position + 5] = kept
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
