"""Sealed segments that Kafka wrote, uploaded: the bucket answers as the disk does, and as Kafka's consumer saw it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from tests.golden.fixtures import expected_offsets, expected_records, partitions
from tests.support.remote_face import RemoteFace
from tests.unit.remote.building import TRUSTED, RemoteLog
from tiered.arrow import ArrowDecoder, RecordBounds
from tiered.format.batch import decode_records, read_header
from tiered.format.rows import Rows
from tiered.local.directory.read_only_log import LogView
from tiered.local.partition.read_log import ReadLog
from tiered.model import EpochEntry, TopicPartition
from tiered.remote.upload import upload_segment
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

NEWEST_EPOCH = 1_000
Pair = tuple[str, ReadLog, RemoteFace]


@pytest.fixture(scope="module")
def pairs(kafka_fixtures: Path) -> Iterator[list[Pair]]:
    """Each partition with sealed segments: as on disk, and as uploaded."""
    found: list[Pair] = []
    with LogView.open(kafka_fixtures / "main") as local:
        for number, name in enumerate(partitions(kafka_fixtures)):
            topic, _, partition = name.rpartition("-")
            tp = TopicPartition(topic, int(partition))
            if tp not in local.partitions():
                continue
            disk = local.partition(tp)
            sealed = disk.sealed_segments()
            if not sealed:
                continue
            topic_id = sealed[0].descriptor.topic_id
            log = RemoteLog(MemoryStore(f"golden-{number}"), topic, topic_id, tp.partition)
            rows = [
                drive(
                    log.store,
                    upload_segment(segment, claim_epoch=1, capabilities=TRUSTED),
                    ids=log.ids,
                )
                for segment in sealed
            ]
            log.put_root(
                Rows.from_rows(rows),
                start_offset=max(rows[0].base, disk.positions().start_offset),
                next_offset=rows[-1].next,
                lineage=(EpochEntry(NEWEST_EPOCH, rows[0].base),),
            )
            found.append((name, disk, RemoteFace(log.store, topic, topic_id, tp.partition)))
            MemoryStore.forget(f"golden-{number}")
        yield found


def test_there_is_something_to_compare(pairs: list[Pair]) -> None:
    assert len(pairs) > 10
    assert {len(remote.segments()) > 1 for _, _, remote in pairs} == {True, False}
    assert all(isinstance(remote.topic_id, UUID) for _, _, remote in pairs)


def test_bytes_are_those_on_disk(pairs: list[Pair]) -> None:
    for name, disk, remote in pairs:
        start, end = remote.start_offset, remote.next_offset
        stored = b"".join(remote.read_batches(start))
        assert stored == b"".join(bytes(part) for part in disk.read_batches(start, end)), name
        middle = (start + end) // 2
        first = next(remote.read_batches(middle, middle + 1), b"")
        assert bytes(first) == bytes(next(iter(disk.read_batches(middle, middle + 1)), b"")), name


def test_times_are_found_where_the_disk_finds_them(pairs: list[Pair]) -> None:
    compared = 0
    for name, disk, remote in pairs:
        end = remote.next_offset
        times = sorted({r.timestamp for part in remote.read_batches(remote.start_offset) for r in decode_records(part)})
        for timestamp in [*times[:: max(1, len(times) // 40)], *times[-2:]]:
            for wanted in (timestamp - 1, timestamp, timestamp + 1):
                here, there = disk.offset_for_time(wanted), remote.offset_for_time(wanted)
                if here is not None and here[0] < end:
                    assert there == here, (name, wanted)
                    compared += 1
                else:
                    assert there is None or here is None, (name, wanted)
    assert compared > 100


def test_aborted_transactions_are_those_of_the_disk(pairs: list[Pair]) -> None:
    seen = 0
    for name, disk, remote in pairs:
        start, end = remote.start_offset, remote.next_offset
        for low, high in ((start, end), ((start + end) // 2, end), (start, (start + end) // 2)):
            there = remote.aborted_txns(low, high)
            here = [txn for txn in disk.aborted_txns(low, high) if txn.last_offset < end]
            assert sorted(there) == sorted(here), name
            seen += len(there)
    assert seen > 0


def test_arrow_shows_what_kafkas_consumer_saw(pairs: list[Pair], kafka_fixtures: Path) -> None:
    compared = 0
    for name, _, remote in pairs:
        if expected_offsets(kafka_fixtures, name) is None:
            continue
        start, end = remote.start_offset, remote.next_offset
        decoder = ArrowDecoder(
            remote.tp, columns=("offset", "key", "value", "headers"), bounds=RecordBounds(start, end)
        )
        found = [
            row
            for piece in decoder.record_batches((read_header(part), part) for part in remote.read_batches(start))
            for row in piece.to_pylist()
        ]
        wanted = [r for r in expected_records(kafka_fixtures, name) if r.offset < end]
        assert [(row["offset"], row["key"]) for row in found] == [(r.offset, r.key) for r in wanted], name
        for row, record in zip(found, wanted, strict=True):
            assert record.matches_value(row["value"]), (name, record.offset)
            assert [(h["key"], h["value"]) for h in row["headers"] or []] == list(record.headers), (name, record.offset)
        compared += len(found)
    assert compared > 500
