"""Batches of other writers in a partition: odd names are kept byte for byte, what cannot be decoded is not taken."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tests.golden.foreign import batch, field, lz4_block, lz4_frame, named, plain_records, record
from tests.support.admin import check
from tests.support.given import append_given
from tests.unit.local.cleaning.cleaning_bench import CleaningBench
from tiered.check.check import CheckOptions
from tiered.check.findings import Severity
from tiered.config import LogConfig, TopicConfig
from tiered.errors import CodecUnavailableError, CorruptionError, InvalidRecordError, RecordTooLargeError
from tiered.format.batch import decode_records, encode_batch, read_header
from tiered.format.codecs import Codec
from tiered.format.kernels import Record
from tiered.local.directory.log_directory import LocalLog
from tiered.local.partition import validation
from tiered.model import HeaderName, NewRecord, TopicPartition

TP = TopicPartition("t", 0)
NAME = b"a\xff\xfe"
ODD = batch(record(headers=named((NAME, b"x"), (b"ok", None))))
SHOWN = [("a\ufffd\ufffd", b"x"), ("ok", None)]


def raw_names(records: list[Record]) -> list[bytes]:
    return [name.raw for one in records for name, _ in one.headers if isinstance(name, HeaderName)]


@pytest.mark.parametrize("codec", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_name_that_is_not_utf_8_is_appended_with_its_bytes(tmp_path: Path, codec: str) -> None:
    with LocalLog.open(tmp_path, config=LogConfig(disk_reserve_bytes=0)) as log:
        log.create_topic("t", 1, TopicConfig(compression_type=codec))
        partition = log.partition(TP)
        partition.append([NewRecord(b"before")])
        partition.append_batches(ODD)
        append_given(partition, struct.pack(">q", 2) + ODD[8:])
        partition.append([NewRecord(b"after")])
        records = [one for data in partition.read_batches(0) for one in decode_records(bytes(data))]
        assert [one.value for one in records] == [b"before", b"v", b"v", b"after"]
        assert [one.headers for one in records[1:3]] == [SHOWN, SHOWN]
        assert raw_names(records) == [NAME, NAME]


def test_compaction_keeps_the_bytes_of_names(tmp_path: Path) -> None:
    bench = CleaningBench(tmp_path / "log")
    both = record(0, headers=named((NAME, b"x"))) + record(1, key=field(b"gone"))
    bench.partition.append_batches(batch(both, 2))
    bench.put("g1")
    bench.partition.append([NewRecord(b"newer", b"gone")])
    bench.seal()
    bench.clean()
    records = bench.records()
    assert [(one.offset, one.key) for one in records] == [(0, b"k"), (2, b"g"), (3, b"gone")]
    assert records[0].headers == [("a\ufffd\ufffd", b"x")]
    assert raw_names(records) == [NAME]


def test_a_follower_stores_what_nobody_can_decode(tmp_path: Path) -> None:
    sent = struct.pack(">q", 1) + batch(b"\x7f" * 9, 2, epoch=0)[8:]
    header = read_header(sent)
    first = header.base_timestamp
    assert first < header.max_timestamp
    with pytest.raises(CorruptionError):
        list(decode_records(sent))
    with LocalLog.open(tmp_path, config=LogConfig(disk_reserve_bytes=0)) as log:
        log.create_topic("t", 1)
        partition = log.partition(TP)
        partition.append([NewRecord(b"before", None, header.max_timestamp)])
        assert append_given(partition, sent).end_offset == 3
        append_given(
            partition, encode_batch([NewRecord(b"after", None, header.max_timestamp)], base_offset=3, leader_epoch=0)
        )
        assert [bytes(data) for data in partition.read_batches(0)][1] == sent
        partition.roll()
        noted = partition.sealed_segments()[0].descriptor
        assert (noted.records, noted.min_timestamp, noted.max_timestamp) == (4, first, header.max_timestamp)
    for note in (tmp_path / "t-0").glob("*.seal"):
        note.unlink()
    with LocalLog.open(tmp_path, config=LogConfig(disk_reserve_bytes=0)) as log:
        found_again = log.partition(TP).sealed_segments()[0].descriptor
        # Without its note the time of the append is that of the file.
        assert replace(found_again, appended_ms=noted.appended_ms) == noted
    found = check(tmp_path, None, CheckOptions(read_data=True)).findings
    assert [each.code for each in found if each.severity is Severity.ERROR] == ["record"], found


def test_a_batch_of_too_many_records_is_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "MAX_BATCH_RECORDS", 3)
    sent = encode_batch([NewRecord(b"v")] * 4, codec=Codec.ZSTD)
    with LocalLog.open(tmp_path, config=LogConfig(disk_reserve_bytes=0)) as log:
        log.create_topic("t", 1)
        partition = log.partition(TP)
        with pytest.raises(RecordTooLargeError, match="a batch has 4 records, and the limit is 3") as caught:
            partition.append_batches(sent)
        assert "batch.num.messages" in caught.value.hint
        assert partition.append_batches(encode_batch([NewRecord(b"v")] * 3)).end_offset == 3
        append_given(partition, struct.pack(">q", 3) + sent[8:])  # its leader has taken it
        assert partition.positions().end_offset == 7


def undecodable() -> dict[str, bytes]:
    """Batches with right CRCs and headers that a broker would not take of a client."""
    data = plain_records(3)
    return {
        "too few records": batch(data, 6),
        "a byte too many": batch(data + b"\0", 3),
        "a length beyond the record": batch(record(key=field(b"k", 50))),
        "gzip that is none": batch(data, 3, codec=1, packed=b"junk"),
        "codec 6": batch(data, 3, codec=6),
        "linked lz4 blocks": batch(data, 3, codec=3, packed=lz4_frame(lz4_block(data), 0x40)),
        "an array of integers": of_integers(),
    }


def of_integers() -> bytes:
    """What a writer made that took ``len()`` of an array of integers for its bytes."""
    body = b"\0\0\0" + field(None) + field(bytes(24), 3) + b"\0"
    return batch(bytes((2 * len(body),)) + body)


@pytest.mark.parametrize("name", undecodable())
def test_a_clients_batch_that_nobody_could_decode_is_an_invalid_record(tmp_path: Path, name: str) -> None:
    with LocalLog.open(tmp_path, config=LogConfig(disk_reserve_bytes=0)) as log:
        log.create_topic("t", 1)
        partition = log.partition(TP)
        good = encode_batch([NewRecord(b"good", None, 1000)])
        with pytest.raises(InvalidRecordError, match="cannot be appended") as caught:
            partition.append_batches(good + undecodable()[name])
        assert caught.value.index == 1
        assert isinstance(caught.value.__cause__, CorruptionError)
        assert isinstance(caught.value.__cause__, CodecUnavailableError) == (name == "codec 6")
        assert partition.positions().end_offset == 0
        assert partition.append_batches(good).offset == 0
