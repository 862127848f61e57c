"""Columns of records: the bytes as the encoder of one record at a time, the same partitions as Kafka's producer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.format.twins import at_work, compiled, each_twin, needs_both  # noqa: F401 - the fixture
from tiered.errors import InvalidRecordError
from tiered.format.batch import decode_records, encode_batch
from tiered.format.codecs import Codec
from tiered.format.columns import (
    HEADER_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    RecordColumns,
    encode_columns,
    join_columns,
    key_hashes,
    partitions_of,
    rows_by_partition,
    rows_of,
)
from tiered.format.header import HEADER_BYTES
from tiered.format.partitioner import Partitioner, murmur2
from tiered.model import Headers, NewRecord, TimestampType

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

fields = st.none() | st.binary(max_size=30) | st.integers(8180, 8200).map(bytes)
headers = st.none() | st.lists(st.tuples(st.text(max_size=9), st.none() | st.integers(0, 70).map(bytes)), max_size=3)
times = st.integers(0, 2000) | st.integers(0, 2**62)
records = st.lists(st.builds(NewRecord, fields, fields, times, headers), min_size=1, max_size=12)


def columns_of(wanted: list[NewRecord]) -> RecordColumns:
    with_headers = [_structs(record.headers) for record in wanted]
    return RecordColumns(
        pa.array([record.value for record in wanted], pa.binary()),
        pa.array([record.key for record in wanted], pa.binary()),
        np.array([record.timestamp for record in wanted], np.int64),
        pa.array(with_headers, HEADERS) if any(each is not None for each in with_headers) else None,
    )


def _structs(headers: Headers | None) -> list[dict[str, Any]] | None:
    return None if headers is None else [{"key": name, "value": value} for name, value in headers]


@given(records, st.sampled_from(list(Codec)), st.sampled_from(list(TimestampType)))
@settings(max_examples=100, deadline=None)
def test_the_bytes_are_those_of_the_encoder_of_single_records(
    wanted: list[NewRecord], codec: Codec, kind: TimestampType
) -> None:
    at = 1_700_000_000_000 if kind else -1
    expected = encode_batch(wanted, codec=codec, timestamp_type=kind, append_time_ms=at)
    assert encode_columns(columns_of(wanted), codec=codec, timestamp_type=kind, append_time_ms=at) == expected


@given(records, st.data())
@settings(max_examples=100, deadline=None)
def test_slices_choices_and_joins_keep_the_records(wanted: list[NewRecord], data: st.DataObject) -> None:
    whole = columns_of(wanted)
    cut = data.draw(st.integers(0, len(wanted)))
    front, back = whole.slice(0, cut), whole.slice(cut, len(wanted))
    assert encode_columns(join_columns([part for part in (front, back) if len(part)])) == encode_batch(wanted)
    if len(back):
        assert encode_columns(back) == encode_batch(wanted[cut:])
    chosen = data.draw(st.lists(st.integers(0, len(wanted) - 1), min_size=1, max_size=20))
    taken = whole.select(np.array(chosen, np.int64))
    assert encode_columns(taken) == encode_batch([wanted[at] for at in chosen])
    assert taken.sizes().tolist() == whole.sizes()[chosen].tolist()


@given(records)
@settings(max_examples=100, deadline=None)
def test_a_batch_is_no_larger_than_its_sizes_say(wanted: list[NewRecord]) -> None:
    columns = columns_of(wanted)
    sizes = columns.sizes()
    assert len(encode_columns(columns)) - HEADER_BYTES <= sizes.sum()
    for at, record in enumerate(wanted):
        held = sum(
            len(name.encode()) + len(value or b"") + HEADER_OVERHEAD_BYTES for name, value in record.headers or []
        )
        assert sizes[at] == len(record.value or b"") + len(record.key or b"") + held + RECORD_OVERHEAD_BYTES


def test_headers_beside_records_without_any() -> None:
    wanted = [NewRecord(b"a"), NewRecord(b"b", headers=[("trace", b"1"), ("x", None)]), NewRecord(b"c", headers=[])]
    wanted = [record._replace(timestamp=5) for record in wanted]
    columns = join_columns([columns_of(wanted[:1]), columns_of(wanted[1:])])
    found = list(decode_records(encode_columns(columns)))
    assert [(record.value, record.headers) for record in found] == [
        (b"a", ()),
        (b"b", [("trace", b"1"), ("x", None)]),
        (b"c", ()),
    ]


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"x"}])
def test_a_header_without_a_name_is_refused(header: object) -> None:
    columns = columns_of([NewRecord(b"a", timestamp=1)])
    named = RecordColumns(columns.values, columns.keys, columns.timestamps, pa.array([[header]], HEADERS))
    with pytest.raises(InvalidRecordError, match="a header has no name"):
        encode_columns(named)


@given(st.lists(st.binary(max_size=20) | st.integers(1020, 1030).map(bytes), max_size=20))
@settings(max_examples=100, deadline=None)
def test_keys_go_where_kafkas_producer_puts_them(keys: list[bytes]) -> None:
    column = pa.array([b"before", *keys], pa.binary()).slice(1)
    hashes = key_hashes(column)
    assert hashes.tolist() == [murmur2(key) for key in keys]
    chosen = Partitioner(7)
    assert partitions_of(hashes, 7).tolist() == [chosen.partition_for(key) for key in keys]


def pieces_of(columns: RecordColumns, room: int) -> list[list[int]]:
    """Which rows go into one batch: as long as their sizes fit, one at least."""
    found: list[list[int]] = []
    held = 0
    for at, size in enumerate(columns.sizes().tolist()):
        if not found or held + size > room:
            found.append([])
            held = 0
        found[-1].append(at)
        held += size
    return found


@given(records, st.integers(0, 9000))
@settings(max_examples=100, deadline=None)
def test_runs_of_rows_end_where_a_batch_is_full(wanted: list[NewRecord], room: int) -> None:
    columns = columns_of(wanted)
    assert columns.run_ends(room) == [piece[-1] + 1 for piece in pieces_of(columns, room)]
    assert columns.largest() == max(columns.sizes().tolist())
    assert (columns.slice(0, 0).run_ends(room), columns.slice(0, 0).largest()) == ([], 0)


@needs_both
@given(records, st.integers(0, 9000), st.data())
@settings(max_examples=100, deadline=None)
def test_rows_in_any_order_fill_batches_by_their_sizes(wanted: list[NewRecord], room: int, data: st.DataObject) -> None:
    columns = columns_of(wanted)
    order = np.array(data.draw(st.lists(st.integers(0, len(wanted) - 1), min_size=1, max_size=30)), np.int64)
    with at_work(compiled):
        filler, rows = compiled.batch_filler(room), rows_of(columns)
    found, at = [], 0
    while at < len(order):
        at = filler.add(rows, order, at)
        times = filler.first, filler.least, filler.greatest
        found.append((filler.count, *times, filler.finish(7, 3, 0, -1)))
    expected = []
    for piece in pieces_of(columns.select(order), room):
        held = [wanted[order[place]] for place in piece]
        stamps = [record.timestamp for record in held]
        batch = encode_batch(held, base_offset=7, leader_epoch=3)
        expected.append((len(held), stamps[0], min(stamps), max(stamps), batch))
    assert found == expected


@needs_both
def test_columns_whose_elements_leave_their_data_are_not_taken() -> None:
    good = (None, np.array([0, 2, 4], np.int32).tobytes(), b"abcd", 0)
    times = bytes(16)
    assert compiled.arrow_rows(2, good, good, times, None) is not None
    bad: list[Any] = [
        (None, np.array([0, 2, 5], np.int32).tobytes(), b"abcd", 0),  # behind its data
        (None, np.array([-1, 2, 4], np.int32).tobytes(), b"abcd", 0),  # before it
        (None, np.array([0, 9, 4], np.int32).tobytes(), b"abcd", 0),  # out of order
        (None, np.array([0, 2], np.int32).tobytes(), b"abcd", 0),  # too few
        (b"", np.array([0, 2, 4], np.int32).tobytes(), b"abcd", 0),  # no validity of them all
        (None, np.array([0, 2, 4], np.int32).tobytes(), b"abcd", 1),
        (None, np.array([0, 2, 4], np.int32).tobytes(), b"abcd", -1),
        (None, np.array([0, 2, 4], np.int32).tobytes(), None, 0),
        (None, None, b"abcd", 0),
    ]
    for each in bad:
        assert compiled.arrow_rows(2, each, good, times, None) is None
        assert compiled.arrow_rows(2, good, each, times, None) is None
        assert compiled.key_hashes(2, each) is None
        bounds = np.array([0, 1, 2], np.int64).tobytes()
        assert compiled.arrow_rows(2, good, good, times, (bounds, each, good)) is None
    assert compiled.arrow_rows(2, good, good, times[:8], None) is None
    for wrong in ([0, 2, 1], [1, 1, 2], [0, -1, 2], [0, 1, 3]):
        assert compiled.arrow_rows(2, good, good, times, (np.array(wrong, np.int64).tobytes(), good, good)) is None


@needs_both
@given(records, st.integers(1, 70_000), st.data())
@settings(max_examples=100, deadline=None)
def test_rows_go_where_they_say_or_their_key_does(
    wanted: list[NewRecord], partitions: int, data: st.DataObject
) -> None:
    columns, chosen = columns_of(wanted), Partitioner(partitions)
    keyless = data.draw(st.integers(0, partitions - 1))
    few = st.integers(-1, min(partitions, 3) - 1)
    said = data.draw(st.none() | st.lists(few, min_size=len(wanted), max_size=len(wanted)))
    with at_work(compiled):
        rows = rows_of(columns)
    given_ = None if said is None else np.array(said, np.int64).data
    expected: dict[int, list[int]] = {}
    for at, record in enumerate(wanted):
        by_key = keyless if record.key is None else chosen.partition_for(record.key)
        expected.setdefault(by_key if said is None or said[at] < 0 else said[at], []).append(at)
    found = rows.by_partition(partitions, keyless, given_)
    everything = list(range(len(wanted)))
    assert [
        (partition, everything if order is None else np.frombuffer(order, np.int64).tolist())
        for partition, order in found
    ] == sorted(expected.items())
    assert [order is None for _, order in found] == [len(expected) == 1] * len(expected)


@needs_both
def test_partitions_that_are_not_there_are_refused() -> None:
    with at_work(compiled):
        rows = rows_of(columns_of([NewRecord(b"a", b"k", 1), NewRecord(b"b", timestamp=1)]))
    assert rows.by_partition(1, 0, None) == [(0, None)]
    for wrong in ([2, 0], [0, -2], [0, 2**40]):
        with pytest.raises(IndexError, match="there is no partition"):
            rows.by_partition(2, 0, np.array(wrong, np.int64).data)
    for keyless in (-1, 2):
        with pytest.raises(IndexError, match="there is no partition"):
            rows.by_partition(2, keyless, None)
    with pytest.raises(ValueError, match="1 partitions were given for 2 rows"):
        rows.by_partition(2, 0, bytes(8))
    with pytest.raises(ValueError, match="there are no 0 partitions"):
        rows.by_partition(0, 0, None)


@needs_both
def test_batches_in_memory_that_is_filled_again_stay_as_they_are_while_somebody_looks() -> None:
    wanted = [NewRecord(bytes([at]) * 1000, b"%03d" % at, 5 + at) for at in range(200)]
    with at_work(compiled):
        rows, fillers = (
            rows_of(columns_of(wanted)),
            [compiled.batch_filler(150_000, lend=lend) for lend in (False, True)],
        )
    found: list[list[Any]] = [[], []]
    for _ in range(3):
        for filler, batches in zip(fillers, found, strict=True):
            at = 0
            while at < len(wanted):
                at = filler.add(rows, None, at)
                batches.append(filler.finish(7, 3, 0, -1))
    assert found[0] == found[1]
    assert {type(batch) for batch in found[0]} == {bytes}
    kinds = {(len(batch) > 65_536, type(batch) is memoryview) for batch in found[1]}
    assert kinds == {(True, True), (False, False)}
    views = [batch for batch in found[1] if isinstance(batch, memoryview)]
    assert all(view.readonly for view in views)
    assert len({addresses(view) for view in views}) == len(views)


def addresses(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


@needs_both
def test_rows_that_are_not_there_are_refused() -> None:
    with at_work(compiled):
        rows, filler = rows_of(columns_of([NewRecord(b"a", timestamp=1)])), compiled.batch_filler(100)
    for wrong in (1, -1):
        with pytest.raises(IndexError, match=f"there is no row {wrong}"):
            filler.add(rows, np.array([0, wrong], np.int64), 0)
    assert filler.count == 0
    with pytest.raises(ValueError, match="at least one record"):
        filler.finish(0, 0, 0, -1)


@given(st.lists(st.integers(0, 3) | st.integers(65_530, 65_540) | st.just(99_999), min_size=1, max_size=40))
def test_rows_are_told_apart_by_partition_in_their_order(partitions: list[int]) -> None:
    found = {partitions[at[0]]: at.tolist() for at in rows_by_partition(np.array(partitions, np.int64))}
    assert list(found) == sorted(set(partitions))
    assert found == {each: [at for at, other in enumerate(partitions) if other == each] for each in found}
