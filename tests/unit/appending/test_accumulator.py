"""Both twins of what an appender does for each record: the same records, bytes, times and refusals."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tiered.appending.appender import RECORD_OVERHEAD_BYTES, Appender
from tiered.appending.receipt import BATCH_OVERHEAD_BYTES
from tiered.config import TopicConfig
from tiered.format import accumulator, kernels
from tiered.format.batch import encode_batch
from tiered.local.partition.validation import RecordRules
from tiered.model import NewRecord, PackedBatch

COMPILED = kernels.KERNELS_IN_USE != kernels.PURE
needs_compiled = pytest.mark.skipif(not COMPILED, reason="the compiled kernels are not at work")

field = st.none() | st.binary(max_size=300)
times = st.integers(1_700_000_000_000, 1_700_000_000_010) | st.integers(0, 2**62)
plain = st.tuples(field, field, times, st.none())
odd = st.builds(NewRecord, value=field, key=field, timestamp=times, headers=st.just([("h", b"1")]))


def values(records: list[Any]) -> list[tuple[Any, ...]]:
    return [(*record[:3], record[3] or None) for record in records]


@given(st.lists(plain, max_size=200))
def test_plain_records_are_the_batch_that_the_encoder_makes(records: list[Any]) -> None:
    batch = accumulator.AccumulatedBatch(BATCH_OVERHEAD_BYTES)
    for record in records:
        batch.add(record)
    packed = batch.packed()
    if not records or not COMPILED:
        assert packed is None
    else:
        stamps = [record[2] for record in records]
        facts = (len(records), stamps[0], min(stamps), max(stamps), all(record[1] is not None for record in records))
        assert (bytes(packed.data), *packed[1:]) == (encode_batch(records), *facts)
    assert values(batch.records) == values(records)
    assert batch.packed() is None  # they are in a list now


@given(st.lists(plain | odd, max_size=60))
def test_whatever_comes_is_kept_in_order(records: list[Any]) -> None:
    batch = accumulator.AccumulatedBatch(BATCH_OVERHEAD_BYTES)
    for record in records:
        batch.add(record)
    assert batch.count == len(records)
    assert values(batch.records) == values(records)
    batch.release()
    assert (batch.count, [batch.time_of(i) for i in range(len(records))]) == (len(records), [r[2] for r in records])
    assert (batch.packed(), batch.records) == (None, [])


@given(st.lists(plain, min_size=1, max_size=60))
def test_times_outlive_the_records(records: list[Any]) -> None:
    batch = accumulator.AccumulatedBatch(BATCH_OVERHEAD_BYTES)
    for record in records:
        batch.add(record)
    batch.release()
    assert [batch.time_of(i) for i in range(len(records))] == [record[2] for record in records]
    with pytest.raises(IndexError):
        batch.time_of(len(records))


@needs_compiled
@given(value=st.binary(max_size=20_000), key=field, at=st.integers(0, 2**62))
def test_a_record_takes_no_more_than_its_overhead(value: bytes, key: bytes | None, at: int) -> None:
    batch = accumulator.AccumulatedBatch(BATCH_OVERHEAD_BYTES)
    batch.add((value, None, 2**62, None))
    first = batch.packed()
    assert first is not None
    before = len(first.data)
    again = accumulator.AccumulatedBatch(BATCH_OVERHEAD_BYTES)
    again.add((value, None, 2**62, None))
    again.add((value, key, at, None))
    both = again.packed()
    assert both is not None
    assert len(both.data) - before <= RECORD_OVERHEAD_BYTES + len(value) + len(key or b"")


def test_what_an_appender_writes_equals_an_append_of_the_same(tmp_path: Path) -> None:
    """Byte for byte, whether its records were encoded as they came or not."""
    seen: list[PackedBatch] = []
    with tiered.open(tmp_path / "one") as log, tiered.open(tmp_path / "other") as other:
        topic, twin = (each.topic("t", partitions=2, create=True) for each in (log, other))
        with topic.appender(linger_ms=3_600_000) as appender:
            for at in range(500):
                appender.append(b"v%d" % at, key=b"k%d" % (at % 7))
            for partition, batch in appender._open.items():
                packed = batch.packed()
                assert (packed is not None) == COMPILED
                seen += [packed] if packed else []
                twin.log(partition).append([NewRecord(*record) for record in batch.records])
        for partition in range(2):
            one, two = ((tmp_path / name / f"t-{partition}" / f"{0:020}.log").read_bytes() for name in ("one", "other"))
            assert one == two
    assert len(seen) == (2 if COMPILED else 0)


@pytest.mark.parametrize(
    "config",
    [
        {"compression.type": "lz4"},
        {"message.timestamp.type": "LogAppendTime"},
        {"cleanup.policy": "compact"},
    ],
)
def test_settings_that_ask_for_more_than_the_bytes(tmp_path: Path, config: dict[str, str]) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", create=True, config=config)
        with topic.appender(linger_ms=3_600_000) as appender:
            receipts = [appender.append(b"%d" % at, key=b"k") for at in range(10)]
            appender.flush()
            assert [receipt.offset for receipt in receipts] == list(range(10))
            assert [receipt.timestamp for receipt in receipts] == [record.timestamp for record in topic.read()]
        assert [record.value for record in topic.read()] == [b"%d" % at for at in range(10)]


@pytest.mark.parametrize(
    ("config", "changed", "taken"),
    [
        (TopicConfig(), {}, True),
        (TopicConfig(compression_type="lz4"), {}, False),
        (TopicConfig(compression_type="producer"), {}, True),
        (TopicConfig(message_timestamp_type="LogAppendTime"), {}, False),
        (TopicConfig(cleanup_policy="compact"), {}, True),
        (TopicConfig(cleanup_policy="compact"), {"keyed": False}, False),
        (TopicConfig(max_message_bytes=70), {}, True),
        (TopicConfig(max_message_bytes=69), {}, False),
        (TopicConfig(message_timestamp_before_max_ms=9), {}, False),
        (TopicConfig(message_timestamp_before_max_ms=10), {}, True),
        (TopicConfig(message_timestamp_after_max_ms=5), {"max_timestamp": 1006}, False),
        (TopicConfig(message_timestamp_after_max_ms=6), {"max_timestamp": 1006}, True),
    ],
)
def test_which_batches_are_written_as_they_are(config: TopicConfig, changed: dict[str, Any], taken: bool) -> None:
    batch = PackedBatch(bytearray(70), 2, 990, 990, 995, keyed=True)._replace(**changed)
    assert RecordRules(config).takes(batch, 1000) is taken


def test_a_record_with_headers_among_others(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", create=True)
        with topic.appender(linger_ms=3_600_000) as appender:
            appender.append(b"a")
            appender.append(b"b", headers=[("h", b"1")])
            receipt = appender.append(b"c")
        assert [(r.offset, r.value, list(r.headers)) for r in topic.read()] == [
            (0, b"a", []),
            (1, b"b", [("h", b"1")]),
            (2, b"c", []),
        ]
        assert receipt.offset == 2


def test_receipts_and_their_appender_are_let_go(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", create=True)
        appender = topic.appender(linger_ms=3_600_000)
        receipt = appender.append(b"v")
        assert receipt._when_done(lambda kept=receipt: None)  # type: ignore[misc]  # a cycle until it is done
        gone: weakref.ref[Appender] = weakref.ref(appender)
        appender.close()
        del appender, receipt
        gc.collect()
        assert gone() is None
