"""Batches as Arrow columns: the same records as the plain decoder gives, and the same refusals."""

from __future__ import annotations

import struct
import sys
import tracemalloc
import zlib
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.arrow.drawing import TP, new_records
from tests.unit.format.twins import compiled, each_twin  # noqa: F401 - the fixture
from tiered.arrow import COLUMNS, ArrowDecoder, RecordBounds, arrow_schema, arrow_table
from tiered.errors import ConfigError, CorruptionError
from tiered.format import batch as batch_module
from tiered.format.batch import BatchProducer, decode_records, encode_batch, read_header
from tiered.format.codecs import Codec, decompress
from tiered.format.control import ControlType, marker
from tiered.model import NewRecord, TimestampType

some_batches = st.lists(st.tuples(new_records, st.sampled_from(list(Codec))), min_size=1, max_size=4)


def encoded(drawn: Iterable[tuple[list[NewRecord], Codec]], gap: int = 0) -> list[bytes]:
    parts, base = [], 0
    for records, codec in drawn:
        parts.append(encode_batch(records, base_offset=base, codec=codec))
        base += len(records) + gap
    return parts


def decode(parts: Iterable[bytes], **options: Any) -> list[dict[str, Any]]:
    pieces = ArrowDecoder(TP, **options).record_batches((read_header(part), part) for part in parts)
    return [row for piece in pieces for row in piece.to_pylist()]


def expected(parts: Iterable[bytes]) -> list[dict[str, Any]]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "offset": record.offset,
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for part in parts
        for record in decode_records(part)
    ]


@given(some_batches)
def test_columns_equal_the_plain_decoder(drawn: list[tuple[list[NewRecord], Codec]]) -> None:
    parts = encoded(drawn, gap=2)
    assert decode(parts, columns=("key", "value", "offset", "headers")) == expected(parts)
    pieces = ArrowDecoder(TP, columns=("timestamp",), batch_bytes=64).record_batches(
        (read_header(part), part) for part in parts
    )
    assert [ms for piece in pieces for ms in piece.column(0).cast(pa.int64()).to_pylist()] == [
        record.timestamp for part in parts for record in decode_records(part)
    ]


def test_schema_and_constant_columns() -> None:
    part = encode_batch([NewRecord(b"v", b"k", 1000), NewRecord(None, None, 2000)], base_offset=7)
    pieces = list(ArrowDecoder(TP).record_batches([(read_header(part), part)]))
    table = arrow_table(pieces)
    assert table.schema == arrow_schema()
    assert table.schema.names == list(COLUMNS)
    assert table.column("topic").to_pylist() == ["flights", "flights"]
    assert table.column("partition").to_pylist() == [3, 3]
    assert table.column("timestampType").to_pylist() == [0, 0]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [1000, 2000]
    table.validate(full=True)
    assert arrow_table([], ("offset",)).num_rows == 0
    assert arrow_schema(("timestamp",), timestamp_unit="us").field(0).type == pa.timestamp("us", tz="UTC")
    with pytest.raises(ConfigError, match="unknown column salary"):
        arrow_schema(("salary",))


def test_microseconds_for_spark_stay_in_range() -> None:
    part = encode_batch([NewRecord(b"", None, 1234), NewRecord(b"", None, 2**62)])
    (piece,) = ArrowDecoder(TP, columns=("timestamp",), timestamp_unit="us").record_batches([(read_header(part), part)])
    assert piece.column(0).cast(pa.int64()).to_pylist() == [1_234_000, (2**63 - 1) // 1000 * 1000]


def test_log_append_time() -> None:
    part = encode_batch(
        [NewRecord(b"v", None, 5), NewRecord(b"v", None, 9)],
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        append_time_ms=7777,
    )
    (piece,) = ArrowDecoder(TP, columns=("timestamp", "timestampType")).record_batches([(read_header(part), part)])
    assert piece.column(0).cast(pa.int64()).to_pylist() == [7777, 7777]
    assert piece.column(1).to_pylist() == [1, 1]


def test_ranges_and_control_batches_are_left_out() -> None:
    parts = encoded([([NewRecord(b"%d" % at, None, at) for at in range(10)], Codec.NONE)] * 3)
    control = encode_batch(
        [marker(ControlType.COMMIT, 0, 5)], base_offset=30, producer=BatchProducer(1, transactional=True, control=True)
    )
    found = decode([*parts, control], columns=("offset",), bounds=RecordBounds(8, 22))
    assert [row["offset"] for row in found] == list(range(8, 22))
    timed = decode(parts, columns=("offset",), bounds=RecordBounds(since_ms=3, until_ms=5))
    assert [row["offset"] for row in timed] == [3, 4, 13, 14, 23, 24]


def test_offsets_alone_decompress_nothing_unless_compaction_took_some(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(*args: Any, **options: Any) -> bytes:
        calls.append(1)
        return decompress(*args, **options)

    for module in (batch_module, compiled):
        if module is not None:
            monkeypatch.setattr(module, "decompress", counted)
    parts = encoded([([NewRecord(b"v" * 50, None, at) for at in range(5)], Codec.ZSTD)] * 2)
    compacted = bytearray(parts[1])
    struct.pack_into(">i", compacted, 23, 9)  # the last five of ten records are gone
    assert [row["offset"] for row in decode(parts, columns=("offset", "topic"))] == list(range(10))
    assert calls == []
    found = decode([parts[0], bytes(compacted), parts[0]], columns=("offset",))
    assert [row["offset"] for row in found] == [*range(10), *range(5)]
    assert calls == [1]


def test_one_batch_larger_than_a_record_batch_is_split() -> None:
    part = encode_batch([NewRecord(b"v" * 1000, b"%d" % at, at) for at in range(100)])
    pieces = list(ArrowDecoder(TP, batch_bytes=10_000).record_batches([(read_header(part), part)]))
    assert 5 <= len(pieces) <= 10
    assert max(piece.nbytes for piece in pieces) < 25_000
    assert [key for piece in pieces for key in piece.column("key").to_pylist()] == [b"%d" % at for at in range(100)]


def test_small_batches_are_joined() -> None:
    parts = encoded([([NewRecord(b"v", None, 1)], Codec.NONE)] * 50)
    pieces = list(ArrowDecoder(TP).record_batches((read_header(part), part) for part in parts))
    assert [piece.num_rows for piece in pieces] == [50]


def test_no_columns_are_still_rows() -> None:
    part = encode_batch([NewRecord(b"v", None, 1)] * 4)
    assert [piece.num_rows for piece in ArrowDecoder(TP, columns=()).record_batches([(read_header(part), part)])] == [4]


def test_old_formats_record_by_record() -> None:
    body = struct.pack(">bbqi", 1, 0, 5000, 1) + b"k" + struct.pack(">i", 2) + b"vv"
    message = struct.pack(">qiI", 42, len(body) + 4, zlib.crc32(body)) + body
    new = encode_batch([NewRecord(b"new", None, 6000)], base_offset=43)
    rows = decode([message, new], columns=("offset", "key", "value", "timestampType", "headers"))
    assert rows == [
        {"offset": 42, "key": b"k", "value": b"vv", "timestampType": 0, "headers": None},
        {"offset": 43, "key": None, "value": b"new", "timestampType": 0, "headers": None},
    ]
    assert decode([message], bounds=RecordBounds(43)) == []


def test_a_wrong_count_is_refused() -> None:
    part = bytearray(encode_batch([NewRecord(b"v", None, 1)] * 3))
    for count in (2, 4, 2**31 - 1):
        struct.pack_into(">i", part, 57, count)
        with pytest.raises(CorruptionError):
            decode([bytes(part)])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_hostile_count_allocates_nothing(codec: Codec) -> None:
    part = bytearray(encode_batch([NewRecord(b"v", None, 1)], codec=codec))
    struct.pack_into(">i", part, 23, 2**31 - 2)
    struct.pack_into(">i", part, 57, 2**31 - 1)
    for columns in (("offset",), COLUMNS):
        decoder = ArrowDecoder(TP, columns=columns)
        tracemalloc.start()
        try:
            with pytest.raises(CorruptionError, match="2147483647 records cannot be in"):
                list(decoder.add(read_header(part), part))
            assert tracemalloc.get_traced_memory()[1] < 500_000
        finally:
            tracemalloc.stop()


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="pip install 'pyarrow>="):
        arrow_schema()
