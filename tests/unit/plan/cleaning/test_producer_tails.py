"""Producer state from headers alone, against the snapshots that the broker wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.fixtures import base_offset, partition_dir, segment_files
from tests.support.model_cleaning import PRODUCER_EXPIRATION_MS, ProducerTails
from tiered.config import MAX_LONG
from tiered.format.batch import BatchProducer, encode_batch, read_header, rebuild_batch
from tiered.format.batch_scanner import walk_headers
from tiered.format.control import ControlType, marker
from tiered.format.producer_snapshot import decode_snapshot
from tiered.model import NewRecord


@pytest.mark.parametrize("partition", ["idempotent-0", "txn-0", "txn-1"])
def test_headers_say_what_the_brokers_snapshots_say(kafka_fixtures: Path, partition: str) -> None:
    directory = partition_dir(kafka_fixtures, partition)
    logs = [log for log in segment_files(kafka_fixtures, ".log", root="main") if log.parent == directory]
    assert len(logs) > 1
    tails = ProducerTails()
    compared = 0
    for log in logs:
        snapshot = directory / f"{base_offset(log):020d}.snapshot"
        if snapshot.exists():
            expected = [e._replace(coordinator_epoch=-1) for e in decode_snapshot(snapshot.read_bytes())]
            assert list(tails.live(0, MAX_LONG)) == sorted(expected)
            compared += len(expected)
        for _, header in walk_headers(log.read_bytes()):
            tails.observe(header)
    assert compared > 0


def test_a_silent_producer_is_forgotten_unless_its_transaction_is_open() -> None:
    tails = ProducerTails()
    record = NewRecord(b"v", b"k", 1000)
    tails.observe(read_header(encode_batch([record], producer=BatchProducer(1, 0, 5))))
    tails.observe(read_header(encode_batch([record], base_offset=1, producer=BatchProducer(2, 0, transactional=True))))
    assert [e.producer_id for e in tails.live(1000 + PRODUCER_EXPIRATION_MS - 1)] == [1, 2]
    assert [e.producer_id for e in tails.live(1000 + PRODUCER_EXPIRATION_MS)] == [2]


def test_a_marker_that_was_emptied_says_nothing() -> None:
    producer = BatchProducer(1, 3, transactional=True, control=True)
    whole = encode_batch([marker(ControlType.COMMIT, 0, 1000)], producer=producer)
    tails = ProducerTails()
    tails.observe(read_header(rebuild_batch(read_header(whole), [])))
    assert tails.live(0) == ()
    tails.observe(read_header(whole))
    assert [(e.producer_id, e.producer_epoch, e.last_offset) for e in tails.live(0)] == [(1, 3, -1)]


def test_nobody_is_a_producer_without_an_id() -> None:
    tails = ProducerTails()
    tails.observe(read_header(encode_batch([NewRecord(b"v", b"k", 1000)])))
    assert tails.live(0) == ()
