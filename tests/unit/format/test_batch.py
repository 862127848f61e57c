"""Record batches: golden bytes, round trips, and every way in which a caller or a disk can get them wrong."""

from __future__ import annotations

import array
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.strategies import INT64_MAX, codecs, record_lists, timestamps
from tiered.errors import (
    CodecUnavailableError,
    ConfigError,
    CorruptionError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from tiered.format import batch as batch_module
from tiered.format.batch import (
    HEADER_BYTES,
    BatchHeader,
    BatchProducer,
    assign_offsets,
    control_type,
    decode_records,
    encode_batch,
    read_header,
    rebuild_batch,
    verify_batch,
)
from tiered.format.batch_scanner import walk_headers
from tiered.format.codecs import Codec
from tiered.format.control import ControlType, coordinator_epoch, marker
from tiered.format.kernels import Record, crc32c
from tiered.model import NewRecord, TimestampType

ONE = bytes.fromhex(
    "00000000000000000000003a0000000002716a618900000000000000000000000003e800000000000003e8"
    "ffffffffffffffffffffffffffff0000000110000000026b027600"
)
TWO = bytes.fromhex(
    "00000000000000050000004d0000000302f036530800000000000100000000000003e800000000000003ed"
    "000000000000000700020000000a0000000210000000026b02760024000a02010a68656c6c6f0402680278026e01"
)
COMMIT = bytes.fromhex(
    "00000000000000020000004200000000028dae94b400300000000000000000000007d000000000000007d0"
    "00000000000000070002ffffffff000000012000000008000000010c00000000000900"
)
EMPTY = bytes.fromhex(
    "000000000000000a000000310000000002aeecb0bf000000000004ffffffffffffffff00000000000005dc"
    "000000000000000700020000001400000000"
)


def resealed(batch: bytes | bytearray, **changes: tuple[str, int, int]) -> bytes:
    """``batch`` with fields packed over it (format, position, value) and a matching CRC."""
    out = bytearray(batch)
    for form, position, value in changes.values():
        struct.pack_into(form, out, position, value)
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


def batch_of(data: bytes, count: int, **fields: Any) -> bytes:
    """A batch around hand-made record bytes, with a right CRC."""
    body = (
        struct.pack(">hiqqqhii", fields.get("attributes", 0), max(count - 1, 0), 1000, 1000, -1, -1, -1, count) + data
    )
    return struct.pack(">qiibI", 0, HEADER_BYTES + len(data) - 12, 0, 2, crc32c(body)) + body


# --- golden bytes ---------------------------------------------------------------------------------------------


def test_two_records_with_a_producer_and_headers_are_the_golden_batch() -> None:
    records = [NewRecord(b"v", b"k", 1000), NewRecord(b"hello", None, 1005, [("h", b"x"), ("n", None)])]
    assert encode_batch(records, base_offset=5, leader_epoch=3, producer=BatchProducer(7, 2, 10)) == TWO
    assert list(decode_records(TWO)) == [
        Record(5, 1000, b"k", b"v", []),
        Record(6, 1005, None, b"hello", [("h", b"x"), ("n", None)]),
    ]
    header = verify_batch(TWO)
    assert header == BatchHeader(5, 0x4D, 3, 2, 0xF0365308, 0, 1, 1000, 1005, 7, 2, 10, 2)
    assert (header.size_bytes, header.last_offset, header.next_offset, header.last_sequence) == (89, 6, 7, 11)


def test_a_commit_marker_is_the_golden_batch() -> None:
    encoded = encode_batch(
        [marker(ControlType.COMMIT, 9, 2000)],
        base_offset=2,
        leader_epoch=0,
        producer=BatchProducer(7, 2, transactional=True, control=True),
    )
    assert encoded == COMMIT
    (record,) = decode_records(COMMIT)
    assert (control_type(record), coordinator_epoch(record)) == (ControlType.COMMIT, 9)
    header = verify_batch(COMMIT)
    assert (header.is_control, header.is_transactional, header.last_sequence) == (True, True, -1)


def test_an_emptied_batch_is_the_golden_batch() -> None:
    header = verify_batch(EMPTY)
    assert list(decode_records(EMPTY)) == []
    assert (header.base_offset, header.last_offset, header.records_count) == (10, 14, 0)
    assert rebuild_batch(header._replace(attributes=0x40 | 2, base_timestamp=99), []) == EMPTY


# --- round trips ----------------------------------------------------------------------------------------------


@given(records=record_lists, codec=codecs, base=st.integers(0, 2**62))
def test_what_is_encoded_decodes_to_the_same_records(records: list[NewRecord], codec: Codec, base: int) -> None:
    encoded = encode_batch(records, base_offset=base, codec=codec)
    header = verify_batch(encoded)
    assert (header.codec, header.records_count, header.base_offset) == (codec, len(records), base)
    assert header.max_timestamp == max(r.timestamp for r in records)
    assert header.base_timestamp == records[0].timestamp
    assert list(decode_records(encoded)) == [
        Record(base + i, r.timestamp, r.key, r.value, r.headers or []) for i, r in enumerate(records)
    ]


@given(records=record_lists, codec=codecs, at=timestamps.filter(lambda t: t >= 0))
def test_log_append_time_reports_one_time_and_keeps_those_sent(records: list[NewRecord], codec: Codec, at: int) -> None:
    log_time = TimestampType.LOG_APPEND_TIME
    encoded = encode_batch(records, codec=codec, timestamp_type=log_time, append_time_ms=at)
    header = verify_batch(encoded)
    assert (header.timestamp_type, header.max_timestamp) == (log_time, at)
    assert {r.timestamp for r in decode_records(encoded)} == {at}
    as_sent = bytearray(encoded)
    as_sent[22] &= ~0x08
    assert [r.timestamp for r in decode_records(as_sent)] == [r.timestamp for r in records]


@given(
    records=record_lists,
    codec=codecs,
    keep=st.sets(st.integers(0, 29)),
    horizon=st.none() | st.integers(0, INT64_MAX),
)
def test_a_compacted_batch_keeps_offsets_and_timestamps(
    records: list[NewRecord], codec: Codec, keep: set[int], horizon: int | None
) -> None:
    full = encode_batch(records, base_offset=100, leader_epoch=4, codec=codec, producer=BatchProducer(9, 1))
    header = verify_batch(full)
    kept = [r for r in decode_records(full) if r.offset - 100 in keep]
    small = rebuild_batch(header, kept, delete_horizon_ms=horizon)
    rebuilt = verify_batch(small)
    assert list(decode_records(small)) == kept
    assert (rebuilt.base_offset, rebuilt.last_offset) == (header.base_offset, header.last_offset)
    assert (rebuilt.leader_epoch, rebuilt.producer_id, rebuilt.records_count) == (4, 9, len(kept))
    assert rebuilt.delete_horizon_ms == (horizon if kept else None)
    assert rebuild_batch(rebuilt, kept) == small
    if kept:
        assert rebuilt.codec is codec
    else:
        assert len(small) == HEADER_BYTES


def test_batches_longer_than_the_varint_tables() -> None:
    n = 20_000
    records = [NewRecord(b"", None, i * 1_000) for i in range(n)]
    encoded = encode_batch(records)
    decoded = list(decode_records(encoded))
    assert [(r.offset, r.timestamp) for r in decoded] == [(i, i * 1_000) for i in range(n)]


@pytest.mark.parametrize("delta", [2**13 - 1, 2**13, 2**27 - 1, 2**27, 2**31, 2**55, 2**62, INT64_MAX])
def test_timestamp_deltas_of_every_width(delta: int) -> None:
    for first, second in ((0, delta), (delta, 0), (-1, delta), (delta, -1)):
        encoded = encode_batch([NewRecord(b"a", None, first), NewRecord(b"b", None, second)])
        assert [r.timestamp for r in decode_records(encoded)] == [first, second]
        assert verify_batch(encoded).max_timestamp == max(first, second)


def test_offsets_are_assigned_in_place_and_the_crc_still_holds() -> None:
    buffer = bytearray(TWO + ONE)
    assign_offsets(buffer, 2**40, 17)
    header = verify_batch(buffer[: len(TWO)])
    assert (header.base_offset, header.leader_epoch) == (2**40, 17)
    assert buffer[len(TWO) :] == ONE
    assign_offsets(memoryview(buffer)[len(TWO) :], 2, 3)
    assert read_header(buffer, len(TWO)).base_offset == 2


def test_a_lazy_decoder_yields_what_is_before_the_damage() -> None:
    good = list(decode_records(TWO))
    broken = bytearray(TWO)
    broken[-1] = 0x7E  # the null header value becomes a length
    records = decode_records(broken)
    assert next(records) == good[0]
    with pytest.raises(CorruptionError, match="header value length 63 exceeds"):
        next(records)


# --- walking --------------------------------------------------------------------------------------------------


def test_walk_finds_batches_by_length_and_stops_at_a_partial_tail() -> None:
    data = ONE + TWO + COMMIT
    positions = [(0, 0), (len(ONE), 5), (len(ONE) + len(TWO), 2)]
    assert [(p, h.base_offset) for p, h in walk_headers(data)] == positions
    assert [(p, h.base_offset) for p, h in walk_headers(memoryview(data), len(ONE))] == positions[1:]
    for cut in range(1, len(COMMIT)):
        assert [(p, h.base_offset) for p, h in walk_headers(data[:-cut])] == positions[:2]
    assert list(walk_headers(b"")) == []


def test_walk_refuses_zero_padding_but_not_a_few_bytes_of_it() -> None:
    assert len(list(walk_headers(ONE + bytes(17)))) == 1
    with pytest.raises(CorruptionError, match=r"no batch starts here \(offset 0, length 0, magic 0\)") as caught:
        list(walk_headers(ONE + bytes(18)))
    assert caught.value.position == len(ONE)


def test_walk_does_not_look_at_the_crc() -> None:
    broken = bytearray(ONE + TWO)
    broken[60] ^= 1
    assert [h.records_count for _, h in walk_headers(broken[: len(ONE)])] == [0]


# --- refused headers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "position", "value"),
    [
        *((">i", 8, 13), (">i", 8, -1), (">i", 8, 48), (">b", 16, 3), (">b", 16, -1), (">q", 0, -1)),
        *((">q", 0, INT64_MAX), (">q", 0, INT64_MAX - 1), (">i", 23, -1), (">i", 57, -5)),
    ],
)
def test_impossible_headers_are_refused(form: str, position: int, value: int) -> None:
    data = b"padding" + resealed(TWO, change=(form, position, value))
    with pytest.raises(CorruptionError, match=rf"impossible batch header: .*\b{value}\b|.* {value}") as caught:
        read_header(data, 7)
    assert caught.value.position == 7
    with pytest.raises(CorruptionError):
        verify_batch(data[7:])


def test_a_header_is_believed_up_to_the_limit_only() -> None:
    assert read_header(TWO, limit=89).size_bytes == 89
    with pytest.raises(CorruptionError, match="89 bytes exceeds the 88 bytes"):
        read_header(TWO, limit=88)
    huge = resealed(TWO, length=(">i", 8, 2**31 - 1))
    assert read_header(huge).size_bytes == 2**31 + 11
    with pytest.raises(CorruptionError, match="exceeds the 1048576 bytes"):
        read_header(huge, limit=2**20)


@pytest.mark.parametrize("size", [0, 1, 16, 17, 60])
def test_a_cut_header_is_refused(size: int) -> None:
    with pytest.raises(CorruptionError, match="the batch header is cut off"):
        read_header(TWO[:size])


def test_a_batch_must_fill_its_buffer() -> None:
    for data in (TWO[:-1], TWO + b"x"):
        with pytest.raises(CorruptionError, match="the batch is cut off"):
            verify_batch(data)
        with pytest.raises(CorruptionError, match="the batch is cut off"):
            decode_records(data)


def test_a_crc_mismatch_names_the_offset_and_both_values() -> None:
    broken = bytearray(TWO)
    broken[-3] ^= 4
    with pytest.raises(CorruptionError, match="CRC mismatch at offset 5: stored 0xf0365308, computed") as caught:
        verify_batch(broken)
    assert caught.value.offset == 5


def test_more_records_than_offsets_are_refused() -> None:
    with pytest.raises(CorruptionError, match="has 3 records, but spans 2 offsets"):
        verify_batch(resealed(TWO, count=(">i", 57, 3)))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_named(codec: int) -> None:
    data = resealed(TWO, attributes=(">h", 21, codec))
    with pytest.raises(CodecUnavailableError, match=f"codec {codec}"):
        decode_records(data)
    with pytest.raises(CodecUnavailableError):
        _ = read_header(data).codec


# --- refused records ------------------------------------------------------------------------------------------


# --- buffers --------------------------------------------------------------------------------------------------

BYTES_OF_ALL_KINDS = (
    bytearray(b"abc"),
    memoryview(b"abc"),
    memoryview(b"xcxbxa")[::-2],
    memoryview(b"abc").cast("c"),
    np.frombuffer(b"abc", np.uint8),
    array.array("b", b"abc"),
)
NOT_BYTES = (
    np.arange(3),
    memoryview(np.arange(3)),
    np.zeros(3, np.float32),
    np.zeros((2, 2), np.uint8),
    array.array("i", (1, 2, 3)),
    memoryview(b"abcdefgh").cast("I"),
    np.zeros(3, bool),
)


@pytest.mark.parametrize("data", BYTES_OF_ALL_KINDS, ids=lambda b: type(b).__name__)
@pytest.mark.parametrize("pad", [0, 9000], ids=["short", "long"])
def test_buffers_of_single_bytes_are_taken_as_their_bytes(data: Any, pad: int) -> None:
    more = [NewRecord(bytes(pad), b"k", 1000)]
    batch = encode_batch([NewRecord(data, data, 1000, [("h", data)]), *more])
    assert batch == encode_batch([NewRecord(b"abc", b"abc", 1000, [("h", b"abc")]), *more])


@pytest.mark.parametrize("data", NOT_BYTES, ids=lambda b: f"{type(b).__name__} {memoryview(b).format}")
def test_buffers_of_anything_else_are_refused_with_a_hint(data: Any) -> None:
    good = NewRecord(b"v", b"k", 1000)
    odd = {
        "value": NewRecord(data, b"k", 1000),
        "key": NewRecord(b"v", data, 1000),
        "value of header 'h'": NewRecord(b"v", None, 1000, [("h", data)]),
    }
    for what, record in odd.items():
        with pytest.raises(InvalidRecordError, match=f"record 1: {what} is .* not bytes") as caught:
            encode_batch([good, record])
        assert caught.value.index == 1
        assert "tobytes()" in caught.value.hint


def test_a_batch_that_nobody_could_decompress_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "MAX_DECOMPRESSED_BYTES", 1000)
    records = [NewRecord(bytes(1000), None, 1000)]
    with pytest.raises(RecordTooLargeError, match="decompress at most 1000"):
        encode_batch(records, codec=Codec.ZSTD)
    assert len(encode_batch(records)) > 1000


def test_a_hostile_record_count_allocates_nothing() -> None:
    batch = batch_of(bytes.fromhex("10000000026b027600"), 2**31 - 1)
    with pytest.raises(CorruptionError, match="2147483647 records cannot be in 9 bytes"):
        next(decode_records(batch))


def test_timestamps_wrap_as_javas_long() -> None:
    data = bytes.fromhex("10000200026b027600")  # delta 1
    batch = resealed(batch_of(data, 1), base=(">q", 27, INT64_MAX))
    assert [r.timestamp for r in decode_records(batch)] == [-(2**63)]


def test_the_largest_timestamp_is_that_of_the_records_left() -> None:
    full = encode_batch([NewRecord(b"", None, t) for t in (5, 9, 7)])
    left = [r for r in decode_records(full) if r.timestamp != 9]
    assert verify_batch(rebuild_batch(read_header(full), left)).max_timestamp == 7
    assert verify_batch(rebuild_batch(read_header(full), [])).max_timestamp == 9


def test_decompression_of_a_batch_is_bounded() -> None:
    batch = encode_batch([NewRecord(bytes(100_000))], codec=Codec.ZSTD)
    assert len(next(decode_records(batch)).value or b"") == 100_000
    with pytest.raises(CorruptionError, match="larger than 99999 bytes"):
        decode_records(batch, max_bytes=99_999)


# --- refused callers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "error", "message"),
    [
        (NewRecord("text"), InvalidRecordError, "record 1: value is str"),  # type: ignore[arg-type]  # wrong on purpose
        (NewRecord(b"", 5), InvalidRecordError, "record 1: key is int"),  # type: ignore[arg-type]  # wrong on purpose
        (NewRecord(b"", None, -2), InvalidTimestampError, "record 1: -2 is not a timestamp"),
        (NewRecord(b"", None, 2**63), InvalidTimestampError, "record 1: 9223372036854775808"),
        (NewRecord(b"", None, 1.5), InvalidTimestampError, "record 1: 1.5"),  # type: ignore[arg-type]
        (NewRecord(b"", None, "now"), InvalidTimestampError, "record 1: 'now'"),  # type: ignore[arg-type]
        (NewRecord(b"", None, 0, [("h", "text")]), InvalidRecordError, "header 'h' is str"),  # type: ignore[list-item]
        (NewRecord(b"", None, 0, [(b"h", b"")]), InvalidRecordError, "name of header b'h' is bytes"),  # type: ignore[list-item]
        (NewRecord(b"", None, 0, ["h"]), InvalidRecordError, "header 'h' is not a"),  # type: ignore[list-item]
        (NewRecord(b"", None, 0, [("\ud800", b"")]), InvalidRecordError, "not valid Unicode"),
        (b"only a value", InvalidRecordError, "record 1 is bytes"),
    ],
)
def test_a_bad_record_is_named_by_its_index(record: Any, error: type[InvalidRecordError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        encode_batch([NewRecord(b"fine", None, 0), record, NewRecord(b"fine", None, 0)])
    assert caught.value.index == 1
    assert type(caught.value) is error


def test_calls_that_make_no_batch() -> None:
    with pytest.raises(InvalidRecordError, match="at least one record"):
        encode_batch([])
    with pytest.raises(InvalidTimestampError, match="which LogAppendTime needs"):
        encode_batch([NewRecord(b"")], timestamp_type=TimestampType.LOG_APPEND_TIME)
    with pytest.raises(InvalidTimestampError, match="record 0: -2 is not a timestamp"):
        encode_batch([NewRecord(b"", None, -2)])
    with pytest.raises(ConfigError, match="gzip has no level 10"):
        encode_batch([NewRecord(b"")], codec=Codec.GZIP, level=10)
    with pytest.raises(InvalidRecordError, match="cannot be encoded"):
        encode_batch([NewRecord(b"")], producer=BatchProducer(epoch=2**15))


def test_a_batch_beyond_the_formats_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "MAX_BATCH_BYTES", 1_000)
    assert len(encode_batch([NewRecord(bytes(1_000 - 61 - 9))])) == 1_000
    with pytest.raises(RecordTooLargeError, match="the batch has 1001 bytes"):
        encode_batch([NewRecord(bytes(1_001 - 61 - 9))])


# --- control records ------------------------------------------------------------------------------------------


def test_control_types_are_read_tolerantly() -> None:
    def record(key: bytes | None, value: bytes | None = None) -> Record:
        return Record(7, 0, key, value, [])

    assert control_type(record(b"\0\0\0\0")) is ControlType.ABORT
    assert control_type(record(b"\0\5\0\1and more")) is ControlType.COMMIT
    assert control_type(record(b"\0\0\1\0")) is ControlType.UNKNOWN
    for key in (None, b"", b"\0\0\0", b"\xff\xff\0\0"):
        with pytest.raises(CorruptionError) as caught:
            control_type(record(key))
        assert caught.value.offset == 7
    assert coordinator_epoch(record(None, b"\0\1\0\0\0\x09tail")) == 9
    for value in (None, b"\0\0\0\0\0", b"\xff\xff\0\0\0\0"):
        with pytest.raises(CorruptionError):
            coordinator_epoch(record(None, value))


def test_sequences_wrap() -> None:
    header = read_header(resealed(TWO, sequence=(">i", 53, 2**31 - 1)))
    assert header.last_sequence == 0
