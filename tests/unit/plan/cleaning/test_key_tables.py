"""Both tables of keys, with batches that are put and judged many at once and one by one: the same map and log."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.twins import compiled, needs_both, outcome
from tests.unit.plan.cleaning.building import LogBuilder, compacted
from tests.unit.plan.cleaning.drawing import CODECS, NOW_MS, SECRET, batches
from tiered.errors import CorruptionError
from tiered.format import pure_kernels
from tiered.format.batch import BatchProducer, decode_records, encode_batch, read_header, rebuild_encoded
from tiered.format.batch_scanner import walk_headers
from tiered.format.codecs import Codec
from tiered.format.control import ControlType
from tiered.format.header import HEADER_BYTES
from tiered.format.kernels import crc32c, encode_record_at
from tiered.format.producer_snapshot import ProducerEntry
from tiered.model import AbortedTxn, NewRecord
from tiered.plan import offset_map as offset_map_module
from tiered.plan.batch_filter import BatchFilter
from tiered.plan.offset_map import ENTRY_BYTES, OffsetMap, OffsetMapBuilder

END = 2**62


@contextmanager
def table_of(twin: Any) -> Iterator[None]:
    before = offset_map_module.KeyTable
    offset_map_module.KeyTable = twin.KeyTable  # type: ignore[misc]
    try:
        yield
    finally:
        offset_map_module.KeyTable = before  # type: ignore[misc]


def a_round(
    twin: Any,
    runs: Sequence[bytes],
    *,
    whole: bool,
    keys: int = 1000,
    start: int = 0,
    now_ms: int = NOW_MS,
    aborted: Sequence[AbortedTxn] = (),
    producers: Sequence[ProducerEntry] = (),
    end: int = END,
) -> list[object]:
    """All that a round over the runs tells; ``whole``: each run at once, else batch by batch."""
    with table_of(twin):
        offset_map = OffsetMap(keys * ENTRY_BYTES, load_factor=1)
    builder = OffsetMapBuilder(offset_map, start_offset=start, aborted=aborted)
    kept = BatchFilter(
        offset_map,
        first_uncleanable=end,
        now_ms=now_ms,
        delete_retention_ms=50,
        producers=producers,
        aborted=aborted,
    )
    told: list[object] = []
    full: object = False
    for run in runs:
        full = outcome(lambda run=run: put(builder, run, whole))  # type: ignore[misc]
        if full is not False:
            told.append(_without_position(full))
            break
    told += [offset_map.latest_offset, len(offset_map)]
    if not isinstance(full, tuple):  # of a damaged batch nothing is counted, or what came before the damage
        told += [builder.records_read, builder.bytes_read]
    for run in runs:
        left = outcome(lambda run=run: judged(kept, run, whole))  # type: ignore[misc]
        told.append(_without_position(left))
        if not isinstance(left, bytes):
            break
        told.append(repr(kept.stats))
    return [*told, kept.drain_aborted()]


def _without_position(told: object) -> object:
    """A run says where in it the error is, a batch where in the batch."""
    return told[:-1] if isinstance(told, tuple) else told


def _parts(run: bytes) -> list[memoryview]:
    return [memoryview(run)[at : at + header.size_bytes] for at, header in walk_headers(run)]


def put(builder: OffsetMapBuilder, run: bytes, whole: bool) -> bool:
    if whole:
        return builder.add_run(memoryview(run))
    return any(builder.add(part) for part in _parts(run))


def judged(kept: BatchFilter, run: bytes, whole: bool) -> bytes:
    if not whole:
        return b"".join(bytes(kept.clean(part) or b"") for part in _parts(run))
    pieces = list(kept.clean_run(memoryview(run)))
    assert sum(piece.size for piece in pieces) == len(run)
    at = 0
    for piece in pieces:
        assert not piece.same or bytes(piece.left) == run[at : at + piece.size]
        at += piece.size
    return b"".join(bytes(piece.left) for piece in pieces)


def cut_at(parts: Sequence[bytes], places: set[int]) -> list[bytes]:
    """The batches, joined to runs that end at ``places``."""
    runs = [b""]
    for place, part in enumerate(parts):
        if place in places and runs[-1]:
            runs.append(b"")
        runs[-1] += part
    return runs


@needs_both
@given(
    batches(),
    st.sets(st.integers(0, 4)),
    st.sampled_from([1, 2, 3, 12]),
    st.sampled_from([0, 1, 7, 20]),
    st.sampled_from([NOW_MS, NOW_MS + 1]),
)
def test_a_run_is_cleaned_as_its_batches(made: list[bytes], places: set[int], keys: int, start: int, now: int) -> None:
    runs = cut_at(made, places)
    expected = a_round(pure_kernels, runs, whole=False, keys=keys, start=start, now_ms=now)
    for twin, whole in ((compiled, False), (compiled, True), (pure_kernels, True)):
        assert a_round(twin, runs, whole=whole, keys=keys, start=start, now_ms=now) == expected


@needs_both
@given(batches(), st.data())
def test_both_twins_say_the_same_of_damage_under_a_right_checksum(made: list[bytes], data: st.DataObject) -> None:
    batch = bytearray(made[-1])
    for _ in range(data.draw(st.integers(1, 3))):
        if len(batch) > HEADER_BYTES:
            at = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
            batch[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, batch[at] ^ 1, batch[at] ^ 2]))
    if data.draw(st.booleans()):  # another count of records than there are
        struct.pack_into(">i", batch, HEADER_BYTES - 4, data.draw(st.sampled_from([0, 1, 2, 3])))
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    made, keys = [*made[:-1], bytes(batch)], data.draw(st.integers(1, 12))
    assert a_round(compiled, made, whole=False, keys=keys) == a_round(pure_kernels, made, whole=False, keys=keys)


PAIRS = st.lists(st.tuples(st.sampled_from([b"a", b"b", None]), st.sampled_from([b"x", None])), min_size=1, max_size=5)
STEPS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from([-1, -1, 0]), PAIRS, CODECS),
    st.tuples(st.just("send"), st.sampled_from([1, 2]), PAIRS, CODECS),
    st.tuples(st.just("end"), st.sampled_from([1, 2]), st.sampled_from([ControlType.ABORT, ControlType.COMMIT])),
    st.tuples(st.just("roll")),
)


@needs_both
@given(st.lists(STEPS, min_size=1, max_size=25), st.booleans())
def test_a_run_with_transactions_and_producers_too(script: list[tuple[Any, ...]], live: bool) -> None:
    build = LogBuilder(compacted())
    for name, *values in script:
        if name == "roll":
            build.roll()
        elif name == "end":
            build.end(*values)
        else:
            producer, pairs, codec = values
            build.append(pairs, producer=producer, transactional=name == "send", codec=codec)
    build.roll()
    log = build.build(live=live)
    runs = [segment.data for segment in log.segments if segment.data]
    given_ = {"aborted": log.aborted, "producers": log.producers, "end": log.segments[-1].base_offset}
    expected = a_round(pure_kernels, runs, whole=False, **given_)
    for twin, whole in ((compiled, False), (compiled, True), (pure_kernels, True)):
        assert a_round(twin, runs, whole=whole, **given_) == expected


def odd_batch(records: Sequence[tuple[int, bytes]]) -> bytes:
    """Of (offset, key), in this order, whatever it is."""
    last = max(offset for offset, _ in records)
    header = read_header(encode_batch([NewRecord(b"", b"", 5)] * (last + 1)))
    data = b"".join([encode_record_at(offset, 0, key, b"v", None) for offset, key in records])
    return rebuild_encoded(header, data, len(records), base_timestamp=5, max_timestamp=5)


@needs_both
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 6), st.sampled_from([b"a", b"b"])), min_size=1, max_size=6),
        min_size=1,
        max_size=3,
    )
)
def test_records_out_of_order_are_judged_as_before(given_records: list[list[tuple[int, bytes]]]) -> None:
    made, at = [], 0
    for records in given_records:
        size = max(offset for offset, _ in records) + 1
        if len(records) > size:
            continue
        batch = bytearray(odd_batch(records))
        batch[:8] = at.to_bytes(8, "big")
        at += size
        made.append(bytes(batch))
    runs = cut_at(made, set())
    expected = a_round(pure_kernels, runs, whole=False)
    assert a_round(compiled, runs, whole=True) == expected


@needs_both
@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_offsets_beyond_what_is_noted_are_looked_up(capacity: int) -> None:
    gap = 64 * 8 * capacity  # so many bits are noted
    parts = [
        encode_batch([NewRecord(b"v", b"a", 5)], base_offset=at) for at in (0, gap - 1, gap, gap + 1, 9 * gap, 10 * gap)
    ]
    run = b"".join(parts)
    table = compiled.KeyTable(capacity, SECRET)
    table.count_superseded_from(0)
    assert table.put_run(run, 0).records == (len(parts) if capacity > 1 else 1)
    found = [table.filter_run(part, 10 * gap, 0, 0, END).records for part in parts]
    assert found == ([0, 0, 0, 0, 0, 1] if capacity > 1 else [1] + [1] * 5)


@needs_both
def test_a_run_ends_before_what_is_for_the_caller() -> None:
    plain = encode_batch([NewRecord(b"v", b"a", 5)])
    theirs = encode_batch([NewRecord(b"v", b"a", 5)], base_offset=1, producer=BatchProducer(3, 0, 0))
    for odd in (
        encode_batch([NewRecord(b"v", b"a", 5)], base_offset=1, codec=Codec.GZIP),
        encode_batch([NewRecord(b"v", b"a", 5)], base_offset=1, producer=BatchProducer(3, transactional=True)),
        rebuild_encoded(read_header(theirs), b"", 0, base_timestamp=-1, max_timestamp=-1),
        theirs[:HEADER_BYTES],
    ):
        table = compiled.KeyTable(10, SECRET)
        assert table.put_run(plain + odd, 0) == (len(plain), 1, 1, 0, False, True)
        assert table.filter_run(plain + odd, 0, 0, 0, END).used == len(plain)
    table = compiled.KeyTable(10, SECRET)
    table.put(b"a", 9)
    assert table.filter_run(plain + theirs, 9, 0, 0, END).used == len(plain)  # of a producer, and nothing is left
    assert table.filter_run(plain, 9, 0, 0, 1).used == 0  # the last one: nothing is left, it may have to stay
    assert table.filter_run(plain, 9, 0, 0, 2).data == b""


@pytest.mark.parametrize("call", [put, judged])
def test_an_error_says_at_which_byte_of_the_run(call: Callable[..., object]) -> None:
    good = encode_batch([NewRecord(b"v", b"a", 5)])
    broken = rebuild_encoded(read_header(good), b"\x0e\x00\x00\x00\x02a\x02v", 1, base_timestamp=5, max_timestamp=5)
    broken = (1).to_bytes(8, "big") + broken[8:]
    offset_map = OffsetMap()
    kept = BatchFilter(offset_map, first_uncleanable=END, now_ms=0, delete_retention_ms=0)
    subject = OffsetMapBuilder(offset_map, start_offset=0) if call is put else kept
    with pytest.raises(CorruptionError) as error:
        call(subject, good + broken, True)
    assert (error.value.position, error.value.offset) == (len(good), 1)


def test_a_run_that_begins_before_the_end_of_another_is_refused() -> None:
    batch = encode_batch([NewRecord(b"v", b"a", 5)], base_offset=4)
    kept = BatchFilter(OffsetMap(), first_uncleanable=END, now_ms=0, delete_retention_ms=0)
    assert judged(kept, batch, True) == batch
    with pytest.raises(CorruptionError, match="batch at offset 4 overlaps the previous batch, which ends at 5"):
        judged(kept, batch, True)
    assert [record.offset for record in decode_records(batch)] == [4]


@needs_both
def test_a_batch_that_holds_more_than_it_counts_is_not_judged() -> None:
    """Nobody may take the records behind the counted ones for padding, and drop them."""
    whole = encode_batch([NewRecord(b"x", b"a", NOW_MS), NewRecord(b"y", b"b", NOW_MS)])
    few = bytearray(whole)
    few[HEADER_BYTES - 4 : HEADER_BYTES] = (1).to_bytes(4, "big")  # the header ends with the count of records
    table = compiled.KeyTable(16, SECRET)
    table.put(b"a", 5)
    run = table.filter_run(whole, 5, NOW_MS, NOW_MS, END)
    assert (run.used, run.superseded) == (len(whole), 1)
    run = table.filter_run(whole + bytes(few), 5, NOW_MS, NOW_MS, END)
    assert (run.used, run.superseded) == (len(whole), 1)
    assert table.filter_batch(bytes(few), 5, True, NOW_MS) is None
    assert table.put_batch(bytes(few), 0).odd


@pytest.mark.parametrize(
    ("size", "digest"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
    ],
)
@needs_both
def test_the_digest_is_siphash(size: int, digest: str) -> None:
    # Vectors of the authors' reference implementation, vectors_sip128.
    assert compiled.KeyTable(1, SECRET).digest(bytes(range(size))).hex() == digest


@needs_both
@given(st.dictionaries(st.binary(max_size=40), st.integers(0, 2**62), max_size=300))
def test_a_table_finds_what_it_grew_over(offsets: dict[bytes, int]) -> None:
    table = compiled.KeyTable(1, SECRET)
    for key, offset in offsets.items():
        table.put(key, offset - 1)
        table.put(key, offset)
    assert {key: table.get(key) for key in offsets} == offsets
    assert (len(table), table.get(b"-" * 41)) == (len(offsets), -1)


@pytest.mark.parametrize(("capacity", "secret"), [(0, SECRET), (1, b""), (1, SECRET + b"\0")])
@needs_both
def test_a_table_without_room_or_secret_is_refused(capacity: int, secret: bytes) -> None:
    with pytest.raises(ValueError, match="secret of 16 bytes"):
        compiled.KeyTable(capacity, secret)
