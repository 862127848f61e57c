"""Odd batches: what a real broker and Kafka's consumer said of them, kept, beside what we say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.golden.foreign import Answer, golden_answers, shown
from tests.golden.foreign_ours import appending, raw_names, reading, records_of
from tiered.arrow import ArrowDecoder, RecordBounds, arrow_table
from tiered.errors import CorruptionError
from tiered.format.batch import decode_records, rebuild_batch, verify_batch
from tiered.format.codecs import Codec
from tiered.format.kernels import Record
from tiered.model import TopicPartition

BATCHES = 1067


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    return golden_answers()


def test_we_read_what_kafkas_consumer_reads(answers: list[Answer]) -> None:
    differences = list(reading(answers))
    assert [one for one in differences if not one.why] == []
    assert len(answers) == BATCHES
    assert sum(answer.reads is not None for answer in answers) > 600
    assert set(Counter(one.why for one in differences)) == {
        "an offset below zero is damage",
        "an offset outside of 0 to 2^63-1 is damage",
        "more records than offsets are damage",
        "a frame with a wrong size, checksum or flag is damage",
        "what the library reads of an odd lz4 frame is read",
        "linked lz4 blocks are read",
        "no compressed data is needed for no records",
    }


def test_we_take_and_store_what_a_broker_takes_and_stores(answers: list[Answer], tmp_path: Path) -> None:
    differences = list(appending(tmp_path, answers))
    assert [one for one in differences if not one.why] == []
    assert set(Counter(one.why for one in differences)) == {
        "a frame with a wrong size, checksum or flag is damage",
        "what the library reads of an odd lz4 frame is read",
        "v0 and v1, which a broker of today does not take, become v2",
        "batches of another log are taken: offsets are given anew",
        "inner offsets are given anew",
        "inner offsets are given anew where Kafka fails",
        "a producer id below zero is none, also where Kafka fails",
        "what no consumer can read is refused",
        "a time below -1 is refused",
        "a producer without an epoch is refused",
        "the greatest time is that of the records",
        "the bytes of names stay",
        "refused with another error",
    }


def readable(answers: list[Answer]) -> list[tuple[str, bytes, list[Record]]]:
    """Name, bytes and records of the v2 batches that can be read."""
    found = []
    for answer in answers:
        if answer.reads is not None and answer.batch.data[16] == 2:
            try:
                found.append((answer.batch.name, answer.batch.data, records_of(answer.batch.data)[1]))
            except CorruptionError:
                continue  # the test above says why
    return found


def test_arrow_shows_the_same_records(answers: list[Answer]) -> None:
    for name, batch, records in readable(answers):
        decoder = ArrowDecoder(TopicPartition("t", 0), bounds=RecordBounds(-(2**63)))
        found = arrow_table(decoder.record_batches([(verify_batch(batch)._replace(attributes=0), batch)]))
        shown_by_arrow = [
            (row["offset"], time, row["key"], row["value"], [tuple(pair.values()) for pair in row["headers"] or ()])
            for row, time in zip(
                found.drop_columns("timestamp").to_pylist(), found["timestamp"].cast("int64").to_pylist(), strict=True
            )
        ]
        assert shown_by_arrow == [(*tuple(record)[:4], list(record.headers)) for record in records], name


def test_a_rewritten_batch_holds_the_same_records_with_the_bytes_of_their_names(answers: list[Answer]) -> None:
    renamed = 0
    for name, batch, records in readable(answers):
        header = verify_batch(batch)
        for codec in (None, Codec.ZSTD):
            again = rebuild_batch(header, records, codec=codec)
            found = list(decode_records(again))
            assert shown(header, found) == shown(header, records), name
            assert [raw_names(one) for one in found] == [raw_names(one) for one in records], name
        renamed += any("\ufffd" in name for one in records for name, _ in one.headers)
    assert renamed > 20
