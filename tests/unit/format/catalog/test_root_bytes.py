"""The root object: round trips, sizes, and hostile bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.catalog.building import KEY, TOPIC_ID, make_root, make_rows
from tiered.errors import ConfigError, CorruptionError
from tiered.format.framed_object import MAX_RAW_BYTES
from tiered.format.kernels import crc32c
from tiered.format.keys import root_key
from tiered.format.root import decode_root, encode_root
from tiered.format.rows import Rows
from tiered.plan.invariants import check_root

TOP = 2**63 - 1


@pytest.mark.parametrize("count", [0, 1, 1151, 1152, 1153, 10_000])
def test_round_trip(count: int) -> None:
    root = make_root(make_rows(count))
    root = root if count else dataclasses.replace(root, added=root.rows.tally)
    data = encode_root(root)
    back = decode_root(data, key=KEY)
    assert back == root
    assert encode_root(back) == data
    assert check_root(back) == []
    assert len(data) < 1_500 + 60 * count


def test_row_sum_is_blake2b_of_the_canonical_bytes() -> None:
    row = make_rows(1).row(0)
    packed = struct.pack("<8q6iq", *row)
    assert make_rows(1).canonical_bytes() == packed
    assert make_rows(1).sum == int.from_bytes(hashlib.blake2b(packed, digest_size=16).digest(), "little")
    two = make_rows(2)
    assert two.sum == two.slice(0, 1).appended(two.slice(1)).sum == (two.slice(0, 1).sum + two.slice(1).sum) % 2**128


def test_offsets_and_times_at_the_edges() -> None:
    first = make_rows(1).row(0)._replace(min_ts=-(2**63), max_ts=-5)
    rows = Rows.from_rows([first._replace(base=TOP - at, next=TOP - at + 10, id_lo=at) for at in (30, 20, 10)])
    root = make_root(rows)
    assert decode_root(encode_root(root), key=KEY) == root
    assert check_root(root) == []
    assert [rows.find_offset(o) for o in (TOP - 31, TOP - 30, TOP - 21, TOP - 20, TOP - 1, TOP, 2**70)] == [
        None, 0, 0, 1, 2, None, None,
    ]  # fmt: skip
    assert [rows.first_with_timestamp(t) for t in (-(2**70), -6, -5, -4, 2**70)] == [0, 0, 0, len(rows), len(rows)]


def test_lookup_by_time_finds_the_first_row_that_reaches_it_also_out_of_order() -> None:
    times = [(5, 10), (7, 7), (-20, -10), (10, 30), (30, 30), (1, 2)]
    rows = Rows.from_rows([r._replace(min_ts=a, max_ts=b) for r, (a, b) in zip(make_rows(6), times, strict=True)])
    assert [rows.first_with_timestamp(t) for t in (-50, 10, 11, 30, 31)] == [0, 0, 3, 3, len(rows)]
    assert make_rows(0).first_with_timestamp(0) == 0
    assert make_rows(0).find_offset(0) is None


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(-(2**63), TOP)), max_size=20),
    st.integers(0, 20_000),
    st.integers(-(2**63), TOP),
)
def test_lookups_agree_with_a_plain_scan(shape: list[tuple[int, int]], offset: int, timestamp: int) -> None:
    rows, base = [], 0
    for length, ts in shape:
        rows.append(make_rows(1).row(0)._replace(base=base, next=base + length, min_ts=ts, max_ts=ts))
        base += length
    table = Rows.from_rows(rows)
    assert table.find_offset(offset) == next((i for i, r in enumerate(rows) if r.base <= offset < r.next), None)
    assert table.first_with_timestamp(timestamp) == next(
        (i for i, r in enumerate(rows) if r.max_ts >= timestamp), len(rows)
    )
    assert list(table) == rows


def test_columns_are_read_only_and_values_must_fit() -> None:
    rows = make_rows(2)
    with pytest.raises(ValueError, match="read-only"):
        rows.base[0] = 5
    with pytest.raises(OverflowError):
        Rows.from_rows([make_rows(1).row(0)._replace(base=2**63)])
    with pytest.raises(OverflowError, match="idx_len"):
        encode_root(make_root(Rows.from_rows([make_rows(1).row(0)._replace(idx_len=2**31)])))


# -- hostile bytes -------------------------------------------------------------------------------------------------


def resealed(data: bytes) -> bytes:
    return data[:-4] + struct.pack("<I", crc32c(data[:-4]))


def with_header(change: Callable[[dict[str, Any]], None], body: bytes | None = None) -> bytes:
    data = encode_root(make_root(make_rows(4)))
    length = struct.unpack_from("<I", data, 8)[0]
    header = json.loads(data[12 : 12 + length])
    change(header)
    text = json.dumps(header).encode()
    body = data[12 + length : -4] if body is None else body
    return resealed(data[:8] + struct.pack("<I", len(text)) + text + body + b"0000")


def test_every_truncation_and_every_flipped_bit_is_found() -> None:
    data = encode_root(make_root(make_rows(3)))
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_root(data[:length], key=KEY)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptionError) as error:
            decode_root(bytes(flipped), key=KEY)
        assert error.value.path_or_key == KEY
        assert KEY in str(error.value)
        assert error.value.position >= 0


def _set(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        at: Any = header
        for parent in parents:
            at = at[int(parent)] if isinstance(at, list) else at[parent]
        if isinstance(at, list):
            at[int(last)] = value
        else:
            at[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("raw_len", 2**62),
        _set("raw_len", MAX_RAW_BYTES),
        _set("raw_len", -1),
        _set("raw_len", "1"),
        _set("raw_len", True),
        _set("codec", "gzip"),
        _set("tables", []),
        _set("tables", [["tail", 4, []]] * 17),
        _set("tables.0", 5),
        _set("tables.0.1", 5),
        _set("tables.0.1", 3),
        _set("tables.0.1", -1),
        _set("tables.0.1", 2**60),
        _set("tables.0.2.0.1", "<u8"),
        _set("tables.0.2.0.1", "O"),
        _set("tables.0.2.0.0", "next"),
        _set("tables.0.0", "leaf"),
        _set("tables.1.0", "tail"),
        _set("version", 0),
        _set("version", 1.5),
        _set("version", 2**63),
        _set("topic_id", "xyz"),
        _set("topic_id", "0" * 32),
        _set("partition", 4),
        _set("partition", -1),
        _set("state", "haunted"),
        _set("commit", None),
        _set("commit.id", 5),
        _set("commit.id", "x" * 5000),
        _set("roles", {}),
        _set("roles.w.epoch", 2**31),
        _set("sealed", [["w", 1, "c"]]),
        _set("sealed", [["w", 1, "c", 2]] * 129),
        _set("lineage", {"0": 0}),
        _set("txns", [["q", -1]]),
        _set("start_offset", -1),
        _set("next_offset", None),
        _set("added.sum", "F" * 32),
        _set("added.segments", "4"),
    ],
)
def test_a_header_that_lies_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    decode_root(with_header(lambda header: None), key=KEY)
    with pytest.raises(CorruptionError) as error:
        decode_root(with_header(change), key=KEY)
    assert KEY in str(error.value)


def test_bombs_are_refused_before_anything_is_allocated() -> None:
    bomb = zstandard.ZstdCompressor(level=3).compress(bytes(64 * 1024 * 1024))
    with pytest.raises(CorruptionError, match="does not hold"):
        decode_root(with_header(lambda header: None, bomb), key=KEY)
    unsized = zstandard.ZstdCompressor(level=3, write_content_size=False).compress(bytes(64 * 1024 * 1024))
    with pytest.raises(CorruptionError, match="does not hold"):
        decode_root(with_header(lambda header: None, unsized), key=KEY)
    with pytest.raises(CorruptionError):
        decode_root(with_header(lambda header: None, b"not zstd"), key=KEY)
    data = bytearray(encode_root(make_root(make_rows(1))))
    struct.pack_into("<I", data, 8, 2**32 - 1)
    with pytest.raises(CorruptionError, match="header length"):
        decode_root(resealed(bytes(data)), key=KEY)


def test_a_root_beyond_the_limit_is_refused_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_root(make_root(make_rows(3)))
    monkeypatch.setattr("tiered.format.framed_object.MAX_OBJECT_BYTES", len(data))
    assert decode_root(data, key=KEY).version == 9
    monkeypatch.setattr("tiered.format.framed_object.MAX_OBJECT_BYTES", len(data) - 1)
    with pytest.raises(CorruptionError, match=f"{len(data)} bytes are more than the limit") as error:
        decode_root(data, key=KEY)
    assert (error.value.path_or_key, error.value.position) == (KEY, 0)


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"a": NaN}', b"\xff\xfe", b"[]", b"", b'{"version": 1' + b"0" * 9000 + b"}"]
)
def test_json_that_is_not_a_header_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_root(resealed(b"OLC1" + struct.pack("<HHI", 1, 0, len(text)) + text + b"0000"), key=KEY)


def test_the_root_of_another_partition_is_refused() -> None:
    data = encode_root(make_root(make_rows(1)))
    with pytest.raises(CorruptionError, match="copied over this one"):
        decode_root(data, key=root_key(TOPIC_ID, 4))
    with pytest.raises(CorruptionError, match="copied over this one"):
        decode_root(data, key=root_key(UUID(int=5), 3))


def test_a_higher_format_is_refused_in_one_sentence() -> None:
    data = bytearray(encode_root(make_root(make_rows(1))))
    for number in (2, 7):
        struct.pack_into("<H", data, 4, number)
        with pytest.raises(ConfigError, match=f"newer release: it has format {number}, this one reads 1") as error:
            decode_root(resealed(bytes(data)), key=KEY)
        assert error.value.hint == "upgrade tieredlog; nothing was changed"
    struct.pack_into("<HH", data, 4, 0, 0)
    with pytest.raises(CorruptionError, match="format 0"):
        decode_root(resealed(bytes(data)), key=KEY)
    struct.pack_into("<HH", data, 4, 1, 1)
    with pytest.raises(CorruptionError, match="flags"):
        decode_root(resealed(bytes(data)), key=KEY)


def test_fields_that_are_not_known_are_written_again() -> None:
    root = decode_root(with_header(_set("shards", [[1, "x"]])), key=KEY)
    assert dict(root.unknown) == {"shards": [[1, "x"]]}
    again = decode_root(encode_root(dataclasses.replace(root, version=root.version + 1)), key=KEY)
    assert again.unknown == root.unknown
    assert decode_root(encode_root(make_root(make_rows(1))), key=KEY).unknown == {}
