"""The compiled table of keys beside the pure one: the same map, the same batches, the same errors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.format.twins import compiled, needs_both, outcome
from tests.unit.plan.cleaning.building import LogBuilder, compacted
from tests.unit.plan.cleaning.drawing import CODECS, NOW_MS, SECRET, batches
from tests.unit.plan.cleaning.rounds import clean
from tiered.format import pure_kernels
from tiered.format.codecs import Codec
from tiered.format.control import ControlType
from tiered.format.header import HEADER_BYTES
from tiered.format.kernels import crc32c
from tiered.plan import offset_map as offset_map_module
from tiered.plan.batch_filter import BatchFilter
from tiered.plan.offset_map import ENTRY_BYTES, OffsetMap, OffsetMapBuilder


def _round(table: Any, given_batches: Sequence[bytes], keys: int, start: int, now_ms: int) -> list[object]:
    """All that a round over the batches tells, with this twin of the table."""
    told: list[object] = []
    before = offset_map_module.KeyTable
    offset_map_module.KeyTable = table  # type: ignore[misc]
    try:
        offset_map = OffsetMap(keys * ENTRY_BYTES, load_factor=1)
    finally:
        offset_map_module.KeyTable = before  # type: ignore[misc]
    builder = OffsetMapBuilder(offset_map, start_offset=start)
    for batch in given_batches:
        full = outcome(lambda batch=batch: builder.add(memoryview(batch)))  # type: ignore[misc]
        told += [full, offset_map.latest_offset, len(offset_map)]
        if full is not False:
            break
        told.append(builder.records_read)
    told += [offset_map.get(key) for key in (b"", b"a", b"b", b"1234567", b"12345678", b"k" * 300)]
    kept = BatchFilter(offset_map, first_uncleanable=2**62, now_ms=now_ms, delete_retention_ms=50)
    for batch in given_batches:
        cleaned = outcome(lambda batch=batch: kept.clean(memoryview(batch)))  # type: ignore[misc]
        told.append(bytes(cleaned) if isinstance(cleaned, memoryview) else cleaned)
        told.append(repr(kept.stats) if isinstance(cleaned, (bytes, memoryview)) else None)
    return told


@needs_both
@given(batches(), st.integers(1, 12), st.integers(0, 20), st.sampled_from([NOW_MS, NOW_MS + 1]))
def test_both_twins_clean_alike(made: list[bytes], keys: int, start: int, now_ms: int) -> None:
    assert _round(compiled.KeyTable, made, keys, start, now_ms) == _round(
        pure_kernels.KeyTable, made, keys, start, now_ms
    )


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
    made = [*made[:-1], bytes(batch)]
    keys = data.draw(st.integers(1, 12))
    assert _round(compiled.KeyTable, made, keys, 0, NOW_MS) == _round(pure_kernels.KeyTable, made, keys, 0, NOW_MS)


PAIRS = st.lists(st.tuples(st.sampled_from([b"a", b"b", None]), st.sampled_from([b"x", None])), min_size=1, max_size=5)
STEPS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from([-1, 0]), PAIRS, CODECS),
    st.tuples(st.just("send"), st.sampled_from([1, 2]), PAIRS, CODECS),
    st.tuples(st.just("end"), st.sampled_from([1, 2]), st.sampled_from([ControlType.ABORT, ControlType.COMMIT])),
    st.tuples(st.just("roll")),
)


def _log_cleaned(table: Any, script: Sequence[tuple[Any, ...]], waits: Sequence[int], keys: int) -> list[object]:
    build = LogBuilder(compacted(delete_retention_ms=100, segment_bytes=400))
    for name, *values in script:
        if name == "roll":
            build.roll()
        elif name == "end":
            build.end(*values)
        else:
            producer, pairs, codec = values
            build.append(pairs, producer=producer, transactional=name == "send", codec=codec)
    build.roll()
    told: list[object] = []
    log, now_ms = build.build(), NOW_MS
    before = offset_map_module.KeyTable
    offset_map_module.KeyTable = table  # type: ignore[misc]
    try:
        for wait in waits:
            now_ms += wait
            done = clean(log, now_ms, memory_bytes=keys * ENTRY_BYTES)
            log = done.log
            told += [log.batches, log.aborted, log.checkpoint, repr(done.stats)]
    finally:
        offset_map_module.KeyTable = before  # type: ignore[misc]
    return told


@needs_both
@given(
    st.lists(STEPS, min_size=1, max_size=25),
    st.lists(st.sampled_from([0, 50, 100]), min_size=1, max_size=4),
    st.sampled_from([1, 3, 1000]),
)
@example([("append", -1, [(b"a", None), (b"b", None)], Codec.NONE), ("roll",)], [0, 100], 1000)
def test_both_twins_leave_the_same_log(script: list[tuple[Any, ...]], waits: list[int], keys: int) -> None:
    assert _log_cleaned(compiled.KeyTable, script, waits, keys) == _log_cleaned(
        pure_kernels.KeyTable, script, waits, keys
    )


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
