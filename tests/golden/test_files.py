"""Every index, snapshot and checkpoint file of the broker round-trips byte for byte, and lookups agree with a scan."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.golden.fixtures import (
    ARCHIVE,
    ROOTS,
    base_offset,
    partition_dir,
    segment_files,
)
from tiered.errors import CorruptionError
from tiered.format.batch_scanner import walk_headers
from tiered.format.checkpoint import (
    decode_clean_shutdown,
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_epochs,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
)
from tiered.format.producer_snapshot import decode_snapshot, encode_snapshot
from tiered.format.segment_indexes import OffsetIndex, TimeIndex, decode_txns, encode_txns

CLEAN_ROOTS = [r for r in ROOTS if not r.startswith("unclean")]


def test_the_archive_is_the_one_that_was_reviewed() -> None:
    assert (
        hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()
        == "d02e1b39bed52d0352b730b0a2f1d560c93c1f3214c533aa6f08e550bfbf42f0"
    )


def test_offset_indexes_round_trip(kafka_fixtures: Path) -> None:
    entries = 0
    for path in segment_files(kafka_fixtures, ".index"):
        data = path.read_bytes()
        if len(data) % 8:
            with pytest.raises(CorruptionError, match="multiple of 8"):
                OffsetIndex.from_bytes(data, base_offset(path))
            assert "ragged" in path.parent.name or "truncated" in path.parent.name
            continue
        index = OffsetIndex.from_bytes(data, base_offset(path))
        assert index.to_bytes() == data
        entries += len(index)
    assert entries > 1000


def test_time_indexes_round_trip(kafka_fixtures: Path) -> None:
    entries = 0
    for path in segment_files(kafka_fixtures, ".timeindex"):
        data = path.read_bytes()
        if len(data) % 12:
            with pytest.raises(CorruptionError, match="multiple of 12"):
                TimeIndex.from_bytes(data, base_offset(path))
            continue
        index = TimeIndex.from_bytes(data, base_offset(path))
        assert index.to_bytes() == data
        entries += len(index)
    assert entries > 1000


def test_preallocated_indexes_of_a_killed_broker_lose_their_padding(kafka_fixtures: Path) -> None:
    before, after = "unclean-kill/before", "unclean-kill/after"
    padded = 0
    for path in segment_files(kafka_fixtures, ".index", root=before):
        data = path.read_bytes()
        index = OffsetIndex.from_bytes(data, base_offset(path), drop_padding=True)
        times = TimeIndex.from_bytes(path.with_suffix(".timeindex").read_bytes(), base_offset(path), drop_padding=True)
        twin = partition_dir(kafka_fixtures, path.parent.name, after) / path.name
        assert index.to_bytes() == twin.read_bytes(), path
        # The broker's recovery also writes the closing entry of the last segment.
        assert twin.with_suffix(".timeindex").read_bytes().startswith(times.to_bytes()), path
        padded += len(data) != index.size_bytes
    assert padded >= 10


@pytest.mark.parametrize("root", CLEAN_ROOTS)
def test_offset_lookups_agree_with_a_scan(kafka_fixtures: Path, root: str) -> None:
    for path in segment_files(kafka_fixtures, ".index", root=root):
        base = base_offset(path)
        data = path.with_suffix(".log").read_bytes()
        index = OffsetIndex.from_bytes(path.read_bytes(), base)
        assert index.is_sane(len(data))
        by_start = dict(walk_headers(data))
        for offset, position in index:
            assert by_start[position].last_offset == offset, path
        batches = list(by_start.items())
        for _, header in batches:
            for target in (header.base_offset, header.last_offset):
                start = index.lookup(target)[1]
                found = next(h for p, h in batches if p >= start and h.last_offset >= target)
                assert found == header, (path, target)


def test_txn_indexes_round_trip(kafka_fixtures: Path) -> None:
    for path in segment_files(kafka_fixtures, ".txnindex"):
        txns = decode_txns(path.read_bytes(), base_offset(path))
        assert encode_txns(txns) == path.read_bytes()


def test_producer_snapshots_round_trip(kafka_fixtures: Path) -> None:
    producers = 0
    for path in segment_files(kafka_fixtures, ".snapshot"):
        data = path.read_bytes()
        if "unclean-damaged/before/u-snapshot-bad" in path.as_posix():
            continue
        entries = decode_snapshot(data)
        assert encode_snapshot(entries) == data
        producers += len(entries)
    assert producers > 50


def test_checkpoints_round_trip(kafka_fixtures: Path) -> None:
    offset_files = list(kafka_fixtures.rglob("*-offset-checkpoint"))
    epoch_files = list(kafka_fixtures.rglob("leader-epoch-checkpoint"))
    assert len(offset_files) >= 20
    assert len(epoch_files) >= 80
    for path in offset_files:
        text = path.read_text()
        assert encode_offsets(decode_offsets(text)) == text or text == ""
    for path in epoch_files:
        text = path.read_text()
        assert encode_epochs(decode_epochs(text)) == text or text == ""


def test_identity_files_round_trip(kafka_fixtures: Path) -> None:
    topic_ids = set()
    for path in kafka_fixtures.rglob("partition.metadata"):
        text = path.read_bytes().decode()
        topic_ids.add(decode_partition_metadata(text))
        assert encode_partition_metadata(decode_partition_metadata(text)) == text
    assert len(topic_ids) > 20
    for path in kafka_fixtures.rglob("meta.properties"):
        text = path.read_text()
        meta = decode_meta_properties(text)
        assert meta.version == 1
        assert meta.directory_id is not None
        assert encode_meta_properties(meta) == text
    for path in kafka_fixtures.rglob(".kafka_cleanshutdown"):
        text = path.read_text()
        assert encode_clean_shutdown(decode_clean_shutdown(text)) == text
