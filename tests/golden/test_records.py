"""Every batch that Kafka wrote decodes to what Kafka's consumer saw, and encodes to the same bytes again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.fixtures import (
    MAIN,
    ROOTS,
    segment_files,
)
from tiered.format.batch import (
    HEADER_BYTES,
    BatchHeader,
    BatchProducer,
    control_type,
    decode_records,
    encode_batch,
    rebuild_batch,
    verify_batch,
)
from tiered.format.batch_scanner import walk_headers
from tiered.format.codecs import Codec, decompress
from tiered.format.control import ControlType, coordinator_epoch, marker
from tiered.model import NewRecord, TimestampType


def batches_of(data: bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    for position, header in walk_headers(data):
        yield header, memoryview(data)[position : position + header.size_bytes]


def all_batches(fixtures: Path) -> Iterator[tuple[str, BatchHeader, bytes]]:
    """Every intact batch of every root: (file name, header, bytes). Damaged files are for the recovery tests."""
    for root in ROOTS:
        if root != "unclean-damaged/before":
            for path in segment_files(fixtures, ".log", root=root):
                for header, batch in batches_of(path.read_bytes()):
                    yield f"{path.parent.name}/{path.name}", header, bytes(batch)


def test_main_holds_every_codec_and_both_timestamp_types(kafka_fixtures: Path) -> None:
    headers = [h for name, h, _ in all_batches(kafka_fixtures)]
    assert {h.codec for h in headers} == set(Codec)
    assert {h.timestamp_type for h in headers} == set(TimestampType)
    assert any(h.records_count == 0 for h in headers)
    assert any(h.has_delete_horizon for h in headers)
    assert any(h.is_transactional and not h.is_control for h in headers)


def encode_again(header: BatchHeader, batch: bytes) -> bytes:
    """``encode_batch`` with the broker's producer fields, from records with the timestamps as sent."""
    sent = header._replace(attributes=header.attributes & ~0x08)
    as_sent = bytearray(batch)
    as_sent[21:23] = sent.attributes.to_bytes(2, "big")
    records = [NewRecord(r.value, r.key, r.timestamp, r.headers) for r in decode_records(as_sent)]
    return encode_batch(
        records,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        timestamp_type=header.timestamp_type,
        append_time_ms=header.max_timestamp,
        producer=BatchProducer(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            transactional=header.is_transactional,
            control=header.is_control,
        ),
    )


def test_uncompressed_batches_encode_to_the_brokers_bytes(kafka_fixtures: Path) -> None:
    same = rebuilt = 0
    for name, header, batch in all_batches(kafka_fixtures):
        if header.codec is not Codec.NONE:
            continue
        if not header.has_delete_horizon and header.records_count == header.last_offset_delta + 1:
            assert encode_again(header, batch) == batch, (name, header)
            same += 1
        if header.timestamp_type is TimestampType.CREATE_TIME:
            # Compaction's output too: gaps, empty batches, deltas that count from the delete horizon.
            assert rebuild_batch(header, list(decode_records(batch))) == batch, (name, header)
            rebuilt += 1
    assert same > 400
    assert rebuilt > same - 100


def test_compressed_batches_decompress_to_what_our_encoder_writes(kafka_fixtures: Path) -> None:
    compared: set[Codec] = set()
    for name, header, batch in all_batches(kafka_fixtures):
        if header.codec is Codec.NONE or header.has_delete_horizon:
            continue
        if header.records_count != header.last_offset_delta + 1:
            continue
        plain = encode_again(header, batch)
        assert decompress(header.codec, batch[HEADER_BYTES:]) == plain[HEADER_BYTES:], (name, header)
        compared.add(header.codec)
    assert compared == set(Codec) - {Codec.NONE}


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_batches_rebuilt_with_another_codec_decode_to_the_same_records(kafka_fixtures: Path, codec: Codec) -> None:
    for path in segment_files(kafka_fixtures, ".log", root=MAIN):
        if path.parent.name not in {"codec-none-0", "codec-mixed-0", "txn-0"}:
            continue
        for header, batch in batches_of(path.read_bytes()):
            records = list(decode_records(batch))
            again = rebuild_batch(header, records, codec=codec)
            assert verify_batch(again).codec is codec
            assert list(decode_records(again)) == records


def test_markers_have_a_type_and_a_coordinator_epoch_and_encode_again(kafka_fixtures: Path) -> None:
    kinds: dict[ControlType, int] = {}
    for name, header, batch in all_batches(kafka_fixtures):
        if not header.is_control or "__cluster_metadata" in name:
            continue
        for record in decode_records(batch):
            kind = control_type(record)
            kinds[kind] = kinds.get(kind, 0) + 1
            again = marker(kind, coordinator_epoch(record), record.timestamp)
            assert (again.key, again.value) == (record.key, record.value)
    assert set(kinds) == {ControlType.ABORT, ControlType.COMMIT}


def test_the_metadata_log_of_the_controller_decodes(kafka_fixtures: Path) -> None:
    kinds = {
        control_type(r)
        for name, header, batch in all_batches(kafka_fixtures)
        if "__cluster_metadata" in name and header.is_control
        for r in decode_records(batch)
    }
    assert ControlType.LEADER_CHANGE in kinds
    assert ControlType.UNKNOWN not in kinds
