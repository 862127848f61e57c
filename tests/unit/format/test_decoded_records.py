"""Decoded records of either twin: a named tuple to whoever reads them, and no longer than need be in their batch."""

from __future__ import annotations

import copy
import gc
import pickle
import tracemalloc
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.format.twins import compiled, needs_both
from tiered.format import kernels, pure_kernels, records
from tiered.format.batch import consumer_records, decode_records, encode_batch
from tiered.format.codecs import Codec
from tiered.format.kernel_values import Shown
from tiered.model import NewRecord

FIELDS = ("t", 3, 42, 1_700_000_000_000, 1, b"k", b"v", [("h", b"x"), ("n", None)], 5, "remote")
SHOWN = Shown("t", 3, 0, 7, "local", 0)

twins = pytest.mark.parametrize(
    "twin", [pytest.param(compiled, marks=needs_both, id="compiled"), pytest.param(records, id="pure")]
)


@twins
def test_a_record_is_a_named_tuple_to_its_reader(twin: Any) -> None:
    record = twin.ConsumerRecord(*FIELDS)
    topic, partition, offset, *_, tier = record
    assert (topic, partition, offset, tier) == ("t", 3, 42, "remote")
    assert (len(record), record[5], record[-1], record[5:7], b"k" in record) == (10, b"k", "remote", (b"k", b"v"), True)
    assert (record.timestamp_type, record.leader_epoch, record.headers) == (1, 5, FIELDS[7])
    assert record.datetime.isoformat() == "2023-11-14T22:13:20+00:00"
    assert tuple(record) == FIELDS
    assert record._fields == twin.ConsumerRecord._fields == tuple(record._asdict())
    assert record._replace(key=b"other", offset=1)[2:6] == (1, 1_700_000_000_000, 1, b"other")
    assert twin.ConsumerRecord._make(FIELDS) == record
    by_name = twin.ConsumerRecord(**dict(zip(record._fields[:8], FIELDS, strict=False)))
    assert (by_name.leader_epoch, by_name.tier) == (-1, "local")
    shown = "ConsumerRecord(topic='t', partition=3, offset=42, timestamp=1700000000000, timestamp_type=1, key=b'k', "
    assert repr(record) == f"{shown}value=b'v', headers=[('h', b'x'), ('n', None)], leader_epoch=5, tier='remote')"
    match record:
        case twin.ConsumerRecord(_, _, offset=42, key=b"k"):
            pass
        case _:
            pytest.fail("no match")


@twins
def test_records_are_compared_and_hashed_by_their_values(twin: Any) -> None:
    record = twin.ConsumerRecord(*FIELDS)
    assert record == FIELDS == record
    assert record == twin.ConsumerRecord(*FIELDS) == records.ConsumerRecord(*FIELDS)
    assert record != record._replace(value=None)
    assert record != "t"
    assert record != twin.Record(*FIELDS[2:4], *FIELDS[5:8])
    assert record < record._replace(offset=43) <= (*FIELDS[:2], 44)
    assert record > FIELDS[:2]
    assert record >= FIELDS
    with pytest.raises(TypeError, match="not supported"):
        _ = record < 7
    assert hash(record) == hash(records.ConsumerRecord(*FIELDS))
    bare = twin.Record(1, 2, b"k", None, [])
    assert hash(bare) == hash((1, 2, b"k", None, ()))
    assert len({bare, (1, 2, b"k", None, ()), twin.Record(1, 2, b"k", None, ())}) == 1
    assert bare.headers is twin.Record(2, 2, None, None, []).headers == ()


@twins
def test_a_record_does_not_change(twin: Any) -> None:
    for record in (twin.ConsumerRecord(*FIELDS), twin.Record(1, 2, None, None, ())):
        for name in (*record._fields, "more"):
            with pytest.raises(AttributeError):
                setattr(record, name, 1)
        with pytest.raises(TypeError):
            record[0] = 1
        with pytest.raises(TypeError, match="unexpected"):
            record._replace(more=1)
        assert copy.copy(record) == copy.deepcopy(record) == record
    with pytest.raises(TypeError):
        twin.Record(1, 2)


@twins
def test_a_record_is_pickled_as_its_values(twin: Any) -> None:
    for record in (twin.ConsumerRecord(*FIELDS), twin.Record(1, 2, b"k", None, [])):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            data = pickle.dumps(record, protocol)
            assert b"_kernels" not in data  # whoever loads it may not have them
            again = pickle.loads(data)
            assert again == record
            assert type(again) is getattr(kernels, type(record).__name__)


def batch(count: int, value: bytes, codec: Codec = Codec.NONE) -> bytes:
    headers: list[Any] = [[("h", b"x"), ("", None)], None]
    made = [NewRecord(value + b"%d" % i, b"k%d" % i, 1_000 + i, headers[i % 2]) for i in range(count)]
    return encode_batch(made, base_offset=5, codec=codec)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_kept_records_stay_what_they_were(codec: Codec, kept: int) -> None:
    data = batch(9, b"value", codec)
    wanted = list(pure_kernels.chosen(iter(list(decode_records(data))), SHOWN))
    window: deque[Any] = deque(maxlen=kept)
    for at, record in enumerate(consumer_records(data, SHOWN)):
        window.append(record)
        if at % 3 == 0:
            _ = record.value
        assert list(window) == wanted[max(0, at + 1 - kept) : at + 1]
    kept_first = [next(consumer_records(data, SHOWN)) for _ in range(3)]
    assert kept_first == wanted[:1] * 3
    assert all(type(field) is bytes for record in window for field in (record.key, record.value))


@needs_both
def test_a_record_that_is_kept_does_not_keep_its_batch() -> None:
    gc.collect()
    tracemalloc.start()
    try:
        kept = []
        for _ in range(20):
            data = batch(200, b"v" * 1_000)
            kept += [record for record in compiled.batch_records(data, SHOWN) if record.offset == 50]
            reading = compiled.batch_records(data, None)
            kept += [next(reading), next(reading)]
            del data, reading
        assert len(kept) == 60
        assert tracemalloc.get_traced_memory()[0] < 60 * 4_000
    finally:
        tracemalloc.stop()
    assert kept[2].value == b"v" * 1_000 + b"1"


WAYS: list[Callable[[Any], Any]] = [
    lambda record: None,
    lambda record: record,
    lambda record: record.key,
    lambda record: record.value,
    lambda record: (record.value, record.key),
    lambda record: memoryview(record.value or b""),
    lambda record: {record.key: hash(record.value)},
    lambda record: (hash(record.key), hash(record.value)),  # bytes know their hash once they were asked
    lambda record: record.headers,
    tuple,
]
"""What a reader may keep of a record, and let go."""

fields = st.none() | st.binary(max_size=4) | st.integers(0, 200).map(lambda size: b"%d" % size * (1 + size // 3))


@given(
    rows=st.lists(
        st.tuples(fields, fields, st.booleans(), st.sampled_from(range(len(WAYS))), st.integers(1, 5)),
        min_size=1,
        max_size=30,
    ),
    shown=st.sampled_from([None, SHOWN]),
)
@example(rows=[(b"key%d" % i, b"value%d" % i * 9, False, 7, 1) for i in range(9)], shown=None)
@example(rows=[(b"key%d" % i, b"value%d" % i, False, 2 + i % 2, 5) for i in range(9)], shown=SHOWN)
@example(rows=[(b"", b"", False, 1, 3), (None, b"x", True, 4, 2), (b"y", None, False, 9, 1)] * 3, shown=None)
def test_what_is_kept_of_a_record_stays_what_it_was(rows: list[Any], shown: Shown | None) -> None:
    """Whatever else is let go, and for how long: the bytes that nobody has any more become those of a later record."""
    headers = [[("h", b"x")] if headed else [] for _, _, headed, *_ in rows]
    data = encode_batch([NewRecord(row[1], row[0], 1_000, more) for row, more in zip(rows, headers, strict=True)])
    wanted: list[Any] = [records.Record(i, 1_000, *rows[i][:2], headers[i]) for i in range(len(rows))]
    if shown is not None:
        wanted = [records.ConsumerRecord("t", 3, *each[:2], 0, *each[2:], 7, "local") for each in wanted]
    reading = decode_records(data) if shown is None else consumer_records(data, shown)
    kept: deque[tuple[int, Any, Any]] = deque()
    for at, record in enumerate(reading):
        *_, way, steps = rows[at]
        kept.append((at + steps, WAYS[way](record), WAYS[way](wanted[at])))
        del record
        for _, found, right in kept:
            assert found == right
        kept = deque(each for each in kept if each[0] > at)
    assert at == len(rows) - 1


@needs_both
def test_a_kept_field_holds_little_more_than_its_bytes() -> None:
    """Though a longer one may have been there before it."""
    data = encode_batch([NewRecord(b"v" * (1_000 if i % 3 else 8), b"k" * (300 if i % 2 else 2)) for i in range(3_000)])
    gc.collect()
    tracemalloc.start()
    try:
        kept = [record.value for record in compiled.batch_records(data, None) if len(record.value) == 8]
        kept += [record.key for record in compiled.batch_records(data, None) if len(record.key) == 2]
        assert len(kept) == 2_500
        assert tracemalloc.get_traced_memory()[0] < 2_500 * (33 + 8 + 64 + 40)
    finally:
        tracemalloc.stop()
    assert {len(field) for field in kept} == {2, 8}


@needs_both
def test_fields_that_came_from_elsewhere_are_let_go_whole() -> None:
    """The pure twin decodes records whose offset is beyond 64 bits: their bytes have no room for others."""
    sizes = [(0, 300), (0, 200), (1, 2), (1, 3), (0, 290), (0, 250), (1, 2), (0, 300), (1, 4), (1, 2), (0, 299)]
    made = [(delta, bytes([at]) * size) for at, (delta, size) in enumerate(sizes)]
    data = b"".join([pure_kernels.encode_record_at(delta, 0, field, field, None) for delta, field in made])
    reading = compiled.decode_records(data, len(made), 2**63 - 1, 0, None)
    for (delta, field), record in zip(made, reading, strict=True):
        assert (record.offset, record.key, record.value) == (2**63 - 1 + delta, field, field)


@needs_both
def test_bytes_that_may_change_are_copied() -> None:
    data = batch(6, b"value")
    wanted = list(compiled.decode_records(data, 6, 5, 1_000, None, 61))
    reused = bytearray(data)
    for held in (reused, memoryview(reused), memoryview(reused).toreadonly(), memoryview(data)[::-1][::-1]):
        for found in (compiled.decode_records(held, 6, 5, 1_000, None, 61), compiled.batch_records(held, None)):
            first = next(found)
            reused[:] = bytes(len(data))
            assert [first, *found] == wanted
            reused[:] = data
    part = compiled.batch_records(memoryview(b"before" + data + b"behind")[6:-6], None)
    assert list(part) == wanted


@needs_both
def test_the_fields_of_a_record_are_made_once() -> None:
    class Owner:
        """Is gone when nothing refers to it."""

    first = next(compiled.batch_records(batch(3, b"value"), None))
    assert first.key is first.key
    assert first.headers is first.headers
    assert first.value is tuple(first)[3]
    owner = Owner()
    gone = weakref.ref(owner)
    held = compiled.Record(owner, 0, None, None, ())
    del owner
    assert gone() is not None
    del held
    assert gone() is None
