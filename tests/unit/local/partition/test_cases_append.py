"""Acceptance cases of append, roll and read; the number in a name is the case's own."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.given import append_given
from tests.unit.local.bench import RECORD_BYTES, CaseBench, batch
from tests.unit.local.partition.old_batches import UNTIMED, message, wrapper
from tiered.config import MAX_LONG
from tiered.errors import (
    ConfigError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from tiered.format.batch import HEADER_BYTES, BatchProducer, encode_batch, read_header
from tiered.format.codecs import Codec
from tiered.local.partition.write_log import WriteLog
from tiered.model import NewRecord, TimestampType
from tiered.plan.lineage import epoch_at
from tiered.plan.producer import ProducerStamp
from tiered.plan.roll import MAX_RELATIVE_OFFSET
from tiered.testing.clock import START_MS

HOUR_S = 3600


def test_case_20_without_timestamps_the_wall_clock_rolls(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", segment_ms=HOUR_S * 1000)
    bench.clock.advance(HOUR_S + 1)
    bench.partition.append_batches(UNTIMED)
    assert len(bench.bases) == 1  # it was empty
    bench.partition.append_batches(UNTIMED)
    for segments in range(2, 6):
        assert len(bench.bases) == segments
        bench.clock.advance(HOUR_S + 1)
        bench.partition.append_batches(UNTIMED)
    assert [r.timestamp for r in bench.records()] == [-1] * 6


def test_case_21_an_empty_set_never_rolls(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", segment_ms=1000)
    bench.fill(1)
    bench.clock.advance(HOUR_S)
    with pytest.raises(InvalidRecordError):
        bench.partition.append([])
    with pytest.raises(InvalidRecordError):
        bench.partition.append_batches(b"")
    assert bench.bases == [0]


def test_case_22_jitter_shortens_the_age_of_a_segment(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", segment_ms=100_000, segment_jitter_ms=20_000)
    jitter = bench.partition.segments.active._jitter_ms
    assert 0 < jitter <= 20_000
    bench.clock.advance(24 * HOUR_S)  # the wall clock does not count where there are timestamps
    bench.fill(1, timestamp=START_MS)
    bench.fill(1, timestamp=START_MS + 100_000 - 20_000)
    bench.fill(1, timestamp=START_MS + 100_000 - jitter)
    assert bench.bases == [0]
    bench.fill(1, timestamp=START_MS + 100_000 - jitter + 1)
    assert bench.bases == [0, 3]


def test_case_23_too_large_for_a_segment_or_for_a_message(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", segment_bytes=2000, max_message_bytes=500)
    large = batch(0, value=b"v" * 600)
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"):
        bench.partition.append_batches(large)
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"):
        bench.append(b"v" * 600)
    with pytest.raises(RecordTooLargeError, match=r"segment\.bytes"):
        bench.partition.append_batches(b"".join(batch(0, value=b"v" * 300) for _ in range(6)))
    assert bench.offsets() == []


def test_case_25_a_read_begins_at_the_next_record_there_is(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=10, index_interval_bytes=1)
    given = [*range(50), *range(50, 300, 7)]
    for offset in given:
        append_given(bench.partition, batch(offset))
    for start in range(given[-1]):
        wanted = next(offset for offset in given if offset >= start)
        found = next(bench.partition.read_batches(start))
        assert (start, read_header(found).base_offset) == (start, wanted)
    bench.reopen()
    assert bench.offsets(0) == given


def test_case_30_rolls_do_not_move_the_end(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    for i in range(100):
        assert bench.append(b"v") == i
        assert bench.partition.roll()
        assert bench.partition.positions().end_offset == i + 1
        assert bench.partition.segments.active.size_bytes == 0
        assert bench.partition.flush() is None
        assert bench.partition.positions().flushed_offset == i + 1
    assert bench.bases == list(range(101))
    assert bench.offsets() == list(range(100))


def test_case_31_closed_indexes_and_those_of_an_emptied_segment(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=10, index_interval_bytes=RECORD_BYTES - 1, segment_index_bytes=1000)
    for i in range(10):
        bench.append(b"v", timestamp=START_MS + i)
    bench.partition.roll()
    assert (len(bench.index(0)), len(bench.times(0))) == (9, 9)
    bench.partition.truncate_to(0)
    assert bench.bases == [0]
    for i in range(3):
        bench.append(b"v", timestamp=START_MS + i)
    assert (bench.folder / f"{0:020d}.index").stat().st_size == 1000 // 8 * 8
    assert (bench.folder / f"{0:020d}.timeindex").stat().st_size == 1000 // 12 * 12
    assert (bench.partition.segments.active._max_offsets, bench.partition.segments.active._max_times + 1) == (
        1000 // 8,
        1000 // 12,
    )


def test_case_32_a_compacted_topic_wants_keys(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", cleanup_policy="compact")
    records = [NewRecord(b"v", b"k", 5), NewRecord(b"v", None, 5), NewRecord(None, b"k", 5), NewRecord(b"v", None, 5)]
    for append in (bench.partition.append, lambda r: bench.partition.append_batches(encode_batch(r))):
        with pytest.raises(InvalidRecordError, match="no key") as caught:
            append(records)
        assert (caught.value.index, caught.value.indexes) == (1, (1, 3))
    assert bench.partition.positions().end_offset == 0
    bench.log.alter_topic("t", {"cleanup.policy": "delete"})
    bench.partition.append([*records, NewRecord(None, None, 5)])
    assert bench.partition.positions().end_offset == 5


def test_case_34_lookups_by_time_with_epochs(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    bench.append(b"v", timestamp=100)
    bench.partition.new_leader_epoch(1)
    bench.partition.append([NewRecord(b"v", None, 200), NewRecord(b"v", None, 300), NewRecord(b"v", None, 250)])
    bench.append(b"v", timestamp=200)
    for timestamp, offset, epoch in ((100, 0, 0), (101, 1, 1), (200, 1, 1), (300, 2, 1)):
        found = bench.partition.offset_for_time(timestamp)
        assert found is not None
        assert (found[0], epoch_at(bench.partition.leader_epochs(), found[0])) == (offset, epoch)
    assert bench.partition.offset_for_time(301) is None
    assert (bench.partition.positions().end_offset, bench.epochs) == (5, [(0, 0), (1, 1)])


def test_case_60_a_batch_of_another_codec_is_encoded_anew_others_keep_their_bytes(tmp_path: Path) -> None:
    sent = batch(0, 5, 6, 7, codec=Codec.GZIP)
    for kind, codec, same in (("producer", Codec.GZIP, True), ("gzip", Codec.GZIP, True), ("zstd", Codec.ZSTD, False)):
        bench = CaseBench(tmp_path / kind, compression_type=kind)
        bench.partition.append_batches(sent)
        stored = bytes(next(bench.partition.read_batches(0)))
        assert read_header(stored).codec == codec
        assert (stored[21:] == sent[21:]) == same
        assert [r.timestamp for r in bench.records()] == [5, 6, 7]


def test_case_60_another_level_alone_changes_nothing(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", compression_type="gzip", compression_gzip_level=1)
    sent = encode_batch([NewRecord(b"value " * 50, b"k", 5)], codec=Codec.GZIP, level=9)
    bench.partition.append_batches(sent)
    assert bytes(next(bench.partition.read_batches(0)))[21:] == sent[21:]


def test_a_batch_that_grows_beyond_the_limit_when_encoded_anew_is_refused(tmp_path: Path) -> None:
    sent = batch(0, value=b"v" * 5000, codec=Codec.GZIP)
    assert len(sent) < 500
    bench = CaseBench(tmp_path / "log", compression_type="uncompressed", max_message_bytes=500)
    with pytest.raises(RecordTooLargeError):
        bench.partition.append_batches(sent)


def test_case_59_log_append_time_changes_the_header_only(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", message_timestamp_type="LogAppendTime")
    sent = batch(0, 5, 6, 7, codec=Codec.ZSTD)
    bench.partition.append_batches(sent)
    stored = bytes(next(bench.partition.read_batches(0)))
    assert len(stored) == len(sent)
    assert stored[HEADER_BYTES:] == sent[HEADER_BYTES:]
    assert stored[27:35] == sent[27:35]
    assert read_header(stored).max_timestamp == START_MS
    assert [r.timestamp for r in bench.records()] == [START_MS] * 3
    assert bench.partition.offset_for_time(START_MS) == (0, START_MS)


def test_a_log_append_time_batch_on_a_create_time_topic_gets_its_own_times_back(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    stamped: dict[str, Any] = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "append_time_ms": 99}
    bench.partition.append_batches(batch(0, 5, 7, **stamped))
    assert [r.timestamp for r in bench.records()] == [5, 7]
    with pytest.raises(InvalidTimestampError):
        bench.partition.append_batches(batch(0, 5, -1, **stamped))


def test_case_59_timestamps_out_of_range_are_all_named(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    stamps = [START_MS - 1001, START_MS - 1000, START_MS + 1000, START_MS + 1001, 5, 6]
    with pytest.raises(InvalidTimestampError, match=r"records 0, 3, 4 and 1 more") as caught:
        bench.partition.append([NewRecord(b"v", None, s) for s in stamps])
    assert caught.value.indexes == (0, 3, 4, 5)
    with pytest.raises(InvalidTimestampError, match=r"records 0, 3, 4 and 1 more") as caught:
        bench.partition.append_batches(batch(0, *stamps))
    assert caught.value.indexes == (0, 3, 4, 5)
    bench.partition.append_batches(batch(0, START_MS - 1000, -1))
    assert [r.timestamp for r in bench.records()] == [START_MS - 1000, -1]


def test_old_formats_are_upgraded_by_an_append_and_read_where_a_broker_left_them(tmp_path: Path) -> None:
    sent = message(7, b"a", magic=0) + message(8, b"b") + wrapper(1, b"c", b"d")
    ours = CaseBench(tmp_path / "ours")
    assert ours.partition.append_batches(sent).end_offset == 4
    assert [read_header(b).magic for b in ours.partition.read_batches(0)] == [2]
    assert ours.values() == [b"a", b"b", b"c", b"d"]
    assert [r.timestamp for r in ours.records()] == [-1, 5, 5, 5]

    theirs = CaseBench(tmp_path / "theirs")
    sent = message(0, b"a", magic=0) + message(1, b"b") + wrapper(3, b"c", b"d")
    append_given(theirs.partition, sent)
    assert b"".join(bytes(b) for b in theirs.partition.read_batches(0)) == sent
    theirs.partition.roll()
    theirs.reopen()
    assert [(r.offset, r.value) for r in theirs.records()] == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


def test_a_batch_with_holes_is_refused_and_one_out_of_order_is_encoded_anew(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    holes = bytearray(batch(0, 5, 6))
    struct.pack_into(">i", holes, 23, 5)
    with pytest.raises(InvalidRecordError):
        bench.partition.append_batches(bytes(holes))
    with pytest.raises(InvalidRecordError, match="sequence"):
        bench.partition.append_batches(batch(0, producer=BatchProducer(7, 0)))
    with pytest.raises(InvalidRecordError, match="control"):
        bench.partition.append_batches(batch(0, producer=BatchProducer(control=True)))


def test_bases_beyond_31_bits(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log")
    base = MAX_RELATIVE_OFFSET + 5
    bench.partition.start_at(base, 2)
    bench.fill(3)
    bench.partition.roll()
    bench.fill(1)
    bench.reopen()
    assert bench.offsets() == list(range(base, base + 4))


def test_a_tiered_log_is_not_cut_below_what_its_bucket_holds(tmp_path: Path) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=5)
    bench.fill(12)
    bench.partition.set_uploaded(10, 1)
    with pytest.raises(ConfigError, match="are uploaded"):
        bench.partition.truncate_to(9)
    with pytest.raises(ConfigError):
        bench.partition.truncate_to(-1)
    bench.partition.truncate_to(10)
    assert bench.partition.positions().end_offset == 10


WAYS: list[Callable[[WriteLog], object]] = [
    lambda log: log.append([NewRecord(b"v")] * 2),
    lambda log: log.append_batches(encode_batch([NewRecord(b"v")] * 2)),
    lambda log: log.append_batches(encode_batch([NewRecord(b"v")]) * 2),
    lambda log: log.append_as_producer([NewRecord(b"v")] * 2, ProducerStamp(7, 0, 0)),
]


@pytest.mark.parametrize("append", WAYS)
def test_an_append_beyond_the_last_offset_of_the_format_is_refused(
    tmp_path: Path, append: Callable[[WriteLog], object]
) -> None:
    bench = CaseBench(tmp_path)
    with pytest.raises(ConfigError):
        bench.partition.start_at(MAX_LONG + 1, 0)
    bench.partition.start_at(MAX_LONG - 1, 0)
    with pytest.raises(InvalidRecordError, match="would exceed the largest offset"):
        append(bench.partition)
    assert bench.append(b"last") == MAX_LONG - 1
    with pytest.raises(InvalidRecordError, match="would exceed the largest offset"):
        bench.append(b"none")
    assert bench.values(MAX_LONG - 1) == [b"last"]
    bench.reopen()
    assert bench.partition.positions().end_offset == MAX_LONG
