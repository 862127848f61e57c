"""The compiled kernels and their pure twin: the same bytes, the same values, the same errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.format import strategies
from tests.unit.format.odd_records import (
    NOW,
    Bytes,
    Late,
    Number,
    Text,
    containers,
    lists,
    times,
)
from tests.unit.format.twins import at_work, both, compiled, needs_both, outcome
from tiered.config import MAX_LONG, TopicConfig
from tiered.format import kernels, partitioner, pure_kernels
from tiered.format.batch import MAX_BATCH_BYTES, BatchProducer, encode_batch
from tiered.format.codecs import Codec
from tiered.format.kernel_values import NO_PRODUCER, BatchForm
from tiered.format.kernels import crc32c
from tiered.local.partition.validation import RecordRules
from tiered.model import NewRecord, TimestampType

ROOT = Path(__file__).parents[3]


def test_the_kernels_at_work_are_those_that_were_asked_for() -> None:
    if os.environ.get("TIERED_NO_EXTENSION"):
        assert (kernels.KERNELS_IN_USE, kernels.encode_records) == ("pure Python", pure_kernels.encode_records)
    if os.environ.get("TIERED_REQUIRE_EXTENSION"):
        assert kernels.KERNELS_IN_USE.startswith("compiled (Cython ")
        assert kernels.encode_records is not pure_kernels.encode_records


def test_who_requires_the_extension_is_told_that_it_is_not_at_work() -> None:
    env = {**os.environ, "TIERED_NO_EXTENSION": "1", "TIERED_REQUIRE_EXTENSION": "1"}
    code = "import tiered.format.kernels"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    said = "ImportError: TIERED_REQUIRE_EXTENSION is set, but the compiled kernels cannot be loaded"
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"{said}: TIERED_NO_EXTENSION is set"


@needs_both
@given(
    records=lists,
    container=containers,
    base=st.sampled_from([0, 7, 2**63 - 1, -1, 2**63, "5"]),
    epoch=st.sampled_from([-1, 3, 2**31 - 1, 2**31]),
    codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]),
    kind=st.sampled_from(TimestampType),
    append_time=st.sampled_from([NOW, -1, 2**63]),
    producer=st.sampled_from([(-1, -1, -1), (5, 1, 9), (2**63, 1, 9), (5, 2**15, 9), (5, 1, 2**31), (5, 1.5, 3)]),
    flags=st.tuples(st.booleans(), st.booleans()),
)
def test_a_batch_is_the_same_and_so_is_every_refusal(
    records: list[Any],
    container: Callable[[list[Any]], Any],
    base: Any,
    epoch: int,
    codec: Codec,
    kind: TimestampType,
    append_time: int,
    producer: tuple[Any, Any, Any],
    flags: tuple[bool, bool],
) -> None:
    ours, pure = both(
        lambda: encode_batch(
            container(list(records)),
            base_offset=base,
            leader_epoch=epoch,
            codec=codec,
            timestamp_type=kind,
            append_time_ms=append_time,
            producer=BatchProducer(producer[0], producer[1], producer[2], transactional=flags[0], control=flags[1]),
        )
    )
    assert ours == pure
    assert type(ours) is type(pure)


@needs_both
@given(records=strategies.record_lists)
def test_plain_records_are_encoded_by_the_compiled_kernels_themselves(records: list[NewRecord]) -> None:
    plain = [NewRecord(r.value, r.key, r.timestamp, r.headers and list(r.headers)) for r in records]
    form = BatchForm(False, MAX_BATCH_BYTES, 0, True, False, MAX_LONG, MAX_LONG)
    before = crc32c(b"before")
    found = compiled.encode_batch(plain, form, -1, -1, 3, 4, NO_PRODUCER, before)
    assert type(found[0]) is bytearray
    stamps, size = [r.timestamp for r in plain], len(found[0])
    assert found[1:3] == ((size, 2 + len(plain), len(plain), min(stamps), max(stamps)), stamps[0])
    assert found[3] == crc32c(b"before" + found[0])
    assert compiled.encode_records(plain, stamps[0]) == pure_kernels.encode_records(plain, stamps[0])
    assert compiled.encode_batch(plain, form._replace(most_bytes=size - 1), -1, -1, 3, 4, NO_PRODUCER) is None
    exact = form._replace(most_bytes=size, mutable=False)
    assert compiled.encode_batch(plain, exact, -1, -1, 3, 4, NO_PRODUCER)[0] == bytes(found[0])


@needs_both
@given(records=lists, base=times)
@example(records=[NewRecord(b"x" * (1 << 20), b"k", NOW)], base=NOW)
@example(records=[Late(b"v", None, NOW)], base=NOW)
@example(records=[NewRecord(b"v", None, NOW, [["name", b"value"]])], base=NOW)  # type: ignore[list-item]
@example(records=[NewRecord(b"v", None, NOW, [(Text("name"), b"value")])], base=NOW)
@example(records=[NewRecord(Bytes(b"v"), None, NOW)], base=NOW)
@example(records=[[b"v", None, NOW, None]], base=NOW)
@example(records=[NewRecord(b"v", None, Number(NOW))], base=NOW)
@example(records=[NewRecord(b"v", None, 2**63 - 1), NewRecord(b"w", None, -1)], base=2**63 - 1)
@example(records=[NewRecord(b"v", None, -1), NewRecord(b"w", None, 2**63 - 1)], base=-1)
def test_records_alone(records: list[Any], base: Any) -> None:
    assert outcome(lambda: compiled.encode_records(records, base)) == outcome(
        lambda: pure_kernels.encode_records(records, base)
    )


RULES = [
    {},
    {"cleanup.policy": "compact"},
    {"message.timestamp.type": "LogAppendTime"},
    {"max.message.bytes": 300},
    {"message.timestamp.before.max.ms": 1000, "message.timestamp.after.max.ms": 2000},
    {"compression.type": "zstd"},
]


@needs_both
@given(
    records=lists,
    settings=st.sampled_from(RULES),
    now=st.sampled_from([NOW, 0, 1_000, 2**62, -1]),
    producer=st.sampled_from([(-1, -1, -1), (9, 0, 5)]),
)
@example(records=[NewRecord(b"v", b"k", NOW)], settings={}, now=-1, producer=(-1, -1, -1))
@example(records=[NewRecord(b"v", b"k", 2**63 - 1)], settings={}, now=-1, producer=(-1, -1, -1))
@example(records=[NewRecord(b"v", b"k", NOW)], settings=RULES[2], now=-1, producer=(-1, -1, -1))
@example(records=[NewRecord(b"v"), NewRecord(b"w", None, 5)], settings={}, now=NOW, producer=(-1, -1, -1))
@example(records=[(b"v", b"k", -1, None), (b"w", b"k", 7, None)], settings=RULES[1], now=NOW, producer=(9, 0, 5))
@example(records=[NewRecord(b"v", b"k", NOW - 1001)], settings=RULES[4], now=NOW, producer=(-1, -1, -1))
@example(records=[NewRecord(b"v", b"k", NOW + 2001)], settings=RULES[4], now=NOW, producer=(-1, -1, -1))
@example(records=[NewRecord(b"v" * 250, b"k")], settings=RULES[3], now=NOW, producer=(-1, -1, -1))
def test_what_a_log_stores_and_refuses(
    records: list[Any], settings: dict[str, Any], now: int, producer: tuple[int, int, int]
) -> None:
    rules = RecordRules(TopicConfig.from_properties(settings))
    ours, pure = both(lambda: rules.encode(records, now, producer))
    assert ours == pure


@needs_both
def test_most_bytes_is_the_whole_batch_and_a_key_may_be_missed() -> None:
    records = [NewRecord(b"v" * 100), NewRecord(b"w", b"k")]
    size = len(encode_batch(records))

    def stamped(most_bytes: int, keyed: bool = False, **others: Any) -> object:
        form = BatchForm(keyed, most_bytes, 0, False, False, 3, 3)._replace(**others)
        return kernels.encode_batch(records, form, 5, 5, 0, -1, NO_PRODUCER)

    with at_work(compiled):
        assert stamped(size + 10) is not None
        assert (stamped(size - 1), stamped(10), stamped(10**6, keyed=True)) == (None, None, None)
        records[1] = NewRecord(b"w", b"k", 1)
        assert stamped(size + 10) is None  # too old
        assert stamped(size + 10, before_ms=4) is not None
        assert stamped(size + 10, attributes=8) is not None  # the log's time
        records[1] = (b"w", b"k")  # type: ignore[call-overload]
        assert stamped(size + 10) is None
        records[0] = b"v" * 100  # type: ignore[call-overload]
        assert stamped(size + 10, given=True) is not None
    with at_work(pure_kernels):
        assert stamped(10**6) is None


@needs_both
@given(size=st.integers(0, 70), base=st.integers(-(2**63), 2**63 - 1), epoch=st.integers(-(2**31), 2**31 - 1))
@example(size=61, base=2**63, epoch=0)
@example(size=61, base=0, epoch=2**31)
def test_offsets_are_written_in_place(size: int, base: int, epoch: int) -> None:
    def call(make: Callable[[bytearray], Any]) -> object:
        buffer = bytearray(b"\x55" * size)
        return kernels.assign_offsets(make(buffer), base, epoch, 7), bytes(buffer)

    kinds: list[Callable[[bytearray], Any]] = [lambda b: b, memoryview, lambda b: memoryview(b).toreadonly(), bytes]
    for make in kinds:
        ours, pure = both(lambda make=make: call(make))  # type: ignore[misc]
        assert ours == pure


@needs_both
@given(key=st.binary(max_size=40) | st.binary(min_size=200, max_size=300))
@example(key=b"")
@example(key=b"\xff" * 7)
def test_a_key_has_one_hash(key: bytes) -> None:
    assert compiled.murmur2(key) == partitioner.murmur2(key) == kernels.murmur2(key)
    for make in (bytearray, memoryview, Bytes):  # not plain bytes: the pure twin takes them
        assert compiled.murmur2(make(key)) == partitioner.murmur2(key)


@needs_both
@given(odd=st.none() | st.text(max_size=5) | st.integers() | st.lists(st.integers(-1, 300), max_size=6))
def test_what_has_no_hash_is_refused_in_the_same_words(odd: object) -> None:
    ours, pure = both(lambda: kernels.murmur2(odd))  # type: ignore[arg-type]
    assert ours == pure
