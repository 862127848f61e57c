"""The compiled way from batches to Arrow beside the decoder of single records: the same rows, the same refusals."""

from __future__ import annotations

import gc
import random
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.arrow.drawing import TP, new_records
from tests.unit.format.twins import at_work, both, compiled, needs_both, outcome
from tiered.arrow import COLUMNS, ArrowDecoder, RecordBounds
from tiered.arrow.decoder import BufferArrays
from tiered.format import pure_kernels
from tiered.format.batch import encode_batch, read_header
from tiered.format.codecs import Codec
from tiered.model import NewRecord, TimestampType, TopicPartition

pytestmark = needs_both

COUNT_AT, LAST_DELTA_AT, HEADER_BYTES = 57, 23, 61


@st.composite
def some_batches(draw: st.DrawFn) -> list[bytes]:
    found, base = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 4))):
        records = draw(new_records)
        stamped = draw(st.booleans())
        found.append(
            encode_batch(
                records,
                base_offset=base,
                codec=draw(st.sampled_from(list(Codec))),
                timestamp_type=TimestampType(int(stamped)),
                append_time_ms=draw(st.integers(0, 2**62)) if stamped else -1,
            )
        )
        base += len(records) + draw(st.integers(0, 3))
    return found


def rows(parts: Sequence[bytes], options: dict[str, Any]) -> object:
    """Schema and rows of all record batches."""
    pieces = list(ArrowDecoder(TP, **options).record_batches((read_header(part), part) for part in parts))
    for piece in pieces:
        piece.validate(full=True)
    return [piece.schema for piece in pieces[:1]], [row for piece in pieces for row in piece.to_pylist()]


bounds = st.fixed_dictionaries(
    {
        "columns": st.permutations(COLUMNS).flatmap(lambda names: st.integers(1, 8).map(lambda n: tuple(names[:n]))),
        "timestamp_unit": st.sampled_from(("ms", "us")),
        "bounds": st.builds(
            RecordBounds,
            start=st.integers(0, 12),
            end=st.none() | st.integers(0, 30),
            since_ms=st.none() | st.integers(-1, 2**41),
            until_ms=st.none() | st.integers(-1, 2**41),
        ),
        "batch_bytes": st.sampled_from((1, 300, 1 << 20)),
    }
)


@given(parts=some_batches(), options=bounds)
def test_rows_are_those_of_the_pure_twin(parts: list[bytes], options: dict[str, Any]) -> None:
    ours, oracle = both(lambda: rows(parts, options))
    assert ours == oracle


@given(records=new_records, seed=st.integers(0, 2**32), options=bounds)
@settings(max_examples=400)
def test_damaged_batches_are_read_or_refused_as_by_the_pure_twin(
    records: list[NewRecord], seed: int, options: dict[str, Any]
) -> None:
    chance = random.Random(seed)
    part = bytearray(encode_batch(records, base_offset=5))
    for _ in range(chance.randint(1, 3)):
        at = chance.choice((chance.randrange(HEADER_BYTES, len(part)), chance.randrange(LAST_DELTA_AT, len(part))))
        part[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    ours, oracle = both(lambda: rows([bytes(part)], options))
    assert ours == oracle


@given(name=st.binary(min_size=1, max_size=6), value=st.none() | st.binary(max_size=3))
@settings(max_examples=400)
def test_names_of_headers_that_are_no_text_are_shown_alike(name: bytes, value: bytes | None) -> None:
    part = encode_batch([NewRecord(b"v", b"k", 1, [("\x01" * len(name), value)]), NewRecord(b"w", None, 2)])
    named = part.replace(b"\x01" * len(name), name, 1) if part.count(b"\x01" * len(name)) == 1 else part
    ours, oracle = both(lambda: rows([named], {"columns": ("headers", "offset")}))
    assert ours == oracle


@pytest.mark.parametrize("codec", list(Codec))
def test_plain_batches_are_taken_by_the_compiled_kernels_themselves(codec: Codec) -> None:
    made = [NewRecord(b"v" * 40, b"k", at, [("naïve", b"x"), ("none", None)]) for at in range(50)]
    columns = compiled.arrow_columns(COLUMNS, 0, None, None, None, True)
    assert columns.add(encode_batch(made, codec=codec))
    found = columns.finish()
    assert (found.rows, found.values.data, found.keys.nulls) == (50, b"v" * 2000, 0)
    assert columns.finish().rows == 0


@pytest.mark.parametrize("names", [("offset",), ("value",)])
def test_no_memory_is_taken_for_records_that_cannot_be_there(names: tuple[str, ...]) -> None:
    part = bytearray(encode_batch([NewRecord(b"v", None, 1)]))
    struct.pack_into(">i", part, COUNT_AT, 2**31 - 1)
    struct.pack_into(">i", part, LAST_DELTA_AT, 2**31 - 2)
    columns = compiled.arrow_columns(names, 0, None, None, None, False)
    assert not columns.add(bytes(part))
    assert (columns.rows, columns.size_bytes, columns.finish().offsets) == (0, 0, b"")
    ours, oracle = both(lambda: rows([bytes(part)], {"columns": names}))
    assert ours == oracle
    assert "2147483647 records cannot be in" in str(ours)


def test_a_batch_that_is_odd_in_the_middle_leaves_what_was_there_before() -> None:
    """Its first records, a null among them, are written before the odd one is seen."""
    good = encode_batch([NewRecord(b"v", b"key", at) for at in range(3)])
    bad = bytearray(encode_batch([NewRecord(None, None, 1), NewRecord(b"w" * 9, b"k", 2)], base_offset=3))
    bad[-1] = 0x80  # the number of headers does not end
    columns = compiled.arrow_columns(("key", "value"), 0, None, None, None, False)
    assert columns.add(good)
    assert not columns.add(bytes(bad))
    assert columns.add(encode_batch([NewRecord(b"x", b"y", at) for at in range(9)], base_offset=5))
    found = columns.finish()
    assert (found.rows, found.keys.nulls, found.values.nulls, found.keys.validity) == (12, 0, 0, None)
    assert found.values.data == b"vvv" + b"x" * 9
    with at_work(compiled):
        assert "CorruptionError" in str(outcome(lambda: rows([good, bytes(bad)], {})))


def test_a_column_ends_before_its_offsets_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that has no room for a batch beside the others says so: the decoder hands on what it has first."""
    part = encode_batch([NewRecord(b"v", b"k", at) for at in range(4)])

    class Full:
        """Room for one batch."""

        rows = size_bytes = 0

        def __init__(self, *given: Any) -> None:
            self._held = compiled.arrow_columns(*given)

        def add(self, batch: bytes) -> bool:
            taken = self._held.rows == 0 and bool(self._held.add(batch))
            self.rows, self.size_bytes = self._held.rows, self._held.size_bytes
            return taken

        def finish(self) -> pure_kernels.ArrowBuffers:
            self.rows = self.size_bytes = 0
            return self._held.finish()

    monkeypatch.setattr("tiered.format.kernels.arrow_columns", Full)
    parts = [part, encode_batch([NewRecord(b"w", None, 9)], base_offset=4), part[:8] + part[8:]]
    pieces = ArrowDecoder(TopicPartition("t", 0), columns=("value",)).record_batches(
        (read_header(each), each) for each in parts
    )
    assert [piece.num_rows for piece in pieces] == [4, 1, 4]


def filled(columns: Any, byte: bytes, values: int = 200) -> pure_kernels.ArrowBuffers:
    """Columns of values of a KiB."""
    assert columns.add(encode_batch([NewRecord(byte * 1024, None, at) for at in range(values)]))
    found: pure_kernels.ArrowBuffers = columns.finish()
    return found


def test_what_was_taken_stays_as_it_is_while_anybody_looks_into_it() -> None:
    columns = compiled.arrow_columns(("value",), 0, None, None, None, False)
    kept = [filled(columns, bytes([byte])) for byte in range(65, 75)]
    part = memoryview(kept[3].values.data)[1024:2048] if kept[3].values is not None else None
    del kept[3]
    gc.collect()
    later = [filled(columns, b"x") for _ in range(5)]
    assert part == b"D" * 1024
    for byte, found in zip([65, 66, 67, 69, 70, 71, 72, 73, 74], kept, strict=True):
        assert found.values is not None
        assert found.values.data == bytes([byte]) * 204_800
        assert memoryview(found.values.data).readonly
    assert {each.values.data == b"x" * 204_800 for each in later if each.values is not None} == {True}


def test_memory_is_used_again_when_nobody_looks_into_it() -> None:
    """Also where many others had some before: 300 are more than are kept, so that nothing of other tests is left.

    What is given back to the allocator goes to others, ``taken``.
    """
    small = compiled.arrow_columns(("value",), 0, None, None, None, False)
    sizes = [1024 * (70 + at % 50) for at in range(300)]
    many = [small.add(encode_batch([NewRecord(bytes(size))])) and small.finish() for size in sizes]
    del many
    gc.collect()
    columns = compiled.arrow_columns(("value",), 0, None, None, None, False)
    values, taken = 200, list[bytearray]()

    def place() -> int:
        taken.extend(bytearray(size) for size in range(values * 1000, values * 1200, 4096))
        found = filled(columns, b"v", values)
        assert found.values is not None
        return int(np.frombuffer(found.values.data, np.uint8).__array_interface__["data"][0])

    first = place()
    places = [place() for _ in range(20)]
    assert len({*places, first}) <= 3
    assert len(set(places[1:])) == 1  # once the size is known


def test_columns_that_grow_keep_what_they_have() -> None:
    """Batch by batch, over several sizes of memory, with nulls in the middle of a byte of the validity."""
    columns = compiled.arrow_columns(("key", "value", "timestamp"), 0, None, None, None, False)
    wanted = [NewRecord(b"v%d" % at * (at % 90), None if at % 7 == 3 else b"k%d" % at, at) for at in range(30_000)]
    for at in range(0, len(wanted), 37):
        assert columns.add(encode_batch(wanted[at : at + 37], base_offset=at))
    found = columns.finish()
    arrays = BufferArrays(TopicPartition("t", 0), {name: pa.binary() for name in ("key", "value")})
    assert arrays.array("key", found).to_pylist() == [each.key for each in wanted]
    assert arrays.array("value", found).to_pylist() == [each.value for each in wanted]
    assert np.frombuffer(found.timestamps, np.int64).tolist() == list(range(30_000))
